package tiers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// The kernel reads the copies that a tier has lent as backing files by itself, so that the tier sees
// neither errors nor hangs of these reads. While it lends, it therefore reads copies from the disk.

const (
	lentInterval = time.Second // between two probes of a tier that lends
	lentOverdue  = time.Second // a tier does not lend while a probe takes longer
	probedCopies = 3           // copies that a probe reads at most
)

// errUnreadable means that reads of several copies have failed, one after the other.
var errUnreadable = errors.New("copies cannot be read")

// lending is the state of a tier that lends copies to the kernel.
type lending struct {
	lent   atomic.Int64              // backing files that are registered now
	wake   chan struct{}             // has an element if a copy was lent since it was received
	probed atomic.Pointer[time.Time] // when the probe in progress began; nil: there is none
}

// lend records that a backing file was registered. The caller calls release when it is not any more.
func (l *lending) lend() (release func()) {
	l.lent.Add(1)
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return func() { l.lent.Add(-1) }
}

// isOverdue reports whether a probe takes long.
func (l *lending) isOverdue() bool {
	began := l.probed.Load()
	return began != nil && time.Since(*began) > lentOverdue
}

// lends reports whether the kernel may read copies of the tier directly. It may not after a read has
// failed: the daemon sees which reads fail, and reads from another level.
func (t *Tier) lends() bool {
	c, _ := t.health.load()
	return c.state != Down && c.reads == 0 && !t.lending.isOverdue()
}

// probeLent probes the tier while the kernel may read copies directly. The first probe begins when
// a copy is lent, so that a disk that has failed meanwhile is detected at once.
func (t *Tier) probeLent(ctx context.Context) {
	p, ok := drivers.As[drivers.CopyProber](t.store)
	if t.memory.Load() || !ok {
		return
	}
	for {
		if t.lending.lent.Load() == 0 {
			select {
			case <-ctx.Done():
				return
			case <-t.lending.wake:
			}
		}
		if t.health.readable() {
			now := time.Now()
			t.lending.probed.Store(&now)
			t.checkLent(ctx, p)
			t.lending.probed.Store(nil)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(lentInterval):
		}
	}
}

// checkLent reads a block of a copy. If that fails, it reads other copies. The tier is down if all
// fail: if only one does, the disk may have lost a part of it.
func (t *Tier) checkLent(ctx context.Context, p drivers.CopyProber) {
	var errs []error
	for _, name := range t.recent.pick(probedCopies) {
		start, queued := time.Now(), 0
		_, err := do(ctx, t, reading, func() (n int, err error) {
			start = time.Now()
			queued, err = p.ProbeCopy(ctx, name)
			return 0, err
		}, nil)
		switch {
		case err == nil:
			t.speed.add(time.Since(start), max(queued, int(t.inFlight.Load())))
			return
		case ctx.Err() != nil || !t.health.readable():
			return
		case !harmless(reading, err):
			errs = append(errs, err)
		}
	}
	if len(errs) > 1 {
		t.health.note(reading, fmt.Errorf("%w: %w", errUnreadable, errs[0]))
	}
}

// recentCopies are the names of copies that were opened a short time ago. Probes read some of them.
type recentCopies struct {
	mu    panics.Mutex // guards the following
	names [64]string
	added int // names added so far
}

// add adds a name in place of the oldest.
func (r *recentCopies) add(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names[r.added%len(r.names)] = name
	r.added++
}

// pick returns up to n different names at random.
func (r *recentCopies) pick(n int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := min(r.added, len(r.names))
	picked := make(map[string]bool)
	var names []string
	for _, i := range rand.Perm(known) {
		if name := r.names[i]; len(names) < n && !picked[name] {
			picked[name] = true
			names = append(names, name)
		}
	}
	return names
}
