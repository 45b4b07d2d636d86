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
		w.HoldMissing(d, "new")
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
