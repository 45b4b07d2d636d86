package limit

import (
	"context"
	"errors"
	"fmt"
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
	t.Run("Transparent", func(t *testing.T) {
		drivertest.Run(t, func(t *testing.T) drivertest.Subject {
			m := drivertest.NewMem(0)
			s := m.Subject()
			s.Driver = New(m, Config{Transparent: true})
			return s
		})
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

// Reads in flight, and those on Objects that were opened before, are limited from the moment at which there
// is a limit, and no longer than that.
func TestSetRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, o := open(t, Config{Transparent: true})
		read := func() {
			if _, err := o.ReadAt(ctx, make([]byte, 100_000), 0); err != nil {
				t.Error(err)
			}
		}
		start := time.Now()
		read()
		wantAbout(t, time.Since(start), 0)
		d.SetRates(10_000, 0)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(read) // 100 s
		}
		time.Sleep(5 * time.Second)
		d.SetRates(100_000, 0) // 95 s of the slow rate are 9.5 of this one
		wg.Wait()
		wantAbout(t, time.Since(start), 14500*time.Millisecond)
		for range 10 {
			wg.Go(read)
		}
		time.Sleep(time.Second)
		d.SetRates(0, 0)
		wg.Wait()
		wantAbout(t, time.Since(start), 15500*time.Millisecond)
		d.SetRates(0, 2)
		start = time.Now()
		for range 2 {
			read()
		}
		wantAbout(t, time.Since(start), time.Second)
	})
}

// A lender is a file that has a backing file.
type lender struct{ drivers.Object }

func (lender) BackingFile(register func(fd uintptr) error) (release func(), err error) {
	return func() {}, register(7)
}

// A local is a storage in memory that lends its files.
type local struct{ *drivertest.Mem }

func (l local) Open(ctx context.Context, name string) (drivers.Object, error) {
	o, err := l.Mem.Open(ctx, name)
	return lender{o}, err
}

func (local) Profile() drivers.Profile {
	return drivers.Profile{Latency: drivers.LatencyMemory, Local: true, ReadsAhead: true}
}

// A transparent Driver shows the inner one while it has no limit, and only then.
func TestTransparent(t *testing.T) {
	m := local{drivertest.NewMem(0)}
	m.Put("file", []byte("content"))
	for _, c := range []struct {
		config Config
		want   bool
	}{
		{Config{}, false},
		{Config{Transparent: true}, true},
		{Config{Transparent: true, Latency: 1}, false},
		{Config{Transparent: true, BytesPerSecond: 1}, false},
		{Config{Transparent: true, OpsPerSecond: 1000}, false},
	} {
		d := New(m, c.config)
		o, err := d.Open(ctx, "file")
		if err != nil {
			t.Fatal(err)
		}
		check := func(want bool) {
			t.Helper()
			if got := drivers.ProfileOf(d).Local; got != want {
				t.Errorf("%+v: the profile is that of the storage: %v, want %v", c.config, got, want)
			}
			b, _ := drivers.As[drivers.BackingFiler](o)
			var got uintptr
			_, err := b.BackingFile(func(fd uintptr) error { got = fd; return nil })
			if (err == nil) != want || (got == 7) != want || !want && !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%+v: a backing file: %v, want %v: %v", c.config, got, want, err)
			}
		}
		check(c.want)
		d.SetRates(1, 1)
		check(false)
		d.SetRates(0, 0)
		check(c.config.Transparent && c.config.Latency == 0)
	}
}

// BenchmarkUnlimited reads from memory with and without a transparent Driver, which a source has that may get
// limits later.
func BenchmarkUnlimited(b *testing.B) {
	m := drivertest.NewMem(0)
	m.Put("file", make([]byte, 1<<20))
	for _, side := range []struct {
		name   string
		driver drivers.Driver
	}{{"without", m}, {"transparent", New(m, Config{Transparent: true})}} {
		for _, size := range []int{4 << 10, 128 << 10} {
			b.Run(fmt.Sprintf("%s/%dKiB", side.name, size>>10), func(b *testing.B) {
				o, err := side.driver.Open(ctx, "file")
				if err != nil {
					b.Fatal(err)
				}
				b.RunParallel(func(pb *testing.PB) {
					buf := make([]byte, size)
					for pb.Next() {
						if _, err := o.ReadAt(ctx, buf, 0); err != nil {
							b.Fatal(err)
						}
					}
				})
			})
		}
	}
}
