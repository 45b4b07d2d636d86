package sequential

import "testing"

func TestTracker(t *testing.T) {
	tracker := Tracker[int]{Max: 2, Behind: 10, Ahead: 5}
	for i, access := range []struct {
		start, end int64
		continues  bool
		next       int64
		hits       int
	}{
		{0, 10, false, 10, 0},
		{10, 20, true, 20, 1},
		{100, 110, false, 110, 0}, // a second reader
		{25, 30, true, 30, 2},     // a little ahead
		{20, 25, true, 30, 3},     // overtaken by the one before
		{110, 120, true, 120, 1},
		{36, 40, false, 40, 0},    // too far ahead; the first reader, used least recently, is forgotten
		{30, 36, true, 40, 1},     // within Behind of the third
		{109, 130, false, 130, 0}, // 11 before the second
	} {
		s, continues := tracker.Access(access.start, access.end)
		if continues != access.continues || s.Next != access.next || s.Hits != access.hits {
			t.Errorf("access %d: got continues %v, next %d, hits %d; want %+v", i, continues, s.Next, s.Hits, access)
		}
		if tracker.Latest() != s {
			t.Errorf("access %d: its stream is not the latest", i)
		}
	}
	if got := tracker.Latest().Exact; got != 0 {
		t.Errorf("a stream of one access has %d exact ones", got)
	}
	if got := len(tracker.Streams()); got != 2 {
		t.Errorf("%d streams, want 2", got)
	}
	tracker.Reset()
	if tracker.Latest() != nil {
		t.Error("there is a stream after Reset")
	}
}

// Where two streams are near, the one that ends where the access begins has precedence.
func TestExactStreamFirst(t *testing.T) {
	tracker := Tracker[string]{Max: 4, Behind: 10, Ahead: 10}
	a, _ := tracker.Access(0, 10)
	a.Data = "a"
	b, _ := tracker.Access(30, 42)
	b.Data = "b"
	tracker.Access(33, 36) // of b, overtaken
	if s, _ := tracker.Access(10, 38); s.Data != "a" {
		t.Errorf("got stream %q, want a", s.Data)
	}
	if s, continues := tracker.Access(42, 50); !continues || s.Data != "b" || s.Hits != 2 || s.Exact != 1 {
		t.Errorf("got stream %q with %d hits, %d exact; want b with 2, 1", s.Data, s.Hits, s.Exact)
	}
}
