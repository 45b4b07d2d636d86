package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// StatusVersion is the version of the schema of Status. A field may be added
// without a new one; nothing is removed, and nothing changes its meaning.
const StatusVersion = 1

// Status is what `milkweed status --json` prints and the metrics are made of.
// Sizes are in bytes and times in seconds, and the names of the fields say so.
// What counts starts at zero with the daemon and only grows.
type Status struct {
	Version       int       `json:"version"`        // StatusVersion
	Milkweed      string    `json:"milkweed"`       // the version of the program
	PID           int       `json:"pid"`            // the process id of the daemon
	MountPoint    string    `json:"mount_point"`    // where the dataset is mounted
	DatasetID     string    `json:"dataset_id"`     // the name of its folder in every tier
	Mode          string    `json:"mode"`           // how the kernel is served: cached, stateless or passthrough
	ModeReason    string    `json:"mode_reason"`    // why in this mode
	Since         time.Time `json:"since"`          // when the daemon started
	UptimeSeconds float64   `json:"uptime_seconds"` // how long ago that is
	Ready         bool      `json:"ready"`          // the mount can be used

	Source      Source                      `json:"source"`       // where the whole dataset lives
	Tiers       []Tier                      `json:"tiers"`        // fastest first
	Fills       Fills                       `json:"fills"`        // copies in flight
	Placement   Placement                   `json:"placement"`    // copies that have ended
	Opens       map[string]map[string]int64 `json:"opens"`        // opens by level ("ram", "ssd", "source"), then by mode
	OpenedBytes map[string]map[string]int64 `json:"opened_bytes"` // the sizes of the files opened, alike: reads in passthrough are not counted
	OpenHandles int64                       `json:"open_handles"` // files that are open now
	ReadLatency map[string]Histogram        `json:"read_latency"` // how long reads took, by level
}

// Health says whether a tier or the source can be used.
type Health string

// The states of health.
const (
	Well     Health = "well"     // it works
	Suspect  Health = "suspect"  // it failed a short while ago, and is used nevertheless
	Down     Health = "down"     // it is not used, and probed until it is well
	Counting Health = "counting" // what it holds from before is still being counted
)

// Healths lists every Health, well first.
var Healths = []Health{Well, Suspect, Down, Counting}

// A Tier is a place that holds copies.
type Tier struct {
	Level      int    `json:"level"`            // 1 is the fastest
	Name       string `json:"name"`             // as it is configured
	Path       string `json:"path"`             // the folder
	QuotaBytes int64  `json:"quota_bytes"`      // what the copies may take
	UsedBytes  int64  `json:"used_bytes"`       // what the copies take, with those in flight
	Files      int64  `json:"files"`            // copies that it holds
	Reads      int64  `json:"reads"`            // reads that it answered
	BytesRead  int64  `json:"bytes_read"`       // bytes that it answered them with
	Errors     int64  `json:"errors"`           // operations that failed
	Health     Health `json:"health"`           // whether it can be used
	Reason     string `json:"reason,omitempty"` // why it is not well

	Passthrough       bool   `json:"passthrough"`                  // the kernel reads its copies by itself
	PassthroughReason string `json:"passthrough_reason,omitempty"` // why it does not
}

// Source is where the whole dataset lives.
type Source struct {
	Path        string     `json:"path"`             // the folder or URL
	Health      Health     `json:"health,omitempty"` // whether it can be read, where that is known
	Reason      string     `json:"reason,omitempty"` // why it is not well
	Operations  Operations `json:"operations"`       // what it was asked
	BytesRead   int64      `json:"bytes_read"`       // bytes that it answered
	Errors      int64      `json:"errors"`           // operations that failed
	Descriptors int64      `json:"descriptors"`      // files of it that are kept open for the next to read them

	Requests *Requests `json:"requests,omitempty"` // what its server was asked; nil unless it is a bucket

	Passthrough       bool   `json:"passthrough"`                  // the kernel reads by itself those of its files that have no tier to go to
	PassthroughReason string `json:"passthrough_reason,omitempty"` // why it does not
}

// Operations counts what the source was asked, by kind.
type Operations struct {
	Open     int64 `json:"open"`
	Read     int64 `json:"read"`
	Stat     int64 `json:"stat"`
	Readdir  int64 `json:"readdir"`
	Readlink int64 `json:"readlink"`
	Xattr    int64 `json:"xattr"`
}

// Requests counts what the server of a bucket was asked, which costs money.
type Requests struct {
	List          int64 `json:"list"`           // for a page of names
	Get           int64 `json:"get"`            // for content
	Other         int64 `json:"other"`          // for anything else: credentials, mostly
	Retries       int64 `json:"retries"`        // of them, those sent again after an error
	Hedges        int64 `json:"hedges"`         // of them, those sent because another had not begun to answer
	Throttled     int64 `json:"throttled"`      // answers that asked to slow down
	BytesReceived int64 `json:"bytes_received"` // of content
	HiddenKeys    int64 `json:"hidden_keys"`    // keys that no file system can show, in the directories that were listed: a number of now
}

// Total is the number of all requests.
func (r Requests) Total() int64 { return r.List + r.Get + r.Other }

// Total is the number of all operations.
func (o Operations) Total() int64 {
	return o.Open + o.Read + o.Stat + o.Readdir + o.Readlink + o.Xattr
}

// Fills are the copies in flight.
type Fills struct {
	InFlight      int64 `json:"in_flight"`       // fills that have started
	InFlightBytes int64 `json:"in_flight_bytes"` // the sizes of their files
	Queued        int64 `json:"queued"`          // files that wait for a worker
}

// Placement counts how files were placed.
type Placement struct {
	Placed      int64 `json:"placed"`       // copies made
	PlacedBytes int64 `json:"placed_bytes"` // their sizes
	Prefetched  int64 `json:"prefetched"`   // of them, those begun before anybody opened the file
	Skipped     int64 `json:"skipped"`      // files that no tier had room for
	Failed      int64 `json:"failed"`       // copies that came to nothing
}

// A Histogram tells how long things took. Counts are cumulative, as those of
// Prometheus: Counts[i] things took LeSeconds[i] or less.
type Histogram struct {
	LeSeconds  []float64 `json:"le_seconds"`  // upper bounds, ascending
	Counts     []uint64  `json:"counts"`      // one for each bound
	SumSeconds float64   `json:"sum_seconds"` // how long all of them took together
	Count      uint64    `json:"count"`       // how many there were, those above the last bound too
}

// DecodeStatus decodes a Status and checks that it makes sense. It accepts
// fields that it does not know, since a newer daemon may say more.
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
	if s.Source.Health != "" && !slices.Contains(Healths, s.Source.Health) {
		return fmt.Errorf("source: health is %q", s.Source.Health)
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
