package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers"
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

// With groups, the header and the status name that of this node.
func TestGroupIsShown(t *testing.T) {
	r := control.PeerReport{Roster: control.Roster{Hash: "00112233445566778899", Nodes: 32, Group: 2, Groups: 4}, Self: "node40"}
	var out bytes.Buffer
	if err := printPeers(&out, "/mnt", r); err != nil {
		t.Fatal(err)
	}
	if want := "/mnt: group 2 of 4, 32 nodes, this one is node40; "; !strings.HasPrefix(out.String(), want) {
		t.Errorf("got %s, want %s", &out, want)
	}
	if got, want := peersLine(control.Peers{Roster: r.Roster, Self: r.Self}), "node40 of group 2 of 4, 32 nodes: "; !strings.HasPrefix(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A pattern is a Files that has every file, with a pattern as content.
type pattern struct{ opens atomic.Int64 }

func (p *pattern) OpenShared(_ context.Context, _ string, want drivers.Info, _ int) (drivers.Object, error) {
	p.opens.Add(1)
	return patternObject{want}, nil
}

type patternObject struct{ info drivers.Info }

func (o patternObject) Info() drivers.Info { return o.info }
func (o patternObject) Close() error       { return nil }
func (o patternObject) ReadAt(_ context.Context, p []byte, off int64) (int, error) {
	return strings.NewReader(strings.Repeat("x", int(o.info.Size))).ReadAt(p, off)
}

// Nodes read from those of their group only. A node that is not in the roster, and serves nobody,
// uses one of the groups.
func TestGroupsOfPeers(t *testing.T) {
	const nodes, size, reads = 5, 2, 40 // groups of 1, 2 and 2 nodes
	var list, names []string
	for i := range nodes {
		names = append(names, fmt.Sprintf("n%d", nodes-i))
		list = append(list, names[i]+"="+freeAddress(t))
	}
	open := func(name string, serve bool) *peering {
		t.Helper()
		c := config.Peers{Roster: strings.Join(list, ","), Name: name, Serve: serve, Group: size, Wait: time.Second}
		p, err := openPeers(t.Context(), c, "dataset", nil, func(error) {}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.close)
		return p
	}
	var all []*peering
	var served []*pattern
	for _, name := range names {
		p, files := open(name, true), new(pattern)
		if err := p.start(files, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		all, served = append(all, p), append(served, files)
	}
	groups := []int64{1, 2, 2, 3, 3}
	read := func(p *peering) (fromSource int64) {
		t.Helper()
		source := new(pattern)
		for i := range reads {
			name, info := fmt.Sprintf("f%d", i), drivers.Info{Mode: 0o100444, Size: 100, Mtime: time.Unix(1, 0)}
			o, err := p.node.OpenVersion(t.Context(), name, info, func(ctx context.Context) (drivers.Object, error) {
				return source.OpenShared(ctx, name, info, 0)
			})
			if err != nil {
				t.Fatal(err)
			}
			defer o.Close()
			if _, err := o.ReadAt(t.Context(), make([]byte, info.Size), 0); err != nil && err != io.EOF {
				t.Fatal(err)
			}
		}
		return source.opens.Load()
	}
	for i, p := range all {
		if got, want := p.roster(), groups[i]; got.Group != want || got.Groups != 3 || got.Nodes != min(want, 2) {
			t.Errorf("%s is in %+v, want group %d of 3", names[i], got, want)
		}
		if got, want := p.index(), []string{"0/1", "1/2", "0/2", "1/2", "0/2"}[i]; got != want { // n5, n4, …
			t.Errorf("%s has the index %s in its group, want %s", names[i], got, want)
		}
		for _, s := range served {
			s.opens.Store(0)
		}
		fromSource := read(p)
		for j, s := range served {
			want := int64(0)
			if j != i && groups[j] == groups[i] {
				want = reads
			}
			if got := s.opens.Load(); got != want {
				t.Errorf("%s has read %d files from %s, want %d", names[i], got, names[j], want)
			}
		}
		if want := int64(0); groups[i] != 1 && fromSource != want || groups[i] == 1 && fromSource != reads {
			t.Errorf("%s, of group %d, has read %d files from the source", names[i], groups[i], fromSource)
		}
	}
	outside := open("", false)
	if got := outside.index(); got != "" {
		t.Errorf("a node outside of the roster has the index %s", got)
	}
	if got := outside.roster(); outside.self.Name != "" || got.Groups != 3 || got.Hash != all[map[int64]int{1: 0, 2: 1, 3: 3}[got.Group]].nodes.Hash() {
		t.Errorf("a node outside of the roster uses %+v", got)
	}
	if got := read(outside); got != 0 {
		t.Errorf("a node outside of the roster has read %d files from the source", got)
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
