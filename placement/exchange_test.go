package placement

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/placement/exchange"
	"github.com/milkweedfs/milkweed/tiers"
)

// An exchanging is a cluster whose nodes exchange the files.
type exchanging struct {
	*cluster
	content  map[string][]byte
	fraction float64
	files    *exchange.List
	plan     *exchange.Plan
}

// newExchanging makes a cluster and its exchange, which has not begun.
func newExchanging(t *testing.T, nodes, files int, size func(int) int, fraction float64, quota int64) *exchanging {
	t.Helper()
	opts := alike(nodes, quota)
	for i := range opts {
		opts[i].log = t.Output()
	}
	x := &exchanging{cluster: newCluster(t, opts...), fraction: fraction}
	x.put(files, size)
	x.content = x.cluster.files
	x.list()
	return x
}

// list sets the files that are exchanged.
func (x *exchanging) list() {
	x.t.Helper()
	var err error
	if x.files, err = exchange.NewList(slices.Values(x.names())); err != nil {
		x.t.Fatal(err)
	}
	x.plan, err = exchange.New(exchange.Config{Files: x.files.Len(), Nodes: len(x.nodes), Seed: 1, Fraction: x.fraction})
	if err != nil {
		x.t.Fatal(err)
	}
}

// start starts the exchange on a node.
func (x *exchanging) start(n *node, epoch int) error {
	return n.handler.StartExchange(context.Background(), ExchangeConfig{
		ID: "id", Files: x.files, Seed: 1, Fraction: x.fraction, Nodes: len(x.nodes), Node: n.index,
	}, epoch, 0, 1)
}

// begin begins an epoch on all nodes that are up.
func (x *exchanging) begin(epoch int) {
	x.t.Helper()
	for _, n := range x.nodes {
		if n.isDown() {
			continue
		}
		if err := x.start(n, epoch); err != nil {
			x.t.Fatal(err)
		}
	}
}

// at returns an epoch of the plan.
func (x *exchanging) at(epoch int) *exchange.Epoch {
	e := x.plan.Start()
	for e.Number() < epoch {
		e.Advance()
	}
	return e
}

// readShares lets the job of each node that is up read its share of an epoch, and compares it.
func (x *exchanging) readShares(epoch int) {
	x.t.Helper()
	var all sync.WaitGroup
	e := x.at(epoch)
	for _, n := range x.nodes {
		if n.isDown() {
			continue
		}
		share := slices.Clone(e.Share(n.index))
		rand.New(rand.NewPCG(uint64(epoch), uint64(n.index))).Shuffle(len(share), func(i, j int) { share[i], share[j] = share[j], share[i] })
		for part := range slices.Chunk(share, len(share)/4+1) {
			all.Go(func() {
				for _, file := range part {
					if n.isDown() {
						return
					}
					name := x.files.Name(int(file))
					n.wantFile(name, x.content[name])
				}
			})
		}
	}
	all.Wait()
}

// arrive waits until each node that is up has all files of an epoch and of the next one, and what
// was given away before is dropped.
func (x *exchanging) arrive(epoch int) {
	x.t.Helper()
	now, next := x.at(epoch), x.at(epoch+1)
	for _, n := range x.nodes {
		if n.isDown() {
			continue
		}
		var got string
		n.awaits("the files of the next epoch to arrive", func() bool {
			got = ""
			for file := range x.files.Len() {
				held := now.Holder(file) == n.index || next.Holder(file) == n.index
				if copied := n.entry(x.files.Name(file)).Level() != tiers.AtSource; copied != held {
					got += fmt.Sprintf("node %d, %s: copied %v, held %v\n", n.index, x.files.Name(file), copied, held)
				}
			}
			return got == ""
		}, func() string { return fmt.Sprintf("%s%+v", got, n.handler.ExchangeStats()) })
	}
}

// awaits waits for a condition. If it does not come true, it prints the state.
func (n *node) awaits(what string, ok func() bool, state func() string) {
	n.cluster.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.cluster.t.Fatalf("waited too long for %s:\n%s", what, state())
		}
	}
}

// TestExchange runs some epochs of four nodes. Each byte is read from the source once, in epoch 0, and
// each file that moves is read from the node that held it.
func TestExchange(t *testing.T) {
	t.Parallel()
	for _, fraction := range []float64{0, 0.3, 1} {
		t.Run(fmt.Sprint(fraction), func(t *testing.T) {
			t.Parallel()
			x := newExchanging(t, 4, 80, func(i int) int { return 5000 + 100*i }, fraction, 1<<20)
			moved := int64(0)
			for epoch := range 5 {
				x.begin(epoch)
				x.readShares(epoch)
				x.arrive(epoch)
				now, next := x.at(epoch), x.at(epoch+1)
				for file := range x.files.Len() { // what a node gets back at once, it still has
					if to := next.Holder(file); now.Holder(file) != to && (epoch == 0 || x.at(epoch-1).Holder(file) != to) {
						moved += int64(len(x.content[x.files.Name(file)]))
					}
				}
				if got, want := x.sourceBytes(), x.bytes(); got != want {
					t.Errorf("epoch %d: %d bytes were read from the source; want %d", epoch, got, want)
				}
				if got := x.servedBytes(); got != moved {
					t.Errorf("epoch %d: %d bytes were read from other nodes; want %d", epoch, got, moved)
				}
			}
			for _, n := range x.nodes {
				n.awaits("the end of a pass", func() bool {
					s := n.handler.ExchangeStats()
					return s.Epoch == 4 && s.Complete && s.ArrivedFiles == s.IncomingFiles && s.GivenFiles == 0
				}, func() string { return "" })
				s := n.handler.ExchangeStats()
				if !s.Complete || s.ArrivedFiles != s.IncomingFiles || s.ShareFiles != 20 || s.GivenFiles != 0 || s.DroppedForRoom != 0 {
					t.Errorf("node %d: %+v", n.index, s)
				}
			}
		})
	}
}

// TestExchangeNeedsRoomForTwoEpochs: an exchange for which the quotas are too small is refused, and one
// for which they just suffice works.
func TestExchangeNeedsRoomForTwoEpochs(t *testing.T) {
	t.Parallel()
	const size = 4096
	x := newExchanging(t, 4, 80, func(int) int { return size }, 0.3, 26*size)
	for epoch := range 4 {
		x.begin(epoch)
		x.readShares(epoch)
		x.arrive(epoch)
		for _, n := range x.nodes {
			if s := n.handler.ExchangeStats(); s.Room != 26*size || s.MostRoom != 26*size {
				t.Errorf("node %d needs room for %d bytes, at most %d; want %d", n.index, s.Room, s.MostRoom, 26*size)
			}
		}
	}
	small := newExchanging(t, 4, 80, func(int) int { return size }, 0.3, 26*size-1)
	for _, n := range small.nodes {
		if err := small.start(n, 0); !errors.Is(err, ErrExchangeRoom) {
			t.Errorf("node %d: %v", n.index, err)
		}
		if s := n.handler.ExchangeStats(); s.ID != "" {
			t.Errorf("there is an exchange: %+v", s)
		}
	}
}

// TestExchangeTriesAgainForRoom: while copies that were given away and dropped are open, they take room,
// and files of the next epoch have none. They arrive when the copies are closed, and do not count as
// arrived before.
func TestExchangeTriesAgainForRoom(t *testing.T) {
	t.Parallel()
	const size = 4096
	x := newExchanging(t, 4, 80, func(int) int { return size }, 0.3, 26*size)
	x.begin(0)
	x.readShares(0)
	x.arrive(0)
	n, next := x.nodes[0], x.at(1)
	var open []drivers.Object
	for _, file := range x.at(0).Share(0) {
		if next.Holder(int(file)) != 0 {
			open = append(open, n.open(x.files.Name(int(file))))
		}
	}
	x.begin(1)
	n.awaits("a file that has no room", func() bool { return n.handler.Stats().Skipped > 0 }, func() string {
		return fmt.Sprintf("%+v", n.handler.ExchangeStats())
	})
	n.awaits("all other files", func() bool {
		s := n.handler.ExchangeStats()
		return s.Epoch == 1 && s.GivenFiles == 0 && n.used() == 26*size && s.ArrivedFiles < s.IncomingFiles
	}, func() string { return fmt.Sprintf("%d bytes used, %+v", n.used(), n.handler.ExchangeStats()) })
	for _, f := range open {
		f.Close()
	}
	x.readShares(1)
	x.arrive(1)
	n.awaits("the count of what has arrived", func() bool {
		s := n.handler.ExchangeStats()
		return s.Complete && s.ArrivedFiles == s.IncomingFiles
	}, func() string { return fmt.Sprintf("%+v", n.handler.ExchangeStats()) })
}

// TestExchangeDropsInOneTurn: an epoch does not begin while a file is dropped for room, since the node may
// hold that file in the new epoch.
func TestExchangeDropsInOneTurn(t *testing.T) {
	const size = 4096
	x := newExchanging(t, 4, 80, func(int) int { return size }, 0.3, 26*size)
	n := x.nodes[0]
	earlier := ExchangeConfig{ID: "earlier", Files: x.files, Seed: 2, Fraction: 0, Nodes: 4}
	if err := n.handler.StartExchange(t.Context(), earlier, 0, 0, 1); err != nil {
		t.Fatal(err)
	}
	n.awaits("the copies of the earlier exchange", func() bool { return n.used() == 20*size }, func() string { return fmt.Sprint(n.used()) })
	n.to[0].Add(drivertest.Rule{Op: drivertest.OpRemove, Hang: true})
	x.begin(0)
	n.awaits("a file to be dropped", func() bool { return n.to[0].Hung() > 0 }, func() string { return fmt.Sprintf("%+v", n.handler.ExchangeStats()) })
	x.begin(1)
	time.Sleep(100 * time.Millisecond)
	if s := n.handler.ExchangeStats(); s.Epoch != 0 {
		t.Errorf("epoch %d has begun while a file is dropped", s.Epoch)
	}
	n.to[0].Clear()
	n.awaits("epoch 1", func() bool { s := n.handler.ExchangeStats(); return s.Epoch == 1 && s.Complete }, func() string { return fmt.Sprintf("%+v", n.handler.ExchangeStats()) })
}

// TestExchangeKeepsWhatIsNotConfirmed: a node that was given files is down. They stay with the node that
// gave them until that needs the room.
func TestExchangeKeepsWhatIsNotConfirmed(t *testing.T) {
	x := newExchanging(t, 3, 60, func(int) int { return 4096 }, 0.5, 1<<20)
	x.begin(0)
	x.readShares(0)
	x.arrive(0)
	x.nodes[2].kill()
	x.begin(1)
	x.readShares(1)
	now := x.at(1)
	given := func(n *node) (files int) {
		for file, was := range x.at(0).Share(n.index) {
			_ = file
			if now.Holder(int(was)) == 2 && n.entry(x.files.Name(int(was))).Level() != tiers.AtSource {
				files++
			}
		}
		return files
	}
	for _, n := range x.nodes[:2] {
		if n.handler.ExchangeStats().Epoch != 1 {
			n.awaits("epoch 1", func() bool { return n.handler.ExchangeStats().Epoch == 1 }, func() string { return "" })
		}
		if given(n) == 0 {
			t.Errorf("node %d has dropped what it gave to the node that is down", n.index)
		}
	}
	for epoch := 2; epoch < 6; epoch++ {
		x.begin(epoch)
		x.readShares(epoch)
		for _, n := range x.nodes[:2] {
			n.awaits("the epoch", func() bool { return n.handler.ExchangeStats().Epoch == int64(epoch) }, func() string { return "" })
			n.awaits("the room that the plan needs to suffice", func() bool { return n.used() <= 30*4096 }, func() string { // a dropped copy that is open takes room
				return fmt.Sprintf("epoch %d: node %d uses %d bytes; the plan needs %d: %+v", epoch, n.index, n.used(), 30*4096, n.handler.ExchangeStats())
			})
		}
	}
}

// TestExchangeDropsWhatComesLate: a copy that is complete only after its file was given away is dropped
// like the others.
func TestExchangeDropsWhatComesLate(t *testing.T) {
	t.Parallel()
	x := newExchanging(t, 4, 40, func(int) int { return 4096 }, 1, 1<<20)
	for _, n := range x.nodes {
		n.to[0].Add(drivertest.Rule{Op: drivertest.OpCommit, Hang: true})
	}
	x.begin(0)
	x.readShares(0)
	x.begin(1)
	for _, n := range x.nodes {
		n.awaits("epoch 1", func() bool { return n.handler.ExchangeStats().Epoch == 1 }, func() string { return "" })
		if n.handler.Stats().Placed > 0 {
			t.Error("the copies of epoch 0 were complete before epoch 1")
		}
	}
	time.Sleep(2 * minAskPause) // the nodes have looked for files to drop
	for _, n := range x.nodes {
		n.to[0].Clear()
	}
	x.readShares(1)
	x.arrive(1)
}

// TestExchangeMakesRoom: copies of an earlier job, which this node does not hold, are dropped when
// the room is needed, and not before.
func TestExchangeMakesRoom(t *testing.T) {
	const size = 4096
	x := newExchanging(t, 4, 80, func(int) int { return size }, 0.3, 40*size)
	n := x.nodes[0]
	cfg := ExchangeConfig{ID: "earlier", Files: x.files, Seed: 2, Fraction: 1, Nodes: 4}
	if err := n.handler.StartExchange(t.Context(), cfg, 0, 0, 1); err != nil {
		t.Fatal(err)
	}
	for _, other := range x.nodes[1:] {
		other.kill()
	}
	earlier, err := exchange.New(exchange.Config{Files: 80, Nodes: 4, Seed: 2, Fraction: 1})
	if err != nil {
		t.Fatal(err)
	}
	two := earlier.Start()
	for range 2 {
		for _, file := range two.Share(0) {
			n.wantFile(x.files.Name(int(file)), x.content[x.files.Name(int(file))])
		}
		two.Advance()
	}
	n.awaits("the copies of the earlier exchange", func() bool { return n.used() == 40*size }, func() string { return fmt.Sprint(n.used()) })
	x.begin(0)
	n.awaits("the share", func() bool { return n.handler.ExchangeStats().Complete }, func() string { return fmt.Sprintf("%+v", n.handler.ExchangeStats()) })
	if used := n.used(); used < 30*size {
		t.Errorf("%d bytes are used before the room is needed", used)
	}
	x.readShares(0)
	x.begin(1)
	x.readShares(1)
	n.awaits("the share", func() bool { s := n.handler.ExchangeStats(); return s.Epoch == 1 && s.Complete }, func() string { return fmt.Sprintf("%+v", n.handler.ExchangeStats()) })
	if used := n.used(); used > 40*size || used < 30*size {
		t.Errorf("%d bytes are used; want most of %d", used, 40*size)
	}
	if s := n.handler.ExchangeStats(); s.DroppedForRoom == 0 || s.Dropped != 0 {
		t.Errorf("%+v", s)
	}
}

// TestExchangeReadsFilesOfOthers: a node that reads files which it does not hold reads them from their
// holders, and makes no copies.
func TestExchangeReadsFilesOfOthers(t *testing.T) {
	x := newExchanging(t, 3, 30, func(i int) int { return 3000 + i }, 0.2, 1<<20)
	x.mem.Put("other", []byte("not in the list"))
	x.begin(0)
	x.epoch(1)
	x.arrive(0)
	if got, want := x.sourceBytes(), x.bytes(); got != want {
		t.Errorf("%d bytes were read from the source; want %d", got, want)
	}
	for _, n := range x.nodes {
		n.wantFile("other", []byte("not in the list"))
	}
	x.settle()
}

// TestExchangeReaderOfABackgroundFill: a fill for the next epoch has opened a file in the background when a
// reader wants it, and its holder has no copy yet. The holder alone reads the source.
func TestExchangeReaderOfABackgroundFill(t *testing.T) {
	x := newExchanging(t, 3, 30, func(i int) int { return 3000 + i }, 0.2, 1<<20)
	for _, n := range x.nodes { // there are no copies, and so no requests to other nodes
		n.to[0].Add(drivertest.Rule{Op: drivertest.OpCreate, Hang: true})
	}
	x.begin(0)
	now, next, file := x.at(0), x.at(1), 0
	for now.Holder(file) == next.Holder(file) {
		file++
	}
	name, n, holder := x.files.Name(file), x.nodes[next.Holder(file)], x.nodes[now.Holder(file)]
	o, err := n.handler.openAtPeers(drivers.Background(t.Context()), n.entry(name))
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	got, ended := make([]byte, len(x.content[name])), make(chan error, 1)
	opened := func() int64 { return n.levels.Source().Stats().Opens }
	before := opened()
	go func() { ended <- readAt(t.Context(), o, got, 0) }()
	n.eventually("the holder is asked to fill the file", func() bool { return holder.asked.Load() > 1 || opened() > before })
	for _, n := range x.nodes {
		n.to[0].Clear()
	}
	if err := <-ended; err != nil || !bytes.Equal(got, x.content[name]) {
		t.Errorf("other bytes were read, or %v", err)
	}
	x.arrive(0)
	if got, want := x.sourceBytes(), x.bytes(); got != want {
		t.Errorf("%d bytes were read from the source; want %d", got, want)
	}
}

// TestExchangeRestarts: a node restarts cold, warm, and in another epoch. Its job reads what it should,
// and the other nodes go on.
func TestExchangeRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the pauses between requests of several nodes")
	}
	t.Parallel()
	x := newExchanging(t, 3, 60, func(i int) int { return 4000 + i }, 0.5, 1<<20)
	for epoch := range 3 {
		x.begin(epoch)
		x.readShares(epoch)
		x.arrive(epoch)
	}
	before := x.sourceBytes()
	n := x.nodes[1]
	n.kill()
	n.start() // with its copies
	if err := n.handler.BeginEpoch("id", 3, 0, 1); !errors.Is(err, ErrNoExchange) {
		t.Errorf("the exchange has survived: %v", err)
	}
	x.begin(3)
	x.readShares(3)
	x.arrive(3)
	if got := n.levels.Source().Stats().Bytes; got != 0 {
		t.Errorf("after a warm restart, %d bytes were read from the source", got)
	}
	if got := x.sourceBytes(); got > before {
		t.Errorf("the others have read %d bytes from the source", got-before)
	}
	n.kill()
	n.stores = nil
	n.opts.onDisk = nil
	cold := &node{cluster: x.cluster, index: 1, opts: n.opts}
	x.nodes[1] = cold
	cold.start()
	x.begin(4)
	x.readShares(4)
	x.arrive(4)
	x.begin(2) // from a checkpoint
	x.readShares(2)
	x.arrive(2)
	x.begin(9)
	x.readShares(9)
	x.arrive(9)
}

// TestExchangeWaitsForAllReaders: files that were given away stay until the last reader has begun the
// next epoch.
func TestExchangeWaitsForAllReaders(t *testing.T) {
	t.Parallel()
	x := newExchanging(t, 2, 40, func(int) int { return 4096 }, 0.5, 1<<20)
	cfg := func(n *node) ExchangeConfig {
		return ExchangeConfig{ID: "id", Files: x.files, Seed: 1, Fraction: x.fraction, Nodes: 2, Node: n.index}
	}
	begin := func(epoch int, readers ...int) {
		for _, n := range x.nodes {
			for _, r := range readers {
				if err := n.handler.StartExchange(t.Context(), cfg(n), epoch, r, 2); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	begin(0, 0, 1)
	x.readShares(0)
	x.arrive(0)
	begin(1, 0)
	for _, n := range x.nodes {
		n.awaits("the share of epoch 1", func() bool { s := n.handler.ExchangeStats(); return s.Epoch == 1 && s.Complete }, func() string { return "" })
	}
	time.Sleep(3 * minAskPause)
	for _, n := range x.nodes {
		given := int64(0)
		for _, file := range x.at(0).Share(n.index) {
			if x.at(1).Holder(int(file)) != n.index && x.at(2).Holder(int(file)) != n.index {
				given++
			}
		}
		if s := n.handler.ExchangeStats(); s.Dropped != 0 || s.GivenFiles+s.DroppedForRoom != given {
			t.Errorf("node %d: want %d files that were given away: %+v", n.index, given, s)
		}
	}
	begin(1, 1)
	x.arrive(1)
}

// TestExchangeIsRefused: wrong arguments.
func TestExchangeIsRefused(t *testing.T) {
	x := newExchanging(t, 2, 4, func(int) int { return 10 }, 0.5, 1<<20)
	good := ExchangeConfig{ID: "id", Files: x.files, Fraction: 0.5, Nodes: 2, Node: 1}
	h := x.nodes[1].handler
	for name, change := range map[string]func(*ExchangeConfig){
		"another node":   func(c *ExchangeConfig) { c.Node = 0 },
		"more nodes":     func(c *ExchangeConfig) { c.Nodes = 3 },
		"no such node":   func(c *ExchangeConfig) { c.Node = 2 },
		"fraction":       func(c *ExchangeConfig) { c.Fraction = 1.5 },
		"sizes":          func(c *ExchangeConfig) { c.Sizes = []int64{1} },
		"negative sizes": func(c *ExchangeConfig) { c.Sizes = []int64{1, 2, 3, -4} },
	} {
		cfg := good
		change(&cfg)
		if err := h.StartExchange(t.Context(), cfg, 0, 0, 1); !errors.Is(err, ErrExchange) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, r := range [][3]int{{-1, 0, 1}, {0, 1, 1}, {0, -1, 1}, {0, 0, 0}, {maxExchangeEpoch + 1, 0, 1}} {
		if err := h.StartExchange(t.Context(), good, r[0], r[1], r[2]); !errors.Is(err, ErrExchange) {
			t.Errorf("%v: %v", r, err)
		}
	}
	if s := h.ExchangeStats(); s.ID != "" {
		t.Errorf("there is an exchange: %+v", s)
	}
	if err := h.StartExchange(t.Context(), good, 0, 0, 1); err != nil {
		t.Error(err)
	}
	if s := h.ExchangeState(); s == nil || s.ID != "id" {
		t.Errorf("%+v", s)
	}
	h.StopExchange()
	h.StopExchange()
	if s := h.ExchangeState(); s != nil {
		t.Errorf("%+v", s)
	}
}

// TestExchangeWithoutPeers: on one node it is of no effect, and on several, files come from the source.
func TestExchangeWithoutPeers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{10 * 4096}})
		var names []string
		for i := range 16 {
			names = append(names, fmt.Sprintf("f%02d", i))
			r.mem.Put(names[i], random(uint64(i), 4096))
		}
		files, err := exchange.NewList(slices.Values(names))
		if err != nil {
			t.Fatal(err)
		}
		for epoch := range 4 {
			cfg := ExchangeConfig{ID: "two", Files: files, Fraction: 0.25, Nodes: 2, Node: 1}
			if err := r.handler.StartExchange(t.Context(), cfg, epoch, 0, 1); err != nil {
				t.Fatal(err)
			}
			plan, _ := exchange.New(exchange.Config{Files: 16, Nodes: 2, Fraction: 0.25})
			e := plan.Start()
			for e.Number() < epoch {
				e.Advance()
			}
			for _, file := range e.Share(1) {
				r.wantFile(names[file], random(uint64(file), 4096))
			}
			n := &node{rig: r, cluster: &cluster{t: t}}
			n.awaits("the share", func() bool {
				s := r.handler.ExchangeStats()
				return s.Epoch == int64(epoch) && s.Complete && s.ArrivedFiles == 2
			}, func() string { return fmt.Sprintf("%+v", r.handler.ExchangeStats()) })
		}
		one := ExchangeConfig{ID: "one", Files: files, Fraction: 1, Nodes: 1}
		r.handler.StopExchange()
		if err := r.handler.StartExchange(t.Context(), one, 0, 0, 1); !errors.Is(err, ErrExchangeRoom) {
			t.Errorf("16 files have room in a quota for 10: %v", err)
		}
	})
}
