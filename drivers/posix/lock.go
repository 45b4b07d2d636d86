package posix

import (
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// A Holder describes the process that holds the lock of a dataset folder.
type Holder struct {
	PID        int       `json:"pid"`
	Host       string    `json:"host"`
	Mountpoint string    `json:"mountpoint"` // where it mounts the dataset
	Since      time.Time `json:"since"`      // when it opened the folder
}

// A LockedError reports a dataset folder that another process has locked.
type LockedError struct {
	Path   string // the folder
	Holder Holder // zero if unknown
}

func (e *LockedError) Error() string {
	if e.Holder.PID == 0 {
		return fmt.Sprintf("%s: in use by another process", e.Path)
	}
	return fmt.Sprintf("%s: in use by process %d on %s, mounted at %s since %s",
		e.Path, e.Holder.PID, e.Holder.Host, e.Holder.Mountpoint, e.Holder.Since.Format(time.DateTime))
}

// lockName is the lock file of a dataset folder. It is locked with flock(2): the lock ends
// with the process, even if the process is killed. The file is never removed. Its content, a
// Holder, is valid only while it is locked.
const lockName = "lock"

// takeLock locks folder, which is at path, for holder. It returns the descriptor that holds
// the lock. If held is the descriptor of an earlier lock of the same file, the result shares
// that lock; otherwise held is ignored.
func takeLock(folder, held int, path string, holder Holder) (int, error) {
	fd, err := openLock(folder)
	if err != nil {
		return -1, pathError("lock", path, err)
	}
	if held >= 0 && sameFile(fd, held) {
		unix.Close(fd)
		return unix.FcntlInt(uintptr(held), unix.F_DUPFD_CLOEXEC, 0)
	}
	err = ignoringEINTR(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if err == unix.EWOULDBLOCK {
		locked := &LockedError{Path: path, Holder: readHolder(folder)}
		unix.Close(fd)
		return -1, locked
	}
	if err == nil {
		err = writeHolder(fd, encode(holder))
	}
	if isNoRoom(err) { // the copies can be read, and another process says that it does not know the holder
		err = nil
	}
	if err != nil {
		unix.Close(fd)
		return -1, pathError("lock", path, err)
	}
	return fd, nil
}

// openLock opens the lock file in folder and creates it if it is missing.
func openLock(folder int) (int, error) {
	how := unix.O_RDWR | unix.O_CREAT | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Openat(folder, lockName, how, 0o600)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil {
		err = checkRegular(&st)
	}
	if err == nil {
		err = unix.Fchmod(fd, 0o600)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// readHolder returns the content of the lock file, or the zero Holder if it is unreadable or
// being written.
func readHolder(folder int) Holder {
	var h Holder
	if data, err := readSmall(folder, lockName); err == nil && json.Unmarshal(data, &h) != nil {
		return Holder{}
	}
	return h
}

// writeHolder replaces the content of the lock file fd.
func writeHolder(fd int, data []byte) error {
	if err := unix.Ftruncate(fd, 0); err != nil {
		return err
	}
	_, err := writeAt(fd, data, 0, 0)
	return err
}

// isNamed reports whether name in a folder is the file of fd.
func isNamed(dirfd int, name string, fd int) bool {
	var named, open unix.Stat_t
	return unix.Fstatat(dirfd, name, &named, unix.AT_SYMLINK_NOFOLLOW) == nil && unix.Fstat(fd, &open) == nil &&
		named.Dev == open.Dev && named.Ino == open.Ino
}

// sameFile reports whether a and b are descriptors of the same file.
func sameFile(a, b int) bool {
	var sa, sb unix.Stat_t
	return unix.Fstat(a, &sa) == nil && unix.Fstat(b, &sb) == nil && sa.Dev == sb.Dev && sa.Ino == sb.Ino
}
