package fs

import (
	"bytes"
	"context"
	"log"
	"log/slog"
	"time"

	"github.com/milkweedfs/milkweed/fs/fusectl"
)

// The kernel rejects a malformed reply, such as one with an errno out of range, before it looks for
// the request. The request then never gets a reply, and its process waits for ever. Only a fault of
// the daemon causes this. go-fuse reports a failed write by its log alone, and not whether the
// request has ended: most failed writes concern requests that have. After each message of go-fuse,
// lostReplies therefore compares the number of requests that the kernel waits for with the number in
// flight.
type lostReplies struct {
	log    *slog.Logger
	logged chan struct{} // has an element after a message, of capacity 1
}

func newLostReplies(log *slog.Logger) *lostReplies {
	return &lostReplies{log, make(chan struct{}, 1)}
}

// logger returns the logger for go-fuse.
func (l *lostReplies) logger() *log.Logger { return log.New(l, "", 0) }

// Write logs a message of go-fuse.
func (l *lostReplies) Write(message []byte) (int, error) {
	l.log.Warn(string(bytes.TrimSpace(message)))
	select {
	case l.logged <- struct{}{}:
	default:
	}
	return len(message), nil
}

const (
	lostAfter = time.Minute            // for this time the kernel has waited for more requests than are in flight
	lostPoll  = 100 * time.Millisecond // between two comparisons
)

// await returns nil when a request has lost its reply. waiting returns the number of requests that
// the kernel waits for, and inFlight that of those for which the daemon will reply; a request may
// begin or end between the calls. If waiting fails, await returns its error, and at the end of ctx
// that of ctx.
func (l *lostReplies) await(ctx context.Context, after time.Duration, waiting func() (int, error), inFlight func() int) error {
	for {
		select {
		case <-l.logged:
		case <-ctx.Done():
			return ctx.Err()
		}
		since := time.Now()
		for {
			n, err := waiting()
			if err != nil {
				return err
			}
			if n <= inFlight() {
				break
			}
			if time.Since(since) > after {
				return nil
			}
			select {
			case <-time.After(lostPoll):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// AwaitLostReply returns nil when a request of the kernel will never get a reply, which only a fault
// of this package or of go-fuse causes. The mount should be aborted then. Otherwise it returns the
// error of ctx, or of reading the state of c, the connection of the mount.
func (m *Mount) AwaitLostReply(ctx context.Context, c *fusectl.Connection) error {
	return m.replies.await(ctx, lostAfter, c.Waiting, m.fs.inFlight.len)
}
