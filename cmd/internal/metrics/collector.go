package metrics

import (
	"context"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
)

// statusTimeout is how long a scrape waits for the status.
const statusTimeout = 5 * time.Second

// The metrics. A level is the name of a tier, or "source".
var (
	buildInfo = desc("build_info", "Always 1; the labels tell which program this is.", "version", "goversion")
	mountInfo = desc("mount_info", "Always 1; the labels tell what is mounted.", "mount_point", "source", "dataset_id", "mode")
	ready     = desc("ready", "Whether the mount can be used.")

	tierUsed   = desc("tier_used_bytes", "What the copies in a tier take, with those in flight.", "tier")
	tierQuota  = desc("tier_quota_bytes", "What the copies in a tier may take.", "tier")
	tierFiles  = desc("tier_files", "Copies that a tier holds.", "tier")
	tierReads  = desc("tier_reads_total", "Reads that a tier answered.", "tier")
	tierBytes  = desc("tier_read_bytes_total", "Bytes that were read from a tier.", "tier")
	tierErrors = desc("tier_errors_total", "Operations of a tier that failed.", "tier")
	tierHealth = desc("tier_health", "1 for the state that a tier is in, 0 for the others.", "tier", "state")

	tierPassthrough = desc("tier_passthrough", "Whether the kernel reads the copies in a tier by itself.", "tier")

	sourceOperations = desc("source_operations_total", "What the source was asked, by kind.", "operation")
	sourceBytes      = desc("source_read_bytes_total", "Bytes that were read from the source.")
	sourceErrors     = desc("source_errors_total", "Operations of the source that failed.")
	sourceHealth     = desc("source_health", "1 for the state that the source is in, 0 for the others.", "state")

	sourcePassthrough = desc("source_passthrough", "Whether the kernel reads by itself those files of the source that have no tier to go to.")
	sourceOpenFiles   = desc("source_open_files", "Files of the source that are kept open for the next to read them.")

	// Only where the source is a bucket.
	requests      = desc("source_requests_total", "What the server of a bucket was asked, by kind.", "kind")
	retries       = desc("source_retries_total", "Requests that were sent again after an error.")
	hedges        = desc("source_hedges_total", "Requests that were sent because another had not begun to answer.")
	throttled     = desc("source_throttled_total", "Answers of a bucket's server that asked to slow down.")
	bytesReceived = desc("source_received_bytes_total", "Bytes of content that a bucket's server has sent.")
	hiddenKeys    = desc("source_hidden_keys", "Keys of a bucket that no file system can show, in the directories that were listed.")

	opens       = desc("opens_total", "Files opened, by the level that served them and how the kernel was served.", "level", "mode")
	openedBytes = desc("opened_bytes_total", "The sizes of the files opened, by the level that served them and how the kernel was served.", "level", "mode")
	openHandles = desc("open_handles", "Files that are open now.")
	readLatency = desc("read_duration_seconds", "How long reads took in the daemon, by the level that served them.", "level")

	placements    = desc("placements_total", "Files that were to be placed, by what came of it.", "result")
	placedBytes   = desc("placed_bytes_total", "The sizes of the copies made.")
	prefetched    = desc("prefetched_files_total", "Copies made that were begun before anybody opened the file.")
	fillsInFlight = desc("fills_in_flight", "Copies in flight.")
	fillsBytes    = desc("fills_in_flight_bytes", "The sizes of the files whose copies are in flight.")
	fillsQueued   = desc("fills_queued", "Files that wait for a worker to copy them.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("milkweed_"+name, help, labels, nil)
}

var descs = []*prometheus.Desc{
	buildInfo, mountInfo, ready,
	tierUsed, tierQuota, tierFiles, tierReads, tierBytes, tierErrors, tierHealth, tierPassthrough,
	sourceOperations, sourceBytes, sourceErrors, sourceHealth, sourcePassthrough, sourceOpenFiles,
	requests, retries, hedges, throttled, bytesReceived, hiddenKeys,
	opens, openedBytes, openHandles, readLatency,
	placements, placedBytes, prefetched, fillsInFlight, fillsBytes, fillsQueued,
}

// A collector makes metrics of a status.
type collector struct {
	status func(context.Context) control.Status
}

// New returns a collector of what status returns at the time of a scrape.
func New(status func(context.Context) control.Status) prometheus.Collector {
	return &collector{status}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	s := c.status(ctx)
	to := sink(ch)
	to.mount(&s)
	for i := range s.Tiers {
		to.tier(&s.Tiers[i])
	}
	to.source(&s.Source)
	to.reads(&s)
	to.placement(&s)
}

// A sink is where the metrics go.
type sink chan<- prometheus.Metric

func (to sink) gauge(d *prometheus.Desc, value float64, labels ...string) {
	to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

func (to sink) counter(d *prometheus.Desc, value int64, labels ...string) {
	to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
}

func (to sink) mount(s *control.Status) {
	to.gauge(buildInfo, 1, s.Milkweed, runtime.Version())
	to.gauge(mountInfo, 1, text(s.MountPoint), text(s.Source.Path), s.DatasetID, s.Mode)
	to.gauge(ready, boolean(s.Ready))
}

func (to sink) tier(t *control.Tier) {
	to.gauge(tierUsed, float64(t.UsedBytes), t.Name)
	to.gauge(tierQuota, float64(t.QuotaBytes), t.Name)
	to.gauge(tierFiles, float64(t.Files), t.Name)
	to.counter(tierReads, t.Reads, t.Name)
	to.counter(tierBytes, t.BytesRead, t.Name)
	to.counter(tierErrors, t.Errors, t.Name)
	to.gauge(tierPassthrough, boolean(t.Passthrough), t.Name)
	for _, h := range control.Healths {
		to.gauge(tierHealth, boolean(t.Health == h), t.Name, string(h))
	}
}

func (to sink) source(s *control.Source) {
	o := s.Operations
	to.counter(sourceOperations, o.Open, "open")
	to.counter(sourceOperations, o.Read, "read")
	to.counter(sourceOperations, o.Stat, "stat")
	to.counter(sourceOperations, o.Readdir, "readdir")
	to.counter(sourceOperations, o.Readlink, "readlink")
	to.counter(sourceOperations, o.Xattr, "xattr")
	to.counter(sourceBytes, s.BytesRead)
	to.counter(sourceErrors, s.Errors)
	to.gauge(sourcePassthrough, boolean(s.Passthrough))
	to.gauge(sourceOpenFiles, float64(s.Descriptors))
	if s.Requests != nil {
		to.requests(s.Requests)
	}
	if s.Health == "" {
		return
	}
	for _, h := range control.Healths {
		to.gauge(sourceHealth, boolean(s.Health == h), string(h))
	}
}

func (to sink) requests(r *control.Requests) {
	to.counter(requests, r.List, "list")
	to.counter(requests, r.Get, "get")
	to.counter(requests, r.Other, "other")
	to.counter(retries, r.Retries)
	to.counter(hedges, r.Hedges)
	to.counter(throttled, r.Throttled)
	to.counter(bytesReceived, r.BytesReceived)
	to.gauge(hiddenKeys, float64(r.HiddenKeys))
}

func (to sink) reads(s *control.Status) {
	to.byMode(opens, s.Opens)
	to.byMode(openedBytes, s.OpenedBytes)
	to.gauge(openHandles, float64(s.OpenHandles))
	for level, h := range s.ReadLatency {
		buckets := make(map[float64]uint64, len(h.LeSeconds))
		for i, le := range h.LeSeconds {
			buckets[le] = h.Counts[i]
		}
		to <- prometheus.MustNewConstHistogram(readLatency, h.Count, h.SumSeconds, buckets, level)
	}
}

// byMode sends what is counted by level and mode.
func (to sink) byMode(d *prometheus.Desc, counts map[string]map[string]int64) {
	for level, modes := range counts {
		for mode, n := range modes {
			to.counter(d, n, level, mode)
		}
	}
}

func (to sink) placement(s *control.Status) {
	to.counter(placements, s.Placement.Placed, "placed")
	to.counter(placements, s.Placement.Skipped, "skipped")
	to.counter(placements, s.Placement.Failed, "failed")
	to.counter(placedBytes, s.Placement.PlacedBytes)
	to.counter(prefetched, s.Placement.Prefetched)
	to.gauge(fillsInFlight, float64(s.Fills.InFlight))
	to.gauge(fillsBytes, float64(s.Fills.InFlightBytes))
	to.gauge(fillsQueued, float64(s.Fills.Queued))
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// text returns a path as a label, which must be UTF-8.
func text(path string) string { return strings.ToValidUTF8(path, "\uFFFD") }
