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
)

// plant makes files below root, each as large as its name is long. A name that
// ends in a slash is a folder.
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

// number returns n names made from format.
func number(n int, format string) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf(format, i)
	}
	return names
}

// sample samples root, and checks what is the same for all trees: there are
// want files, each is described as Stat does, and was made by plant.
func sample(t *testing.T, root string, n, want int) map[string]drivers.Info {
	t.Helper()
	d := openDir(t, root)
	got, err := d.Sample(ctx, n)
	if err != nil || len(got) != want {
		t.Fatalf("%d files, %v; want %d", len(got), err, want)
	}
	for name, info := range got {
		if stat, err := d.Stat(ctx, name); err != nil || info != stat || info.Size != int64(len(name)) {
			t.Errorf("%s is described as %+v, and by Stat as %+v, %v", name, info, stat, err)
		}
	}
	return got
}

// byFolder counts the files of a sample.
func byFolder(found map[string]drivers.Info) map[string]int {
	n := make(map[string]int)
	for name := range found {
		n[path.Dir(name)]++
	}
	return n
}

func TestSample(t *testing.T) {
	for _, tmp := range folders(t) {
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

// A tree like ImageNet's: two files beside a thousand folders of images.
func TestSampleIsSpread(t *testing.T) {
	root := t.TempDir()
	plant(t, root, "LICENSE", "labels")
	for _, class := range number(100, "train/n%04d") {
		plant(t, root, number(20, class+"/%02d.jpg")...)
	}
	folders := byFolder(sample(t, root, 64, 64))
	if len(folders) < 8 {
		t.Errorf("the sample is of these folders alone: %v", folders)
	}
	for folder, n := range folders {
		if n > 12 {
			t.Errorf("%d files are of %s", n, folder)
		}
	}
}

func TestSampleOfADeepTree(t *testing.T) {
	root := t.TempDir()
	// 20 folders on each of two levels, and files in one place far below.
	plant(t, root, number(20, "%02d/x/y/z/file")...)
	plant(t, root, number(20, "00/%02d/")...)
	if got, err := openDir(t, root).Sample(ctx, 20); err != nil || len(got) < 8 {
		t.Errorf("got %d files, %v", len(got), err)
	}

	root = t.TempDir()
	plant(t, root, strings.Repeat("deep/", 40)+"file")
	sample(t, root, 20, 1)
}

// Of a large folder only the start is read: with the cost of listing all of it,
// a dataset in one folder would not be sampled in time.
func TestSampleOfALargeFolder(t *testing.T) {
	root := folders(t)[1].make(t)
	for _, name := range number(100_000, "file-%05d") {
		if err := unix.Mknod(filepath.Join(root, name), unix.S_IFREG|0o600, 0); err != nil {
			t.Fatal(err)
		}
	}
	d := openDir(t, root)
	if got, err := d.Sample(ctx, 64); err != nil || len(got) != 64 {
		t.Errorf("got %d files, %v", len(got), err)
	}
	fd, err := d.openRead(".", unix.O_DIRECTORY)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	elems, err := readStart(fd)
	if err != nil || len(elems) < 64 || len(elems) > 500 {
		t.Errorf("read %d names, %v", len(elems), err)
	}
}

// A file system that does not tell the kinds of names is asked for some.
func TestSampleAsksForKinds(t *testing.T) {
	root := t.TempDir()
	plant(t, root, "folder/")
	plant(t, root, number(100, "%03d")...)
	d := openDir(t, root)
	fd, err := d.openRead(".", unix.O_DIRECTORY)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	elems := []element{{"folder", unix.DT_UNKNOWN}, {"000", unix.DT_REG}, {"missing", unix.DT_UNKNOWN}}
	for _, name := range number(100, "%03d") {
		elems = append(elems, element{name, unix.DT_UNKNOWN})
	}
	resolve(ctx, fd, elems)
	got := make(map[byte]int)
	for _, e := range elems {
		got[e.kind]++
	}
	if elems[0].kind != unix.DT_DIR || got[unix.DT_REG] != 1+sampleUnknown-2 {
		t.Errorf("%d regular files and %d folders of %d elements that were asked", got[unix.DT_REG], got[unix.DT_DIR], sampleUnknown)
	}
}

func TestSampleLeavesOutWhatCannotBeRead(t *testing.T) {
	root := t.TempDir()
	plant(t, root, "a/file", "b/file", "c/file")
	d := openDir(t, root)
	if err := os.RemoveAll(filepath.Join(root, "a")); err != nil {
		t.Fatal(err)
	}
	listings, err := d.listSome(ctx, []string{"a", "b", "c"})
	if len(listings[0].files) != 0 || len(listings[1].files) != 1 || len(listings[2].files) != 1 {
		t.Errorf("listed %v, %v", listings, err)
	}
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Sample(ctx, 10); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a folder that was removed: %v, %v", got, err)
	}
}

func TestSampleOfAFolderThatIsNotReadable(t *testing.T) {
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
		var found map[string]drivers.Info
		var err error
		asNobody(t, func() { found, err = d.Sample(ctx, 10) })
		got := fmt.Sprint(slices.Sorted(maps.Keys(found)))
		if err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("of folders with modes %o, %o and %o: %s, want %s", test.root, test.a, test.b, got, test.want)
		}
	}
}

// asNobody calls f without the rights of root over files of others.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, who has files that others may not read")
	}
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
	plant(t, root, number(20, "%d/file")...)
	done, cancel := context.WithCancel(ctx)
	cancel()
	got, err := openDir(t, root).Sample(done, 10)
	if len(got) != 0 || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
}
