package tiers

import (
	"errors"
	"io/fs"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// startLate starts a hierarchy of one tier whose store open opens, and returns the error of the
// first attempt.
func startLate(t *testing.T, open func() (drivers.Store, error)) (tier *Tier, stop func(), first error) {
	t.Helper()
	h, err := New(drivertest.NewMem(0), []Config{{Name: "ssd", Open: open, Quota: Quota{Bytes: 1 << 20}}}, Options{}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	first = h.Open(bg, 300*time.Millisecond)[0]
	stop = runIn(h)
	h.WaitScanned(bg)
	return h.Tier(1), stop, first
}

// wantDown fails the test unless the tier is down because of cause, and no operation of it
// reaches a store.
func wantDown(t *testing.T, tier *Tier, cause error) {
	t.Helper()
	if s := tier.Stats(); s.Health != Down || !errors.Is(s.Cause, cause) || s.Scanned {
		t.Errorf("got %v with cause %v, scanned: %v; want %v with cause %v", s.Health, s.Cause, s.Scanned, Down, cause)
	}
	if _, err := tier.Stat(bg, "f"); !errors.Is(err, errDown) {
		t.Errorf("Stat: got %v, want %v", err, errDown)
	}
	if _, ok := tier.Reserve(bg, 1); ok {
		t.Error("a copy has got room")
	}
}

// wantUsed fails the test unless the tier has the copy f, counts it, and takes another one.
func wantUsed(t *testing.T, tier *Tier, store drivers.Driver, want drivers.Info) {
	t.Helper()
	if s := tier.Stats(); s.Health != Healthy || !s.Scanned || s.Files != 1 {
		t.Errorf("got %v with cause %v, scanned: %v, %d files", s.Health, s.Cause, s.Scanned, s.Files)
	}
	o, err := tier.Open(bg, "f", want)
	if err != nil {
		t.Fatal(err)
	}
	o.Close()
	mustPlace(t, tier, "g", 100)
	checkAccount(t, tier, store)
}

// A tier that cannot be opened is down, and is opened at increasing intervals until that succeeds.
// Then it is scanned and used.
func TestLateTier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := drivertest.NewMem(0)
		want := mem.Put("f", []byte("content"))
		var attempts, failure atomic.Int32
		failure.Store(int32(syscall.EIO))
		tier, stop, first := startLate(t, func() (drivers.Store, error) {
			attempts.Add(1)
			if errno := syscall.Errno(failure.Load()); errno != 0 {
				return nil, errno
			}
			return mem, nil
		})
		defer stop()
		if first != syscall.EIO {
			t.Errorf("first attempt: got %v, want %v", first, syscall.EIO)
		}
		wantDown(t, tier, syscall.EIO)
		failure.Store(int32(syscall.ESTALE))
		time.Sleep(10 * time.Minute)
		wantDown(t, tier, syscall.ESTALE)
		if n := attempts.Load(); n < 20 || n > 30 { // 1 s, 2 s, ... 16 s, and then 30 s
			t.Errorf("%d attempts in 10 minutes, want one each 30 s", n)
		}
		failure.Store(0)
		time.Sleep(maxProbe)
		wantUsed(t, tier, mem, want)
	})
}

// A tier that hangs when it is opened delays Open by the time-out. One attempt is in flight at a
// time, and when it succeeds its store is used.
func TestTierHangsWhenOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := drivertest.NewMem(0)
		want := mem.Put("f", []byte("content"))
		var attempts atomic.Int32
		answer := make(chan struct{})
		start := time.Now()
		tier, stop, first := startLate(t, func() (drivers.Store, error) {
			attempts.Add(1)
			<-answer
			return mem, nil
		})
		defer stop()
		if took := time.Since(start); took != 300*time.Millisecond || !errors.Is(first, errTimeout) {
			t.Errorf("Open took %v and returned %v, want 300ms and %v", took, first, errTimeout)
		}
		time.Sleep(10 * time.Minute)
		wantDown(t, tier, errTimeout)
		close(answer)
		time.Sleep(maxProbe)
		wantUsed(t, tier, mem, want)
		if n := attempts.Load(); n != 1 {
			t.Errorf("%d attempts, want 1", n)
		}
	})
}

// A tier that hangs when it is opened does not delay the end of the hierarchy. What the attempt
// returns later changes nothing.
func TestEndOfTierThatHangsWhenOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		h, err := New(drivertest.NewMem(0), []Config{{Name: "ssd", Quota: Quota{Percent: 50}, Open: func() (drivers.Store, error) {
			<-answer
			return nil, fs.ErrClosed
		}}}, Options{}, quiet)
		if err != nil {
			t.Fatal(err)
		}
		h.Open(bg, time.Second)
		stop := runIn(h)
		time.Sleep(time.Minute)
		start := time.Now()
		stop()
		h.Retire()
		if took := time.Since(start); took != 0 {
			t.Errorf("the end took %v", took)
		}
		close(answer)
		synctest.Wait()
		wantDown(t, h.Tier(1), errRetired)
	})
}

// The capabilities of a store are found when it is open. A store in memory then has no time-outs.
func TestLateStoreCapabilities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := drivertest.NewMem(100 << 10)
		var works atomic.Bool
		tier, stop, _ := startLate(t, func() (drivers.Store, error) {
			if !works.Load() {
				return nil, syscall.EIO
			}
			return memoryStore{mem}, nil
		})
		defer stop()
		if _, ok := drivers.As[drivers.Statfser](tier.store); ok {
			t.Error("a store that is not open has a size")
		}
		works.Store(true)
		time.Sleep(maxProbe)
		if _, ok := drivers.As[drivers.Statfser](tier.store); !ok || !tier.memory.Load() {
			t.Errorf("the store has a size: %v; is in memory: %v", ok, tier.memory.Load())
		}
	})
}

// A memoryStore is a store in memory.
type memoryStore struct{ *drivertest.Mem }

func (memoryStore) Profile() drivers.Profile { return drivers.Profile{Latency: drivers.LatencyMemory} }
