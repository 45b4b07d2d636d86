package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// refusalTTL is how long an Object does not ask a peer again that lacks the file or has no room, and
// failureTTL the same of one that could not read the file, or is not ready.
const (
	refusalTTL = 10 * time.Second
	failureTTL = time.Second
)

// An object is a file that is read from the peers that own it, or else from the source.
type object struct {
	node    *Node
	name    string
	info    drivers.Info
	owners  []owner
	open    func(context.Context) (drivers.Object, error) // opens the file at the source
	opening chan struct{}                                 // has an element while open is called
	source  atomic.Pointer[drivers.Object]                // nil: not opened
}

var (
	_ drivers.Object   = (*object)(nil)
	_ drivers.Streamer = (*object)(nil)
)

// An owner is a peer that may have a file.
type owner struct {
	*peer
	rank    int          // with which it is asked, see Files.OpenShared
	refused atomic.Int64 // until when the peer is not asked, in nanoseconds since 1970
}

// OpenVersion opens the version of a file that info describes. It makes no request for a regular
// file. Each read is served by the owner of the file, or else by the second choice. If neither has
// the file, it is served by what source opens, which is called when it is first needed and, unless
// it fails, once. Errors are those of the source; if it no longer has the file, they match
// ErrChanged.
func (n *Node) OpenVersion(ctx context.Context, name string, info drivers.Info, source func(context.Context) (drivers.Object, error)) (drivers.Object, error) {
	return n.openAt(ctx, n.cfg.Roster.Owners(name, choices), func(place int) int { return place }, name, info, source)
}

// OpenAt is OpenVersion, with reads from the nodes with these indexes, in this order, in place of the
// choices. This node is left out. If fill is true, each node may fill the file from the source, as its
// owner does. Otherwise it sends only what it has a copy of.
func (n *Node) OpenAt(ctx context.Context, nodes []int, fill bool, name string, info drivers.Info, source func(context.Context) (drivers.Object, error)) (drivers.Object, error) {
	rank := -1
	if fill {
		rank = 0
	}
	return n.openAt(ctx, nodes, func(int) int { return rank }, name, info, source)
}

// openAt opens a file that is read from nodes. rank returns the rank with which the node at a place
// among them is asked.
func (n *Node) openAt(ctx context.Context, nodes []int, rank func(place int) int, name string, info drivers.Info, source func(context.Context) (drivers.Object, error)) (drivers.Object, error) {
	o := &object{node: n, name: name, info: info, open: source, opening: make(chan struct{}, 1)}
	if !info.IsRegular() {
		if _, err := o.atSource(ctx); err != nil {
			return nil, err
		}
		return o, nil
	}
	if len(name) > maxName { // no request can name it
		return o, nil
	}
	o.owners = make([]owner, 0, len(nodes))
	for place, i := range nodes {
		if i != n.self {
			o.owners = append(o.owners, owner{peer: n.peers[i], rank: rank(place)})
		}
	}
	return o, nil
}

// Info implements drivers.Object.
func (o *object) Info() drivers.Info { return o.info }

// Close implements drivers.Object.
func (o *object) Close() error {
	o.node.cache.remove(o)
	if s := o.source.Load(); s != nil {
		return (*s).Close()
	}
	return nil
}

// atSource returns the file at the source. It opens it first, if that was not done yet.
func (o *object) atSource(ctx context.Context) (drivers.Object, error) {
	if s := o.source.Load(); s != nil {
		return *s, nil
	}
	select {
	case o.opening <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-o.opening }()
	if s := o.source.Load(); s != nil {
		return *s, nil
	}
	s, err := o.open(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%v: %w", err, drivers.ErrChanged) // since OpenVersion
	}
	if err != nil {
		return nil, err
	}
	o.source.Store(&s)
	return s, nil
}

// errNoPeer is the error of a read that no peer serves.
var errNoPeer = errors.New("no peer has the file")

// get returns an answer that begins with the block at s.off. The error is errNoPeer, or ctx's.
// from is the index of the owner to ask first.
func (o *object) get(ctx context.Context, s span, from int) (a *answer, by int, err error) {
	for by = from; by < len(o.owners); by++ {
		w := &o.owners[by]
		if time.Now().UnixNano() < w.refused.Load() || !w.usable() {
			continue
		}
		a, err := w.get(ctx, o.name, o.info, w.rank, s)
		if err == nil {
			count(&w.counters.Reads, 1)
			return a, by, nil
		}
		if ctx.Err() != nil {
			return nil, 0, context.Cause(ctx)
		}
		if m := (*miss)(nil); errors.As(err, &m) && !m.cause.ofNode() {
			ttl := refusalTTL
			if m.cause == failed {
				ttl = failureTTL
			}
			w.refused.Store(time.Now().Add(ttl).UnixNano())
		}
	}
	return nil, 0, errNoPeer
}

// A cursor reads blocks that follow each other from peers. It goes on at another peer when one
// fails.
type cursor struct {
	object *object
	span   span    // that is left
	answer *answer // nil: none is in flight
	owner  int     // the index of the owner that answers
}

// length returns the length of the next block, or 0 at the end.
func (c *cursor) length() int64 { return min(c.span.n, block) }

// next reads the next block into p, which has its length. The error is errNoPeer, or ctx's; then
// the content of p is undefined.
func (c *cursor) next(ctx context.Context, p []byte) error {
	for {
		if c.answer == nil {
			var err error
			if c.answer, c.owner, err = c.object.get(ctx, span{c.span.off, min(c.span.n, maxRange)}, c.owner); err != nil {
				return err
			}
		}
		err := c.answer.next(ctx, p)
		if err == nil {
			c.span = span{c.span.off + int64(len(p)), c.span.n - int64(len(p))}
			if c.answer.length() == 0 {
				c.close()
			}
			return nil
		}
		c.close()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		c.owner++
	}
}

// close ends the request in flight. The cursor can be used again.
func (c *cursor) close() {
	if c.answer != nil {
		c.answer.close()
		c.answer = nil
	}
}

// ReadAt implements drivers.Object. Whole blocks are read into p. A block of which p needs a part
// goes through the cache of the node.
func (o *object) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read %s: %w", o.name, syscall.EINVAL)
	}
	if err := ctx.Err(); err != nil {
		return 0, context.Cause(ctx)
	}
	want := p[:max(0, min(int64(len(p)), o.info.Size-off))]
	n := 0
	for n < len(want) {
		m, err := o.readPeers(ctx, want[n:], off+int64(n))
		n += m
		if err == errNoPeer {
			m, err = o.readSource(ctx, want[n:], off+int64(n))
			n += m
		}
		if err != nil {
			return n, err
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// readPeers reads a part of p, at least a byte, from peers. The error is errNoPeer, or ctx's.
func (o *object) readPeers(ctx context.Context, p []byte, off int64) (int, error) {
	start := off - off%block
	first := min(block, o.info.Size-start)
	if start != off || int64(len(p)) < first {
		b, err := o.node.cache.get(ctx, o, start, first, func(b []byte) error {
			c := &cursor{object: o, span: span{start, first}}
			defer c.close()
			return c.next(ctx, b)
		})
		if err != nil {
			return 0, err
		}
		return copy(p, b[off-start:]), nil
	}
	whole := int64(len(p))
	if off+whole < o.info.Size {
		whole -= whole % block
	}
	c := &cursor{object: o, span: span{off, whole}}
	defer c.close()
	n := int64(0)
	for l := c.length(); l > 0; l = c.length() {
		if err := c.next(ctx, p[n:n+l]); err != nil {
			return int(n), err
		}
		n += l
	}
	return int(n), nil
}

// readSource fills p from the source.
func (o *object) readSource(ctx context.Context, p []byte, off int64) (int, error) {
	s, err := o.atSource(ctx)
	if err != nil {
		return 0, err
	}
	n, err := s.ReadAt(ctx, p, off)
	if n == len(p) && err == io.EOF {
		err = nil
	}
	return n, err
}

// Stream implements drivers.Streamer. It requests up to 8 MiB at once, and whole blocks.
func (o *object) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	if off < 0 || n < 0 || off+n > o.info.Size {
		return nil, fmt.Errorf("read %s: %w", o.name, syscall.EINVAL)
	}
	start := off - off%block
	end := min(o.info.Size, (off+n+block-1)/block*block)
	return &stream{ctx: ctx, off: off, end: off + n, cursor: cursor{object: o, span: span{start, end - start}}}, nil
}

// A stream is a stream of an object.
type stream struct {
	ctx      context.Context
	off, end int64 // that the caller has not read
	cursor   cursor
	buf      []byte        // for a block of which the caller needs a part; nil: not needed yet
	block    []byte        // the part of buf that the caller has not read
	source   io.ReadCloser // of the source, from off to end; nil: peers have the file
	closed   bool
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	switch {
	case s.closed:
		return 0, os.ErrClosed
	case s.off == s.end:
		return 0, io.EOF
	case len(p) == 0:
		return 0, nil
	}
	n, err := s.read(p[:min(int64(len(p)), s.end-s.off)])
	s.off += int64(n)
	return n, err
}

// read reads a part of p, which ends at s.end at the latest.
func (s *stream) read(p []byte) (int, error) {
	if s.source != nil {
		return s.source.Read(p)
	}
	if len(s.block) == 0 {
		n, err := s.nextBlock(p)
		if err == errNoPeer {
			if s.source, err = s.object().stream(s.ctx, s.off, s.end-s.off); err == nil {
				return s.source.Read(p)
			}
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
	n := copy(p, s.block)
	s.block = s.block[n:]
	return n, nil
}

// nextBlock reads the next block into p if p takes all of it, and otherwise into s.block.
func (s *stream) nextBlock(p []byte) (int, error) {
	c := &s.cursor
	length := c.length()
	if c.span.off == s.off && int64(len(p)) >= length {
		if err := c.next(s.ctx, p[:length]); err != nil {
			return 0, err
		}
		return int(length), nil
	}
	skip := s.off - c.span.off
	if s.buf == nil {
		s.buf = make([]byte, length)
	}
	if err := c.next(s.ctx, s.buf[:length]); err != nil {
		return 0, err
	}
	s.block = s.buf[skip:length]
	return 0, nil
}

func (s *stream) object() *object { return s.cursor.object }

// Close implements io.Closer.
func (s *stream) Close() error {
	s.closed = true
	s.cursor.close()
	if s.source != nil {
		return s.source.Close()
	}
	return nil
}

// stream returns n bytes of the source from offset off.
func (o *object) stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	source, err := o.atSource(ctx)
	if err != nil {
		return nil, err
	}
	if s, ok := drivers.As[drivers.Streamer](source); ok {
		return s.Stream(ctx, off, n)
	}
	return &sourceReader{ctx: ctx, source: source, off: off, end: off + n}, nil
}

// A sourceReader is a stream of an Object that is no drivers.Streamer.
type sourceReader struct {
	ctx      context.Context
	source   drivers.Object
	off, end int64
	buf      []byte // that source reads into, since it may abandon it
}

// Read implements io.Reader.
func (r *sourceReader) Read(p []byte) (int, error) {
	n := min(int64(len(p)), r.end-r.off, block)
	if int64(len(r.buf)) < n {
		r.buf = make([]byte, n)
	}
	got, err := r.source.ReadAt(r.ctx, r.buf[:n], r.off)
	if errors.Is(err, drivers.ErrAbandoned) {
		r.buf = nil
		return 0, context.Cause(r.ctx)
	}
	copy(p, r.buf[:got])
	r.off += int64(got)
	if int64(got) == n && err == io.EOF {
		err = nil
	}
	return got, err
}

// Close implements io.Closer.
func (r *sourceReader) Close() error { return nil }
