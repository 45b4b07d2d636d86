// Package rates derives what people watch from the statuses of a daemon: rates between two of them,
// and a history of rates. `milkweed top`, `milkweed status --watch` and the web page show the same
// Point, so that they agree. A Point has no names of files.
package rates

import (
	"maps"
	"slices"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
)

// Causes lists the causes of waits, in the order in which they are shown.
var Causes = []string{control.Latency, control.Bandwidth, control.FillCause, control.TierCause, control.PeersCause}

// A Point is what a daemon did in an interval, and its state at the end of it. Rates are means over
// the interval.
type Point struct {
	Time    time.Time `json:"time"`    // the end of the interval
	Seconds float64   `json:"seconds"` // its length

	Levels []Level `json:"levels"` // the tiers, the fastest first, then peers, fill and the source

	Opens      int64 `json:"opens"`       // files opened in the interval
	LocalOpens int64 `json:"local_opens"` // of them, those that a tier served

	Waits      map[string]float64 `json:"waits"`      // seconds that readers waited, per second, by cause
	Operations map[string]float64 `json:"operations"` // operations at the source per second, by kind

	PlacedFiles int64 `json:"placed_files"` // files of the dataset that have a copy in a tier
	KnownFiles  int64 `json:"known_files"`  // files of the dataset that the daemon knows
	NamesKnown  bool  `json:"names_known"`  // these are all files of the dataset

	Filling    int64   `json:"filling"`    // copies in flight
	Queued     int64   `json:"queued"`     // copies that wait for a worker
	Background int64   `json:"background"` // blocks in flight in the background
	Slowdown   float64 `json:"slowdown"`   // latency of the source, divided by that while it is idle
	Placed     float64 `json:"placed_per_second"`

	PeerBytes   float64 `json:"peer_bytes"`   // bytes received from other nodes per second
	ServedBytes float64 `json:"served_bytes"` // bytes sent to them per second
}

// A Level is what one level served in an interval, and what it holds at the end of it.
type Level struct {
	Name string `json:"name"`

	Opens       float64 `json:"opens"`       // files opened per second
	Reads       float64 `json:"reads"`       // reads through the daemon per second
	Bytes       float64 `json:"bytes"`       // bytes of these reads per second; of the source, also those for copies
	Readers     float64 `json:"readers"`     // bytes that readers got from the level through the daemon, per second
	Passthrough float64 `json:"passthrough"` // sizes of the files opened in passthrough, per second: the kernel reads them without the daemon

	Used  int64 `json:"used_bytes"` // 0 unless it is a tier
	Quota int64 `json:"quota_bytes"`
	Files int64 `json:"files"`
}

// HitRatio returns the share of the opens in the interval that a tier served. ok is false if there
// were none.
func (p Point) HitRatio() (ratio float64, ok bool) {
	return float64(p.LocalOpens) / float64(p.Opens), p.Opens > 0
}

// PlacedShare returns the share of the known files that have a copy in a tier. ok is false if no
// file is known.
func (p Point) PlacedShare() (share float64, ok bool) {
	return float64(p.PlacedFiles) / float64(p.KnownFiles), p.KnownFiles > 0
}

// Bytes returns the bytes that jobs read per second through the daemon, and the sizes of the files
// that they opened in passthrough, per second.
func (p Point) Bytes() (read, passthrough float64) {
	for _, l := range p.Levels {
		read += l.Readers
		passthrough += l.Passthrough
	}
	return read, passthrough
}

// Between returns what a daemon did between two statuses, before and after, that were taken at the
// times from and to. It returns false if they are not of the same daemon, or in the wrong order.
func Between(before, after *control.Status, from, to time.Time) (Point, bool) {
	seconds := to.Sub(from).Seconds()
	if seconds <= 0 || before.PID != after.PID || !before.Since.Equal(after.Since) {
		return Point{}, false
	}
	rate := func(before, after int64) float64 { return float64(max(after-before, 0)) / seconds }
	p := Point{
		Time: to, Seconds: seconds,
		Waits: make(map[string]float64), Operations: make(map[string]float64),
		PlacedFiles: after.Names.CopiedFiles, KnownFiles: after.Names.Files, NamesKnown: after.Names.NamesKnown(),
		Filling: after.Fills.InFlight, Queued: after.Fills.Queued,
		Background: after.Fills.Background, Slowdown: after.Fills.SourceSlowdown,
		Placed: rate(before.Placement.Placed, after.Placement.Placed),
	}
	old := levels(before)
	for _, now := range levels(after) {
		was := level{}
		if i := slices.IndexFunc(old, func(l level) bool { return l.Name == now.Name }); i >= 0 {
			was = old[i]
		}
		l := now.Level
		l.Opens, l.Reads = rate(was.opens, now.opens), rate(was.reads, now.reads)
		l.Bytes, l.Passthrough, l.Readers = rate(was.bytes, now.bytes), rate(was.passthrough, now.passthrough), rate(was.readers, now.readers)
		p.Levels = append(p.Levels, l)
		p.Opens += max(now.opens-was.opens, 0)
		if now.tier {
			p.LocalOpens += max(now.opens-was.opens, 0)
		}
	}
	for _, cause := range Causes {
		p.Waits[cause] = max(waited(after, cause)-waited(before, cause), 0) / seconds
	}
	was := Operations(before)
	for kind, n := range Operations(after) {
		p.Operations[kind] = rate(was[kind], n)
	}
	if b, a := before.Peers, after.Peers; b != nil && a != nil {
		p.PeerBytes, p.ServedBytes = rate(b.Bytes, a.Bytes), rate(b.ServedBytes, a.ServedBytes)
	}
	return p, true
}

// A level has the counters of a Level.
type level struct {
	Level
	tier                                      bool
	opens, reads, bytes, passthrough, readers int64
}

// levels returns those of a status, in the order of Point.Levels.
func levels(s *control.Status) []level {
	var all []level
	add := func(l level) {
		l.readers = s.ReadBytes[l.Name]
		for mode, n := range s.Opens[l.Name] {
			l.opens += n
			if mode == string(config.Passthrough) {
				l.passthrough = s.OpenedBytes[l.Name][mode]
			}
		}
		all = append(all, l)
	}
	for _, t := range s.Tiers {
		add(level{
			Level: Level{Name: t.Name, Used: t.UsedBytes, Quota: t.QuotaBytes, Files: t.Files},
			tier:  true, reads: t.Reads, bytes: t.Bytes,
		})
	}
	if p := s.Peers; p != nil {
		add(level{Level: Level{Name: control.PeersLevel}, reads: p.Reads, bytes: p.Bytes})
	}
	add(level{Level: Level{Name: control.FillLevel}})
	add(level{Level: Level{Name: control.SourceLevel}, reads: s.Source.Reads, bytes: s.Source.Bytes})
	return all
}

// A Total is what one level has served since the start of a daemon.
type Total struct {
	Name        string
	Tier        bool
	Opens       int64 // files opened
	Reads       int64 // reads through the daemon
	Bytes       int64 // bytes of these reads; of the source, also those for copies
	Readers     int64 // bytes that readers got from the level through the daemon
	Passthrough int64 // sizes of the files opened in passthrough
}

// Totals returns what each level has served, in the order of Point.Levels.
func Totals(s *control.Status) []Total {
	var all []Total
	for _, l := range levels(s) {
		all = append(all, Total{Name: l.Name, Tier: l.tier, Opens: l.opens, Reads: l.reads, Bytes: l.bytes, Readers: l.readers, Passthrough: l.passthrough})
	}
	return all
}

// waited returns how long readers have waited for a cause, in seconds.
func waited(s *control.Status, cause string) (seconds float64) {
	for _, w := range s.Waits {
		if w.Cause == cause {
			seconds += w.Seconds
		}
	}
	return seconds
}

// Operations returns the operations at the source, by kind. Kinds without operations are missing.
func Operations(s *control.Status) map[string]int64 {
	o := s.Source.SourceOperations
	all := map[string]int64{
		"open": o.Opens, "read": o.Reads, "stat": o.Stats, "readdir": o.ReadDirs,
		"readlink": o.Readlinks, "xattr": o.Xattrs, "acl": o.ACLs, "holes": o.Holes,
	}
	maps.DeleteFunc(all, func(_ string, n int64) bool { return n == 0 })
	return all
}
