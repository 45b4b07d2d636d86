package peer

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/milkweedfs/milkweed/drivers"
)

// file answers a request for a range of a file. An answer has a copy's stored checksums and as much
// of the range as the copy, or, if the content is in flight or has no stored checksums, one block.
func (c *call) file() {
	rank, err := strconv.Atoi(c.req.rank)
	if err != nil {
		c.refuse(refuse(http.StatusBadRequest, "rank: %w", err))
		return
	}
	rng, err := parseRange(c.req.rng)
	if err != nil {
		c.refuse(refuse(http.StatusBadRequest, "%w", err))
		return
	}
	want, err := parseVersionTag(c.req.version)
	if err != nil {
		c.refuse(refuse(http.StatusBadRequest, "%w", err))
		return
	}
	if _, _, valid := drivers.CutUnit(c.req.name); !valid || rng.off >= want.Size {
		c.refuse(refuse(http.StatusBadRequest, "%q has no bytes from offset %d", c.req.name, rng.off))
		return
	}
	waits, done := c.server.begin(c.req.nonce)
	defer done()
	obj, err := c.server.files.OpenShared(c.ctx, c.req.name, want, rank)
	if err != nil {
		c.refuse(err)
		return
	}
	defer obj.Close()
	if !obj.Info().SameVersion(want) {
		c.refuse(drivers.ErrChanged)
		return
	}
	rng.n = min(rng.n, want.Size-rng.off)
	t := &transfer{call: c, obj: obj, span: rng, waits: waits}
	if err := t.send(); err != nil {
		c.refuse(err)
	}
}

// begin enters a request for a file into the table that pings read. It waits for the content, until
// waits is set to false. The caller calls done at its end.
func (s *Server) begin(nonce string) (waits *atomic.Bool, done func()) {
	waits = new(atomic.Bool)
	waits.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[nonce] = waits
	return waits, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.requests, nonce)
	}
}

// A transfer sends a range of an open file.
type transfer struct {
	*call
	obj   drivers.Object
	span  span
	waits *atomic.Bool
}

// send sends the answer. After an error, nothing was sent.
func (t *transfer) send() error {
	var sums []uint32
	if s, ok := drivers.As[drivers.Checksummer](t.obj); ok {
		sums, _ = s.Checksums(t.span.off/block, blocksOf(t.span.n))
	}
	if sums == nil {
		return t.sendBlocks(nil)
	}
	if !sending.TryAcquire(1) {
		return t.sendBlocks(sums)
	}
	defer sending.Release(1)
	f, release, err := openRange(t.obj, t.span)
	if err != nil {
		return t.sendBlocks(sums)
	}
	defer release()
	t.start(sums)
	f.send(t.w)
	return nil
}

// sendBlocks sends the blocks by way of memory. Without checksums, it sends the first block only.
func (t *transfer) sendBlocks(sums []uint32) error {
	buf, err := t.server.buffers.get(t.ctx, t.holder)
	if err != nil {
		return err
	}
	defer func() { t.server.buffers.put(t.holder, buf) }()
	for off, end := t.span.off, t.span.off+t.span.n; off < end; off += block {
		n := min(block, end-off)
		if err := t.read(&buf, n, off); err != nil {
			if off > t.span.off {
				panic(http.ErrAbortHandler) // the client notices that the answer is cut short
			}
			return err
		}
		p := buf[:n]
		if sums == nil {
			t.span.n, end = n, off+n
			sums = []uint32{drivers.Checksum(0, p)}
			count(&t.from.counters.Joined, 1)
		}
		if off == t.span.off {
			t.start(sums)
		}
		if _, err := t.w.Write(p); err != nil {
			return nil
		}
	}
	return nil
}

// read fills the first n bytes of *buf with a block. It replaces a buffer that was abandoned.
func (t *transfer) read(buf **[block]byte, n, off int64) error {
	for {
		got, err := t.obj.ReadAt(t.ctx, (*buf)[:n], off)
		if errors.Is(err, drivers.ErrAbandoned) {
			*buf = new([block]byte)
		}
		switch {
		case int64(got) == n && (err == nil || err == io.EOF):
			return nil
		case errors.Is(err, drivers.ErrRetry) && t.ctx.Err() == nil:
		case err == nil || err == io.EOF:
			return drivers.ErrShort
		default:
			return err
		}
	}
}

// start sends the header of the answer.
func (t *transfer) start(sums []uint32) {
	t.waits.Store(false)
	h, info := t.w.Header(), t.obj.Info()
	h["Content-Type"] = []string{"application/octet-stream"}
	h["Content-Range"] = []string{t.span.contentRange(info.Size)}
	h["Content-Length"] = []string{strconv.FormatInt(t.span.n, 10)}
	h["Etag"] = []string{versionTag(info)}
	t.writeHeader(http.StatusPartialContent, answerLine{sums: encodeChecksums(sums)}, "")
	count(&t.from.counters.ServedReads, 1)
	count(&t.from.counters.ServedBytes, t.span.n)
}
