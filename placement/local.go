package placement

import (
	"context"
	"errors"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// SpliceDescriptor implements drivers.Splicer for a file that is read from a copy.
func (f *file) SpliceDescriptor() (fd uintptr, release func(n int), err error) {
	_, op := f.trace(context.Background())
	v := f.current.Load()
	if !v.usable(f.entry) || !v.enter() {
		return 0, nil, errors.ErrUnsupported
	}
	s, ok := drivers.As[drivers.Splicer](v.Object)
	if !ok || v.atPeers {
		v.leave()
		return 0, nil, errors.ErrUnsupported
	}
	fd, done, err := s.SpliceDescriptor()
	if err != nil {
		v.leave()
		return 0, nil, errors.ErrUnsupported
	}
	return fd, func(n int) {
		done(n)
		f.handler.usage.read(f, v, -1, n, time.Now())
		op.endRead(v, -1, n, nil)
		v.leave()
	}, nil
}

// backingFrom is the size in bytes from which a file at the source has a backing file. The
// kernel opens a backing file once more for each open of the mount, and the daemon has a small
// file open already.
const backingFrom = 8 << 20

// backedAtSource reports whether the file has a backing file while it is read from the source.
func (f *file) backedAtSource() bool {
	return !f.handler.ahead.Enabled() && f.entry.Size() >= backingFrom && f.staysAtSource()
}

// BackingFile implements drivers.BackingFiler for a file that is read from a copy; or from the
// source, if no tier has room for it and there is no read-ahead: the kernel would read such a file
// with that of the source alone. A registered open counts as passthrough.
func (f *file) BackingFile(register func(fd uintptr) error) (release func(), err error) {
	v := f.current.Load()
	if v == nil || !v.enter() {
		return nil, errors.ErrUnsupported
	}
	b, ok := drivers.As[drivers.BackingFiler](v.Object)
	if !ok || v.atPeers || v.atSource() && !f.backedAtSource() {
		v.leave()
		return nil, errors.ErrUnsupported
	}
	done, err := b.BackingFile(register)
	if err != nil {
		v.leave()
		if errors.Is(err, drivers.ErrUnchecked) {
			f.handler.checks.add(f.entry)
		}
		return nil, err
	}
	if !f.forPeer {
		f.handler.usage.passthrough[v.level].add(f.entry.Size())
	}
	return func() {
		done()
		v.leave()
	}, nil
}
