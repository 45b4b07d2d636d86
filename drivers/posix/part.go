package posix

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"time"

	"golang.org/x/sys/unix"
)

// A part is a file in the making, in a folder of ours, under a name that
// nothing else has.
type part struct {
	dirfd int    // the folder
	name  string // its name there
	fd    int    // open for reading and writing
}

// partName matches what newPart calls its files, and nothing that a person
// would.
var partName = regexp.MustCompile(`^[0-9a-f]{16}\.part$`)

func newPart(dirfd int) (part, error) {
	for {
		p := part{dirfd: dirfd, name: fmt.Sprintf("%016x.part", rand.Uint64())}
		err := retry(func() (err error) {
			p.fd, err = unix.Openat(dirfd, p.name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
			return err
		})
		if err == unix.EEXIST {
			continue
		}
		if err != nil {
			return part{}, err
		}
		if err := unix.Fchmod(p.fd, 0o600); err != nil { // whatever the umask
			p.unlink()
			p.close()
			return part{}, err
		}
		return p, nil
	}
}

// made is when the file system says that the part was last changed.
func (p part) made() (time.Time, error) {
	var st unix.Stat_t
	if err := unix.Fstat(p.fd, &st); err != nil {
		return time.Time{}, err
	}
	return time.Unix(st.Ctim.Unix()), nil
}

// publish writes data and makes the part name, in its folder, and returns when
// that is on the disk.
func (p part) publish(name string, data []byte) error {
	if _, err := writeAt(p.fd, data, 0, 0); err != nil {
		return err
	}
	if err := retry(func() error { return unix.Fsync(p.fd) }); err != nil {
		return err
	}
	if err := unix.Renameat(p.dirfd, p.name, p.dirfd, name); err != nil {
		return err
	}
	return retry(func() error { return unix.Fsync(p.dirfd) })
}

func (p part) unlink() { unix.Unlinkat(p.dirfd, p.name, 0) }

func (p part) close() error { return unix.Close(p.fd) }
