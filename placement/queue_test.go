package placement

import (
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// newTestQueue makes a queue with a constant limit of blocks in flight.
func newTestQueue(blocks int) *queue {
	return newQueue(&gate{control: newController(blocks, blocks)}, nil, nil, nil)
}

// The blocks of background work in flight are limited, whatever the number of workers.
func TestQueueBoundsBlocksInFlight(t *testing.T) {
	q := newTestQueue(16)
	small, large := &fill{weight: load{blocks: 1}}, &fill{weight: load{blocks: 8}}
	q.add(large)
	taken := make(chan *fill)
	go func() {
		for f := q.take(); f != nil; f = q.take() {
			taken <- f
		}
		close(taken)
	}()
	q.add(small)
	for range 2 { // 16 MiB
		if f := <-taken; f != large {
			t.Fatal("a small file goes before one that was there before")
		}
	}
	select {
	case <-taken:
		t.Fatal("more is in flight than the limit")
	default:
	}
	q.remove(large)
	q.done(large)
	for range 8 { // 1 MiB each
		if f := <-taken; f != small {
			t.Fatal("a file that was removed is taken")
		}
	}
	q.done(large)
	if f := <-taken; f != small { // 8 MiB are in flight now
		t.Fatal("nothing is taken although there is room")
	}
	q.close()
	for range taken { // one may have been taken before the close
	}
}

// A reader reads a large file in order while other readers open small files in the order of
// their names, as fast as the workers copy them: each take is followed by one more prediction.
// The two take turns.
func TestUrgentFeedTakesTurns(t *testing.T) {
	predictions := 8
	q := newQueue(&gate{control: newController(100, 100)}, func() prediction {
		if predictions == 0 {
			return nil
		}
		predictions--
		return func() *fill { return &fill{weight: load{blocks: 1}} }
	}, nil, nil)
	large := &fill{weight: load{blocks: 1}}
	q.add(large)
	q.touch(large)
	q.feedUrgent()
	n := 0
	for range 1000 {
		f := q.take()
		if f == large {
			n++
		} else {
			predictions++ // the file is opened, and one more is predicted
			q.feedUrgent()
		}
		q.touch(large) // its reader continues
		q.done(f)
	}
	if n < 100 {
		t.Errorf("the fill that is being read had %d of 1000 turns", n)
	}
}

// Several predictions are begun at the same time, each with a request that takes long: only one
// call of next is made at a time.
func TestPredictionsAreBegunInParallel(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const workers, predictions = 16, 64
		var made, calls int
		start := time.Now()
		ended := make(chan time.Time, predictions)
		begin := func() *fill {
			time.Sleep(time.Second)
			ended <- time.Now()
			return nil
		}
		q := newQueue(&gate{control: newController(100, 100)}, nil, nil, func() prediction {
			if calls++; calls > 1 {
				t.Error("two calls of next at the same time")
			}
			defer func() { calls-- }()
			if made == predictions {
				return nil
			}
			made++
			return begin
		})
		q.feedIdle()
		var all sync.WaitGroup
		for range workers {
			all.Go(func() { q.take() })
		}
		time.Sleep(time.Minute)
		q.close()
		all.Wait()
		if got, want := made, predictions; got != want {
			t.Errorf("predictions begun: got %d, want %d", got, want)
		}
		if n := q.gate.background(); n != 0 {
			t.Errorf("requests in flight: got %d, want none", n)
		}
		var last time.Time
		for range made {
			last = <-ended
		}
		if got, want := last.Sub(start), predictions/workers*time.Second; got != want {
			t.Errorf("all were begun after %v, want %v", got, want)
		}
	})
}

// A prediction that panics costs its own copy only.
func TestPredictionPanics(t *testing.T) {
	want := &fill{weight: load{blocks: 1}}
	predictions := []prediction{func() *fill { panic("a test") }, func() *fill { return want }}
	q := newQueue(&gate{control: newController(1, 1)}, nil, nil, func() prediction {
		p := predictions[0]
		predictions = predictions[1:]
		return p
	})
	q.feedIdle()
	if got := q.take(); got != want {
		t.Errorf("got %v", got)
	}
	q.done(want)
	if n := q.gate.background(); n != 0 {
		t.Errorf("requests in flight: got %d, want none", n)
	}
}

// A fill that has ended does not get into the queue: its end takes it out once, and may come before its start has queued
// it.
func TestEndedFillIsNotQueued(t *testing.T) {
	for name, fails := range map[string]bool{"complete": false, "failed": true} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, rigOptions{quotas: []int64{1 << 40}})
			data := r.put("f", 3<<20)
			if fails {
				r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Err: syscall.EIO})
			}
			f, err := r.handler.join(t.Context(), r.entry("f"), forReader)
			r.check(err)
			defer f.release()
			r.settled()
			if !fails {
				r.wantFile("f", data)
			}
			r.stop()
			r.running.Wait() // no worker takes it out
			f.enqueue()
			if got := r.handler.queue.len(); got != 0 {
				t.Errorf("%s: %d fills are queued, want none", name, got)
			}
		})
	}
}
