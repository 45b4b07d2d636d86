package placement

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// A cluster is some nodes of a job, each with its own handler, tiers and container, over one source.
// They call each other directly.
type cluster struct {
	t      *testing.T
	mem    *drivertest.Mem
	source *recorder
	nodes  []*node
	files  map[string][]byte
}

// A node is one node of a cluster.
type node struct {
	*rig
	cluster *cluster
	index   int
	opts    rigOptions

	serving sync.RWMutex // held for requests of other nodes, and to set rig

	asked  atomic.Int64 // requests of other nodes
	served atomic.Int64 // bytes that other nodes have read here
	down   atomic.Pointer[context.CancelFunc]
	life   atomic.Pointer[context.Context]
	hang   atomic.Bool // requests of other nodes get no answer until they are cancelled
}

// newCluster makes a cluster with one node for each options.
func newCluster(t *testing.T, opts ...rigOptions) *cluster {
	t.Helper()
	c := &cluster{t: t, mem: drivertest.NewMem(0), files: make(map[string][]byte)}
	c.source = newRecorder(t, c.mem)
	t.Cleanup(func() { // after the rigs have ended
		for deadline := time.Now().Add(20 * time.Second); c.source.opened() > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Errorf("%d files of the source are open at the end", c.source.opened())
				return
			}
		}
	})
	for i, o := range opts {
		if d, ok := o.over.(*denier); ok {
			d.Driver = c.source
		}
		n := &node{cluster: c, index: i, opts: o}
		c.nodes = append(c.nodes, n)
		n.start()
	}
	return c
}

// alike returns the options of n nodes that have one tier of a quota each.
func alike(n int, quota int64) []rigOptions {
	return slices.Repeat([]rigOptions{{quotas: []int64{quota}}}, n)
}

// start starts the node, or starts it again with what its tiers hold.
func (n *node) start() {
	opts := n.opts
	if opts.over == nil {
		opts.over = n.cluster.source
	}
	opts.tier.Peers = nodePeers{n}
	if n.rig != nil {
		for _, s := range n.rig.stores {
			opts.onDisk = append(opts.onDisk, s.Mem)
		}
	}
	r := newRig(n.cluster.t, opts)
	if n.rig != nil { // newRig has made others, which are not used
		r.stores = n.rig.stores
	}
	n.serving.Lock()
	n.rig = r
	n.serving.Unlock()
	n.up()
}

// up makes the node answer other nodes.
func (n *node) up() {
	ctx, cancel := context.WithCancel(context.Background())
	n.cluster.t.Cleanup(cancel)
	n.life.Store(&ctx)
	n.down.Store(&cancel)
}

// kill makes the node answer no other node, and ends what it is answering.
func (n *node) kill() { (*n.down.Load())() }

func (n *node) isDown() bool { return (*n.life.Load()).Err() != nil }

// choices returns the nodes that place a file, the owner first.
func (c *cluster) choices(name string) []int {
	score := func(i int) uint64 {
		h := fnv.New64a()
		fmt.Fprintf(h, "%s/%d", name, i)
		x := h.Sum64()
		x ^= x >> 33
		x *= 0xff51afd7ed558ccd
		return x ^ x>>33
	}
	all := make([]int, len(c.nodes))
	for i := range all {
		all[i] = i
	}
	slices.SortFunc(all, func(a, b int) int { return cmp.Compare(score(b), score(a)) })
	return all[:min(2, len(all))]
}

// nodePeers are the peers of a node.
type nodePeers struct{ self *node }

func (p nodePeers) Rank(name string) int {
	return slices.Index(p.self.cluster.choices(name), p.self.index)
}

func (p nodePeers) Nodes() (count, self int) { return len(p.self.cluster.nodes), p.self.index }

func (p nodePeers) OpenVersion(
	_ context.Context, name string, info drivers.Info, source func(context.Context) (drivers.Object, error),
) (drivers.Object, error) {
	o := &remote{self: p.self, name: name, info: info, open: source}
	for rank, i := range p.self.cluster.choices(name) {
		if i == p.self.index && rank > 0 { // those before it come first
			break
		}
		o.add(i, rank)
	}
	return o, nil
}

func (p nodePeers) OpenAt(
	_ context.Context, nodes []int, fill bool, name string, info drivers.Info, source func(context.Context) (drivers.Object, error),
) (drivers.Object, error) {
	o := &remote{self: p.self, name: name, info: info, open: source}
	rank := -1
	if fill {
		rank = 0
	}
	for _, i := range nodes {
		o.add(i, rank)
	}
	return o, nil
}

func (p nodePeers) ExchangeOf(_ context.Context, node int) (drivers.ExchangeState, error) {
	if p.self.cluster.nodes[node].isDown() {
		return drivers.ExchangeState{}, errNodeDown
	}
	other := p.self.cluster.nodes[node]
	other.serving.RLock()
	defer other.serving.RUnlock()
	if s := other.handler.ExchangeState(); s != nil {
		return *s, nil
	}
	return drivers.ExchangeState{}, nil
}

// A choice is a node with its rank for a file.
type choice struct {
	*node
	rank int
}

// A remote is a file that is read from other nodes, with failover.
type remote struct {
	self *node
	name string
	info drivers.Info
	open func(context.Context) (drivers.Object, error)

	mu      sync.Mutex // guards the following
	choices []choice
	source  drivers.Object
}

var errNodeDown = errors.New("node is down")

// add adds a choice, which is not this node.
func (o *remote) add(node, rank int) {
	if node != o.self.index {
		o.choices = append(o.choices, choice{o.self.cluster.nodes[node], rank})
	}
}

func (o *remote) Info() drivers.Info { return o.info }

func (o *remote) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.source != nil {
		return o.source.Close()
	}
	return nil
}

// first returns the first choice, or the file at the source when there is none any more.
func (o *remote) first(ctx context.Context) (choice, drivers.Object, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.choices) > 0 {
		return o.choices[0], nil, nil
	}
	var err error
	if o.source == nil {
		o.source, err = o.open(ctx)
	}
	return choice{}, o.source, err
}

// drop drops a choice, if it is still there.
func (o *remote) drop(c choice) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.choices) > 0 && o.choices[0] == c {
		o.choices = o.choices[1:]
	}
}

func (o *remote) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	for {
		c, source, err := o.first(ctx)
		switch {
		case err != nil:
			return 0, err
		case source != nil:
			return source.ReadAt(ctx, p, off)
		}
		data, err := c.serve(ctx, o.name, o.info, c.rank, off, len(p))
		switch {
		case err == nil && len(data) < len(p):
			return copy(p, data), io.EOF
		case err == nil:
			return copy(p, data), nil
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		}
		o.drop(c)
	}
}

// serve answers a request of another node.
func (n *node) serve(ctx context.Context, name string, info drivers.Info, rank int, off int64, length int) ([]byte, error) {
	n.asked.Add(1)
	n.serving.RLock()
	defer n.serving.RUnlock()
	if n.isDown() {
		return nil, errNodeDown
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(*n.life.Load(), cancel)()
	if n.hang.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	want := drivers.Info{Size: info.Size, Mtime: info.Mtime, Version: info.Version}
	obj, err := n.handler.OpenShared(ctx, name, want, rank)
	if err != nil {
		return nil, err
	}
	defer obj.Close()
	data := make([]byte, max(0, min(int64(length), info.Size-off)))
	if err := readAt(ctx, obj, data, off); err != nil {
		return nil, err
	}
	if n.isDown() {
		return nil, errNodeDown
	}
	n.served.Add(int64(len(data)))
	return data, nil
}

// put makes files at the source, of random bytes.
func (c *cluster) put(n int, size func(i int) int) {
	for i := range n {
		name := fmt.Sprintf("d%d/f%d", i%3, i)
		c.files[name] = random(uint64(i), size(i))
		c.mem.Put(name, c.files[name])
	}
}

// bytes returns the size of the dataset.
func (c *cluster) bytes() (n int64) {
	for _, data := range c.files {
		n += int64(len(data))
	}
	return n
}

// sourceBytes returns what was read from the source, by all nodes.
func (c *cluster) sourceBytes() (n int64) {
	for _, node := range c.nodes {
		n += node.levels.Source().Stats().Bytes
	}
	return n
}

// servedBytes returns what the nodes have read from each other.
func (c *cluster) servedBytes() (n int64) {
	for _, node := range c.nodes {
		n += node.served.Load()
	}
	return n
}

// names returns the names of the files.
func (c *cluster) names() []string {
	var names []string
	for name := range c.files {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// epoch lets all nodes that are up read all files at the same time, each in an order of its own, and
// compares them.
func (c *cluster) epoch(seed uint64) {
	c.t.Helper()
	var all sync.WaitGroup
	for _, n := range c.nodes {
		if n.isDown() {
			continue
		}
		names := c.names()
		rng := rand.New(rand.NewPCG(seed, uint64(n.index)))
		rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for part := range slices.Chunk(names, len(names)/4+1) {
			all.Go(func() {
				for _, name := range part {
					if n.isDown() { // the job on it has ended, too
						return
					}
					n.wantFile(name, c.files[name])
				}
			})
		}
	}
	all.Wait()
}

// settle waits until no copy is in flight on any node.
func (c *cluster) settle() {
	c.t.Helper()
	for _, n := range c.nodes {
		n.settled()
	}
}

// placed returns how many nodes have a copy of each file.
func (c *cluster) placed() map[string]int {
	c.t.Helper()
	placed := make(map[string]int)
	for _, n := range c.nodes {
		for name := range c.files {
			if n.entry(name).Level() != tiers.AtSource {
				placed[name]++
			}
		}
	}
	return placed
}

// All nodes read all files at once, each in its order: the source serves each byte once.
func TestPeersReadTheSourceOnce(t *testing.T) {
	for _, n := range []int{2, 4, 8} {
		for _, tt := range []struct {
			what  string
			files int
			size  func(i int) int
		}{
			{"small files", 120, func(i int) int { return 1 + i*1777%60_000 }},
			{"large files", 5, func(i int) int { return 1<<20 + i*777_777 }},
		} {
			t.Run(fmt.Sprint(n, " nodes, ", tt.what), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, alike(n, 1<<30)...)
				c.put(tt.files, tt.size)
				for _, node := range c.nodes { // otherwise a node has read all files before the next one begins
					node.from.Add(drivertest.Rule{Op: drivertest.OpRead, Delay: time.Millisecond})
				}
				c.epoch(1)
				c.settle()
				if got, want := c.sourceBytes(), c.bytes(); got != want {
					t.Errorf("the source served %d bytes, want %d, %.3f of them", got, want, float64(got)/float64(want))
				}
			})
		}
	}
}

// A dataset of 0.9 times all tiers is placed in the first epoch, on one node each, and the source
// is not read again.
func TestPeersTogetherHoldTheDataset(t *testing.T) {
	if testing.Short() {
		t.Skip("counts the bytes of several nodes in real time")
	}
	t.Parallel()
	const files, size = 400, 16 << 10
	c := newCluster(t, alike(4, files*size*10/9/4)...)
	c.put(files, func(i int) int { return size - i%16 })
	c.epoch(1)
	c.settle()
	if got, want := c.sourceBytes(), c.bytes(); got != want {
		t.Errorf("epoch 1: the source served %d bytes, want %d", got, want)
	}
	before := c.sourceBytes()
	c.epoch(2)
	c.epoch(3)
	c.settle()
	if got := c.sourceBytes() - before; got != 0 {
		t.Errorf("epochs 2 and 3: the source served %d bytes", got)
	}
	for name := range c.files {
		if got := c.placed()[name]; got != 1 {
			t.Errorf("%s: %d copies", name, got)
		}
	}
}

// A dataset that fits into the tiers of each node is on all of them in the end.
func TestPeersShareWhatFitsEverywhere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const files, size = 60, 100_000
		c := newCluster(t, alike(4, files*(size+8192))...)
		c.put(files, func(i int) int { return size - i })
		c.epoch(1)
		time.Sleep(10 * time.Second)
		c.epoch(2)
		c.settle()
		before := c.servedBytes()
		c.epoch(3)
		if got := c.servedBytes() - before; got != 0 {
			t.Errorf("epoch 3: %d bytes between nodes", got)
		}
		if got, want := c.sourceBytes(), c.bytes(); got != want {
			t.Errorf("the source served %d bytes, want %d", got, want)
		}
	})
}

// Of a dataset that is larger than all tiers, each file has one copy at most: the hit ratio is what
// all tiers hold, divided by the dataset.
func TestPeersHoldNoFileTwice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const files, size, nodes = 240, 16 << 10, 3
		c := newCluster(t, alike(nodes, files*size/6)...)
		c.put(files, func(i int) int { return size - i%16 })
		for epoch := range uint64(3) {
			c.epoch(epoch)
			time.Sleep(10 * time.Second)
		}
		var missing int64
		copies := 0
		placed := c.placed()
		for name, data := range c.files {
			copies += placed[name]
			switch placed[name] {
			case 0:
				missing += int64(len(data))
			case 1:
			default:
				t.Errorf("%s: %d copies", name, placed[name])
			}
		}
		if copies != files/2 {
			t.Errorf("%d copies, want %d", copies, files/2)
		}
		before := c.sourceBytes()
		c.epoch(4)
		if got := c.sourceBytes() - before; got != nodes*missing {
			t.Errorf("the source served %d bytes, want %d", got, nodes*missing)
		}
	})
}

// The second choice places what an owner without room cannot place.
func TestOwnerWithoutRoom(t *testing.T) {
	opts := alike(4, 1<<30)
	opts[1].quotas = []int64{64 << 10}
	c := newCluster(t, opts...)
	c.put(100, func(i int) int { return 10_000 + i })
	c.epoch(1)
	c.settle()
	c.epoch(2)
	if got, want := c.sourceBytes(), c.bytes(); got != want {
		t.Errorf("the source served %d bytes, want %d", got, want)
	}
}

// ownedBy returns the total size of the files of which a node is the owner.
func (c *cluster) ownedBy(i int) (n int64) {
	for name, data := range c.files {
		if c.choices(name)[0] == i {
			n += int64(len(data))
		}
	}
	return n
}

// A node is lost at some moment. The others read every byte right, and the source serves once more
// what only that node held, at most.
func TestLostNode(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 1))
			c := newCluster(t, alike(4, 1<<30)...)
			c.put(30, func(i int) int { return 1 + rng.IntN(1<<20) })
			for _, node := range c.nodes {
				node.from.Add(drivertest.Rule{Op: drivertest.OpRead, Delay: time.Millisecond})
			}
			lost := c.nodes[rng.IntN(4)]
			var killer sync.WaitGroup
			killer.Go(func() {
				time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
				lost.kill()
			})
			c.epoch(seed)
			killer.Wait()
			c.epoch(seed + 1)
			most := c.bytes()*102/100 + c.ownedBy(lost.index)
			if got := c.sourceBytes(); got > most {
				t.Errorf("the source served %d bytes, want %d at most", got, most)
			}
		})
	}
}

// While no other node answers, files come from the source.
func TestAllPeersDown(t *testing.T) {
	c := newCluster(t, alike(3, 1<<30)...)
	c.put(30, func(i int) int { return 10_000 * i })
	c.nodes[1].kill()
	c.nodes[2].kill()
	c.epoch(1)
	if got, want := c.nodes[0].levels.Source().Stats().Bytes, c.bytes(); got < want {
		t.Errorf("the node has read %d bytes from the source, want %d at least", got, want)
	}
}

// A node that was started again serves the copies that it has.
func TestPeerRestartsWarm(t *testing.T) {
	c := newCluster(t, alike(3, 1<<30)...)
	c.put(40, func(i int) int { return 5_000 + i })
	c.epoch(1)
	c.settle()
	n := c.nodes[1]
	n.kill()
	n.end()
	lost := n.levels.Source().Stats().Bytes
	n.start()
	c.epoch(2)
	if got, want := c.sourceBytes()+lost, c.bytes(); got != want {
		t.Errorf("the source served %d bytes, want %d", got, want)
	}
}

// A node that knows an older version of a file confirms it, and reads the new one once for all.
func TestPeersFollowChanges(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, alike(3, 1<<30)...)
		c.put(20, func(i int) int { return 50_000 + i })
		c.epoch(1)
		c.settle()
		before := c.sourceBytes()
		time.Sleep(time.Minute)
		for i, name := range c.names() {
			c.files[name] = random(uint64(1000+i), 50_000+i)
			c.mem.Put(name, c.files[name])
		}
		for _, n := range c.nodes { // one after the other: the others have the old versions
			for name, want := range c.files {
				e, err := n.names.Confirm(context.Background(), n.entry(name))
				n.check(err)
				obj, err := n.handler.Open(context.Background(), e)
				n.check(err)
				n.wantAt(obj, 0, len(want), want)
				obj.Close()
			}
		}
		c.settle()
		if got, want := c.sourceBytes()-before, c.bytes(); got != want {
			t.Errorf("the source served %d bytes of the new versions, want %d", got, want)
		}
	})
}

// A node opens a version that the source no longer has, and would copy it from the owner: the open fails,
// so that the name is looked up again. A read would be too late for that.
func TestOpenOfAnOldVersion(t *testing.T) {
	for rank, n := range []int{1, 2} {
		c := newCluster(t, alike(3, 1<<30)...)
		name := c.nameWith(0, 1)
		c.mem.Put(name, random(1, 5000))
		node := c.nodes[n]
		node.listAll()
		node.known()
		e := node.entry(name)
		c.mem.Put(name, random(2, 6000))
		obj, err := node.handler.Open(t.Context(), e)
		if err == nil {
			obj.Close()
		}
		if !errors.Is(err, drivers.ErrChanged) || !e.Stale() {
			t.Errorf("choice %d: got %v, want %v", rank+1, err, drivers.ErrChanged)
		}
	}
}

// A request for another version than that of the source is a miss, and so are those that this node is
// not to answer.
func TestOpenSharedMisses(t *testing.T) {
	c := newCluster(t, alike(3, 1<<20)...)
	c.put(1, func(int) int { return 5000 })
	c.mem.Put("large", random(1, 2<<20))
	name := c.names()[0]
	choices := c.choices(name)
	info, err := c.mem.Stat(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	other := info
	other.Mtime = other.Mtime.Add(1)
	large, _ := c.mem.Stat(t.Context(), "large")
	stranger := 3 - choices[0] - choices[1]
	for _, tt := range []struct {
		what string
		node int
		name string
		info drivers.Info
		rank int
		want error
	}{
		{"another version", choices[0], name, other, 0, drivers.ErrChanged},
		{"missing", choices[0], "no such file", info, 0, fs.ErrNotExist},
		{"a directory", choices[0], "d0", info, 0, drivers.ErrChanged},
		{"not a name", choices[0], "../" + name, info, 0, fs.ErrNotExist},
		{"no choice", stranger, name, info, 0, fs.ErrNotExist},
		{"no choice, and it says so", stranger, name, info, -1, fs.ErrNotExist},
		{"another rank", choices[1], name, info, 0, fs.ErrNotExist},
		{"no room", c.choices("large")[0], "large", large, 0, drivers.ErrFull},
	} {
		if obj, err := c.nodes[tt.node].handler.OpenShared(t.Context(), tt.name, tt.info, tt.rank); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, %v; want %v", tt.what, obj, err, tt.want)
		}
	}
	if got := c.sourceBytes(); got != 0 {
		t.Errorf("the source served %d bytes", got)
	}
}

// A request that comes before the tiers were scanned waits for that, for a bounded time. Then it fails
// with an error that the other node does not take for a lack of room.
func TestOpenSharedBeforeScan(t *testing.T) {
	for _, scans := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			log := slog.New(slog.DiscardHandler)
			source := drivertest.NewMem(0)
			source.Put("a", []byte("x"))
			info, _ := source.Stat(t.Context(), "a")
			configs := []tiers.Config{{Name: "ram", Store: drivertest.NewMem(0), Quota: tiers.Quota{Bytes: 1 << 20}}}
			levels, err := tiers.New(source, configs, tiers.Options{Peers: fixedRank{}}, log)
			if err != nil {
				t.Fatal(err)
			}
			names, err := metadata.New(t.Context(), levels, metadata.Options{TTL: time.Hour}, log)
			if err != nil {
				t.Fatal(err)
			}
			h := New(levels, names, Config{Workers: 2}, log)
			ctx, stop := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { h.Run(ctx) })
			time.AfterFunc(time.Second, func() {
				if scans {
					running.Go(func() { levels.Run(ctx) })
				}
			})
			began := time.Now()
			obj, err := h.OpenShared(ctx, "a", info, 0)
			took := time.Since(began)
			switch {
			case scans && err != nil:
				t.Errorf("a tier was scanned after a second: %v", err)
			case scans:
				obj.Close()
			case took != maxScanWait || err == nil || errors.Is(err, drivers.ErrFull) || errors.Is(err, fs.ErrNotExist):
				t.Errorf("no tier was scanned: got %v after %v", err, took)
			}
			stop()
			running.Wait()
			names.Close()
		})
	}
}

// A node reads the copies that it has before its tiers are scanned, and does not make them again.
func TestCopiesAreReadBeforeScan(t *testing.T) {
	for _, peers := range []tiers.Peers{nil, fixedRank{}} {
		bubble(t, func(t *testing.T) {
			log := slog.New(slog.DiscardHandler)
			content, store := drivertest.NewMem(0), drivertest.NewMem(0)
			content.Put("a", make([]byte, 1000))
			source := drivertest.NewFaults(content)
			for _, scansFirst := range []bool{true, false} {
				configs := []tiers.Config{{Name: "ram", Store: store, Quota: tiers.Quota{Bytes: 1 << 20}}}
				levels, err := tiers.New(source, configs, tiers.Options{Peers: peers}, log)
				if err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				var running sync.WaitGroup
				scan := func() {
					running.Go(func() { levels.Run(ctx) })
					levels.WaitScanned(ctx)
				}
				if scansFirst {
					scan()
				}
				names, err := metadata.New(ctx, levels, metadata.Options{TTL: time.Hour}, log)
				if err != nil {
					t.Fatal(err)
				}
				h := New(levels, names, Config{Workers: 2}, log)
				running.Go(func() { h.Run(ctx) })
				e, err := names.Resolve(ctx, "a")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := h.ReadAt(ctx, e, make([]byte, 1000), 0); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if !scansFirst {
					scan()
				}
				if s := levels.Tiers()[0].Stats(); s.Files != 1 || source.Count(drivertest.OpRead) != 1 {
					t.Errorf("%d copies, and %d reads of the source; want one of each", s.Files, source.Count(drivertest.OpRead))
				}
				stop()
				running.Wait()
				names.Close()
			}
		})
	}
}

// A tier whose scan fails does not make a node without room say that it may have room later.
func TestOpenSharedBesideFailedScan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		source := drivertest.NewMem(0)
		source.Put("a", make([]byte, 100))
		info, _ := source.Stat(t.Context(), "a")
		broken := drivertest.NewFaults(drivertest.NewMem(0))
		broken.Add(drivertest.Rule{Op: drivertest.OpReadDir, Err: syscall.EIO})
		configs := []tiers.Config{
			{Name: "ram", Store: drivertest.NewMem(0), Quota: tiers.Quota{Bytes: 1}},
			{Name: "ssd", Store: broken, Quota: tiers.Quota{Bytes: 1 << 20}},
		}
		levels, err := tiers.New(source, configs, tiers.Options{Peers: fixedRank{}}, log)
		if err != nil {
			t.Fatal(err)
		}
		names, err := metadata.New(t.Context(), levels, metadata.Options{TTL: time.Hour}, log)
		if err != nil {
			t.Fatal(err)
		}
		h := New(levels, names, Config{Workers: 2}, log)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { h.Run(ctx) })
		running.Go(func() { levels.Run(ctx) })
		time.Sleep(2 * maxScanWait)
		if _, err := h.OpenShared(ctx, "a", info, 0); !errors.Is(err, drivers.ErrFull) {
			t.Errorf("got %v, want %v", err, drivers.ErrFull)
		}
		stop()
		running.Wait()
		names.Close()
	})
}

// known waits until a node knows its spare room.
func (n *node) known() {
	n.t.Helper()
	(&census{handler: n.handler}).run(context.Background())
	n.eventually("the spare room is known", n.handler.peers.spare.isKnown)
}

// listAll makes all names known to a node.
func (n *node) listAll() {
	n.t.Helper()
	n.check(n.names.Walk(context.Background(), []*metadata.Entry{n.names.Root()}, func(*metadata.Entry, error) error { return nil }))
}

// nameWith returns the name of a file whose choices begin with some nodes.
func (c *cluster) nameWith(choices ...int) string {
	for i := 0; ; i++ {
		if name := fmt.Sprintf("x%d", i); slices.Equal(c.choices(name)[:len(choices)], choices) {
			return name
		}
	}
}

// The second choice, which reads a file from its owner, is asked for it by another node because the owner
// hangs: it reads the file from the source for all, once.
func TestSecondChoiceTakesOver(t *testing.T) {
	c := newCluster(t, alike(3, 1<<30)...)
	name := c.nameWith(0, 1)
	data := random(7, 3<<20)
	c.mem.Put(name, data)
	owner, second, third := c.nodes[0], c.nodes[1], c.nodes[2]
	second.listAll()
	second.known()
	owner.hang.Store(true)

	var readers sync.WaitGroup
	readers.Go(func() { second.wantFile(name, data) })
	e := second.entry(name)
	second.eventually("a fill from the owner is in flight", func() bool {
		second.handler.mu.Lock()
		defer second.handler.mu.Unlock()
		f := second.handler.fills[e]
		return f != nil && f.foreign && isClosed(f.started)
	})
	got, err := second.serve(t.Context(), name, e.Info(), 1, 0, len(data))
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("a request to the second choice: %v, or wrong bytes", err)
	}
	readers.Wait()
	owner.kill()
	third.wantFile(name, data)
	c.settle()
	if got := c.sourceBytes(); got != int64(len(data)) {
		t.Errorf("the source served %d bytes, want %d", got, len(data))
	}
	if second.entry(name).Level() == tiers.AtSource {
		t.Error("the second choice has no copy")
	}
}

// A file that is placed on request, and whose owner turns out to be down, is placed from the source, in
// the background.
func TestPlaceWithoutTheOwner(t *testing.T) {
	c := newCluster(t, alike(3, 1<<30)...)
	name := c.nameWith(0, 1)
	c.mem.Put(name, random(7, 3<<20))
	second := c.nodes[1]
	second.listAll()
	second.known()
	c.nodes[0].kill()
	if got, err := second.handler.Place(t.Context(), second.entry(name)); got != Placed || err != nil {
		t.Errorf("got %v, %v; want Placed", got, err)
	}
	if got, reads := c.source.demand, len(c.source.spans()); got != 0 || reads != 3 {
		t.Errorf("%d of %d reads of the source were not in the background", got, reads)
	}
}

// So it is if several requests of the fill find out at the same time: the later ones do not become readers.
func TestSeveralRequestsFindNoOwner(t *testing.T) {
	c := newCluster(t, alike(3, 1<<30)...)
	name := c.nameWith(0, 1)
	c.mem.Put(name, random(7, 3<<20))
	owner, second := c.nodes[0], c.nodes[1]
	second.listAll()
	second.known()
	owner.hang.Store(true)
	e := second.entry(name)
	f, err := second.handler.join(t.Context(), e, forBackground)
	if err != nil {
		t.Fatal(err)
	}
	defer f.release()
	second.eventually("the fill has started", func() bool { return isClosed(f.started) })
	request := context.WithValue(drivers.Background(t.Context()), fillKey{}, f)
	for range 3 {
		if _, err := second.handler.withoutPeers(request, e); err != errTakenOver {
			t.Errorf("got %v, want %v", err, errTakenOver)
		}
	}
	if got, err := second.handler.Place(t.Context(), e); got != Placed || err != nil {
		t.Errorf("got %v, %v; want Placed", got, err)
	}
	if got, reads := c.source.demand, len(c.source.spans()); got != 0 || reads != 3 {
		t.Errorf("%d of %d reads of the source were not in the background", got, reads)
	}
}

// A request of another node never joins a fill that reads from a third one, also if that has begun after
// the request.
func TestRequestsJoinNoFillFromPeers(t *testing.T) {
	c := newCluster(t, alike(3, 1<<30)...)
	name := c.nameWith(0, 1)
	c.mem.Put(name, random(7, 3<<20))
	owner, second := c.nodes[0], c.nodes[1]
	second.listAll()
	second.known()
	owner.hang.Store(true)
	h, e := second.handler, second.entry(name)
	f, first, err := h.claim(e, 1, forReader)
	second.check(err)
	defer f.release()
	if !first || !f.foreign {
		t.Fatal("no fill from the owner has begun")
	}
	if other, _, err := h.claim(e, 1, forPeer); err != errForeign {
		t.Errorf("got %v, %v; want %v", other, err, errForeign)
	}
}

// A request for a file that is being copied to the window leaves the copy there if there is no other room.
func TestRequestsLeaveTheWindow(t *testing.T) {
	opts := alike(3, 1<<30)
	opts[1].quotas, opts[1].window = []int64{9 << 20}, 8<<20
	c := newCluster(t, opts...)
	name := c.nameWith(0, 1)
	data := random(7, 3<<20)
	c.mem.Put(name, data)
	owner, second := c.nodes[0], c.nodes[1]
	owner.hang.Store(true)
	_, err := second.handler.Plan(nil, PlanPart{Lead: 4}, []string{name})
	second.check(err)
	second.eventually("a copy is in the window", func() bool { return second.handler.WindowStats().Files == 1 })
	_, err = second.serve(context.Background(), name, second.entry(name).Info(), 1, 0, len(data))
	if got := second.handler.WindowStats().Files; !errors.Is(err, drivers.ErrFull) || got != 1 {
		t.Errorf("got %v, and %d copies in the window", err, got)
	}
}

// Two nodes that believe each other to be down, and up again, all the time, never wait for each other.
func TestNodesNeverWaitInCircles(t *testing.T) {
	c := newCluster(t, alike(2, 1<<30)...)
	c.put(30, func(i int) int { return 100_000 * (1 + i%15) })
	for _, n := range c.nodes {
		n.listAll()
		n.known()
		n.from.Add(drivertest.Rule{Op: drivertest.OpRead, Delay: time.Millisecond})
	}
	done := make(chan struct{})
	var flapping sync.WaitGroup
	flapping.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-time.After(2 * time.Millisecond):
				n := c.nodes[i%2]
				n.hang.Store(!n.hang.Load())
				(*n.down.Load())()
				n.up()
			}
		}
	})
	var readers sync.WaitGroup
	for _, n := range c.nodes {
		for i := range 4 {
			readers.Go(func() {
				for j, name := range c.names() {
					if j%4 == i {
						n.wantFile(name, c.files[name])
					}
				}
			})
		}
	}
	readers.Wait()
	close(done)
	flapping.Wait()
}

// What comes from other nodes is no read of the source: it counts nowhere, and teaches the controller
// of the source nothing.
func TestPeersAreNotTheSource(t *testing.T) {
	c := newCluster(t, alike(2, 1<<30)...)
	small, large := c.nameWith(0), "large"
	for c.choices(large)[0] != 0 {
		large += "r"
	}
	c.files[small], c.files[large] = random(1, 5000), random(2, 3<<20)
	for name, data := range c.files {
		c.mem.Put(name, data)
	}
	n := c.nodes[1]
	n.listAll()                       // before the first refusal, whose census must find all names
	n.wantFile(small, c.files[small]) // in a view
	n.known()
	n.wantFile(large, c.files[large]) // in a fill
	n.settled()
	s := n.levels.Source().Stats()
	if s.Reads != 0 || s.Bytes != 0 || s.Opens != 0 || s.Latency.Count != 0 {
		t.Errorf("got %+v", s)
	}
	if !n.handler.gate.control.window.since.IsZero() {
		t.Error("the controller of the source has observed a request")
	}
	if n.handler.peers.gate.control.window.since.IsZero() {
		t.Error("the controller of the peers has observed none")
	}
	st := n.handler.Stats()
	if st.PeerOpens.Files != 1 || st.Opens[0].Files != 0 || st.FillOpens.Files != 1 || st.Waited.Latency.Count > 10 || st.Waited.Peers.Count == 0 || st.Waits.Count == 0 {
		t.Errorf("got %+v", st)
	}
	if n.entry(large).Level() == tiers.AtSource {
		t.Error("the large file has no copy")
	}
}

// Copies of other nodes' files leave the room that the files need which the node is to place.
func TestSpareRoom(t *testing.T) {
	const size = 16 << 10
	c := newCluster(t, alike(4, 40*size)...)
	c.put(60, func(i int) int { return size })
	n := c.nodes[0]
	n.listAll()
	n.known()
	var need, own int64
	for name := range c.files {
		switch slices.Index(c.choices(name), 0) {
		case 0:
			own += size
			need += size
		case 1:
			need += size
		}
	}
	s := &n.handler.peers.spare
	if s.own != 40*size-own || s.all != 40*size-need {
		t.Errorf("got %d and %d, want %d and %d", s.own, s.all, 40*size-own, 40*size-need)
	}
	for name, data := range c.files { // the files of others first
		if c.choices(name)[0] != 0 {
			n.wantFile(name, data)
		}
	}
	n.settled()
	for name, data := range c.files {
		if c.choices(name)[0] == 0 {
			n.wantFile(name, data)
		}
	}
	n.settled()
	others := 0
	for name := range c.files {
		placed := n.entry(name).Level() != tiers.AtSource
		switch slices.Index(c.choices(name), 0) {
		case 0:
			if !placed {
				t.Errorf("%s, which the node owns, has no copy", name)
			}
		case -1:
			if placed {
				others++
			}
		}
	}
	if want := (40*size - need) / size; int64(others) != want {
		t.Errorf("%d copies of files of which the node is no choice, want %d", others, want)
	}
}

// A plan does not tell the room that the files of a node need: it may name those that the job of this node
// reads, while the node owns files that only other nodes read.
func TestPlanIsNoCensus(t *testing.T) {
	const size = 16 << 10
	c := newCluster(t, alike(4, 20*size)...)
	c.put(60, func(int) int { return size })
	n := c.nodes[0]
	var foreign []string
	for _, name := range c.names() {
		if slices.Index(c.choices(name), 0) < 0 {
			foreign = append(foreign, name)
		}
	}
	_, err := n.handler.Plan(nil, PlanPart{}, foreign)
	n.check(err)
	n.eventually("the plan was looked up", func() bool {
		return n.handler.PlanStreams(nil)[0].Lead == int64(len(foreign))
	})
	(&census{handler: n.handler}).run(context.Background())
	if n.handler.peers.spare.isKnown() {
		t.Error("the room to spare is taken for known")
	}
}

// Warmup places the files of the node, and then others if there is room.
func TestWarmupWithPeers(t *testing.T) {
	for _, tt := range []struct {
		what  string
		quota int64
		all   bool
	}{{"room for all", 1 << 30, true}, {"room for its own", 24 * 16 << 10, false}} {
		t.Run(tt.what, func(t *testing.T) {
			c := newCluster(t, alike(4, tt.quota)...)
			c.put(40, func(i int) int { return 16 << 10 })
			n := c.nodes[2]
			var last Progress
			n.check(n.handler.Warmup(context.Background(), []*metadata.Entry{n.names.Root()},
				func(p Progress) { last = p }, func(e *metadata.Entry, err error) { t.Errorf("%s: %v", e.Path(), err) }))
			own := int64(0)
			for name := range c.files {
				if c.choices(name)[0] == 2 {
					own++
					if n.entry(name).Level() == tiers.AtSource {
						t.Errorf("%s has no copy", name)
					}
				}
			}
			if last.Placed.Files+last.Elsewhere.Files != 40 || last.Placed.Files < own || tt.all != (last.Placed.Files == 40) {
				t.Errorf("got %+v, of %d files that the node owns", last, own)
			}
		})
	}
}

// The window of a plan holds files of other nodes, for which a node has no room to spare.
func TestWindowHoldsFilesOfPeers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const files, size = 64, 16 << 10
		opts := alike(2, 1<<30)
		opts[0].quotas, opts[0].window = []int64{(files + 8) * size}, 8*size
		c := newCluster(t, opts...)
		c.put(files, func(i int) int { return size - i })
		n := c.nodes[0]
		names := c.names()
		_, err := n.handler.Plan(nil, PlanPart{Lead: 4}, names)
		n.check(err)
		time.Sleep(time.Second)
		for _, name := range names {
			n.wantFile(name, c.files[name])
			time.Sleep(10 * time.Millisecond)
		}
		var foreign int64
		for _, name := range names {
			if c.choices(name)[0] == 1 {
				foreign++
			}
		}
		if got := n.handler.WindowStats().Copies; got < foreign/2 {
			t.Errorf("%d copies in the window, of %d files of the other node", got, foreign)
		}
		if got, want := c.sourceBytes(), c.bytes(); got != want {
			t.Errorf("the source served %d bytes, want %d", got, want)
		}
	})
}

// A copy that fails while another node reads it is read from the source from there on.
func TestSharedCopyFails(t *testing.T) {
	c := newCluster(t, alike(2, 1<<30)...)
	name := c.nameWith(0, 1)
	data := random(3, 3<<20)
	c.mem.Put(name, data)
	n := c.nodes[0]
	n.wantFile(name, data)
	n.settled()
	obj, err := n.handler.OpenShared(t.Context(), name, n.entry(name).Info(), 0)
	n.check(err)
	defer obj.Close()
	n.wantAt(obj, 0, 1<<20, data)
	n.to[0].Add(drivertest.Rule{Op: drivertest.OpRead, Err: errTier})
	n.wantAt(obj, 1<<20, 1<<20, data)
	n.wantAt(obj, 0, len(data), data)
}

// Nodes that fail, tiers and a source that fail, and files that change, at random: each read returns
// bytes of one version, and each error is the source's.
func TestPeersStress(t *testing.T) {
	if testing.Short() {
		t.Skip("has many readers for long")
	}
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			stressPeers(t, seed)
		})
	}
}

func stressPeers(t *testing.T, seed uint64) {
	opts := alike(3, []int64{1 << 30, 6 << 20}[seed%2])
	for i := range opts {
		opts[i].ttl = 5 * time.Millisecond
		opts[i].workers = 1 + int(seed%4)
		opts[i].tier = tiers.Options{Timeout: 20 * time.Millisecond, Probe: 5 * time.Millisecond}
	}
	c := newCluster(t, opts...)
	c.put(stressFiles, func(i int) int { return 1 + int(seed+1)*(i+1)*77_777%(3<<20) })
	versions := &stress{rig: c.nodes[0].rig, versions: make(map[string]map[time.Time][]byte)}
	versions.mem = c.mem
	for i := range stressFiles {
		versions.change(rand.New(rand.NewPCG(seed, uint64(i))), i, false)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 700*time.Millisecond)
	defer cancel()
	var all sync.WaitGroup
	for i, n := range c.nodes {
		if seed%3 > 0 {
			n.listAll()
			(&census{handler: n.handler}).run(ctx)
		}
		s := &stress{rig: n.rig, seed: seed, versions: versions.versions}
		for j := range uint64(4) {
			rng := rand.New(rand.NewPCG(seed, 100*uint64(i)+j))
			all.Go(func() { stressReader(ctx, s, versions, rng) })
		}
		all.Go(func() { s.faults(ctx, rand.New(rand.NewPCG(seed, 1000+uint64(i)))) })
	}
	all.Go(func() {
		rng := rand.New(rand.NewPCG(seed, 2000))
		for ctx.Err() == nil {
			time.Sleep(time.Duration(rng.IntN(40)) * time.Millisecond)
			switch n := c.nodes[rng.IntN(3)]; rng.IntN(4) {
			case 0:
				n.kill()
			case 1:
				n.hang.Store(true)
				time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
				n.kill()
				n.hang.Store(false)
			case 2:
				if n.isDown() {
					n.up()
				}
			default:
				versions.change(rng, rng.IntN(stressFiles), false)
			}
		}
	})
	all.Wait()
	for _, n := range c.nodes {
		n.hang.Store(false)
		n.from.Clear()
		n.to[0].Clear()
		if n.isDown() {
			n.up()
		}
	}
	time.Sleep(200 * time.Millisecond) // until the TTL of names is over
	for i := range stressFiles {
		name := versions.name(i)
		info, err := c.mem.Stat(context.Background(), name)
		if err != nil {
			t.Fatal(err)
		}
		want := versions.want(name, info.Mtime)
		for _, n := range c.nodes {
			got, err := n.read(name)
			if errors.Is(err, drivers.ErrChanged) { // since it was looked up
				got, err = n.read(name)
			}
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("node %d: %s after the faults: %v, or wrong bytes", n.index, name, err)
			}
		}
	}
}

// stressReader is stress.reader, with versions that several nodes share.
func stressReader(ctx context.Context, s, versions *stress, rng *rand.Rand) {
	for ctx.Err() == nil {
		name := s.name(rng.IntN(stressFiles))
		e, err := s.names.Resolve(ctx, name)
		if err != nil {
			s.allowed(ctx, "resolve", err)
			continue
		}
		obj, err := s.handler.Open(ctx, e)
		if err != nil {
			s.allowed(ctx, "open", err)
			continue
		}
		if want := versions.want(name, obj.Info().Mtime); len(want) > 0 {
			off := rng.IntN(len(want))
			got := make([]byte, min(1+rng.IntN(300<<10), len(want)-off))
			if err := readAt(ctx, obj, got, int64(off)); err != nil {
				s.allowed(ctx, "read", err)
			} else if !bytes.Equal(got, want[off:off+len(got)]) {
				s.t.Errorf("%s: wrong bytes at %d+%d", name, off, len(got))
			}
		}
		obj.Close()
	}
}

// BenchmarkCensus counts 1,000,000 files of a job of 1,000 nodes. The ranks are computed in the first
// pass.
func BenchmarkCensus(b *testing.B) {
	files := drivertest.Size(1_000_000, 5000)
	mem := drivertest.NewMem(0)
	for i := range files {
		mem.Put(fmt.Sprintf("d%d/%s%d", i%1000, strings.Repeat("x", 8), i), nil)
	}
	r := newRig(b, rigOptions{quotas: []int64{1 << 40}, over: mem, tier: tiers.Options{Peers: fixedRank{}}})
	r.check(r.names.Walk(context.Background(), []*metadata.Entry{r.names.Root()}, func(*metadata.Entry, error) error { return nil }))
	c := &census{handler: r.handler}
	for b.Loop() {
		for next := uint64(1); next != 0; {
			next = r.names.Visit(next, censusStep, c.count)
		}
	}
}

// fixedRank is a job whose other nodes are not asked.
type fixedRank struct{ tiers.Peers }

func (fixedRank) Rank(string) int { return 0 }

// A denier is a source that denies one node some of its files.
type denier struct {
	drivers.Driver
	denies   string // the end of the names that it denies; "": none
	accesses atomic.Int64
}

var _ drivers.Permitter = (*denier)(nil)

func (d *denier) Unwrap() drivers.Driver { return d.Driver }

func (d *denier) isDenied(name string) bool {
	return d.denies != "" && strings.HasSuffix(name, d.denies)
}

func (d *denier) Permits(drivers.Info, bool) (permitted, known bool) { return false, false }

func (d *denier) User() string { return "user" }

func (d *denier) Access(_ context.Context, name string) error {
	d.accesses.Add(1)
	if d.isDenied(name) {
		return fmt.Errorf("access %s: %w", name, syscall.EACCES)
	}
	return nil
}

func (d *denier) Open(ctx context.Context, name string) (drivers.Object, error) {
	if d.isDenied(name) {
		return nil, fmt.Errorf("open %s: %w", name, syscall.EACCES)
	}
	return d.Driver.Open(ctx, name)
}

// A node gets nothing of a file that the source denies it from the other nodes, and asks the source at
// most once about a file that it reads from them.
func TestPeersDenied(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const files, size = 60, 50_000
		open, closed := &denier{}, &denier{denies: "7"}
		opts := alike(2, files*(size+8192))
		opts[0].over, opts[1].over = open, closed
		c := newCluster(t, opts...)
		c.put(files, func(int) int { return size })
		names := c.names()
		for range 3 {
			for i, n := range c.nodes {
				for _, name := range names {
					denied := i == 1 && closed.isDenied(name)
					data, err := n.read(name)
					if denied && (!errors.Is(err, fs.ErrPermission) || len(data) > 0) {
						t.Errorf("node %d, %s: %d bytes, %v; want no permission", i, name, len(data), err)
					}
					if !denied && (err != nil || !bytes.Equal(data, c.files[name])) {
						t.Errorf("node %d, %s: %d bytes, %v", i, name, len(data), err)
					}
				}
			}
			time.Sleep(10 * time.Second)
		}
		c.settle()
		for _, name := range names {
			if closed.isDenied(name) && c.nodes[1].entry(name).Level() != tiers.AtSource {
				t.Errorf("node 1 has a copy of %s", name)
			}
		}
		if got := c.sourceBytes(); got > c.bytes() {
			t.Errorf("the source served %d bytes, want at most %d", got, c.bytes())
		}
		for i, d := range []*denier{open, closed} {
			if got := d.accesses.Load(); got > files {
				t.Errorf("node %d has asked the source %d times about %d files", i, got, files)
			}
		}
	})
}
