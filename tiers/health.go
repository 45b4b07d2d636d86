package tiers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// Health is the state of a tier.
type Health int

// A tier is Degraded after an operation failed. It is Down, and not used until a probe succeeds,
// after maxFailures failed reads in a row, one operation other than a listing that timed out, one
// that has lost bytes, a probe that could read none of several copies, or if it is slow (slow.go).
// After maxFailures failed writes in a row it is read but not filled.
const (
	Healthy Health = iota
	Degraded
	Down
)

// String returns the state as status and metrics name it.
func (h Health) String() string {
	return [...]string{"healthy", "degraded", "down"}[h]
}

const (
	maxFailures = 3                // in a row
	maxProbe    = 30 * time.Second // longest interval between probes
	maxHanging  = 8                // hanging operations in a tier that a probe may bring back
)

var (
	errDown    = errors.New("tier is down") // every operation of a tier that is down
	errRetired = errors.New("the mount has ended here, and has released its tiers")
	errBusy    = errors.New("another commit or removal is in progress") // a commit or removal

	errNotScanned = errors.New("the tier has not been scanned yet")
)

// health is the state of a tier as its operations show it: one immutable condition behind
// one atomic pointer, so that a read of a healthy tier takes no lock.
type health struct {
	log       *slog.Logger
	condition atomic.Pointer[condition] // nil: healthy, without failures
	wake      chan struct{}             // has an element when probes are due
}

// A condition is the state of a tier at one moment.
type condition struct {
	state  Health
	reads  int   // failures to read in a row
	writes int   // failures to write in a row
	cause  error // last failure while the tier is not healthy
}

var healthy condition

// load returns the current condition and the pointer to replace.
func (h *health) load() (condition, *condition) {
	p := h.condition.Load()
	if p == nil {
		return healthy, nil
	}
	return *p, p
}

// A kind of operation determines what its result shows about a tier.
type kind int

// Only a read of content clears failures to read, and only a commit clears failures to write: a
// broken disk opens files and accepts bytes that it will lose. A disk that has lost bytes is not
// used until a probe succeeds. A probe clears both. A listing that times out may hang or may be
// long; the next probe distinguishes these.
const (
	opening kind = iota // and lookups of names
	listing
	reading
	writing // and every other change
	committing
)

// note records the result of an operation. Errors that do not concern the health of the tier,
// such as a missing name or a full device, are not failures.
func (h *health) note(k kind, err error) {
	for {
		old, p := h.load()
		next, differs := old.after(k, err)
		if !differs {
			return
		}
		if h.condition.CompareAndSwap(p, &next) {
			h.changed(old.state, next)
			return
		}
	}
}

// after returns the condition that follows c when an operation of kind k ends with err, and
// reports whether it differs from c.
func (c condition) after(k kind, err error) (next condition, differs bool) {
	failures := &c.reads
	if k >= writing {
		failures = &c.writes
	}
	switch {
	case err == nil && (k != reading && k != committing || *failures == 0):
		return c, false
	case err == nil:
		*failures = 0
		if c.state == Degraded && c.reads == 0 && c.writes == 0 {
			c = healthy
		}
	case harmless(k, err) || c.state == Down:
		return c, false
	case endsUse(k, err), failures == &c.reads && *failures+1 >= maxFailures:
		*failures++
		c.state, c.cause = Down, err
	default:
		*failures++
		c.state, c.cause = Degraded, err
	}
	return c, true
}

// endsUse reports whether err alone takes a tier down.
func endsUse(k kind, err error) bool {
	var slow *slowError
	return errors.Is(err, errTimeout) && k != listing || errors.Is(err, drivers.ErrLost) ||
		errors.Is(err, errUnreadable) || errors.As(err, &slow)
}

// harmless reports whether err does not concern the health of a tier: the caller was cancelled,
// only one name is affected, or this process or machine lacks descriptors or memory. A missing name
// is harmless for a read; for a write it means that the folder of the tier is missing.
func harmless(k kind, err error) bool {
	if errors.Is(err, fs.ErrNotExist) {
		return k < writing
	}
	for _, e := range [...]error{
		drivers.ErrChanged, drivers.ErrCorrupt, drivers.ErrUnfit, drivers.ErrNoRecord, errDown, errBusy, errQueued, context.Canceled,
		syscall.ENOTDIR, syscall.EISDIR, syscall.ENOTEMPTY, syscall.ENAMETOOLONG, syscall.EFBIG, syscall.ELOOP, syscall.ENXIO,
		syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN, syscall.EINTR,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return isFull(err)
}

// isFull reports whether err is that of a full device or quota.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// changed logs a change of state and starts the probes.
func (h *health) changed(old Health, now condition) {
	if now.state == old {
		return
	}
	if now.state == Healthy {
		h.log.Info("tier is healthy again")
		return
	}
	h.log.Warn("tier is not healthy", "state", now.state.String(), "err", now.cause)
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// readable reports whether the tier may be read.
func (h *health) readable() bool {
	p := h.condition.Load()
	return p == nil || p.state != Down
}

// writable reports whether the tier may be filled.
func (h *health) writable() bool {
	c, _ := h.load()
	return c.state != Down && c.writes < maxFailures
}

// get returns the state and its cause.
func (h *health) get() (Health, error) {
	c, _ := h.load()
	return c.state, c.cause
}

// retire sets the state to Down. Only a probe would change it, and there are no more probes.
func (h *health) retire() { h.condition.Store(&condition{state: Down, cause: errRetired}) }

// recovered records a successful probe.
func (h *health) recovered() {
	if p := h.condition.Swap(nil); p != nil {
		h.changed(p.state, healthy)
	}
}

// watch probes the tier while it is not healthy, at increasing intervals, which continue to
// increase if the tier fails again soon. The probes of a slow tier have a fixed interval, because
// all of its files are read from the source meanwhile. watch also probes during the scan, which has
// no time-out and would not detect a hang.
func (t *Tier) watch(ctx context.Context) {
	healthy := func() bool {
		state, _ := t.health.get()
		return state == Healthy && t.Scanned()
	}
	pause, recovered := t.opts.Probe, time.Time{}
	for {
		if healthy() {
			select {
			case <-ctx.Done():
				return
			case mean := <-t.speed.suspected:
				t.judge(ctx, mean)
				continue
			case <-time.After(pathInterval):
				t.checkPath(ctx)
				t.checkShortage(ctx)
				continue
			case <-t.health.wake:
			}
			if time.Since(recovered) > 2*maxProbe {
				pause = t.opts.Probe
			}
		}
		select {
		case <-ctx.Done():
			return
		case mean := <-t.speed.suspected:
			t.judge(ctx, mean)
			continue
		case <-time.After(pause):
		}
		if healthy() {
			continue
		}
		if pause = min(2*pause, maxProbe); t.slowCause() != nil {
			pause = t.opts.Probe
		}
		if err := t.probe(ctx); err != nil {
			t.log.Debug("probe failed", "err", err)
			t.health.note(writing, err)
			continue
		}
		t.speed.restart()
		t.health.recovered()
		recovered = time.Now()
	}
}

// probe uses the tier once. At most one probe is in flight, so that a tier that hangs
// occupies one goroutine and not one for each probe. A tier stays down while many of its
// operations hang, even if a probe would succeed.
func (t *Tier) probe(ctx context.Context) error {
	if n := t.inFlight.Load(); n > maxHanging && !t.health.readable() {
		return fmt.Errorf("%d operations have not returned: %w", n, errTimeout)
	}
	slow := t.slowCause()
	if slow != nil && t.sourceIsSlow(slow) {
		return nil
	}
	if err := t.admit(ctx, t.opts.Timeout); err != nil { // no other operation could begin, either
		return err
	}
	if !t.probing.CompareAndSwap(false, true) {
		t.endCall()
		return fmt.Errorf("earlier probe: %w", errTimeout)
	}
	_, err := await(ctx, t.opts.Timeout, func() (struct{}, error) {
		defer t.probing.Store(false)
		return struct{}{}, t.use(ctx, slow != nil)
	}, nil, t.endCall)
	return err
}

// use reads some copies and calls the Prober of the store. With fast, it fails if that takes long.
func (t *Tier) use(ctx context.Context, fast bool) error {
	start := time.Now()
	read, err := t.readCopies(ctx, fast)
	if err != nil {
		return err
	}
	if p, ok := drivers.As[drivers.Prober](t.store); ok {
		err = p.Probe(ctx)
	}
	if read > 0 && (isFull(err) || errors.Is(err, syscall.EFBIG)) { // it has no room for the file of the probe
		err = nil
	}
	if took := time.Since(start); err == nil && fast && read == 0 && took > slowRead {
		err = fmt.Errorf("a probe takes %v", took)
	}
	return err
}

// readCopies reads a block of some copies, and returns how many it has read. It fails if it could
// read none of several or, with fast, if a read takes long.
func (t *Tier) readCopies(ctx context.Context, fast bool) (read int, err error) {
	p, ok := drivers.As[drivers.CopyProber](t.store)
	if !ok || t.memory.Load() {
		return 0, nil
	}
	var errs []error
	for _, name := range t.recent.pick(probedCopies) {
		start := time.Now()
		_, err := p.ProbeCopy(ctx, name)
		took := time.Since(start)
		switch {
		case err == nil && fast && took > fastRead:
			return read, fmt.Errorf("a read takes %v", took)
		case err == nil:
			read++
		case !harmless(reading, err):
			errs = append(errs, err)
		}
	}
	if len(errs) > 1 && read == 0 {
		return 0, fmt.Errorf("%w: %w", errUnreadable, errs[0])
	}
	return read, nil
}
