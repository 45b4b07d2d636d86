package tiers

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// errNotOpen is the error of a store that is not open yet.
var errNotOpen = errors.New("the tier is not open yet")

// A lateStore is a Store that is opened while its tier is in use. Each Probe attempts that until
// it has succeeded; the tier has at most one probe in flight.
type lateStore struct {
	open   func() (drivers.Store, error)
	opened chan struct{}                 // closed when store is set
	store  atomic.Pointer[drivers.Store] // nil: not open
}

var (
	_ drivers.Store  = (*lateStore)(nil)
	_ drivers.Prober = (*lateStore)(nil)
)

// newLateStore returns a store for t that open opens. Until then, t is down, and what open
// returned is the cause.
func newLateStore(t *Tier, open func() (drivers.Store, error)) *lateStore {
	t.health.condition.Store(&condition{state: Down, cause: errNotOpen})
	return &lateStore{opened: make(chan struct{}), open: func() (drivers.Store, error) {
		store, err := open()
		if err != nil {
			t.health.notOpen(err)
			return nil, err
		}
		t.memory.Store(inMemory(store))
		return store, nil
	}}
}

// Probe implements drivers.Prober.
func (s *lateStore) Probe(ctx context.Context) error {
	if p := s.store.Load(); p != nil {
		if prober, ok := drivers.As[drivers.Prober](*p); ok {
			return prober.Probe(ctx)
		}
		return nil
	}
	store, err := s.open()
	if err != nil {
		return err
	}
	s.store.Store(&store)
	close(s.opened)
	return nil
}

// Unwrap returns the store, or nil while it is not open. It is for drivers.As.
func (s *lateStore) Unwrap() drivers.Driver {
	if p := s.store.Load(); p != nil {
		return *p
	}
	return nil
}

// get returns the store, or an error while it is not open.
func (s *lateStore) get() (drivers.Store, error) {
	if p := s.store.Load(); p != nil {
		return *p, nil
	}
	return nil, errNotOpen
}

// Open implements drivers.Driver.
func (s *lateStore) Open(ctx context.Context, name string) (drivers.Object, error) {
	store, err := s.get()
	if err != nil {
		return nil, err
	}
	return store.Open(ctx, name)
}

// ReadDir implements drivers.Driver.
func (s *lateStore) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	store, err := s.get()
	if err != nil {
		return nil, err
	}
	return store.ReadDir(ctx, dir)
}

// Stat implements drivers.Driver.
func (s *lateStore) Stat(ctx context.Context, name string) (drivers.Info, error) {
	store, err := s.get()
	if err != nil {
		return drivers.Info{}, err
	}
	return store.Stat(ctx, name)
}

// Create implements drivers.Store.
func (s *lateStore) Create(ctx context.Context, name string, info drivers.Info) (drivers.Writer, error) {
	store, err := s.get()
	if err != nil {
		return nil, err
	}
	return store.Create(ctx, name, info)
}

// Remove implements drivers.Store.
func (s *lateStore) Remove(ctx context.Context, name string) error {
	store, err := s.get()
	if err != nil {
		return err
	}
	return store.Remove(ctx, name)
}

// inMemory reports whether a store never blocks.
func inMemory(s drivers.Store) bool { return drivers.ProfileOf(s).Latency == drivers.LatencyMemory }

// notOpen records why the store of a tier cannot be opened. It logs a reason that is new, but not
// the first, which Hierarchy.Open returns.
func (h *health) notOpen(err error) {
	p := h.condition.Load()
	if p == nil || p.cause == errRetired || !h.condition.CompareAndSwap(p, &condition{state: Down, cause: err}) {
		return
	}
	if p.cause != errNotOpen && p.cause.Error() != err.Error() {
		h.log.Warn("the tier still cannot be opened", "err", err)
	}
}

// Open opens the stores of the tiers that have none yet, all at once, and waits for that at most
// for a time. It is called once, before Run. The errors are those of the tiers, in their order.
// A tier with an error is down; Run attempts to open it until that succeeds.
func (h *Hierarchy) Open(ctx context.Context, timeout time.Duration) []error {
	errs := make([]error, len(h.tiers))
	var opening sync.WaitGroup
	for i, t := range h.tiers {
		if late, ok := t.store.(*lateStore); ok {
			opening.Go(func() {
				errs[i] = panics.Do(func() error { return t.openStore(ctx, late, timeout) })
			})
		}
	}
	opening.Wait()
	return errs
}

// openStore opens the store of t.
func (t *Tier) openStore(ctx context.Context, s *lateStore, timeout time.Duration) error {
	t.probing.Store(true)
	_, err := await(ctx, timeout, func() (struct{}, error) {
		defer t.probing.Store(false)
		return struct{}{}, s.Probe(ctx)
	}, nil, nil)
	switch {
	case err == nil:
		t.health.condition.Store(nil)
	case errors.Is(err, errTimeout):
		t.health.notOpen(err)
	}
	return err
}

// awaitOpen waits until the store is open, or returns an error when ctx is done.
func (t *Tier) awaitOpen(ctx context.Context) error {
	late, ok := t.store.(*lateStore)
	if !ok {
		return nil
	}
	select {
	case <-late.opened:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
