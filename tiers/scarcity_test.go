package tiers

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// scarce makes a hierarchy of a source and a tier that fail operations until OnScarcity's function
// was called, and returns the number of its calls.
func scarce(t *testing.T, err error) (h *Hierarchy, relieved *atomic.Int64) {
	t.Helper()
	source, store := drivertest.NewFaults(drivertest.NewMem(1<<20)), drivertest.NewFaults(drivertest.NewMem(1<<20))
	h, e := New(source, []Config{{Name: "ram", Store: store, Quota: Quota{Bytes: 1 << 20}}}, Options{}, slog.New(slog.DiscardHandler))
	if e != nil {
		t.Fatal(e)
	}
	for _, f := range []*drivertest.Faults{source, store} {
		f.Add(drivertest.Rule{Err: err})
	}
	relieved = new(atomic.Int64)
	h.OnScarcity(func() {
		relieved.Add(1)
		source.Clear()
		store.Clear()
	})
	return h, relieved
}

// An operation that fails because no descriptor is left is repeated after others were closed.
func TestScarcity(t *testing.T) {
	for _, err := range []error{syscall.EMFILE, syscall.ENFILE} {
		for name, operation := range map[string]func(h *Hierarchy) error{
			"source": func(h *Hierarchy) error { _, err := h.Source().ReadDir(context.Background(), "."); return err },
			"tier":   func(h *Hierarchy) error { _, err := h.Tier(1).ReadDir(context.Background(), "."); return err },
		} {
			h, relieved := scarce(t, err)
			if got := operation(h); got != nil {
				t.Errorf("%s, %v: got %v", name, err, got)
			}
			if relieved.Load() != 1 {
				t.Errorf("%s, %v: relieved %d times, want once", name, err, relieved.Load())
			}
		}
	}
}

// Other errors are not repeated, and a caller that is cancelled does not wait.
func TestNoScarcity(t *testing.T) {
	h, relieved := scarce(t, syscall.EIO)
	if _, err := h.Source().ReadDir(context.Background(), "."); !errors.Is(err, syscall.EIO) || relieved.Load() != 0 {
		t.Errorf("got %v, and relieved %d times", err, relieved.Load())
	}
	h, _ = scarce(t, syscall.EMFILE)
	h.OnScarcity(func() {})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := h.Source().ReadDir(ctx, "."); err == nil {
		t.Error("a cancelled caller waited")
	}
}
