package placement

import (
	"context"
	"testing"
	"time"
)

// Usage counts opens and reads, and in which order they were.
func TestUsage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
		r.put("d/a", 1000)
		r.put("d/b", 1000)
		r.put("e/large", 10<<20)
		for range 2 {
			for _, name := range []string{"d/a", "d/b"} {
				_, err := r.read(name)
				r.check(err)
			}
		}
		time.Sleep(2 * time.Second)
		obj := r.open("e/large")
		for _, off := range []int64{8 << 20, 8<<20 + 4096, 0} {
			r.check(readAt(context.Background(), obj, make([]byte, 4096), off))
		}
		r.check(obj.Close())
		r.settled()
		got := r.handler.Stats().Usage
		want := Usage{
			ActiveSeconds: 2, Files: 3, InOrder: 2, Neighbors: 3, Sequential: 6, Random: 1,
			FileSizes: Sizes{0: 4, 7: 1}, RequestSizes: Sizes{0: 7},
		}
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

// The seconds in which a reader waits are active, each once.
func TestActiveSeconds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var u usage
		began := time.Now()
		time.Sleep(46 * time.Second)
		u.active(began)
		u.active(began.Add(40 * time.Second))
		time.Sleep(10 * time.Second)
		u.active(time.Now())
		u.active(time.Now())
		if got := u.counts.ActiveSeconds; got != 47+1 {
			t.Errorf("%d seconds", got)
		}
	})
}

// Sizes have the bucket of their bound.
func TestSizeBuckets(t *testing.T) {
	var s Sizes
	for _, n := range []int64{0, 4096, 4097, 1 << 30, 1<<30 + 1} {
		s.Add(n)
	}
	if want := (Sizes{0: 2, 1: 1, 8: 1, 9: 1}); s != want {
		t.Errorf("got %v, want %v", s, want)
	}
}
