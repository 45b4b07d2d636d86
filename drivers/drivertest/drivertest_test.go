package drivertest

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/posix"
)

func TestMem(t *testing.T) {
	Run(t, func(t *testing.T) Subject { return NewMem(0).Subject() })
}

func TestNamer(t *testing.T) {
	Run(t, func(t *testing.T) Subject {
		m := NewMem(0)
		s := m.Subject()
		s.Driver = NewFaults(NewNamer(m))
		return s
	})
}

func TestBucket(t *testing.T) {
	Run(t, func(t *testing.T) Subject {
		b := &Bucket{Mem: NewMem(0), Length: 64 << 10, Page: 100}
		return b.Subject()
	})
}

func TestFaultsOfBucket(t *testing.T) {
	Run(t, func(t *testing.T) Subject {
		b := &Bucket{Mem: NewMem(0), Length: 64 << 10}
		s := b.Subject()
		f := NewFaults(s.Driver)
		s.Driver = f
		return s
	})
}

func TestFaultsWithoutRules(t *testing.T) {
	Run(t, func(t *testing.T) Subject {
		m := NewMem(0)
		s := m.Subject()
		s.Driver = NewFaults(m)
		return s
	})
}

func TestFaultsOfFolder(t *testing.T) {
	Run(t, func(t *testing.T) Subject {
		store := openStore(t)
		s := StoreFolder(t, NewFaults(store), filepath.Join(store.Path(), "files"))
		s.Setxattr = nil // a Store does not expose attributes
		return s
	})
}

func openStore(t *testing.T) *posix.Store {
	t.Helper()
	store, err := posix.OpenStore(posix.StoreConfig{Tier: t.TempDir(), Dataset: "dataset", Source: "/source"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// faultyStore returns a Faults over a posix.Store with one copy, the empty "file".
func faultyStore(t *testing.T) *Faults {
	t.Helper()
	f := NewFaults(openStore(t))
	w, err := f.Create(ctx, "file", drivers.Info{Mtime: mtime})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFaultsHideDescriptors(t *testing.T) {
	f := faultyStore(t)
	for _, test := range []struct {
		rule Rule
		want bool
	}{
		{Rule{Op: OpOpen}, true},
		{Rule{Op: OpRead, Name: "other"}, true},
		{Rule{Op: OpRead}, false},
		{Rule{Name: "f*"}, false},
	} {
		remove := f.Add(test.rule)
		o, err := f.Open(ctx, "file")
		if err != nil {
			t.Fatal(err)
		}
		b, ok := drivers.As[drivers.BackingFiler](o)
		if !ok {
			t.Fatal("the Object of a folder is not a BackingFiler")
		}
		_, err = b.BackingFile(func(uintptr) error { return nil })
		if got := err == nil; got != test.want {
			t.Errorf("with %+v: has a backing file: %v, want %v", test.rule, got, test.want)
		}
		o.Close()
		remove()
	}
}

func TestMemIsFull(t *testing.T) {
	m := NewMem(100)
	m.Put("a", make([]byte, 60))
	if _, err := m.Create(ctx, "b", drivers.Info{Size: 41}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Create of more than the free space: %v, want ENOSPC", err)
	}
	w, err := m.Create(ctx, "b", drivers.Info{Size: 40})
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Used(); got != 100 {
		t.Errorf("Used: %d before Commit, want 100", got)
	}
	w.Abort()
	w.Close()
	if got := m.Used(); got != 60 {
		t.Errorf("Used: %d after Abort, want 60", got)
	}
	m.Overwrite("a", make([]byte, 10))
	m.Put("dir/b", make([]byte, 5))
	if got := m.Used(); got != 15 {
		t.Errorf("Used: %d, want 15", got)
	}
	m.Delete("dir")
	if err := m.Remove(ctx, "a"); err != nil {
		t.Error(err)
	}
	if got := m.Used(); got != 0 {
		t.Errorf("Used: %d in an empty Mem, want 0", got)
	}
}

// faultyFile returns a Faults over a Mem and its only file, dir/file, which has 100 bytes.
func faultyFile(t *testing.T) (*Faults, drivers.Object) {
	m := NewMem(0)
	m.Put("dir/file", make([]byte, 100))
	f := NewFaults(m)
	o, err := f.Open(ctx, "dir/file")
	if err != nil {
		t.Fatal(err)
	}
	return f, o
}

func TestFaultsError(t *testing.T) {
	f, o := faultyFile(t)
	remove := f.Add(Rule{Op: OpRead, Name: "dir/*", After: 1, Times: 2, Err: syscall.EIO})
	p := make([]byte, 10)
	for i, want := range []error{nil, syscall.EIO, syscall.EIO, nil} {
		if _, err := o.ReadAt(ctx, p, 0); !errors.Is(err, want) {
			t.Errorf("read %d: got %v, want %v", i, err, want)
		}
	}
	if got := f.Count(OpRead); got != 4 {
		t.Errorf("counted %d reads, want 4", got)
	}
	if got := f.Bytes(OpRead); got != 20 {
		t.Errorf("counted %d bytes, want 20", got)
	}
	remove()
	f.Add(Rule{Op: OpStat, Name: "other", Err: syscall.EIO})
	if _, err := f.Stat(ctx, "dir/file"); err != nil {
		t.Errorf("Stat with a rule for another name: %v", err)
	}
}

func TestFaultsShort(t *testing.T) {
	f, o := faultyFile(t)
	f.Add(Rule{Op: OpRead, Short: true})
	n, err := o.ReadAt(ctx, make([]byte, 10), 0)
	if n != 5 || err != io.ErrUnexpectedEOF {
		t.Errorf("got %d, %v; want 5, %v", n, err, io.ErrUnexpectedEOF)
	}
}

func TestFaultsProbability(t *testing.T) {
	f, _ := faultyFile(t)
	f.Add(Rule{Op: OpStat, P: 0.25, Err: syscall.EIO})
	failed := 0
	for range 1000 {
		if _, err := f.Stat(ctx, "."); err != nil {
			failed++
		}
	}
	if failed < 200 || failed > 300 {
		t.Errorf("%d of 1000 failed, want about 250", failed)
	}
}

func TestFaultsHang(t *testing.T) {
	f, o := faultyFile(t)
	f.Add(Rule{Op: OpRead, Hang: true})
	done, cancel := context.WithCancel(ctx)
	read := make(chan error)
	go func() {
		_, err := o.ReadAt(done, make([]byte, 10), 0)
		read <- err
	}()
	for f.Hung() != 1 {
		select {
		case err := <-read:
			t.Fatalf("the read returns %v, want it to hang", err)
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	select {
	case err := <-read:
		t.Fatalf("the read returns %v when its context is done, want it to hang", err)
	case <-time.After(20 * time.Millisecond):
	}
	f.Clear()
	if err := <-read; !errors.Is(err, context.Canceled) {
		t.Errorf("the read after Clear: %v, want context.Canceled", err)
	}
	if _, err := o.ReadAt(ctx, make([]byte, 10), 0); err != nil {
		t.Errorf("another read after Clear: %v", err)
	}
}

func TestFaultsVerify(t *testing.T) {
	f := faultyStore(t)
	o, err := f.Open(ctx, "file")
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	v, ok := drivers.As[drivers.Verifier](o)
	if !ok {
		t.Fatal("the Object of a Store is not a Verifier")
	}
	f.Add(Rule{Op: OpRead, Err: syscall.EIO})
	if err := v.Verify(ctx); err != nil {
		t.Errorf("Verify with a rule for another operation: %v", err)
	}
	f.Add(Rule{Op: OpVerify, Name: "file", Times: 1, Err: drivers.ErrChanged})
	if err := v.Verify(ctx); !errors.Is(err, drivers.ErrChanged) {
		t.Errorf("Verify with a fault: %v, want ErrChanged", err)
	}
	if err := v.Verify(ctx); err != nil {
		t.Errorf("Verify after the fault: %v", err)
	}

	f.Add(Rule{Op: OpVerify, Hang: true})
	result := make(chan error)
	go func() { result <- v.Verify(ctx) }()
	for f.Hung() == 0 {
		select {
		case err := <-result:
			t.Fatalf("Verify returns %v, want it to hang", err)
		case <-time.After(time.Millisecond):
		}
	}
	f.Clear()
	if err := <-result; err != nil {
		t.Errorf("Verify after Clear: %v", err)
	}
	if got := f.Count(OpVerify); got != 4 {
		t.Errorf("counted %d calls of Verify, want 4", got)
	}
}

func TestFaultsDelay(t *testing.T) {
	f, _ := faultyFile(t)
	f.Add(Rule{Delay: time.Hour})
	soon, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if _, err := f.Open(soon, "dir/file"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Open with a delay: %v, want DeadlineExceeded", err)
	}
}
