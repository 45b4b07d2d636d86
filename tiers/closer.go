package tiers

import (
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

const (
	// maxHung bounds the goroutines, and so the threads, that hang in close(2) without a
	// caller that waits.
	maxHung = 16

	// closeTimeout bounds how long a caller waits for one close at the source.
	closeTimeout = 5 * time.Second
)

// A closer closes files of the source. On a network file system close(2) may hang for
// ever. A caller waits for at most closeTimeout, and not at all while an earlier close
// hangs. While maxHung closes hang, further files wait in a queue. They are closed when the
// source answers again. The zero value is ready for use.
type closer struct {
	mu    panics.Mutex // guards the following, and the fields of closing
	queue []*closing
	hung  int // closes in progress that no caller waits for
}

// A closing is one file to be closed.
type closing struct {
	file  func() error
	ended chan struct{} // closed when err is set
	err   error
	hung  bool // counted in closer.hung
}

// close calls file, which closes a file. The error is that of file, or errTimeout if the
// caller did not wait for it.
func (c *closer) close(file func() error) error {
	f := &closing{file: file, ended: make(chan struct{})}
	if !c.start(f) {
		return errTimeout
	}
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-f.ended:
		return f.err
	case <-timer.C:
		c.abandon(f)
		return errTimeout
	}
}

// start begins to close f, or queues it, and reports whether the caller should wait.
func (c *closer) start(f *closing) (wait bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.hung == 0:
		go c.run(f)
		return true
	case c.hung < maxHung:
		f.hung = true
		c.hung++
		go c.run(f)
	default:
		c.queue = append(c.queue, f)
	}
	return false
}

// abandon records that the caller of close has stopped waiting for f.
func (c *closer) abandon(f *closing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-f.ended:
	default:
		f.hung = true
		c.hung++
	}
}

// run closes f and then, while fewer than maxHung closes hang, files from the queue.
func (c *closer) run(f *closing) {
	for f != nil {
		err := panics.Do(f.file)
		f = c.end(f, err)
	}
}

// end records the end of f, and returns the next file to close, or nil.
func (c *closer) end(f *closing, err error) (next *closing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.hung {
		c.hung--
	}
	f.err = err
	close(f.ended)
	if len(c.queue) == 0 || c.hung >= maxHung {
		return nil
	}
	next = c.queue[0]
	c.queue = c.queue[1:]
	next.hung = true
	c.hung++
	return next
}
