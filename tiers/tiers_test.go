package tiers

import (
	"bytes"
	"context"
	"log/slog"
	"path"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

var (
	bg    = context.Background()
	quiet = slog.New(slog.DiscardHandler)
)

// start makes a hierarchy above an empty source and runs it. stop ends it and waits.
func start(t *testing.T, opts Options, configs ...Config) (h *Hierarchy, stop func()) {
	t.Helper()
	return startOver(t, drivertest.NewMem(0), opts, configs...)
}

// startOver is start above a source.
func startOver(t *testing.T, source drivers.Driver, opts Options, configs ...Config) (h *Hierarchy, stop func()) {
	t.Helper()
	h, err := New(source, configs, opts, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return h, runIn(h)
}

// runIn runs a hierarchy. stop ends it and waits.
func runIn(h *Hierarchy) (stop func()) {
	ctx, cancel := context.WithCancel(bg)
	var running sync.WaitGroup
	running.Go(func() { h.Run(ctx) })
	return func() { cancel(); running.Wait() }
}

// startTier is start with one tier, whose scan it waits for.
func startTier(t *testing.T, store drivers.Store, q Quota) (tier *Tier, stop func()) {
	t.Helper()
	h, stop := start(t, Options{}, Config{Name: "ram", Store: store, Quota: q})
	h.WaitScanned(bg)
	return h.Tier(1), stop
}

// info describes a regular file of size bytes.
func info(size int64) drivers.Info {
	return drivers.Info{Mode: syscall.S_IFREG | 0o600, Size: size, Mtime: time.Unix(1e9, size)}
}

// place makes a copy of size bytes, as the placement handler does, and returns the first
// error. It reports false if the tier has no room.
func place(tier *Tier, name string, size int64) (bool, error) {
	room, ok := tier.Reserve(bg, size)
	if !ok {
		return false, nil
	}
	defer room.Return()
	w, err := tier.Create(bg, name, info(size))
	if err != nil {
		return true, err
	}
	defer w.Close()
	defer w.Abort()
	if _, err := w.WriteAt(make([]byte, size), 0); err != nil {
		return true, err
	}
	if err := w.Commit(); err != nil {
		return true, err
	}
	room.Commit()
	return true, nil
}

func mustPlace(t *testing.T, tier *Tier, name string, size int64) {
	t.Helper()
	if ok, err := place(tier, name, size); !ok || err != nil {
		t.Fatalf("place %s: got %v, %v", name, ok, err)
	}
}

// held returns the allocated bytes and the files of the copies in a store.
func held(t *testing.T, store drivers.Driver, dir string) (size, files int64) {
	t.Helper()
	infos, err := store.ReadDir(bg, dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range infos {
		if i.IsDir() {
			b, f := held(t, store, path.Join(dir, i.Name))
			size, files = size+b, files+f
		} else {
			size, files = size+Allocated(i.Size), files+1
		}
	}
	return size, files
}

// checkAccount compares the account of a tier with the content of its store. No copy is in
// flight.
func checkAccount(t *testing.T, tier *Tier, store drivers.Driver) {
	t.Helper()
	s := tier.Stats()
	size, files := held(t, store, ".")
	if s.Used != size || s.Files != files || s.Filling != 0 {
		t.Errorf("account: got %d bytes in %d files and %d in flight, want %d in %d and 0", s.Used, s.Files, s.Filling, size, files)
	}
}

func TestQuotaOutOfRange(t *testing.T) {
	for _, q := range []Quota{{Bytes: -1}, {Percent: -1}, {Percent: 101}} {
		if _, err := New(drivertest.NewMem(0), []Config{{Name: "ram", Quota: q}}, Options{}, quiet); err == nil {
			t.Errorf("quota %v: got no error", q)
		}
	}
	if _, err := New(drivertest.NewMem(0), make([]Config, MaxTiers+1), Options{}, quiet); err == nil {
		t.Error("too many tiers: got no error")
	}
}

func TestNames(t *testing.T) {
	h, stop := start(t, Options{}, Config{Name: "ram", Store: drivertest.NewMem(0)}, Config{Name: "ssd", Store: drivertest.NewMem(0)})
	defer stop()
	for l, want := range []string{"source", "ram", "ssd"} {
		if got := h.Name(Level(l)); got != want {
			t.Errorf("name of level %d: got %s, want %s", l, got, want)
		}
	}
	for q, want := range map[Quota]string{{Bytes: 4096}: "4096", {Percent: 90}: "90%", {Percent: 12.5}: "12.5%"} {
		if got := q.String(); got != want {
			t.Errorf("quota: got %s, want %s", got, want)
		}
	}
}

func TestReadBack(t *testing.T) {
	tier, stop := startTier(t, drivertest.NewMem(0), Quota{Bytes: 1 << 20})
	defer stop()
	mustPlace(t, tier, "d/f", 10_000)
	o, err := tier.Open(bg, "d/f", info(10_000))
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	got := bytes.Repeat([]byte{1}, 10_000)
	if n, err := o.ReadAt(bg, got, 0); n != len(got) || err != nil || !bytes.Equal(got, make([]byte, 10_000)) {
		t.Errorf("read: got %d bytes, %v", n, err)
	}
	if s := tier.Stats(); s.Reads != 1 || s.Bytes != 10_000 || s.Latency.Count != 1 {
		t.Errorf("stats: got %d reads of %d bytes, %d timed", s.Reads, s.Bytes, s.Latency.Count)
	}
	if _, err := tier.Open(bg, "d/f", info(9_999)); !isChanged(err) {
		t.Errorf("open of another version: got %v, want %v", err, drivers.ErrChanged)
	}
}

func TestHistogram(t *testing.T) {
	var h Histogram
	for _, d := range []time.Duration{0, 4 * time.Microsecond, 5 * time.Microsecond, time.Second, time.Minute} {
		h.Observe(d)
	}
	l := h.Load()
	want := Latency{Count: 5, Sum: time.Minute + time.Second + 9*time.Microsecond}
	want.Buckets[0], want.Buckets[1], want.Buckets[9] = 2, 1, 1
	if l != want {
		t.Errorf("got %+v, want %+v", l, want)
	}
	bound := 4e-6
	for i, b := range Buckets {
		if b/bound < 0.999 || b/bound > 1.001 {
			t.Errorf("bound of bucket %d: got %g, want %g", i, b, bound)
		}
		bound *= 4
	}
}
