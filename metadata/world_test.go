package metadata

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/tiers"
)

var bg = context.Background()

// A world is a container with a source and two tiers, whose operations are counted.
type world struct {
	*Container
	source *drivertest.Mem
	faults *drivertest.Faults // around the source
	tier   [3]*drivertest.Mem // by level
	down   [3]*drivertest.Faults
	levels *tiers.Hierarchy
}

func newWorld(t *testing.T, ttl time.Duration) *world {
	t.Helper()
	mem := drivertest.NewMem(0)
	return worldWithFaults(t, mem, drivertest.NewFaults(mem), ttl)
}

// newNamerWorld returns a world whose source lists names without attributes.
func newNamerWorld(t *testing.T, ttl time.Duration) *world {
	t.Helper()
	mem := drivertest.NewMem(0)
	return worldWithFaults(t, mem, drivertest.NewFaults(drivertest.NewNamer(mem)), ttl)
}

func worldWithFaults(t *testing.T, mem *drivertest.Mem, faults *drivertest.Faults, ttl time.Duration) *world {
	t.Helper()
	w := worldOf(t, faults, ttl)
	w.source, w.faults = mem, faults
	return w
}

// worldOf returns a world with another kind of source.
func worldOf(t *testing.T, source drivers.Driver, ttl time.Duration) *world {
	t.Helper()
	w := new(world)
	var configs []tiers.Config
	for l := 1; l < len(w.tier); l++ {
		w.tier[l] = drivertest.NewMem(0)
		w.down[l] = drivertest.NewFaults(w.tier[l])
		configs = append(configs, tiers.Config{Name: fmt.Sprint("tier", l), Store: w.down[l], Quota: tiers.Quota{Bytes: 1 << 30}})
	}
	log := slog.New(slog.DiscardHandler)
	var err error
	if w.levels, err = tiers.New(source, configs, tiers.Options{}, log); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(bg)
	var running sync.WaitGroup
	running.Go(func() { w.levels.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	w.levels.WaitScanned(bg)
	if w.Container, err = New(bg, w.levels, Options{TTL: ttl}, log); err != nil {
		t.Fatal(err)
	}
	return w
}

// inBubble runs f in a synctest bubble, where time advances when all goroutines wait.
func inBubble(t *testing.T, ttl time.Duration, f func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) { f(t, newWorld(t, ttl)) })
}

func (w *world) get(t *testing.T, name string) *Entry {
	t.Helper()
	e, err := w.Resolve(bg, name)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (w *world) list(t *testing.T, dir string) string {
	t.Helper()
	entries, err := w.List(bg, w.get(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	return names(entries)
}

func names(entries []*Entry) string {
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func wantMissing(t *testing.T, w *world, name string) {
	t.Helper()
	if _, err := w.Resolve(bg, name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: got %v, want %v", name, err, fs.ErrNotExist)
	}
}
