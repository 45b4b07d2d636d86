package posix

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

// resident returns how many bytes of a file are in the page cache.
func resident(t testing.TB, fd uintptr) int64 {
	t.Helper()
	var stat unix.Cachestat_t
	err := unix.Cachestat(uint(fd), &unix.CachestatRange{}, &stat, 0)
	if err == unix.ENOSYS {
		t.Skip("needs cachestat(2), of Linux 6.5")
	}
	if err != nil {
		t.Fatal(err)
	}
	return int64(stat.Cache) * int64(os.Getpagesize())
}

// residentSoon is resident once the kernel had time to write what it must.
func residentSoon(t testing.TB, fd uintptr) int64 {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if n := resident(t, fd); n == 0 || time.Now().After(end) {
			return n
		}
	}
}

// evict takes a file that nobody writes out of the page cache.
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

// A way is how a cache leaves nothing behind.
type way struct {
	name      string
	unflagged bool
}

var ways = []way{{"RWF_DONTCACHE", false}, {"fadvise", true}}

// openBoth opens a source of one file, which has size bytes and is not in the
// page cache, and a tier.
func openBoth(t testing.TB, source, tier string, size int, w way) (*Dir, *Store) {
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
	d.cache.unflagged.Store(w.unflagged)
	s.tree.Load().files.cache.unflagged.Store(w.unflagged)
	return d, s
}

// copyFile copies the file of openBoth in blocks, as placement does, and
// returns both ends, which the caller closes.
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
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			for _, size := range []int{3000, 110_000, 8<<20 + 3000} {
				source := t.TempDir()
				d, s := openBoth(t, source, t.TempDir(), size, w)
				if s.Profile().Latency == drivers.LatencyMemory {
					t.Skip("needs temporary files on a disk")
				}
				o, copied := copyFile(t, d, s, make([]byte, 1<<20))
				path, err := os.Open(filepath.Join(source, "file"))
				if err != nil {
					t.Fatal(err)
				}
				defer path.Close()
				o.Close()
				if got := residentSoon(t, path.Fd()); got != 0 {
					t.Errorf("%d bytes of a source of %d are in the page cache", got, size)
				}
				if d.cache.unflagged.Load() { // only what is on the disk can be dropped
					if err := s.Sync(); err != nil {
						t.Fatal(err)
					}
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
				if got := residentSoon(t, uintptr(o.(*object).fd)); got != 0 {
					t.Errorf("%d bytes of a copy of %d are in the page cache", got, size)
				}
			}
		})
	}
}

// A cache learns that a file system does not know RWF_DONTCACHE, and memory is
// not asked: its pages are the files.
func TestCacheOfMemory(t *testing.T) {
	const size = 1 << 20
	shm := folders(t)[1]
	d, s := openBoth(t, shm.make(t), shm.make(t), size, ways[0])
	for _, memory := range []bool{true, false} {
		d.cache.memory, s.tree.Load().files.cache.memory = memory, memory
		o, w := copyFile(t, d, s, make([]byte, size))
		defer o.Close()
		defer w.Close()
		for _, fd := range []uintptr{uintptr(o.(*object).fd), uintptr(w.(*writer).part.fd)} {
			if got := resident(t, fd); got != size {
				t.Errorf("%d bytes of %d are left", got, size)
			}
		}
		if learnt := d.cache.unflagged.Load(); learnt == memory {
			t.Errorf("memory is %v, and was asked: %v", memory, learnt)
		}
	}
}

// What somebody else has read stays, where the file system can tell. The kernel
// may take pages at any time, and has several attempts.
func TestCopyingKeepsWhatOthersRead(t *testing.T) {
	const size = 4 << 20
	source := t.TempDir()
	d, s := openBoth(t, source, t.TempDir(), size, ways[0])
	left := func() int64 {
		if _, err := os.ReadFile(filepath.Join(source, "file")); err != nil {
			t.Fatal(err)
		}
		o, w := copyFile(t, d, s, make([]byte, 1<<20))
		defer o.Close()
		defer w.Close()
		if d.cache.unflagged.Load() || d.cache.memory {
			t.Skip("needs a file system with RWF_DONTCACHE")
		}
		return resident(t, uintptr(o.(*object).fd))
	}
	var got int64
	for range 10 {
		if got = left(); got == size {
			return
		}
	}
	t.Errorf("%d bytes of %d are left", got, size)
}

// Reads that are smaller than what the kernel reads ahead profit from it.
func TestSmallReadsAreReadAhead(t *testing.T) {
	d, _ := openBoth(t, t.TempDir(), t.TempDir(), 1<<20, ways[0])
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
		t.Errorf("%d bytes are in the page cache after a read of %d", got, len(p))
	}
}

func TestReadsAndWritesAllocateNothing(t *testing.T) {
	for _, tmp := range folders(t) {
		for _, way := range ways {
			d, s := openBoth(t, tmp.make(t), tmp.make(t), 1<<20, way)
			o, w := copyFile(t, d, s, make([]byte, 1<<20))
			defer o.Close()
			defer w.Close()
			for _, size := range []int{4096, 256 << 10} {
				p := make([]byte, size)
				allocs := testing.AllocsPerRun(20, func() {
					_, err := o.ReadAt(ctx, p, 1000)
					_, err2 := w.ReadAt(p, 1000)
					_, err3 := w.WriteAt(p, 1000)
					if err != nil || err2 != nil || err3 != nil {
						t.Error(err, err2, err3)
					}
				})
				if allocs != 0 {
					t.Errorf("%s, %s, %d bytes: %v allocations", tmp.fsType, way.name, size, allocs)
				}
			}
		}
	}
}

// BenchmarkCopy copies a file in the blocks of placement, in each way and with
// the page cache left as it falls, and tells what it left there.
func BenchmarkCopy(b *testing.B) {
	const size = 256 << 20
	for _, w := range append(ways, way{name: "cached"}) {
		b.Run(w.name, func(b *testing.B) {
			source := b.TempDir()
			d, s := openBoth(b, source, b.TempDir(), size, w)
			if w.name == "cached" {
				d.cache.memory, s.tree.Load().files.cache.memory = true, true
			}
			block := make([]byte, 1<<20)
			b.SetBytes(size)
			var left int64
			for b.Loop() {
				o, copied := copyFile(b, d, s, block)
				b.StopTimer()
				left = resident(b, uintptr(o.(*object).fd)) + resident(b, uintptr(copied.(*writer).part.fd))
				o.Close()
				copied.Close()
				evict(b, filepath.Join(source, "file"))
				b.StartTimer()
			}
			b.ReportMetric(float64(left)/(2*size), "resident/copied")
		})
	}
}
