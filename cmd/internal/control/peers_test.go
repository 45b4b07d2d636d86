package control_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/drivers/peer"
)

// The report of the daemon has all nodes, also those that do not answer.
func TestPeersOfAMount(t *testing.T) {
	c := dial(t, &controltest.Daemon{MountPoint: "/mnt", Peered: true})
	got, err := c.Peers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got.Self != "node1" || len(got.Nodes) != 3 || got.Nodes[1].ServedBytes != 20<<20 || got.Nodes[2].Problem == "" {
		t.Errorf("got %+v", got)
	}
}

// Without peers the report has no nodes, and the status has no peers.
func TestNoPeers(t *testing.T) {
	d := &controltest.Daemon{MountPoint: "/mnt"}
	got, err := dial(t, d).Peers(t.Context())
	if err != nil || len(got.Nodes) != 0 {
		t.Errorf("got %+v, %v; want no nodes", got, err)
	}
	if p, _ := json.Marshal(d.Status(t.Context())); strings.Contains(string(p), `"peers"`) {
		t.Errorf("the status has peers: %s", p)
	}
}

// The sums of a status are those of its nodes.
func TestPeersAdd(t *testing.T) {
	var got control.Peers
	for range 2 {
		got.Add(control.Peer{Up: true, Counters: peer.Counters{
			Reads: 1, Bytes: 2, Failovers: 3, Misses: peer.Misses{Absent: 1, Full: 2, Protocol: 1}, ServedReads: 5, ServedBytes: 6, Joined: 7,
		}})
	}
	got.Add(control.Peer{})
	want := control.Peers{Up: 2, Reads: 2, Bytes: 4, Failovers: 6, Misses: 8, ServedReads: 10, ServedBytes: 12, Joined: 14}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
