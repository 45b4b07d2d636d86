package tiers

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// Either the waiter or late receives the result of an operation, never both and never
// neither.
func TestHandOver(t *testing.T) {
	const rounds = 20_000
	var waiters sync.WaitGroup
	var lates, begun, ends atomic.Int64
	var owners [4 * rounds]atomic.Int32
	for w := range 4 {
		waiters.Go(func() {
			for i := range rounds {
				ctx, cancel := context.WithCancel(bg)
				id := w*rounds + i
				begun.Add(1)
				ready := make(chan struct{})
				go func() {
					<-ready
					for range i % 7 {
						runtime.Gosched()
					}
					cancel()
				}()
				got, err := await(ctx, time.Duration(i%3)*time.Hour, func() (int, error) {
					close(ready)
					for range i % 5 {
						runtime.Gosched()
					}
					return id, nil
				}, func(id int) {
					owners[id].Add(1)
					lates.Add(1)
				}, func() { ends.Add(1) })
				switch {
				case err == nil:
					owners[got].Add(1)
				case !errors.Is(err, drivers.ErrAbandoned) || !errors.Is(err, context.Canceled):
					t.Errorf("got %v", err)
				}
			}
		})
	}
	waiters.Wait()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		missing, double := 0, 0
		for i := range owners {
			switch n := owners[i].Load(); {
			case n == 0:
				missing++
			case n > 1:
				double++
			}
		}
		if double > 0 || time.Now().After(deadline) {
			t.Fatalf("of %d results %d were lost and %d were received twice; %d operations have ended", len(owners), missing, double, ends.Load())
		}
		if missing == 0 && ends.Load() == begun.Load() {
			break
		}
	}
	t.Logf("%d of %d were late", lates.Load(), begun.Load())
}

// An operation on a tier that hangs costs one time-out. Later operations fail at once,
// until a probe succeeds.
func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := drivertest.NewMem(0)
		want := mem.Put("f", []byte("content"))
		store := drivertest.NewFaults(mem)
		tier, stop := startTier(t, store, Quota{Bytes: 1 << 20})
		defer stop()
		o, err := tier.Open(bg, "f", want)
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		store.Add(drivertest.Rule{Hang: true})
		took := func() time.Duration {
			start := time.Now()
			if _, err := o.ReadAt(bg, make([]byte, 4), 0); err == nil {
				t.Error("a read from a device that hangs succeeded")
			}
			return time.Since(start)
		}
		if got := took(); got != 5*time.Second {
			t.Errorf("first read: took %v, want the time-out", got)
		}
		for range 100 {
			if got := took(); got != 0 {
				t.Errorf("later read: took %v, want none", got)
			}
		}
		if _, ok := tier.Reserve(bg, 1); ok {
			t.Error("a tier that is down has room")
		}
		time.Sleep(10 * time.Minute)
		if got := store.Hung(); got != 2 {
			t.Errorf("after ten minutes %d operations hang, want the read and one probe", got)
		}
		store.Clear()
		time.Sleep(maxProbe)
		if got := tier.Stats().Health; got != Healthy {
			t.Errorf("after a probe: got %v, want %v", got, Healthy)
		}
		if _, err := o.ReadAt(bg, make([]byte, 4), 0); err != nil {
			t.Error(err)
		}
	})
}

// The number of hanging operations is bounded also on a device on which probes succeed.
func TestStuckOperationsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := drivertest.NewMem(0)
		want := mem.Put("f", []byte("content"))
		store := drivertest.NewFaults(mem)
		store.Add(drivertest.Rule{Op: drivertest.OpOpen, Hang: true})
		tier, stop := startTier(t, store, Quota{Bytes: 1 << 20})
		defer stop()
		for range 100 {
			if o, err := tier.Open(bg, "f", want); err == nil {
				o.Close()
			}
			time.Sleep(2 * maxProbe)
		}
		if got, want := store.Hung(), maxHanging+1; got != want {
			t.Errorf("%d opens hang, want %d", got, want)
		}
		if got := store.Count(drivertest.OpClose); got != 0 {
			t.Errorf("%d files were closed during an open", got)
		}
		store.Clear()
		time.Sleep(2 * maxProbe)
		if got := tier.Stats().Health; got != Healthy {
			t.Errorf("after the operations have returned: got %v, want %v", got, Healthy)
		}
		if got, want := store.Count(drivertest.OpClose), int64(maxHanging+1); got != want {
			t.Errorf("%d closed, want %d", got, want)
		}
	})
}

// A copy is not closed before an abandoned write to it has returned, since another file
// could get the same descriptor.
func TestCloseWaitsForAbandonedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := drivertest.NewMem(0)
		store := drivertest.NewFaults(mem)
		store.Add(drivertest.Rule{Op: drivertest.OpWrite, Hang: true})
		tier, stop := startTier(t, store, Quota{Bytes: 1 << 20})
		defer stop()
		if ok, err := place(tier, "f", 100); !ok || !errors.Is(err, drivers.ErrAbandoned) {
			t.Fatalf("got %v, %v", ok, err)
		}
		if got := mem.Used(); got != 100 {
			t.Errorf("the copy was removed while a write to it hangs")
		}
		store.Clear()
		synctest.Wait()
		if got := mem.Used(); got != 0 {
			t.Errorf("%d bytes are left of the copy", got)
		}
		checkAccount(t, tier, mem)
	})
}

// A commit that was abandoned and succeeds later is entered into the account.
func TestLateCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := drivertest.NewMem(0)
		store := drivertest.NewFaults(mem)
		store.Add(drivertest.Rule{Op: drivertest.OpCommit, Hang: true})
		tier, stop := startTier(t, store, Quota{Bytes: 1 << 20})
		defer stop()
		room, _ := tier.Reserve(bg, 100)
		w, err := tier.Create(bg, "f", info(100))
		if err != nil {
			t.Fatal(err)
		}
		w.WriteAt(make([]byte, 100), 0)
		if err := w.Commit(); !errors.Is(err, drivers.ErrAbandoned) {
			t.Fatalf("commit: got %v", err)
		}
		time.Sleep(time.Minute) // a probe succeeds
		w.Abort()               // not under the commit
		w.Close()
		room.Return()
		checkAccount(t, tier, mem)
		if ok, err := place(tier, "f", 100); !ok || !errors.Is(err, errBusy) {
			t.Errorf("another commit meanwhile: got %v, %v; want %v", ok, err, errBusy)
		}
		if got := tier.Stats().Health; got != Healthy {
			t.Errorf("got %v, want %v", got, Healthy)
		}
		store.Clear()
		synctest.Wait()
		if got := tier.Stats().Files; got != 1 {
			t.Errorf("files: got %d, want 1", got)
		}
		checkAccount(t, tier, mem)
		mustPlace(t, tier, "f", 10_000)
		checkAccount(t, tier, mem)
	})
}

// A close on a device that hangs costs one time-out, as other operations do.
func TestHungClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := drivertest.NewMem(0)
		want := mem.Put("f", []byte("content"))
		store := drivertest.NewFaults(mem)
		tier, stop := startTier(t, store, Quota{Bytes: 1 << 20})
		defer stop()
		var open []drivers.Object
		for range 3 {
			o, err := tier.Open(bg, "f", want)
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, o)
		}
		store.Add(drivertest.Rule{Hang: true})
		start := time.Now()
		for _, o := range open {
			if err := o.Close(); err == nil {
				t.Error("a close on a device that hangs succeeded")
			}
		}
		if got := time.Since(start); got != 5*time.Second {
			t.Errorf("took %v, want one time-out", got)
		}
		store.Clear()
	})
}

func TestClosedOnce(t *testing.T) {
	mem := drivertest.NewMem(0)
	want := mem.Put("f", []byte("content"))
	store := drivertest.NewFaults(mem)
	tier, stop := startTier(t, store, Quota{Bytes: 1 << 20})
	defer stop()
	o, err := tier.Open(bg, "f", want)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	}
	if got := store.Count(drivertest.OpClose); got != 1 {
		t.Errorf("closed %d times, want 1", got)
	}
}
