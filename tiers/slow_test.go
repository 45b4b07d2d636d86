package tiers

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A slowRig is a tier and a source with faults, and one file that both have.
type slowRig struct {
	tier     *Tier
	from, to *drivertest.Faults
	source   *Source
	file     drivers.Object // on the tier
}

func newSlowRig(t *testing.T) *slowRig {
	t.Helper()
	mem, source := drivertest.NewMem(0), drivertest.NewMem(0)
	source.Put("f", make([]byte, 1000))
	r := &slowRig{from: drivertest.NewFaults(source), to: drivertest.NewFaults(mem)}
	h, stop := startOver(t, r.from, Options{}, Config{Name: "ssd", Store: r.to, Quota: Quota{Bytes: 1 << 20}})
	h.WaitScanned(bg)
	r.tier, r.source = h.Tier(1), h.Source()
	var err error
	if r.file, err = r.tier.Open(bg, "f", mem.Put("f", make([]byte, 1000))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.from.Clear()
		r.to.Clear()
		r.file.Close()
		stop()
	})
	return r
}

// readSource reads the file from the source a number of times.
func (r *slowRig) readSource(t *testing.T, n int) {
	t.Helper()
	o, err := r.source.Open(bg, "f")
	if err != nil {
		t.Error(err)
		return
	}
	defer o.Close()
	for range n {
		o.ReadAt(bg, make([]byte, 1000), 0)
	}
}

// use reads the file on the tier by a number of readers at once, until the tier is down or each has
// read it n times, and returns the number of reads.
func (r *slowRig) use(readers, n int) (reads int64) {
	var wg sync.WaitGroup
	var done atomic.Int64
	for range readers {
		wg.Go(func() {
			for i := 0; i < n && r.tier.health.readable(); i++ {
				if _, err := r.file.ReadAt(bg, make([]byte, 1000), 0); err == nil {
					done.Add(1)
				}
				time.Sleep(time.Millisecond) // the tier is judged meanwhile
			}
		})
	}
	wg.Wait()
	return done.Load()
}

// A tier is left if reads take long there and the source would be much faster.
func TestSlow(t *testing.T) {
	delay := func(d time.Duration) drivertest.Rule {
		return drivertest.Rule{Op: drivertest.OpRead, Delay: d}
	}
	for _, c := range []struct {
		name    string
		tier    time.Duration // of a read
		readers int
		source  drivertest.Rule
		known   bool // the source was read before
		left    bool
	}{
		{"2 s", 2 * time.Second, 1, delay(5 * time.Millisecond), true, true},
		{"2 s, 64 readers", 2 * time.Second, 64, delay(5 * time.Millisecond), true, true},
		{"0.3 s", 300 * time.Millisecond, 1, delay(5 * time.Millisecond), true, true},
		{"0.2 s", 200 * time.Millisecond, 1, delay(5 * time.Millisecond), true, false},
		{"64 readers use a disk at its limit", 600 * time.Millisecond, 64, delay(5 * time.Millisecond), true, false},
		{"the source is hardly faster", 2 * time.Second, 1, delay(time.Second), true, false},
		{"the source fails", 2 * time.Second, 1, drivertest.Rule{Op: drivertest.OpRead, Err: syscall.EIO}, true, false},
		{"a fast source was not read before", 2 * time.Second, 1, delay(5 * time.Millisecond), false, true},
		{"a slow source was not read before", 2 * time.Second, 1, delay(2 * time.Second), false, false},
		{"a source that hangs was not read before", 2 * time.Second, 1, drivertest.Rule{Op: drivertest.OpRead, Hang: true}, false, false},
		{"a source that fails was not read before", 2 * time.Second, 1, drivertest.Rule{Op: drivertest.OpOpen, Err: syscall.EIO}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newSlowRig(t)
				r.from.Add(c.source)
				if c.known {
					r.readSource(t, 3)
				}
				r.from.Reset()
				r.to.Add(delay(c.tier))
				reads := r.use(c.readers, 20)
				state, cause := r.tier.health.get()
				if left := state == Down; left != c.left {
					t.Errorf("after %d reads: got %v, %v", reads, state, cause)
				}
				if c.left && !strings.HasPrefix(cause.Error(), "slow: reads take "+c.tier.String()) {
					t.Errorf("cause: %v", cause)
				}
				if got := r.tier.Stats().Errors; got != 0 {
					t.Errorf("%d errors were counted, want 0", got)
				}
				opens, n := r.from.Count(drivertest.OpOpen), r.from.Count(drivertest.OpRead)
				if max := int64(1); c.known && opens+n > 0 || opens > max || n > max {
					t.Errorf("%d opens and %d reads of the source", opens, n)
				}
			})
		})
	}
}

// The first window ends after three reads of 2 s, the next one after five.
func TestSlowReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSlowRig(t)
		r.readSource(t, 1)
		r.to.Add(drivertest.Rule{Op: drivertest.OpRead, Delay: 2 * time.Second})
		start := time.Now()
		if reads, took := r.use(1, 100), time.Since(start); reads != 3 || took.Round(time.Second) != 6*time.Second {
			t.Errorf("left after %d reads and %v, want 3 and 6 s", reads, took)
		}
		r.to.Clear()
		time.Sleep(time.Minute)
		r.readSource(t, 1)
		r.to.Add(drivertest.Rule{Op: drivertest.OpRead, Delay: 2 * time.Second})
		if reads := r.use(1, 100); reads != 5 {
			t.Errorf("left after %d reads for the second time, want 5", reads)
		}
		r.to.Clear()
		time.Sleep(2 * resetWindow)
		r.to.Add(drivertest.Rule{Op: drivertest.OpRead, Delay: 2 * time.Second})
		if reads := r.use(1, 100); reads != 3 {
			t.Errorf("left after %d reads two hours later, want 3", reads)
		}
	})
}

// A slow tier is used again when its reads are fast, or when those of the source are slow or fail.
func TestSlowTierIsUsedAgain(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, r *slowRig){
		"the tier is fast": func(_ *testing.T, r *slowRig) { r.to.Clear() },
		"the source is slow": func(t *testing.T, r *slowRig) {
			r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Delay: 3 * time.Second})
			r.readSource(t, 10)
		},
		"the source hangs": func(t *testing.T, r *slowRig) {
			r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Hang: true})
			go r.readSource(t, 1)
		},
		"the source fails": func(t *testing.T, r *slowRig) {
			r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Err: syscall.EIO})
			r.readSource(t, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newSlowRig(t)
				r.readSource(t, 1)
				r.to.Add(drivertest.Rule{Op: drivertest.OpRead, Delay: 2 * time.Second})
				r.use(1, 100)
				time.Sleep(20 * time.Second)
				if r.tier.health.readable() {
					t.Fatal("the tier was not left, or is used while it is slow")
				}
				change(t, r)
				time.Sleep(10 * time.Second)
				if state, cause := r.tier.health.get(); state != Healthy {
					t.Errorf("got %v, %v", state, cause)
				}
			})
		})
	}
}

// A disk that is slow only while jobs use it is left more and more rarely.
func TestBusyTierDoesNotFlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSlowRig(t)
		r.readSource(t, 1)
		var busy atomic.Bool
		r.to.Add(drivertest.Rule{Op: drivertest.OpRead, Delay: 2 * time.Second, Match: func(string) bool { return busy.Load() }})
		left := 0
		for end := time.Now().Add(4 * time.Hour); time.Now().Before(end); {
			busy.Store(true)
			_, err := r.file.ReadAt(bg, make([]byte, 1000), 0)
			busy.Store(false)
			if errors.Is(err, errDown) {
				left++
				for !r.tier.health.readable() {
					r.readSource(t, 1)
					time.Sleep(100 * time.Millisecond)
				}
			}
		}
		if left < 7 || left > 35 {
			t.Errorf("left %d times in four hours", left)
		}
	})
}
