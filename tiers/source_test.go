package tiers

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"testing"
	"testing/synctest"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A deaf driver does not hear that a caller went away.
type deaf struct{ drivers.Driver }

func (d deaf) Open(_ context.Context, name string) (drivers.Object, error) {
	return d.Driver.Open(bg, name)
}

// newSource returns a source that holds one file of 7 bytes, f.
func newSource(t *testing.T) (*Source, *drivertest.Faults) {
	t.Helper()
	mem := drivertest.NewMem(0)
	mem.Put("f", []byte("content"))
	faults := drivertest.NewFaults(mem)
	h, err := New(deaf{faults}, nil, Options{}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return h.Source(), faults
}

// A source that hangs lets go of callers that go away, and what it gives them
// too late is closed.
func TestSourceLetsGo(t *testing.T) {
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
			t.Errorf("late objects closed: got %d, want 1", got)
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
			t.Error("closed under a read")
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
		t.Errorf("stat of what is not there: got %v", err)
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
