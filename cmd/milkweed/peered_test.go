package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/peer"
)

func TestPeersTable(t *testing.T) {
	point := served(t, &controltest.Daemon{Peered: true})
	out, _, err := runMilkweed(t, "peers", point)
	wantCode(t, err, exit.OK)
	want := point + `: 3 nodes, this one is node1; 2 of them up; roster 001122334455

NODE   HOLDS    OF       FILES  FROM SOURCE  READ     SERVED  FAILOVERS  ADDRESS        STATE
node1  100 MiB  1.2 GiB  90     300 MiB      -        -       -          10.0.0.1:7440  this node
node2  90 MiB   1.2 GiB  80     200 MiB      40 MiB   20 MiB  0          10.0.0.2:7440  up
node3  -        -        -      -            6.0 MiB  0 B     1          10.0.0.3:7440  connection refused
`
	if out != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
}

func TestPeersJSON(t *testing.T) {
	point := served(t, &controltest.Daemon{Peered: true})
	out, _, err := runMilkweed(t, "peers", "--json", point)
	wantCode(t, err, exit.OK)
	var r control.PeerReport
	if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Nodes) != 3 || strings.Count(out, "\n") != 1 {
		t.Errorf("%v: %s", err, out)
	}
}

// Without peers, the command says so.
func TestPeersOfOneNode(t *testing.T) {
	point := served(t, &controltest.Daemon{})
	out, _, err := runMilkweed(t, "peers", point)
	wantCode(t, err, exit.OK)
	if want := point + ": no peers; milkweed mount --peers shares the tiers of several nodes\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
}

// The peers are a level between the tiers and the source.
func TestStatusOfPeers(t *testing.T) {
	point := served(t, &controltest.Daemon{Peered: true})
	out, _, err := runMilkweed(t, "status", point)
	wantCode(t, err, exit.OK)
	want := regexp.MustCompile(`(?m)^ssd .*
peers  +57 +46 MiB +1 +1 of 2 up *
source +400 `)
	if !want.MatchString(out) {
		t.Errorf("got\n%s\nwithout %s", out, want)
	}
	if want := "LATENCY, BANDWIDTH, FILL, TIERS and PEERS are times"; !strings.Contains(out, want) {
		t.Errorf("got\n%s\nwithout %s", out, want)
	}
	if want := "peers      node1 of 3 nodes: 46 MiB read from others, 1 failover, 5 misses; 20 MiB served to others, 2 requests from copies in flight\n"; !strings.Contains(out, want) {
		t.Errorf("got\n%s\nwithout %s", out, want)
	}
}

// Each secret is a new one, and the nodes accept it.
func TestKeygen(t *testing.T) {
	seen := make(map[string]bool)
	for range 3 {
		out, _, err := runMilkweed(t, "peers", "keygen")
		wantCode(t, err, exit.OK)
		if _, err := peer.ParseSecret(out); err != nil || strings.Count(out, "\n") != 1 {
			t.Errorf("got %q, %v", out, err)
		}
		seen[out] = true
	}
	if len(seen) != 3 {
		t.Errorf("%d secrets in 3 runs", len(seen))
	}
}
