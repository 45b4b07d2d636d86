package metadata

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/tiers"
)

// Concurrent lists of a directory share one request to the source. If the caller that made
// the request is canceled, another one makes it again.
func TestConcurrentLists(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.source.Put("f", nil)
		w.faults.Add(drivertest.Rule{Op: drivertest.OpReadDir, Delay: time.Minute})
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := w.List(ctx, w.Root()); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		})
		synctest.Wait()
		for range 100 {
			wg.Go(func() {
				if entries, err := w.List(bg, w.Root()); err != nil || names(entries) != "f" {
					t.Errorf("got %s, %v", names(entries), err)
				}
			})
		}
		wg.Wait()
		if got := w.faults.Count(drivertest.OpReadDir); got != 2 {
			t.Errorf("listed %d times, want 2", got)
		}
	})
}

// Concurrent lookups of a name return the same entry.
func TestConcurrentLookups(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.source.Put("f", []byte("x"))
		w.down[1].Add(drivertest.Rule{Op: drivertest.OpStat, Delay: time.Second})
		var found [100]*Entry
		var wg sync.WaitGroup
		for i := range found {
			wg.Go(func() { found[i], _ = w.Lookup(bg, w.Root(), "f") })
		}
		wg.Wait()
		for _, e := range found {
			if e == nil || e != found[0] || e.Stale() {
				t.Fatal("the lookups returned different entries")
			}
		}
		if got := w.Len(); got != 2 {
			t.Errorf("entries: got %d, want 2", got)
		}
	})
}

// A slow driver returns listings that are outdated when they are returned, as slow storage
// does.
type slow struct {
	drivers.Driver
	listed chan struct{} // receives when a listing was made
	give   chan struct{} // is closed to return it
}

func (s slow) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	infos, err := s.Driver.ReadDir(ctx, dir)
	s.listed <- struct{}{}
	<-s.give
	return append(infos, infos...), err // some storage returns names twice
}

// A lookup during a slow listing has a later reply, which the listing must not replace.
func TestDirectoryChangesWhileItIsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := drivertest.NewMem(0)
		source := slow{mem, make(chan struct{}), make(chan struct{})}
		h, err := tiers.New(source, nil, tiers.Options{}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		c, err := New(bg, h, Options{TTL: time.Hour}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		mem.Put("same", nil)
		mem.Put("changed", []byte("old"))
		var entries []*Entry
		var wg sync.WaitGroup
		wg.Go(func() { entries, err = c.List(bg, c.Root()) })
		<-source.listed
		time.Sleep(time.Second)
		mem.Put("changed", []byte("new"))
		mem.Put("fresh", nil)
		var found []*Entry
		for _, name := range []string{"changed", "fresh", "same"} {
			e, err := c.Resolve(bg, name)
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, e)
		}
		close(source.give)
		wg.Wait()
		if err != nil || names(entries) != "changed same" {
			t.Fatalf("got %s, %v", names(entries), err)
		}
		go func() { <-source.listed }()
		if entries, err = c.List(bg, c.Root()); err != nil || names(entries) != "changed fresh same" {
			t.Fatalf("the next listing: got %s, %v", names(entries), err)
		}
		for i, e := range entries {
			if e != found[i] || e.Stale() {
				t.Errorf("%s: the listing has replaced the entry of a later lookup", e.Name())
			}
		}
		if got := c.Len(); got != 4 {
			t.Errorf("entries: got %d, want 4", got)
		}
	})
}

// All operations run concurrently on names that are created, removed and replaced. No entry
// leaks or has a wrong name, and each claim has one owner.
func TestRaces(t *testing.T) {
	w := newWorld(t, 0)
	var wg sync.WaitGroup
	var stop atomic.Bool
	name := func(rng *rand.Rand) string { return fmt.Sprintf("d%d/f%d", rng.IntN(3), rng.IntN(5)) }
	for i := range 2 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			for !stop.Load() {
				switch n := name(rng); rng.IntN(6) {
				case 0, 1:
					w.source.Put(n, make([]byte, rng.IntN(3)))
				case 2:
					info := w.source.Put(n, []byte("content"))
					w.tier[1].PutAt(n, []byte("content"), info.Mtime)
				case 3:
					w.source.Mkdir(n[:2])
					w.source.Put(n[:2], nil)
				default:
					w.source.Mkdir(n[:2])
				}
				time.Sleep(10 * time.Microsecond)
			}
		})
	}
	for i := range 6 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(2, uint64(i)))
			for !stop.Load() {
				n := name(rng)
				e, err := w.Resolve(bg, n)
				if err != nil {
					continue
				}
				w.Hold(e)
				if e.Path() != n || e.Info().Name != e.Name() {
					t.Errorf("%s: got %s", n, e.Path())
				}
				switch rng.IntN(7) {
				case 0:
					w.List(bg, e.Parent())
				case 1:
					w.Refresh(bg, e)
				case 2:
					w.Changed(e)
				case 3:
					if !e.Claim() {
						break
					}
					if !e.Claimed() || e.Level() != tiers.AtSource {
						t.Errorf("%s: claimed %v, level %d after a Claim", n, e.Claimed(), e.Level())
					}
					e.Verified()
					e.Publish(2)
				case 4:
					e.Demote(e.Level())
				case 5:
					if e.Retract(2) {
						e.Release()
					}
				default:
					w.Walk(bg, []*Entry{w.Root()}, func(*Entry, error) error { return nil })
				}
				w.Forget(e.ID(), 1)
			}
		})
	}
	time.Sleep(time.Second)
	stop.Store(true)
	wg.Wait()
	reachable := 0
	if err := w.Walk(bg, []*Entry{w.Root()}, func(e *Entry, err error) error {
		reachable++
		if e.Stale() || w.Get(e.ID()) != e {
			t.Errorf("%s: stale %v, in the table %v", e.Path(), e.Stale(), w.Get(e.ID()) == e)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if got := w.Len(); got != reachable {
		t.Errorf("entries: got %d, want the %d that have a name", got, reachable)
	}
}

// All operations run concurrently on a bucket whose objects are created, removed and replaced.
func TestBucketRaces(t *testing.T) {
	b := &bucket{Bucket: &drivertest.Bucket{Mem: drivertest.NewMem(0), Latency: 100 * time.Microsecond, Page: 2}}
	for i := range 3 {
		b.Mkdir(fmt.Sprint("d", i))
	}
	w := &bucketWorld{world: worldOf(t, b, 0), bucket: b}
	w.source = b.Mem
	w.ttl = tick // so that lookups take all paths
	var wg sync.WaitGroup
	var stop atomic.Bool
	name := func(rng *rand.Rand) string { return fmt.Sprintf("d%d/f%d", rng.IntN(3), rng.IntN(7)) }
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(1, 0))
		for !stop.Load() {
			n := name(rng)
			switch rng.IntN(5) {
			case 0:
				b.Mkdir(n[:2])
				b.Put(n[:2], nil)
			case 1:
				b.failWith(func(string, int) error { return syscall.EIO })
				time.Sleep(time.Millisecond)
				b.failWith(nil)
			case 2:
				b.setVersion(n[3:], fmt.Sprint(rng.IntN(3)))
			default:
				b.Put(n, make([]byte, rng.IntN(3)))
			}
			time.Sleep(100 * time.Microsecond)
		}
	})
	for i := range 6 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(2, uint64(i)))
			for !stop.Load() {
				n := name(rng)
				ctx, cancel := context.WithTimeout(bg, time.Duration(rng.IntN(20))*time.Millisecond)
				e, err := w.Resolve(ctx, n)
				if err == nil {
					w.Hold(e)
					if e.Path() != n || e.Info().Name != e.Name() {
						t.Errorf("%s: got %s", n, e.Path())
					}
					switch rng.IntN(6) {
					case 0:
						w.List(ctx, e.Parent())
					case 1, 2:
						w.Changed(e)
					case 3:
						w.Refresh(ctx, e)
					case 4:
						w.Changed(e.Parent())
					}
					w.Forget(e.ID(), 1)
				}
				cancel()
			}
		})
	}
	time.Sleep(time.Second)
	stop.Store(true)
	wg.Wait()
	b.failWith(nil)
	time.Sleep(2 * tick)
	reachable := 0
	var check func(e *Entry)
	check = func(e *Entry) {
		reachable++
		if e.Stale() || w.Get(e.ID()) != e {
			t.Errorf("%s: stale %v, in the table %v", e.Path(), e.Stale(), w.Get(e.ID()) == e)
		}
		if !e.IsDir() {
			return
		}
		e.dir.mu.Lock()
		e.dir.failed = 0 // ends the back-off
		e.dir.mu.Unlock()
		below, err := w.List(bg, e)
		if err != nil {
			t.Fatal(err)
		}
		infos, err := b.Mem.ReadDir(bg, e.Path())
		if err != nil || len(infos) != len(below) {
			t.Errorf("%s: got %d names, want %d, %v", e.Path(), len(below), len(infos), err)
		}
		for _, e := range below {
			check(e)
		}
	}
	check(w.Root())
	if got := w.Len(); got != reachable {
		t.Errorf("entries: got %d, want the %d that have a name", got, reachable)
	}
	w.Close()
}
