package main

import (
	"bytes"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// maxUnwritten is how many bytes of a log wait to be written, at most.
const maxUnwritten = 1 << 20

// A lineWriter writes the lines of a log in the background, in their order. A disk that hangs, and a pipe or a
// terminal that takes nothing, delay nobody who logs: when too many lines wait, further ones are lost, as are those
// that cannot be written. Its methods may be called concurrently.
type lineWriter struct {
	to       io.Writer
	report   func(n int64) // is called when lines are written again, after n were lost
	lost     atomic.Int64  // lines
	reported int64         // of them; for the goroutine that writes

	mu      sync.Mutex // guards the following
	lines   []byte
	written chan struct{} // closed when no line waits; nil: none does
}

// Write implements io.Writer. It does not wait, and never fails.
func (w *lineWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lines)+len(line) > maxUnwritten {
		w.lost.Add(1)
		return len(line), nil
	}
	w.lines = append(w.lines, line...)
	if w.written == nil {
		w.written = make(chan struct{})
		go func() {
			defer panics.Contain()
			w.writeAll()
		}()
	}
	return len(line), nil
}

// writeAll writes lines while there are any.
func (w *lineWriter) writeAll() {
	for {
		w.mu.Lock()
		lines := w.lines
		w.lines = nil
		if len(lines) == 0 {
			close(w.written)
			w.written = nil
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		n, err := w.to.Write(lines)
		if err != nil {
			w.lost.Add(int64(bytes.Count(lines[n:], []byte{'\n'})))
		} else if lost := w.lost.Load(); lost > w.reported {
			lost, w.reported = lost-w.reported, lost
			w.report(lost)
		}
	}
}

// flush waits until all lines are written, at most for a time.
func (w *lineWriter) flush(d time.Duration) {
	w.mu.Lock()
	written := w.written
	w.mu.Unlock()
	if written == nil {
		return
	}
	select {
	case <-written:
	case <-time.After(d):
	}
}
