// Package tiers is the hierarchy of storage that a dataset is read through: the tiers,
// fastest first, each a store of copies with a quota and a state of health, and below them
// the source, which has every file. Other nodes of the job are one more place to read from,
// between the tiers and the source (peers.go).
//
// Reservations keep a tier within its quota, however many copies are made at the same time
// (space.go). A tier that hangs delays the operations in flight by at most its time-out, and is
// then not used until a probe succeeds (health.go, await.go). The source is accessed through a
// type without write methods (source.go).
package tiers

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// A Level is the place of a file: the source, which is the zero value, or a tier. The
// fastest tier is level 1.
type Level uint8

// AtSource is the level of a file without a copy.
const AtSource Level = 0

// MaxTiers is the largest number of tiers in a hierarchy.
const MaxTiers = 16

// A Quota bounds the size of the copies in a tier. It is Bytes or, if that is 0, Percent of
// the sum of the available space of the device and the size of the existing copies.
type Quota struct {
	Bytes   int64
	Percent float64
}

// String returns the quota in the notation of the configuration, such as "90%".
func (q Quota) String() string {
	if q.Bytes > 0 {
		return strconv.FormatInt(q.Bytes, 10)
	}
	return strconv.FormatFloat(q.Percent, 'g', -1, 64) + "%"
}

// A Config describes one tier.
type Config struct {
	Name  string        // the operator's name for it, such as "ram" or "ssd"
	Path  string        // its folder, for display
	Store drivers.Store // holds the copies; the hierarchy does not close it
	Quota Quota

	// Window is the share of the quota, in bytes or percent of it, for copies that are never
	// committed (Tier.ReserveWindow); the zero value: none.
	Window Quota

	// Open opens Store if that is nil. It is called again after an error, and may hang. The tier
	// is down before it has succeeded; see Hierarchy.Open.
	Open func() (drivers.Store, error)
}

// Options are settings of a Hierarchy. Timeout and Probe are for tests. The zero value is for
// production without peers.
type Options struct {
	Peers   Peers    // the other nodes of the job; nil: there are none
	Threads *Threads // nil: the threads of the process are not limited

	Timeout time.Duration // of one operation on a tier; 0: 5 s
	Probe   time.Duration // first interval between probes of a tier that is not healthy; 0: 1 s
}

// A Hierarchy is the tiers above one source. Its methods may be called
// concurrently.
type Hierarchy struct {
	source *Source
	peers  Peers   // nil: there are none
	tiers  []*Tier // tiers[0] is level 1

	scarcity *scarcity // of descriptors
}

// New makes a hierarchy. Its tiers accept copies after Run was called.
func New(source drivers.Driver, tiers []Config, opts Options, log *slog.Logger) (*Hierarchy, error) {
	if len(tiers) > MaxTiers {
		return nil, fmt.Errorf("%d tiers: at most %d", len(tiers), MaxTiers)
	}
	if opts.Timeout == 0 {
		opts.Timeout = 5 * time.Second
	}
	if opts.Probe == 0 {
		opts.Probe = time.Second
	}
	lack := &scarcity{log: log}
	h := &Hierarchy{source: makeSource(source, lack), peers: opts.Peers, scarcity: lack}
	for i, c := range tiers {
		if c.Quota.Bytes < 0 || c.Quota.Percent < 0 || c.Quota.Percent > 100 || math.IsNaN(c.Quota.Percent) {
			return nil, fmt.Errorf("tier %s: quota %v out of range", c.Name, c.Quota)
		}
		h.tiers = append(h.tiers, newTier(Level(i+1), c, h.source, opts, log.With("tier", c.Name)))
	}
	h.limitCalls(opts.Threads)
	return h, nil
}

// Run scans the tiers and then watches their health. It returns when ctx is done and its
// goroutines have ended.
func (h *Hierarchy) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, t := range h.tiers {
		wg.Go(func() { panics.Repeat(ctx, func() { t.run(ctx) }) })
	}
	wg.Wait()
}

// Retire ends the use of all tiers for good, because another process may use them now. It is
// called after Run has returned. Files are then read from the source; those that are open on a
// copy move to it with their next read.
func (h *Hierarchy) Retire() {
	for _, t := range h.tiers {
		t.health.retire()
	}
}

// WaitScanned waits until every tier has been scanned, and therefore accepts
// copies, or until ctx is done. It does not wait for a tier that is down or whose
// first scan failed.
func (h *Hierarchy) WaitScanned(ctx context.Context) {
	for _, t := range h.tiers {
		for waiting := true; waiting && t.health.readable(); {
			select {
			case <-t.tried:
				waiting = false
			case <-time.After(t.opts.Probe):
			case <-ctx.Done():
				return
			}
		}
	}
}

// Source returns the lowest level.
func (h *Hierarchy) Source() *Source { return h.source }

// Peers returns the other nodes of the job, or nil.
func (h *Hierarchy) Peers() Peers { return h.peers }

// Tier returns the tier of a level, which must not be AtSource.
func (h *Hierarchy) Tier(l Level) *Tier { return h.tiers[l-1] }

// Below returns the tiers below t, fastest first. The slice must not be changed.
func (h *Hierarchy) Below(t *Tier) []*Tier { return h.tiers[t.level:] }

// Tiers returns the tiers, fastest first. The slice must not be changed.
func (h *Hierarchy) Tiers() []*Tier { return h.tiers }

// Name returns the name of a level: the tier's, or "source".
func (h *Hierarchy) Name(l Level) string {
	if l == AtSource {
		return "source"
	}
	return h.Tier(l).name
}
