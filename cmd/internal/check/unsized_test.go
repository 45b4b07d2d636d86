package check

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// Auto does not choose stateless if one of some sampled files shows size 0 and has content, or does not answer.
func TestFindUnsized(t *testing.T) {
	mem := drivertest.NewMem(0)
	sample := make(map[string]drivers.Info)
	for i := range 16 {
		name := fmt.Sprintf("f%02d", i)
		mem.Put(name, nil)
		sample[name] = drivers.Info{Unsized: true}
	}
	mem.Put("g", []byte("x"))
	sample["g"] = drivers.Info{Size: 1}
	source := drivertest.NewFaults(mem)
	ctx := t.Context()
	want := func(what, want string) {
		t.Helper()
		if got := FindUnsized(ctx, source, sample); got != want {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	want("empty files", "")
	if got := source.Count(drivertest.OpOpen); got != openedUnsized {
		t.Errorf("%d opens, want %d", got, openedUnsized)
	}
	source.Add(drivertest.Rule{Op: drivertest.OpOpen, Name: "f06", Err: errors.New("denied")})
	want("a file that cannot be opened", "")
	mem.Put("f10", []byte("x"))
	want("a file with content", "f10")
	source.Add(drivertest.Rule{Op: drivertest.OpRead, Name: "f08", Hang: true})
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	want("a file that does not answer", "f08")
	source.Clear()
	for range 20 {
		want("too late", "f00")
	}
	if got := FindUnsized(t.Context(), struct{ drivers.Sampler }{}, sample); got != "" {
		t.Errorf("a source that cannot open files: got %q", got)
	}

	in := modeInputs{unsized: func() string { return "doc" }, probeResults: probeResults{tiers: []error{nil}}}
	for configured, want := range map[config.Mode]config.Mode{config.Auto: config.Cached, config.Stateless: config.Stateless, config.Passthrough: config.Passthrough} {
		if mode, reason := in.chooseMode(configured); mode != want || strings.Contains(reason, "size 0 for doc, ") != (configured == config.Auto) {
			t.Errorf("%s: got %s, %q; want %s", configured, mode, reason, want)
		}
	}
	in.sample, in.unsized = sized(statelessBelow), func() string {
		t.Error("files are opened although the mode is not stateless")
		return ""
	}
	if mode, _ := in.chooseMode(config.Auto); mode != config.Passthrough {
		t.Errorf("large files: got %s", mode)
	}
}
