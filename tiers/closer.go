package tiers

import (
	"sync"
	"time"
)

const (
	// maxClosers bounds the goroutines, and so the threads, that hang in close(2).
	maxClosers = 16

	// closeTimeout bounds how long a caller waits for one close at the source.
	closeTimeout = 5 * time.Second
)

// A closer closes files of the source. On a network file system close(2) may hang for
// ever. A caller waits for at most closeTimeout, and not at all while an earlier close
// hangs. The files that are left are closed when the source answers again. The zero value
// is ready for use.
type closer struct {
	mu        sync.Mutex // guards the following, and the fields of closing
	queue     []*closing
	running   int // goroutines that close files, at most maxClosers
	abandoned int // files in the queue or being closed that no caller waits for
}

// A closing is one file to be closed.
type closing struct {
	file      func() error
	ended     chan struct{} // closed when err is set
	err       error
	abandoned bool
}

// close calls file, which closes a file. The error is that of file, or errTimeout if the
// caller did not wait for it.
func (c *closer) close(file func() error) error {
	f := &closing{file: file, ended: make(chan struct{})}
	if !c.add(f) {
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

// add queues f and reports whether the caller should wait for it.
func (c *closer) add(f *closing) (wait bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wait = c.abandoned == 0
	if !wait {
		f.abandoned = true
		c.abandoned++
	}
	c.queue = append(c.queue, f)
	if c.running < maxClosers {
		c.running++
		go c.run()
	}
	return wait
}

// abandon records that the caller of close has stopped waiting for f.
func (c *closer) abandon(f *closing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-f.ended:
	default:
		f.abandoned = true
		c.abandoned++
	}
}

// run closes files until the queue is empty.
func (c *closer) run() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) > 0 {
		f := c.queue[0]
		c.queue = c.queue[1:]
		c.mu.Unlock()
		err := f.file()
		c.mu.Lock()
		if f.abandoned {
			c.abandoned--
		}
		f.err = err
		close(f.ended)
	}
	c.running--
}
