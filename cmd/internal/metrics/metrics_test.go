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
	"github.com/milkweedfs/milkweed/drivers/blob"
	"github.com/milkweedfs/milkweed/drivers/peer"
	"github.com/milkweedfs/milkweed/placement"
	"github.com/milkweedfs/milkweed/tiers"
)

func sample(context.Context) control.Status {
	return control.Status{
		Version:    control.StatusVersion,
		Milkweed:   "1.2.3",
		GoVersion:  "go1.99",
		PID:        7,
		MountPoint: "/mnt/imagenet",
		DatasetID:  "d1",
		Mode:       "cached",
		Ready:      true,
		Source: control.Source{
			Path: "/lustre/imagenet",
			SourceCounters: tiers.SourceCounters{
				SourceOperations: tiers.SourceOperations{Opens: 1, Reads: 2, Stats: 3, ReadDirs: 4, Readlinks: 5, Xattrs: 6, ACLs: 7, Holes: 8},
				Bytes:            700,
				Errors:           8,
			},
			IdleHandles: 11,
			Passthrough: true,
			Requests: &blob.Stats{
				Counters: blob.Counters{Lists: 12, Gets: 34, Others: 5, Retries: 6, Hedges: 7, Throttled: 8, Bytes: 900},
				Hidden:   10,
			},
		},
		Waits: []control.Wait{
			{Level: "source", Cause: control.Latency, Waits: 3, Seconds: 0.5},
			{Level: "ram", Cause: control.TierCause, Waits: 4, Seconds: 0.25},
		},
		Tiers: []control.Tier{
			{
				Level: 1, Name: "ram", QuotaBytes: 100, UsedBytes: 90, Files: 3,
				TierCounters: tiers.TierCounters{Reads: 4, Bytes: 50},
				Health:       control.Healthy, Passthrough: true,
			},
			{
				Level: 2, Name: "ssd", QuotaBytes: 200, UsedBytes: 10, Files: 1,
				TierCounters: tiers.TierCounters{Reads: 2, Bytes: 20, Errors: 9},
				Health:       control.Down, Reason: "it is gone", PassthroughReason: "it is stacked",
			},
		},
		Peers: &control.Peers{
			Roster: control.Roster{Hash: "00ff", Nodes: 3}, Self: "node1", Serving: true, Up: 1, Reads: 9, Bytes: 900,
			Nodes: []control.Peer{
				{Name: "node2", Up: true, Counters: peer.Counters{Reads: 8, Bytes: 800}},
				{Name: "node3", Counters: peer.Counters{Reads: 1, Bytes: 100, Failovers: 1, Misses: peer.Misses{Full: 2}}},
			},
		},
		Fills:       placement.Fills{InFlight: 2, InFlightBytes: 30, Queued: 5},
		Placement:   placement.Counters{Placed: 4, PlacedBytes: 80, Prefetched: 3, Skipped: 1, Failed: 2},
		Opens:       map[string]map[string]int64{"ram": {"cached": 12, "passthrough": 7}, "source": {"cached": 3}},
		OpenedBytes: map[string]map[string]int64{"ram": {"cached": 1200, "passthrough": 7000}, "source": {"cached": 300}},
		ReadBytes:   map[string]int64{"ram": 1100},
		OpenHandles: 6,
		ReadLatency: map[string]control.Histogram{
			"ram": {LeSeconds: []float64{0.001, 0.1}, Counts: []uint64{3, 4}, SumSeconds: 1.5, Count: 5},
		},
	}
}

// Names and help texts follow the conventions of Prometheus.
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
# HELP milkweed_opened_bytes_total Sizes of the files opened, by level and mode. The daemon does not see the reads of mode passthrough, only the opens.
# TYPE milkweed_opened_bytes_total counter
milkweed_opened_bytes_total{level="ram",mode="cached"} 1200
milkweed_opened_bytes_total{level="ram",mode="passthrough"} 7000
milkweed_opened_bytes_total{level="source",mode="cached"} 300
# HELP milkweed_opens_total Opens of files, by level and mode. The level is the tier that served the open, source, or fill if the copy was in flight.
# TYPE milkweed_opens_total counter
milkweed_opens_total{level="ram",mode="cached"} 12
milkweed_opens_total{level="ram",mode="passthrough"} 7
milkweed_opens_total{level="source",mode="cached"} 3
# HELP milkweed_placements_total Files to place, by result.
# TYPE milkweed_placements_total counter
milkweed_placements_total{result="failed"} 2
milkweed_placements_total{result="placed"} 4
milkweed_placements_total{result="skipped"} 1
# HELP milkweed_prefetched_files_total Copies committed that were started before the first open of the file.
# TYPE milkweed_prefetched_files_total counter
milkweed_prefetched_files_total 3
# HELP milkweed_read_duration_seconds Duration of reads in the daemon, by the level that served them.
# TYPE milkweed_read_duration_seconds histogram
milkweed_read_duration_seconds_bucket{level="ram",le="0.001"} 3
milkweed_read_duration_seconds_bucket{level="ram",le="0.1"} 4
milkweed_read_duration_seconds_bucket{level="ram",le="+Inf"} 5
milkweed_read_duration_seconds_sum{level="ram"} 1.5
milkweed_read_duration_seconds_count{level="ram"} 5
# HELP milkweed_reader_wait_seconds_total Duration of all waits. Requests of the kernel that wait at the same time count each.
# TYPE milkweed_reader_wait_seconds_total counter
milkweed_reader_wait_seconds_total{cause="latency",level="source"} 0.5
milkweed_reader_wait_seconds_total{cause="tier",level="ram"} 0.25
# HELP milkweed_reader_waits_total Number of waits. A read at the source may count as a wait for its latency and as one for its bandwidth.
# TYPE milkweed_reader_waits_total counter
milkweed_reader_waits_total{cause="latency",level="source"} 3
milkweed_reader_waits_total{cause="tier",level="ram"} 4
# HELP milkweed_source_idle_handles Files of the source in the idle-handle cache.
# TYPE milkweed_source_idle_handles gauge
milkweed_source_idle_handles 11
# HELP milkweed_source_operations_total Operations on the source, by kind.
# TYPE milkweed_source_operations_total counter
milkweed_source_operations_total{operation="acl"} 7
milkweed_source_operations_total{operation="holes"} 8
milkweed_source_operations_total{operation="open"} 1
milkweed_source_operations_total{operation="read"} 2
milkweed_source_operations_total{operation="readdir"} 4
milkweed_source_operations_total{operation="readlink"} 5
milkweed_source_operations_total{operation="stat"} 3
milkweed_source_operations_total{operation="xattr"} 6
# HELP milkweed_source_passthrough Whether passthrough is on for the files for which no tier has room: the kernel reads them directly.
# TYPE milkweed_source_passthrough gauge
milkweed_source_passthrough 1
# HELP milkweed_tier_health Health of the tier: healthy, degraded, down, full or scanning. The metric is 1 for the current state and 0 for the others.
# TYPE milkweed_tier_health gauge
milkweed_tier_health{state="degraded",tier="ram"} 0
milkweed_tier_health{state="degraded",tier="ssd"} 0
milkweed_tier_health{state="down",tier="ram"} 0
milkweed_tier_health{state="down",tier="ssd"} 1
milkweed_tier_health{state="full",tier="ram"} 0
milkweed_tier_health{state="full",tier="ssd"} 0
milkweed_tier_health{state="healthy",tier="ram"} 1
milkweed_tier_health{state="healthy",tier="ssd"} 0
milkweed_tier_health{state="scanning",tier="ram"} 0
milkweed_tier_health{state="scanning",tier="ssd"} 0
# HELP milkweed_tier_passthrough Whether passthrough is on: the kernel reads the copies in the tier directly.
# TYPE milkweed_tier_passthrough gauge
milkweed_tier_passthrough{tier="ram"} 1
milkweed_tier_passthrough{tier="ssd"} 0
# HELP milkweed_tier_used_bytes Bytes that copies in the tier occupy. Space reserved for copies in flight is included.
# TYPE milkweed_tier_used_bytes gauge
milkweed_tier_used_bytes{tier="ram"} 90
milkweed_tier_used_bytes{tier="ssd"} 10
`
	err := testutil.CollectAndCompare(New(sample), strings.NewReader(want),
		"milkweed_opened_bytes_total", "milkweed_opens_total", "milkweed_placements_total", "milkweed_prefetched_files_total",
		"milkweed_read_duration_seconds", "milkweed_reader_wait_seconds_total", "milkweed_reader_waits_total", "milkweed_source_idle_handles", "milkweed_source_operations_total",
		"milkweed_source_passthrough", "milkweed_tier_health", "milkweed_tier_passthrough", "milkweed_tier_used_bytes")
	if err != nil {
		t.Error(err)
	}
}

// Each node has metrics of its own, and there are sums.
func TestCollectPeers(t *testing.T) {
	want := `
# HELP milkweed_peer_read_bytes_total Bytes of files received from the node.
# TYPE milkweed_peer_read_bytes_total counter
milkweed_peer_read_bytes_total{peer="node2"} 800
milkweed_peer_read_bytes_total{peer="node3"} 100
# HELP milkweed_peer_up Whether reads use the node. One that has failed is skipped until it answers again.
# TYPE milkweed_peer_up gauge
milkweed_peer_up{peer="node2"} 1
milkweed_peer_up{peer="node3"} 0
# HELP milkweed_peers_info Always 1. The labels are the hash of the roster and the name of this node in it.
# TYPE milkweed_peers_info gauge
milkweed_peers_info{roster="00ff",self="node1"} 1
# HELP milkweed_peers_read_bytes_total Bytes of files received from other nodes.
# TYPE milkweed_peers_read_bytes_total counter
milkweed_peers_read_bytes_total 900
`
	err := testutil.CollectAndCompare(New(sample), strings.NewReader(want),
		"milkweed_peer_read_bytes_total", "milkweed_peer_up", "milkweed_peers_info", "milkweed_peers_read_bytes_total")
	if err != nil {
		t.Error(err)
	}
}

// A bucket has metrics of its requests, and a directory has none.
func TestCollectRequests(t *testing.T) {
	want := `
# HELP milkweed_source_hedges_total Requests that were hedges: duplicates of a request without a timely answer.
# TYPE milkweed_source_hedges_total counter
milkweed_source_hedges_total 7
# HELP milkweed_source_hidden_keys Keys in the listed directories that no file system can show.
# TYPE milkweed_source_hidden_keys gauge
milkweed_source_hidden_keys 10
# HELP milkweed_source_received_bytes_total Bytes of content received.
# TYPE milkweed_source_received_bytes_total counter
milkweed_source_received_bytes_total 900
# HELP milkweed_source_requests_total Requests to the object store, by kind.
# TYPE milkweed_source_requests_total counter
milkweed_source_requests_total{kind="get"} 34
milkweed_source_requests_total{kind="list"} 12
milkweed_source_requests_total{kind="other"} 5
# HELP milkweed_source_retries_total Requests that were retries after an error.
# TYPE milkweed_source_retries_total counter
milkweed_source_retries_total 6
# HELP milkweed_source_throttled_total Answers with status 429 or 503, which limit the request rate.
# TYPE milkweed_source_throttled_total counter
milkweed_source_throttled_total 8
`
	names := []string{"milkweed_source_hedges_total", "milkweed_source_hidden_keys", "milkweed_source_received_bytes_total",
		"milkweed_source_requests_total", "milkweed_source_retries_total", "milkweed_source_throttled_total"}
	if err := testutil.CollectAndCompare(New(sample), strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	directory := New(func(ctx context.Context) control.Status {
		s := sample(ctx)
		s.Source.Requests = nil
		return s
	})
	if got := testutil.CollectAndCount(directory, names...); got != 0 {
		t.Errorf("%d metrics of a directory, want none", got)
	}
}

// A full status has every metric, with the labels that were described.
func TestCollectAll(t *testing.T) {
	for name := range New(sample).(*collector).all {
		if testutil.CollectAndCount(New(sample), prefix+name) == 0 {
			t.Errorf("%s is not collected", name)
		}
	}
}

func TestCollectInfo(t *testing.T) {
	want := `
# HELP milkweed_build_info Always 1. The labels are the versions of the daemon and of Go.
# TYPE milkweed_build_info gauge
milkweed_build_info{goversion="go1.99",version="1.2.3"} 1
# HELP milkweed_mount_info Always 1. The labels describe the mount.
# TYPE milkweed_mount_info gauge
milkweed_mount_info{dataset_id="d1",generation="",mode="cached",mount_point="/mnt/imagenet",source="/lustre/imagenet"} 1
`
	err := testutil.CollectAndCompare(New(sample), strings.NewReader(want), "milkweed_build_info", "milkweed_mount_info")
	if err != nil {
		t.Error(err)
	}
}

// The value of a label is UTF-8. A path may have other bytes.
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
	go func() { ended <- Serve(ctx, l, Handler(sample), http.NotFoundHandler(), slog.New(slog.DiscardHandler)) }()

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
	profile, err := http.Get("http://" + l.Addr().String() + "/debug/pprof/heap")
	if err != nil {
		t.Fatal(err)
	}
	defer profile.Body.Close()
	if profile.StatusCode != http.StatusNotFound {
		t.Errorf("every user can read profiles of the daemon: status %d", profile.StatusCode)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
