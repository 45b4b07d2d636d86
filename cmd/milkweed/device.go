package main

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/fs"
)

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
	const flag = "flag --fuse-fd"
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
