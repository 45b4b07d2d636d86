package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/fs"
)

// usesEnv is the environment variable of processes that use mounts without a lock, since they have
// not inherited the descriptor: the paths of the lock files, separated by colons.
const usesEnv = "MILKWEED_USES"

// After lockPause, a daemon looks again whether its mount is used. The pause doubles, to lockPauseMax,
// while files are open in a mount that is not used otherwise.
const (
	lockPause    = time.Second
	lockPauseMax = time.Minute
)

// lockTouch is the time after which a daemon sets the times of the lock file, so that what cleans up
// /tmp does not remove it.
const lockTouch = time.Hour

// A mountLock is the file of --while-locked. Those who use the mount have a shared lock on it. Who
// unmounts has an exclusive lock until the dataset can be mounted again.
type mountLock struct {
	file *os.File // nil: there is none
	path string   // absolute and without symbolic links
}

// openLock opens the file of --while-locked.
func (f *mountFlags) openLock() (mountLock, error) {
	if f.lock == "" {
		return mountLock{}, nil
	}
	path, err := control.Resolve(f.lock)
	var file *os.File
	if err == nil {
		file, err = os.Open(path)
	}
	if err != nil {
		return mountLock{}, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("--while-locked: %w", err), Remedy: "Make the file, and lock it with flock(1) or flock(2)."}
	}
	return mountLock{file, filepath.Clean(path)}, nil
}

// unused gets the exclusive lock and reports true if no process uses the mount. Otherwise the lock is
// free.
func (l mountLock) unused() (bool, error) {
	switch err := unix.Flock(int(l.file.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return false, nil
	case err != nil:
		return false, &os.PathError{Op: "flock", Path: l.path, Err: err}
	}
	if len(procs.Naming(usesEnv, l.path)) > 0 {
		return false, l.release()
	}
	return true, nil
}

// release gives the lock back, so that others can use or make the mount. Without a file it does nothing.
func (l mountLock) release() error {
	if l.file == nil {
		return nil
	}
	return unix.Flock(int(l.file.Fd()), unix.LOCK_UN)
}

// unmountUnused unmounts the file system when no process uses it any more. The lock is held until the
// process ends or the mount drains.
func (d *daemon) unmountUnused(ctx context.Context) {
	pause, touched := lockPause, time.Now()
	for {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		if time.Since(touched) > lockTouch {
			touched = time.Now()
			if err := unix.Futimes(int(d.how.lock.file.Fd()), []unix.Timeval{unix.NsecToTimeval(touched.UnixNano()), unix.NsecToTimeval(touched.UnixNano())}); err != nil {
				d.log.Warn("lock of the mount", "err", err)
			}
		}
		unused, err := d.how.lock.unused()
		if err != nil {
			d.log.Warn("lock of the mount", "err", err)
		}
		if !unused {
			pause = lockPause
			continue
		}
		if err := d.unmountIdle(ctx); err == nil {
			d.log.Info("unmounting, because no process has the lock", "lock", d.how.lock.path)
			return
		}
		// Files are open. Those who want to use the mount meanwhile need the lock.
		if err := d.how.lock.release(); err != nil {
			d.log.Warn("lock of the mount", "err", err)
		}
		pause = min(2*pause, lockPauseMax)
	}
}

// unmountIdle unmounts the file system, wherever it is mounted by now, unless it is in use.
func (d *daemon) unmountIdle(ctx context.Context) error {
	points, err := d.points()
	if err != nil {
		return err
	}
	for _, point := range slices.Backward(points) {
		if err := fs.Unmount(ctx, point, false); err != nil {
			return err
		}
	}
	return nil
}
