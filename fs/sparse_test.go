package fs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/fs"
)

func init() { children["seek"] = seekAll }

// A sparse file has the blocks and the holes of the source, before and after it is placed, so that
// du, tar and cp show and keep them. Other files cost no request to the source.
func TestSparseFiles(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		s := newStack(t, stackOptions{mode: mode, quotas: oneTier}, func(source string) {
			write(t, source, "full", 3<<20+5, 1)
			write(t, source, "sparse", 8192, 1)
			write(t, source, "small", 100, 1)
			write(t, source, "empty", 0, 1)
			sh(t, `cd "$1" && dd if=full of=sparse bs=4096 seek=500 count=3 conv=notrunc && truncate -s 5M sparse && truncate -s 1G hole`, source)
		})
		names := []string{"full", "sparse", "small", "empty", "hole"}
		compare := func() {
			t.Helper()
			for _, name := range names {
				if got, want := child(t, "seek", s.in(name)), child(t, "seek", filepath.Join(s.source, name)); got != want {
					t.Errorf("%s: got\n%swant\n%s", name, got, want)
				}
			}
		}
		compare()
		const du = `cd "$1" && find . -printf '%p %b\n' | sort`
		if got, want := sh(t, du, s.point), sh(t, du, s.source); got != want {
			t.Errorf("blocks: got\n%swant\n%s", got, want)
		}
		const copies = `cd "$1" && cp sparse hole "$2" && tar -cSf "$2/tar" sparse hole && cmp "$2/sparse" sparse && du -k --threshold=-100k "$2"/* | wc -l`
		if got := sh(t, copies, s.point, t.TempDir()); got != "3\n" {
			t.Errorf("of two copies and an archive, %s take less than 100 KiB", strings.TrimSpace(got))
		}
		sh(t, `cat "$1/sparse" "$1/full" >/dev/null`, s.point)
		s.settled()
		compare()
		if got := s.levels.Source().Stats().Holes; got != 2 {
			t.Errorf("requests for holes: got %d, want 1 for each of two sparse files", got)
		}
	})
}

// While the source fails, a sparse file whose holes are unknown is all data.
func TestSparseFileWithoutSource(t *testing.T) {
	s := newStack(t, stackOptions{quotas: oneTier}, func(source string) {
		write(t, source, "f", 8192, 1)
		sh(t, `truncate -s 1M "$1/f"`, source)
	})
	s.from.Add(drivertest.Rule{Op: drivertest.OpHoles, Err: syscall.EIO})
	const want = "data 0: 0 <nil>\nhole 0: 1048576 <nil>\n"
	if got := child(t, "seek", s.in("f")); !strings.Contains(got, want) {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// seekAll prints what SEEK_DATA and SEEK_HOLE find from various offsets of a file.
func seekAll(args []string) error {
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	for _, off := range []int64{0, 1, 4096, 8191, 8192, 500 * 4096, 502*4096 + 10, 503 * 4096, size - 1, size, size + 1, -1, 1 << 62} {
		data, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
		fmt.Printf("data %d: %d %v\n", off, data, err)
		hole, err := unix.Seek(int(f.Fd()), off, unix.SEEK_HOLE)
		fmt.Printf("hole %d: %d %v\n", off, hole, err)
	}
	return nil
}
