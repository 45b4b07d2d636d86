package drivertest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// faultyBucket returns a Faults over a Bucket and its file dir/file, which has 100 bytes.
func faultyBucket(t *testing.T) (*Faults, *object) {
	t.Helper()
	b := &Bucket{Mem: NewMem(0), Length: 64, Page: 2}
	for _, name := range []string{"dir/a", "dir/b", "dir/c"} {
		b.Put(name, make([]byte, 10))
	}
	info := b.Put("dir/file", bytes.Repeat([]byte("0123456789"), 10))
	f := NewFaults(b)
	o, err := f.OpenVersion(ctx, "dir/file", info)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	return f, o.(*object)
}

func TestFaultsOfALister(t *testing.T) {
	f, _ := faultyBucket(t)
	if l, ok := drivers.As[drivers.Lister](f); !ok || l != drivers.Lister(f) {
		t.Fatal("As does not find the Faults of a Lister as a Lister")
	}
	var sizes []int
	list := func() error {
		sizes = nil
		return f.List(ctx, "dir", func(infos []drivers.Info) error {
			sizes = append(sizes, len(infos))
			return nil
		})
	}
	if err := list(); err != nil || len(sizes) != 2 || sizes[0]+sizes[1] != 4 {
		t.Errorf("got pages of %d names, %v; want the pages of the inner driver", sizes, err)
	}
	f.Add(Rule{Op: OpReadDir, Name: "dir", Err: syscall.EIO})
	if err := list(); !errors.Is(err, syscall.EIO) || sizes != nil {
		t.Errorf("with a fault: got pages of %d names, %v; want no page and %v", sizes, err, syscall.EIO)
	}
	f.Add(Rule{Op: OpOpen, Err: fs.ErrPermission})
	if _, err := f.OpenVersion(ctx, "dir/a", drivers.Info{}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("OpenVersion with a fault: %v", err)
	}
	if lists, opens := f.Count(OpReadDir), f.Count(OpOpen); lists != 2 || opens != 2 {
		t.Errorf("counted %d lists and %d opens, want 2 and 2", lists, opens)
	}
}

// A Faults does not have the capabilities that the inner driver lacks.
func TestFaultsWithoutALister(t *testing.T) {
	f, o := faultyFile(t)
	if _, ok := drivers.As[drivers.Lister](f); ok {
		t.Error("the Faults of a driver that is not a Lister is a Lister")
	}
	if _, ok := drivers.As[drivers.Streamer](o); ok {
		t.Error("the Object of a Faults is a Streamer, but the inner one is not")
	}
}

func TestFaultsOfAStream(t *testing.T) {
	for _, test := range []struct {
		name string
		rule Rule
		want int // bytes that are read
		err  error
	}{
		{"no fault", Rule{Op: OpWrite, Err: syscall.EIO}, 80, nil},
		{"Stream fails", Rule{Op: OpRead, Err: syscall.EIO}, 0, syscall.EIO},
		{"the third read fails", Rule{Op: OpStream, After: 2, Err: syscall.EIO}, 20, syscall.EIO},
		{"the stream ends early", Rule{Op: OpRead, Short: true}, 40, io.ErrUnexpectedEOF},
		{"the second read is short", Rule{Op: OpStream, After: 1, Short: true}, 15, io.ErrUnexpectedEOF},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, o := faultyBucket(t)
			if got := drivers.ProfileOf(f).Stride; got != 64 {
				t.Errorf("stride: got %d, want 64, that of the inner driver", got)
			}
			f.Add(test.rule)
			var got []byte
			s, err := o.Stream(ctx, 10, 80)
			if err == nil {
				defer s.Close()
				got, err = io.ReadAll(shortReader{s, 10})
			}
			if !errors.Is(err, test.err) {
				t.Errorf("got %v, want %v", err, test.err)
			}
			if want := bytes.Repeat([]byte("0123456789"), 10)[:test.want]; !bytes.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
			if reads, n := f.Count(OpRead), f.Bytes(OpRead); reads != 1 || n != int64(test.want) {
				t.Errorf("counted %d reads of %d bytes, want 1 of %d", reads, n, test.want)
			}
		})
	}
}

// A shortReader reads at most n bytes at a time.
type shortReader struct {
	r io.Reader
	n int
}

func (r shortReader) Read(p []byte) (int, error) { return r.r.Read(p[:min(len(p), r.n)]) }

// A hanging stream ends when its context is done, as drivers.Streamer requires, and after
// Clear.
func TestFaultsHangAStream(t *testing.T) {
	for _, op := range []Op{OpRead, OpStream} {
		t.Run(string(op), func(t *testing.T) {
			f, o := faultyBucket(t)
			f.Add(Rule{Op: op, Hang: true})
			done, cancel := context.WithCancel(ctx)
			read := func(ctx context.Context) error {
				s, err := o.Stream(ctx, 0, 10)
				if err != nil {
					return err
				}
				defer s.Close()
				_, err = io.ReadFull(s, make([]byte, 10))
				return err
			}
			result := make(chan error, 2)
			go func() { result <- read(done) }()
			for f.Hung() == 0 {
				time.Sleep(time.Millisecond)
			}
			cancel()
			if err := <-result; !errors.Is(err, context.Canceled) {
				t.Errorf("with a done context: %v, want context.Canceled", err)
			}
			go func() { result <- read(ctx) }()
			for f.Hung() == 0 {
				time.Sleep(time.Millisecond)
			}
			f.Clear()
			if err := <-result; err != nil {
				t.Errorf("after Clear: %v", err)
			}
			if got := f.Hung(); got != 0 {
				t.Errorf("%d operations hang, want none", got)
			}
		})
	}
}
