package main

import (
	"testing"
	"time"
)

// A sample that is late does not shorten the next interval to less than half.
func TestNextSample(t *testing.T) {
	due := time.Unix(1000, 0)
	for late, want := range map[time.Duration]time.Duration{
		0: time.Second, time.Millisecond: time.Second, 500 * time.Millisecond: time.Second,
		501 * time.Millisecond: 1501 * time.Millisecond, 3 * time.Second: 4 * time.Second,
	} {
		if got := nextSample(due, due.Add(late), time.Second).Sub(due); got != want {
			t.Errorf("after a sample that was %v late, the next one is due after %v, want %v", late, got, want)
		}
	}
}
