package fs

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// interruptDelay is the time from the interruption of a request to the end of its context.
// The kernel interrupts a request when its caller gets any signal. Most signals are caught
// and do not end the caller, and programs that read a file do not expect EINTR. The
// request has to end before its reply only if the storage hangs, because the caller may
// have been killed.
const interruptDelay = 5 * time.Second

// A request is the context of one request of the kernel. It is done interruptDelay after
// the request was interrupted, and when it has waited for that long and may be dropped. When the
// connection ends, go-fuse interrupts all requests, and they are done at once. Most requests never
// call Done, and then it costs neither a goroutine nor a channel. The caller calls end.
type request struct {
	context.Context
	cancel <-chan struct{} // closed when the request is interrupted
	began  time.Time
	fs     *fileSystem
	id     uint64 // in fs.inFlight, which has the request until end
	caller caller // of an OPEN or a READ; root for other requests

	waits *tiers.Histogram // observes the request if it has waited; nil for an OPEN or a READ

	interrupted atomic.Pointer[time.Time] // when the interruption was first seen by Mount.Stuck

	// mayDrop reports whether an error in reply to the request reaches no process: none waits
	// for the request, or the kernel then makes another one. nil: it may reach one.
	mayDrop func() bool

	mu       sync.Mutex    // guards the following, and caller
	done     chan struct{} // what Done returns; nil before the first call
	answered chan struct{} // closed by end; nil while done is nil
	ended    bool          // end was called
}

// newRequest returns the context of a request, and enters it into the table of those in flight.
func (f *fileSystem) newRequest(cancel <-chan struct{}) *request {
	r := &request{Context: context.Background(), cancel: cancel, began: time.Now(), fs: f}
	r.id = f.inFlight.add(r)
	return r
}

// newNameRequest returns the context of a request for names or attributes.
func (f *fileSystem) newNameRequest(cancel <-chan struct{}) *request {
	r := f.newRequest(cancel)
	r.waits = f.names.Waits()
	return r
}

// Value implements context.Context.
func (r *request) Value(key any) any {
	if key == (metadata.CallerKey{}) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.caller = caller{uid: r.caller.user()} // it is asked for once
		return r.caller.uid
	}
	return r.Context.Value(key)
}

// Done implements context.Context.
func (r *request) Done() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == nil {
		r.done, r.answered = make(chan struct{}), make(chan struct{})
		if !r.ended {
			go func() {
				defer panics.Contain()
				r.watch()
			}()
		}
	}
	return r.done
}

// watch closes done when the request is done, unless end comes before.
func (r *request) watch() {
	cancel, interrupted := r.cancel, time.Time{}
	tick := time.NewTicker(interruptDelay)
	defer tick.Stop()
	for {
		isDone := false
		select {
		case <-cancel:
			cancel, interrupted = nil, time.Now()
			tick.Reset(interruptDelay / 50)
		case <-tick.C:
			isDone = interrupted.IsZero() && r.mayDrop != nil && r.mayDrop()
		case <-r.answered:
			return
		}
		if isDone || !interrupted.IsZero() && (time.Since(interrupted) >= interruptDelay || r.fs.conn.hasEnded()) {
			close(r.done)
			return
		}
	}
}

// Err returns context.Canceled after Done is closed.
func (r *request) Err() error {
	r.mu.Lock()
	done := r.done
	r.mu.Unlock()
	select {
	case <-done: // blocks while done is nil
		return context.Canceled
	default:
		return nil
	}
}

// end ends the watch for interruptions. It is called once, when the request has its reply.
func (r *request) end() {
	r.fs.inFlight.remove(r.id)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	if r.answered == nil { // Done was never called: the reply was cached
		return
	}
	close(r.answered)
	if r.waits != nil {
		r.waits.Observe(time.Since(r.began))
	}
}
