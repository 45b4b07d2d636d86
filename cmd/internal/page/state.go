package page

import (
	"os"
	"regexp"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/rates"
	"github.com/milkweedfs/milkweed/cmd/internal/redact"
)

// A State is what the page shows. It is copied from a control.Status field by field, so that a new
// field of that, which may have names of files, does not appear here by itself.
type State struct {
	Now        int64   `json:"now"`   // in milliseconds since 1970, by the clock of the daemon
	Since      int64   `json:"since"` // start of the daemon, likewise
	Uptime     float64 `json:"uptime_seconds"`
	Host       string  `json:"host"`
	MountPoint string  `json:"mount_point"`
	DatasetID  string  `json:"dataset_id"`
	Generation string  `json:"generation,omitempty"`
	Milkweed   string  `json:"milkweed"`
	Mode       string  `json:"mode"`

	Ready     bool  `json:"ready"`
	Draining  bool  `json:"draining"`
	Elsewhere int   `json:"elsewhere"` // other mount namespaces in which it is mounted
	Crashes   int64 `json:"crashes"`
	Panics    int64 `json:"panics"`
	Stuck     int64 `json:"stuck_requests"`

	KnownFiles  int64 `json:"known_files"`
	KnownBytes  int64 `json:"known_bytes"`
	CopiedFiles int64 `json:"copied_files"`
	NamesKnown  bool  `json:"names_known"`
	Complete    bool  `json:"complete"`
	OpenHandles int64 `json:"open_handles"`

	Tiers  []Tier  `json:"tiers"`
	Levels []Level `json:"levels"` // in the order of rates.Point.Levels
	Copies Copies  `json:"copies"`
	Source Source  `json:"source"`

	Causes []string           `json:"causes"` // of waits, in the order in which they are shown
	Waits  map[string]float64 `json:"waits"`  // seconds, by cause, since the start of the daemon
	Epochs []Epoch            `json:"epochs"` // the last, the oldest first
	Peers  *Peers             `json:"peers"`  // null: there are none

	Warnings []control.Warning `json:"warnings"` // the latest last
	Points   []rates.Point     `json:"points"`   // the latest last
}

// A Tier is what a tier holds.
type Tier struct {
	Name   string         `json:"name"`
	Used   int64          `json:"used_bytes"`
	Quota  int64          `json:"quota_bytes"`
	Files  int64          `json:"files"`
	Errors int64          `json:"errors"`
	Health control.Health `json:"health"`
	Reason string         `json:"reason,omitempty"` // without names
}

// A Level is what a level has served since the start of the daemon.
type Level struct {
	Name        string `json:"name"`
	Tier        bool   `json:"tier"`
	Opens       int64  `json:"opens"`
	Reads       int64  `json:"reads"`
	Bytes       int64  `json:"bytes_read"`  // through the daemon; of the source, also those for copies
	Readers     int64  `json:"readers"`     // bytes that readers got through the daemon
	Passthrough int64  `json:"passthrough"` // sizes of the files opened in passthrough
}

// Copies are those in flight, and those that have ended.
type Copies struct {
	InFlight   int64   `json:"in_flight"`
	Queued     int64   `json:"queued"`
	Background int64   `json:"background"` // blocks
	Limit      int64   `json:"limit"`      // of background
	Slowdown   float64 `json:"slowdown"`
	Placed     int64   `json:"placed"`
	Prefetched int64   `json:"prefetched"`
	Skipped    int64   `json:"skipped"`
	Failed     int64   `json:"failed"`
}

// A Source has the counters of the source.
type Source struct {
	Bytes      int64            `json:"bytes_read"`
	Errors     int64            `json:"errors"`
	Operations map[string]int64 `json:"operations"` // by kind
}

// An Epoch is one pass of a job over its files.
type Epoch struct {
	Number  int64            `json:"number"` // 0: it is mixed
	Began   int64            `json:"began"`  // in milliseconds since 1970
	Seconds float64          `json:"seconds"`
	Ended   bool             `json:"ended"`
	Files   int64            `json:"files"`
	Opens   int64            `json:"opens"`
	Local   int64            `json:"local_opens"` // of opens, those that a tier served
	Bytes   map[string]int64 `json:"bytes"`       // that readers got, by level; of files opened in passthrough, their sizes
	Waited  float64          `json:"waited_seconds"`
}

// Peers are the other nodes.
type Peers struct {
	Self  string `json:"self"`
	Total int64  `json:"total"` // nodes in the roster
	Up    int64  `json:"up"`    // other nodes that reads use
	Nodes []Node `json:"nodes"` // none if the roster has more than control.MaxListedPeers
}

// A Node is one of the other nodes.
type Node struct {
	Name      string `json:"name"`
	Up        bool   `json:"up"`
	Read      int64  `json:"read_bytes"`
	Served    int64  `json:"served_bytes"`
	Failovers int64  `json:"failovers"`
}

// shownEpochs is the number of epochs that the page shows.
const shownEpochs = 8

// newState returns the State of s, without Points.
func newState(s *control.Status, now time.Time) State {
	state := State{
		Now: now.UnixMilli(), Since: s.Since.UnixMilli(), Uptime: s.UptimeSeconds,
		Host: hostname(), MountPoint: s.MountPoint, DatasetID: s.DatasetID, Generation: s.Generation,
		Milkweed: s.Milkweed, Mode: s.Mode,
		Ready: s.Ready, Draining: s.Draining, Elsewhere: len(s.Elsewhere),
		Crashes: s.Crashes, Panics: s.Panics, Stuck: s.StuckRequests,
		KnownFiles: s.Names.Files, KnownBytes: s.Names.Bytes, CopiedFiles: s.Names.CopiedFiles,
		NamesKnown: s.Names.NamesKnown(), Complete: s.Names.Complete, OpenHandles: s.OpenHandles,
		Copies: Copies{
			InFlight: s.Fills.InFlight, Queued: s.Fills.Queued,
			Background: s.Fills.Background, Limit: s.Fills.BackgroundLimit, Slowdown: s.Fills.SourceSlowdown,
			Placed: s.Placement.Placed, Prefetched: s.Placement.Prefetched, Skipped: s.Placement.Skipped, Failed: s.Placement.Failed,
		},
		Source: Source{Bytes: s.Source.Bytes, Errors: s.Source.Errors, Operations: rates.Operations(s)},
		Tiers:  []Tier{}, Levels: []Level{}, Epochs: []Epoch{},
		Causes: rates.Causes, Waits: make(map[string]float64),
		Warnings: s.Warnings,
	}
	for _, t := range s.Tiers {
		state.Tiers = append(state.Tiers, Tier{
			Name: t.Name, Used: t.UsedBytes, Quota: t.QuotaBytes, Files: t.Files, Errors: t.Errors,
			Health: t.Health, Reason: reason(t.Reason),
		})
	}
	for _, l := range rates.Totals(s) {
		state.Levels = append(state.Levels, Level(l))
	}
	for _, w := range s.Waits {
		state.Waits[w.Cause] += w.Seconds
	}
	for i := max(0, len(s.Epochs)-shownEpochs); i < len(s.Epochs); i++ {
		state.Epochs = append(state.Epochs, epoch(s, i))
	}
	if p := s.Peers; p != nil {
		state.Peers = &Peers{Self: p.Self, Total: p.Roster.Nodes, Up: p.Up, Nodes: []Node{}}
		for _, n := range p.Nodes {
			state.Peers.Nodes = append(state.Peers.Nodes, Node{Name: n.Name, Up: n.Up, Read: n.Bytes, Served: n.ServedBytes, Failovers: n.Failovers})
		}
	}
	return state
}

// epoch returns epoch i of s.
func epoch(s *control.Status, i int) Epoch {
	e := s.Epochs[i]
	shown := Epoch{
		Number: s.EpochNumber(i), Began: e.Began.UnixMilli(), Seconds: e.Seconds, Ended: e.Ended, Files: e.Files,
		Bytes: make(map[string]int64),
	}
	shown.Local, shown.Opens = s.LocalOpens(e)
	for _, o := range e.Opens {
		shown.Bytes[o.Level] += o.Read + o.Passthrough
	}
	for _, w := range e.Waits {
		shown.Waited += w.Seconds
	}
	return shown
}

// slow matches the reason of a tier that is slow.
var slow = regexp.MustCompile(`^slow: reads take [0-9.hmnµs]+, those of the source [0-9.hmnµs]+$`)

// reason returns the reason why a tier is not healthy, without the names of its files.
func reason(text string) string {
	if text == "" || slow.MatchString(text) {
		return text
	}
	if cause := redact.Cause(text); cause != "" {
		return cause
	}
	return "the log has the reason"
}

// hostname returns the name of this machine, or "" if it has none.
func hostname() string {
	name, _ := os.Hostname() // the page does without
	return name
}
