package metrics

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
)

func sample(context.Context) control.Status {
	return control.Status{
		Version:    control.StatusVersion,
		Milkweed:   "1.2.3",
		PID:        7,
		MountPoint: "/mnt/imagenet",
		DatasetID:  "d1",
		Mode:       "cached",
		Ready:      true,
		Source: control.Source{
			Path:       "/lustre/imagenet",
			Health:     control.Well,
			Operations: control.Operations{Open: 1, Read: 2, Stat: 3, Readdir: 4, Readlink: 5, Xattr: 6},
			BytesRead:  700,
			Errors:     8, Descriptors: 11, Passthrough: true,
			Requests: &control.Requests{List: 12, Get: 34, Other: 5, Retries: 6, Hedges: 7, Throttled: 8, BytesReceived: 900, HiddenKeys: 10},
		},
		Tiers: []control.Tier{
			{Level: 1, Name: "ram", QuotaBytes: 100, UsedBytes: 90, Files: 3, Reads: 4, BytesRead: 50, Health: control.Well, Passthrough: true},
			{Level: 2, Name: "ssd", QuotaBytes: 200, UsedBytes: 10, Files: 1, Reads: 2, BytesRead: 20, Health: control.Down, Reason: "it is gone", Errors: 9, PassthroughReason: "it is stacked"},
		},
		Fills:       control.Fills{InFlight: 2, InFlightBytes: 30, Queued: 5},
		Placement:   control.Placement{Placed: 4, PlacedBytes: 80, Prefetched: 3, Skipped: 1, Failed: 2},
		Opens:       map[string]map[string]int64{"ram": {"cached": 12, "passthrough": 7}, "source": {"cached": 3}},
		OpenedBytes: map[string]map[string]int64{"ram": {"cached": 1200, "passthrough": 7000}, "source": {"cached": 300}},
		OpenHandles: 6,
		ReadLatency: map[string]control.Histogram{
			"ram": {LeSeconds: []float64{0.001, 0.1}, Counts: []uint64{3, 4}, SumSeconds: 1.5, Count: 5},
		},
	}
}

// The names and the help are as Prometheus wants them.
func TestLint(t *testing.T) {
	problems, err := testutil.CollectAndLint(New(sample))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestCollect(t *testing.T) {
	want := `
# HELP milkweed_opened_bytes_total The sizes of the files opened, by the level that served them and how the kernel was served.
# TYPE milkweed_opened_bytes_total counter
milkweed_opened_bytes_total{level="ram",mode="cached"} 1200
milkweed_opened_bytes_total{level="ram",mode="passthrough"} 7000
milkweed_opened_bytes_total{level="source",mode="cached"} 300
# HELP milkweed_opens_total Files opened, by the level that served them and how the kernel was served.
# TYPE milkweed_opens_total counter
milkweed_opens_total{level="ram",mode="cached"} 12
milkweed_opens_total{level="ram",mode="passthrough"} 7
milkweed_opens_total{level="source",mode="cached"} 3
# HELP milkweed_placements_total Files that were to be placed, by what came of it.
# TYPE milkweed_placements_total counter
milkweed_placements_total{result="failed"} 2
milkweed_placements_total{result="placed"} 4
milkweed_placements_total{result="skipped"} 1
# HELP milkweed_prefetched_files_total Copies made that were begun before anybody opened the file.
# TYPE milkweed_prefetched_files_total counter
milkweed_prefetched_files_total 3
# HELP milkweed_read_duration_seconds How long reads took in the daemon, by the level that served them.
# TYPE milkweed_read_duration_seconds histogram
milkweed_read_duration_seconds_bucket{level="ram",le="0.001"} 3
milkweed_read_duration_seconds_bucket{level="ram",le="0.1"} 4
milkweed_read_duration_seconds_bucket{level="ram",le="+Inf"} 5
milkweed_read_duration_seconds_sum{level="ram"} 1.5
milkweed_read_duration_seconds_count{level="ram"} 5
# HELP milkweed_source_open_files Files of the source that are kept open for the next to read them.
# TYPE milkweed_source_open_files gauge
milkweed_source_open_files 11
# HELP milkweed_source_operations_total What the source was asked, by kind.
# TYPE milkweed_source_operations_total counter
milkweed_source_operations_total{operation="open"} 1
milkweed_source_operations_total{operation="read"} 2
milkweed_source_operations_total{operation="readdir"} 4
milkweed_source_operations_total{operation="readlink"} 5
milkweed_source_operations_total{operation="stat"} 3
milkweed_source_operations_total{operation="xattr"} 6
# HELP milkweed_source_passthrough Whether the kernel reads by itself those files of the source that have no tier to go to.
# TYPE milkweed_source_passthrough gauge
milkweed_source_passthrough 1
# HELP milkweed_tier_health 1 for the state that a tier is in, 0 for the others.
# TYPE milkweed_tier_health gauge
milkweed_tier_health{state="counting",tier="ram"} 0
milkweed_tier_health{state="counting",tier="ssd"} 0
milkweed_tier_health{state="down",tier="ram"} 0
milkweed_tier_health{state="down",tier="ssd"} 1
milkweed_tier_health{state="suspect",tier="ram"} 0
milkweed_tier_health{state="suspect",tier="ssd"} 0
milkweed_tier_health{state="well",tier="ram"} 1
milkweed_tier_health{state="well",tier="ssd"} 0
# HELP milkweed_tier_passthrough Whether the kernel reads the copies in a tier by itself.
# TYPE milkweed_tier_passthrough gauge
milkweed_tier_passthrough{tier="ram"} 1
milkweed_tier_passthrough{tier="ssd"} 0
# HELP milkweed_tier_used_bytes What the copies in a tier take, with those in flight.
# TYPE milkweed_tier_used_bytes gauge
milkweed_tier_used_bytes{tier="ram"} 90
milkweed_tier_used_bytes{tier="ssd"} 10
`
	err := testutil.CollectAndCompare(New(sample), strings.NewReader(want),
		"milkweed_opened_bytes_total", "milkweed_opens_total", "milkweed_placements_total", "milkweed_prefetched_files_total",
		"milkweed_read_duration_seconds", "milkweed_source_open_files", "milkweed_source_operations_total",
		"milkweed_source_passthrough", "milkweed_tier_health", "milkweed_tier_passthrough", "milkweed_tier_used_bytes")
	if err != nil {
		t.Error(err)
	}
}

// What a bucket's server was asked.
func TestCollectRequests(t *testing.T) {
	want := `
# HELP milkweed_source_hedges_total Requests that were sent because another had not begun to answer.
# TYPE milkweed_source_hedges_total counter
milkweed_source_hedges_total 7
# HELP milkweed_source_hidden_keys Keys of a bucket that no file system can show, in the directories that were listed.
# TYPE milkweed_source_hidden_keys gauge
milkweed_source_hidden_keys 10
# HELP milkweed_source_received_bytes_total Bytes of content that a bucket's server has sent.
# TYPE milkweed_source_received_bytes_total counter
milkweed_source_received_bytes_total 900
# HELP milkweed_source_requests_total What the server of a bucket was asked, by kind.
# TYPE milkweed_source_requests_total counter
milkweed_source_requests_total{kind="get"} 34
milkweed_source_requests_total{kind="list"} 12
milkweed_source_requests_total{kind="other"} 5
# HELP milkweed_source_retries_total Requests that were sent again after an error.
# TYPE milkweed_source_retries_total counter
milkweed_source_retries_total 6
# HELP milkweed_source_throttled_total Answers of a bucket's server that asked to slow down.
# TYPE milkweed_source_throttled_total counter
milkweed_source_throttled_total 8
`
	names := []string{"milkweed_source_hedges_total", "milkweed_source_hidden_keys", "milkweed_source_received_bytes_total",
		"milkweed_source_requests_total", "milkweed_source_retries_total", "milkweed_source_throttled_total"}
	if err := testutil.CollectAndCompare(New(sample), strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	folder := New(func(ctx context.Context) control.Status {
		s := sample(ctx)
		s.Source.Requests = nil
		return s
	})
	if got := testutil.CollectAndCount(folder, names...); got != 0 {
		t.Errorf("%d metrics of a folder, want none", got)
	}
}

// Every metric that is described is collected from a full status.
func TestCollectAll(t *testing.T) {
	for _, d := range descs {
		name := strings.Split(strings.TrimPrefix(d.String(), `Desc{fqName: "`), `"`)[0]
		if testutil.CollectAndCount(New(sample), name) == 0 {
			t.Errorf("%s is not collected", name)
		}
	}
}

// A label must be UTF-8, and a path need not be.
func TestCollectBytes(t *testing.T) {
	c := New(func(ctx context.Context) control.Status {
		s := sample(ctx)
		s.MountPoint = "/mnt/\xff"
		return s
	})
	if got := testutil.CollectAndCount(c, "milkweed_mount_info"); got != 1 {
		t.Errorf("%d metrics, want 1", got)
	}
}

func TestServe(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l, err := Listen(ctx, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(ctx, l.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listening twice: %v, want %v", err, syscall.EADDRINUSE)
	}
	ended := make(chan error)
	go func() { ended <- Serve(ctx, l, Handler(sample), slog.New(slog.DiscardHandler)) }()

	resp, err := http.Get("http://" + l.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"milkweed_ready 1", "go_goroutines", "process_resident_memory_bytes"} {
		if !strings.Contains(string(body), want) {
			t.Errorf("the answer lacks %q", want)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
