package tiers

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A deaf driver ignores the context of Open.
type deaf struct{ drivers.Driver }

func (d deaf) Open(_ context.Context, name string) (drivers.Object, error) {
	return d.Driver.Open(bg, name)
}

// A verifying driver opens Objects that are Verifiers.
type verifying struct{ *drivertest.Mem }

func (d verifying) Open(ctx context.Context, name string) (drivers.Object, error) {
	o, err := d.Mem.Open(ctx, name)
	return verifiable{o}, err
}

type verifiable struct{ drivers.Object }

func (verifiable) Verify(context.Context) error { return nil }

// newSource returns a source that holds one file of 7 bytes, f.
func newSource(t *testing.T) (*Source, *drivertest.Faults) {
	t.Helper()
	mem := drivertest.NewMem(0)
	mem.Put("f", []byte("content"))
	faults := drivertest.NewFaults(verifying{mem})
	h, err := New(deaf{faults}, nil, Options{}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return h.Source(), faults
}

// At most maxSourceCalls operations hang at the source, each in a thread of its own. Further ones wait,
// and end when their context is done.
func TestHungOperationsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, faults := newSource(t)
		o, err := s.Open(bg, "f")
		if err != nil {
			t.Fatal(err)
		}
		faults.Add(drivertest.Rule{Hang: true})
		var callers sync.WaitGroup
		for _, wait := range []time.Duration{time.Minute, time.Second} { // the second ones are abandoned first
			ctx, cancel := context.WithTimeout(bg, wait)
			defer cancel()
			for range maxSourceCalls / 2 {
				callers.Go(func() { s.Stat(ctx, "f") })
				callers.Go(func() { o.ReadAt(ctx, make([]byte, 7), 0) })
			}
			synctest.Wait()
		}
		callers.Wait()
		if got := faults.Hung(); got != maxSourceCalls {
			t.Errorf("operations that hang: got %d, want %d", got, maxSourceCalls)
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
		faults.Clear()
		if _, err := s.Stat(bg, "f"); err != nil {
			t.Error(err)
		}
	})
}

// A call to a source that hangs returns when its context is done, and an Object that is
// opened too late is closed.
func TestAbandonedOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, faults := newSource(t)
		faults.Add(drivertest.Rule{Op: drivertest.OpOpen, Hang: true})
		ctx, cancel := context.WithCancel(bg)
		go func() {
			synctest.Wait()
			cancel()
		}()
		if _, err := s.Open(ctx, "f"); !errors.Is(err, context.Canceled) || !errors.Is(err, drivers.ErrAbandoned) {
			t.Errorf("open: got %v", err)
		}
		faults.Clear()
		synctest.Wait()
		if got := faults.Count(drivertest.OpClose); got != 1 {
			t.Errorf("objects that were opened too late: %d closed, want 1", got)
		}
		if got := s.Stats(); got.Opens != 1 || got.Errors != 0 {
			t.Errorf("got %d opens and %d errors, want 1 and 0", got.Opens, got.Errors)
		}
	})
}

// A file of the source is closed when the last read of it has returned.
func TestSourceCloseWaitsForAbandonedRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, faults := newSource(t)
		o, err := s.Open(bg, "f")
		if err != nil {
			t.Fatal(err)
		}
		faults.Add(drivertest.Rule{Op: drivertest.OpRead, Hang: true})
		ctx, cancel := context.WithCancel(bg)
		go func() {
			synctest.Wait()
			cancel()
		}()
		if _, err := o.ReadAt(ctx, make([]byte, 4), 0); !errors.Is(err, drivers.ErrAbandoned) {
			t.Errorf("read: got %v", err)
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
		if got := faults.Count(drivertest.OpClose); got != 0 {
			t.Error("closed during a read")
		}
		faults.Clear()
		synctest.Wait()
		if got := faults.Count(drivertest.OpClose); got != 1 {
			t.Errorf("closed %d times, want 1", got)
		}
	})
}

func TestSourceCounts(t *testing.T) {
	s, faults := newSource(t)
	o, err := s.Open(bg, "f")
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	buf := make([]byte, 10)
	if n, err := o.ReadAt(bg, buf, 0); n != 7 || err != io.EOF {
		t.Errorf("read past the end: got %d, %v; want 7, EOF", n, err)
	}
	if _, err := s.Stat(bg, "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat of a missing name: got %v", err)
	}
	if _, err := s.ReadDir(bg, "."); err != nil {
		t.Error(err)
	}
	remove := faults.Add(drivertest.Rule{Op: drivertest.OpStat, Err: io.ErrUnexpectedEOF})
	s.Stat(bg, "f")
	remove()
	got := s.Stats()
	got.Latency = Latency{}
	want := SourceStats{SourceCounters: SourceCounters{
		SourceOperations: SourceOperations{Opens: 1, Reads: 1, Stats: 2, ReadDirs: 1}, Bytes: 7, Errors: 1,
	}}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// With no room in any tier, a file that stays open is verified at each open. If the source
// hangs, the open returns when its context is done.
func TestHungVerifyIsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, faults := newSource(t)
		o, err := s.Open(bg, "f")
		if err != nil {
			t.Fatal(err)
		}
		faults.Add(drivertest.Rule{Op: drivertest.OpVerify, Hang: true})
		ctx, cancel := context.WithTimeout(bg, time.Minute)
		defer cancel()
		start := time.Now()
		err = verifier(t, o).Verify(ctx)
		if !errors.Is(err, drivers.ErrAbandoned) || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Minute {
			t.Errorf("got %v after %v, want an abandoned call after 1m", err, time.Since(start))
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
		if got := faults.Count(drivertest.OpClose); got != 0 {
			t.Error("closed while a Verify hangs")
		}
		faults.Clear()
		synctest.Wait()
		if got := faults.Count(drivertest.OpClose); got != 1 {
			t.Errorf("closed %d times, want 1", got)
		}
	})
}

func verifier(t *testing.T, o drivers.Object) drivers.Verifier {
	t.Helper()
	v, ok := drivers.As[drivers.Verifier](o)
	if !ok {
		t.Fatalf("%T is no Verifier", o)
	}
	return v
}

// A file of the source whose close hangs delays one caller by closeTimeout, and further
// ones not at all. All files are closed when the source answers again.
func TestHungSourceClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const files = 100
		s, faults := newSource(t)
		var open []drivers.Object
		for range files {
			o, err := s.Open(bg, "f")
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, o)
		}
		faults.Add(drivertest.Rule{Op: drivertest.OpClose, Hang: true})
		start := time.Now()
		for _, o := range open {
			if err := o.Close(); !errors.Is(err, drivers.ErrAbandoned) {
				t.Errorf("close of a hung file: got %v", err)
			}
		}
		if got := time.Since(start); got != closeTimeout {
			t.Errorf("%d closes took %v, want %v", files, got, closeTimeout)
		}
		synctest.Wait()
		if got := faults.Hung(); got != maxHung {
			t.Errorf("%d closes hang at once, want %d", got, maxHung)
		}
		faults.Clear()
		synctest.Wait()
		if got := faults.Count(drivertest.OpClose); got != files {
			t.Errorf("%d files were closed, want %d", got, files)
		}
		o, err := s.Open(bg, "f")
		if err != nil {
			t.Fatal(err)
		}
		if err := o.Close(); err != nil {
			t.Errorf("close when the source answers again: %v", err)
		}
	})
}

// Closes that do not hang are not delayed, however many there are.
func TestConcurrentCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c closer
		start := time.Now()
		var wg sync.WaitGroup
		for range 4000 {
			wg.Go(func() {
				if err := c.close(func() error { time.Sleep(100 * time.Millisecond); return nil }); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got := time.Since(start); got != 100*time.Millisecond {
			t.Errorf("took %v, want 100ms", got)
		}
	})
}
