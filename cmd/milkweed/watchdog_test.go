package main

import (
	"slices"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/fs"
)

// The watchdog reports stuck requests from time to time, and does not end the daemon because of
// them.
func TestWatchdogReports(t *testing.T) {
	reports := 0
	w := &watchdog{
		stuck:  func() fs.Stuck { return fs.Stuck{Requests: 64, Oldest: time.Hour} },
		status: func() {},
		report: func(fs.Stuck) { reports++ },
		end:    func(reason string) { t.Errorf("ended: %s", reason) },
	}
	start := time.Now()
	for after := time.Duration(0); after < 25*time.Minute; after += watchEvery {
		w.step(start.Add(after))
		<-w.answered
	}
	if reports != 3 {
		t.Errorf("%d reports in 25 minutes, want 3", reports)
	}
}

// The watchdog ends the daemon if its status does not return, or a request does not end with its
// interruption, but not before a minute.
func TestWatchdogEnds(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	for name, c := range map[string]struct {
		stuck  fs.Stuck
		status func()
		want   []int // steps
	}{
		"lock":      {fs.Stuck{}, func() { <-release }, []int{13}},
		"request":   {fs.Stuck{Abandoned: hopelessAfter + 1}, func() {}, []int{0}},
		"hung":      {fs.Stuck{Requests: 1, Abandoned: 10 * time.Second}, func() {}, nil},
		"long open": {fs.Stuck{Oldest: time.Hour}, func() {}, nil},
	} {
		var ended []int
		for step, w := 0, (&watchdog{stuck: func() fs.Stuck { return c.stuck }, status: c.status, report: func(fs.Stuck) {}}); step < 20 && ended == nil; step++ {
			w.end = func(string) { ended = append(ended, step) }
			w.step(time.Now())
			if c.want == nil {
				<-w.answered
			}
		}
		if !slices.Equal(ended, c.want) {
			t.Errorf("%s: ended at the steps %d, want %d", name, ended, c.want)
		}
	}
}

// The watchdog ends the daemon at once after a panic under a lock that requests share.
func TestWatchdogEndsAfterPanic(t *testing.T) {
	broken, ended := make(chan struct{}), false
	close(broken)
	w := &watchdog{broken: broken, end: func(string) { ended = true }}
	w.run(t.Context(), nil)
	if !ended {
		t.Error("the daemon goes on")
	}
}
