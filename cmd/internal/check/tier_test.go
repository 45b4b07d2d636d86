package check

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/posix"
)

func TestIsIll(t *testing.T) {
	w := newWorld(t)
	for err, want := range map[error]bool{
		unix.EIO: true, unix.ESTALE: true, unix.ENOTCONN: true, unix.ENODEV: true, unix.EUCLEAN: true,
		unix.ETIMEDOUT: true, unix.ENXIO: true, unix.ESHUTDOWN: true, unix.EREMOTEIO: true, unix.ENOMEDIUM: true,
		unix.ENOSPC: true, unix.EDQUOT: true, unix.EMFILE: true, unix.ENOMEM: true, unix.EROFS: true,
		drivers.ErrAbandoned: true, errNotMounted: true,

		unix.EACCES: false, unix.EPERM: false, unix.ENOENT: false, unix.ENOTDIR: false, unix.ELOOP: false,
		&posix.LockedError{}: false, &posix.ForeignError{}: false, &posix.NotOursError{}: false,
		errors.New("something else"): false,
	} {
		wrapped := &TierError{Err: fmt.Errorf("x: %w", &fs.PathError{Op: "open", Path: "x", Err: err})}
		if got := w.isIll(w.path("ssd"), wrapped); got != want {
			t.Errorf("%v: got %v, want %v", err, got, want)
		}
	}
	w.mountinfo("22 21 0:50 / $/ssd ro - ext4 /dev/sdb1 ro")
	if w.isIll(w.path("ssd/new"), unix.EROFS) {
		t.Error("a file system that was mounted read-only counts as ill")
	}
}

// A tier whose file system was mounted when it was last used, and is not mounted now, cannot be
// used until it is mounted again, or the file with the memory of it is removed. Nothing is created.
func TestTierIsNotMounted(t *testing.T) {
	const (
		none  = "40 21 0:4 / /proc rw - proc proc rw"
		local = "22 21 8:17 / $/local rw - ext4 /dev/sdb1 rw"
	)
	for _, c := range []struct {
		name         string
		tier         string
		before, now  string // mounts
		change       func(w *world, file string)
		isNotMounted bool
	}{
		{"not mounted", "local/milkweed", local, none, nil, true},
		{"the tier is the mount point", "local", local, none, nil, true},
		{"another tier there", "local/new/milkweed", local, none, nil, true},
		{"below another mount", "local/milkweed", "22 21 8:2 / $ rw - xfs /dev/sda2 rw\n" + local, "22 21 8:2 / $ rw - xfs /dev/sda2 rw", nil, true},
		{"mounted again", "local/milkweed", local, local, nil, false},
		{"another disk, with another number", "local/milkweed", local, "31 21 253:9 / $/local rw - xfs /dev/dm-9 rw", nil, false},
		{"never mounted", "local/milkweed", none, none, nil, false},
		{"mounted later", "local/milkweed", none, local, nil, false},
		{"the file is removed", "local/milkweed", local, none, func(w *world, file string) { w.must(os.Remove(file)) }, false},
		{"no state folder", "local/milkweed", local, none, func(w *world, _ string) { w.state = "" }, false},
		{"the path leads elsewhere now", "local/milkweed", local, none, func(w *world, _ string) {
			w.must(os.Remove(w.path("local")))
			w.mkdir("elsewhere", 0o700)
			w.must(os.Symlink(w.path("elsewhere"), w.path("local")))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.state = w.path("state/milkweed")
			w.mkdir("local", 0o700)
			tier := config.Tier{Name: "ssd", Path: w.path(c.tier), Quota: config.Quota{Percent: 90}}
			w.mountinfo(c.before)
			for range 2 {
				w.must(w.rememberMount(tier.Path))
				w.must(w.rememberMount(tier.Path + "/of another job"))
				if _, err := w.inspectTier("", tier, "/source"); err != nil {
					t.Fatal(err)
				}
			}
			files, _ := filepath.Glob(w.state + "/*")
			if want := c.before != none; len(files) > 1 || len(files) == 1 != want {
				t.Fatalf("state: %q, want one file: %v", files, want)
			}
			w.mountinfo(c.now)
			if c.change != nil {
				c.change(w, strings.Join(files, ""))
			}
			_, err := w.inspectTier("", tier, "/source")
			if got := err != nil && errors.Is(err, errNotMounted) && w.isIll(tier.Path, err); got != c.isNotMounted || !got && err != nil {
				t.Errorf("got %v, want not mounted: %v", err, c.isNotMounted)
			}
			if err != nil && !strings.Contains(err.Remedy, files[0]) {
				t.Errorf("the remedy does not name the file: %s", err.Remedy)
			}
		})
	}
}
