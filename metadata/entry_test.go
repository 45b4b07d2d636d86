package metadata

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/tiers"
)

// named returns an entry with a name and no other attributes.
func named(name string, parent *Entry) *Entry {
	return makeEntry(parent, drivers.Info{Name: name, Mode: syscall.S_IFREG}, 0)
}

// The attributes may be read while they are refreshed.
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

// made keeps the entry of TestEntrySize on the heap.
var made *Entry

func TestEntrySize(t *testing.T) {
	if got := unsafe.Sizeof(Entry{}); got > 128 {
		t.Errorf("an Entry is %d bytes, more than a size class of 128", got)
	}
	if got := unsafe.Sizeof(directory{}); got > 208 {
		t.Errorf("a directory is %d bytes, more than a size class of 208", got)
	}
	// An entry without a version uses the driver's string of the name. With a version, name and
	// version share one new string.
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

// A flat driver has one directory of n files.
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

// BenchmarkMillion loads a directory of a million files by listing and by lookups, and
// reports the memory that an entry takes.
func BenchmarkMillion(b *testing.B) {
	n := drivertest.Size(1_000_000, 1000)
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
				b.ReportMetric(float64(heap()-before)/float64(n), "B/entry")
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
