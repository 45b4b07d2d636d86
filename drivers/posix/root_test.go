package posix

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// names returns the names in the root of d, after a Stat of the root.
func namesAfterStat(t *testing.T, d *Dir) string {
	t.Helper()
	if _, err := d.Stat(context.Background(), "."); err != nil {
		return err.Error()
	}
	infos, err := d.ReadDir(context.Background(), ".")
	if err != nil {
		return err.Error()
	}
	var names []string
	for _, i := range infos {
		names = append(names, i.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// A Dir reads the folder that its path names at the last Stat of the root: after a rename, a mount, an
// unmount, and with a symbolic link. Open files stay readable. The descriptors of old folders are
// closed.
func TestRootOfAPath(t *testing.T) {
	for _, remote := range []bool{false, true} {
		t.Run(map[bool]string{false: "local", true: "remote"}[remote], func(t *testing.T) {
			wantNoLeak(t)
			dir := t.TempDir()
			data := filepath.Join(dir, "data")
			for _, name := range []string{"data/first", "data.new/second"} {
				check(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
				check(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644))
			}
			open := openDir
			if remote {
				open = openResolving
			}
			d := open(t, data)
			want := func(when, want string) {
				t.Helper()
				if got := namesAfterStat(t, d); !strings.Contains(got, want) {
					t.Errorf("%s: got %q, want %q", when, got, want)
				}
			}
			want("at first", "first")
			o, err := d.Open(context.Background(), "first")
			check(t, err)
			defer o.Close()

			check(t, os.Rename(data, data+".old"))
			want("without a folder", "no such file")
			if _, err := d.Stat(context.Background(), "first"); err != nil {
				t.Errorf("without a folder, the old one: %v", err)
			}
			check(t, os.Rename(data+".new", data))
			want("after a rename", "second")
			buf := make([]byte, len("data/first"))
			if _, err := o.ReadAt(context.Background(), buf, 0); err != nil || string(buf) != "data/first" {
				t.Errorf("the open file: %q, %v", buf, err)
			}
			check(t, os.RemoveAll(data))
			check(t, os.Symlink("data.old", data))
			want("with a symbolic link", "first")
			check(t, os.Remove(data))
			check(t, os.WriteFile(data, nil, 0o644))
			want("with a file", "not a directory")
		})
	}
}

func TestRootIsMounted(t *testing.T) {
	drivertest.Need(t, "root")
	wantNoLeak(t)
	dir := t.TempDir()
	d := openDir(t, dir)
	if got := namesAfterStat(t, d); got != "" {
		t.Fatalf("at first: %q", got)
	}
	check(t, unix.Mount("none", dir, "tmpfs", 0, ""))
	mounted := true
	t.Cleanup(func() {
		if mounted {
			unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	check(t, os.WriteFile(dir+"/f", nil, 0o644))
	if got := namesAfterStat(t, d); got != "f" || d.FSType() != "tmpfs" {
		t.Errorf("mounted: %q, on %s", got, d.FSType())
	}
	check(t, unix.Unmount(dir, unix.MNT_DETACH))
	mounted = false
	if got := namesAfterStat(t, d); got != "" {
		t.Errorf("unmounted: %q", got)
	}
}

// While the folder is swapped, each name is of one of the folders, and no call fails.
func TestRootIsSwappedDuringUse(t *testing.T) {
	wantNoLeak(t)
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		check(t, os.MkdirAll(dir+"/"+name+"/d", 0o755))
		check(t, os.WriteFile(dir+"/"+name+"/d/f", []byte(name), 0o644))
	}
	link := func(target string) {
		check(t, os.Symlink(target, dir+"/next"))
		check(t, os.Rename(dir+"/next", dir+"/data"))
	}
	link("a")
	d := openResolving(t, dir+"/data")
	ended := make(chan struct{})
	for range 4 {
		go func() {
			defer func() { ended <- struct{}{} }()
			for start := time.Now(); time.Since(start) < time.Second/2; {
				if _, err := d.Stat(context.Background(), "."); err != nil {
					t.Error(err)
				}
				o, err := d.Open(context.Background(), "d/f")
				if err != nil {
					t.Error(err)
					return
				}
				o.Close()
			}
		}()
	}
	for n := 0; n < 4; {
		select {
		case <-ended:
			n++
		default:
			link("b")
			link("a")
		}
	}
}

// An operation that nobody waits for may begin, or follow the path to another folder, while the Dir is
// closed or afterwards. It fails, and leaves no descriptor.
func TestClosedDir(t *testing.T) {
	wantNoLeak(t)
	dir := t.TempDir()
	data, other := filepath.Join(dir, "data"), filepath.Join(dir, "other")
	check(t, os.Mkdir(data, 0o755))
	check(t, os.Mkdir(other, 0o755))
	ctx := context.Background()
	for range 200 {
		for _, open := range []func(*testing.T, string) *Dir{openDir, openResolving} {
			d := open(t, data)
			check(t, unix.Renameat2(unix.AT_FDCWD, data, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE))
			var wg sync.WaitGroup
			wg.Go(func() { d.Stat(ctx, ".") })
			wg.Go(func() { d.Close() })
			wg.Wait()
			_, stat := d.Stat(ctx, ".")
			_, open := d.Open(ctx, "file")
			_, list := d.ReadDir(ctx, ".")
			_, statfs := d.Statfs(ctx)
			for _, err := range []error{stat, open, list, statfs} {
				if !errors.Is(err, unix.EBADF) {
					t.Fatalf("an operation of a closed Dir: %v, want %v", err, unix.EBADF)
				}
			}
		}
	}
}
