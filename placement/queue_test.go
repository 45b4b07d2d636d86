package placement

import (
	"testing"
	"testing/synctest"
	"time"
)

// newTestQueue makes a queue whose gate limits the bytes in flight only, and not the number of
// requests.
func newTestQueue(bytes int64) *queue {
	return newQueue(&gate{maxYielding: 100, maxBytes: bytes}, nil, nil)
}

// While a reader reads at random, little background work is started. Some time after the
// reader has ceased, as much as before is started.
func TestQueueDuringRandomAccess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newTestQueue(128 << 20)
		large := &fill{weight: 8 << 20}
		q.add(large)
		taken := 0
		go func() {
			for f := q.take(); f != nil; f = q.take() {
				taken++
			}
		}()
		want := func(n int) {
			t.Helper()
			synctest.Wait()
			if taken != n {
				t.Errorf("taken: got %d, want %d", taken, n)
			}
		}
		want(16)
		for range 10 { // random reads, with a little time between them
			w := q.gate.demand(randomAccess)
			time.Sleep(20 * time.Millisecond)
			w.done()
			q.done(large)
			want(16)
			time.Sleep(randomPause / 2)
		}
		random := q.gate.demand(randomAccess)
		for range 5 { // 8 MiB remain in flight, and then 16
			q.done(large)
		}
		want(17)
		q.done(large)
		want(18)
		sequential := q.gate.demand(sequentialAccess)
		random.done()
		q.done(large)
		want(19)
		time.Sleep(2 * randomPause)
		q.done(large)
		want(19 + 15)
		sequential.done()
		want(19 + 15)
		q.close()
	})
}

// The bytes of background work in flight are limited, whatever the number of workers. A small
// file counts as its size.
func TestQueueBoundsBytesInFlight(t *testing.T) {
	q := newTestQueue(16 << 20)
	small, large := &fill{weight: 1 << 20}, &fill{weight: 8 << 20}
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
	q := newQueue(&gate{maxYielding: 100, maxBytes: 1 << 40}, func() *fill {
		if predictions == 0 {
			return nil
		}
		predictions--
		return &fill{weight: 1}
	}, nil)
	large := &fill{weight: 1}
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
