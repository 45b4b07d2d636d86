package drivers_test

import (
	"context"
	"io"
	"testing"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/limit"
)

// everything is a Store with every capability.
type everything struct {
	drivers.Store
	drivers.Readlinker
	drivers.Xattrer
	drivers.ACLer
	drivers.HoleFinder
	drivers.Lister
	drivers.Namer
	drivers.VersionOpener
	drivers.Statfser
	drivers.Sampler
	drivers.Prober
	drivers.CopyProber
	drivers.Profiler
}

func (e everything) Open(context.Context, string) (drivers.Object, error) { return object{}, nil }

func (e everything) OpenVersion(context.Context, string, drivers.Info) (drivers.Object, error) {
	return object{}, nil
}

func (e everything) Profile() drivers.Profile {
	return drivers.Profile{Latency: drivers.LatencyMemory, Stride: 1 << 20}
}

// object is an Object with every capability.
type object struct{ drivers.Object }

func (object) Stream(context.Context, int64, int64) (io.ReadCloser, error) { return nil, nil }
func (object) Verify(context.Context) error                                { return nil }
func (object) BackingFile(func(uintptr) error) (func(), error)             { return nil, nil }
func (object) SpliceDescriptor() (uintptr, func(int), error)               { return 0, nil, nil }

// transparent is a wrapper without methods of its own.
type transparent struct{ drivers.Driver }

func (w transparent) Unwrap() drivers.Driver { return w.Driver }

// driverCapabilities returns what As finds for each capability of a source.
func driverCapabilities(v any) map[string]any {
	m := make(map[string]any)
	find[drivers.Readlinker](m, "Readlinker", v)
	find[drivers.Xattrer](m, "Xattrer", v)
	find[drivers.ACLer](m, "ACLer", v)
	find[drivers.HoleFinder](m, "HoleFinder", v)
	find[drivers.Lister](m, "Lister", v)
	find[drivers.Namer](m, "Namer", v)
	find[drivers.VersionOpener](m, "VersionOpener", v)
	find[drivers.Statfser](m, "Statfser", v)
	find[drivers.Sampler](m, "Sampler", v)
	find[drivers.Profiler](m, "Profiler", v)
	return m
}

// objectCapabilities returns what As finds for each capability of an Object.
func objectCapabilities(v any) map[string]any {
	m := make(map[string]any)
	find[drivers.Streamer](m, "Streamer", v)
	find[drivers.Verifier](m, "Verifier", v)
	find[drivers.BackingFiler](m, "BackingFiler", v)
	find[drivers.Splicer](m, "Splicer", v)
	return m
}

func find[T any](m map[string]any, name string, v any) {
	if t, ok := drivers.As[T](v); ok {
		m[name] = t
	}
}

// A wrapper that limits, counts or injects faults must implement every capability
// that reaches the storage. Otherwise As would find the storage behind its back.
func TestNothingIsBypassed(t *testing.T) {
	for _, w := range []struct {
		name  string
		wrap  func(drivers.Driver) drivers.Driver
		store bool // it passes on writes
	}{
		{"limit", func(d drivers.Driver) drivers.Driver { return limit.New(d, limit.Config{}) }, false},
		{"faults", func(d drivers.Driver) drivers.Driver { return drivertest.NewFaults(d) }, true},
	} {
		t.Run(w.name, func(t *testing.T) {
			wrapper := w.wrap(everything{})
			got := driverCapabilities(wrapper)
			find[drivers.Store](got, "Store", wrapper)
			find[drivers.Prober](got, "Prober", wrapper)
			find[drivers.CopyProber](got, "CopyProber", wrapper)
			want := 10
			if w.store {
				want += 3
			}
			if len(got) != want {
				t.Errorf("has %d capabilities, want %d: %v", len(got), want, got)
			}
			for name, found := range got {
				if found != any(wrapper) {
					t.Errorf("%s: As finds %T, not the wrapper", name, found)
				}
			}
			for how, open := range map[string]func() (drivers.Object, error){
				"Open": func() (drivers.Object, error) { return wrapper.Open(t.Context(), "f") },
				"OpenVersion": func() (drivers.Object, error) {
					return as[drivers.VersionOpener](t, wrapper).OpenVersion(t.Context(), "f", drivers.Info{})
				},
			} {
				o, err := open()
				if err != nil {
					t.Fatal(err)
				}
				got := objectCapabilities(o)
				if want := 4; len(got) != want {
					t.Errorf("%s: has %d of %d capabilities: %v", how, len(got), want, got)
				}
				for name, found := range got {
					if found != any(o) {
						t.Errorf("%s of %s: As finds %T, not the wrapper", name, how, found)
					}
				}
			}
			if got := drivers.ProfileOf(wrapper); got.Latency == drivers.LatencyMemory || got.Stride != 1<<20 {
				t.Errorf("profile: got %+v; operations may block, and the stride is that of the storage", got)
			}
		})
	}
}

// A wrapper has no capability that the storage lacks.
func TestWrappersInventNothing(t *testing.T) {
	type bare struct{ drivers.Driver }
	for name, wrapper := range map[string]drivers.Driver{
		"limit":  limit.New(bare{}, limit.Config{}),
		"faults": drivertest.NewFaults(bare{}),
		"both":   limit.New(drivertest.NewFaults(bare{}), limit.Config{}),
	} {
		if got := driverCapabilities(wrapper); len(got) > 0 {
			t.Errorf("%s of a driver without capabilities has %v", name, got)
		}
	}
}

// A wrapper without methods of its own is skipped.
func TestAsUnwraps(t *testing.T) {
	limited := limit.New(everything{}, limit.Config{})
	for name, found := range driverCapabilities(transparent{limited}) {
		if found != any(limited) {
			t.Errorf("%s: As finds %T, not the driver within", name, found)
		}
	}
}

func as[T any](t *testing.T, v any) T {
	t.Helper()
	c, ok := drivers.As[T](v)
	if !ok {
		t.Fatalf("%T is no %T", v, c)
	}
	return c
}
