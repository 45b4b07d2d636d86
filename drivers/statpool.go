package drivers

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

const (
	maxStats = 16 // requests of a StatPool in flight

	// statAlone is the time after which a call of Stats uses several goroutines. On a local file
	// system one goroutine is faster: it has described 64 names by then.
	statAlone = 200 * time.Microsecond

	// statTimeout is how long a call of Stats waits for the next reply.
	statTimeout = time.Second
)

// A StatPool makes the requests of Namer.StatNames, at most maxStats at once. A request that hangs
// counts until it returns, so that a storage that hangs does not occupy more goroutines.
type StatPool struct {
	slots chan struct{}
	hung  atomic.Int32 // requests that no call waits for any more
}

// NewStatPool returns an idle pool.
func NewStatPool() *StatPool { return &StatPool{slots: make(chan struct{}, maxStats)} }

// errNoReply is the Err of a name whose request hangs, or was not made because others hang.
var errNoReply = fmt.Errorf("no reply to the request for attributes within %v", statTimeout)

// Stats calls stat for each name, and returns the Infos in the order of the names. The Info of a
// name for which stat fails has the error. Stats gives up when no request has returned for
// statTimeout, or ctx is done. It calls end after the last call of stat has returned, which may be
// after Stats has returned.
func (p *StatPool) Stats(ctx context.Context, names []string, stat func(name string) (Info, error), end func()) []Info {
	c := &statCall{
		pool: p, names: names, stat: stat, end: end, workers: 1,
		infos: make([]Info, len(names)), complete: make(chan struct{}),
	}
	for i, name := range names {
		c.infos[i] = Info{Name: name, Err: errNoReply}
	}
	defer c.leave()
	if len(names) == 0 || p.hung.Load() == maxStats {
		return c.infos
	}
	timeout := time.NewTimer(statTimeout)
	defer timeout.Stop()
	select {
	case p.slots <- struct{}{}:
		c.start()
	case <-timeout.C:
		return c.close()
	case <-ctx.Done():
		return c.close()
	}
	alone := time.NewTimer(statAlone)
	defer alone.Stop()
	for left := len(names); ; {
		select {
		case <-c.complete:
			return c.infos
		case <-alone.C:
			c.startAll()
		case <-timeout.C:
			if now := c.unanswered(); now < left {
				left = now
				timeout.Reset(statTimeout)
				continue
			}
			return c.close()
		case <-ctx.Done():
			return c.close()
		}
	}
}

// A statCall is one call of Stats.
type statCall struct {
	pool     *StatPool
	names    []string
	stat     func(name string) (Info, error)
	end      func()
	complete chan struct{} // closed when left is 0

	mu      sync.Mutex // guards the following
	next    int        // the first name that is not requested yet
	replied int        // number of replies
	workers int        // number of goroutines, with that of Stats
	infos   []Info
	closed  bool // infos was returned, and must not be modified
}

// start starts a worker, which takes over a slot of the pool.
func (c *statCall) start() {
	c.mu.Lock()
	c.workers++
	c.mu.Unlock()
	go func() {
		defer c.leave()
		defer func() { <-c.pool.slots }()
		for i, ok := c.take(); ok; i, ok = c.take() {
			var info Info
			err := panics.Do(func() (err error) {
				info, err = c.stat(c.names[i])
				return err
			})
			if err != nil {
				info = Info{Name: c.names[i], Err: err}
			}
			c.reply(i, info)
		}
	}()
}

// startAll starts workers while names are left and the pool has slots.
func (c *statCall) startAll() {
	for range c.unanswered() - 1 {
		select {
		case c.pool.slots <- struct{}{}:
			c.start()
		default:
			return
		}
	}
}

// take returns the next name to request.
func (c *statCall) take() (i int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.next == len(c.names) {
		return 0, false
	}
	c.next++
	return c.next - 1, true
}

func (c *statCall) reply(i int, info Info) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replied++
	if c.closed {
		c.pool.hung.Add(-1)
		return
	}
	c.infos[i] = info
	if c.replied == len(c.names) {
		close(c.complete)
	}
}

// unanswered returns the number of names without a reply.
func (c *statCall) unanswered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.names) - c.replied
}

// close ends the call and returns what it has found.
func (c *statCall) close() []Info {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.pool.hung.Add(int32(c.next - c.replied))
	return c.infos
}

// leave ends one goroutine of the call.
func (c *statCall) leave() {
	c.mu.Lock()
	c.workers--
	last := c.workers == 0
	c.mu.Unlock()
	if last {
		c.end()
	}
}
