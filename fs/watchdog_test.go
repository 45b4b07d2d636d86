package fs_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/metadata"
)

// Requests that wait for a source that hangs are counted, with their age and their stacks, until
// they have ended.
func TestStuckRequests(t *testing.T) {
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		s := newStack(t, stackOptions{mode: mode}, func(source string) { write(t, source, "f", 1000, 1) })
		s.eventually("no request is in flight", func() bool { return s.mount.Stuck(0) == fs.Stuck{} })
		s.from.Add(drivertest.Rule{Op: drivertest.OpOpen, Hang: true})
		cmd := childCommand("hash", s.in("f"))
		s.check(cmd.Start())
		var got fs.Stuck
		s.eventually("a request hangs", func() bool { // requests before it may take long, too
			got = s.mount.Stuck(10 * time.Millisecond)
			return got.Requests > 0 && s.from.Hung() > 0
		})
		if got.Requests != 1 || got.Oldest < 10*time.Millisecond || got.Abandoned != 0 {
			t.Errorf("one request hangs, got %+v", got)
		}
		if got := s.mount.Stuck(time.Hour); got.Requests != 0 {
			t.Errorf("no request hangs for an hour, got %+v", got)
		}
		if got := fs.Stacks(); !strings.Contains(got, "placement.") {
			t.Errorf("the stacks do not show where it hangs:\n%s", got)
		}
		s.from.Clear()
		s.check(cmd.Wait())
		s.eventually("no request is in flight", func() bool { return s.mount.Stuck(0).Requests == 0 })
	})
}

// A deaf is an Opener that waits for release, and ignores the end of its context, as a deadlock
// does.
type deaf struct {
	fs.Opener
	waits   atomic.Bool
	release chan struct{}
}

func (d *deaf) Open(ctx context.Context, e *metadata.Entry) (drivers.Object, error) {
	d.waits.Store(true)
	<-d.release
	return d.Opener.Open(ctx, e)
}

// A request that goes on after its process was killed is one that was abandoned.
func TestAbandonedRequest(t *testing.T) {
	d := &deaf{release: make(chan struct{})}
	s := newStack(t, stackOptions{wrap: func(o fs.Opener) fs.Opener { d.Opener = o; return d }}, func(source string) {
		write(t, source, "f", 1000, 1)
	})
	cmd := childCommand("hash", s.in("f"))
	s.check(cmd.Start())
	s.eventually("the open waits", d.waits.Load)
	s.check(cmd.Process.Kill())
	s.eventually("it is abandoned", func() bool { return s.mount.Stuck(0).Abandoned > 0 })
	close(d.release)
	cmd.Wait()
	s.eventually("no request is in flight", func() bool { return s.mount.Stuck(0).Abandoned == 0 })
}
