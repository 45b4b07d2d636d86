package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	milkweed "github.com/milkweedfs/milkweed/fs"
)

// A world is a machine on which all checks succeed, and a configuration for it.
type world struct {
	*testing.T
	host
	dir    string // contains the source, the mount point and the tiers
	config *config.Config
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // so that asUser can enter it
		t.Fatal(err)
	}
	w := &world{T: t, host: thisHost(), dir: config.RealPath(dir)}
	w.root = w.path("root")
	w.timeout = time.Minute
	w.release = func() (string, error) { return "6.1.0-13-amd64", nil }
	w.openat2 = func() error { return nil }
	w.nofile = func() (uint64, error) { return 1 << 20, nil }
	w.hasName = func(int) bool { return true }
	w.tasks = func() (int64, string) { return math.MaxInt64, "" }
	w.limits = func() ([]Limit, error) { return nil, nil }
	w.lookPath = func(string) (string, error) { return w.path("bin/fusermount3"), nil }
	w.write("root/dev/fuse", "")
	w.write("root/etc/fuse.conf", "# user_allow_other\nuser_allow_other\n")
	w.write("root/proc/self/status", "Name:\tx\nNoNewPrivs:\t0\nCapEff:\t0000000000000000\n")
	w.write("root/proc/self/mountinfo", "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
	w.write("bin/fusermount3", "")
	w.must(os.Chmod(w.path("bin/fusermount3"), 0o755|fs.ModeSetuid))
	w.write("source/a", "x")
	w.must(os.Mkdir(w.path("mnt"), 0o755))
	c := config.Default()
	c.Source.Path = w.path("source")
	c.Mount.Point = w.path("mnt")
	c.Mount.AllowOther = true
	c.Mount.MetadataSnapshot = w.path("x.snapshot")
	c.Metrics.Listen = "127.0.0.1:0"
	c.Tiers = []config.Tier{{Name: "ssd", Path: w.path("ssd/new"), Quota: config.Quota{Percent: 90}}}
	w.config = &c
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) write(name, data string) {
	w.Helper()
	w.must(os.MkdirAll(filepath.Dir(w.path(name)), 0o755))
	w.must(os.WriteFile(w.path(name), []byte(data), 0o644))
}

// mkdir creates a directory with a mode.
func (w *world) mkdir(name string, mode fs.FileMode) {
	w.Helper()
	w.must(os.MkdirAll(w.path(name), 0o755))
	w.must(os.Chmod(w.path(name), mode))
	w.Cleanup(func() { os.Chmod(w.path(name), 0o755) }) // so that the test can remove it
}

// mountinfo adds lines to the table of mounts. In them, $ stands for w.dir.
func (w *world) mountinfo(line string) {
	w.Helper()
	w.write("root/proc/self/mountinfo", "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n"+strings.ReplaceAll(line, "$", w.dir)+"\n")
}

// failStat makes stat of path return err.
func (w *world) failStat(path string, err error) {
	w.stat = func(p string) (os.FileInfo, error) {
		if p == path {
			return nil, &fs.PathError{Op: "stat", Path: p, Err: err}
		}
		return os.Stat(p)
	}
}

// fileSystem makes statfs return st for path and its parents.
func (w *world) fileSystem(path string, st unix.Statfs_t) {
	w.statfs = func(p string) (unix.Statfs_t, error) {
		if strings.HasPrefix(path, p) && p != w.path("source") {
			return st, nil
		}
		return statfs(p)
	}
}

// disk returns the result of statfs for a type of file system, with its total and free
// space in bytes.
func disk(magic int64, total, free uint64) unix.Statfs_t {
	return unix.Statfs_t{Type: magic, Bsize: 1, Blocks: total, Bfree: free, Bavail: free}
}

// asUser calls f on a thread with the access rights of an ordinary user.
func asUser(t *testing.T, f func()) {
	if os.Getuid() != 0 {
		f()
		return
	}
	const nobody = 65534
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Setfsuid(nobody); err != nil {
		drivertest.Skipf(t, "needs the right to become another user: %v", err)
	}
	defer unix.Setfsuid(0)
	f()
}

const gib = 1 << 30

func TestChecks(t *testing.T) {
	const (
		tier       = "tier ssd"
		noCaps     = "NoNewPrivs:\t0\nCapEff:\t00000000a80425fb\n" // root in a container of Docker
		everything = "NoNewPrivs:\t0\nCapEff:\t000001ffffffffff\n"
	)
	user := func(w *world) { w.uid = 1000 }
	tests := []struct {
		name   string
		check  string
		edit   func(w *world)
		status Status
		code   exit.Code
		detail string // a part of it; $ stands for the dir of the world
		remedy string // a part of it
	}{
		{"good", "source", func(*world) {}, OK, 0, "$/source, on ", ""},
		{"missing", "source", func(w *world) { w.config.Source.Path = w.path("no") }, Problem, exit.Source, "$/no does not exist", "mount the file system"},
		{"file", "source", func(w *world) { w.config.Source.Path = w.path("source/a") }, Problem, exit.Source, "$/source/a is not a directory", "directory that the file is in"},
		{"below a file", "source", func(w *world) { w.config.Source.Path = w.path("source/a/b") }, Problem, exit.Source, "$/source/a/b: not a directory", "other programs"},
		{"not listable", "source", func(w *world) { w.mkdir("source", 0o111) }, Problem, exit.Source, "$/source may not be read", "list and enter"},
		{"not enterable", "source", func(w *world) { w.mkdir("source", 0o444) }, Problem, exit.Source, "$/source may not be read", "list and enter"},
		{"broken", "source", func(w *world) { w.failStat(w.path("source"), unix.EIO) }, Problem, exit.Source, "$/source: input/output error", "other programs"},
		{"stale", "source", func(w *world) { w.failStat(w.path("source"), unix.ESTALE) }, Problem, exit.Source, "$/source: stale file handle", "other programs"},
		{"empty", "source", func(w *world) { w.config.Source.Path = w.path("mnt") }, Warning, 0, "$/mnt is empty", "mounted"},
		{"Milkweed", "source", func(w *world) { w.mountinfo("22 21 0:50 / $ ro - fuse.milkweed /lustre/x ro") }, Warning, 0, "$/source is itself in a Milkweed mount, $", "/lustre/x, as the source"},
		{"demo", "source", func(w *world) { w.mountinfo("22 21 0:50 / $ ro - fuse.milkweed milkweed-demo ro") }, OK, 0, "$/source, on ", ""},

		{"good", "kernel", func(*world) {}, OK, 0, "Linux 6.1.0-13-amd64", ""},
		{"old", "kernel", func(w *world) {
			w.openat2 = func() error { return unix.ENOSYS }
			w.release = func() (string, error) { return "5.4.0", nil }
		}, Problem, exit.Failure, "Linux 5.4.0 has no openat2", "5.6"},
		{"filtered", "kernel", func(w *world) { w.openat2 = func() error { return unix.EPERM } }, Problem, exit.Failure, "does not permit openat2: operation not permitted", "seccomp"},

		{"good", "fuse", func(*world) {}, OK, 0, "/dev/fuse can be opened", ""},
		{"missing", "fuse", func(w *world) { w.must(os.Remove(w.path("root/dev/fuse"))) }, Problem, exit.Fuse, "there is no /dev/fuse", "--device /dev/fuse"},
		{"closed", "fuse", func(w *world) { w.must(os.Chmod(w.path("root/dev/fuse"), 0)) }, Problem, exit.Fuse, "/dev/fuse: permission denied", "chmod 0666"},

		{"good", "fusermount3", user, OK, 0, "$/bin/fusermount3", ""},
		{"root", "fusermount3", func(w *world) { w.uid = 0; w.write("root/proc/self/status", everything); w.lookPath = notFound }, OK, 0, "not needed", ""},
		{"missing", "fusermount3", func(w *world) { w.uid = 1000; w.lookPath = notFound }, Problem, exit.Fuse, "not found in PATH", "apt-get install fuse3"},
		{"vanished", "fusermount3", func(w *world) { w.uid = 1000; w.must(os.Remove(w.path("bin/fusermount3"))) }, Problem, exit.Fuse, "no such file", "--reinstall"},
		{"not setuid", "fusermount3", func(w *world) { w.uid = 1000; w.must(os.Chmod(w.path("bin/fusermount3"), 0o755)) }, Problem, exit.Fuse, "$/bin/fusermount3 is not setuid root", "chmod u+s"},
		{"no user name", "fusermount3", func(w *world) { w.uid = 12345; w.hasName = func(uid int) bool { return uid != 12345 } }, Problem, exit.Fuse, "user 12345 has no name", "/etc/passwd"},
		{"no new privileges", "fusermount3", func(w *world) { w.uid = 1000; w.write("root/proc/self/status", "NoNewPrivs:\t1\n") }, Problem, exit.Fuse, "no_new_privs", "outside of the container"},
		{"root without rights", "fusermount3", func(w *world) { w.uid = 0; w.write("root/proc/self/status", noCaps) }, Warning, 0, "CAP_SYS_ADMIN", "--cap-add SYS_ADMIN"},
		{"root without rights or helper", "fusermount3", func(w *world) { w.uid = 0; w.write("root/proc/self/status", noCaps); w.lookPath = notFound }, Problem, exit.Fuse, "CAP_SYS_ADMIN", "--cap-add SYS_ADMIN"},

		{"no limit", "threads", user, OK, 0, "no limit", ""},
		{"many", "threads", func(w *world) { w.tasks = func() (int64, string) { return 5000, "limit" } }, OK, 0, "5000 may be added", ""},
		{"not enough", "threads", func(w *world) {
			w.tasks = func() (int64, string) { return int64(OtherThreads() + SpareThreads), "the limit is 400" }
		}, Warning, 0, "may wait for others", "TasksMax="},
		{"few", "threads", func(w *world) { w.tasks = func() (int64, string) { return SpareThreads, "the limit is 400" } }, Warning, 0, "the daemon ends if it needs one more", "TasksMax="},
		{"none", "threads", func(w *world) { w.tasks = func() (int64, string) { return 10, "the limit is 400" } }, Problem, exit.Failure, "the limit is 400, and 10 are left", "nproc"},

		{"good", "allow_other", user, OK, 0, "/etc/fuse.conf permits it", ""},
		{"root", "allow_other", func(w *world) { w.uid = 0; w.write("root/etc/fuse.conf", "") }, OK, 0, "needs no permission", ""},
		{"comment", "allow_other", func(w *world) { w.uid = 1000; w.write("root/etc/fuse.conf", "#user_allow_other\n") }, Problem, exit.Fuse, "/etc/fuse.conf does not permit it", "Add the line user_allow_other"},
		{"no file", "allow_other", func(w *world) { w.uid = 1000; w.must(os.Remove(w.path("root/etc/fuse.conf"))) }, Problem, exit.Fuse, "/etc/fuse.conf does not permit it", "Add the line user_allow_other"},
		{"unreadable", "allow_other", func(w *world) { w.uid = 1000; w.must(os.Chmod(w.path("root/etc/fuse.conf"), 0)) }, Problem, exit.Fuse, "/etc/fuse.conf: permission denied", "readable"},

		{"good", "mount point", func(*world) {}, OK, 0, "$/mnt is an empty directory", ""},
		{"missing", "mount point", func(w *world) { w.config.Mount.Point = w.path("no/where") }, Problem, exit.MountPoint, "$/no/where does not exist", `"mkdir -p $/no/where"`},
		{"file", "mount point", func(w *world) { w.config.Mount.Point = w.path("source/a") }, Problem, exit.MountPoint, "$/source/a is not a directory", "empty directory"},
		{"below a file", "mount point", func(w *world) { w.config.Mount.Point = w.path("source/a/b") }, Problem, exit.MountPoint, "$/source/a/b is not a directory", "empty directory"},
		{"not empty", "mount point", func(w *world) { w.write("mnt/x", "") }, Problem, exit.MountPoint, "$/mnt: is not empty", "hide"},
		{"unreachable", "mount point", func(w *world) { w.mkdir("mnt/x", 0o755); w.mkdir("mnt", 0); w.config.Mount.Point = w.path("mnt/x") }, Problem, exit.MountPoint, "$/mnt/x may not be reached", "may enter"},
		{"not listable", "mount point", func(w *world) { w.mkdir("mnt", 0o333) }, Problem, exit.MountPoint, "$/mnt may not be listed", "your own"},
		{"not writable", "mount point", func(w *world) { w.uid = os.Getuid() + 1; w.mkdir("mnt", 0o555) }, Problem, exit.MountPoint, "$/mnt: permission denied", "fusermount3"},
		{"sticky", "mount point", func(w *world) { w.uid = os.Getuid() + 1; w.mkdir("mnt", 0o777|fs.ModeSticky) }, Problem, exit.MountPoint, "$/mnt is sticky", "fusermount3"},
		{"broken", "mount point", func(w *world) { w.failStat(w.path("mnt"), unix.EIO) }, Problem, exit.MountPoint, "$/mnt: input/output error", "another"},
		{"stale", "mount point", func(w *world) {
			w.failStat(w.path("mnt"), unix.ENOTCONN)
			w.mountinfo("22 21 0:50 / $/mnt ro - fuse.milkweed /lustre/x ro")
		}, Problem, exit.MountPoint, "$/mnt is left over", `"milkweed umount $/mnt" or "fusermount3 -u $/mnt"`},
		{"mounted", "mount point", func(w *world) { w.mountinfo("22 21 0:50 / $/mnt ro - ext4 /dev/my\\040disk ro") }, Problem, exit.MountPoint, "$/mnt is already a mount, ext4 of /dev/my disk", "another"},
		{"trigger", "mount point", func(w *world) {
			w.mountinfo("22 21 0:50 / $/mnt rw - autofs systemd-1 rw,fd=27,pgrp=1,timeout=0,minproto=5,maxproto=5,direct")
		}, OK, 0, "$/mnt is the trigger of an automounter", ""},
		{"indirect map", "mount point", func(w *world) {
			w.mountinfo("22 21 0:50 / $/mnt rw - autofs /etc/auto.misc rw,fd=7,pgrp=300,timeout=300,minproto=5,maxproto=5,indirect")
		}, Problem, exit.MountPoint, "$/mnt is already a mount, autofs of /etc/auto.misc", "another"},
		{"mounted by us", "mount point", func(w *world) {
			w.mkdir("my mnt", 0o755)
			w.config.Mount.Point = w.path("my mnt")
			w.mountinfo("22 21 0:50 / $/my\\040mnt ro - fuse.milkweed /lustre/x ro")
		}, Problem, exit.MountPoint, "$/my mnt is already a Milkweed mount of /lustre/x", `"milkweed umount $/my mnt"`},
		{"mounted through a link", "mount point", func(w *world) {
			w.must(os.Symlink("mnt", w.path("link")))
			w.config.Mount.Point = w.path("link")
			w.mountinfo("22 21 0:50 / $/mnt ro - tmpfs tmpfs ro")
		}, Problem, exit.MountPoint, "$/link is already a mount, tmpfs of tmpfs", "another"},

		{"missing", tier, func(*world) {}, OK, 0, "$/ssd/new, on ", ""},
		{"existing", tier, func(w *world) { w.mkdir("ssd/new", 0o700) }, OK, 0, "$/ssd/new, on ", ""},
		{"file", tier, func(w *world) { w.write("ssd/new", "") }, Problem, exit.Tier, "$/ssd/new is not a directory", "directory"},
		{"below a file", tier, func(w *world) { w.write("ssd", "") }, Problem, exit.Tier, "$/ssd/new: not a directory", "directory"},
		{"not writable", tier, func(w *world) { w.mkdir("ssd/new", 0o555) }, Problem, exit.Tier, "cannot write to $/ssd/new: permission denied", "may write"},
		{"parent not writable", tier, func(w *world) { w.mkdir(".", 0o555) }, Problem, exit.Tier, "cannot write to $: permission denied", "may write"},
		{"of another user", tier, func(w *world) { w.mkdir("ssd/new", 0o777|fs.ModeSticky); w.chown("ssd/new", 4711) }, Problem, exit.Tier, "$/ssd/new belongs to user 4711", "your own"},
		{"open to all", tier, func(w *world) { w.mkdir("ssd/new", 0o777) }, Warning, 0, "all users may rename the files in $/ssd/new", "chmod o-w"},
		{"broken", tier, func(w *world) { w.failStat(w.path("ssd/new"), unix.EIO) }, Warning, 0, "$/ssd/new: input/output error; a mount starts without the tier", "another"},
		{"full of copies", tier, func(w *world) {
			w.tmpfs("ssd/new", 0)
			w.write("ssd/new/copy", strings.Repeat("x", os.Getpagesize()))
		}, Warning, 0, "cannot write to $/ssd/new: no space left on device", "not needed"},
		{"read-only after an error", tier, func(w *world) { w.tmpfs("ssd/new", unix.MS_RDONLY) }, Warning, 0, "cannot write to $/ssd/new: read-only file system; a mount starts without the tier", "mounted for writing"},
		{"no size", tier, func(w *world) { w.fileSystem(w.path("ssd/new"), disk(unix.RAMFS_MAGIC, 0, 0)) }, Problem, exit.Tier, "the quota is 90%, but the file system of $ reports no size", "in bytes"},
		{"no size, quota in bytes", tier, func(w *world) {
			w.fileSystem(w.path("ssd/new"), disk(unix.RAMFS_MAGIC, 0, 0))
			w.config.Tiers[0].Quota = config.Quota{Bytes: gib}
		}, OK, 0, "$/ssd/new, on ramfs, quota 1GiB, of unknown size", ""},
		{"read-only", tier, func(w *world) {
			w.tmpfs("ssd/new", unix.MS_RDONLY)
			w.mountinfo("22 21 0:50 / $/ssd/new ro - tmpfs none ro")
		}, Problem, exit.Tier, "cannot write to $/ssd/new: read-only file system", "mounted for writing"},
		{"quota too large", tier, func(w *world) {
			w.fileSystem(w.path("ssd/new"), disk(unix.EXT4_SUPER_MAGIC, 10*gib, 2*gib))
			w.config.Tiers[0].Quota = config.Quota{Bytes: 3 * gib}
		}, Warning, 0, "the quota is 3GiB, but $ has 2.0 GiB free", "Reduce"},
		{"space used by copies", tier, func(w *world) {
			w.mkdir("ssd/new/"+config.DatasetID(w.path("source")), 0o700)
			w.fileSystem(w.path("ssd/new"), disk(unix.EXT4_SUPER_MAGIC, 10*gib, 2*gib))
			w.config.Tiers[0].Quota = config.Quota{Bytes: 3 * gib}
		}, OK, 0, "$/ssd/new, on ext4, quota 3GiB, 2.0 GiB free", ""},
		{"quota tiny", tier, func(w *world) { w.config.Tiers[0].Quota = config.Quota{Bytes: 64} }, Warning, 0, "the quota 64 allows copies of 64 B", "unit"},
		{"full", tier, func(w *world) { w.fileSystem(w.path("ssd/new"), disk(unix.EXT4_SUPER_MAGIC, 10*gib, 0)) }, Warning, 0, "the quota 90% allows copies of 0 B", "free space"},
		{"NFS", tier, func(w *world) { w.fileSystem(w.path("ssd/new"), disk(unix.NFS_SUPER_MAGIC, 10*gib, 10*gib)) }, Warning, 0, "$/ssd/new is on NFS", "this machine"},
		{"Lustre", tier, func(w *world) { w.fileSystem(w.path("ssd/new"), disk(0x0bd00bd0, 10*gib, 10*gib)) }, Warning, 0, "$/ssd/new is on Lustre", "this machine"},
		{"GPFS", tier, func(w *world) { w.fileSystem(w.path("ssd/new"), disk(0x47504653, 10*gib, 10*gib)) }, Warning, 0, "$/ssd/new is on GPFS", "this machine"},
		{"FUSE", tier, func(w *world) { w.fileSystem(w.path("ssd/new"), disk(unix.FUSE_SUPER_MAGIC, 10*gib, 10*gib)) }, Warning, 0, "$/ssd/new is on FUSE", "this machine"},
		{"tmpfs", tier, func(w *world) { w.fileSystem(w.path("ssd/new"), disk(unix.TMPFS_MAGIC, 10*gib, 10*gib)) }, OK, 0, "on tmpfs, quota 90%, 10 GiB free; it is memory", ""},
		{"tmpfs with swap", tier, func(w *world) {
			w.fileSystem(w.path("ssd/new"), disk(unix.TMPFS_MAGIC, 10*gib, 10*gib))
			w.write("root/proc/swaps", "Filename Type Size\n/dev/sda2 partition 1\n")
		}, OK, 0, "; it may be swapped out", ""},
		{"unknown type", tier, func(w *world) { w.fileSystem(w.path("ssd/new"), disk(0x1234, 10*gib, 10*gib)) }, OK, 0, "on a file system of type 0x1234", ""},

		{"good", snapshotName, func(*world) {}, OK, 0, "$/x.snapshot", ""},
		{"existing", snapshotName, func(w *world) { w.write("x.snapshot", "") }, OK, 0, "$/x.snapshot", ""},
		{"no folder", snapshotName, func(w *world) { w.config.Mount.MetadataSnapshot = w.path("no/x.snapshot") }, Warning, 0, "the folder of $/no/x.snapshot does not exist", `"mkdir -p $/no"`},
		{"below a file", snapshotName, func(w *world) { w.config.Mount.MetadataSnapshot = w.path("source/a/x.snapshot") }, Warning, 0, "$/source/a is not a directory", "another file"},
		{"folder", snapshotName, func(w *world) { w.config.Mount.MetadataSnapshot = w.path("mnt") }, Warning, 0, "$/mnt is not a file", "another file"},
		{"broken", snapshotName, func(w *world) { w.failStat(w.dir, unix.EIO) }, Warning, 0, "$: input/output error", "another file"},
		{"not writable", snapshotName, func(w *world) { w.mkdir(".", 0o555) }, Warning, 0, "$/x.snapshot cannot be written: permission denied", "may write"},

		{"good", planName, func(w *world) { w.write("order.txt", "a\n\nb/c") }, OK, 0, "$/order.txt", ""},
		{"missing", planName, func(*world) {}, Problem, exit.Usage, "$/order.txt: no such file", "one path on each line"},
		{"folder", planName, func(w *world) { w.mkdir("order.txt", 0o755) }, Problem, exit.Usage, "$/order.txt is not a file", "one path on each line"},
		{"empty", planName, func(w *world) { w.write("order.txt", "\n\r\n") }, Problem, exit.Usage, "$/order.txt: it has no paths", "one path on each line"},
		{"binary", planName, func(w *world) { w.write("order.txt", "a\x00b\n") }, Problem, exit.Usage, "$/order.txt: it has a NUL", "one path on each line"},
		{"not in the mount", planName, func(w *world) { w.write("order.txt", "./a\n"+w.path("mnt/b")+"\n\n/else/c\n") }, Problem, exit.Usage, `$/order.txt: line 4: "/else/c" is not`, "one path on each line"},
		{"long path", planName, func(w *world) { w.write("order.txt", "a\n"+strings.Repeat("b", 4097)) }, Problem, exit.Usage, "$/order.txt: line 2: a path of 4097 bytes", "one path on each line"},

		{"good", "open files", func(*world) {}, OK, 0, "at most 1048576 at once", ""},
		{"few", "open files", func(w *world) { w.nofile = func() (uint64, error) { return 4096, nil } }, Warning, 0, "at most 4096 at once (ulimit -Hn)", "65536"},
		{"too few", "open files", func(w *world) { w.nofile = func() (uint64, error) { return 255, nil } }, Problem, exit.Fuse, "needs 256", "65536"},
		{"unlimited", "open files", func(w *world) { w.nofile = func() (uint64, error) { return unix.RLIM_INFINITY, nil } }, OK, 0, "no limit", ""},
		{"a limit", "limits", func(w *world) {
			w.limits = func() ([]Limit, error) { return []Limit{{"the daemon ends", "Raise it."}}, nil }
		}, Warning, 0, "the daemon ends", "Raise it."},
		{"unknown", "limits", func(w *world) { w.limits = func() ([]Limit, error) { return nil, unix.EPERM } }, Warning, 0, "operation not permitted", "ulimit"},
		{"unknown", "open files", func(w *world) { w.nofile = func() (uint64, error) { return 0, unix.EINVAL } }, Warning, 0, "invalid argument", "ulimit"},

		{"good", "metrics", func(*world) {}, OK, 0, "127.0.0.1:0 is free", ""},
		{"in use", "metrics", func(w *world) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			w.must(err)
			w.Cleanup(func() { l.Close() })
			w.config.Metrics.Listen = l.Addr().String()
		}, Problem, exit.Usage, "address already in use", "another host:port"},
		{"open", "metrics", func(w *world) { w.config.Metrics.Listen = "0.0.0.0:0" }, Warning, 0, "everyone who reaches this machine can read the metrics at 0.0.0.0:0", "127.0.0.1"},
	}
	for _, tt := range tests {
		t.Run(tt.check+"/"+tt.name, func(t *testing.T) {
			w := newWorld(t)
			tt.edit(w)
			before := w.files()
			var got []Finding
			if strings.Contains(tt.detail, "permission denied") || strings.Contains(tt.detail, "may not be") {
				asUser(t, func() { got = w.runCheck(tt.check) })
			} else {
				got = w.runCheck(tt.check)
			}
			if len(got) != 1 {
				t.Fatalf("got %+v, want one finding", got)
			}
			f := got[0]
			detail, remedy := strings.ReplaceAll(tt.detail, "$", w.dir), strings.ReplaceAll(tt.remedy, "$", w.dir)
			if f.Name != tt.check || f.Status != tt.status || f.Code != tt.code || !strings.Contains(f.Detail, detail) || !strings.Contains(f.Remedy, remedy) {
				t.Errorf("got  %+v\nwant %s %s, code %d, %q, %q", f, tt.check, tt.status, tt.code, detail, remedy)
			}
			if (f.Status == OK) != (f.Remedy == "") || (f.Status == Problem) != (f.Err != nil) || strings.Contains(f.Detail+f.Remedy, "\n") {
				t.Errorf("%+v: want a remedy unless the status is ok, an error if it is problem, and no line break", f)
			}
			if f.Err != nil && (f.Err.Code != tt.code || f.Err.Err.Error() != f.Name+": "+f.Detail || f.Err.Remedy != f.Remedy) {
				t.Errorf("error %v differs from the finding %+v", f.Err, f)
			}
			if after := w.files(); before != after {
				t.Errorf("files differ: before %s, after %s", before, after)
			}
		})
	}
}

func notFound(string) (string, error) { return "", errors.New("not found") }

// chown makes uid the owner of a file.
func (w *world) chown(name string, uid int) {
	if err := os.Chown(w.path(name), uid, -1); err != nil {
		drivertest.Skipf(w, "needs the right to change the owner of files: %v", err)
	}
}

// tmpfs mounts a file system with space for one page.
func (w *world) tmpfs(name string, flags uintptr) {
	w.mkdir(name, 0o700)
	if err := unix.Mount("none", w.path(name), "tmpfs", flags, fmt.Sprintf("mode=700,size=%d", os.Getpagesize())); err != nil {
		drivertest.Skipf(w, "needs the right to mount: %v", err)
	}
	w.Cleanup(func() { unix.Unmount(w.path(name), unix.MNT_DETACH) })
}

// files returns the paths of all files of the world.
func (w *world) files() string {
	var names []string
	filepath.WalkDir(w.dir, func(path string, _ fs.DirEntry, _ error) error {
		names = append(names, path)
		return nil
	})
	return strings.Join(names, " ")
}

func TestRun(t *testing.T) {
	w := newWorld(t)
	w.uid = os.Getuid()
	w.write("root/proc/self/status", "CapEff:\t000001ffffffffff\n")
	findings := w.run(t.Context(), w.config)
	var names []string
	for _, f := range findings {
		names = append(names, f.Name)
		if f.Status != OK {
			t.Errorf("got %+v, want status ok", f)
		}
	}
	if got, want := strings.Join(names, ", "), "source, kernel, fuse, fusermount3, allow_other, access, mount point, tier ssd, metadata snapshot, open files, threads, metrics"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if err := First(findings); err != nil {
		t.Errorf("got %v, want no error", err)
	}
}

// Run sends no request to a bucket, and does not check it as a directory.
func TestRunWithBucket(t *testing.T) {
	w := newWorld(t)
	w.config.Source = config.Source{URL: "s3://bucket/a"}
	for _, f := range w.run(t.Context(), w.config) {
		if f.Name == "source" {
			t.Errorf("got %+v for a bucket", f)
		}
	}
	w.mkdir("ssd/new/"+config.DatasetID("s3://bucket/a"), 0o700)
	w.fileSystem(w.path("ssd/new"), disk(unix.EXT4_SUPER_MAGIC, 10*gib, 2*gib))
	w.config.Tiers[0].Quota = config.Quota{Bytes: 3 * gib}
	if got := w.host.tiers(t.Context(), w.config); len(got) != 1 || got[0].Status != OK {
		t.Errorf("a tier with copies of the bucket: got %+v, want status ok", got)
	}
}

// The error of opening a bucket is reported with a remedy.
func TestBucket(t *testing.T) {
	c := config.Source{URL: "s3://bucket/a?region=r&endpoint=http://h"}
	good := Bucket(c, "access key AKIA, from EnvConfigCredentials", nil)
	want := ok("source", "s3://bucket/a?endpoint=http://h can be listed; credentials: access key AKIA, from EnvConfigCredentials")
	if !reflect.DeepEqual(good, want) {
		t.Errorf("got %+v, want %+v", good, want)
	}
	for _, tt := range []struct {
		err    error
		remedy string
	}{
		{unix.EINVAL, "Add the missing setting"},
		{unix.EACCES, "anonymous=true"},
		{unix.ENOENT, "names of the bucket and of the prefix"},
		{unix.ENXIO, "region=REGION"},
		{unix.EPROTO, "SSL_CERT_FILE"},
		{unix.EHOSTUNREACH, "HTTPS_PROXY"},
		{unix.ENETUNREACH, "HTTPS_PROXY"},
		{unix.ECONNREFUSED, "HTTPS_PROXY"},
		{unix.ETIMEDOUT, "HTTPS_PROXY"},
		{unix.EIO, "the vendor's own tools"},
	} {
		err, code := fmt.Errorf("s3://bucket/a/: %w: AccessDenied: no", tt.err), exit.Source
		if tt.err == unix.EINVAL {
			code = exit.Usage
		}
		got := Bucket(c, "", err)
		if len(got) != 1 || got[0].Status != Problem || got[0].Code != code || got[0].Detail != err.Error() ||
			!strings.Contains(got[0].Remedy, tt.remedy) {
			t.Errorf("got %+v, want %v and a remedy with %q", got, err, tt.remedy)
		}
		e, isExit := errors.AsType[*exit.Error](SourceError(c, err))
		if !isExit || e.Code != code || e.Err.Error() != "source: "+err.Error() || e.Remedy != got[0].Remedy {
			t.Errorf("SourceError: got %+v, want the error of the finding", e)
		}
	}
	e, _ := errors.AsType[*exit.Error](SourceError(config.Source{Path: "/a"}, unix.EACCES))
	if e == nil || e.Remedy != "Check that the source is mounted and readable." {
		t.Errorf("a directory: got %+v", e)
	}
}

func TestRunOmitsUnconfigured(t *testing.T) {
	w := newWorld(t)
	w.config.Mount.AllowOther = false
	w.config.Metrics.Listen = ""
	w.config.Mount.MetadataSnapshot = config.SnapshotInTier
	for _, f := range w.run(t.Context(), w.config) {
		if f.Name == "allow_other" || f.Name == "access" || f.Name == "metrics" || f.Name == snapshotName {
			t.Errorf("got %+v, which is not configured", f)
		}
	}
}

func TestRunHere(t *testing.T) {
	w := newWorld(t)
	for _, f := range Run(t.Context(), w.config) {
		t.Logf("%+v", f)
		if f.Status == Problem && (f.Err == nil || f.Err.Remedy == "") {
			t.Errorf("%+v has no remedy", f)
		}
	}
}

func TestRunCanceled(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := w.run(ctx, w.config); len(got) != 0 {
		t.Errorf("got %+v, want no findings after the context was canceled", got)
	}
}

// Each check of a file system that hangs ends after the time-out.
func TestHung(t *testing.T) {
	for _, tt := range []struct {
		path string
		run  func(w *world) []Finding
		code exit.Code
		want string
	}{
		{"source", func(w *world) []Finding { return w.host.source(t.Context(), w.config) }, exit.Source, "source: $/source did not respond within 10ms"},
		{"mnt", func(w *world) []Finding { return w.host.mountPoint(t.Context(), w.config) }, exit.MountPoint, "mount point: $/mnt (fuse.milkweed of /x) did not respond within 10ms"},
	} {
		t.Run(tt.path, func(t *testing.T) {
			w := newWorld(t)
			hang := make(chan struct{})
			t.Cleanup(func() { close(hang) })
			w.timeout = 10 * time.Millisecond
			w.stat = func(string) (os.FileInfo, error) { <-hang; return nil, unix.EIO }
			w.mountinfo("22 21 0:50 / $/mnt ro - fuse.milkweed /x ro")
			err := First(tt.run(w))
			e, ok := errors.AsType[*exit.Error](err)
			if !ok || e.Code != tt.code || e.Err.Error() != strings.ReplaceAll(tt.want, "$", w.dir) || e.Remedy == "" {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

// A metadata snapshot that hangs is a warning, because a mount starts without it.
func TestHungSnapshot(t *testing.T) {
	w := newWorld(t)
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	w.timeout = 10 * time.Millisecond
	w.stat = func(string) (os.FileInfo, error) { <-hang; return nil, unix.EIO }
	got := w.host.snapshot(t.Context(), w.config)
	if len(got) != 1 || got[0].Status != Warning || !strings.Contains(got[0].Detail, "did not respond") || got[0].Remedy == "" {
		t.Errorf("got %+v, want a warning", got)
	}
}

// Tiers that hang delay the check by one time-out. Each is a warning, because a mount starts
// without it.
func TestTiersHang(t *testing.T) {
	w := newWorld(t)
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	w.timeout = 10 * time.Millisecond
	w.stat = func(string) (os.FileInfo, error) { <-hang; return nil, unix.EIO }
	w.config.Tiers = append(w.config.Tiers, config.Tier{Name: "hdd", Path: w.path("hdd")})
	got := w.host.tiers(t.Context(), w.config)
	if len(got) != 2 {
		t.Fatalf("got %+v, want 2 findings", got)
	}
	for i, f := range got {
		want := w.config.Tiers[i].Path + " did not respond within 10ms; a mount starts without the tier, and uses it when it works"
		if f.Status != Warning || f.Detail != want || f.Remedy == "" {
			t.Errorf("got %+v, want the warning %q", f, want)
		}
	}
}

func TestHungCanceled(t *testing.T) {
	w := newWorld(t)
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	w.stat = func(string) (os.FileInfo, error) { <-hang; return nil, unix.EIO }
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if got := w.run(ctx, w.config); len(got) != 0 {
		t.Errorf("got %+v, want no findings", got)
	}
}

func TestWrite(t *testing.T) {
	findings := append(ok("source", "/data, on NFS"), warning("tier ssd", "Lower the quota.", "too large")...)
	findings = append(findings, problem(exit.Fuse, "fuse", "Load it.", "there is no %s", "/dev/fuse")...)
	var b bytes.Buffer
	if err := Write(&b, findings); err != nil {
		t.Fatal(err)
	}
	want := `ok       source    /data, on NFS
warning  tier ssd  too large
                     Lower the quota.
problem  fuse      there is no /dev/fuse
                     Load it.
`
	if got := b.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	data, err := json.Marshal(findings[2])
	if got, want := string(data), `{"name":"fuse","status":"problem","detail":"there is no /dev/fuse","remedy":"Load it.","code":6}`; got != want || err != nil {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	if err := First(findings); exit.Of(err) != exit.Fuse || fmt.Sprint(err) != "fuse: there is no /dev/fuse\n  Load it." {
		t.Errorf("got %v", err)
	}
}

func TestBefore(t *testing.T) {
	for release, want := range map[string]bool{
		"5.5.19": true, "4.18.0-553.el8.x86_64": true, "5.6": false, "5.10.1": false, "6.18.44-fc": false, "nonsense": false, "": false,
	} {
		if got := before(release, 5, 6); got != want {
			t.Errorf("before(%q, 5, 6) = %v, want %v", release, got, want)
		}
	}
}

func TestMounts(t *testing.T) {
	w := newWorld(t)
	w.mountinfo(`22 21 0:50 / /a\040b\011c\012d\134e rw,relatime shared:1 master:2 - fuse.milkweed /src\040x ro
23 21 0:51 / /a rw - tmpfs first rw
24 23 0:52 / /a rw - xfs second rw`)
	if m, ok := w.mounts().At("/a b\tc\nd\\e"); !ok || m.Source != "/src x" || m.Type != "fuse.milkweed" {
		t.Errorf("got %+v, %v", m, ok)
	}
	if m, _ := w.mounts().At("/a"); m.Source != "second" {
		t.Errorf("got %+v, want the later mount", m)
	}
	for path, want := range map[string]string{"/": "/", "/ab": "/", "/a/x": "/a"} {
		if got, _ := w.mounts().Of(path); got.Point != want {
			t.Errorf("Of(%q) = %q, want %q", path, got.Point, want)
		}
	}
}

// runCheck runs one check on the calling thread, so that asUser affects it.
func (w *world) runCheck(check string) []Finding {
	switch check {
	case "source":
		return w.inspectSource(w.config.Source.Path)
	case "mount point":
		return w.inspectMountPoint(w.config.Mount.Point)
	case "kernel":
		return w.kernel()
	case "fuse":
		return w.fuseDevice()
	case "fusermount3":
		return w.mayMount()
	case "allow_other":
		return w.allowOther(w.config)
	case "open files":
		return w.openFiles()
	case "threads":
		return w.threads(w.config)
	case LimitsName:
		return w.resources()
	case "metrics":
		return w.metrics(w.config)
	case snapshotName:
		return w.inspectSnapshot(w.config.Mount.MetadataSnapshot)
	case planName:
		w.config.Mount.Plan = w.path("order.txt")
		return w.plan(context.Background(), w.config)
	default:
		return w.checkTier(check, w.config.Tiers[0], w.config.Source.Path)
	}
}

// mountFuse mounts a FUSE file system without a daemon on dir. It returns the device;
// to close it has the same effect as the end of the daemon.
func mountFuse(t *testing.T, dir string) *os.File {
	t.Helper()
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		drivertest.Skipf(t, "needs /dev/fuse: %v", err)
	}
	t.Cleanup(func() { device.Close() })
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d", device.Fd(), os.Getuid(), os.Getgid())
	if err := unix.Mount("/lustre/x", dir, milkweed.Type, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_RDONLY, options); err != nil {
		drivertest.Skipf(t, "needs the right to mount: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return device
}

func TestRealMount(t *testing.T) {
	w := newWorld(t)
	device := mountFuse(t, w.path("mnt"))
	w.root = "/"
	w.timeout = 100 * time.Millisecond
	for _, want := range []string{
		"mount point: $/mnt (fuse.milkweed of /lustre/x) did not respond within 100ms",
		"mount point: $/mnt is left over from a file system whose daemon has ended: transport endpoint is not connected",
	} {
		err := First(w.host.mountPoint(t.Context(), w.config))
		e, ok := errors.AsType[*exit.Error](err)
		if want := strings.ReplaceAll(want, "$", w.dir); !ok || e.Code != exit.MountPoint || e.Err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		device.Close()
		w.timeout = time.Minute
	}
}
