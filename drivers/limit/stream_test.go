package limit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// bucket returns a limited Bucket with 25 names, one of them a file of 1 MB, that file as
// its listing describes it, and its content.
func bucket(t *testing.T, config Config) (*Driver, drivers.Object, []byte) {
	t.Helper()
	b := &drivertest.Bucket{Mem: drivertest.NewMem(0), Length: 1 << 20, Page: 10}
	for i := range 24 {
		b.Put(string(rune('a'+i)), nil)
	}
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	info := b.Put("file", data)
	d := New(b, config)
	o, err := d.OpenVersion(ctx, "file", info)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	return d, o, data
}

// streamed reads n bytes from off as a stream.
func streamed(ctx context.Context, o drivers.Object, off, n int64) ([]byte, error) {
	s, err := o.(drivers.Streamer).Stream(ctx, off, n)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return io.ReadAll(s)
}

func TestContractOfABucket(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Subject {
		b := &drivertest.Bucket{Mem: drivertest.NewMem(0), Length: 64 << 10, Page: 100}
		s := b.Subject()
		s.Driver = New(b, Config{BytesPerSecond: 1 << 30, OpsPerSecond: 1 << 20})
		return s
	})
}

func TestListerIsForwarded(t *testing.T) {
	d, o, data := bucket(t, Config{})
	if l, ok := drivers.As[drivers.Lister](d); !ok || l != drivers.Lister(d) {
		t.Error("a limited Lister is not found as a Lister")
	}
	if _, ok := drivers.As[drivers.Lister](New(d.inner.(*drivertest.Bucket).Mem, Config{})); ok {
		t.Error("a limited driver that is no Lister is one")
	}
	var names int
	if err := d.List(ctx, ".", func(infos []drivers.Info) error { names += len(infos); return nil }); err != nil || names != 25 {
		t.Errorf("listed %d names, %v; want 25", names, err)
	}
	if got := drivers.ProfileOf(d).Stride; got != 1<<20 {
		t.Errorf("stride: got %d, want the inner one's", got)
	}
	if got, err := streamed(ctx, o, 10, 500_000); err != nil || !bytes.Equal(got, data[10:500_010]) {
		t.Errorf("streamed %d bytes, %v; or wrong bytes", len(got), err)
	}
	if got := d.Stats(); got.ReadDirs != 3 || got.Opens != 0 || got.Reads != 1 || got.BytesRead != 500_000 {
		t.Errorf("counted %+v, want 3 pages, no open, 1 read", got)
	}
}

func TestNoStreamer(t *testing.T) {
	_, o := open(t, Config{})
	if _, ok := drivers.As[drivers.Streamer](o); ok {
		t.Error("a limited Object that is no Streamer is one")
	}
}

// Each page of a listing is an operation, and so is an empty listing.
func TestPagesAreCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, _ := bucket(t, Config{Latency: time.Second, OpsPerSecond: 1000})
		list := func(ctx context.Context, dir string) (time.Duration, error) {
			start := time.Now()
			err := d.List(ctx, dir, func([]drivers.Info) error { return nil })
			return time.Since(start), err
		}
		took, err := list(ctx, ".")
		if err != nil {
			t.Error(err)
		}
		wantAbout(t, took, 3*time.Second)
		if took, _ = list(ctx, "none"); took < time.Second-slack {
			t.Errorf("an empty listing took %v, want 1s", took)
		}
		soon, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
		defer cancel()
		if _, err := list(soon, "."); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a cancelled listing: %v", err)
		}
	})
}

// A stream is one operation. Its bytes are charged as they arrive.
func TestStreamIsCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, o, data := bucket(t, Config{Latency: time.Second, BytesPerSecond: 100_000})
		start := time.Now()
		got, err := streamed(ctx, o, 0, 500_000)
		if err != nil || !bytes.Equal(got, data[:500_000]) {
			t.Errorf("streamed %d bytes, %v; or wrong bytes", len(got), err)
		}
		wantAbout(t, time.Since(start), 6*time.Second)

		start = time.Now()
		s, err := o.(drivers.Streamer).Stream(ctx, 0, 1_000_000)
		if err != nil {
			t.Fatal(err)
		}
		io.ReadFull(s, make([]byte, 50_000))
		s.Close()
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("50 kB of a stream took %v, want 1.5s: unread bytes are not charged", took)
		}
		if got := d.Stats(); got.Reads != 2 || got.BytesRead != 550_000 {
			t.Errorf("counted %+v", got)
		}
	})
}

func TestStreamEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, o, _ := bucket(t, Config{BytesPerSecond: 1})
		soon, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := streamed(soon, o, 0, 1000); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}
