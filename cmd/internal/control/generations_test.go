package control_test

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/placement"
)

func TestGenerations(t *testing.T) {
	d := &controltest.Daemon{GenerationsOf: control.Generations{Current: "v1", Linked: "v2", All: []control.Generation{
		{Name: "v1", Current: true, AtSource: true, Copies: []control.Copies{{Tier: "ram", Files: 3, Bytes: 12288}}},
	}}}
	c := dial(t, d)
	got, err := c.Generations(t.Context())
	if err != nil || !reflect.DeepEqual(got, d.GenerationsOf) {
		t.Errorf("got %+v, %v", got, err)
	}
	r, err := c.DropGeneration(t.Context(), "v0", func(placement.DropReport) {})
	if err != nil || r.Copies != 3 || *d.Dropped.Load() != "v0" {
		t.Errorf("drop: %+v, %v", r, err)
	}
	want := control.PrepareRequest{Generation: "v4", TrustMtime: true, Partial: true}
	p, err := c.Prepare(t.Context(), want, func(control.Prepared) {})
	if err != nil || p.Shared.Files != 1 || p.NeedBytes != 4096 || *d.PreparedWith.Load() != want {
		t.Errorf("prepare: %+v, %v", p, err)
	}
	d.GenerationErr = &exit.Error{Code: exit.Usage, Err: errors.New("no generations")}
	if _, err := c.Generations(t.Context()); exit.Of(err) != exit.Usage {
		t.Errorf("got %v, want code %d", err, exit.Usage)
	}
}

// The name of a generation need not be UTF-8.
func TestGenerationsOfAnyName(t *testing.T) {
	const name = "v\xff"
	d := &controltest.Daemon{GenerationsOf: control.Generations{Current: name, Linked: "w\xfe", All: []control.Generation{{Name: name}}}}
	c := dial(t, d)
	if got, err := c.Generations(t.Context()); err != nil || !reflect.DeepEqual(got, d.GenerationsOf) {
		t.Errorf("got %+v, %v", got, err)
	}
	if p, err := c.Prepare(t.Context(), control.PrepareRequest{Generation: name}, func(control.Prepared) {}); err != nil || p.Generation != name || d.PreparedWith.Load().Generation != name {
		t.Errorf("prepare: %+v, %v", p, err)
	}
	if s, err := c.Switch(t.Context(), control.SwitchRequest{Generation: name}, func(control.Switched) {}); err != nil || s.To != name || d.SwitchedTo.Load().Generation != name {
		t.Errorf("switch: %+v, %v", s, err)
	}
	if _, err := c.DropGeneration(t.Context(), name, func(placement.DropReport) {}); err != nil || *d.Dropped.Load() != name {
		t.Errorf("drop of %q: %v", *d.Dropped.Load(), err)
	}
}

func TestEvict(t *testing.T) {
	d := new(controltest.Daemon)
	c := dial(t, d)
	names := []string{".", "a/\xff"}
	r, err := c.Evict(t.Context(), names, func(placement.DropReport) {})
	if err != nil || r.Copies != 3 || !reflect.DeepEqual(*d.Evicted.Load(), names) {
		t.Errorf("got %+v, %v, of %q", r, err, *d.Evicted.Load())
	}
	d.EvictErr = &exit.Error{Code: exit.Incomplete, Err: errors.New("a tier is read-only")}
	if _, err := c.Evict(t.Context(), names, func(placement.DropReport) {}); exit.Of(err) != exit.Incomplete {
		t.Errorf("got %v, want code %d", err, exit.Incomplete)
	}
	if _, err := c.Evict(t.Context(), []string{"../a"}, func(placement.DropReport) {}); exit.Of(err) != exit.Usage {
		t.Errorf("a name outside of the mount: got %v", err)
	}
}

func TestSwitch(t *testing.T) {
	d := new(controltest.Daemon)
	c := dial(t, d)
	req := control.SwitchRequest{Generation: "v4", Keep: true}
	got, err := c.Switch(t.Context(), req, func(control.Switched) {})
	if err != nil || !got.Done || got.To != "v4" || *d.SwitchedTo.Load() != req {
		t.Errorf("got %+v, %v, of %+v", got, err, *d.SwitchedTo.Load())
	}
	ctx, cancel := context.WithCancel(t.Context())
	req.WhenIdle = true
	got, err = c.Switch(ctx, req, func(s control.Switched) {
		if len(s.Users) > 0 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || got.Done {
		t.Errorf("a switch that waits: %+v, %v", got, err)
	}
	d.GenerationErr = &exit.Error{Code: exit.Usage, Err: errors.New("no such generation")}
	if _, err := c.Switch(t.Context(), control.SwitchRequest{}, func(control.Switched) {}); exit.Of(err) != exit.Usage {
		t.Errorf("got %v, want code %d", err, exit.Usage)
	}
}
