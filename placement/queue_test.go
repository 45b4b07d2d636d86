package placement

import (
	"testing"
	"testing/synctest"
	"time"
)

// While a reader jumps about, little is begun in the background; a while after it
// has ceased, as much as before.
func TestQueueWhileReaderJumps(t *testing.T) {
	bubble(t, func(t *testing.T) {
		q := newQueue(100, 128<<20)
		large := &fill{size: 1 << 30}
		q.add(large)
		taken := 0
		go func() {
			for _, ok := q.take(); ok; _, ok = q.take() {
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
		for range 10 { // jumps, with a little time between them
			q.wait(true)
			time.Sleep(20 * time.Millisecond)
			q.waited(true)
			q.done(large)
			want(16)
			time.Sleep(jumpAgain / 2)
		}
		q.wait(true)
		for range 5 { // there is 8 MiB under way now, and then 16
			q.done(large)
		}
		want(17)
		q.done(large)
		want(18)
		q.wait(false) // another, who reads in order
		q.waited(true)
		q.done(large)
		want(19)
		time.Sleep(2 * jumpAgain)
		q.done(large)
		want(19 + 15)
		q.waited(false)
		want(19 + 15)
		q.close()
	})
}

// No more is fetched in the background than the queue is told, however many
// workers there are; a small file counts for what it is.
func TestQueueBoundsWhatIsUnderWay(t *testing.T) {
	q := newQueue(100, 16<<20)
	small, large := &fill{size: 1 << 20}, &fill{size: 1 << 30}
	q.add(large)
	taken := make(chan *fill)
	go func() {
		for {
			f, ok := q.take()
			if !ok {
				close(taken)
				return
			}
			taken <- f
		}
	}()
	q.add(small)
	for range 2 { // 16 MiB
		if f := <-taken; f != large {
			t.Fatal("a small file goes before one that was there before")
		}
	}
	select {
	case <-taken:
		t.Fatal("more is under way than there may be")
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
	if f := <-taken; f != small { // there are 8 MiB now, and room for 8 more
		t.Fatal("nothing is taken where there is room")
	}
	q.close()
	for range taken { // one may be on its way
	}
}
