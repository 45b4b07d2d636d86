package fs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/tiers"
)

// Epochs are recognized also if the kernel reads the files from its page cache or in passthrough,
// because the daemon sees the opens.
func TestEpochsByOpens(t *testing.T) {
	const files, size = 40, 1000
	for _, mode := range []fs.Mode{fs.Cached, fs.Passthrough} {
		t.Run(mode.String(), func(t *testing.T) {
			s := newStack(t, stackOptions{mode: mode, quotas: []tiers.Quota{bytesQuota(1 << 30)}}, func(source string) {
				for i := range files {
					if err := os.WriteFile(filepath.Join(source, fmt.Sprint(i)), make([]byte, size), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			})
			for range 3 {
				sh(t, `cat "$1"/* >/dev/null`, s.point)
				s.settled()
			}
			got := s.handler.Stats()
			if len(got.Epochs) != 3 || got.EpochsEnded != 2 {
				t.Fatalf("got %+v, want 3 epochs, of which 2 have ended", got.Epochs)
			}
			for i, e := range got.Epochs {
				if e.Files != files || e.Mixed {
					t.Errorf("epoch %d: got %+v; want %d files, not mixed", i+1, e, files)
				}
			}
			if e := got.Epochs[1]; e.Opens[1].Bytes != files*size {
				t.Errorf("epoch 2: got %+v; want %d bytes from the tier", e, files*size)
			}
		})
	}
}
