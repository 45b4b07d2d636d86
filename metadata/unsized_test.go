package metadata

import (
	"context"
	"errors"
	"io/fs"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A sizeless is a source that shows no size of the files of one byte.
type sizeless struct {
	*drivertest.Mem
	opens  atomic.Int32
	broken atomic.Pointer[error] // of reads
	late   bool                  // it shows the sizes after the first open

	afterRead func() // called after each read
}

func (s *sizeless) Stat(ctx context.Context, name string) (drivers.Info, error) {
	info, err := s.Mem.Stat(ctx, name)
	s.hideSize(&info)
	return info, err
}

func (s *sizeless) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	infos, err := s.Mem.ReadDir(ctx, dir)
	for i := range infos {
		s.hideSize(&infos[i])
	}
	return infos, err
}

func (s *sizeless) hideSize(info *drivers.Info) {
	if info.Unsized = info.IsRegular() && info.Size <= 1 && !(s.late && s.opens.Load() > 0); info.Unsized {
		info.Size = 0
	}
}

func (s *sizeless) Open(ctx context.Context, name string) (drivers.Object, error) {
	s.opens.Add(1)
	o, err := s.Mem.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return sizelessFile{o, s}, nil
}

// A sizelessFile is an open file.
type sizelessFile struct {
	drivers.Object
	of *sizeless
}

func (f sizelessFile) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if broken := f.of.broken.Load(); broken != nil {
		return 0, *broken
	}
	n, err := f.Object.ReadAt(ctx, p, off)
	if f.of.afterRead != nil {
		f.of.afterRead()
	}
	return n, err
}

func newSizeless(t *testing.T) (*world, *sizeless) {
	s := &sizeless{Mem: drivertest.NewMem(0)}
	s.Put("empty", nil)
	s.Put("full", []byte("x"))
	s.Put("large", []byte("xx"))
	w := worldOf(t, s, time.Hour)
	consume(t, w, func(Outdated) {})
	return w, s
}

// wantPermit fails the test unless Permit returns the error for a file after a number of opens at the source.
func (s *sizeless) wantPermit(t *testing.T, w *world, name string, want error, opens int32) {
	t.Helper()
	before := s.opens.Load()
	if err := w.Permit(bg, w.get(t, name)); !errors.Is(err, want) || (err == nil) != (want == nil) {
		t.Errorf("%s: got %v, want %v", name, err, want)
	}
	if got := s.opens.Load() - before; got != opens {
		t.Errorf("%s: %d opens, want %d", name, got, opens)
	}
}

// A file that shows no size is read once before it counts as empty, and again when it has changed. One that has
// content is never taken for empty.
func TestUnsized(t *testing.T) {
	w, s := newSizeless(t)
	s.wantPermit(t, w, "large", nil, 0)
	e := w.get(t, "empty")
	if !e.Unsized() || w.IsPermitted(e) {
		t.Error("the empty file counts as empty before it was read")
	}
	s.wantPermit(t, w, "empty", nil, 1)
	s.wantPermit(t, w, "empty", nil, 0)
	if e.Unsized() || !w.IsPermitted(e) {
		t.Error("the empty file does not count as empty")
	}
	s.wantPermit(t, w, "full", drivers.ErrUnsized, 1)
	s.wantPermit(t, w, "full", drivers.ErrUnsized, 0)
	if err := w.Permit(bg, w.get(t, "full")); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("got %v, want %v", err, syscall.EOPNOTSUPP)
	}
	w.revalidate(t, ".")
	s.wantPermit(t, w, "empty", nil, 0)
	s.wantPermit(t, w, "full", drivers.ErrUnsized, 1)
	s.Put("empty", []byte("y"))
	w.revalidate(t, ".")
	s.wantPermit(t, w, "empty", drivers.ErrUnsized, 1)
	s.Delete("full")
	s.Put("full", nil)
	w.revalidate(t, ".")
	s.wantPermit(t, w, "full", nil, 1)
}

// The times of a file in /proc do not change with its content. What a read has shown lasts as long as the attributes.
func TestUnsizedExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := newSizeless(t)
		s.wantPermit(t, w, "empty", nil, 1)
		info, err := s.Mem.Stat(bg, "empty")
		if err != nil {
			t.Fatal(err)
		}
		put := func(content string) {
			s.PutAt("empty", []byte(content), info.Mtime)
			s.Chctime("empty", info.Ctime)
		}
		put("y")
		s.wantPermit(t, w, "empty", nil, 0)
		time.Sleep(2 * time.Hour)
		s.wantPermit(t, w, "empty", drivers.ErrUnsized, 1)
		put("")
		s.wantPermit(t, w, "empty", drivers.ErrUnsized, 0)
		time.Sleep(2 * time.Hour)
		s.wantPermit(t, w, "empty", nil, 1)
		put("y")
		for range 7 { // the sweep prolongs nothing
			time.Sleep(10 * time.Minute)
			if _, _, err := w.revalidateName(bg, w.Root(), "empty"); err != nil {
				t.Fatal(err)
			}
		}
		s.wantPermit(t, w, "empty", drivers.ErrUnsized, 1)
	})
}

// A file gets content after the byte was read, and the sweep sees that. It does not count as empty.
func TestUnsizedChanges(t *testing.T) {
	w, s := newSizeless(t)
	e := w.get(t, "empty")
	s.afterRead = func() {
		s.afterRead = nil
		s.PutAt("empty", []byte("y"), e.Info().Mtime)
		w.revalidate(t, ".")
	}
	if err := w.Permit(bg, e); err != nil || e.Stale() {
		t.Errorf("got %v, stale %v", err, e.Stale())
	}
	s.wantPermit(t, w, "empty", drivers.ErrUnsized, 1)
}

// A file that has just changed may change again without other times.
func TestUnsizedIsRecent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := newSizeless(t)
		w.racy = time.Minute
		s.Chctime("empty", time.Now())
		for range 2 {
			s.wantPermit(t, w, "empty", nil, 1)
		}
		time.Sleep(time.Minute)
		s.wantPermit(t, w, "empty", nil, 1)
		s.wantPermit(t, w, "empty", nil, 0)
	})
}

// If the source shows the size of a file that is open, the file is looked up again, and has its content.
func TestUnsizedUntilOpened(t *testing.T) {
	w, s := newSizeless(t)
	s.late = true
	s.wantPermit(t, w, "full", drivers.ErrChanged, 1)
	if e := w.get(t, "full"); e.Size() != 1 || e.Unsized() {
		t.Errorf("got %+v, want the size", e.Info())
	}
	s.wantPermit(t, w, "full", nil, 0)
}

// If the source does not answer, nothing is decided. A file that was removed is not empty.
func TestUnsizedWithoutAnswer(t *testing.T) {
	w, s := newSizeless(t)
	e := w.get(t, "empty")
	for _, err := range []error{syscall.EIO, drivers.ErrChanged} {
		s.broken.Store(&err)
		s.wantPermit(t, w, "empty", err, 1)
		if !w.get(t, "empty").Unsized() {
			t.Errorf("%v: the file counts as empty", err)
		}
	}
	if !e.Stale() {
		t.Error("a file that changes while it is read is not looked up again")
	}
	s.broken.Store(nil)
	e = w.get(t, "empty")
	s.Delete("empty")
	if err := w.Permit(bg, e); !errors.Is(err, fs.ErrNotExist) || !e.Stale() {
		t.Errorf("a removed file: got %v, stale %v", err, e.Stale())
	}
}

// While the source fails, a file that was empty is empty. One that is denied is not.
func TestUnsizedInOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := newSizeless(t)
		s.wantPermit(t, w, "empty", nil, 1)
		s.wantPermit(t, w, "full", drivers.ErrUnsized, 1)
		time.Sleep(2 * time.Hour)
		for _, tt := range []struct {
			name      string
			err, want error
		}{{"empty", syscall.EIO, nil}, {"empty", syscall.EACCES, syscall.EACCES}, {"empty", syscall.EIO, nil}, {"full", syscall.EIO, syscall.EIO}} {
			s.broken.Store(&tt.err)
			s.wantPermit(t, w, tt.name, tt.want, 1)
		}
		s.PutAt("empty", []byte("y"), w.get(t, "empty").Info().Mtime)
		w.revalidate(t, ".")
		s.wantPermit(t, w, "empty", syscall.EIO, 1)
		s.broken.Store(nil)
		s.wantPermit(t, w, "empty", drivers.ErrUnsized, 1)
		w.revalidate(t, ".")
		failed := error(syscall.EIO)
		s.broken.Store(&failed)
		s.wantPermit(t, w, "empty", syscall.EIO, 1)
	})
}

// A file whose attributes a listing did not return may have a size when they are known.
func TestUnsizedBefore(t *testing.T) {
	w, _ := newSizeless(t)
	e := makeEntry(w.Root(), drivers.Info{Name: "f", Mode: syscall.S_IFREG, Err: drivers.ErrNoAttributes, Unsized: true}, 1)
	e.set(drivers.Info{Name: "f", Mode: syscall.S_IFREG, Nlink: 1, Size: 5})
	if e.Unsized() {
		t.Error("a file of 5 bytes is Unsized")
	}
}

// Readers of one file share the request.
func TestUnsizedAtOnce(t *testing.T) {
	w, s := newSizeless(t)
	permitAtOnce(t, w, w.get(t, "empty"), &s.opens)
}

// A source that denies files denies one without a size, too.
func TestUnsizedIsDenied(t *testing.T) {
	g := &deniesUnsized{&sizeless{Mem: drivertest.NewMem(0)}}
	g.Put("empty", nil)
	w := worldOf(t, g, time.Hour)
	e := w.get(t, "empty")
	for range 2 {
		if err := w.Permit(bg, e); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("got %v, want %v", err, fs.ErrPermission)
		}
	}
	if got := g.opens.Load(); got != 1 {
		t.Errorf("%d opens, want 1", got)
	}
}

// A deniesUnsized is a sizeless that denies the open of all files.
type deniesUnsized struct{ *sizeless }

func (d *deniesUnsized) Permits(drivers.Info, bool) (permitted, known bool) { return false, false }
func (d *deniesUnsized) User() string                                       { return "user" }
func (d *deniesUnsized) Access(context.Context, string) error               { return nil }
func (d *deniesUnsized) Open(context.Context, string) (drivers.Object, error) {
	d.opens.Add(1)
	return nil, fs.ErrPermission
}

// A metadata snapshot has which files were empty.
func TestUnsizedInSnapshot(t *testing.T) {
	w, s := newSizeless(t)
	s.Put("proven", nil)
	w.list(t, ".")
	s.wantPermit(t, w, "proven", nil, 1)
	s.wantPermit(t, w, "full", drivers.ErrUnsized, 1)
	next := w.restart(t)
	s.wantPermit(t, next, "proven", nil, 0)
	s.wantPermit(t, next, "empty", nil, 1)
	s.wantPermit(t, next, "full", drivers.ErrUnsized, 1)
}
