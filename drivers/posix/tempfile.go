package posix

import (
	"fmt"
	"math/rand/v2"
	"regexp"

	"golang.org/x/sys/unix"
)

// A tempFile is a file that is being written, in a folder of the store, under a unique
// name. It becomes visible when it is renamed.
type tempFile struct {
	dirfd int    // the folder
	name  string // its name in the folder
	fd    int    // open for reading and writing
}

// tempFileName matches the names of temporary files, and no name that a person would
// choose.
var tempFileName = regexp.MustCompile(`^[0-9a-f]{16}\.part$`)

// Permissions of files. The sticky bit of a copy, which has no effect on a file, marks it as
// created by Milkweed, so that it can be removed even if its record is lost.
const (
	fileMode = 0o600
	copyMode = 0o1600
)

// newTempFile creates a temporary file in dirfd with the permissions mode.
func newTempFile(dirfd int, mode uint32) (tempFile, error) {
	const flags = unix.O_RDWR | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	for {
		f := tempFile{dirfd: dirfd, name: fmt.Sprintf("%016x.part", rand.Uint64())}
		err := ignoringEINTR(func() (err error) {
			f.fd, err = unix.Openat(dirfd, f.name, flags, fileMode)
			return err
		})
		if err == unix.EEXIST {
			continue
		}
		if err != nil {
			return tempFile{}, err
		}
		err = unix.Fchmod(f.fd, mode)       // without regard to the umask
		if err != nil && mode != fileMode { // some servers refuse the sticky bit
			err = unix.Fchmod(f.fd, fileMode)
		}
		if err != nil {
			f.unlink()
			f.close()
			return tempFile{}, err
		}
		return f, nil
	}
}

// publish writes data and renames the file to name, in the same folder. It returns when
// both are on the disk.
func (f tempFile) publish(name string, data []byte) error {
	if _, err := writeAt(f.fd, data, 0, 0); err != nil {
		return err
	}
	return f.rename(name)
}

// rename renames the file to name, in the same folder. It returns when the content and the
// name are on the disk.
func (f tempFile) rename(name string) error {
	if err := ignoringEINTR(func() error { return unix.Fsync(f.fd) }); err != nil {
		return err
	}
	if err := unix.Renameat(f.dirfd, f.name, f.dirfd, name); err != nil {
		return err
	}
	return ignoringEINTR(func() error { return syncFolder(f.dirfd) })
}

// syncFolder is fsync(2) of a folder. Tests replace it.
var syncFolder = unix.Fsync

func (f tempFile) unlink() { unix.Unlinkat(f.dirfd, f.name, 0) }

func (f tempFile) close() error { return unix.Close(f.fd) }
