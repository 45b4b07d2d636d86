package control_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/placement"
)

func TestScrub(t *testing.T) {
	last := placement.ScrubReport{
		Path: ".", Ended: true, CopiesFound: 3, CopiesRight: 2, CopiesCorrupt: 1,
		Errors: []placement.ScrubError{{Path: "b", Tier: "ssd", Corrupt: true, Error: "block 0: copy is corrupt"}},
	}
	d := &controltest.Daemon{
		Scrubs:    []placement.ScrubReport{{Path: ".", CopiesFound: 1}, last},
		StepEvery: 2 * time.Second, // longer than between two reports
	}
	c := dial(t, d)
	var seen []placement.ScrubReport
	req := control.ScrubRequest{Name: []byte("a\xff"), Rate: 5}
	got, err := c.Scrub(t.Context(), req, func(r placement.ScrubReport) { seen = append(seen, r) })
	if err != nil || !reflect.DeepEqual(got, last) {
		t.Errorf("got %+v, %v; want %+v", got, err, last)
	}
	if len(seen) < 3 || !reflect.DeepEqual(seen[0], d.Scrubs[0]) {
		t.Errorf("reports: %+v", seen)
	}
	if got := *d.Scrubbed.Load(); !reflect.DeepEqual(got, req) {
		t.Errorf("request: %+v, want %+v", got, req)
	}
}

// A scrub in the background is started, and its client does not wait.
func TestStartScrub(t *testing.T) {
	d := &controltest.Daemon{Scrubs: make([]placement.ScrubReport, 100), StepEvery: time.Hour}
	c := dial(t, d)
	if err := c.StartScrub(t.Context(), control.ScrubRequest{Name: []byte(".")}); err != nil {
		t.Fatal(err)
	}
	if got := *d.Scrubbed.Load(); !got.Background {
		t.Errorf("request: %+v", got)
	}
	d.ScrubErr = &exit.Error{Code: exit.Failure, Err: errors.New("busy"), Remedy: "Wait."}
	err := c.StartScrub(t.Context(), control.ScrubRequest{Name: []byte(".")})
	if err == nil || err.Error() != "busy\n  Wait." {
		t.Errorf("got %v", err)
	}
}

func TestScrubRefused(t *testing.T) {
	c := dial(t, &controltest.Daemon{})
	for _, req := range []control.ScrubRequest{{}, {Name: []byte("../x")}, {Name: []byte("."), Rate: -1}} {
		if _, err := c.Scrub(t.Context(), req, func(placement.ScrubReport) {}); exit.Of(err) != exit.Usage {
			t.Errorf("%+v: got %v, want a usage error", req, err)
		}
	}
}

// The scrub ends when the client disconnects.
func TestScrubCancelled(t *testing.T) {
	d := &controltest.Daemon{Scrubs: make([]placement.ScrubReport, 1), StepEvery: time.Hour}
	c := dial(t, d) // its cleanup waits for the scrub
	ctx, cancel := context.WithCancel(t.Context())
	_, err := c.Scrub(ctx, control.ScrubRequest{Name: []byte(".")}, func(placement.ScrubReport) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}
