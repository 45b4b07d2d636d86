package bench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files")

// small returns a report with an example of each feature.
func small() *Report {
	source := &SourceUse{Operations: 1234, Opens: 40, Bytes: 1e6, UnplacedBytes: 1e6}
	return &Report{
		Date: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC), Version: "1.0, go1.26", Rclone: "left out: it is not installed",
		Kernel: "6.18.1", CPUs: 2, MemoryBytes: 24 << 30, Command: "milkweed bench", Scale: 1, Runs: 3,
		LatencySeconds: 0.002, SourceBandwidth: 200e6, SourceBehaviour: "it keeps no pages",
		TierFolder: "/dev/shm/x", TierFileSystem: "tmpfs",
		Groups: []Group{
			{Name: "micro", Caption: []string{"Files of 1 MB."}, LeftOut: []string{"user: <no> & none"}, Cases: []Case{
				NewCase("sequential", Throughput, 1e9, 1, []Side{{Native, runs(0.1, 0.1, 0.1)}, {"passthrough", runs(0.1, 0.11, 0.12)}}),
				NewCase("stat", Latency, 0, 1000, []Side{{Native, runs(0.002, 0.002, 0.002)}, {"passthrough", runs(0.001, 0.001, 0.001)}}),
			}},
			{Name: "workloads", LeftOut: []string{}, Cases: []Case{
				NewCase("unet3d, epoch 1", Duration, 1e6, 10, []Side{
					{Direct, []Run{{Seconds: 2, Utilization: 0.5, Source: source}}},
					{"milkweed", []Run{{Seconds: 0.04, Utilization: 0.99, Source: &SourceUse{}, Waits: &Waits{0.5, 0, 0.25, 0.001}}}},
				}),
			}},
		},
	}
}

// golden compares got with a file in testdata. With -update it writes the file.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := "testdata/" + name
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("got\n%s\nwant %s\n%s", got, path, want)
	}
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	r := small()
	if err := r.Head(&out); err != nil {
		t.Fatal(err)
	}
	for _, g := range r.Groups {
		if err := g.Table(&out); err != nil {
			t.Fatal(err)
		}
	}
	golden(t, "small.txt", out.Bytes())
}

func TestSVG(t *testing.T) {
	var out bytes.Buffer
	if err := SVG(&out, small().Groups); err != nil {
		t.Fatal(err)
	}
	golden(t, "small.svg", out.Bytes())
	for d := xml.NewDecoder(&out); ; {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not XML: %v", err)
		}
	}
}

// The bars of very small and very large ratios are within the picture.
func TestSVGBarsFit(t *testing.T) {
	groups := []Group{{Name: "g", Cases: []Case{
		NewCase("c", Duration, 0, 1, []Side{{Native, runs(1)}, {"fast", runs(1e-4)}, {"slow", runs(3e3)}}),
	}}}
	p := &picture{}
	p.low, p.high = decades(groups)
	for _, ratio := range []float64{1e-4, 1, 3e3} {
		if x := p.x(ratio); x < barsLeft || x > barsLeft+barsWidth {
			t.Errorf("%g is at %g", ratio, x)
		}
	}
}

func TestNumber(t *testing.T) {
	for f, want := range map[float64]string{0.0123: "0.0123", 1.2345: "1.23", 99.99: "100", 12345.6: "12346", 0.0000012: "0.000001"} {
		if got := number(f); got != want {
			t.Errorf("%g: got %s, want %s", f, got, want)
		}
	}
	if strings.Contains(number(123456789), "e") {
		t.Error("a number has an exponent")
	}
}
