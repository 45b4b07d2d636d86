package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/drivers/blob"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/placement"
	"github.com/milkweedfs/milkweed/tiers"
)

// StatusVersion is the version of the schema of Status. A release may add a field without a
// new version. A release that removes a field or changes its meaning has a new version.
const StatusVersion = 1

// Status is the JSON that `milkweed status --json` prints. The metrics are made from it.
// Names of sizes end in "_bytes" and names of times in "_seconds". Counters start at 0 when
// the daemon starts, and only grow.
//
// The tags of a field are its documentation; Walk interprets them. The list of fields in the
// help of `milkweed status`, the metrics and the table in docs/operations.md are generated
// from them:
//
//	json    the name in the JSON
//	help    the meaning of the field, one or more sentences
//	metric  the name of the metric, without the prefix "milkweed_"
//	labels  the labels of the metric, separated by commas: "name=value" or "name". The
//	        value of a bare name is the key of the map, the state of a Health, or the string
//	        itself.
//	family  the meaning of a metric that several fields share; on the first of them
//	label   on a string field: a label of all metrics of its struct
type Status struct {
	Version        int       `json:"version" help:"Version of this schema."`
	Milkweed       string    `json:"milkweed" metric:"build_info" labels:"version" help:"Version of the daemon." family:"Always 1. The labels are the versions of the daemon and of Go."`
	GoVersion      string    `json:"go_version" metric:"build_info" labels:"goversion" help:"Version of the Go toolchain that built the daemon."`
	PID            int       `json:"pid" help:"Process ID of the daemon."`
	MountPoint     string    `json:"mount_point" metric:"mount_info" labels:"mount_point" help:"Directory where the dataset is mounted." family:"Always 1. The labels describe the mount."`
	DatasetID      string    `json:"dataset_id" metric:"mount_info" labels:"dataset_id" help:"Name of the dataset's directory in each tier."`
	Generation     string    `json:"generation,omitempty" metric:"mount_info" labels:"generation" help:"The generation of the dataset that the mount shows. Absent if the source has none."`
	GenerationGone bool      `json:"generation_gone,omitempty" metric:"generation_gone" help:"Whether the source no longer had this generation when it was last asked. Files with a complete copy stay readable."`
	Mode           string    `json:"mode" metric:"mount_info" labels:"mode" help:"How the kernel reads: cached, stateless or passthrough."`
	ModeReason     string    `json:"mode_reason" help:"Why this mode was chosen."`
	Since          time.Time `json:"since" help:"Start time of the daemon."`
	UptimeSeconds  float64   `json:"uptime_seconds" help:"Time since the start of the daemon."`
	Ready          bool      `json:"ready" metric:"ready" help:"Whether the mount can be used."`

	WhileLocked string `json:"while_locked,omitempty" help:"The file of mount --while-locked: when no process has a lock on it, the mount ends. Absent without it."`

	Draining  bool              `json:"draining" metric:"draining" help:"Whether the mount is unmounted where it was mounted, and is in use in other mount namespaces. The daemon then reads from the source only, and ends when the mount is idle."`
	Elsewhere []procs.Namespace `json:"elsewhere,omitempty" help:"While draining: the mount namespaces in which it is still mounted."`

	Names                Names                       `json:"names" help:"What the daemon knows of the dataset, and what of it has copies on this node."`
	Source               Source                      `json:"source" help:"The storage that holds the whole dataset."`
	Tiers                []Tier                      `json:"tiers" help:"The tiers, the fastest first."`
	Peers                *Peers                      `json:"peers,omitempty" help:"The nodes that share their tiers. Absent without peers."`
	Sweep                metadata.SweepCounters      `json:"sweep" help:"The background comparison of what is in use with the source (mount.consistency)."`
	Fills                placement.Fills             `json:"fills" help:"Copies in flight."`
	Placement            placement.Counters          `json:"placement" help:"Copies that have ended."`
	Plan                 placement.PlanStats         `json:"plan" help:"The plans that jobs have given, or for a user who is neither root nor the owner of the mount, that of this user."`
	Exchange             placement.ExchangeStats     `json:"exchange" help:"Partial local shuffling."`
	Window               placement.WindowStats       `json:"window" help:"The share of the fastest tier for planned files without permanent room."`
	Scrub                placement.ScrubStats        `json:"scrub" help:"Verification of all copies."`
	Opens                map[string]map[string]int64 `json:"opens" metric:"opens_total" labels:"level,mode" help:"Opens of files, by level and mode. The level is the tier that served the open, source, or fill if the copy was in flight."`
	OpenedBytes          map[string]map[string]int64 `json:"opened_bytes" metric:"opened_bytes_total" labels:"level,mode" help:"Sizes of the files opened, by level and mode. The daemon does not see the reads of mode passthrough, only the opens."`
	ReadBytes            map[string]int64            `json:"read_bytes" metric:"reader_bytes_total" labels:"level" help:"Bytes that readers got from the daemon, by level. The reads of mode passthrough are missing: for them, opened_bytes has the sizes of the files."`
	Usage                placement.Usage             `json:"usage" help:"How readers have used the mount since the daemon started. Reads in passthrough and from the page cache do not reach the daemon."`
	Waits                []Wait                      `json:"waits" help:"How long readers have waited, by level and cause. Reads in passthrough and from the page cache do not reach the daemon."`
	Epochs               []Epoch                     `json:"epochs" help:"The last 16 epochs, the oldest first, and the one that goes on. An epoch is recognized by its opens, from 8 files on."`
	EpochsEnded          int64                       `json:"epochs_ended" metric:"epochs_total" help:"Epochs that have ended, without mixed ones."`
	Crashes              int64                       `json:"crashes" metric:"crashes_total" help:"Crashes of earlier daemons of this mount, after each of which the supervisor has mounted again (mount --supervise)."`
	Panics               int64                       `json:"panics" metric:"panics_total" help:"Panics in the daemon that failed one operation, or one piece of background work, instead of the daemon. Each is a bug; the log has its stack."`
	LogLost              int64                       `json:"log_lost" metric:"log_lost_total" help:"Messages that are missing in the log, because it could not be written: its disk was full, or did not answer."`
	StuckRequests        int64                       `json:"stuck_requests" metric:"requests_stuck" help:"Requests of the kernel that have waited for more than a minute, such as for a source that hangs. The log has their stacks."`
	OldestRequestSeconds float64                     `json:"oldest_request_seconds" metric:"request_oldest_seconds" help:"Age of the oldest request of the kernel in flight."`
	WaitingCalls         int64                       `json:"waiting_calls" metric:"calls_waiting" help:"Calls of the source and the tiers that wait for others to end, because each may need a thread, and a limit of processes (ulimit -u, pids.max) permits no more. Cached names, and copies in tiers that answer, are read meanwhile."`
	OpenHandles          int64                       `json:"open_handles" metric:"open_handles" help:"Handles of the mount that are open now."`
	Warnings             []Warning                   `json:"warnings" help:"The last 16 different warnings and errors of the log, the latest last. They have no names of files; the log has."`
	ReadLatency          map[string]Histogram        `json:"read_latency" metric:"read_duration_seconds" labels:"level" help:"Duration of reads in the daemon, by the level that served them."`
}

// The names of levels that are no tiers, such as in Status.Opens.
const (
	SourceLevel = "source"
	PeersLevel  = "peers" // the other nodes
	FillLevel   = "fill"  // copies in flight
)

// Health is the state of a tier.
type Health string

// The states of health.
const (
	Healthy  Health = "healthy"  // operations succeed
	Degraded Health = "degraded" // operations failed lately; it is still used
	Down     Health = "down"     // it is not used; it is probed until it is healthy
	Full     Health = "full"     // its device has no room for more copies, although its quota has
	Scanning Health = "scanning" // it is healthy, and the scan of its earlier copies has not ended
)

// Healths lists every Health.
var Healths = []Health{Healthy, Degraded, Down, Full, Scanning}

// A Tier describes a directory that holds copies.
type Tier struct {
	Level      int    `json:"level" help:"Position of the tier. 1 is the fastest."`
	Name       string `json:"name" label:"tier" help:"Name of the tier in the configuration."`
	Path       string `json:"path" help:"Directory of the tier."`
	QuotaBytes int64  `json:"quota_bytes" metric:"tier_quota_bytes" help:"Most bytes that copies in the tier may occupy. 0 until the tier is scanned."`
	UsedBytes  int64  `json:"used_bytes" metric:"tier_used_bytes" help:"Bytes that copies in the tier occupy. Space reserved for copies in flight is included."`
	Files      int64  `json:"files" metric:"tier_files" help:"Copies in the tier."`

	tiers.TierCounters

	Health Health `json:"health" metric:"tier_health" labels:"state" help:"Health of the tier: healthy, degraded, down, full or scanning. The metric is 1 for the current state and 0 for the others."`
	Reason string `json:"reason,omitempty" help:"Why the tier is not healthy."`

	Passthrough       bool   `json:"passthrough" metric:"tier_passthrough" help:"Whether passthrough is on: the kernel reads the copies in the tier directly."`
	PassthroughReason string `json:"passthrough_reason,omitempty" help:"Why passthrough is off."`
}

// Names describe what the daemon knows of the dataset, and what of it has copies on this node. The
// daemon knows a directory once it is listed, and forgets nothing that the source still has.
type Names struct {
	Entries int64 `json:"entries" metric:"names" help:"Names of files, directories and links that are loaded."`

	placement.Coverage
}

// A Warning is a message in the log of the daemon, of level WARN or ERROR.
type Warning struct {
	Time    time.Time `json:"time" help:"When it was logged last."`
	Level   string    `json:"level" help:"WARN or ERROR."`
	Message string    `json:"message" help:"The message."`
	Tier    string    `json:"tier,omitempty" help:"The tier that it concerns."`
	Count   int64     `json:"count" help:"How often it was logged since it was first one of the last 16."`
}

// A Source describes the storage that holds the whole dataset.
type Source struct {
	Path string `json:"path" metric:"mount_info" labels:"source" help:"Directory or URL of the source."`

	Manifest string `json:"manifest,omitempty" help:"The manifest that has the names of the source (source.manifest). Absent if there is none."`

	tiers.SourceCounters

	IdleHandles int64 `json:"idle_handles" metric:"source_idle_handles" help:"Files of the source in the idle-handle cache."`

	GranularitySeconds float64 `json:"granularity_seconds" metric:"source_granularity_seconds" help:"Granularity of the times of the source. 0: versions identify the content of files."`
	RacyWindowSeconds  float64 `json:"racy_window_seconds" metric:"source_racy_window_seconds" help:"Files that changed more recently are not copied yet: the granularity and source.clock_skew."`
	RacyFiles          int64   `json:"racy_files" metric:"source_racy_files" help:"Files that were opened, and are not copied yet because they changed recently."`
	RacySeen           int64   `json:"racy_files_seen" metric:"source_racy_files_seen_total" help:"Versions of files that had changed recently when they were to be copied, since the daemon started. They were read from the source for a time."`
	ClockAheadSeconds  float64 `json:"clock_ahead_seconds" metric:"source_clock_ahead_seconds" help:"By how much the change time of a file was in the future when it was opened, at most: the clock of the source is ahead of that of this machine. 0 if none was."`

	Requests *blob.Stats `json:"requests,omitempty" help:"Requests to the object store. Absent unless the source is a bucket."`

	Passthrough       bool   `json:"passthrough" metric:"source_passthrough" help:"Whether passthrough is on for the files for which no tier has room: the kernel reads them directly."`
	PassthroughReason string `json:"passthrough_reason,omitempty" help:"Why passthrough is off."`
}

// A Histogram is a distribution of durations. Counts are cumulative, as in Prometheus:
// Counts[i] operations took at most LeSeconds[i].
type Histogram struct {
	LeSeconds  []float64 `json:"le_seconds" help:"Upper bounds of the buckets, ascending."`
	Counts     []uint64  `json:"counts" help:"Operations within each bound. Counts are cumulative."`
	SumSeconds float64   `json:"sum_seconds" help:"Total duration of all operations."`
	Count      uint64    `json:"count" help:"Number of all operations."`
}

// DecodeStatus decodes and checks a Status. It ignores unknown fields, because a newer daemon
// may have added some.
func DecodeStatus(p []byte) (Status, error) {
	var s Status
	if err := json.Unmarshal(p, &s); err != nil {
		return Status{}, fmt.Errorf("status: %w", err)
	}
	if err := s.check(); err != nil {
		return Status{}, fmt.Errorf("status: %w", err)
	}
	return s, nil
}

func (s *Status) check() error {
	switch {
	case s.Version != StatusVersion:
		return fmt.Errorf("version is %d, not %d: the daemon and this command are not of the same release", s.Version, StatusVersion)
	case s.PID <= 0:
		return fmt.Errorf("pid is %d", s.PID)
	case s.MountPoint == "":
		return errors.New("mount_point is missing")
	case s.UptimeSeconds < 0:
		return fmt.Errorf("uptime_seconds is %g", s.UptimeSeconds)
	}
	for i, t := range s.Tiers {
		if err := t.check(); err != nil {
			return fmt.Errorf("tiers[%d]: %w", i, err)
		}
	}
	if s.Peers != nil {
		if err := s.Peers.check(); err != nil {
			return fmt.Errorf("peers: %w", err)
		}
	}
	for level, h := range s.ReadLatency {
		if err := h.check(); err != nil {
			return fmt.Errorf("read_latency of %q: %w", level, err)
		}
	}
	return nil
}

func (t *Tier) check() error {
	switch {
	case t.Level < 1:
		return fmt.Errorf("level is %d", t.Level)
	case t.Name == "":
		return errors.New("name is missing")
	case t.QuotaBytes < 0 || t.UsedBytes < 0:
		return fmt.Errorf("used_bytes is %d of quota_bytes %d", t.UsedBytes, t.QuotaBytes)
	case !slices.Contains(Healths, t.Health):
		return fmt.Errorf("health is %q", t.Health)
	}
	return nil
}

func (h *Histogram) check() error {
	if len(h.LeSeconds) != len(h.Counts) {
		return fmt.Errorf("%d bounds, %d counts", len(h.LeSeconds), len(h.Counts))
	}
	for i := range h.Counts {
		if h.Counts[i] > h.Count {
			return fmt.Errorf("counts[%d] is %d, of %d", i, h.Counts[i], h.Count)
		}
		if i > 0 && (h.LeSeconds[i] <= h.LeSeconds[i-1] || h.Counts[i] < h.Counts[i-1]) {
			return fmt.Errorf("bounds or counts do not ascend at %d", i)
		}
	}
	return nil
}
