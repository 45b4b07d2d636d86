package scale

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/peer/roster"
)

// A setup is a job with its nodes.
type setup struct {
	nodes  int
	group  int // nodes that form one cache; 0: all
	files  int // of the dataset, for each node
	size   int64
	epochs int
	all    bool // each node reads all files; otherwise a random share of its own
	model  bool // nodes are models, and not of the real code
	kill   int  // the epoch in the middle of which a node is lost; 0: none
	seed   uint64
}

// The machines.
const (
	sourceRate    = 10e6   // bytes per second of the source, for each node of the job
	linkRate      = 1.25e9 // bytes per second of a node, in each direction
	sourceLatency = time.Millisecond
	linkLatency   = 100 * time.Microsecond // of a request and its answer
	readers       = 4                      // processes of the job on each node
	quota         = 2                      // size of the tier of a node, in shares of the dataset for one node of a group
)

// A cluster is the nodes of a job during a simulation.
type cluster struct {
	setup
	data    dataset
	latency time.Duration
	source  link
	nodes   []node
	read    atomic.Int64 // files that the job has read in this epoch
}

// A result is what a simulation has measured.
type result struct {
	epochs  []epoch
	read    []int64 // bytes that each node has read from the source
	sockets float64 // connections of a node, the mean
	most    int     // the same, the largest
	heap    int64   // bytes of memory in use at the end, stacks included, for each node
	wall    time.Duration
}

// An epoch is one epoch of a simulation.
type epoch struct {
	seconds float64
	source  float64 // bytes that all nodes have read from the source, as a multiple of the dataset
	peers   float64 // bytes that nodes have read from each other, the same
	failed  int64   // reads that have failed
}

// floor is the time that an epoch takes at least in which the source serves each byte once, or none.
func (s setup) floor(cold bool) float64 {
	perNode := float64(s.files) * float64(s.size)
	if s.all {
		perNode *= float64(s.nodes)
	}
	if !cold {
		return perNode / linkRate
	}
	groups := 1.0
	if s.all && s.group > 0 {
		groups = float64(s.nodes / s.group)
	}
	return max(groups*float64(s.files)*float64(s.size)/sourceRate, perNode/linkRate)
}

// run simulates a job.
func run(t *testing.T, s setup) (r result) {
	t.Helper()
	if s.seed == 0 {
		s.seed = 1
	}
	began := time.Now()
	synctest.Test(t, func(t *testing.T) {
		before := heap()
		c := newCluster(t, s)
		for _, n := range c.nodes {
			n.start()
		}
		for e := range s.epochs {
			r.epochs = append(r.epochs, c.epoch(t, e+1))
		}
		for _, n := range c.nodes {
			b := n.base()
			r.read = append(r.read, b.read.Load())
			r.sockets += float64(b.sockets.count()) / float64(s.nodes)
			r.most = max(r.most, b.sockets.count())
		}
		r.heap = (heap() - before) / int64(s.nodes)
		var all sync.WaitGroup
		for _, n := range c.nodes {
			all.Go(n.stop)
		}
		all.Wait()
		time.Sleep(time.Second) // operations of the source that were abandoned end by themselves
	})
	r.wall = time.Since(began)
	return r
}

// heap returns the bytes of memory in use, stacks included.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

func newCluster(t *testing.T, s setup) *cluster {
	t.Helper()
	if s.group == 0 {
		s.group = s.nodes
	}
	c := &cluster{
		setup: s, data: dataset{files: s.files * s.nodes, size: s.size, born: time.Now().Add(-time.Hour)},
		latency: linkLatency, source: link{rate: sourceRate * float64(s.nodes)},
	}
	var group *roster.Roster
	for i := range s.nodes {
		h, self := newHost(i, linkRate), i%s.group
		if self == 0 {
			group = newRoster(t, i, s.group)
		}
		p := &peers{cluster: c, host: h, roster: group, self: self, first: i - self, health: make([]health, s.group)}
		from := &source{dataset: &c.data, host: h, link: &c.source, latency: sourceLatency, stats: drivers.NewStatPool()}
		if s.model {
			c.nodes = append(c.nodes, newModel(h, p, from))
			continue
		}
		share := c.data.bytes() / int64(s.group)
		n, err := newWhole(h, p, from, quota*share*(s.size+4096)/s.size)
		if err != nil {
			t.Fatal(err)
		}
		c.nodes = append(c.nodes, n)
	}
	return c
}

// newRoster returns the roster of n nodes, named so that its order is that of the cluster.
func newRoster(t testing.TB, first, n int) *roster.Roster {
	t.Helper()
	nodes := make([]roster.Node, n)
	for i := range nodes {
		nodes[i] = roster.Node{Name: fmt.Sprintf("node%05d", first+i)}
	}
	r, err := roster.New(nodes)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// epoch lets the processes of the job read one epoch. The files are in a random order, and node i reads
// every N-th one from the i-th on, as with DistributedSampler of PyTorch.
func (c *cluster) epoch(t *testing.T, number int) epoch {
	t.Helper()
	began, read, served := time.Now(), sum(c.bytesRead()), sum(c.bytesServed())
	order := rand.New(rand.NewPCG(c.seed, uint64(number))).Perm(c.data.files)
	c.read.Store(0)
	var failed atomic.Int64
	var job sync.WaitGroup
	for i, n := range c.nodes {
		if n.base().isDown() {
			continue
		}
		mine := make([]int, 0, c.files)
		if c.all {
			mine = rand.New(rand.NewPCG(c.seed+uint64(i)+1, uint64(number))).Perm(c.data.files)
		} else {
			for f := i; f < len(order); f += c.setup.nodes {
				mine = append(mine, order[f])
			}
		}
		var next atomic.Int64
		for range readers {
			job.Go(func() {
				for {
					f := int(next.Add(1)) - 1
					if f >= len(mine) || n.base().isDown() {
						return
					}
					if err := n.read(context.Background(), fileName(mine[f])); err != nil && !n.base().isDown() {
						failed.Add(1)
						t.Logf("node %d reads %s: %v", i, fileName(mine[f]), err)
					}
					c.half(number)
				}
			})
		}
	}
	job.Wait()
	dataset := float64(c.data.bytes())
	return epoch{
		seconds: time.Since(began).Seconds(),
		source:  float64(sum(c.bytesRead())-read) / dataset,
		peers:   float64(sum(c.bytesServed())-served) / dataset,
		failed:  failed.Load(),
	}
}

// half ends the last node when the job has read half of the epoch, if it is the one of setup.kill.
func (c *cluster) half(epoch int) {
	files := int64(c.data.files)
	if c.all {
		files *= int64(c.setup.nodes)
	}
	if c.read.Add(1) == files/2 && epoch == c.kill {
		n := c.nodes[len(c.nodes)-1]
		close(n.base().down)
		if n, ok := n.(*whole); ok {
			n.cancel()
		}
	}
}

func (c *cluster) bytesRead() (all []int64) {
	for _, n := range c.nodes {
		all = append(all, n.base().read.Load())
	}
	return all
}

func (c *cluster) bytesServed() (all []int64) {
	for _, n := range c.nodes {
		all = append(all, n.base().served.Load())
	}
	return all
}

func sum(all []int64) (n int64) {
	for _, a := range all {
		n += a
	}
	return n
}

// maxOfMean returns the largest number as a multiple of the mean, which is 0 if all are.
func maxOfMean(all []int64) float64 {
	var most int64
	for _, a := range all {
		most = max(most, a)
	}
	if most == 0 {
		return 0
	}
	return float64(most) * float64(len(all)) / float64(sum(all))
}
