package drivers

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

const (
	// moreCalls is by how many calls a CallLimit is raised at once.
	moreCalls = 64

	// raisePause is the time between two times that a limit is raised, in which waiting calls begin.
	raisePause = time.Millisecond

	// refusedPause is the time before a limit is raised after there could be no more threads.
	refusedPause = time.Second
)

// A CallLimit admits a number of calls at once that may block, and occupy a thread each. A Go program ends
// when it needs a thread and cannot make one. Its methods may be called concurrently.
type CallLimit struct {
	most  int64
	slots *semaphore.Weighted // held by the calls that were admitted, and for those that may not be
	more  func(n int) int     // see Lower

	mu       panics.Mutex // guards the following
	withheld int64        // slots for calls for which there is no thread
	waiting  int          // calls of Acquire
	missed   bool         // a call was not admitted since raise has begun its last attempt
	raising  bool         // raise is running
	refused  bool         // its last attempt has made fewer threads than it wanted
}

// NewCallLimit returns a CallLimit of most calls.
func NewCallLimit(most int64) *CallLimit {
	return &CallLimit{most: most, slots: semaphore.NewWeighted(most)}
}

// Lower lowers the limit to n calls. It is called once, before other methods. When calls are not admitted,
// the limit is raised again: more makes threads for up to n calls, and returns for how many. If more is nil,
// the limit is not raised.
func (c *CallLimit) Lower(n int64, more func(n int) int) {
	if c.withheld = max(0, c.most-n); c.slots.TryAcquire(c.withheld) {
		c.more = more
	}
}

// Acquire waits until a call is admitted, in turn, or ctx is done. After nil, Release ends the call.
// Otherwise the error is that of ctx.
func (c *CallLimit) Acquire(ctx context.Context) error {
	if c.slots.TryAcquire(1) {
		return nil
	}
	c.wait(1)
	defer c.wait(-1)
	c.miss() // while it counts as waiting
	return c.slots.Acquire(ctx, 1)
}

// TryAcquire reports whether n calls were admitted. Release ends them.
func (c *CallLimit) TryAcquire(n int) bool {
	if c.slots.TryAcquire(int64(n)) {
		return true
	}
	c.miss()
	return false
}

// Release ends n calls.
func (c *CallLimit) Release(n int) { c.slots.Release(int64(n)) }

// Waiting returns the number of calls that Acquire has not admitted yet, because there can be no more threads,
// or the original limit is reached. It is 0 while the limit is being raised.
func (c *CallLimit) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.more != nil && c.withheld > 0 && !c.refused {
		return 0
	}
	return c.waiting
}

func (c *CallLimit) wait(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting += n
}

// miss makes raise run.
func (c *CallLimit) miss() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.missed = true
	if c.more != nil && c.withheld > 0 && !c.raising {
		c.raising = true
		go c.raise()
	}
}

// raise raises the limit while calls are not admitted, as far as there can be threads.
func (c *CallLimit) raise() {
	defer panics.Contain()
	for n := c.missing(); n > 0; n = c.missing() {
		if c.raised(c.make(n), n) {
			time.Sleep(raisePause)
		} else {
			time.Sleep(refusedPause)
		}
	}
}

// make makes threads for up to n calls, and returns for how many.
func (c *CallLimit) make(n int) (made int) {
	defer panics.Contain()
	return c.more(n)
}

// missing returns for how many calls raise should make threads. If it returns 0, raise ends.
func (c *CallLimit) missing() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.withheld == 0 || c.waiting == 0 && !c.missed {
		c.raising, c.refused = false, false
		return 0
	}
	c.missed = false
	return int(min(moreCalls, c.withheld))
}

// raised raises the limit by made of n calls, and reports whether these are all.
func (c *CallLimit) raised(made, n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.withheld -= int64(made)
	c.slots.Release(int64(made))
	c.refused = made < n
	return !c.refused
}
