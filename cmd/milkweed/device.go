package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/fs"
)

// descriptorPath matches the path of a descriptor of this process.
var descriptorPath = regexp.MustCompile(`/(?:dev|proc/self)/fd/(\d+)`)

// passDevice sets --fuse-fd if a mount point is the path of a descriptor of /dev/fuse, such as /dev/fd/3. So launchers
// pass it to programs that use libfuse.
func (f *mountFlags) passDevice(flags *pflag.FlagSet, point string) error {
	path := descriptorPath.FindStringSubmatch(point)
	if path == nil || path[0] != point || flags.Changed("fuse-fd") {
		return nil
	}
	fd, err := strconv.Atoi(path[1])
	if err != nil || strconv.Itoa(fd) != path[1] || fd > maxDescriptor {
		return nil // no descriptor has this name
	}
	if !errors.Is(fs.CheckDevice(fd), fs.ErrNotDevice) {
		f.passed = point
		return flags.Set("fuse-fd", path[1])
	}
	info, err := os.Stat(point)
	if err != nil || !info.IsDir() {
		return optionError(fmt.Errorf("mount point %s is neither /dev/fuse nor a directory", point), "Name an empty directory.")
	}
	if f.foreground && !f.watched || f.fake {
		return nil
	}
	remedy := "Name the directory by its path, or add --foreground."
	if f.watched {
		remedy = "Name the directory by its path."
	}
	return optionError(fmt.Errorf("mount point %s: the daemon does not inherit the descriptor", point), remedy)
}

// maxDescriptor is larger than the number of any descriptor, and an int32.
const maxDescriptor = 1 << 30

// mountsOfDevice returns the mounts of the descriptor of --fuse-fd in this mount namespace, as far as the kernel tells.
func (f *mountFlags) mountsOfDevice() mounts.Table {
	dev := fs.DeviceNumber(f.fuseFD)
	table, err := mounts.Read(mounts.Self)
	if dev == 0 || err != nil {
		return nil
	}
	return slices.DeleteFunc(table, func(m mounts.Mount) bool { return m.Dev != dev })
}

// nameDevice sets the mount point, which is only a name, if it was given as a descriptor: to where the file system is
// mounted, if that is known, and otherwise to a path that no other process has.
func (f *mountFlags) nameDevice(c *config.Config) error {
	if f.passed == "" {
		return nil
	}
	c.Mount.Point = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.fuseFD)
	if known := f.mountsOfDevice(); len(known) > 0 {
		c.Mount.Point = known[0].Point
	}
	return nil
}

// checkPermissions checks the option default_permissions.
func (f *mountFlags) checkPermissions() error {
	const option = "option default_permissions"
	if f.fuseFD == 0 {
		return optionError(errors.New(option+" is for --fuse-fd"), "Remove it: allow_other implies it.")
	}
	known := f.mountsOfDevice()
	if len(known) > 0 && !slices.Contains(strings.Split(known[0].Options, ","), "default_permissions") {
		return optionError(errors.New(option+": the mount does not have it"), "Remove it, or mount the descriptor with it.")
	}
	return nil
}

// checkDevice checks the descriptor of --fuse-fd, and the flags beside it. Without --fuse-fd it does
// nothing.
//
// No child process inherits the descriptor: it would keep a mount alive that nothing serves. And no
// other process of this user may read the memory and the environment of this one, which have the
// credentials of its source: several such daemons run as one user, for the volumes of many.
func (f *mountFlags) checkDevice(flags *pflag.FlagSet) error {
	if !flags.Changed("fuse-fd") {
		return nil
	}
	flag := "flag --fuse-fd"
	if f.passed != "" {
		flag = "mount point " + f.passed
	}
	switch {
	case f.fuseFD <= 2:
		return optionError(fmt.Errorf("%s: %d is not the number of an inherited descriptor", flag, f.fuseFD), "Pass /dev/fuse as descriptor 3 or a higher one.")
	case !f.foreground:
		return optionError(fmt.Errorf("%s needs --foreground", flag), "Add -f: the process that passes the descriptor waits for this one.")
	case f.watched:
		return optionError(fmt.Errorf("%s and --supervise exclude each other", flag), "Let the process that has mounted the file system start the daemon again.")
	case f.whileLocked != "":
		return optionError(fmt.Errorf("%s and --while-locked exclude each other", flag), "Let the process that has mounted the file system unmount it.")
	case f.clearStale:
		return optionError(fmt.Errorf("%s and --clear-stale exclude each other", flag), "Remove --clear-stale.")
	}
	if err := fs.CheckDevice(f.fuseFD); err != nil {
		e := &exit.Error{
			Code:   exit.Usage,
			Err:    fmt.Errorf("%s: descriptor %d: %w", flag, f.fuseFD, err),
			Remedy: "Open /dev/fuse, mount it with mount(2), and let this process inherit the descriptor.",
		}
		if !errors.Is(err, fs.ErrNotDevice) {
			e.Code = exit.Fuse
		}
		return e
	}
	unix.CloseOnExec(f.fuseFD)
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}
