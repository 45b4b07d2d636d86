package tiers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// Health is the state of a tier.
type Health int

// A tier is Well; Degraded when operations failed lately; and Down, when it is
// not used at all, after maxFailures in a row or one that got no answer. A
// tier on which only writing fails is Degraded, and is read but not filled.
const (
	Healthy Health = iota
	Degraded
	Down
)

// String is the state as status and metrics name it.
func (h Health) String() string {
	return [...]string{"healthy", "degraded", "down"}[h]
}

const (
	maxFailures = 3                // in a row
	maxProbe    = 30 * time.Second // the longest time between probes
	maxStuck    = 8                // operations that hang in a tier that is taken for well again
)

var (
	errDown = errors.New("tier is down")                     // of every operation of a tier that is down
	errBusy = errors.New("copy is being changed by another") // of a commit or removal
)

// health is what a tier's operations have said of it.
type health struct {
	log *slog.Logger

	mu     sync.Mutex // guards the following
	state  Health
	reads  int   // failures in a row
	writes int   // failures in a row
	cause  error // of the last failure while not well
	wake   chan struct{}
}

// A kind of operation is what its end says of a tier.
type kind int

// Only bytes that were read clear a tier of failures to read, and only a copy
// that was committed of failures to write: a broken disk opens files, and takes
// bytes that it will not keep. A probe clears of both. A listing that is not
// answered in time may hang or be long; a probe will tell.
const (
	opening kind = iota // and asking about names
	listing
	reading
	writing // and all else that changes something
	committing
)

// note records how an operation ended. What says nothing of the tier, such as
// a name that is not there or a device that is full, is not a failure.
func (h *health) note(k kind, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	failures := &h.reads
	if k >= writing {
		failures = &h.writes
	}
	switch {
	case err == nil && k != reading && k != committing:
	case err == nil:
		*failures = 0
		if h.state == Degraded && h.reads == 0 && h.writes == 0 {
			h.set(Healthy, nil)
		}
	case harmless(k, err) || h.state == Down:
	case errors.Is(err, errTimeout) && k != listing, failures == &h.reads && *failures+1 >= maxFailures:
		*failures++
		h.set(Down, err)
	default:
		*failures++
		h.set(Degraded, err)
	}
}

// harmless reports whether err says nothing of the tier's health: the caller
// went away, or the trouble is with one name. A name that is not there is no
// trouble for reading; for writing it means that the tier's folder has gone.
func harmless(k kind, err error) bool {
	if errors.Is(err, fs.ErrNotExist) {
		return k < writing
	}
	for _, e := range [...]error{
		drivers.ErrChanged, errDown, errBusy, context.Canceled,
		syscall.ENOTDIR, syscall.EISDIR, syscall.ENOTEMPTY, syscall.ENAMETOOLONG, syscall.ELOOP,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return isFull(err)
}

// isFull reports whether err is that of a device or quota without room.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// set changes the state; h.mu must be held.
func (h *health) set(s Health, cause error) {
	h.cause = cause
	if s == h.state {
		return
	}
	h.state = s
	if s == Healthy {
		h.log.Info("tier is well again")
		return
	}
	h.log.Warn("tier is not well", "state", s.String(), "err", cause)
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// readable reports whether the tier may be read.
func (h *health) readable() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state != Down
}

// writable reports whether the tier may be filled.
func (h *health) writable() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state != Down && h.writes < maxFailures
}

// get returns the state and its cause.
func (h *health) get() (Health, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state, h.cause
}

// recovered says that a probe succeeded.
func (h *health) recovered() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reads, h.writes = 0, 0
	h.set(Healthy, nil)
}

// watch probes the tier while it is not well, less and less often; and while it
// is counted, which takes as long as it takes and so would not tell of a hang.
func (t *Tier) watch(ctx context.Context) {
	well := func() bool {
		state, _ := t.health.get()
		return state == Healthy && t.Scanned()
	}
	pause := t.opts.Probe
	for {
		if well() {
			pause = t.opts.Probe
			select {
			case <-ctx.Done():
				return
			case <-t.health.wake:
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if well() {
			continue
		}
		pause = min(2*pause, maxProbe)
		if err := t.probe(ctx); err != nil {
			t.log.Debug("probe", "err", err)
			t.health.note(writing, err)
			continue
		}
		t.health.recovered()
	}
}

// probe uses the tier once. At most one probe is under way, so that a tier
// that hangs holds one goroutine and not one for each probe; and one in which
// more and more hangs, although a probe does not, is left alone in the end.
func (t *Tier) probe(ctx context.Context) error {
	if n := t.underWay.Load(); n > maxStuck && !t.health.readable() {
		return fmt.Errorf("%d operations have not returned: %w", n, errTimeout)
	}
	prober, ok := drivers.As[drivers.Prober](t.store)
	if !ok {
		return nil
	}
	if !t.probing.CompareAndSwap(false, true) {
		return fmt.Errorf("earlier probe: %w", errTimeout)
	}
	_, err := await(ctx, t.opts.Timeout, func() (struct{}, error) {
		defer t.probing.Store(false)
		return struct{}{}, prober.Probe(ctx)
	}, nil)
	return err
}
