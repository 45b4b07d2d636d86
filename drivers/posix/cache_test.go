package posix

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// resident returns how many bytes of a file are in the page cache.
func resident(t testing.TB, fd uintptr) int64 {
	t.Helper()
	var stat unix.Cachestat_t
	err := unix.Cachestat(uint(fd), &unix.CachestatRange{}, &stat, 0)
	if err == unix.ENOSYS {
		drivertest.Skipf(t, "needs cachestat(2), of Linux 6.5")
	}
	if err != nil {
		t.Fatal(err)
	}
	return int64(stat.Cache) * int64(os.Getpagesize())
}

// residentAfterWriteback returns what resident returns after the kernel has written the dirty
// pages: 0, or another number if that persists for a minute.
func residentAfterWriteback(t testing.TB, fd uintptr) int64 {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if n := resident(t, fd); n == 0 || time.Now().After(end) {
			return n
		}
	}
}

// evict drops a file from the page cache. Nothing may be writing it.
func evict(t testing.TB, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
}

// A method is how a cachePolicy leaves no pages behind.
type method struct {
	name        string
	noDontCache bool
}

var methods = []method{{"RWF_DONTCACHE", false}, {"fadvise", true}}

// openBoth opens a source and a tier. The source has one file, "file", which has size bytes
// and is not in the page cache.
func openBoth(t testing.TB, source, tier string, size int, m method) (*Dir, *Store) {
	t.Helper()
	path := filepath.Join(source, "file")
	if err := os.WriteFile(path, bytes.Repeat([]byte("milkweed"), (size+7)/8)[:size], 0o600); err != nil {
		t.Fatal(err)
	}
	evict(t, path)
	d, err := OpenDir(source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	s, err := OpenStore(config(tier))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	d.root.Load().cache.noDontCache.Store(m.noDontCache)
	s.tree.Load().root().cache.noDontCache.Store(m.noDontCache)
	return d, s
}

// copyFile copies the file of openBoth in blocks, as placement does. The caller closes both
// results.
func copyFile(t testing.TB, d *Dir, s *Store, block []byte) (drivers.Object, drivers.Writer) {
	t.Helper()
	o, err := d.Open(ctx, "file")
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Create(ctx, "file", o.Info())
	if err != nil {
		t.Fatal(err)
	}
	size := o.Info().Size
	for off := int64(0); off < size; off += int64(len(block)) {
		p := block[:min(int64(len(block)), size-off)]
		if _, err := o.ReadAt(ctx, p, off); err != nil {
			t.Fatal(err)
		}
		if _, err := w.WriteAt(p, off); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	return o, w
}

func TestCopyingLeavesThePageCacheAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("looks at the page cache")
	}
	for _, m := range methods {
		t.Run(m.name, func(t *testing.T) {
			for _, size := range []int{3000, 110_000, 8<<20 + 3000} {
				source := t.TempDir()
				d, s := openBoth(t, source, t.TempDir(), size, m)
				if s.Profile().Latency == drivers.LatencyMemory {
					drivertest.Skipf(t, "needs temporary files on a disk")
				}
				o, copied := copyFile(t, d, s, make([]byte, 1<<20))
				original, err := os.Open(filepath.Join(source, "file"))
				if err != nil {
					t.Fatal(err)
				}
				defer original.Close()
				o.Close()
				if got := residentAfterWriteback(t, original.Fd()); got != 0 {
					t.Errorf("source: %d of %d bytes are in the page cache, want 0", got, size)
				}
				if _, err := copied.ReadAt(make([]byte, size), 0); err != nil {
					t.Fatal(err)
				}
				o, err = s.Open(ctx, "file")
				if err != nil {
					t.Fatal(err)
				}
				defer o.Close()
				copied.Close()
				if got := residentAfterWriteback(t, uintptr(o.(*copyObject).fd)); got != 0 {
					t.Errorf("copy: %d of %d bytes are in the page cache, want 0", got, size)
				}
			}
		})
	}
}

// On a memory file system no pages are dropped, because they are the files. On another file
// system without RWF_DONTCACHE, the first call detects that the flag is not supported.
func TestCacheOfMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("looks at the page cache")
	}
	const size = 1 << 20
	shm := tempFolders(t)[1]
	d, s := openBoth(t, shm.make(t), shm.make(t), size, methods[0])
	for _, inMemory := range []bool{true, false} {
		d.root.Load().cache.inMemory, s.tree.Load().root().cache.inMemory = inMemory, inMemory
		o, w := copyFile(t, d, s, make([]byte, size))
		defer o.Close()
		defer w.Close()
		for _, fd := range []uintptr{uintptr(o.(*object).fd), uintptr(w.(*writer).temp.fd)} {
			if got := resident(t, fd); got != size {
				t.Errorf("inMemory %v: %d of %d bytes are in the page cache, want all", inMemory, got, size)
			}
		}
		if detected := d.root.Load().cache.noDontCache.Load(); detected == inMemory {
			t.Errorf("inMemory %v: missing RWF_DONTCACHE detected: %v", inMemory, detected)
		}
	}
}

// With RWF_DONTCACHE, pages that another process has read stay in the page cache. The test has
// several attempts, because the kernel may evict pages at any time.
func TestCopyingKeepsPagesOfOthers(t *testing.T) {
	if testing.Short() {
		t.Skip("looks at the page cache")
	}
	const size = 4 << 20
	source := t.TempDir()
	d, s := openBoth(t, source, t.TempDir(), size, methods[0])
	cached := func() int64 {
		if _, err := os.ReadFile(filepath.Join(source, "file")); err != nil {
			t.Fatal(err)
		}
		o, w := copyFile(t, d, s, make([]byte, 1<<20))
		defer o.Close()
		defer w.Close()
		if d.root.Load().cache.noDontCache.Load() || d.root.Load().cache.inMemory {
			drivertest.Skipf(t, "needs a file system with RWF_DONTCACHE")
		}
		return resident(t, uintptr(o.(*object).fd))
	}
	var got int64
	for range 10 {
		if got = cached(); got == size {
			return
		}
	}
	t.Errorf("%d of %d bytes are in the page cache, want all", got, size)
}

// Small reads use the read-ahead of the kernel.
func TestSmallReadsAreReadAhead(t *testing.T) {
	if testing.Short() {
		t.Skip("looks at the page cache")
	}
	d, _ := openBoth(t, t.TempDir(), t.TempDir(), 1<<20, methods[0])
	o, err := d.Open(ctx, "file")
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	p := make([]byte, 4096)
	if _, err := o.ReadAt(ctx, p, 0); err != nil {
		t.Fatal(err)
	}
	if got := resident(t, uintptr(o.(*object).fd)); got <= int64(len(p)) {
		t.Errorf("%d bytes are in the page cache after a read of %d bytes, want more than that", got, len(p))
	}
}

func TestReadsAndWritesAllocateNothing(t *testing.T) {
	for _, tmp := range tempFolders(t) {
		for _, m := range methods {
			d, s := openBoth(t, tmp.make(t), tmp.make(t), 1<<20, m)
			o, w := copyFile(t, d, s, make([]byte, 1<<20))
			defer o.Close()
			defer w.Close()
			inFlight, err := s.Create(ctx, "in flight", o.Info())
			if err != nil {
				t.Fatal(err)
			}
			defer inFlight.Close()
			block := make([]byte, drivers.ChecksumBlock)
			for _, size := range []int{4096, 256 << 10} {
				p := make([]byte, size)
				allocs := testing.AllocsPerRun(20, func() {
					_, err := o.ReadAt(ctx, p, 1000)
					_, err2 := w.ReadAt(p, 1000)
					_, err3 := inFlight.WriteAt(block, 0)
					_, err4 := inFlight.ReadAt(p, 1000)
					if err := errors.Join(err, err2, err3, err4); err != nil {
						t.Error(err)
					}
				})
				if allocs != 0 {
					t.Errorf("%s, %s, %d bytes: %v allocations", tmp.fsType, m.name, size, allocs)
				}
			}
		}
	}
}

// BenchmarkCopy copies a file in the blocks of placement, by each method and without any, and
// reports the part of the bytes that is in the page cache afterwards.
func BenchmarkCopy(b *testing.B) {
	size := drivertest.Size(256<<20, 4<<20)
	for _, m := range append(methods, method{name: "cached"}) {
		b.Run(m.name, func(b *testing.B) {
			source := b.TempDir()
			d, s := openBoth(b, source, b.TempDir(), size, m)
			if m.name == "cached" {
				d.root.Load().cache.inMemory, s.tree.Load().root().cache.inMemory = true, true
			}
			block := make([]byte, 1<<20)
			b.SetBytes(int64(size))
			var left int64
			for b.Loop() {
				o, copied := copyFile(b, d, s, block)
				b.StopTimer()
				left = resident(b, uintptr(o.(*object).fd)) + resident(b, uintptr(copied.(*writer).temp.fd))
				o.Close()
				copied.Close()
				evict(b, filepath.Join(source, "file"))
				b.StartTimer()
			}
			b.ReportMetric(float64(left)/float64(2*size), "resident/copied")
		})
	}
}
