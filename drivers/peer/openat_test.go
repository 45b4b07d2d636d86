package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A ranks is a Files that notes with which ranks it was asked.
type ranks struct {
	*memory
	mu  sync.Mutex
	got []int
}

func (f *ranks) OpenShared(ctx context.Context, name string, want drivers.Info, rank int) (drivers.Object, error) {
	f.mu.Lock()
	f.got = append(f.got, rank)
	f.mu.Unlock()
	return f.memory.OpenShared(ctx, name, want, rank)
}

// take returns the ranks of the requests since the last call.
func (f *ranks) take() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.got = nil }()
	return f.got
}

// A node knows its place among the nodes, in the order of their names.
func TestNodes(t *testing.T) {
	r := newRig(t, newMemory(nil), func(c *Config) {
		if c.Self == "b" {
			c.Self = ""
		}
	}, nil, nil)
	for i, want := range []int{0, -1, 2} {
		if count, self := r.nodes[i].Nodes(); count != 3 || self != want {
			t.Errorf("node %d: got %d of %d, want %d of 3", i, self, count, want)
		}
	}
}

// A file is read from the nodes that the caller names, in this order, whoever owns it: from the next
// one if a node lacks the file, and in the end from the source. The node itself is not among them. A
// request that is to cause no fill has the rank -1, the others that of an owner.
func TestOpenAt(t *testing.T) {
	source := newMemory(make(map[string][]byte))
	var files [2]*ranks
	for i := range files {
		files[i] = &ranks{memory: newMemory(make(map[string][]byte))}
	}
	r := newRig(t, source, nil, files[0], files[1])
	name, data := r.owned(0, 1), content(1000)
	put(name, data, source, files[0].memory, files[1].memory)
	for _, tt := range []struct {
		nodes  []int
		fill   bool
		lack   []int // nodes without the file
		b, c   []int // the ranks with which they are asked
		source int   // opens
	}{
		{nodes: []int{2, 1}, c: []int{-1}},
		{nodes: []int{2, 1}, fill: true, c: []int{0}},
		{nodes: []int{0, 1, 2}, b: []int{-1}},
		{nodes: []int{1, 0, 2}, fill: true, lack: []int{1}, b: []int{0}, c: []int{0}},
		{nodes: []int{2, 1}, lack: []int{1, 2}, b: []int{-1}, c: []int{-1}, source: 1},
		{nodes: []int{2}, lack: []int{2}, c: []int{-1}, source: 1},
		{nodes: []int{0}, source: 1},
		{source: 1},
	} {
		t.Run(fmt.Sprintf("%v, fill %v, without %v", tt.nodes, tt.fill, tt.lack), func(t *testing.T) {
			for i, f := range files {
				f.refuse = nil
				if slices.Contains(tt.lack, i+1) {
					f.refuse = fs.ErrNotExist
				}
			}
			before, info := source.opened(), infoOf(name, data)
			o, err := r.nodes[0].OpenAt(t.Context(), tt.nodes, tt.fill, name, info, source.source(name, info))
			if err != nil {
				t.Fatal(err)
			}
			defer o.Close()
			r.wantContent(o, data)
			if b, c := files[0].take(), files[1].take(); !slices.Equal(b, tt.b) || !slices.Equal(c, tt.c) {
				t.Errorf("the ranks are %v and %v, want %v and %v", b, c, tt.b, tt.c)
			}
			if got := source.opened() - before; got != tt.source {
				t.Errorf("the source was opened %d times, want %d", got, tt.source)
			}
		})
	}
}

// If a node is down, the next one is read.
func TestOpenAtADeadNode(t *testing.T) {
	r, _, c, name, data := threeNodes(t, 1000)
	c.refuse = fs.ErrNotExist
	r.servers[1].Close()
	info := infoOf(name, data)
	for range 2 {
		o, err := r.nodes[0].OpenAt(t.Context(), []int{1, 2}, false, name, info, r.source.source(name, info))
		if err != nil {
			t.Fatal(err)
		}
		r.wantContent(o, data)
		o.Close()
	}
	if b, c := r.stats(0, 1), r.stats(0, 2); b.Failovers != 1 || c.Misses.Absent != 2 || r.source.opened() != 2 {
		t.Errorf("first %+v, second %+v, source opened %d times", b, c, r.source.opened())
	}
}

// A node reports its exchange. One that has none reports the zero value.
func TestExchangeOf(t *testing.T) {
	want := drivers.ExchangeState{ID: strings.Repeat("5f", 16), Epoch: 3, Received: true}
	r := newRig(t, newMemory(nil), func(c *Config) {
		if c.Self == "b" {
			c.About = func() About { return About{Exchange: &want} }
		}
	}, newMemory(nil), newMemory(nil))
	for i, want := range []drivers.ExchangeState{want, {}} {
		if got, err := r.nodes[0].ExchangeOf(t.Context(), i+1); err != nil || got != want {
			t.Errorf("node %d: got %+v, %v, want %+v", i+1, got, err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.nodes[0].ExchangeOf(ctx, 1); !errors.Is(err, context.Canceled) || !r.nodes[0].Stats()[1].Up {
		t.Errorf("a cancelled request: %v; the node is up: %v", err, r.nodes[0].Stats()[1].Up)
	}
}

// A node that does not answer is asked once, for about a second, and is then skipped by everybody.
func TestExchangeOfADeadNode(t *testing.T) {
	r, _, _, name, data := threeNodes(t, 1000)
	l, err := net.Listen("tcp", "127.0.0.1:0") // which accepts nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r.setAddress(1, l.Addr().String())
	began := time.Now()
	if got, err := r.nodes[0].ExchangeOf(t.Context(), 1); err == nil || errors.Is(err, errSkipped) {
		t.Fatalf("got %+v, %v", got, err)
	}
	if took := time.Since(began); took < pingTimeout || !testing.Short() && took > 10*pingTimeout { // a busy machine takes longer
		t.Errorf("it took %v, want about %v", took, pingTimeout)
	}
	if _, err := r.nodes[0].ExchangeOf(t.Context(), 1); !errors.Is(err, errSkipped) {
		t.Errorf("the second time: %v", err)
	}
	r.wantContent(r.open(name), data)
	if got := r.stats(0, 1); got != (Counters{}) {
		t.Errorf("a read has used the node: %+v", got)
	}
}

// What another node or another dataset answers at the address of a node is not its exchange.
func TestExchangeOfAnotherNode(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"dataset": func(c *Config) { c.Dataset = "of " + c.Self },
		"node":    func(*Config) {},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, newMemory(nil), func(c *Config) {
				change(c)
				c.About = func() About { return About{Exchange: &drivers.ExchangeState{ID: "5f"}} }
			}, newMemory(nil), newMemory(nil))
			if name == "node" {
				r.setAddress(1, r.servers[2].Addr().String())
			}
			if got, err := r.nodes[0].ExchangeOf(t.Context(), 1); Cause(err) != "misdirected" || got != (drivers.ExchangeState{}) {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

// The longest report of a node fits into an answer.
func TestInfoIsBounded(t *testing.T) {
	const most = 1<<63 - 1
	i := Info{Name: strings.Repeat("n", 255), Dataset: strings.Repeat("d", 255), Roster: strings.Repeat("5", 32), Clock: time.Now(), About: About{
		Version: strings.Repeat("v", 255), Files: most, SourceBytes: most, PeerBytes: most,
		Exchange: &drivers.ExchangeState{ID: strings.Repeat("5f", 16), Epoch: most, Received: true},
	}}
	for range 16 {
		i.Tiers = append(i.Tiers, Tier{strings.Repeat("t", 255), most, most})
	}
	if body, err := json.Marshal(i); err != nil || len(body) > maxBody/2 {
		t.Errorf("%d bytes, %v; want at most %d", len(body), err, maxBody/2)
	}
}
