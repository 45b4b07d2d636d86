package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/fs"
)

// A daemon looks every lockPause whether a process has the lock. While the mount is in use without it, the pause
// doubles, up to lockPauseMax.
const (
	lockPause    = time.Second
	lockPauseMax = 10 * time.Second
)

// A mountLock is the file of --while-locked. Processes that use the mount have a lock on it. The daemon has the
// exclusive one while it unmounts, until the dataset can be mounted again: a process that waits for its lock then
// finds either a mount that stays, or none.
type mountLock struct {
	file *os.File // nil: there is none
	path string   // absolute and without symbolic links
}

// openLock opens the file of --while-locked. It fails unless a process has a lock on it.
func (f *mountFlags) openLock() (mountLock, error) {
	if f.whileLocked == "" {
		return mountLock{}, nil
	}
	if len(namedDescriptors([]string{f.whileLocked})) > 0 { // the daemon would keep it, and its lock
		return mountLock{}, lockError(fmt.Errorf("%s is a descriptor", text(f.whileLocked)))
	}
	path, err := control.Resolve(f.whileLocked)
	if err != nil {
		return mountLock{}, lockError(err)
	}
	l, unlocked, err := takeLock(path, os.O_RDONLY)
	if errors.Is(err, unix.EBADF) { // NFS needs a descriptor for writing
		l, unlocked, err = takeLock(path, os.O_RDWR)
	}
	switch {
	case err != nil:
		return mountLock{}, lockError(err)
	case unlocked:
		l.close()
		return mountLock{}, &exit.Error{
			Code:   exit.NotMounted,
			Err:    fmt.Errorf("flag --while-locked: no process has a lock on %s", text(path)),
			Remedy: fmt.Sprintf("Run the job, and this command in it, by `flock --shared %s COMMAND`.", text(path)),
		}
	}
	return l, nil
}

// takeLock opens a lock file, and gets the exclusive lock unless a process has a lock.
func takeLock(path string, flags int) (l mountLock, ok bool, err error) {
	file, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return mountLock{}, false, err
	}
	l = mountLock{file, path}
	if ok, err = l.take(); err != nil {
		l.close()
	}
	return l, ok, err
}

func lockError(err error) error {
	return optionError(fmt.Errorf("flag --while-locked: %w", err), "Name a file that exists, and that this user may lock with flock(1).")
}

// take gets the exclusive lock, unless a process has a lock.
func (l mountLock) take() (ok bool, err error) {
	switch err := unix.Flock(int(l.file.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return false, nil
	case err != nil:
		return false, &os.PathError{Op: "flock", Path: l.path, Err: err}
	}
	return true, nil
}

// release gives up the exclusive lock.
func (l mountLock) release() error {
	if err := unix.Flock(int(l.file.Fd()), unix.LOCK_UN); err != nil {
		return &os.PathError{Op: "flock", Path: l.path, Err: err}
	}
	return nil
}

// close gives up the lock for good. Without a file it does nothing.
func (l mountLock) close() {
	if l.file != nil {
		l.file.Close()
	}
}

// unmountUnlocked unmounts the file system when no process has the lock and none uses the mount. The exclusive lock
// is held from then on.
func (d *daemon) unmountUnlocked(ctx context.Context) {
	l := d.how.lock
	pause, reported := lockPause, false
	for {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		unlocked, err := l.take()
		message := "it is not known whether a process has a lock"
		switch {
		case err == nil && !unlocked:
			pause, reported = lockPause, false
			continue
		case err == nil:
			if err = d.unmountIdle(); err == nil {
				d.log.Info("unmounted, because no process has a lock", "file", l.path)
				return
			}
			message = "the mount stays, although no process has a lock"
			err = errors.Join(err, l.release()) // those who are to use the mount need a lock
		}
		pause = min(2*pause, lockPauseMax)
		if !reported {
			d.log.Info(message, "file", l.path, "err", err)
			reported = true
		}
	}
}

// unmountIdle unmounts the file system, wherever it is mounted by now. If it is in use, all its mount points stay, as
// far as this process sees who uses it.
func (d *daemon) unmountIdle() error {
	points, err := d.points()
	if err != nil {
		return err
	}
	if users, _ := procs.Users(d.at.Dev); len(users) > 0 {
		return fmt.Errorf("%v uses it: %w", users[0], unix.EBUSY)
	}
	for _, point := range slices.Backward(points) {
		if err := fs.Unmount(context.Background(), point, false); err != nil {
			return err
		}
	}
	if table, err := mounts.Read(mounts.Self); err != nil || table.Has(d.at.Dev) && d.connection.Live() {
		return errors.Join(errors.New("another mount hides its mount point"), err)
	}
	return nil
}
