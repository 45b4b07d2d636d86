package metadata

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// The holes of a sparse file are requested once, and those of another file never.
func TestHolesAreRequestedOnce(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.source.Put("full", make([]byte, 10_000))
		w.source.Put("sparse", make([]byte, 10_000))
		hole := drivers.Hole{Start: 4096, End: 8192}
		w.source.SetHoles("sparse", hole)
		time.Sleep(time.Second) // what has just changed is not cached
		full, sparse := w.get(t, "full"), w.get(t, "sparse")
		requests := func() int64 { return w.levels.Source().Stats().Holes }
		want := func(e *Entry, want ...drivers.Hole) {
			t.Helper()
			if got, err := w.Holes(bg, e); !slices.Equal(got, want) || err != nil {
				t.Errorf("holes of %s: got %v, %v, want %v", e.Name(), got, err, want)
			}
		}
		for range 3 {
			want(full)
			want(sparse, hole)
		}
		if got := requests(); got != 1 {
			t.Errorf("requests: got %d, want 1", got)
		}
		if full.Info().Blocks != 20 || sparse.Info().Blocks != 12 {
			t.Errorf("blocks: got %d and %d, want 20 and 12", full.Info().Blocks, sparse.Info().Blocks)
		}

		// A failing source does not end what is known, and a hanging one is left after holesTimeout.
		w.faults.Add(drivertest.Rule{Op: drivertest.OpHoles, Hang: true})
		want(sparse, hole)
		w.source.Put("other", make([]byte, 10_000))
		w.source.SetHoles("other", hole)
		other, start := w.get(t, "other"), time.Now()
		if got, err := w.Holes(bg, other); got != nil || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != holesTimeout {
			t.Errorf("while the source hangs: got %v, %v after %v", got, err, time.Since(start))
		}
		w.faults.Clear()

		// The holes of another version are not those of the entry.
		w.source.Put("other", make([]byte, 10_000))
		w.source.SetHoles("other", drivers.Hole{Start: 0, End: 8192})
		if got, err := w.Holes(bg, other); got != nil || !errors.Is(err, syscall.ESTALE) {
			t.Errorf("holes of another version: got %v, %v", got, err)
		}
	})
}

// An entry has the blocks of the source, and a device has its number.
func TestBlocks(t *testing.T) {
	const tib = 1 << 40
	for _, test := range []struct {
		info drivers.Info
		want int64
	}{
		{drivers.Info{Mode: syscall.S_IFREG, Size: 100, Blocks: 8}, 8},
		{drivers.Info{Mode: syscall.S_IFREG, Size: 100, Blocks: 0}, 0},
		{drivers.Info{Mode: syscall.S_IFREG, Size: tib, Blocks: 3}, 3},
		{drivers.Info{Mode: syscall.S_IFREG, Size: 3 * tib, Blocks: 0}, 2 * tib / 512}, // the difference is limited
		{drivers.Info{Mode: syscall.S_IFDIR, Size: 4096, Blocks: 16}, 16},
		{drivers.Info{Mode: syscall.S_IFCHR, Rdev: 0xfff00001}, 0},
	} {
		got := makeEntry(nil, test.info, 0).info()
		if got.Blocks != test.want || got.Rdev != test.info.Rdev {
			t.Errorf("%+v: got %d blocks and device %d, want %d blocks", test.info, got.Blocks, got.Rdev, test.want)
		}
	}
}
