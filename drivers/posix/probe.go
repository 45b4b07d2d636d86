package posix

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

var _ drivers.CopyProber = (*Store)(nil)

// ProbeCopy implements drivers.CopyProber. It reads with O_DIRECT, which leaves the page cache as
// it is. On a file system without O_DIRECT, it drops the pages of the block first.
func (s *Store) ProbeCopy(ctx context.Context, name string) (inFlight int, err error) {
	if err := checkRequest(ctx, "probe", name); err != nil {
		return 0, err
	}
	t, err := s.acquire()
	if err != nil {
		return 0, pathError("probe", name, err)
	}
	defer t.release()
	c, err := t.openCopy(ctx, name)
	if err != nil {
		return 0, pathError("probe", name, err)
	}
	defer c.Close()
	c.shared.Store(true) // Close keeps the pages, which may be those of a job
	inFlight = requestsInFlight(c.fd)
	if c.info.Size == 0 {
		return inFlight, nil
	}
	buf := blockBuffers.Get().(*[drivers.ChecksumBlock]byte)
	defer blockBuffers.Put(buf)
	block := rand.Int64N(blocksOf(c.info.Size))
	if err = c.checkDirect(block, buf[:]); err == errNoDirect {
		_, err = c.check(block, buf[:])
	}
	if err != nil {
		return inFlight, pathError("probe", name, err)
	}
	return inFlight, nil
}

// directAlignment is a multiple of the alignment that O_DIRECT needs, in bytes.
const directAlignment = 4096

var errNoDirect = errors.New("the file cannot be read with O_DIRECT")

// checkDirect reads a block with O_DIRECT into buf, which has the size of a block, and compares
// it with its checksum.
func (c *copyObject) checkDirect(block int64, buf []byte) error {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", c.fd), unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return errNoDirect
	}
	defer unix.Close(fd)
	off := block * drivers.ChecksumBlock
	size := min(drivers.ChecksumBlock, c.info.Size-off)
	buf = buf[:(size+directAlignment-1)&^(directAlignment-1)]
	for n := int64(0); n < size; {
		m, errno := vectorIO(unix.SYS_PREADV2, fd, buf[n:], off+n, 0)
		switch {
		case errno == unix.EINTR:
		case errno == unix.EINVAL, errno == unix.EOPNOTSUPP:
			return errNoDirect
		case errno != 0:
			c.unreadable(errno)
			return errno
		case m == 0:
			return drivers.ErrShort
		default:
			n += int64(m)
		}
	}
	return c.compare(block, buf[:size])
}

// unreadable records that a read of the copy has failed with err. If the disk may be the reason, the
// kernel reads the copy directly only after all of it was compared with its checksums again.
func (c *copyObject) unreadable(err error) {
	var errno unix.Errno
	if errors.As(err, &errno) && c.rec.checked.complete() {
		c.tree.records.uncheck(c.rec.inode, c.rec.off)
	}
}

// requestsInFlight returns the number of requests that the block device of a file has in flight,
// or 0 if the file is not on one.
func requestsInFlight(fd int) int {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0
	}
	counts, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/inflight", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return 0
	}
	var reads, writes int
	fmt.Fscan(strings.NewReader(string(counts)), &reads, &writes)
	return reads + writes
}
