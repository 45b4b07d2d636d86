package main

import (
	"context"
	"fmt"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/rates"
)

// A sample is the status of a mount at one moment, and the rates since the last one.
type sample struct {
	at     time.Time
	status control.Status
	rates  rates.Point
	rated  bool  // there are rates
	err    error // there is no status, and this is why
}

// watchTimeout bounds how long watch waits for a status.
const watchTimeout = 5 * time.Second

// watch calls report with a sample of a mount at once and then every interval, until report returns an
// error or ctx is done, and returns that error.
func watch(ctx context.Context, point string, interval time.Duration, report func(sample) error) error {
	due := time.Now()
	var last sample
	for {
		now := take(ctx, point)
		if now.err == nil {
			if last.err == nil && !last.at.IsZero() {
				now.rates, now.rated = rates.Between(&last.status, &now.status, last.at, now.at)
			}
			last = now
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := report(now); err != nil {
			return err
		}
		due = nextSample(due, now.at, interval)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(due)):
		}
	}
}

// nextSample returns when the sample is due that follows one that was due at a time and was taken at
// another. Samples follow a fixed schedule, in which a late one does not shorten the next interval to
// less than half: the rates over a few milliseconds say nothing.
func nextSample(due, taken time.Time, interval time.Duration) time.Time {
	if taken.Sub(due) > interval/2 {
		return taken.Add(interval)
	}
	return due.Add(interval)
}

// take returns a sample without rates.
func take(ctx context.Context, point string) sample {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	status, err := statusOf(ctx, point)
	return sample{at: time.Now(), status: status, err: err}
}

// minInterval bounds the intervals of commands that watch a mount.
const minInterval = 100 * time.Millisecond

// checkInterval returns an error if interval is too short.
func checkInterval(interval time.Duration) error {
	if interval >= minInterval {
		return nil
	}
	return &exit.Error{
		Code: exit.Usage, Err: fmt.Errorf("the interval %v is shorter than %v", interval, minInterval),
		Remedy: "Use an interval such as 1s.",
	}
}
