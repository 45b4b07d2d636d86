package metadata

import (
	"context"
	"errors"
	"io/fs"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A replaceable is a source whose root may be replaced by another one.
type replaceable struct {
	roots [2]*drivertest.Mem
	now   atomic.Int32
}

func (r *replaceable) root() *drivertest.Mem { return r.roots[r.now.Load()] }

func (r *replaceable) Open(ctx context.Context, name string) (drivers.Object, error) {
	return r.root().Open(ctx, name)
}

func (r *replaceable) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	return r.root().ReadDir(ctx, dir)
}

func (r *replaceable) Stat(ctx context.Context, name string) (drivers.Info, error) {
	info, err := r.root().Stat(ctx, name)
	if name == "." {
		info.Dev, info.Inode = 1, uint64(r.now.Load())+2
	}
	return info, err
}

// After the root was replaced, nothing that is cached is used before it was compared with the new root,
// also if all times are equal, as in images. The kernel forgets what it has cached, at once.
func TestRootIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &replaceable{roots: [2]*drivertest.Mem{drivertest.NewMem(0), drivertest.NewMem(0)}}
		long := time.Now().Add(-time.Hour)
		for i, names := range [][]string{{"d/both", "d/old"}, {"d/both", "d/new"}} {
			for _, name := range names {
				r.roots[i].PutAt(name, []byte(name), long)
			}
			for _, name := range append(names, "d", ".") {
				r.roots[i].Chctime(name, long)
			}
		}
		w := worldOf(t, r, 24*time.Hour)
		both, old := w.get(t, "d/both"), w.get(t, "d/old")
		d := both.Parent()
		w.list(t, "d")
		for _, e := range []*Entry{d, both, old} {
			w.Hold(e)
		}
		w.HoldMissing(d, "new", time.Now())
		time.Sleep(time.Hour)

		r.now.Store(1)
		if err := w.refreshRoot(bg); err != nil {
			t.Fatal(err)
		}
		if got := w.get(t, "d/both"); got != both {
			t.Error("a file that both roots have got another entry")
		}
		if _, err := w.Resolve(bg, "d/old"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a file of the old root: %v", err)
		}
		w.get(t, "d/new")
		if got := w.list(t, "d"); got != "both new" {
			t.Errorf("listing: %q", got)
		}
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		outdated := make(map[string]bool)
		go func() {
			for o := range w.Outdated(ctx) {
				outdated[o.Entry.Path()+":"+o.Name] = true
			}
		}()
		synctest.Wait()
		for _, want := range []string{".:d", "d:both", "d:old", "d:new", "d:"} {
			if !outdated[want] {
				t.Errorf("the kernel has not forgotten %s; only %v", want, outdated)
			}
		}
	})
}

// A name that the old root does not have any more is requested from the new one: nobody sees it missing.
func TestOldRootIsEmptied(t *testing.T) {
	for _, how := range []string{"lookup", "first lookup", "revalidation", "listing"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &emptied{replaceable: replaceable{roots: [2]*drivertest.Mem{drivertest.NewMem(0), drivertest.NewMem(0)}}}
				for _, root := range r.roots {
					root.PutAt("d/f", []byte("content"), time.Now().Add(-time.Hour))
				}
				r.roots[1].PutAt("d/new", nil, time.Now().Add(-time.Hour))
				w := worldOf(t, r, time.Minute)
				e := w.get(t, "d/f")
				w.list(t, "d")
				time.Sleep(time.Hour)
				r.roots[0].Delete("d") // the path leads to the new root; the driver finds out at the next Stat of the root
				var err error
				switch how {
				case "lookup":
					_, err = w.Lookup(bg, e.Parent(), "f")
				case "first lookup":
					_, err = w.Lookup(bg, e.Parent(), "new")
				case "revalidation":
					_, _, err = w.revalidateName(bg, e.Parent(), "f")
				default:
					_, err = w.List(bg, e.Parent())
				}
				if now := w.get(t, "d/f"); err != nil || now != e {
					t.Errorf("got %v and %v, want the same entry", err, now)
				}
			})
		})
	}
}

// The same while the old root is being removed, name by name: what it does not list proves nothing, whether it
// was cached before or not.
func TestOldRootIsBeingEmptied(t *testing.T) {
	for _, how := range []string{"listing", "missing in the first listing"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &emptied{replaceable: replaceable{roots: [2]*drivertest.Mem{drivertest.NewMem(0), drivertest.NewMem(0)}}}
				for _, root := range r.roots {
					root.PutAt("d/f", []byte("content"), time.Now().Add(-time.Hour))
					root.PutAt("d/g", nil, time.Now().Add(-time.Hour))
				}
				w := worldOf(t, r, time.Minute)
				d := w.get(t, "d")
				if how == "listing" {
					e := w.get(t, "d/f")
					time.Sleep(time.Hour)
					r.roots[0].Delete("d/f")
					if got := w.list(t, "d"); got != "f g" || e.Stale() {
						t.Errorf("got %q, stale: %v; want both files", got, e.Stale())
					}
					return
				}
				r.roots[0].Delete("d/f")
				w.list(t, "d")
				if _, err := w.Lookup(bg, d, "f"); err != nil {
					t.Errorf("got %v, want the file of the new root", err)
				}
				for range 2 { // the root is requested once after each listing
					time.Sleep(time.Hour)
					w.list(t, "d")
					before := r.stats.Load()
					for range 10 {
						if _, err := w.Lookup(bg, d, "missing"); !errors.Is(err, fs.ErrNotExist) {
							t.Errorf("a name that is missing: %v", err)
						}
					}
					if got := r.stats.Load() - before; got != 11 {
						t.Errorf("%d requests for names, want 11", got)
					}
				}
			})
		})
	}
}

// An emptied is a replaceable whose root is found to be replaced by a Stat of the root, if the old one does
// not have d/f any more.
type emptied struct {
	replaceable
	stats atomic.Int64
}

func (r *emptied) Stat(ctx context.Context, name string) (drivers.Info, error) {
	r.stats.Add(1)
	if _, err := r.roots[0].Stat(ctx, "d/f"); name == "." && err != nil {
		r.now.Store(1)
	}
	return r.replaceable.Stat(ctx, name)
}
