package benchmark

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// An emulated step takes at least its compute time.
func TestComputeFor(t *testing.T) {
	start := time.Now()
	if err := computeFor(3 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 3*time.Millisecond {
		t.Errorf("took %v", took)
	}
}

// No member of a barrier is more than a round ahead of another one, and one that leaves does not hold the
// others up.
func TestBarrier(t *testing.T) {
	const members, rounds = 5, 200
	b := newBarrier(members)
	var done [members]atomic.Int64
	var running sync.WaitGroup
	for i := range members {
		running.Go(func() {
			defer b.leave()
			for n := range int64(rounds - 10*i) {
				b.wait()
				done[i].Store(n + 1)
				for j := range members {
					if d := done[j].Load(); d < n && d < int64(rounds-10*j) || d > n+2 {
						t.Errorf("member %d has done %d rounds, and member %d %d", i, n+1, j, d)
					}
				}
			}
		})
	}
	running.Wait()
}
