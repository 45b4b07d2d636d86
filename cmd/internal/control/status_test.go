package control_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
)

func encoded(t testing.TB) []byte {
	t.Helper()
	p, err := json.Marshal((&controltest.Daemon{MountPoint: "/mnt"}).Status(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Only the status of a bucket has requests. That of a directory has not even zero of them.
func TestStatusOfABucket(t *testing.T) {
	if p := encoded(t); strings.Contains(string(p), `"requests"`) {
		t.Errorf("a directory has requests: %s", p)
	}
	want := (&controltest.Daemon{MountPoint: "/mnt", Bucket: true}).Status(t.Context())
	p, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if got := `"requests":{"list":12,"get":3400,"other":1,"retries":5,"hedges":6,"throttled":2,"bytes_received":335544320,"hidden_keys":7}`; !strings.Contains(string(p), got) {
		t.Errorf("%s lacks %s", p, got)
	}
	got, err := control.DecodeStatus(p)
	if err != nil || !reflect.DeepEqual(got.Source, want.Source) {
		t.Errorf("got %+v, %v; want %+v", got.Source, err, want.Source)
	}
}

// Paths and the name of a generation need not be UTF-8.
func TestStatusOfAnyName(t *testing.T) {
	want := (&controltest.Daemon{MountPoint: "/mnt\xff"}).Status(t.Context())
	want.Generation, want.Source.Path, want.Tiers[0].Path = "v\xff", "/data\xff", "/ssd\xff"
	p, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := control.DecodeStatus(p); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

// Unknown fields, of a newer daemon, are ignored.
func TestDecodeStatusMore(t *testing.T) {
	var fields map[string]any
	if err := json.Unmarshal(encoded(t), &fields); err != nil {
		t.Fatal(err)
	}
	fields["weather"] = "fine"
	p, _ := json.Marshal(fields)
	if _, err := control.DecodeStatus(p); err != nil {
		t.Error(err)
	}
}

func TestDecodeStatusRefuses(t *testing.T) {
	for name, spoil := range map[string]func(*control.Status){
		"another version":          func(s *control.Status) { s.Version++ },
		"no process":               func(s *control.Status) { s.PID = 0 },
		"no mount point":           func(s *control.Status) { s.MountPoint = "" },
		"before its start":         func(s *control.Status) { s.UptimeSeconds = -1 },
		"level 0":                  func(s *control.Status) { s.Tiers[0].Level = 0 },
		"no name":                  func(s *control.Status) { s.Tiers[0].Name = "" },
		"negative quota":           func(s *control.Status) { s.Tiers[0].QuotaBytes = -1 },
		"unknown health of a tier": func(s *control.Status) { s.Tiers[0].Health = "ill" },
		"missing counts": func(s *control.Status) {
			s.ReadLatency["ram"] = control.Histogram{LeSeconds: []float64{1}}
		},
		"peers without a roster": func(s *control.Status) { s.Peers = &control.Peers{} },
		"bounds descend": func(s *control.Status) {
			s.ReadLatency["ram"] = control.Histogram{LeSeconds: []float64{2, 1}, Counts: []uint64{0, 0}}
		},
		"counts descend": func(s *control.Status) {
			s.ReadLatency["ram"] = control.Histogram{LeSeconds: []float64{1, 2}, Counts: []uint64{2, 1}, Count: 2}
		},
		"more than all": func(s *control.Status) {
			s.ReadLatency["ram"] = control.Histogram{LeSeconds: []float64{1}, Counts: []uint64{2}, Count: 1}
		},
	} {
		s := (&controltest.Daemon{MountPoint: "/mnt"}).Status(t.Context())
		spoil(&s)
		p, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := control.DecodeStatus(p); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// DecodeStatus accepts the encoding of each status that it has decoded.
func FuzzDecodeStatus(f *testing.F) {
	f.Add(encoded(f))
	f.Add([]byte(`{"version":1,"pid":1,"mount_point":"/m"}`))
	f.Add([]byte(`{"version":1,"pid":1,"mount_point":"/m","read_latency":{"ram":{"le_seconds":[1e-3],"counts":[1],"count":1}}}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		s, err := control.DecodeStatus(p)
		if err != nil {
			return
		}
		again, err := json.Marshal(s)
		if err != nil {
			t.Fatalf("%q: %v", p, err)
		}
		if _, err := control.DecodeStatus(again); err != nil {
			t.Errorf("%q: %v", again, err)
		}
	})
}
