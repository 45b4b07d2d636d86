package rates

import (
	"context"
	"sync"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
)

// A History records the Points of a daemon, one for each Interval, for the last half hour. Its methods
// may be called concurrently.
type History struct {
	status func(context.Context) control.Status

	mu     sync.Mutex // guards the following
	points []Point    // the latest last
}

// Interval is the time between two Points of a History.
const Interval = 5 * time.Second

// maxPoints bounds a History.
const maxPoints = 360

// NewHistory returns a History of the daemon that has the results of status.
func NewHistory(status func(context.Context) control.Status) *History {
	return &History{status: status}
}

// Run records until ctx is done.
func (h *History) Run(ctx context.Context) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	before, from := h.status(ctx), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		after, to := h.status(ctx), time.Now()
		if p, ok := Between(&before, &after, from, to); ok {
			h.add(p)
		}
		before, from = after, to
	}
}

func (h *History) add(p Point) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.points) == maxPoints {
		h.points = append(h.points[:0:0], h.points[1:]...) // Since may have returned the old slice
	}
	h.points = append(h.points, p)
}

// Since returns the points after a time, the latest last. The caller does not modify them.
func (h *History) Since(t time.Time) []Point {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := len(h.points)
	for i > 0 && h.points[i-1].Time.After(t) {
		i--
	}
	return h.points[i:len(h.points):len(h.points)]
}
