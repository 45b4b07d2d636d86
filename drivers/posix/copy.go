package posix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

var (
	_ drivers.Object       = (*copyObject)(nil)
	_ drivers.Checker      = (*copyObject)(nil)
	_ drivers.Checksummer  = (*copyObject)(nil)
	_ drivers.BackingFiler = (*copyObject)(nil)
	_ drivers.Splicer      = (*copyObject)(nil)
)

// A copyObject is an open copy. Each block is compared with its checksum when it is first used,
// unless that happened since the block was written or the store was opened. A block is then
// read from the disk, and not from pages that the kernel has: only the disk shows what a
// later read will return.
type copyObject struct {
	*object
	tree *tree // released by Close
	rec  copyRecord
	kept atomic.Bool // checks have left pages in the cache
}

// blockBuffers holds buffers of one block.
var blockBuffers = sync.Pool{New: func() any { return new([drivers.ChecksumBlock]byte) }}

// openCopy opens the copy of a name. The error matches drivers.ErrCorrupt if the file is not a
// valid copy, and ENOENT if it is no copy at all.
func (t *tree) openCopy(ctx context.Context, name string) (c *copyObject, err error) {
	err = t.recheck(name, func() (inode uint64, err error) {
		fd, err := t.files.openRead(t.root(), name, unix.O_NONBLOCK)
		if err != nil {
			return 0, asMissing(err)
		}
		if c, err = t.newCopy(ctx, fd, name); err != nil {
			inode, _ = inodeOf(fd)
			unix.Close(fd)
		}
		return inode, err
	})
	return c, err
}

// damageChecks is the number of times that a file must be found damaged.
const damageChecks = 4

// recheck calls f, which validates the file of a name and returns its inode number, until f does not find it
// damaged, or finds the file of the name damaged damageChecks times. A name gets its record before the file,
// and loses it after the file. So a file without a record that still has the name is damaged, unless it lost the
// name and got it again meanwhile, as a link does that is made again.
func (t *tree) recheck(name string, f func() (inode uint64, err error)) error {
	for damaged := 0; ; {
		inode, err := f()
		if !errors.Is(err, drivers.ErrCorrupt) {
			return err
		}
		if t.mayLeadTo(name, inode) {
			damaged++
		}
		switch {
		case damaged < damageChecks:
		case errors.Is(err, errNotCreated):
			return unix.ENOENT
		default:
			return err
		}
	}
}

// mayLeadTo returns false if a name is missing or that of a file with another inode number.
func (t *tree) mayLeadTo(name string, inode uint64) bool {
	fd, err := openBelow(t.root().fd, name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return !isMissing(err)
	}
	defer unix.Close(fd)
	now, err := inodeOf(fd)
	return err != nil || now == inode
}

// inodeOf returns the inode number of the file of fd.
func inodeOf(fd int) (uint64, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return st.Ino, err
}

// newCopy is openCopy of a file that is open. After an error the caller closes fd.
func (t *tree) newCopy(ctx context.Context, fd int, name string) (*copyObject, error) {
	var st unix.Stat_t
	if err := ignoringEINTR(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return nil, err
	}
	if err := checkRegular(&st); err != nil {
		return nil, err
	}
	info := infoOf(name, &st)
	info.Names = info.Nlink
	rec, err := t.validate(ctx, name, info)
	if err != nil {
		return nil, err
	}
	if !t.refs.Acquire() {
		return nil, unix.EBADF
	}
	o := &object{fd: fd, cache: &t.root().cache, name: name, info: rec.apply(info), mtime: st.Mtim}
	return &copyObject{object: o, tree: t, rec: rec}, nil
}

// statCopy is Stat of a name that may have a copy. If that is damaged, statCopy returns an
// error that matches drivers.ErrCorrupt, and the Info of the file. A file that Milkweed did not create
// is missing, as for openCopy: Sweep does not list it, and the account of the tier does not have it.
func (t *tree) statCopy(ctx context.Context, name string) (info drivers.Info, err error) {
	err = t.recheck(name, func() (uint64, error) {
		err := t.files.withPath(ctx, "stat", name, func(fd int) error {
			var st unix.Stat_t
			if err := unix.Fstat(fd, &st); err != nil {
				return err
			}
			if info = infoOf(name, &st); !info.IsRegular() {
				return nil
			}
			info.Names = info.Nlink
			rec, err := t.validate(ctx, name, info)
			switch {
			case err == nil:
				info = rec.apply(info)
			case rec.name == nameHash(name): // the account of the tier has the size that was written
				info.Size = rec.source.Size
			}
			return err
		})
		return info.Inode, err
	})
	return info, err
}

// errNotCreated is the error of validate for a file that hasCreated does not know.
var errNotCreated = fmt.Errorf("a file that Milkweed did not create: %w", drivers.ErrCorrupt)

// validate returns the record of a file, which has the attributes info and is regular. The
// error is ENOENT if another user owns the file, and matches drivers.ErrCorrupt if the file has
// no valid record. If it has the record of other attributes or of another name, validate
// returns that record with the error.
func (t *tree) validate(ctx context.Context, name string, info drivers.Info) (copyRecord, error) {
	if !isOwn(info.UID) {
		return copyRecord{}, unix.ENOENT
	}
	rec, err := t.records.find(ctx, info.Inode, name)
	if err == nil && !rec.describes(name, info) {
		err = errNoRecord
	}
	switch {
	case err == errNoRecord && rec.name != nameHash(name) && !hasCopyMode(&info):
		return rec, errNotCreated
	case err == errNoRecord:
		return rec, fmt.Errorf("the file is not the one that was written: %w", drivers.ErrCorrupt)
	}
	return rec, err
}

// ReadAt implements drivers.Object. If it needs a block that was not checked yet, it reads and
// checks the whole block. The error matches drivers.ErrCorrupt if the content is wrong.
func (c *copyObject) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if c.rec.checked.complete() {
		n, err := c.object.ReadAt(ctx, p, off)
		if err != nil && err != io.EOF {
			c.unreadable(err)
		}
		return n, err
	}
	if err := ctx.Err(); err != nil {
		return 0, pathError("read", c.name, err)
	}
	n := 0
	for end := min(off+int64(len(p)), c.info.Size); off < end; {
		m, err := c.readBlock(p[n:int64(n)+min(end-off, drivers.ChecksumBlock-off%drivers.ChecksumBlock)], off)
		n += m
		off += int64(m)
		if err != nil {
			return n, pathError("read", c.name, err)
		}
	}
	if err := c.verify(); err != nil {
		return 0, pathError("read", c.name, err)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// readBlock reads p, which lies within one block.
func (c *copyObject) readBlock(p []byte, off int64) (int, error) {
	block := off / drivers.ChecksumBlock
	if c.rec.checked.has(block) {
		return c.cache.readAt(c.fd, p, off, c.info.Size)
	}
	buf := blockBuffers.Get().(*[drivers.ChecksumBlock]byte)
	defer blockBuffers.Put(buf)
	content, err := c.check(block, buf[:])
	if err != nil {
		return 0, err
	}
	return copy(p, content[off%drivers.ChecksumBlock:]), nil
}

// check reads a block into buf, compares it with its checksum, and returns its content.
func (c *copyObject) check(block int64, buf []byte) ([]byte, error) {
	off := block * drivers.ChecksumBlock
	buf = buf[:min(drivers.ChecksumBlock, c.info.Size-off)]
	if !c.cache.inMemory {
		dropAround(c.fd, off, int64(len(buf)))
		c.kept.Store(true)
	}
	if _, err := readAt(c.fd, buf, off, 0); err != nil && err != io.EOF {
		c.unreadable(err)
		return nil, err
	}
	if err := c.compare(block, buf); err != nil {
		return nil, err
	}
	c.rec.checked.add(block)
	if c.rec.checked.complete() {
		c.tree.records.allAreChecked(c.rec.inode, c.rec.off)
	}
	return buf, nil
}

// compare compares a block that was read from the disk with its checksum. If it differs, each
// later open checks all blocks again.
func (c *copyObject) compare(block int64, content []byte) error {
	if drivers.Checksum(0, content) == c.rec.sums[block] {
		return nil
	}
	c.tree.records.uncheck(c.rec.inode, c.rec.off)
	return fmt.Errorf("block %d: %w", block, drivers.ErrCorrupt)
}

// Check implements drivers.Checker.
func (c *copyObject) Check(ctx context.Context, off int64) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, pathError("check", c.name, err)
	}
	if off < 0 || off >= c.info.Size || off%drivers.ChecksumBlock != 0 {
		return 0, pathError("check", c.name, unix.EINVAL)
	}
	buf := blockBuffers.Get().(*[drivers.ChecksumBlock]byte)
	defer blockBuffers.Put(buf)
	content, err := c.check(off/drivers.ChecksumBlock, buf[:])
	if err != nil {
		return 0, pathError("check", c.name, err)
	}
	return len(content), nil
}

// Checked implements drivers.Checker.
func (c *copyObject) Checked() bool { return c.rec.checked.complete() }

// Checksums implements drivers.Checksummer.
func (c *copyObject) Checksums(first, n int64) ([]uint32, error) {
	if first < 0 || n < 0 || first+n > int64(len(c.rec.sums)) {
		return nil, pathError("checksums", c.name, unix.EINVAL)
	}
	return c.rec.sums[first : first+n], nil
}

// ready returns nil if all blocks were checked, so that the file may be read without this
// package. It checks a copy of one block itself.
func (c *copyObject) ready() error {
	switch {
	case c.rec.checked.complete():
		return nil
	case c.info.Size > drivers.ChecksumBlock:
		return drivers.ErrUnchecked
	}
	_, err := c.Check(context.Background(), 0)
	return err
}

// BackingFile implements drivers.BackingFiler. The error matches drivers.ErrUnchecked if blocks
// of a copy of several blocks were not checked yet.
func (c *copyObject) BackingFile(register func(fd uintptr) error) (release func(), err error) {
	if err := c.ready(); err != nil {
		return nil, err
	}
	return c.object.BackingFile(register)
}

// SpliceDescriptor implements drivers.Splicer. The error is as for BackingFile.
func (c *copyObject) SpliceDescriptor() (fd uintptr, release func(n int), err error) {
	if err := c.ready(); err != nil {
		return 0, nil, err
	}
	return c.object.SpliceDescriptor()
}

// Close implements drivers.Object.
func (c *copyObject) Close() error {
	if c.kept.Load() && !c.shared.Load() {
		dropPages(c.fd, 0)
	}
	err := c.object.Close()
	c.tree.release()
	return err
}
