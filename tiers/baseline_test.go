package tiers

import (
	"testing"
	"time"
)

// The baseline is a low quantile of the samples: most of them may be longer, and a change of the
// source is followed.
func TestBaseline(t *testing.T) {
	var b baseline
	within := func(low, high time.Duration) {
		t.Helper()
		if got := b.load(); got < low || got > high {
			t.Errorf("got %v, want %v to %v", got, low, high)
		}
	}
	within(0, 0)
	b.add(5 * time.Millisecond)
	within(5*time.Millisecond, 5*time.Millisecond)
	for i := range 1000 {
		b.add(2 * time.Millisecond)
		if i%4 > 0 { // these wait for others
			b.add(20 * time.Millisecond)
		}
	}
	within(2*time.Millisecond, 4*time.Millisecond)
	for range 1000 {
		b.add(50 * time.Millisecond)
	}
	within(49*time.Millisecond, 50*time.Millisecond)
	for range 20 {
		b.add(time.Millisecond)
	}
	within(time.Millisecond, 2*time.Millisecond)
}
