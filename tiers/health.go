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

// A tier is Well; Suspect when operations failed lately; and Down, when it is
// not used at all, after maxFailures in a row or one that got no answer. A
// tier on which only writing fails is Suspect, and is read but not filled.
const (
	Well Health = iota
	Suspect
	Down
)

// String is the state as status and metrics name it.
func (h Health) String() string {
	return [...]string{"well", "suspect", "down"}[h]
}

const (
	maxFailures = 3                // in a row
	maxProbe    = 30 * time.Second // the longest time between probes
)

// errDown is the error of every operation of a tier that is down.
var errDown = errors.New("tier is down")

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

// kind tells reading from writing.
type kind int

const (
	reading kind = iota
	writing
)

// note records how an operation ended. What says nothing of the tier, such as
// a name that is not there or a device that is full, is not a failure.
func (h *health) note(k kind, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	failures := &h.reads
	if k == writing {
		failures = &h.writes
	}
	switch {
	case err == nil:
		*failures = 0
		if h.state == Suspect && h.reads == 0 && h.writes == 0 {
			h.set(Well, nil)
		}
	case harmless(k, err) || h.state == Down:
	case errors.Is(err, errTimeout), k == reading && *failures+1 >= maxFailures:
		*failures++
		h.set(Down, err)
	default:
		*failures++
		h.set(Suspect, err)
	}
}

// harmless reports whether err says nothing of the tier's health: the caller
// went away, or the trouble is with one name. A name that is not there is no
// trouble for reading; for writing it means that the tier's folder has gone.
func harmless(k kind, err error) bool {
	if errors.Is(err, fs.ErrNotExist) {
		return k == reading
	}
	for _, e := range [...]error{
		drivers.ErrChanged, errDown, context.Canceled,
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
	if s == Well {
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
	h.set(Well, nil)
}

// watch probes the tier while it is not well, less and less often.
func (t *Tier) watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.health.wake:
		}
		for pause := t.opts.Probe; ; pause = min(2*pause, maxProbe) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			if state, _ := t.health.get(); state == Well {
				break
			}
			if err := t.probe(ctx); err != nil {
				t.log.Debug("probe", "err", err)
				continue
			}
			t.health.recovered()
			break
		}
	}
}

// probe uses the tier once. At most one probe is under way, so that a tier
// that hangs holds one goroutine and not one for each probe.
func (t *Tier) probe(ctx context.Context) error {
	prober, ok := t.store.(drivers.Prober)
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
