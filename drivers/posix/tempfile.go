package posix

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"time"

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

// newTempFile creates a temporary file in dirfd.
func newTempFile(dirfd int) (tempFile, error) {
	const flags = unix.O_RDWR | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	for {
		f := tempFile{dirfd: dirfd, name: fmt.Sprintf("%016x.part", rand.Uint64())}
		err := ignoringEINTR(func() (err error) {
			f.fd, err = unix.Openat(dirfd, f.name, flags, 0o600)
			return err
		})
		if err == unix.EEXIST {
			continue
		}
		if err != nil {
			return tempFile{}, err
		}
		if err := unix.Fchmod(f.fd, 0o600); err != nil { // without regard to the umask
			f.unlink()
			f.close()
			return tempFile{}, err
		}
		return f, nil
	}
}

// ctime returns the change time of the file, by the clock of the file system.
func (f tempFile) ctime() (time.Time, error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return time.Time{}, err
	}
	return time.Unix(st.Ctim.Unix()), nil
}

// publish writes data and renames the file to name, in the same folder. It returns when
// both are on the disk.
func (f tempFile) publish(name string, data []byte) error {
	if _, err := writeAt(f.fd, data, 0, 0); err != nil {
		return err
	}
	if err := ignoringEINTR(func() error { return unix.Fsync(f.fd) }); err != nil {
		return err
	}
	if err := unix.Renameat(f.dirfd, f.name, f.dirfd, name); err != nil {
		return err
	}
	return ignoringEINTR(func() error { return unix.Fsync(f.dirfd) })
}

func (f tempFile) unlink() { unix.Unlinkat(f.dirfd, f.name, 0) }

func (f tempFile) close() error { return unix.Close(f.fd) }
