package placement

import (
	"errors"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A large file that no tier has room for is read ahead of a sequential reader, and each byte of it
// is requested once. Random access is not.
func TestReadAheadAtTheSource(t *testing.T) {
	const size, block = 16 << 20, 128 << 10
	for _, c := range []struct {
		name   string
		bucket *drivertest.Bucket
	}{{"file system", nil}, {"bucket", &drivertest.Bucket{Length: 8 << 20}}} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, rigOptions{quotas: []int64{1 << 20}, ahead: 64 << 20, bucket: c.bucket})
			data := r.put("large", size)
			r.wantFile("large", data)
			var requested int
			spans := r.source.spans()
			for _, s := range spans {
				requested += s.n
			}
			if requested != size || len(spans) > size/block/4 {
				t.Errorf("%d bytes: %d requests for %d bytes", size, len(spans), requested)
			}
			obj := r.open("large")
			defer obj.Close()
			before := len(r.source.spans())
			for _, off := range []int{9 << 20, 2 << 20, 13 << 20, 5 << 20} {
				r.wantAt(obj, off, block, data)
			}
			for _, s := range r.source.spans()[before:] {
				if s.n != block {
					t.Errorf("random access: a request for %d bytes", s.n)
				}
			}
		})
	}
}

// A file that changes while it is read ahead fails with drivers.ErrChanged, and no reader gets
// bytes of the other version.
func TestReadAheadOfChangedFile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 20}, ahead: 64 << 20})
		data := r.put("large", 32<<20)
		obj := r.open("large")
		defer obj.Close()
		for off := 0; off < 4<<20; off += 128 << 10 {
			r.wantAt(obj, off, 128<<10, data)
		}
		time.Sleep(time.Second)
		r.mem.Overwrite("large", random(7, 32<<20))
		var err error
		for off := int64(4 << 20); err == nil && off < 32<<20; off += 128 << 10 {
			p := make([]byte, 128<<10)
			if err = readAt(t.Context(), obj, p, off); err == nil && string(p) != string(data[off:off+128<<10]) {
				t.Fatalf("bytes of the other version at %d", off)
			}
		}
		if !errors.Is(err, drivers.ErrChanged) {
			t.Errorf("got error %v, want %v", err, drivers.ErrChanged)
		}
	})
}

// A file that is read ahead has no backing file: the kernel would read it directly, and no further
// ahead than the source's own client does.
func TestReadAheadNeedsTheDaemon(t *testing.T) {
	for _, ahead := range []int64{0, 64 << 20} {
		r := newRig(t, rigOptions{quotas: []int64{1 << 20}, ahead: ahead})
		r.put("large", backingFrom)
		obj := r.open("large")
		if got := obj.(*file).backedAtSource(); got != (ahead == 0) {
			t.Errorf("%d bytes of read-ahead: got %v", ahead, got)
		}
		obj.Close()
	}
}
