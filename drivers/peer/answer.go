package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// An answer brings the blocks of a span from a peer.
type answer struct {
	peer  *peer
	watch *watch
	body  io.ReadCloser
	span  span     // that has not been read
	sums  []uint32 // of its blocks
}

// get requests a span of a file, whose version info describes. Errors are of the peer, and then a
// *miss, or ctx's. The answer may be shorter than the span. The caller closes it.
func (p *peer) get(ctx context.Context, name string, info drivers.Info, rank int, s span) (*answer, error) {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if !p.usable() { // since it failed other requests
		<-p.slots
		return nil, errSkipped
	}
	r := p.request(filePath, name)
	r.rng, r.version, r.rank = s.rangeHeader(), versionTag(info), strconv.Itoa(rank)
	a := &answer{peer: p, watch: newWatch(ctx, p, r.nonce)}
	resp, err := p.exchange(a.watch.ctx, p.node.transport, r)
	if err == nil {
		a.body = resp.Body
		err = a.check(r, resp, info, s)
	}
	if err != nil {
		err = a.failure(ctx, err)
		a.close()
		return nil, p.note(err)
	}
	a.watch.header.Store(true)
	a.watch.pause()
	return a, nil
}

// errSkipped is the error of a request to a peer that is skipped.
var errSkipped = errors.New("the peer is skipped")

// check checks the header of an answer, and sets the span and its checksums.
func (a *answer) check(r *request, resp *http.Response, info drivers.Info, want span) error {
	if resp.StatusCode != http.StatusPartialContent {
		return a.peer.readError(r, resp)
	}
	line, err := a.peer.verify(r, resp, "")
	if err != nil {
		return err
	}
	version, err := parseVersionTag(resp.Header.Get("ETag"))
	if err != nil {
		return &miss{broken, err}
	}
	if !version.SameVersion(info) {
		return &miss{corrupt, fmt.Errorf("%s sends version %s instead of %s", a.peer.name, resp.Header.Get("ETag"), r.version)}
	}
	got, size, err := parseContentRange(resp.Header.Get("Content-Range"))
	if err != nil {
		return &miss{broken, err}
	}
	end := got.off + got.n
	if got.off != want.off || got.n > want.n || end%block != 0 && end != size || size != info.Size || resp.ContentLength != got.n {
		return &miss{broken, fmt.Errorf("%s sends %d bytes of the range %q; requested %q", a.peer.name, resp.ContentLength, resp.Header.Get("Content-Range"), r.rng)}
	}
	a.span = got
	if a.sums, err = parseChecksums(line.sums, blocksOf(got.n)); err != nil {
		return &miss{broken, err}
	}
	return nil
}

// length returns the number of bytes of the next block, or 0 at the end.
func (a *answer) length() int64 { return min(a.span.n, block) }

// next reads the next block into p, which has its length, and compares it with its checksum. After
// an error the content of p is undefined. Errors are as for get.
func (a *answer) next(ctx context.Context, p []byte) error {
	a.watch.wait()
	sum, err := a.fill(p)
	a.watch.pause()
	if err == nil && sum != a.sums[0] {
		err = &miss{corrupt, fmt.Errorf("%s sends a block at %d that differs from its checksum", a.peer.name, a.span.off)}
	}
	if err != nil {
		return a.peer.note(a.failure(ctx, err))
	}
	n := int64(len(p))
	a.span, a.sums = span{a.span.off + n, a.span.n - n}, a.sums[1:]
	count(&a.peer.counters.Bytes, n)
	a.peer.health.succeed(time.Now())
	return nil
}

// piece is the length of a read from a connection. The checksum of a piece is computed while the
// piece is in the cache of the CPU.
const piece = 256 << 10

// fill fills p from the body, and returns its checksum.
func (a *answer) fill(p []byte) (sum uint32, err error) {
	for n := 0; n < len(p); {
		m, err := a.body.Read(p[n:min(len(p), n+piece)])
		sum = drivers.Checksum(sum, p[n:n+m])
		a.watch.received.Add(int64(m))
		if n += m; n < len(p) && err != nil {
			return 0, err
		}
	}
	return sum, nil
}

// failure returns the *miss that an error of the answer stands for, or the error of ctx.
func (a *answer) failure(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if stuck, ok := errors.AsType[*miss](context.Cause(a.watch.ctx)); ok && Cause(err) == "" {
		return stuck
	}
	return a.peer.missOf(err, broken)
}

// close ends the answer. Its connection is used again if the answer was read to its end.
func (a *answer) close() {
	if a.body != nil {
		if a.span.n == 0 {
			a.body.Read(make([]byte, 1)) // the end
		}
		a.body.Close()
	}
	a.watch.close()
	<-a.peer.slots
}
