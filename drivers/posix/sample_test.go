package posix

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// plant creates files below root. The content of a file is its name. A name that ends in a
// slash is that of a folder.
func plant(t testing.TB, root string, names ...string) {
	t.Helper()
	for _, name := range names {
		dir, base := filepath.Split(filepath.Join(root, name))
		if strings.HasSuffix(name, "/") {
			dir, base = filepath.Join(root, name), ""
		}
		err := os.MkdirAll(dir, 0o700)
		if err == nil && base != "" {
			err = os.WriteFile(filepath.Join(dir, base), []byte(name), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// numbered returns n names, each of format with a number.
func numbered(n int, format string) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf(format, i)
	}
	return names
}

// sample samples root. It checks that there are want files, that each was created by plant,
// and that the Info of each is that of Stat.
func sample(t *testing.T, root string, n, want int) map[string]drivers.Info {
	t.Helper()
	d := openDir(t, root)
	found, err := d.Sample(ctx, n)
	got := found.Files
	if err != nil || len(got) != want {
		t.Fatalf("sampled %d files, %v; want %d", len(got), err, want)
	}
	for name, info := range got {
		if stat, err := d.Stat(ctx, name); err != nil || info != stat || info.Size != int64(len(name)) {
			t.Errorf("%s: Sample returns %+v; Stat returns %+v, %v", name, info, stat, err)
		}
	}
	return got
}

// byFolder counts the files of a sample in each folder.
func byFolder(found map[string]drivers.Info) map[string]int {
	n := make(map[string]int)
	for name := range found {
		n[path.Dir(name)]++
	}
	return n
}

func TestSample(t *testing.T) {
	for _, tmp := range tempFolders(t) {
		t.Run(tmp.fsType, func(t *testing.T) {
			root := tmp.make(t)
			plant(t, root, "a", "b/c", "b/d", "e/")
			if err := os.Symlink("a", filepath.Join(root, "link")); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mkfifo(filepath.Join(root, "fifo"), 0o600); err != nil {
				t.Fatal(err)
			}
			got := slices.Sorted(maps.Keys(sample(t, root, 10, 3)))
			if want := []string{"a", "b/c", "b/d"}; !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
			sample(t, root, 2, 2)
			sample(t, root, 0, 0)
			sample(t, root, -1, 0)
		})
	}
}

func TestSampleFollowsNoLink(t *testing.T) {
	outside, root := t.TempDir(), t.TempDir()
	plant(t, outside, "file")
	if err := os.Symlink(outside, filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	sample(t, root, 10, 0)
}

// The tree is like that of ImageNet: two files beside many folders of images.
func TestSampleIsSpread(t *testing.T) {
	root := t.TempDir()
	plant(t, root, "LICENSE", "labels")
	for _, class := range numbered(100, "train/n%04d") {
		plant(t, root, numbered(20, class+"/%02d.jpg")...)
	}
	folders := byFolder(sample(t, root, 64, 64))
	if len(folders) < 8 {
		t.Errorf("the sample is from %v, want at least 8 folders", folders)
	}
	for folder, n := range folders {
		if n > 12 {
			t.Errorf("%d files are from %s, want at most 12", n, folder)
		}
	}
}

func TestSampleOfADeepTree(t *testing.T) {
	root := t.TempDir()
	// There are 20 folders on each of two levels. Files are only far below.
	plant(t, root, numbered(20, "%02d/x/y/z/file")...)
	plant(t, root, numbered(20, "00/%02d/")...)
	if got, err := openDir(t, root).Sample(ctx, 20); err != nil || len(got.Files) < 8 {
		t.Errorf("sampled %d files, %v; want at least 8", len(got.Files), err)
	}

	root = t.TempDir()
	plant(t, root, strings.Repeat("deep/", 40)+"file")
	sample(t, root, 20, 1)
}

// Only the beginning of a large folder is read. Listing all of it would take too long for a
// dataset in a single folder.
func TestSampleOfALargeFolder(t *testing.T) {
	root := tempFolders(t)[1].make(t)
	for _, name := range numbered(100_000, "file-%05d") {
		if err := unix.Mknod(filepath.Join(root, name), unix.S_IFREG|0o600, 0); err != nil {
			t.Fatal(err)
		}
	}
	d := openDir(t, root)
	if got, err := d.Sample(ctx, 64); err != nil || len(got.Files) != 64 {
		t.Errorf("sampled %d files, %v; want 64", len(got.Files), err)
	}
	fd, err := d.openRead(d.root.Load(), ".", unix.O_DIRECTORY)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	entries, err := readStart(fd)
	if err != nil || len(entries) < 64 || len(entries) > 500 {
		t.Errorf("read %d names, %v; want 64 to 500", len(entries), err)
	}
}

// A signal makes getdents64(2) return after a part of the entries. All of the beginning of a folder
// is read nevertheless.
func TestSampleAfterSignals(t *testing.T) {
	defer func() { readDirent = unix.ReadDirent }()
	readDirent = func(fd int, buf []byte) (int, error) { return unix.ReadDirent(fd, buf[:32]) } // one entry
	root := t.TempDir()
	plant(t, root, numbered(20, "%02d/file")...)
	sample(t, root, 64, 20)
}

// If the file system does not provide the types of entries, a limited number is found by stats.
func TestSampleResolvesTypes(t *testing.T) {
	root := t.TempDir()
	plant(t, root, "folder/")
	plant(t, root, numbered(100, "%03d")...)
	d := openDir(t, root)
	fd, err := d.openRead(d.root.Load(), ".", unix.O_DIRECTORY)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	entries := []entry{{"folder", unix.DT_UNKNOWN}, {"000", unix.DT_REG}, {"missing", unix.DT_UNKNOWN}}
	for _, name := range numbered(100, "%03d") {
		entries = append(entries, entry{name, unix.DT_UNKNOWN})
	}
	resolveTypes(ctx, fd, entries)
	got := make(map[byte]int)
	for _, e := range entries {
		got[e.typ]++
	}
	if entries[0].typ != unix.DT_DIR || got[unix.DT_REG] != 1+sampleStats-2 {
		t.Errorf("got %d regular files and %d folders, want %d and 1", got[unix.DT_REG], got[unix.DT_DIR], 1+sampleStats-2)
	}
}

func TestSampleOmitsUnreadableFolders(t *testing.T) {
	root := t.TempDir()
	plant(t, root, "a/file", "b/file", "c/file")
	d := openDir(t, root)
	if err := os.RemoveAll(filepath.Join(root, "a")); err != nil {
		t.Fatal(err)
	}
	listings, err := d.listStarts(ctx, []string{"a", "b", "c"})
	if len(listings[0].files) != 0 || len(listings[1].files) != 1 || len(listings[2].files) != 1 {
		t.Errorf("listed %v, %v; want nothing of a, one file of b and one of c", listings, err)
	}
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Sample(ctx, 10); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Sample of a removed folder: %v, %v; want fs.ErrNotExist", got, err)
	}
}

func TestSampleWithoutPermission(t *testing.T) {
	root := t.TempDir()
	plant(t, root, "a/file", "b/file")
	d := openDir(t, root)
	for _, test := range []struct {
		root, a, b fs.FileMode
		want       string
	}{
		{0o755, 0o711, 0o755, "[b/file]"},
		{0o755, 0o711, 0o711, "[]"},
		{0o711, 0o755, 0o755, "sample .: permission denied"},
	} {
		chmod(t, map[string]fs.FileMode{root: test.root, root + "/a": test.a, root + "/b": test.b})
		var found drivers.Sample
		var err error
		asNobody(t, func() { found, err = d.Sample(ctx, 10) })
		got := fmt.Sprint(slices.Sorted(maps.Keys(found.Files)))
		if err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("folders with modes %o, %o and %o: %s, want %s", test.root, test.a, test.b, got, test.want)
		}
	}
}

// asNobody calls f with the effective user ID of nobody.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	drivertest.Need(t, "root")
	if err := syscall.Setresuid(-1, 65534, -1); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setresuid(-1, 0, -1)
	f()
}

func chmod(t *testing.T, modes map[string]fs.FileMode) {
	t.Helper()
	for name, mode := range modes {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSampleEndsWithTheContext(t *testing.T) {
	wantNoLeak(t)
	root := t.TempDir()
	plant(t, root, numbered(20, "%d/file")...)
	done, cancel := context.WithCancel(ctx)
	cancel()
	got, err := openDir(t, root).Sample(done, 10)
	if len(got.Files) != 0 || err != nil {
		t.Errorf("got %v, %v; want no files and no error", got, err)
	}
}
