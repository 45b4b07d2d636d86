package metadata

import (
	"context"
	"errors"
	"io/fs"
	"time"
)

// A load is a request for all names of a directory that is in flight. A directory has one
// load at a time; other goroutines wait for it.
type load struct {
	started uint32    // by Container.now
	start   time.Time // the same

	progress // guarded by the lock of the directory
}

// A progress is the state of a load at one time.
type progress struct {
	updated chan struct{} // closed when a page has arrived, which also replaces it, and at the end
	anyPage bool          // a page has arrived
	ended   bool
	err     error      // valid when ended
	diff    difference // valid when ended, if names are found by listing
}

// newLoad returns a load that starts now, which is started by Container.now.
func newLoad(started uint32) *load {
	return &load{started: started, start: time.Now(), progress: progress{updated: make(chan struct{})}}
}

// startLoad starts a load of the directory and reports true; the caller must end it with
// endLoad. If a load is in flight, startLoad waits for it. If loaded, which is called with
// d.mu held, returns true, startLoad reports false.
func (d *directory) startLoad(ctx context.Context, loaded func() bool) (bool, error) {
	for {
		d.mu.Lock()
		if loaded() {
			d.mu.Unlock()
			return false, nil
		}
		if d.inFlight == nil {
			d.inFlight = newLoad(0)
			d.mu.Unlock()
			return true, nil
		}
		updated := d.inFlight.updated
		d.mu.Unlock()
		select {
		case <-updated:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// endLoad ends the load in flight and wakes the goroutines that wait for it; d.mu must be
// held.
func (d *directory) endLoad(err error) {
	d.denied = errors.Is(err, fs.ErrPermission)
	d.inFlight.ended, d.inFlight.err = true, err
	close(d.inFlight.updated)
	d.inFlight = nil
}

// pageArrived wakes the goroutines that wait for a page of the load in flight; d.mu must be
// held.
func (d *directory) pageArrived() {
	d.inFlight.anyPage = true
	close(d.inFlight.updated)
	d.inFlight.updated = make(chan struct{})
}

// progress returns the state of l, and whether the directory was ever listed.
func (d *directory) progress(l *load) (everListed bool, now progress) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.everListed, l.progress
}
