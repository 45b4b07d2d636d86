// Package tiers is the ordered hierarchy that a dataset is read through: the
// tiers, fastest first, each a store of copies with a quota and a state of
// health, and below them the source, which has everything.
//
// The package keeps three promises. No tier holds more than its quota, however
// many copies are made at once (space.go). A tier that fails, fills up or
// hangs costs a read at most the tier's time-out, once, and is then left alone
// until a probe finds it well (health.go, guard.go). And the source is reached
// through a type that cannot write (source.go).
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
)

// A Level says where a file is: at the source, which is the zero value, or on
// a tier, counted from 1, the fastest.
type Level uint8

// AtSource is the level of a file that no tier holds.
const AtSource Level = 0

// MaxTiers is how many tiers a hierarchy may have.
const MaxTiers = 16

// A Quota is how much a tier may hold: Bytes, or if that is 0, Percent of what
// the tier has free for us, which is what is available there and what the
// copies already take.
type Quota struct {
	Bytes   int64
	Percent float64
}

// String is the quota as the configuration writes it, such as "90%".
func (q Quota) String() string {
	if q.Bytes > 0 {
		return strconv.FormatInt(q.Bytes, 10)
	}
	return strconv.FormatFloat(q.Percent, 'g', -1, 64) + "%"
}

// A Config describes one tier.
type Config struct {
	Name  string        // as operators call it: "ram", "ssd"
	Path  string        // where it is, for people
	Store drivers.Store // what holds the copies; the hierarchy does not close it
	Quota Quota
}

// Options are what tests change; the zero value is what users want.
type Options struct {
	Timeout time.Duration // of one operation of a tier; 0 is 5 s
	Probe   time.Duration // between looks at a tier that is not well, at first; 0 is 1 s
}

// A Hierarchy is the tiers above one source. Its methods may be called
// concurrently.
type Hierarchy struct {
	source *Source
	tiers  []*Tier // tiers[0] is level 1
}

// New makes a hierarchy. Run must be called for its tiers to take copies.
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
	h := &Hierarchy{source: &Source{driver: source}}
	for i, c := range tiers {
		if c.Quota.Bytes < 0 || c.Quota.Percent < 0 || c.Quota.Percent > 100 || math.IsNaN(c.Quota.Percent) {
			return nil, fmt.Errorf("tier %s: quota %v out of range", c.Name, c.Quota)
		}
		h.tiers = append(h.tiers, newTier(Level(i+1), c, opts, log.With("tier", c.Name)))
	}
	return h, nil
}

// Run counts what the tiers hold and then watches their health. It returns
// when ctx is done and all that it started has ended.
func (h *Hierarchy) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, t := range h.tiers {
		wg.Go(func() { t.run(ctx) })
	}
	wg.Wait()
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
