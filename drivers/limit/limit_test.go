package limit

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

var ctx = context.Background()

func TestContract(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Subject {
		m := drivertest.NewMem(0)
		s := m.Subject()
		s.Driver = New(m, Config{BytesPerSecond: 1 << 30, OpsPerSecond: 1 << 20})
		return s
	})
}

// open returns a limited file of 1 MB.
func open(t *testing.T, config Config) (*Driver, drivers.Object) {
	t.Helper()
	m := drivertest.NewMem(0)
	m.Put("file", make([]byte, 1_000_000))
	d := New(m, config)
	o, err := d.Open(ctx, "file")
	if err != nil {
		t.Fatal(err)
	}
	return d, o
}

// wantAbout fails the test unless got is want, with a tolerance of slack.
func wantAbout(t *testing.T, got, want time.Duration) {
	t.Helper()
	if got < want-slack || got > want+time.Millisecond {
		t.Errorf("took %v, want %v", got, want)
	}
}

func TestBandwidthIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, o := open(t, Config{BytesPerSecond: 1_000_000})
		start := time.Now()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				for range 10 {
					if _, err := o.ReadAt(ctx, make([]byte, 100_000), 0); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		wantAbout(t, time.Since(start), 10*time.Second)
		if got := d.Stats(); got.Reads != 100 || got.BytesRead != 10_000_000 || got.Opens != 1 {
			t.Errorf("counted %+v", got)
		}
	})
}

func TestBytesBeyondTheEndAreFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, o := open(t, Config{BytesPerSecond: 1_000_000})
		start := time.Now()
		if n, _ := o.ReadAt(ctx, make([]byte, 1_000_000), 900_000); n != 100_000 {
			t.Errorf("read %d bytes", n)
		}
		wantAbout(t, time.Since(start), 100*time.Millisecond)
	})
}

func TestLatenciesOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := open(t, Config{Latency: 5 * time.Millisecond})
		start := time.Now()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { d.Stat(ctx, "file") })
		}
		wg.Wait()
		if got := time.Since(start); got != 5*time.Millisecond {
			t.Errorf("took %v, want 5ms", got)
		}
	})
}

func TestOperationsPerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := open(t, Config{OpsPerSecond: 100})
		start := time.Now()
		for range 200 {
			d.Stat(ctx, "file")
		}
		wantAbout(t, time.Since(start), 2*time.Second)
	})
}

func TestWaitEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, o := open(t, Config{BytesPerSecond: 1})
		soon, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		n, err := o.ReadAt(soon, make([]byte, 1000), 0)
		if n != 0 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %d, %v", n, err)
		}
	})
}
