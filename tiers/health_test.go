package tiers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

func TestHealth(t *testing.T) {
	type event struct {
		kind kind
		err  error
	}
	var (
		ok    error
		eio   = fmt.Errorf("wrapped: %w", syscall.EIO)
		after = func(n int, e event) (all []event) {
			for range n {
				all = append(all, e)
			}
			return all
		}
	)
	for _, c := range []struct {
		name     string
		events   []event
		state    Health
		writable bool
	}{
		{"nothing", nil, Healthy, true},
		{"one read fails", []event{{reading, eio}}, Degraded, true},
		{"a read fails and the next succeeds", []event{{reading, eio}, {reading, ok}}, Healthy, true},
		{"reads fail intermittently", []event{{reading, eio}, {reading, eio}, {reading, ok}, {reading, eio}, {reading, eio}}, Degraded, true},
		{"three reads fail", after(3, event{reading, eio}), Down, false},
		{"reads fail and opens succeed", []event{{reading, eio}, {opening, ok}, {reading, eio}, {opening, ok}, {reading, eio}}, Down, false},
		{"three opens fail", after(3, event{opening, eio}), Down, false},
		{"one open hangs", []event{{opening, errTimeout}}, Down, false},
		{"three listings fail", after(3, event{listing, eio}), Down, false},
		{"one read hangs", []event{{reading, errTimeout}}, Down, false},
		{"one write hangs", []event{{writing, errTimeout}}, Down, false},
		{"one commit hangs", []event{{committing, errTimeout}}, Down, false},
		{"one listing takes long", []event{{listing, errTimeout}}, Degraded, true},
		{"two writes fail", after(2, event{writing, eio}), Degraded, true},
		{"three writes fail", after(3, event{writing, eio}), Degraded, false},
		{"writes fail and reads succeed", append(after(3, event{writing, eio}), event{reading, ok}), Degraded, false},
		{"commits fail and writes succeed", []event{{committing, eio}, {writing, ok}, {committing, eio}, {writing, ok}, {committing, eio}}, Degraded, false},
		{"writes fail and a commit succeeds", append(after(3, event{writing, eio}), event{committing, ok}), Healthy, true},
		{"reads and writes fail", []event{{reading, eio}, {writing, eio}, {reading, ok}}, Degraded, true},
		{"a late success", []event{{reading, errTimeout}, {reading, ok}, {committing, ok}}, Down, false},
		{"names are missing", after(9, event{opening, fs.ErrNotExist}), Healthy, true},
		{"the folder is missing", after(3, event{writing, fs.ErrNotExist}), Degraded, false},
		{"the device is full", after(9, event{writing, syscall.ENOSPC}), Healthy, true},
		{"the quota is full", after(9, event{writing, syscall.EDQUOT}), Healthy, true},
		{"callers are cancelled", after(9, event{reading, context.Canceled}), Healthy, true},
		{"copies are outdated", after(9, event{opening, drivers.ErrChanged}), Healthy, true},
		{"copies are busy", after(9, event{committing, errBusy}), Healthy, true},
		{"one name is invalid", after(9, event{opening, syscall.ENAMETOOLONG}), Healthy, true},
		{"a name is not a file", after(9, event{opening, syscall.ENXIO}), Healthy, true},
		{"no descriptor is left", append(after(9, event{opening, syscall.EMFILE}), after(9, event{committing, syscall.ENFILE})...), Healthy, true},
		{"no memory is left", append(after(9, event{reading, syscall.ENOMEM}), after(9, event{writing, syscall.EAGAIN})...), Healthy, true},
		{"calls are interrupted", after(9, event{reading, syscall.EINTR}), Healthy, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := health{log: quiet, wake: make(chan struct{}, 1)}
			for _, e := range c.events {
				h.note(e.kind, e.err)
			}
			state, cause := h.get()
			if state != c.state || h.writable() != c.writable || h.readable() != (state != Down) {
				t.Errorf("got %v, writable %v; want %v, %v", state, h.writable(), c.state, c.writable)
			}
			if (cause == nil) != (state == Healthy) {
				t.Errorf("state %v with cause %v", state, cause)
			}
			if woken := len(h.wake) > 0; state != Healthy && !woken {
				t.Error("no probe is due")
			}
			h.recovered()
			if state, cause := h.get(); state != Healthy || cause != nil || !h.writable() {
				t.Errorf("after a probe: got %v with cause %v", state, cause)
			}
		})
	}
}

// A tier on which only writes fail is read but not filled, until a probe succeeds.
func TestOnlyWritesFail(t *testing.T) {
	for _, op := range []drivertest.Op{drivertest.OpCreate, drivertest.OpWrite, drivertest.OpCommit} {
		t.Run(string(op), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := drivertest.NewMem(0)
				want := mem.Put("f", []byte("content"))
				store := drivertest.NewFaults(mem)
				store.Add(drivertest.Rule{Op: op, Err: syscall.EROFS})
				store.Add(drivertest.Rule{Op: drivertest.OpProbe, Err: syscall.EROFS})
				tier, stop := startTier(t, store, Quota{Bytes: 1 << 20})
				defer stop()
				tried := 0
				for range 100 {
					if ok, err := place(tier, "g", 100); ok {
						if err == nil {
							t.Fatal("a copy was placed")
						}
						tried++
					}
					o, err := tier.Open(bg, "f", want)
					if err != nil {
						t.Fatalf("not readable: %v", err)
					}
					o.Close()
				}
				if tried != maxFailures {
					t.Errorf("tried to fill %d times, want %d", tried, maxFailures)
				}
				time.Sleep(time.Minute)
				if s := tier.Stats(); s.Health != Degraded || s.Cause == nil {
					t.Errorf("got %v with cause %v, want %v", s.Health, s.Cause, Degraded)
				}
				checkAccount(t, tier, mem)
				store.Clear()
				time.Sleep(maxProbe)
				mustPlace(t, tier, "g", 100)
			})
		})
	}
}

// A store that cannot be probed is used again after a while.
func TestNoProber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := drivertest.NewMem(0)
		store := drivertest.NewFaults(mem)
		tier, stop := startTier(t, struct{ drivers.Store }{store}, Quota{Bytes: 1 << 20})
		defer stop()
		remove := store.Add(drivertest.Rule{Op: drivertest.OpStat, Err: syscall.EIO})
		for range maxFailures {
			tier.Stat(bg, "f")
		}
		if got := tier.Stats().Health; got != Down {
			t.Errorf("got %v, want %v", got, Down)
		}
		remove()
		time.Sleep(2 * time.Second)
		if got := tier.Stats().Health; got != Healthy {
			t.Errorf("later: got %v, want %v", got, Healthy)
		}
	})
}

// The cancellation of a caller does not affect the health of the tier.
func TestCancelledCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := drivertest.NewFaults(drivertest.NewMem(0))
		store.Add(drivertest.Rule{Op: drivertest.OpStat, Hang: true})
		tier, stop := startTier(t, store, Quota{Bytes: 1 << 20})
		defer stop()
		for range 5 {
			ctx, cancel := context.WithTimeout(bg, time.Second)
			start := time.Now()
			if _, err := tier.Stat(ctx, "f"); err == nil || time.Since(start) != time.Second {
				t.Errorf("got %v after %v", err, time.Since(start))
			}
			cancel()
		}
		if s := tier.Stats(); s.Health != Healthy || s.Errors != 0 {
			t.Errorf("got %v with %d errors, want %v with 0", s.Health, s.Errors, Healthy)
		}
		store.Clear()
	})
}

// A listing that takes long does not take its tier down.
func TestLongListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := drivertest.NewFaults(drivertest.NewMem(0))
		tier, stop := startTier(t, store, Quota{Bytes: 1 << 20})
		defer stop()
		store.Add(drivertest.Rule{Op: drivertest.OpReadDir, Delay: 20 * time.Second})
		if _, err := tier.ReadDir(bg, "."); err == nil {
			t.Error("the listing did not time out")
		}
		if got := tier.Stats().Health; got != Degraded {
			t.Errorf("got %v, want %v", got, Degraded)
		}
		time.Sleep(2 * time.Second)
		if got := tier.Stats().Health; got != Healthy {
			t.Errorf("after a probe: got %v, want %v", got, Healthy)
		}
		time.Sleep(time.Minute)
	})
}

// A retired tier is not used any more, by open copies either, and not probed.
func TestRetire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := drivertest.NewMem(0)
		mem.Put("f", []byte("data"))
		h, err := New(drivertest.NewMem(0), []Config{{Name: "t", Store: mem, Quota: Quota{Bytes: 1 << 20}}}, Options{}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { h.Run(ctx); close(ended) }()
		h.WaitScanned(ctx)
		info, err := mem.Stat(ctx, "f")
		if err != nil {
			t.Fatal(err)
		}
		o, err := h.Tier(1).Open(ctx, "f", info)
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		stop()
		<-ended
		h.Retire()
		time.Sleep(time.Hour)
		if _, err := o.ReadAt(t.Context(), make([]byte, 4), 0); !errors.Is(err, errDown) {
			t.Errorf("read of an open copy: %v", err)
		}
		if _, err := h.Tier(1).Open(t.Context(), "f", info); !errors.Is(err, errDown) {
			t.Errorf("open: %v", err)
		}
		if state, _ := h.Tier(1).health.get(); state != Down {
			t.Errorf("state %v, want down", state)
		}
	})
}
