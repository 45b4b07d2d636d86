package tiers

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A lender is a store with faults whose copies have backing files. Its device has a number of
// requests in flight.
type lender struct {
	*drivertest.Faults
	queued int
}

func (l *lender) ProbeCopy(ctx context.Context, name string) (int, error) {
	_, err := l.Faults.ProbeCopy(ctx, name)
	return l.queued, err
}

func (l *lender) Open(ctx context.Context, name string) (drivers.Object, error) {
	o, err := l.Faults.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return lentObject{o}, nil
}

type lentObject struct{ drivers.Object }

func (lentObject) BackingFile(register func(fd uintptr) error) (func(), error) {
	return func() {}, register(0)
}

// startLender runs a tier with the copies f0, f1 and f2, which the source has too, and opens them.
func startLender(t *testing.T) (tier *Tier, store *lender, open []drivers.Object, stop func()) {
	t.Helper()
	mem, source := drivertest.NewMem(0), drivertest.NewMem(0)
	store = &lender{Faults: drivertest.NewFaults(mem)}
	h, end := startOver(t, source, Options{}, Config{Name: "ssd", Store: store, Quota: Quota{Bytes: 1 << 20}})
	h.WaitScanned(bg)
	tier = h.Tier(1)
	for i := range 3 {
		name := fmt.Sprint("f", i)
		source.Put(name, []byte("content"))
		o, err := tier.Open(bg, name, mem.Put(name, []byte("content")))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, o)
	}
	return tier, store, open, func() {
		for _, o := range open {
			o.Close()
		}
		end()
	}
}

// lendTo registers a backing file.
func lendTo(o drivers.Object) (release func(), err error) {
	b, _ := drivers.As[drivers.BackingFiler](o)
	return b.BackingFile(func(uintptr) error { return nil })
}

// A tier is probed once a second while the kernel may read its copies, and not otherwise.
func TestLentCopiesAreProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, store, open, stop := startLender(t)
		defer stop()
		time.Sleep(time.Minute)
		if got := store.Count(drivertest.OpRead); got != 0 {
			t.Errorf("%d reads while nothing is lent, want 0", got)
		}
		release, err := lendTo(open[0])
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := store.Count(drivertest.OpRead); got != 1 {
			t.Errorf("%d reads when a copy is lent, want 1", got)
		}
		time.Sleep(time.Minute + time.Millisecond)
		if got := store.Count(drivertest.OpRead); got != 61 {
			t.Errorf("%d reads within a minute, want 61", got)
		}
		release()
		time.Sleep(time.Minute)
		if got := store.Count(drivertest.OpRead); got > 62 {
			t.Errorf("%d more reads after the copy was released, want 1", got-61)
		}
	})
}

// Nothing is lent while copies cannot be read, or not in time, and again after that.
func TestLendingEnds(t *testing.T) {
	for _, c := range []struct {
		name   string
		rule   drivertest.Rule
		within time.Duration // until nothing is lent
		state  Health        // after 20 s
	}{
		{"reads fail", drivertest.Rule{Op: drivertest.OpRead, Err: syscall.EIO}, time.Second, Down},
		{"one copy fails", drivertest.Rule{Op: drivertest.OpRead, Name: "f1", Err: syscall.EIO}, 0, Healthy},
		{"reads hang", drivertest.Rule{Op: drivertest.OpRead, Hang: true}, 2 * time.Second, Down},
		{"reads are slow", drivertest.Rule{Op: drivertest.OpRead, Delay: 2 * time.Second}, 2 * time.Second, Down},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tier, store, open, stop := startLender(t)
				defer stop()
				release, err := lendTo(open[0])
				if err != nil {
					t.Fatal(err)
				}
				defer release()
				synctest.Wait()
				store.Add(c.rule)
				if c.within > 0 {
					time.Sleep(c.within + time.Millisecond)
					if _, err := lendTo(open[0]); !errors.Is(err, drivers.ErrFailing) {
						t.Errorf("after %v: got %v, want %v", c.within, err, drivers.ErrFailing)
					}
				}
				time.Sleep(20*time.Second + time.Millisecond)
				synctest.Wait() // a probe that has begun by now has ended, which may degrade the tier in between
				if state, cause := tier.health.get(); state != c.state {
					t.Errorf("after 20 s: got %v, %v; want %v", state, cause, c.state)
				}
				store.Clear()
				time.Sleep(2 * maxProbe)
				again, err := lendTo(open[0])
				if err != nil {
					t.Fatalf("after the faults: %v", err)
				}
				again()
			})
		})
	}
}

// A disk from which no copy can be read stays down, even if a new file can be written and read.
func TestUnreadableTierStaysDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier, store, open, stop := startLender(t)
		defer stop()
		store.Add(drivertest.Rule{Op: drivertest.OpRead, Err: syscall.EIO})
		for range maxFailures {
			open[0].ReadAt(bg, make([]byte, 4), 0)
		}
		for range 100 {
			time.Sleep(time.Second)
			if state, _ := tier.health.get(); state != Down {
				t.Fatalf("got %v, want %v", state, Down)
			}
		}
		if store.Count(drivertest.OpProbe) > 0 {
			t.Error("a file was written although copies cannot be read")
		}
	})
}

// A disk that works again is used, also if it has no room for the file of a probe: its copies can be read.
func TestFullDiskWorksAgain(t *testing.T) {
	for _, err := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG} {
		synctest.Test(t, func(t *testing.T) {
			tier, store, open, stop := startLender(t)
			defer stop()
			store.Add(drivertest.Rule{Op: drivertest.OpProbe, Err: err})
			store.Add(drivertest.Rule{Op: drivertest.OpRead, Err: syscall.EIO})
			for range maxFailures {
				open[0].ReadAt(bg, make([]byte, 4), 0)
			}
			time.Sleep(time.Minute)
			if state, _ := tier.health.get(); state != Down {
				t.Fatalf("got %v, want %v", state, Down)
			}
			store.Clear()
			store.Add(drivertest.Rule{Op: drivertest.OpProbe, Err: err})
			time.Sleep(2 * maxProbe)
			if state, cause := tier.health.get(); state != Healthy {
				t.Errorf("%v: got %v, %v", err, state, cause)
			}
		})
	}
}

// A disk that is busy with the reads of the kernel is not slow.
func TestLentAndBusy(t *testing.T) {
	for queued, want := range map[int]Health{0: Down, 64: Healthy} {
		t.Run(fmt.Sprint(queued), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tier, store, open, stop := startLender(t)
				defer stop()
				store.queued = queued
				store.Add(drivertest.Rule{Op: drivertest.OpRead, Delay: 600 * time.Millisecond})
				release, err := lendTo(open[0])
				if err != nil {
					t.Fatal(err)
				}
				defer release()
				time.Sleep(time.Minute)
				if state, cause := tier.health.get(); state != want {
					t.Errorf("got %v, %v; want %v", state, cause, want)
				}
			})
		})
	}
}
