package faultdisk

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const testSize = 64 * Unit

func newImage(t *testing.T) *Image {
	t.Helper()
	base, err := os.Create(filepath.Join(t.TempDir(), "base"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { base.Close() })
	i, err := NewImage(base, testSize)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// pattern returns n bytes that depend on seed.
func pattern(seed byte, n int) []byte {
	p := make([]byte, n)
	for k := range p {
		p[k] = seed + byte(k%251)
	}
	return p
}

// must fails the test if an operation fails.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, i *Image, p []byte, off int64) {
	t.Helper()
	if n, err := i.WriteAt(p, off); n != len(p) || err != nil {
		t.Fatalf("wrote %d, %v", n, err)
	}
}

func want(t *testing.T, i *Image, p []byte, off int64) {
	t.Helper()
	got := make([]byte, len(p))
	if n, err := i.ReadAt(got, off); n != len(p) || err != nil {
		t.Fatalf("read %d, %v", n, err)
	}
	if !bytes.Equal(got, p) {
		t.Errorf("wrong bytes at %d", off)
	}
}

func wantErr(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("got error %v, want %v", err, target)
	}
}

// Reads see writes that were not flushed, also those of parts of units.
func TestWrite(t *testing.T) {
	i := newImage(t)
	p := pattern(1, 3*Unit)
	write(t, i, p, 100)
	want(t, i, p, 100)
	must(t, i.Flush())
	want(t, i, p, 100)
	write(t, i, []byte("inside"), Unit+7)
	copy(p[Unit-93:], "inside")
	want(t, i, p, 100)
	if got := i.Stats().Unflushed; got != 1 {
		t.Errorf("%d units in the cache, want 1", got)
	}
}

// A power cut loses what was not flushed and keeps what was.
func TestPowerCut(t *testing.T) {
	i := newImage(t)
	flushed, lost := pattern(1, 2*Unit), pattern(2, 2*Unit)
	write(t, i, flushed, 0)
	must(t, i.Flush())
	write(t, i, lost, 0)
	write(t, i, lost, 8*Unit)
	must(t, i.PowerOff(0, 1))
	_, err := i.ReadAt(make([]byte, 1), 0)
	wantErr(t, err, unix.EIO)
	_, err = i.WriteAt(lost, 0)
	wantErr(t, err, unix.EIO)
	wantErr(t, i.Flush(), unix.EIO)
	i.PowerOn()
	want(t, i, flushed, 0)
	want(t, i, make([]byte, 2*Unit), 8*Unit)
	if got := i.Stats(); got.Lost != 4 || got.Unflushed != 0 {
		t.Errorf("stats: %+v", got)
	}
}

// A random subset of the units can survive, and the same seed gives the same subset.
func TestPowerCutKeepsSome(t *testing.T) {
	var survived [2][]byte
	for n := range survived {
		i := newImage(t)
		write(t, i, pattern(1, testSize), 0)
		must(t, i.PowerOff(0.5, 7))
		i.PowerOn()
		survived[n] = make([]byte, testSize)
		if _, err := i.ReadAt(survived[n], 0); err != nil {
			t.Fatal(err)
		}
		if got := i.Stats(); got.Lost == 0 || got.Survived == 0 || got.Lost+got.Survived != testSize/Unit {
			t.Errorf("stats: %+v", got)
		}
	}
	if !bytes.Equal(survived[0], survived[1]) {
		t.Error("the same seed kept other units")
	}
}

func TestErrors(t *testing.T) {
	i := newImage(t)
	p := pattern(1, Unit)
	write(t, i, p, 0)
	i.SetFaults(Faults{ReadError: 1, WriteError: 1, FlushError: 1})
	_, err := i.ReadAt(make([]byte, Unit), 0)
	wantErr(t, err, unix.EIO)
	_, err = i.WriteAt(pattern(2, Unit), 0)
	wantErr(t, err, unix.EIO)
	wantErr(t, i.Flush(), unix.EIO)
	i.SetFaults(Faults{})
	want(t, i, p, 0)
	if got := i.Stats(); got.Failed != 3 || got.Unflushed != 1 {
		t.Errorf("stats: %+v", got)
	}
}

// A torn write stores a prefix of whole units, and fails.
func TestTear(t *testing.T) {
	i := newImage(t)
	i.SetFaults(Faults{Tear: 1, Seed: 3})
	p := pattern(1, 8*Unit)
	_, err := i.WriteAt(p, 0)
	wantErr(t, err, unix.EIO)
	n := i.Stats().Unflushed
	if n < 1 || n > 7 {
		t.Fatalf("%d units were stored", n)
	}
	want(t, i, p[:n*Unit], 0)
	want(t, i, make([]byte, (8-n)*Unit), n*Unit)
	write(t, i, p[:Unit], 0) // one unit is never torn
}

// A thin pool that is full has room only where it was written before.
func TestFull(t *testing.T) {
	i := newImage(t)
	write(t, i, pattern(1, 2*Unit), Unit)
	i.SetFaults(Faults{Full: true})
	write(t, i, pattern(2, 2*Unit), Unit)
	_, err := i.WriteAt(pattern(2, 2*Unit), 2*Unit)
	wantErr(t, err, unix.ENOSPC)
	must(t, i.Forget())
	_, err = i.WriteAt(pattern(2, Unit), Unit)
	wantErr(t, err, unix.ENOSPC)
	i.SetFaults(Faults{})
	want(t, i, make([]byte, testSize), 0)
}

// Operations hang until the faults change, or the power is cut.
func TestHang(t *testing.T) {
	for name, end := range map[string]func(*Image) error{
		"released": func(i *Image) error { i.SetFaults(Faults{}); return nil },
		"cut":      func(i *Image) error { return i.PowerOff(0, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			i := newImage(t)
			i.SetFaults(Faults{Hang: true})
			ended := make(chan error, 1)
			go func() { ended <- i.Flush() }()
			select {
			case err := <-ended:
				t.Fatalf("it did not hang: %v", err)
			case <-time.After(50 * time.Millisecond):
			}
			must(t, end(i))
			if err := <-ended; (err != nil) != (name == "cut") {
				t.Errorf("got error %v", err)
			}
		})
	}
}

// A flip changes one bit, whether or not it was flushed.
func TestFlip(t *testing.T) {
	i := newImage(t)
	p := pattern(1, 2*Unit)
	write(t, i, p[:Unit], 0)
	must(t, i.Flush())
	write(t, i, p[Unit:], Unit)
	for _, off := range []int64{17, Unit + 17} {
		must(t, i.Flip(off, 3))
		p[off] ^= 8
	}
	want(t, i, p, 0)
	wantErr(t, i.Flip(testSize, 0), unix.EINVAL)
}
