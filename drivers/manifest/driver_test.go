package manifest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/posix"
)

var ctx = context.Background()

// write returns a manifest of what a driver has now. It omits files that disappear, and reads those that change
// again.
func write(t *testing.T, d drivers.Driver, dir string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b)
	var walk func(name string)
	walk = func(name string) {
		infos, err := d.ReadDir(ctx, path.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		for _, info := range infos {
			e := Entry{Name: path.Join(name, info.Name), Mode: info.Mode, Mtime: info.Mtime}
			at := path.Join(dir, e.Name)
			switch {
			case info.IsDir():
				walk(e.Name)
			case info.IsSymlink():
				if e.Target, err = d.(drivers.Readlinker).Readlink(ctx, at); err != nil {
					t.Fatal(err)
				}
			case info.IsRegular():
				text, err := read(d, at)
				for errors.Is(err, drivers.ErrChanged) {
					text, err = read(d, at)
				}
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err != nil {
					t.Error(err)
				}
				e.Size, e.SHA256 = int64(len(text)), sha256.Sum256(text)
			}
			if err := w.Write(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	walk(".")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// read reads a file of a driver.
func read(d drivers.Driver, name string) ([]byte, error) {
	o, err := d.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	return io.ReadAll(io.NewSectionReader(readerAt{ctx, o}, 0, o.Info().Size))
}

// content is read, without an error.
func content(t *testing.T, d drivers.Driver, name string) []byte {
	t.Helper()
	b, err := read(d, name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func load(t *testing.T, text []byte) *Manifest {
	t.Helper()
	m, err := Load(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A rebuilt is a Driver whose manifest is always new.
type rebuilt struct {
	t     *testing.T
	inner drivers.Driver
	mu    sync.Mutex
	now   *Driver
}

func (r *rebuilt) driver() *Driver {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := load(r.t, write(r.t, r.inner, "."))
	if r.now == nil || r.now.fixed.Load().Sum != m.Sum {
		r.now = New(r.inner, m)
	}
	return r.now
}

func (r *rebuilt) Open(ctx context.Context, name string) (drivers.Object, error) {
	return r.driver().Open(ctx, name)
}

func (r *rebuilt) ReadDir(ctx context.Context, name string) ([]drivers.Info, error) {
	return r.driver().ReadDir(ctx, name)
}

func (r *rebuilt) Stat(ctx context.Context, name string) (drivers.Info, error) {
	return r.driver().Stat(ctx, name)
}

func (r *rebuilt) Readlink(ctx context.Context, name string) (string, error) {
	return r.driver().Readlink(ctx, name)
}

func (r *rebuilt) Statfs(ctx context.Context) (drivers.Statfs, error) { return r.driver().Statfs(ctx) }

func (r *rebuilt) Sample(ctx context.Context, n int) (drivers.Sample, error) {
	return r.driver().Sample(ctx, n)
}

func TestContract(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Subject {
		root := t.TempDir()
		dir, err := posix.OpenDir(root)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dir.Close() })
		s := drivertest.Folder(t, &rebuilt{t: t, inner: dir}, root)
		s.Setxattr = nil
		return s
	})
}

// requests returns the number of requests that a driver has got.
func requests(f *drivertest.Faults) (n int64) {
	for _, op := range []drivertest.Op{drivertest.OpOpen, drivertest.OpReadDir, drivertest.OpStat, drivertest.OpReadlink, drivertest.OpRead} {
		n += f.Count(op)
	}
	return n
}

// A sample has the links of the manifest.
func TestSampleHasLinks(t *testing.T) {
	d := New(drivertest.NewMem(0), load(t, []byte("#mtree\n. type=dir\nd type=dir\n    l type=link link=../f\n..\n")))
	sample, err := d.Sample(ctx, 5)
	if err != nil || len(sample.Files) != 0 || len(sample.Links) != 1 || sample.Links[0] != "d/l" {
		t.Errorf("got %+v, %v", sample, err)
	}
	if target, err := d.Readlink(ctx, "d/l"); err != nil || target != "../f" {
		t.Errorf("the target is %q, %v", target, err)
	}
}

// Names and attributes come from the manifest, and the source gets no request for them.
func TestNamesComeFromTheManifest(t *testing.T) {
	m := drivertest.NewMem(0)
	m.Put("d/sub/f", []byte("content"))
	counted := drivertest.NewFaults(m)
	d := New(counted, load(t, write(t, m, ".")))
	m.Put("d/later", nil)
	before := requests(counted)
	infos, err := d.ReadDir(ctx, "d")
	if err != nil || len(infos) != 1 || infos[0].Name != "sub" || !infos[0].IsDir() {
		t.Errorf("ReadDir: %v, %v", infos, err)
	}
	if info, err := d.Stat(ctx, "d/sub/f"); err != nil || info.Size != 7 || !info.IsRegular() {
		t.Errorf("Stat: %+v, %v", info, err)
	}
	for _, name := range []string{"d/later", "d/sub/f/g"} {
		if _, err := d.Stat(ctx, name); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			t.Errorf("Stat(%s): %v", name, err)
		}
	}
	if sample, err := d.Sample(ctx, 5); err != nil || len(sample.Files) != 1 {
		t.Errorf("Sample: %v, %v", sample, err)
	}
	if got := requests(counted); got != before {
		t.Errorf("%d requests", got-before)
	}
	if !drivers.ProfileOf(d).NamesInMemory {
		t.Error("the profile does not say so")
	}
}

// A file that is not the one in the manifest is not opened.
func TestOtherContent(t *testing.T) {
	m := drivertest.NewMem(0)
	for _, name := range []string{"removed", "shorter", "same", "rejected", "directory"} {
		m.Put(name, []byte("content"))
	}
	d := New(m, load(t, write(t, m, ".")))
	m.Remove(ctx, "removed")
	m.Put("shorter", []byte("short"))
	m.Remove(ctx, "directory")
	m.Put("directory/f", nil)
	for name, want := range map[string]string{
		"directory": "directory: it is no file at the source",
		"removed":   "removed: the source does not have it",
		"shorter":   "shorter: it has 5 bytes at the source, and 7 in the manifest",
	} {
		if _, err := d.Open(ctx, name); !errors.Is(err, syscall.EIO) || !errors.Is(err, drivers.ErrMismatch) || !strings.Contains(err.Error(), want) {
			t.Errorf("Open(%s): %v", name, err)
		}
	}
	if got := content(t, d, "same"); string(got) != "content" {
		t.Errorf("got %q", got)
	}

	info, err := d.Stat(ctx, "rejected")
	if err != nil {
		t.Fatal(err)
	}
	content(t, d, "rejected")
	d.Reject("rejected", info)
	if _, err := d.Open(ctx, "rejected"); !errors.Is(err, drivers.ErrMismatch) {
		t.Errorf("Open of a rejected file: %v", err)
	}
	m.Put("rejected", []byte("CONTENT"))
	content(t, d, "rejected") // is another version now
	d.Reject("rejected", info)
	content(t, d, "rejected") // because another version was rejected
}

// If the source gets another file of a name, its version is another one. The digest remains.
func TestVersions(t *testing.T) {
	m := drivertest.NewMem(0)
	m.Put("f", []byte("content"))
	m.Put("copy", []byte("content"))
	m.Put("other", []byte("CONTENT"))
	d := New(m, load(t, write(t, m, ".")))
	stat := func(name string) drivers.Info {
		t.Helper()
		i, err := d.Stat(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	first := stat("f")
	if sum, ok := d.Digest(first); !ok || sum != sha256.Sum256([]byte("content")) {
		t.Errorf("digest %x, %v", sum, ok)
	}
	same := func(a, b drivers.Info) bool {
		return d.HaveSameContent(t.Context(), [2]string{}, [2]drivers.Info{a, b})
	}
	if !same(first, stat("copy")) || same(first, stat("other")) || same(stat("."), stat(".")) {
		t.Error("HaveSameContent is wrong")
	}
	content(t, d, "f")
	if got := stat("f"); !got.SameVersion(first) {
		t.Errorf("after the first open: %+v, before %+v", got, first)
	}
	m.Put("f", []byte("replace"))
	o, err := d.Open(ctx, "f")
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if o.Info().SameVersion(first) || o.Info().Mtime.Equal(first.Mtime) {
		t.Errorf("the version of another file is %+v, before %+v", o.Info(), first)
	}
	if got := stat("f"); !got.SameVersion(o.Info()) || !same(got, first) {
		t.Errorf("Stat returns %+v, Info %+v", got, o.Info())
	}
}

// Each generation has the names of its own manifest, which is read once, when it is used.
func TestGenerations(t *testing.T) {
	m := drivertest.NewMem(0)
	m.Put("v1/d/f", []byte("one"))
	m.Put("v2/d/f", []byte("two"))
	m.Put("v3/f", nil)
	m.Put("v1/list", write(t, m, "v1"))
	m.Put("v2/list", write(t, m, "v2"))
	m.Put("v1/extra", nil)
	counted := drivertest.NewFaults(m)
	d := NewGenerations(counted, "list")
	if infos, err := d.ReadDir(ctx, "."); err != nil || len(infos) != 3 {
		t.Errorf("ReadDir: %v, %v", infos, err)
	}
	before := requests(counted)
	if info, err := d.Stat(ctx, "v2"); err != nil || !info.IsDir() {
		t.Errorf("Stat: %v, %v", info, err)
	}
	if got := requests(counted) - before; got != 1 {
		t.Errorf("%d requests for the attributes of a generation", got)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if infos, err := d.ReadDir(ctx, "v1"); err != nil || len(infos) != 1 {
				t.Errorf("ReadDir: %v, %v", infos, err)
			}
		})
	}
	wg.Wait()
	if got := content(t, d, "v1/d/f"); string(got) != "one" {
		t.Errorf("got %q", got)
	}
	if got := content(t, d, "v2/d/f"); string(got) != "two" {
		t.Errorf("got %q", got)
	}
	for name, want := range map[string]error{"v3/f": ErrNone, "v4/f": fs.ErrNotExist} {
		if _, err := d.Stat(ctx, name); !errors.Is(err, want) || errors.Is(err, syscall.ENOENT) != (want == fs.ErrNotExist) {
			t.Errorf("Stat(%s) without a manifest: %v, want %v", name, err, want)
		}
	}
	m.Put("v3/list", write(t, m, "v3"))
	if _, err := d.Stat(ctx, "v3/f"); err != nil {
		t.Errorf("after the manifest was written: %v", err)
	}
	if _, err := d.Generation(ctx, "v3"); err != nil {
		t.Error(err)
	}
	a, _ := d.Stat(ctx, "v1/d/f")
	d.Reject("v1/d/f", a)
	if _, err := d.Open(ctx, "v1/d/f"); !errors.Is(err, syscall.EIO) {
		t.Errorf("Open of a rejected file: %v", err)
	}
}
