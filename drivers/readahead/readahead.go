// Package readahead reads files ahead of sequential readers, into bounded memory.
//
// A file that fits into no tier is read from the source in every epoch. The kernel requests
// 128 KiB to 1 MiB at a time, and each request would wait for the latency of the source.
// Sequential access is therefore prefetched in runs of chunks that grow with each run. Random
// access is not prefetched: each read is one request for exactly its range.
//
// If the source serves long requests best, as a bucket does, a run is one request, and a file is
// prefetched from its first read on. From a file system, the chunks of a run are read in parallel,
// and a reader has at most as many bytes prefetched as it has read, and none before it has read
// one chunk: what it then leaves unread is less than what it has read.
//
// A read of a whole file is one request, into the buffer of the reader: a request on a goroutine of
// its own, and a copy, would delay the reader of a small file.
//
// The requests are those of demand reads, since a reader is about to need the bytes. They do not
// pass the gate of background work. Only the memory bounds them.
package readahead

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/milkweedfs/milkweed/drivers"
)

const (
	chunkSize = 1 << 20
	runsAhead = 2 // runs requested beyond the one that is being read

	// maxRun is the number of chunks in a run, unless the profile of the source has a stride.
	maxRun = 8

	// perObject is the inverse of the share of a pool that one object may take.
	perObject = 4
)

// A Pool is memory that the read-ahead of several objects shares. Its methods may be called
// concurrently.
type Pool struct {
	chunks  int64 // that may be in memory
	stride  int64 // Profile.Stride of the source
	taken   atomic.Int64
	active  atomic.Int64 // objects that have chunks in memory
	buffers sync.Pool    // of *[chunkSize]byte
}

// NewPool makes a pool of a number of bytes for the objects of a source. One object takes at most a
// quarter of them.
func NewPool(bytes int64, source drivers.Profile) *Pool {
	return &Pool{
		chunks: bytes / chunkSize, stride: source.Stride,
		buffers: sync.Pool{New: func() any { return new([chunkSize]byte) }},
	}
}

// Enabled reports whether the pool has any memory.
func (p *Pool) Enabled() bool { return p.chunks > 0 }

// take takes memory for one chunk, and reports success.
func (p *Pool) take() bool {
	if p.taken.Add(1) <= p.chunks {
		return true
	}
	p.taken.Add(-1)
	return false
}

// eager reports whether the source serves long requests best.
func (p *Pool) eager() bool { return p.stride > 0 }

// maxRun returns the largest number of chunks in a run.
func (p *Pool) maxRun() int64 {
	if p.eager() {
		return max(1, p.stride/chunkSize)
	}
	return maxRun
}

// maxWindow returns the number of chunks that one object may have in memory.
func (p *Pool) maxWindow() int64 { return p.chunks / perObject }

// An object reads ahead of the sequential readers of an object of the source.
type object struct {
	drivers.Object
	pool   *Pool
	stream drivers.Streamer // the Object, if the pool is eager; else nil
	size   int64
	window window
}

// Wrap returns an Object that is o with read-ahead. Close of it closes o. o is returned itself if
// its file is too small for read-ahead.
//
// Reads of o must return when their context is done.
func (p *Pool) Wrap(o drivers.Object) drivers.Object {
	size := o.Info().Size
	if !p.Enabled() || !p.eager() && size < 2*chunkSize {
		return o
	}
	w := &object{Object: o, pool: p, size: size}
	if p.eager() {
		w.stream, _ = drivers.As[drivers.Streamer](o)
	}
	return w
}

// Unwrap returns the object of the source, for drivers.As.
func (o *object) Unwrap() drivers.Object { return o.Object }

// Close implements drivers.Object. It ends the requests in flight.
func (o *object) Close() error {
	o.empty(true)
	o.window.fetches.Wait()
	return o.Object.Close()
}

// ReadAt implements drivers.Object.
func (o *object) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	want := min(int64(len(p)), o.size-off)
	if off < 0 || want <= 0 || ctx.Err() != nil {
		return o.Object.ReadAt(ctx, p, off)
	}
	readsAll := o.window.begin() && want == o.size
	defer o.window.end()
	if readsAll {
		return o.Object.ReadAt(ctx, p, off)
	}
	o.advance(off, want)
	for n := int64(0); n < want; {
		c, length := o.find(off+n, want-n)
		got, err := o.readPart(ctx, c, p[n:n+length], off+n)
		if n += int64(got); err != nil && (err != io.EOF || int64(got) < length) {
			return int(n), err
		}
	}
	if want < int64(len(p)) {
		return int(want), io.EOF
	}
	return int(want), nil
}

// readPart reads p from c, which it releases, or from the source if c is nil.
func (o *object) readPart(ctx context.Context, c *chunk, p []byte, off int64) (int, error) {
	if c == nil {
		return o.Object.ReadAt(ctx, p, off)
	}
	select {
	case <-c.ready:
	case <-ctx.Done():
		o.release(c, 0)
		return 0, context.Cause(ctx)
	}
	err := c.err
	if err == nil {
		copy(p, c.data[off-c.off:])
	}
	o.release(c, int64(len(p)))
	if errors.Is(err, drivers.ErrShort) { // the caller needs what is before the end
		return o.Object.ReadAt(ctx, p, off)
	}
	if err != nil {
		return 0, err
	}
	return len(p), nil
}
