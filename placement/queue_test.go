package placement

import "testing"

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
