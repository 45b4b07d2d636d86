package drivers_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/milkweedfs/milkweed/drivers"
)

func TestSnapshot(t *testing.T) {
	type part struct{ A, B int64 }
	type counters struct {
		part
		Inner part
		Array [2]part
		C     int64
	}
	var live counters
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				atomic.AddInt64(&live.A, 1)
				atomic.AddInt64(&live.Inner.B, 2)
				atomic.AddInt64(&live.Array[1].A, 3)
				atomic.AddInt64(&live.C, 4)
				if got := drivers.Snapshot(&live); got.A == 0 || got.C == 0 || got.B != 0 {
					t.Errorf("a snapshot after the first count: %+v", got)
				}
			}
		})
	}
	wg.Wait()
	want := counters{part: part{A: 400}, Inner: part{B: 800}, Array: [2]part{1: {A: 1200}}, C: 1600}
	if got := drivers.Snapshot(&live); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A field that cannot be loaded atomically is an error of the program.
func TestSnapshotPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("Snapshot of a string did not panic")
		}
	}()
	drivers.Snapshot(&struct{ Name string }{})
}
