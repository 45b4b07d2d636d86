package metadata

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/tiers"
)

// Of thousands who claim a file at once, one is told true.
func TestClaim(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.source.Put("f", []byte("x"))
	e := w.get(t, "f")
	for round := range 3 {
		var winners atomic.Int64
		var wg sync.WaitGroup
		for range 2000 {
			wg.Go(func() {
				if e.Claim() {
					winners.Add(1)
				}
			})
		}
		wg.Wait()
		if got := winners.Load(); got != 1 || !e.Claimed() {
			t.Errorf("round %d: %d claimed the file, want 1", round, got)
		}
		e.Release()
	}
	if !e.Claim() {
		t.Error("not claimed after a release")
	}
	e.Publish(2)
	if e.Claim() || e.Claimed() || e.Level() != 2 {
		t.Errorf("after a copy is published: level %d, claimed %v", e.Level(), e.Claimed())
	}
}

func TestNothingToClaim(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.source.Put("empty", nil)
	w.source.Mkdir("dir")
	w.source.Symlink("empty", "link")
	w.source.Special("pipe", syscall.S_IFIFO)
	w.source.Put("gone", []byte("x"))
	w.Changed(w.get(t, "gone"))
	for _, name := range []string{".", "empty", "dir", "link", "pipe"} {
		if w.get(t, name).Claim() {
			t.Errorf("%s: claimed", name)
		}
	}
}

// Of thousands who find that a copy is gone, one brings the news.
func TestDemote(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.source.Put("f", []byte("x"))
	e := w.get(t, "f")
	e.Publish(1)
	if e.Demote(2) || e.Level() != 1 {
		t.Error("demoted from a level that it was not on")
	}
	var news atomic.Int64
	var wg sync.WaitGroup
	for range 2000 {
		wg.Go(func() {
			if e.Demote(1) {
				news.Add(1)
			}
		})
	}
	wg.Wait()
	if got := news.Load(); got != 1 || e.Level() != tiers.AtSource || !e.Unverified() {
		t.Errorf("%d brought the news, level %d", got, e.Level())
	}
	e.Publish(1)
	w.Changed(e)
	if e.Demote(1) || e.Level() != tiers.AtSource {
		t.Error("the copy of a stale entry is news")
	}
}

func TestSkip(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.source.Put("f", []byte("x"))
	e := w.get(t, "f")
	if !e.Skip() || e.Skip() {
		t.Error("skipped not once")
	}
	e.Publish(1)
	if !e.Skip() {
		t.Error("not skipped again after it was placed")
	}
}

// Finding where a file is takes no lock.
func TestLevelTakesNoLock(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.source.Put("d/f", []byte("x"))
	e := w.get(t, "d/f")
	for d := e.Parent(); ; d = d.Parent() {
		d.dir.mu.Lock()
		defer d.dir.mu.Unlock()
		if d == w.Root() {
			break
		}
	}
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		got := w.Get(e.ID())
		got.Claim()
		got.Publish(1)
		if got.Level() != 1 || got.Path() != "d/f" || got.Size() != 1 || got.Stale() {
			t.Errorf("got level %d of %s", got.Level(), got.Path())
		}
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("waits for a lock")
	}
}

// named returns an entry of which no more matters than its name.
func named(name string, parent *Entry) *Entry {
	return makeEntry(parent, drivers.Info{Name: name, Mode: syscall.S_IFREG}, 0)
}

// A directory does as a map does, and what was given out does not change.
func TestDirectoryIsAMap(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3))
		d, model := new(directory), make(map[string]*Entry)
		var given, asGiven [][]*Entry
		fresh := func() *Entry { return named(fmt.Sprint(rng.IntN(20)), nil) }
		for range 100 {
			switch rng.IntN(8) {
			case 0:
				var all []*Entry
				now := make(map[string]*Entry)
				for range rng.IntN(20) {
					e := fresh()
					if old := model[e.Name()]; old != nil && rng.IntN(2) == 0 {
						e = old
					}
					if now[e.Name()] == nil {
						now[e.Name()] = e
						all = append(all, e)
					}
				}
				at := uint32(rng.IntN(3))
				var gone []*Entry
				for name, e := range model {
					switch {
					case now[name] == nil && e.checked.Load() > at:
						now[name] = e
					case now[name] != e:
						gone = append(gone, e)
					}
				}
				got := d.replace(all, at)
				if len(got) != len(gone) || len(got) > 0 && slices.ContainsFunc(gone, func(e *Entry) bool { return !slices.Contains(got, e) }) {
					t.Fatalf("seed %d: replace gave back %d entries, want %d", seed, len(got), len(gone))
				}
				model = now
			case 1, 2:
				e := fresh()
				d.delete(e.Name())
				delete(model, e.Name())
			case 3:
				got := d.all()
				want := slices.SortedFunc(maps.Values(model), func(a, b *Entry) int { return strings.Compare(a.Name(), b.Name()) })
				if !slices.Equal(got, want) {
					t.Fatalf("seed %d: got %d entries, want %d", seed, len(got), len(want))
				}
				given, asGiven = append(given, got), append(asGiven, want)
			default:
				e := fresh()
				e.checked.Store(uint32(rng.IntN(4)))
				d.put(e)
				model[e.Name()] = e
			}
			for i := range 20 {
				if name := fmt.Sprint(i); d.get(name) != model[name] {
					t.Fatalf("seed %d: %s is wrong", seed, name)
				}
			}
		}
		for i := range given {
			if !slices.Equal(given[i], asGiven[i]) {
				t.Fatalf("seed %d: what was given out has changed", seed)
			}
		}
	}
}

// Names that are looked up in any order are found in order.
func TestDirectoryGrows(t *testing.T) {
	const n = 20_000
	d := new(directory)
	for _, i := range rand.Perm(n) {
		d.put(named(fmt.Sprintf("%08d", i), nil))
	}
	if got := len(d.extra); got*got > 2*n {
		t.Errorf("%d names are not merged", got)
	}
	for i, e := range d.all() {
		if want := fmt.Sprintf("%08d", i); e.Name() != want {
			t.Fatalf("got %s, want %s", e.Name(), want)
		}
	}
}

// The attributes may be read while the source is asked for them again.
func TestInfoWhileRefreshed(t *testing.T) {
	w := newWorld(t, 0)
	w.source.Put("d/f", []byte("content"))
	e := w.get(t, "d/f")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 500 {
				w.source.Chmod("d/f", uint32(0o400+i%4))
				if err := w.Refresh(bg, e); err != nil {
					t.Error(err)
				}
				w.List(bg, e.Parent())
				if got := e.Info(); got.Size != 7 || e.Size() != 7 || got.Mode&0o700 != 0o400 {
					t.Errorf("got %+v", got)
				}
			}
		})
	}
	wg.Wait()
}

// made keeps what TestEntrySize makes.
var made *Entry

func TestEntrySize(t *testing.T) {
	if got := unsafe.Sizeof(Entry{}); got > 128 {
		t.Errorf("an Entry is %d bytes, more than a size class of 128", got)
	}
	if got := unsafe.Sizeof(directory{}); got > 128 {
		t.Errorf("a directory is %d bytes, more than a size class of 128", got)
	}
	// The name is the driver's own, and a version shares one string with it.
	for version, want := range map[string]float64{"": 1, strings.Repeat("v", 32): 2} {
		info := drivers.Info{Name: "img_00000001", Version: version, Mode: syscall.S_IFREG}
		if got := testing.AllocsPerRun(100, func() { made = makeEntry(nil, info, 0) }); got != want {
			t.Errorf("version %q: an Entry takes %v allocations, want %v", version, got, want)
		}
		if got, want := len(made.text), len(info.Name)+len(version); got != want || made.Name() != info.Name || made.version() != version {
			t.Errorf("version %q: got %q of %d bytes, want %d", version, made.text, got, want)
		}
	}
}

// A flat driver is one directory of n files.
type flat struct {
	drivers.Driver
	n int
}

func (f flat) name(i int) string { return fmt.Sprintf("img_%08d", i) }

func (f flat) ReadDir(context.Context, string) ([]drivers.Info, error) {
	infos := make([]drivers.Info, f.n)
	for i := range infos {
		infos[i] = drivers.Info{Name: f.name(i), Mode: syscall.S_IFREG | 0o644, Nlink: 1, Size: 1, Mtime: time.Unix(int64(i), 0)}
	}
	rand.Shuffle(f.n, func(i, j int) { infos[i], infos[j] = infos[j], infos[i] })
	return infos, nil
}

func (f flat) Stat(ctx context.Context, name string) (drivers.Info, error) {
	if name == "." {
		return f.Driver.Stat(ctx, name)
	}
	return drivers.Info{Mode: syscall.S_IFREG | 0o644, Nlink: 1, Size: 1}, nil
}

// BenchmarkMillion loads a directory of a million files, in the two ways in
// which that happens, and reports what an entry costs in memory.
func BenchmarkMillion(b *testing.B) {
	const n = 1_000_000
	source := flat{drivertest.NewMem(0), n}
	load := map[string]func(c *Container) error{
		"list": func(c *Container) error {
			_, err := c.List(bg, c.Root())
			return err
		},
		"lookup": func(c *Container) error {
			for i := range n {
				if _, err := c.Lookup(bg, c.Root(), source.name(i)); err != nil {
					return err
				}
			}
			return nil
		},
	}
	for _, how := range []string{"list", "lookup"} {
		b.Run(how, func(b *testing.B) {
			for b.Loop() {
				before := heap()
				c := newContainer(b, source)
				if err := load[how](c); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(heap()-before)/n, "B/entry")
				runtime.KeepAlive(c)
			}
		})
	}
}

func newContainer(b *testing.B, source drivers.Driver) *Container {
	b.Helper()
	log := slog.New(slog.DiscardHandler)
	h, err := tiers.New(source, nil, tiers.Options{}, log)
	if err != nil {
		b.Fatal(err)
	}
	c, err := New(bg, h, Options{TTL: time.Hour}, log)
	if err != nil {
		b.Fatal(err)
	}
	return c
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
