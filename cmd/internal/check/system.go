package check

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// kernel checks for openat2(2). Without it, a symbolic link in the dataset could lead
// out of the source or a tier.
func (h host) kernel() []Finding {
	const name = "kernel"
	release, err := h.release()
	if err != nil {
		release = "of unknown version"
	}
	switch err := h.openat2(); {
	case err == nil:
		return ok(name, "Linux %s", release)
	case before(release, 5, 6):
		return problem(exit.Failure, name, "Use Linux 5.6 or later.", "Linux %s has no openat2", release)
	default: // a seccomp filter that is older than openat2
		return problem(exit.Failure, name, "Update the container runtime, or allow openat2 in its seccomp profile.",
			"Linux %s does not permit openat2: %w", release, err)
	}
}

// before reports whether a release, such as "6.1.0-13-amd64", is older than
// major.minor. For a release that it cannot parse it returns false.
func before(release string, major, minor int) bool {
	var x, y int
	if _, err := fmt.Sscanf(release, "%d.%d", &x, &y); err != nil {
		return false
	}
	return x < major || x == major && y < minor
}

func release() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", err
	}
	return unix.ByteSliceToString(u.Release[:]), nil
}

func openat2() error {
	fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC})
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func (h host) fuseDevice() []Finding {
	const (
		name   = "fuse"
		device = "/dev/fuse"
	)
	f, err := os.OpenFile(filepath.Join(h.root, device), os.O_RDWR, 0)
	switch {
	case err == nil:
		f.Close()
		return ok(name, "%s can be opened", device)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return problem(exit.Fuse, name, `Load the module with "modprobe fuse" as root, or start the container with --device /dev/fuse.`,
			"there is no %s", device)
	case errors.Is(err, unix.EPERM): // from the device controller of the container
		return problem(exit.Fuse, name, "Start the container with --device /dev/fuse.", "%s may not be opened here", device)
	default:
		return problem(exit.Fuse, name, `Run "chmod 0666 /dev/fuse" as root; this is the default of distributions.`,
			"%s: %w", device, reason(err))
	}
}

const rootRemedy = "Start the container with --cap-add SYS_ADMIN and --device /dev/fuse."

// mayMount checks whether this process can mount: directly with CAP_SYS_ADMIN, or with
// fusermount3, which is setuid root.
func (h host) mayMount() []Finding {
	const name = "fusermount3"
	if h.mayMountDirectly() {
		return ok(name, "not needed with CAP_SYS_ADMIN")
	}
	path, err := h.lookPath("fusermount3")
	switch {
	case err != nil && h.uid == 0:
		return problem(exit.Fuse, name, rootRemedy, "not found in PATH, and root cannot mount without CAP_SYS_ADMIN")
	case err != nil:
		return problem(exit.Fuse, name, `Install it, on Debian and Ubuntu with "apt-get install fuse3".`,
			"not found in PATH, and only root can mount without it")
	case h.uid == 0:
		// This is only a warning, because the fusermount3 of some clusters calls a daemon
		// outside of the container.
		return warning(name, rootRemedy, "root cannot mount without CAP_SYS_ADMIN, and %s probably cannot either", path)
	}
	if h.processStatus("NoNewPrivs") == "1" {
		return problem(exit.Fuse, name, "Mount outside of the container, and bind-mount the mount point into it. In Kubernetes, the CSI plugin of milkweed-k8s does so.",
			"this process may not gain privileges (no_new_privs)")
	}
	info, err := os.Stat(path)
	if err != nil {
		return problem(exit.Fuse, name, `Reinstall it, on Debian and Ubuntu with "apt-get install --reinstall fuse3".`, "%w", err)
	}
	if info.Mode()&fs.ModeSetuid == 0 && !hasCapabilities(path) {
		return problem(exit.Fuse, name, fmt.Sprintf(`Run "chmod u+s %s" as root.`, path), "%s is not setuid root", path)
	}
	if !h.hasName(h.uid) {
		return problem(exit.Fuse, name, fmt.Sprintf(`Add a line such as "user:x:%d:%[1]d::/:/bin/sh" to /etc/passwd as root, or use a user that the machine, or the image of the container, has.`, h.uid),
			"user %d has no name in the user database, and %s needs one", h.uid, path)
	}
	return ok(name, "%s", path)
}

// hasUserName reports whether the user database has a user, as getpwuid(3) sees it. It reports true if
// that cannot be determined.
func hasUserName(uid int) bool {
	id := strconv.Itoa(uid)
	if _, err := user.LookupId(id); err == nil {
		return true // in /etc/passwd; other sources need the C library
	}
	const notFound = 2 // exit status of getent(1)
	err := exec.Command("getent", "passwd", id).Run()
	var ended *exec.ExitError
	return !errors.As(err, &ended) || ended.ExitCode() != notFound
}

// hasCapabilities reports whether an executable has file capabilities, which can
// replace the setuid bit.
func hasCapabilities(path string) bool {
	n, err := unix.Getxattr(path, "security.capability", nil)
	return err == nil && n > 0
}

// mayMountDirectly reports whether this process has CAP_SYS_ADMIN.
func (h host) mayMountDirectly() bool {
	caps, err := strconv.ParseUint(h.processStatus("CapEff"), 16, 64)
	return err == nil && caps&(1<<unix.CAP_SYS_ADMIN) != 0
}

// processStatus returns a field of /proc/self/status, or "" if there is none.
func (h host) processStatus(field string) string {
	data, err := os.ReadFile(filepath.Join(h.root, "proc/self/status"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if name, value, _ := strings.Cut(line, ":"); name == field {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func (h host) allowOther(c *config.Config) []Finding {
	const (
		name = "allow_other"
		file = "/etc/fuse.conf"
	)
	switch {
	case !c.Mount.AllowOther:
		return nil
	case h.uid == 0, h.mayMountDirectly():
		return ok(name, "needs no permission of %s", file)
	}
	data, err := os.ReadFile(filepath.Join(h.root, file))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return problem(exit.Fuse, name, "Make it readable for all users, or remove allow_other.", "%s: %w", file, reason(err))
	}
	for line := range strings.Lines(string(data)) {
		if strings.TrimSpace(line) == "user_allow_other" {
			return ok(name, "%s permits it", file)
		}
	}
	return problem(exit.Fuse, name, fmt.Sprintf("Add the line user_allow_other to %s as root, or remove allow_other.", file),
		"%s does not permit it for users other than root", file)
}

// minFiles is the number of descriptors without which a mount is refused. The daemon needs about 24
// for itself, two for each background request in flight, one for each file that jobs have open, and
// two for each reply in progress.
const minFiles = 256

// enoughFiles is the number of descriptors for a mount with many open handles, each of
// which needs one.
const enoughFiles = 65536

// RaiseFiles is the remedy for a limit below enoughFiles.
var RaiseFiles = fmt.Sprintf(`Raise the hard limit to %d, with LimitNOFILE= in a unit file or "nofile" in limits.conf.`, enoughFiles)

func (h host) openFiles() []Finding {
	const name = "open files"
	hard, err := h.nofile()
	switch {
	case err != nil:
		return warning(name, `Check "ulimit -Hn".`, "the limit is not known: %v", reason(err))
	case hard < minFiles:
		return problem(exit.Fuse, name, RaiseFiles, "at most %d at once (ulimit -Hn), and a mount needs %d", hard, minFiles)
	case hard < enoughFiles:
		return warning(name, RaiseFiles, "at most %d at once (ulimit -Hn)", hard)
	case hard == unix.RLIM_INFINITY:
		return ok(name, "no limit")
	}
	return ok(name, "at most %d at once", hard)
}

// Threads returns the number of threads that a daemon with a number of background workers makes at its
// start: for calls of jobs and of the workers that block, and for all else.
func Threads(workers int) int { return workers + 64 + OtherThreads() }

// OtherThreads returns the number of threads that a daemon needs besides those for tiers.Threads.Calls: for
// the requests of the kernel, files that are being closed and attributes that are requested in parallel, 16
// each, for goroutines that run, and for single background tasks.
func OtherThreads() int { return 3*16 + max(16, runtime.GOMAXPROCS(0)) + 16 }

// SpareThreads is the number of threads that a daemon leaves of those that a limit allows.
const SpareThreads = 32

// RaiseMemory is the remedy for tiers in memory that have less than their quota, or little memory beside them.
const RaiseMemory = "Raise the memory limit of the control group (memory.max, or --mem in Slurm), or give the tiers in memory less."

// RaiseThreads is the remedy for a limit of threads that is too low.
const RaiseThreads = `Raise the limit: "nproc" in limits.conf, TasksMax= in a unit file, the limit of PIDs of a container.`

// threads checks whether a daemon can have the threads that it needs.
func (h host) threads(c *config.Config) []Finding {
	const name = "threads"
	left, limit := h.tasks()
	switch {
	case left < SpareThreads:
		return problem(exit.Failure, name, RaiseThreads, "%s, and %d are left; a daemon needs %d", limit, left, Threads(c.Placement.Workers))
	case left-SpareThreads < int64(Threads(c.Placement.Workers)):
		then := "with fewer, calls of the source and the tiers may wait for others"
		if left-SpareThreads < int64(OtherThreads()) {
			then = "the daemon ends if it needs one more than it can have"
		}
		return warning(name, RaiseThreads, "%s, and %d are left; the daemon makes %d at its start; %s", limit, left, Threads(c.Placement.Workers), then)
	case limit == "":
		return ok(name, "no limit")
	}
	return ok(name, "%d may be added", left)
}

func nofile() (uint64, error) {
	var r unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r)
	return r.Max, err
}
