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
)

// The last event of a refresh has the changes, whose names may have any bytes; the others have
// only counts.
func TestRefresh(t *testing.T) {
	last := control.Refreshed{Names: 4, Added: 1, Removed: 1, Failed: 1,
		Changes: []control.NameChange{{Path: "a\xff", Change: "added"}, {Path: "b", Change: "removed"}},
		Errors:  []control.FileError{{Path: "c", Error: "input/output error"}}}
	d := &controltest.Daemon{Refreshes: []control.Refreshed{last, last}, StepEvery: time.Second}
	c := dial(t, d)
	var seen []control.Refreshed
	names := []string{"a\xff", "."}
	got, err := c.Refresh(t.Context(), names, control.RefreshOptions{Prune: true, DryRun: true}, func(r control.Refreshed) { seen = append(seen, r) })
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, last) {
		t.Errorf("last: got %+v, want %+v", got, last)
	}
	if len(seen) < 3 || seen[0].Names != 4 || seen[0].Changes != nil {
		t.Errorf("reports: %+v", seen)
	}
	if got := *d.Refreshed.Load(); !reflect.DeepEqual(got, names) {
		t.Errorf("names in the request: %q, want %q", got, names)
	}
	if got := *d.RefreshedWith.Load(); !got.Prune || !got.DryRun {
		t.Errorf("options in the request: %+v", got)
	}
	if _, err := c.Refresh(t.Context(), []string{"../x"}, control.RefreshOptions{}, func(control.Refreshed) {}); exit.Of(err) != exit.Usage {
		t.Errorf("a bad name: %v, want code %d", err, exit.Usage)
	}
}

// An error of the daemon reaches the client, and a client that disconnects ends the refresh.
func TestRefreshFails(t *testing.T) {
	d := &controltest.Daemon{RefreshErr: &exit.Error{Code: exit.Source, Err: errors.New("source: gone")}}
	c := dial(t, d)
	if _, err := c.Refresh(t.Context(), []string{"."}, control.RefreshOptions{}, func(control.Refreshed) {}); exit.Of(err) != exit.Source {
		t.Errorf("got %v, want code %d", err, exit.Source)
	}
	d.Refreshes, d.StepEvery = make([]control.Refreshed, 1), time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := c.Refresh(ctx, []string{"."}, control.RefreshOptions{}, func(control.Refreshed) { cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}
