package fs_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/placement"
	"github.com/milkweedfs/milkweed/tiers"
)

// scrub verifies all copies of a stack.
func (s *stack) scrub() (last placement.ScrubReport) {
	s.t.Helper()
	s.check(s.handler.Scrub(context.Background(), placement.ScrubOptions{Path: "."}, func(r placement.ScrubReport) { last = r }))
	s.check(s.names.WaitNotified(context.Background())) // the kernel has dropped its pages of corrupt copies
	return last
}

// A scrub finds every bit that flips while the dataset is mounted, after the copies were
// verified and read, and reports no other copy. The next epoch is right, although the kernel has
// cached pages of the corrupt copies.
func TestScrub(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		fill, _ := mixed(t)
		s := newStack(t, stackOptions{mode: mode, quotas: []tiers.Quota{bytesQuota(1 << 30)}}, fill)
		for epoch := range 2 {
			s.epoch(1 + epoch)
			s.settled()
		}
		copies := s.levels.Tier(1).Stats().Files
		if got := s.scrub(); !got.Clean() || got.CopiesRight != copies {
			t.Fatalf("%d copies: %+v", copies, got)
		}
		flipped := int64(flipBits(t, s.tierPath(1)))
		s.forgetPages()
		readAll(t, s.point) // the kernel may cache what was wrong since the last check
		got := s.scrub()
		if got.CopiesCorrupt+got.CopiesRight != flipped || got.Refetched != got.CopiesCorrupt {
			t.Errorf("%d bits flipped: %+v", flipped, got)
		}
		if got.CopiesRight > 0 && mode != fs.Passthrough { // there, a probe may find some before
			t.Errorf("%d corrupt copies were not found", got.CopiesRight)
		}
		s.epoch(3)
		s.settled()
		if got := s.levels.Tier(1).Stats(); got.Corrupt != flipped || got.Files != copies {
			t.Errorf("%d corrupt copies, then %d copies; want %d, then %d", got.Corrupt, got.Files, flipped, copies)
		}
		if got := s.scrub(); !got.Clean() || got.CopiesRight != copies {
			t.Errorf("after the epoch: %+v", got)
		}
	})
}

// readAll reads all files below a directory, from another process, and does not compare them.
func readAll(t *testing.T, dir string) {
	t.Helper()
	sh(t, `find "$1" -type f -exec cat {} + >/dev/null`, dir)
}

// A program that has a file open while a scrub removes its copy reads the right bytes from then
// on, except in passthrough, where the kernel keeps the open file.
func TestScrubOpenFile(t *testing.T) {
	for _, mode := range []fs.Mode{fs.Cached, fs.Stateless} {
		t.Run(mode.String(), func(t *testing.T) {
			s := newStack(t, stackOptions{mode: mode, quotas: []tiers.Quota{bytesQuota(1 << 30)}}, func(source string) {
				write(t, source, "f", 3<<20, 1)
			})
			s.epoch(1)
			s.settled()
			h := hold(t, filepath.Join(s.point, "f"))
			data, err := os.ReadFile(filepath.Join(s.source, "f"))
			s.check(err)
			if got := h.read(0, 3<<20); got != hash(data) {
				t.Fatalf("before the flip: got %s", got)
			}
			flipBits(t, s.tierPath(1))
			if got := s.scrub(); got.CopiesCorrupt != 1 {
				t.Errorf("got %+v", got)
			}
			if got := h.read(0, 3<<20); got != hash(data) {
				t.Errorf("after the scrub: got %s", got)
			}
		})
	}
}

// Scrubs report nothing while a dataset is read that does not fit into the first tier, and
// copies are made.
func TestScrubWhileFilling(t *testing.T) {
	t.Parallel()
	fill, _ := mixed(t)
	s := newStack(t, stackOptions{mode: fs.Cached, quotas: []tiers.Quota{bytesQuota(4 << 20), bytesQuota(1 << 30)}}, fill)
	var epochs sync.WaitGroup
	done := make(chan struct{})
	epochs.Go(func() {
		defer close(done)
		s.epoch(1)
		s.epoch(2)
	})
	defer epochs.Wait()
	for n := 0; ; n++ {
		if got := s.scrub(); !got.Clean() {
			t.Errorf("a false report: %+v", got)
		}
		select {
		case <-done:
			if n > 0 {
				return
			}
		default:
		}
	}
}
