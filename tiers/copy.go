package tiers

import (
	"context"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/drivers/refcount"
)

// A copyFile is an open file of a tier: a copy, or one that is being written. Operations
// hold references, so that the file is closed when the last of them has returned, abandoned
// ones included. Otherwise an abandoned write could continue in another file that gets the same
// descriptor.
type copyFile struct {
	tier   *Tier
	name   string
	file   io.Closer
	held   *openCopy // the committed copy that file is open on; nil: not committed
	refs   refcount.Count
	closed atomic.Bool
}

// release drops a reference. The last one closes the file.
func (c *copyFile) release() error {
	if !c.refs.Release() {
		return nil
	}
	err := c.file.Close()
	if c.held != nil {
		c.tier.space.release(c.name, c.held)
	}
	return err
}

// close drops the owner's reference. It waits for at most the time-out, and not at all
// while the tier is down. A second call does nothing.
func (c *copyFile) close(k kind) error {
	if c.closed.Swap(true) {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if !c.tier.health.readable() {
		cancel()
	}
	_, err := boundedBy(ctx, c.tier, c.tier.opts.Timeout, func() (struct{}, error) { return struct{}{}, c.release() }, nil, func() { c.release() })
	if err != nil && ctx.Err() == nil {
		err = c.tier.note(k, err)
	}
	return err
}

// do performs one operation on the file, unless the tier is down, and records its result.
func (c *copyFile) do(k kind, f func() (int, error), late func(int)) (int, error) {
	return c.doBy(context.Background(), c.tier.opts.Timeout, k, f, late)
}

// doBy is do with another time-out. When ctx is done, it abandons the operation.
func (c *copyFile) doBy(ctx context.Context, timeout time.Duration, k kind, f func() (int, error), late func(int)) (int, error) {
	t := c.tier
	if !t.health.readable() {
		return 0, t.note(k, errDown)
	}
	if !c.refs.Acquire() {
		return 0, os.ErrClosed
	}
	n, err := boundedBy(ctx, t, timeout, func() (int, error) {
		defer c.release()
		return f()
	}, late, func() { c.release() })
	if err != nil && ctx.Err() != nil && !errors.Is(err, errTimeout) {
		return n, err // the caller was cancelled
	}
	return n, t.note(k, err)
}

// answered turns the result of a read of p, without io.EOF, into that of an io.ReaderAt,
// and counts it.
func (t *Tier) answered(p []byte, n int, err error, start time.Time) (int, error) {
	if err != nil {
		return 0, err
	}
	t.countRead(n, start)
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// countRead counts a read of n bytes.
func (t *Tier) countRead(n int, start time.Time) {
	atomic.AddInt64(&t.counters.Reads, 1)
	atomic.AddInt64(&t.counters.Bytes, int64(n))
	t.latency.Observe(time.Since(start))
}

// withoutEOF returns the result of a read with a nil error in place of io.EOF, which is no
// failure of the tier.
func withoutEOF(n int, err error) (int, error) {
	if err == io.EOF {
		err = nil
	}
	return n, err
}

// An object is an open copy.
type object struct {
	copyFile
	obj drivers.Object
}

var (
	_ drivers.Object       = (*object)(nil)
	_ drivers.Splicer      = (*object)(nil)
	_ drivers.BackingFiler = (*object)(nil)
	_ drivers.Checker      = (*object)(nil)
	_ drivers.Checksummer  = (*object)(nil)
)

// ReadAt implements drivers.Object. It ignores its context, since the tier's time-out is
// short. A read from memory allocates nothing.
func (o *object) ReadAt(_ context.Context, p []byte, off int64) (int, error) {
	start := time.Now()
	if o.tier.memory.Load() {
		return o.readMemory(p, off, start)
	}
	begun, inFlight := start, 0
	n, err := o.do(reading, func() (int, error) {
		begun, inFlight = time.Now(), int(o.tier.inFlight.Load()) // it has perhaps waited for others
		return withoutEOF(o.obj.ReadAt(context.Background(), p, off))
	}, nil)
	if err == nil {
		o.tier.speed.add(time.Since(begun), inFlight)
	}
	return o.tier.answered(p, n, err, start)
}

func (o *object) readMemory(p []byte, off int64, start time.Time) (n int, err error) {
	t := o.tier
	if !t.health.readable() {
		return 0, t.note(reading, errDown)
	}
	if !o.refs.Acquire() {
		return 0, os.ErrClosed
	}
	defer o.release()
	defer panics.Catch(&err)
	n, err = withoutEOF(o.obj.ReadAt(context.Background(), p, off))
	return t.answered(p, n, t.note(reading, err), start)
}

// Check implements drivers.Checker. It has the time-out of a read.
func (o *object) Check(_ context.Context, off int64) (int, error) {
	c, ok := drivers.As[drivers.Checker](o.obj)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	return o.do(reading, func() (int, error) { return c.Check(context.Background(), off) }, nil)
}

// Checked implements drivers.Checker.
func (o *object) Checked() bool {
	c, ok := drivers.As[drivers.Checker](o.obj)
	return ok && c.Checked()
}

// Checksums implements drivers.Checksummer.
func (o *object) Checksums(first, n int64) ([]uint32, error) {
	c, ok := drivers.As[drivers.Checksummer](o.obj)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return c.Checksums(first, n)
}

// Inner returns the copy as its store opened it, for drivers.As.
func (o *object) Inner() drivers.Object { return o.obj }

// SpliceDescriptor implements drivers.Splicer for a tier that never blocks. The copy is not
// closed before release.
func (o *object) SpliceDescriptor() (fd uintptr, release func(n int), err error) {
	s, ok := drivers.As[drivers.Splicer](o.obj)
	if !ok || !o.tier.memory.Load() {
		return 0, nil, errors.ErrUnsupported
	}
	if !o.refs.Acquire() {
		return 0, nil, os.ErrClosed
	}
	start := time.Now()
	fd, done, err := s.SpliceDescriptor()
	if err != nil {
		o.release()
		if !errors.Is(err, errors.ErrUnsupported) {
			err = o.tier.note(reading, err)
		}
		return 0, nil, err
	}
	return fd, func(n int) {
		done(n)
		o.tier.countRead(n, start)
		o.release()
	}, nil
}

// BackingFile implements drivers.BackingFiler. Reads by the kernel have no time-out and are not
// counted; lent.go probes the tier instead. The copy is not closed before release.
func (o *object) BackingFile(register func(fd uintptr) error) (release func(), err error) {
	if !o.tier.lends() {
		return nil, drivers.ErrFailing
	}
	if err := o.checkSmall(); err != nil {
		return nil, err
	}
	done, err := backingFile(o.obj, &o.refs, register, func() { o.release() })
	if err != nil {
		return nil, err
	}
	end := o.tier.lending.lend()
	return func() {
		end()
		done()
	}, nil
}

// checkSmall compares a copy of one block with its checksum, which its store would do otherwise,
// without a time-out.
func (o *object) checkSmall() error {
	c, ok := drivers.As[drivers.Checker](o.obj)
	if !ok || o.tier.memory.Load() || c.Checked() || o.Info().Size > drivers.ChecksumBlock {
		return nil
	}
	_, err := o.Check(context.Background(), 0)
	return err
}

// backingFile is the BackingFile of obj. It holds one of refs, which release drops.
func backingFile(obj drivers.Object, refs *refcount.Count, register func(fd uintptr) error, release func()) (func(), error) {
	b, ok := drivers.As[drivers.BackingFiler](obj)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	if !refs.Acquire() {
		return nil, os.ErrClosed
	}
	done, err := b.BackingFile(register)
	if err != nil {
		release()
		return nil, err
	}
	return func() {
		done()
		release()
	}, nil
}

// Info implements drivers.Object.
func (o *object) Info() drivers.Info { return o.obj.Info() }

// Close implements drivers.Object.
func (o *object) Close() error { return o.close(opening) }

// A writer is a copy that is being written.
type writer struct {
	copyFile
	ctx  context.Context // when it is done, a commit in progress is abandoned
	w    drivers.Writer
	size int64
	hung atomic.Bool // Commit was abandoned and may still be in progress
}

var _ drivers.Writer = (*writer)(nil)

// ReadAt implements drivers.Writer.
func (w *writer) ReadAt(p []byte, off int64) (int, error) {
	start := time.Now()
	n, err := w.do(reading, func() (int, error) { return withoutEOF(w.w.ReadAt(p, off)) }, nil)
	return w.tier.answered(p, n, err, start)
}

// WriteAt implements drivers.Writer.
func (w *writer) WriteAt(p []byte, off int64) (int, error) {
	n, err := w.do(writing, func() (int, error) { return w.w.WriteAt(p, off) }, nil)
	w.tier.noteRefused(err, w.size)
	return n, err
}

// commitTimeouts is the time-out of a commit, in time-outs of the tier. A commit waits until the
// disk has the whole copy, which other programs may delay.
const commitTimeouts = 12

// Commit implements drivers.Writer. A commit that was abandoned and succeeds later is
// entered into the account, though the copy is not published.
func (w *writer) Commit() error {
	t := w.tier
	_, err := w.doBy(w.ctx, commitTimeouts*t.opts.Timeout, committing, func() (int, error) {
		return 0, t.change(context.Background(), w.name, func(bool) error { return w.w.Commit() }, w.committed)
	}, func(int) { t.space.add(t.space.rounded(w.size), 1) })
	w.hung.Store(errors.Is(err, drivers.ErrAbandoned))
	t.noteRefused(err, w.size)
	return err
}

// committed is called when the copy is complete and has its name.
func (w *writer) committed() {
	t := w.tier
	w.held = t.space.committed(w.name)
	if copied, err := t.store.Stat(context.Background(), w.name); err == nil { // else it counts with its rounded size
		t.space.settle(w.name, copied)
	}
}

// Abort implements drivers.Writer. If a hanging commit prevents it, Close discards the
// copy.
func (w *writer) Abort() {
	if !w.hung.Load() {
		w.do(writing, func() (int, error) { w.w.Abort(); return 0, nil }, nil)
	}
}

// Close implements drivers.Writer.
func (w *writer) Close() error { return w.close(writing) }
