package control

import (
	"slices"
	"time"
)

// A Wait is how long readers waited at one level for one cause.
type Wait struct {
	Level   string  `json:"level" label:"level" help:"What they waited for: source, the name of a tier, fill for what another reader or a worker had requested before, or peers."`
	Cause   string  `json:"cause" label:"cause" help:"latency, until the source answers; bandwidth, for the rest of a read at the source; fill; tier; or peers."`
	Waits   int64   `json:"waits" metric:"reader_waits_total" help:"Number of waits. A read at the source may count as a wait for its latency and as one for its bandwidth."`
	Seconds float64 `json:"seconds" metric:"reader_wait_seconds_total" help:"Duration of all waits. Requests of the kernel that wait at the same time count each."`
}

// The causes of waits.
const (
	Latency    = "latency"
	Bandwidth  = "bandwidth"
	FillCause  = "fill"
	TierCause  = "tier"
	PeersCause = "peers"
)

// An Epoch is one pass of a job over its files.
type Epoch struct {
	Began   time.Time    `json:"began" help:"Time of its first open."`
	Seconds float64      `json:"seconds" help:"Time until the first open of the next epoch, or until the last open if none has begun."`
	Ended   bool         `json:"ended" help:"Whether another epoch has begun."`
	Mixed   bool         `json:"mixed" help:"Whether files were opened again before the others were opened. Several jobs then read the dataset, or one reads at random, and epochs are not recognizable."`
	Files   int64        `json:"files" help:"Files opened, each counted once."`
	Opens   []EpochOpens `json:"opens" help:"Its opens by level."`
	Waits   []EpochWait  `json:"waits" help:"How long readers waited in it, by level and cause."`
}

// LocalOpens returns how many opens of an epoch a tier served, and the number of all.
func (s *Status) LocalOpens(e Epoch) (local, all int64) {
	for _, o := range e.Opens {
		all += o.Opens
		if slices.ContainsFunc(s.Tiers, func(t Tier) bool { return t.Name == o.Level }) {
			local += o.Opens
		}
	}
	return local, all
}

// EpochNumber returns the number of Epochs[i], from 1. A mixed one has none: it is 0.
func (s *Status) EpochNumber(i int) int64 {
	if s.Epochs[i].Mixed {
		return 0
	}
	n := s.EpochsEnded
	for _, e := range s.Epochs[i:] {
		if e.Ended && !e.Mixed {
			n--
		}
	}
	return n + 1
}

// EpochOpens are the opens of an epoch on one level.
type EpochOpens struct {
	Level string `json:"level" help:"The tier that served the opens, source, or fill if the copies were in flight."`
	Opens int64  `json:"opens" help:"Number of opens."`
	Bytes int64  `json:"opened_bytes" help:"Sizes of the files opened."`
	Read  int64  `json:"read_bytes" help:"Bytes that readers got from the daemon."`

	Passthrough int64 `json:"passthrough_bytes" help:"Sizes of those of the files that were opened in passthrough. The daemon does not see their reads."`
}

// An EpochWait is a Wait within an epoch.
type EpochWait struct {
	Level   string  `json:"level" help:"As in waits."`
	Cause   string  `json:"cause" help:"As in waits."`
	Waits   int64   `json:"waits" help:"Number of waits."`
	Seconds float64 `json:"seconds" help:"Duration of all waits."`
}
