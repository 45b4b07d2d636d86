package drivertest

import (
	"context"
	"errors"
	"io"
	"syscall"

	"github.com/milkweedfs/milkweed/drivers"
)

// An object is an Object of the inner driver with faults.
type object struct {
	faults *Faults
	name   string
	inner  drivers.Object
}

func (o *object) Info() drivers.Info { return o.inner.Info() }

func (o *object) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	short, err := o.faults.inject(ctx, OpRead, o.name)
	if err != nil {
		return 0, err
	}
	if short {
		p = p[:len(p)/2]
	}
	n, err := o.inner.ReadAt(ctx, p, off)
	if end := o.faults.end(o.name); end > 0 && off+int64(n) > end {
		n, err = int(max(end-off, 0)), drivers.ErrShort
	}
	o.faults.addBytes(OpRead, n)
	if short && err == nil {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Inner returns the wrapped Object, for drivers.As.
func (o *object) Inner() drivers.Object { return o.inner }

// Verify implements drivers.Verifier.
func (o *object) Verify(ctx context.Context) error {
	if _, err := o.faults.inject(ctx, OpVerify, o.name); err != nil {
		return err
	}
	if v, ok := drivers.As[drivers.Verifier](o.inner); ok {
		return v.Verify(ctx)
	}
	return errors.ErrUnsupported
}

// Check implements drivers.Checker.
func (o *object) Check(ctx context.Context, off int64) (int, error) {
	if _, err := o.faults.inject(ctx, OpRead, o.name); err != nil {
		return 0, err
	}
	if c, ok := drivers.As[drivers.Checker](o.inner); ok {
		return c.Check(ctx, off)
	}
	return 0, errors.ErrUnsupported
}

// Checked implements drivers.Checker.
func (o *object) Checked() bool {
	c, ok := drivers.As[drivers.Checker](o.inner)
	return ok && c.Checked()
}

// BackingFile implements drivers.BackingFiler.
func (o *object) BackingFile(register func(fd uintptr) error) (release func(), err error) {
	b, ok := drivers.As[drivers.BackingFiler](o.inner)
	if !ok || o.faults.affects(OpRead, o.name) {
		return nil, errors.ErrUnsupported
	}
	return b.BackingFile(register)
}

// SpliceDescriptor implements drivers.Splicer.
func (o *object) SpliceDescriptor() (fd uintptr, release func(n int), err error) {
	s, ok := drivers.As[drivers.Splicer](o.inner)
	if !ok || o.faults.affects(OpRead, o.name) {
		return 0, nil, errors.ErrUnsupported
	}
	return s.SpliceDescriptor()
}

// Stream implements drivers.Streamer.
func (o *object) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	short, err := o.faults.injectUntil(ctx, ctx.Done(), OpRead, o.name)
	if err != nil {
		return nil, err
	}
	s, ok := drivers.As[drivers.Streamer](o.inner)
	if !ok {
		return nil, syscall.ENOTSUP
	}
	inner, err := s.Stream(ctx, off, n)
	if err != nil {
		return nil, err
	}
	return &stream{ReadCloser: inner, object: o, ctx: ctx, short: short, left: n / 2}, nil
}

func (o *object) Close() error {
	_, injected := o.faults.inject(context.Background(), OpClose, o.name)
	if err := o.inner.Close(); err != nil {
		return err
	}
	return injected
}

// A stream is a stream of the inner Object with faults.
type stream struct {
	io.ReadCloser
	object *object
	ctx    context.Context
	short  bool  // it ends early
	left   int64 // bytes until then
}

func (s *stream) Read(p []byte) (int, error) {
	f := s.object.faults
	short, err := f.injectUntil(s.ctx, s.ctx.Done(), OpStream, s.object.name)
	if err != nil {
		return 0, err
	}
	if short {
		p = p[:len(p)/2]
	}
	if s.short {
		p = p[:min(int64(len(p)), s.left)]
	}
	n, err := s.ReadCloser.Read(p)
	f.addBytes(OpRead, n)
	s.left -= int64(n)
	if err == nil && (short || s.short && s.left == 0) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// A writer is a Writer of the inner driver with faults.
type writer struct {
	faults *Faults
	name   string
	inner  drivers.Writer
}

func (w *writer) WriteAt(p []byte, off int64) (int, error) {
	if _, err := w.faults.inject(context.Background(), OpWrite, w.name); err != nil {
		return 0, err
	}
	n, err := w.inner.WriteAt(p, off)
	w.faults.addBytes(OpWrite, n)
	return n, err
}

func (w *writer) ReadAt(p []byte, off int64) (int, error) {
	short, err := w.faults.inject(context.Background(), OpReadBack, w.name)
	if err != nil {
		return 0, err
	}
	if short {
		p = p[:len(p)/2]
	}
	n, err := w.inner.ReadAt(p, off)
	w.faults.addBytes(OpReadBack, n)
	if short && err == nil {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (w *writer) Commit() error {
	if _, err := w.faults.inject(context.Background(), OpCommit, w.name); err != nil {
		return err
	}
	return w.inner.Commit()
}

func (w *writer) Abort() {
	w.faults.inject(context.Background(), OpAbort, w.name)
	w.inner.Abort()
}

func (w *writer) Close() error { return w.inner.Close() }
