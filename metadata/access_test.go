package metadata

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A guard is a source that permits what all may read and search. It tells so by the attributes if the
// sticky bit is set, and else by Access, which fails in an outage.
type guard struct {
	*drivertest.Mem
	outage   atomic.Bool
	accesses atomic.Int32
}

var _ drivers.Permitter = (*guard)(nil)

func (g *guard) Permits(info drivers.Info, _ bool) (permitted, known bool) {
	return info.Mode&0o005 == 0o005, info.Mode&syscall.S_ISVTX != 0
}

func (g *guard) User() string { return "user" }

func (g *guard) Access(ctx context.Context, name string) error {
	g.accesses.Add(1)
	time.Sleep(time.Millisecond) // so that concurrent calls meet
	if g.outage.Load() {
		return syscall.EIO
	}
	for i := range len(name) + 1 {
		if i < len(name) && name[i] != '/' {
			continue
		}
		if info, err := g.Stat(ctx, name[:i]); err != nil {
			return err
		} else if info.Mode&0o005 != 0o005 {
			return fs.ErrPermission
		}
	}
	return nil
}

const (
	open        = 0o0755 // Access permits it
	shut        = 0o0700
	plainlyOpen = 0o1755 // the attributes permit it
	plainlyShut = 0o1700
)

// A guarded is a world with a guard as its source, which has the file d/f.
type guarded struct {
	*world
	*guard
}

func newGuarded(t *testing.T, dir, file uint32) *guarded {
	mem := drivertest.NewMem(0)
	mem.Put("d/f", []byte("abc"))
	g := &guard{Mem: mem}
	w := &guarded{worldOf(t, g, time.Hour), g}
	w.chmod(t, ".", open)
	w.chmod(t, "d", dir)
	w.chmod(t, "d/f", file)
	w.Opening(w.root)(nil)
	return w
}

// chmod changes a mode at the source, and requests the attributes of the name.
func (w *guarded) chmod(t *testing.T, name string, mode uint32) {
	t.Helper()
	w.guard.Chmod(name, mode)
	w.validate(t, name)
}

func (w *guarded) validate(t *testing.T, name string) {
	t.Helper()
	var err error
	if e := w.get(t, name); e.parent == nil {
		err = w.refreshRoot(bg)
	} else {
		_, _, err = w.revalidateName(bg, e.parent, e.Name())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// want fails the test unless Permit returns the error for d/f after so many calls of Access.
func (w *guarded) want(t *testing.T, when string, want error, accesses int32) {
	t.Helper()
	before := w.accesses.Load()
	err := w.Permit(bg, w.get(t, "d/f"))
	if !errors.Is(err, want) || (err == nil) != (want == nil) {
		t.Errorf("%s: got %v, want %v", when, err, want)
	}
	if got := w.accesses.Load() - before; got != accesses {
		t.Errorf("%s: %d requests, want %d", when, got, accesses)
	}
}

func TestPermitByAttributes(t *testing.T) {
	w := newGuarded(t, plainlyOpen, plainlyOpen)
	w.chmod(t, ".", plainlyOpen)
	w.want(t, "open", nil, 0)
	w.chmod(t, "d/f", plainlyShut)
	w.want(t, "a file that is shut", fs.ErrPermission, 0)
	w.chmod(t, "d/f", plainlyOpen)
	w.chmod(t, "d", plainlyShut)
	w.want(t, "a folder that is shut", fs.ErrPermission, 0)
	w.chmod(t, "d", plainlyOpen)
	w.chmod(t, ".", plainlyShut)
	w.want(t, "a root that is shut", fs.ErrPermission, 0)
}

// A request decides once for each state of the attributes of the file and the folders above it.
func TestPermitByAccess(t *testing.T) {
	w := newGuarded(t, open, open)
	w.want(t, "at first", nil, 1)
	w.want(t, "again", nil, 0)
	w.validate(t, "d/f")
	w.want(t, "after a comparison that found nothing", nil, 0)
	w.chmod(t, "d/f", shut)
	w.want(t, "shut", fs.ErrPermission, 1)
	w.want(t, "shut, again", fs.ErrPermission, 0)
	w.validate(t, "d/f")
	w.want(t, "shut, after a comparison", fs.ErrPermission, 1)
	w.chmod(t, "d/f", open)
	w.want(t, "open again", nil, 1)
	w.chmod(t, "d", shut)
	w.want(t, "in a folder that is shut", fs.ErrPermission, 1)
	w.chmod(t, "d", open)
	w.validate(t, "d/f")
	w.want(t, "in a folder that is open again", nil, 1)
	w.want(t, "again", nil, 0)
}

// An open of the source decides as a request does.
func TestPermitByOpening(t *testing.T) {
	w := newGuarded(t, open, open)
	e := w.get(t, "d/f")
	w.Opening(e)(nil)
	w.want(t, "opened", nil, 0)
	w.chmod(t, "d/f", shut)
	w.Opening(e)(syscall.EACCES)
	w.want(t, "denied", fs.ErrPermission, 0)

	late := w.Opening(e)
	w.chmod(t, "d/f", open)
	late(nil)
	w.want(t, "opened before a change that was seen first", nil, 1)
	late = w.Opening(e)
	w.chmod(t, "d", shut)
	late(nil)
	w.want(t, "opened before a change of the folder that was seen first", fs.ErrPermission, 1)
}

// While the source does not answer, the last decision stands.
func TestPermitWithoutAnswer(t *testing.T) {
	w := newGuarded(t, open, open)
	w.outage.Store(true)
	w.want(t, "without a decision", syscall.EIO, 1)
	w.outage.Store(false)
	w.want(t, "with an answer", nil, 1)
	w.outage.Store(true)
	w.want(t, "with a permission", nil, 0)
	w.outage.Store(false)
	w.chmod(t, "d/f", shut)
	w.want(t, "shut", fs.ErrPermission, 1)
	w.outage.Store(true)
	w.want(t, "with a denial", fs.ErrPermission, 0)
	w.outage.Store(false)

	w.chmod(t, "d/f", open)
	w.guard.Delete("d/f")
	e, _, _ := w.get(t, "d").dir.find("f")
	if err := w.Permit(bg, e); err != nil {
		t.Errorf("a file that is removed: %v", err)
	}
}

// Programs that open a file at the same time cause one request.
func TestPermitsAtOnce(t *testing.T) {
	w := newGuarded(t, open, open)
	permitAtOnce(t, w.world, w.get(t, "d/f"), &w.accesses)
}

// permitAtOnce fails the test unless concurrent calls of Permit succeed, and make one request in all.
func permitAtOnce(t *testing.T, w *world, e *Entry, requests *atomic.Int32) {
	t.Helper()
	var opens sync.WaitGroup
	for range 50 {
		opens.Go(func() {
			if err := w.Permit(bg, e); err != nil {
				t.Error(err)
			}
		})
	}
	opens.Wait()
	if got := requests.Load(); got != 1 {
		t.Errorf("%d requests, want 1", got)
	}
}

// A metadata snapshot has the permissions, for the same user and an unchanged root.
func TestPermissionsInSnapshot(t *testing.T) {
	for _, c := range []struct {
		name     string
		change   func(w *guarded, s *Snapshot)
		accesses int32
	}{
		{"unchanged", func(*guarded, *Snapshot) {}, 0},
		{"another user", func(_ *guarded, s *Snapshot) { s.user = "another" }, 1},
		{"another root", func(w *guarded, _ *Snapshot) { w.guard.Chmod(".", open) }, 1}, // the change time
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newGuarded(t, open, open)
			w.want(t, "before", nil, 1)
			dir := t.TempDir()
			if err := saveSnapshot(w.Container, dir+"/snapshot", "src"); err != nil {
				t.Fatal(err)
			}
			folder, err := os.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer folder.Close()
			s, err := OpenSnapshot(folder, "snapshot", "src")
			if err != nil {
				t.Fatal(err)
			}
			c.change(w, s)
			next := &guarded{w.newProcess(t), w.guard}
			next.useSnapshot(s)
			next.want(t, "after", nil, c.accesses)
		})
	}
}

// A name or listing that the source denies is not served from the cache, as it is in an outage. A source
// that permits all that it lists may have to renew its credentials.
func TestDeniedNames(t *testing.T) {
	for _, c := range []struct {
		err    syscall.Errno
		guards bool
		served bool
	}{{syscall.EACCES, true, false}, {syscall.EPERM, true, false}, {syscall.EIO, true, true}, {syscall.EACCES, false, true}} {
		t.Run(fmt.Sprintf("%v, guard %v", c.err, c.guards), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := drivertest.NewMem(0)
				mem.Put("d/f", []byte("abc"))
				var source drivers.Driver = mem
				if c.guards {
					source = &guard{Mem: mem}
				}
				faults := drivertest.NewFaults(source)
				w := worldOf(t, faults, time.Minute)
				d := w.get(t, "d/f").Parent()
				w.list(t, "d")
				time.Sleep(time.Hour)
				faults.Add(drivertest.Rule{Err: c.err})
				_, lookup := w.Resolve(bg, "d/f")
				_, listing := w.List(bg, d)
				for what, err := range map[string]error{"lookup": lookup, "listing": listing} {
					if c.served != (err == nil) || err != nil && !errors.Is(err, fs.ErrPermission) {
						t.Errorf("%s: %v", what, err)
					}
				}
			})
		})
	}
}
