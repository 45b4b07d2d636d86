package fs_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/tiers"
)

// flipBits inverts one bit in each copy of a tier and keeps the modification times.
func flipBits(t *testing.T, tier string) (copies int) {
	t.Helper()
	err := filepath.Walk(filepath.Join(tier, "data", "files"), func(path string, info os.FileInfo, err error) error {
		if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
			return err
		}
		copies++
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		off := info.Size() * int64(copies%7) / 7
		var b [1]byte
		if _, err := f.ReadAt(b[:], off); err != nil {
			return err
		}
		b[0] ^= 1 << (copies % 8)
		if _, err := f.WriteAt(b[:], off); err != nil {
			return err
		}
		return os.Chtimes(path, time.Time{}, info.ModTime())
	})
	if err != nil || copies == 0 {
		t.Fatalf("%d copies, %v", copies, err)
	}
	return copies
}

// Copies in which a bit has flipped while nothing was mounted are never served: they are
// removed, counted and copied again. So are files that another user has put into the tier.
func TestFlippedBits(t *testing.T) {
	if testing.Short() {
		t.Skip("restarts for each kind of damage")
	}
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		fill, _ := mixed(t)
		s := newStack(t, stackOptions{mode: mode, quotas: []tiers.Quota{bytesQuota(1 << 30)}}, fill)
		s.epoch(1)
		s.settled()
		copies := s.levels.Tier(1).Stats().Files
		s.end()
		flipped := flipBits(t, s.tierPath(1))
		s.start()
		for epoch := range 3 {
			s.epoch(2 + epoch)
			s.settled()
		}
		if got := s.levels.Tier(1).Stats(); got.Corrupt != int64(flipped) || got.Files != copies {
			t.Errorf("%d corrupt copies of %d, then %d copies; want %d, then %d", got.Corrupt, copies, got.Files, flipped, copies)
		}
		s.restart()
		s.epoch(9)
		if got := s.from.Bytes(drivertest.OpRead); got != 0 {
			t.Errorf("source bytes after a restart with good copies: got %d, want 0", got)
		}
	})
}

// A file of another user in a tier is not served, and it is not removed.
func TestPlantedFile(t *testing.T) {
	t.Parallel()
	drivertest.Need(t, "root")
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		s := newStack(t, stackOptions{mode: mode, quotas: []tiers.Quota{bytesQuota(1 << 30)}}, func(source string) {
			write(t, source, "f", 5000, 1)
		})
		s.epoch(1)
		s.settled()
		s.end()
		planted := filepath.Join(s.tierPath(1), "data", "files", "f")
		sh(t, `printf x | dd of="$1" conv=notrunc status=none && touch -r "$2" "$1" && chown 12345 "$1"`, planted, filepath.Join(s.source, "f"))
		s.start()
		s.epoch(2)
		s.settled()
		s.epoch(3)
		if got, err := os.ReadFile(planted); err != nil || !strings.HasPrefix(string(got), "x") {
			t.Errorf("the file of the other user is gone: %v", err)
		}
	})
}

// After a restart, a large copy is read through the daemon until it was compared with its
// checksums, and then by the kernel.
func TestLargeCopyIsCheckedInBackground(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackOptions{mode: fs.Passthrough, quotas: []tiers.Quota{bytesQuota(1 << 30)}}, func(source string) {
		write(t, source, "large", 9<<20, 1)
	})
	s.epoch(1)
	s.settled()
	s.restart()
	passthrough := func() int64 { return s.handler.Stats().Passthrough[1].Files }
	s.epoch(2)
	s.eventually("the kernel reads the copy", func() bool {
		before := passthrough()
		s.forgetPages()
		s.epoch(3)
		return passthrough() > before
	})
	if got := s.from.Bytes(drivertest.OpRead); got != 0 {
		t.Errorf("source bytes after the restart: got %d, want 0", got)
	}
}
