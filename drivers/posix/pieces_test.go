package posix

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

// A read in pieces returns the same bytes as a single read, also around the end of the file.
func TestReadInPieces(t *testing.T) {
	dir := t.TempDir()
	data := make([]byte, 2<<20+77)
	rand.NewChaCha8([32]byte{1}).Read(data)
	if err := os.WriteFile(filepath.Join(dir, "f"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	d.root.Load().fsType = "fuse"
	o, err := d.Open(ctx, "f")
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if got := o.(*object).piece; got != minPiece {
		t.Fatalf("size of a piece: got %d, want %d", got, minPiece)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		off := rng.IntN(len(data) + 1000)
		p := make([]byte, rng.IntN(1<<20))
		n, err := o.ReadAt(ctx, p, int64(off))
		want := data[min(off, len(data)):min(off+len(p), len(data))]
		if !bytes.Equal(p[:n], want) || (err == io.EOF) != (n < len(p)) || err != nil && err != io.EOF {
			t.Fatalf("ReadAt of %d bytes at %d: %d, %v, or wrong bytes; want %d bytes", len(p), off, n, err, len(want))
		}
	}
}

// When many pieces hang, further reads take one thread each.
func TestPiecesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const reads = 1000
		hung := make(chan struct{})
		var inFlight atomic.Int64
		var readers sync.WaitGroup
		for range reads {
			readers.Go(func() {
				n, err := readPieces(make([]byte, 8), 0, 1, func(p []byte, off int64) (int, error) {
					inFlight.Add(1)
					<-hung
					return len(p), nil
				})
				if n != 8 || err != nil {
					t.Errorf("got %d, %v; want 8", n, err)
				}
			})
		}
		synctest.Wait()
		if got := inFlight.Load(); got <= maxHelpers || got > maxHelpers+reads {
			t.Errorf("pieces in flight: got %d, want at most %d", got, maxHelpers+reads)
		}
		close(hung)
		readers.Wait()
		if !helpers.TryAcquire(maxHelpers) {
			t.Fatal("pieces are in flight at the end")
		}
		helpers.Release(maxHelpers)
	})
}

// Where the threads are limited, a read and a listing are made by one goroutine until there are threads for
// more.
func TestHelpersNeedThreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer func(before *drivers.CallLimit) { helpers = before }(helpers)
		helpers = drivers.NewCallLimit(maxHelpers)
		var enough atomic.Bool
		LimitThreads(func(n int) int {
			if !enough.Load() {
				return 0
			}
			return n
		})
		want := func(reading, listing int64) {
			t.Helper()
			var inFlight, most atomic.Int64
			slow := func() {
				n := inFlight.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				time.Sleep(time.Second)
				inFlight.Add(-1)
			}
			if n, err := readPieces(make([]byte, 8), 0, 1, func(p []byte, _ int64) (int, error) { slow(); return len(p), nil }); n != 8 || err != nil {
				t.Errorf("read: %d, %v", n, err)
			}
			if most.Load() != reading {
				t.Errorf("%d goroutines read, want %d", most.Load(), reading)
			}
			most.Store(0)
			defer func(before func(int, string, *unix.Stat_t, int) error) { fstatat = before }(fstatat)
			fstatat = func(int, string, *unix.Stat_t, int) error { slow(); return nil }
			if _, err := statAll(t.Context(), -1, make([]entry, statAlone+8)); err != nil {
				t.Errorf("listing: %v", err)
			}
			if most.Load() != listing {
				t.Errorf("%d goroutines list, want %d", most.Load(), listing)
			}
		}
		want(1, 1)
		enough.Store(true)
		time.Sleep(2 * time.Second)
		want(1, 8) // the read makes the threads
		want(8, 8)
	})
}

func TestPieceSize(t *testing.T) {
	for _, c := range []struct {
		fsType    string
		blockSize int64
		want      int
	}{
		{"ext4", 4096, 0}, {"tmpfs", 4096, 0}, {"lustre", 4 << 20, 0}, {"gpfs", 1 << 18, 0},
		{"fuse", 4096, minPiece}, {"nfs", 1 << 20, 1 << 20}, {"nfs", 32 << 10, minPiece}, {"ceph", 4 << 20, 4 << 20},
	} {
		if got := pieceSize(c.fsType, c.blockSize); got != c.want {
			t.Errorf("%s with a block size of %d: got %d, want %d", c.fsType, c.blockSize, got, c.want)
		}
	}
}
