package placement

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/tiers"
)

// A hungPart is a source of which some files hang, with readers of these.
type hungPart struct {
	*rig
	size    int
	data    map[string][]byte // of the files that hang
	files   int64             // number of all files
	readers sync.WaitGroup
}

// newHungPart makes n files of size bytes that hang at op, which is OpRead or OpOpen.
func newHungPart(r *rig, n, size int, op drivertest.Op) *hungPart {
	p := &hungPart{rig: r, size: size, data: make(map[string][]byte)}
	for i := range n {
		name := fmt.Sprintf("hung/%03d", i)
		p.data[name] = p.put(name, size)
		p.files++
	}
	p.from.Add(drivertest.Rule{Op: op, Name: "hung/*", Hang: true})
	return p
}

// read starts readers of the files from and to, which hang, until ctx is done.
func (p *hungPart) read(ctx context.Context, from, to int) {
	for i := from; i < to; i++ {
		name := fmt.Sprintf("hung/%03d", i)
		p.readers.Go(func() {
			obj, err := p.handler.Open(ctx, p.entry(name))
			if err == nil {
				err = readAt(ctx, obj, make([]byte, p.size), 0)
				obj.Close()
			}
			if err != nil && !errors.Is(err, context.Canceled) {
				p.t.Errorf("read %s: %v", name, err)
			}
		})
	}
}

// wantHealthy reads files of another part of the source for the first time. Each must be read
// within limit.
func (p *hungPart) wantHealthy(dir string, limit time.Duration) {
	p.t.Helper()
	for i := range 20 {
		name := fmt.Sprintf("%s/%d", dir, i)
		p.put(name, p.size)
		p.files++
		ctx, cancel := context.WithTimeout(p.t.Context(), limit)
		obj, err := p.handler.Open(ctx, p.entry(name))
		if err == nil {
			err = readAt(ctx, obj, make([]byte, p.size), 0)
			obj.Close()
		}
		cancel()
		if err != nil {
			p.t.Fatalf("read %s: %v", name, err)
		}
	}
}

// recover ends the hang, and checks that all files are placed then, and were read from the source
// once.
func (p *hungPart) recover() {
	p.t.Helper()
	p.from.Clear()
	p.readers.Wait()
	p.settled()
	for name, data := range p.data {
		p.wantFile(name, data)
	}
	p.settled()
	if got, want := p.from.Bytes(drivertest.OpRead), p.files*int64(p.size); got != want {
		p.t.Errorf("bytes read from the source: got %d, want %d", got, want)
	}
	synctest.Wait() // a buffer is given back after its block has landed
	if reads, turns := p.handler.gate.reads.count(), p.handler.gate.turns.count(); reads != 0 || turns != 0 {
		p.t.Errorf("stalled after the end: got %d reads and %d turns, want none", reads, turns)
	}
	for _, b := range []*buffers{p.handler.gate.demands, p.handler.gate.blocks} {
		if got, want := len(b.free)+len(b.unmade), b.n; got != want {
			p.t.Errorf("buffers that are not in use: got %d, want %d", got, want)
		}
	}
}

// Readers of a part of the source that hangs do not keep other files from being read for the
// first time, whether the readers live or were killed. The hung requests go on, and serve the
// readers that come after the hang: each byte is read from the source once.
func TestHungReadersDoNotTakeAllBuffers(t *testing.T) {
	for _, op := range []drivertest.Op{drivertest.OpOpen, drivertest.OpRead} {
		for _, killed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s killed %v", op, killed), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					p := newHungPart(newRig(t, rigOptions{quotas: []int64{1 << 30}, workers: 8}), 64, 1000, op)
					ctx, kill := context.WithCancel(t.Context())
					defer kill()
					p.read(ctx, 0, 64)
					synctest.Wait()
					if killed {
						kill()
						p.readers.Wait()
					}
					p.wantHealthy("begin", 5*time.Second)
					time.Sleep(time.Minute)
					p.wantHealthy("later", time.Millisecond)
					if !killed {
						p.read(ctx, 0, 64) // more readers of the same files
						synctest.Wait()
						p.wantHealthy("more", time.Millisecond)
					}
					p.recover()
				})
			})
		}
	}
}

// The memory for hung requests is bounded. At the bound, files are read from the source without a
// copy, also those of which a part was copied. They are placed after the hang.
func TestStalledRequestsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newHungPart(newRig(t, rigOptions{quotas: []int64{1 << 30}, workers: 1}), 400, 1000, drivertest.OpRead)
		data := p.put("healthy", 2<<20)
		large := p.open("healthy")
		defer large.Close()
		p.wantAt(large, 0, 1, data)
		ctx, kill := context.WithCancel(t.Context())
		defer kill()
		p.read(ctx, 0, 320)
		p.wantHealthy("wait", 5*time.Second)
		time.Sleep(time.Minute)
		p.read(ctx, 320, 400)
		synctest.Wait()
		if got, want := p.handler.gate.reads.count(), maxStallReads; got != want {
			t.Errorf("stalled: got %d, want %d", got, want)
		}
		p.wantHealthy("bound", time.Millisecond)
		p.wantAt(large, 1<<20, 1, data)
		if got := p.entry("bound/0").Level(); got != tiers.AtSource {
			t.Errorf("level during the hang: got %d, want %d", got, tiers.AtSource)
		}
		p.from.Clear()
		p.readers.Wait()
		time.Sleep(time.Minute)
		p.wantHealthy("after", time.Millisecond)
		for name, data := range p.data {
			p.wantFile(name, data)
		}
		p.settled()
		for _, name := range []string{"after/0", "hung/000", "hung/350"} {
			if got := p.entry(name).Level(); got != 1 {
				t.Errorf("level of %s after the hang: got %d, want 1", name, got)
			}
		}
	})
}

// Workers that hang do not keep other files from being placed, and the other blocks of a file of
// which one hangs take no further worker.
func TestHungWorkersAreReplaced(t *testing.T) {
	const workers = 4
	for _, op := range []drivertest.Op{drivertest.OpOpen, drivertest.OpRead} {
		t.Run(string(op), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, rigOptions{quotas: []int64{1 << 30}, workers: workers})
				p := newHungPart(r, 3, 40<<20, op)
				var places sync.WaitGroup
				place := func(name string) {
					places.Go(func() {
						if outcome, err := r.handler.Place(t.Context(), r.entry(name)); outcome != Placed || err != nil {
							t.Errorf("place %s: got %v, %v", name, outcome, err)
						}
					})
				}
				for name := range p.data {
					place(name)
				}
				time.Sleep(time.Minute)
				if got, most := r.from.Hung(), 3*workers; got > most {
					t.Errorf("requests in flight: got %d, want at most %d", got, most)
				}
				for i := range 20 {
					name := fmt.Sprint("healthy/", i)
					r.put(name, 3<<20)
					place(name)
				}
				time.Sleep(10 * time.Second)
				if got := r.handler.Stats().Placed; got != 20 {
					t.Errorf("files placed: got %d, want 20", got)
				}
				r.from.Clear()
				places.Wait()
				if got, want := r.from.Bytes(drivertest.OpRead), int64(3*40+20*3)<<20; got != want {
					t.Errorf("bytes read from the source: got %d, want %d", got, want)
				}
			})
		})
	}
}

// A reader whose request hangs does not count as waiting.
func TestHungReaderLeavesGate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := newGate(8, drivers.Profile{})
		w := g.demand()
		if !g.demanded() {
			t.Error("no reader waits, want one")
		}
		time.Sleep(waitStall + time.Millisecond)
		if g.demanded() {
			t.Error("a reader whose request hangs is counted")
		}
		w.done()
		if got := g.waits.Load(); got.Count != 1 || g.waiting != 0 {
			t.Errorf("after the wait: got %d waits, %d waiting", got.Count, g.waiting)
		}
	})
}

// A stream that makes progress has not stalled, however long it takes.
func TestProgressIsNoStall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStalls(time.Second, 1)
		var yields atomic.Int64
		yield := func() { yields.Add(1) }
		w := s.watch(yield)
		for range 10 {
			time.Sleep(900 * time.Millisecond)
			w.progress()
		}
		if yields.Load() != 0 || w.end() {
			t.Error("a request that makes progress has stalled")
		}
		first, second := s.watch(yield), s.watch(yield)
		time.Sleep(3 * time.Second)
		if yields.Load() != 1 || s.count() != 1 {
			t.Errorf("stalled: got %d, want 1", yields.Load())
		}
		first.end()
		second.end()
		time.Sleep(3 * time.Second)
		if s.count() != 0 {
			t.Errorf("stalled after the end: got %d, want 0", s.count())
		}
	})
}
