package blob

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// This file signs requests with the time of the store if the clock of this machine is wrong. Stores refuse a
// signature whose time is not theirs. The Date of a response is no proof: it may be that of a proxy, and most
// refusals have another cause. It is therefore compared with that of accepted requests, and tried with one request,
// while all others wait (credentials.go).

// Differences of two clocks. Tokens are valid for seconds before their time. From refusedSkew on, stores refuse
// signatures: the limit is 15 minutes, and a Date is not exact.
const (
	maxSkew     = 5 * time.Minute
	refusedSkew = 14 * time.Minute
)

// codeSkewed is the error code of S3 for a request that was signed for another time.
const codeSkewed = "RequestTimeTooSkewed"

// A clock has the time of a store. Its methods may be called concurrently. The zero clock has the time of this
// machine.
type clock struct {
	log *slog.Logger // may be nil

	mu        sync.Mutex    // guards the following
	ahead     time.Duration // by which the clock of the store is ahead, 0 if this machine's may be right
	usual     time.Duration // the skew of the last request that was accepted, 0 if none was
	confirmed time.Time     // when a request has shown that another one was not refused because of the time
}

// aheadKey is the key of a context for a request that is signed with another time than that of the clock.
type aheadKey struct{}

// sign returns the time of the store, for the signature of the request that is sent with ctx.
func (c *clock) sign(ctx context.Context) time.Time {
	ahead, ok := ctx.Value(aheadKey{}).(time.Duration)
	if !ok {
		ahead = c.offset()
	}
	if t, ok := ctx.Value(traceKey{}).(*trace); ok {
		t.timed, t.ahead = true, ahead
	}
	return time.Now().Add(ahead)
}

// offset returns by how much the clock of the store is ahead, 0 if this machine's may be right.
func (c *clock) offset() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ahead
}

// set replaces the offset.
func (c *clock) set(ahead time.Duration) {
	c.mu.Lock()
	before := c.ahead
	c.ahead = ahead
	c.mu.Unlock()
	switch {
	case c.log == nil || before == ahead:
	case ahead != 0:
		c.log.Warn(wrongClock(ahead))
	default:
		c.log.Info("the clock of this machine agrees with that of the store again")
	}
}

// accepted sees the response to a request that was accepted. The clock of this machine may be right again.
func (c *clock) accepted(t *trace) {
	ahead, skew := t.clocks()
	c.mu.Lock()
	isRight := c.ahead != 0 && (skew-c.usual).Abs() > maxSkew && ahead.Abs() < maxSkew
	c.usual = skew
	c.mu.Unlock()
	if isRight {
		c.set(0)
	}
}

// confirm records that a request was not refused because of the time.
func (c *clock) confirm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.confirmed = time.Now()
}

// mayBeWhy reports whether a skew may be why a request was refused that began at began: it differs from that of the last
// request that was accepted, and the time was not just confirmed.
func (c *clock) mayBeWhy(skew time.Duration, began time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return (skew-c.usual).Abs() > refusedSkew && (began.Before(c.confirmed) || began.After(c.confirmed.Add(acceptedTTL)))
}

// aheadOf returns by how much the clock of a server is ahead of that of this machine, 0 if its response does not
// say it.
func aheadOf(h http.Header) time.Duration {
	date, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return 0
	}
	return time.Until(date)
}

// clocks returns by how much the clock of the store is ahead of that of this machine, and of the time for which the
// request was signed. Both are 0 if the response does not say it.
func (t *trace) clocks() (ahead, skew time.Duration) {
	if ahead = aheadOf(t.header); ahead != 0 {
		skew = ahead - t.ahead
	}
	return ahead, skew
}

// judgeTime records in e whether the store may have refused a request because it was signed for another time than
// that of the store.
func (b *Bucket) judgeTime(t *trace, e *storeError) {
	if !t.timed || e.status == 0 || e.errno != syscall.EACCES || e.archived || keyCodes[e.code] {
		return
	}
	if e.code == codeSkewed {
		e.untimely = e.skew.Abs() > maxSkew
	} else if e.untimely = b.net.clock.mayBeWhy(e.skew, e.began); !e.untimely {
		e.skew = 0
	}
}

// probeTime is probe. If the store may have refused that because of the time, probeTime requests the key once more with
// the time of the store. If the store accepts that, it sets the clock.
func (b *Bucket) probeTime(ctx context.Context) *storeError {
	err := b.probe(ctx)
	if err == nil || !err.untimely {
		if err.accepts() {
			b.net.clock.confirm()
		}
		return err
	}
	ahead := err.ahead
	if ahead.Abs() < maxSkew {
		ahead = 0 // the clock of this machine is right again
	}
	answer := b.probe(context.WithValue(ctx, aheadKey{}, ahead))
	switch {
	case answer == nil:
		b.net.clock.set(ahead)
		return nil
	case answer.status == 0 || answer.retryable:
		return answer
	case err.code != codeSkewed:
		b.net.clock.confirm()
		other := *err
		other.skew, other.untimely = 0, false // that is not why
		return &other
	}
	return err
}

// Clock returns a sentence about a clock of this machine that is wrong, "" if it is right.
func (s Stats) Clock() string {
	if s.ClockOffsetSeconds == 0 {
		return ""
	}
	return wrongClock(time.Duration(s.ClockOffsetSeconds * float64(time.Second)))
}

// wrongClock returns a sentence about a clock of this machine, if that of the store is ahead of it.
func wrongClock(ahead time.Duration) string {
	return fmt.Sprintf("the clock of this machine is %s that of the store; requests are signed with the time of the store", behind(ahead))
}

// behind says how the clock of this machine differs from one that is ahead of it.
func behind(ahead time.Duration) string {
	if ahead < 0 {
		return fmt.Sprintf("%v ahead of", -ahead.Round(time.Minute))
	}
	return fmt.Sprintf("%v behind", ahead.Round(time.Minute)) // a Date has whole seconds
}
