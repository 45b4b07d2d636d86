// Package bench is what a benchmark computes: the workloads it emulates, the
// statistics of what was timed, and the results as a table and as a picture. It
// reads no files and starts nothing.
package bench

import "time"

// A Report is what one run of the benchmark measured.
type Report struct {
	Date             time.Time `json:"date"`
	Version          string    `json:"version"` // of Milkweed, with that of Go
	Rclone           string    `json:"rclone"`  // its version, or why it is left out
	Kernel           string    `json:"kernel"`
	CPUs             int       `json:"cpus"`
	MemoryBytes      int64     `json:"memory_bytes"`
	Command          string    `json:"command"`
	Scale            float64   `json:"scale"`
	Runs             int       `json:"runs"`                       // of each side of a case
	LatencySeconds   float64   `json:"latency_seconds"`            // of each operation of the source
	SourceBandwidth  int64     `json:"bandwidth_bytes_per_second"` // of the source, for all its readers
	SourceBehaviour  string    `json:"source_behaviour"`           // in words
	TierFolder       string    `json:"tier_folder"`                // what the tiers are made in, and the native files
	TierFileSystem   string    `json:"tier_file_system"`
	Groups           []Group   `json:"groups"`
	TemporaryFolders []string  `json:"temporary_folders"` // removed at the end
}

// A Group is cases with the same sides.
type Group struct {
	Name    string   `json:"name"`
	Caption []string `json:"caption"`  // what is measured, and how
	LeftOut []string `json:"left_out"` // the sides that are not there, and why
	Cases   []Case   `json:"cases"`
}

// A Unit is what the value of a case is in.
type Unit string

// The units.
const (
	Throughput Unit = "GB/s" // bytes by time
	Latency    Unit = "µs"   // time by operations
	Duration   Unit = "s"    // time
)

// A Case is one thing that is done by way of several sides.
type Case struct {
	Name       string   `json:"name"`
	Unit       Unit     `json:"unit"`
	Bytes      int64    `json:"bytes"`      // that a run reads, or whose sizes it finds
	Operations int64    `json:"operations"` // that a run does
	Results    []Result `json:"results"`    // of each side
}

// A Run is one run of a side.
type Run struct {
	Seconds     float64    `json:"seconds"`
	Utilization float64    `json:"utilization,omitempty"` // of the accelerator, up to 1; 0 where there is none
	Source      *SourceUse `json:"source,omitempty"`      // nil where there is no source
}

// SourceUse is what the source was asked.
type SourceUse struct {
	Operations    int64 `json:"operations"` // of all kinds
	Opens         int64 `json:"opens"`
	Bytes         int64 `json:"bytes"`          // that it answered
	UnplacedBytes int64 `json:"unplaced_bytes"` // of the dataset, that nothing local had before
}

// A Result is what the runs of a side come to.
type Result struct {
	Side        string            `json:"side"`
	Value       float64           `json:"value"` // of the median run, in the unit of the case
	Seconds     Spread            `json:"seconds"`
	Ratios      map[string]Spread `json:"ratios"` // time by time of another side, pair by pair: below 1 is faster
	Utilization *Spread           `json:"utilization,omitempty"`
	Source      *SourceUse        `json:"source,omitempty"` // of the median run
	Runs        []Run             `json:"runs"`
}

// The sides that others are compared with.
const (
	Native = "native" // the files on the tier's file system
	Direct = "direct" // the source itself
	Rclone = "rclone" // rclone mount with a full cache

	// StageIn is the script that copies before it trains. Nothing is compared with it.
	StageIn = "stage-in"
)

var bases = []string{Native, Direct, Rclone}

// A Side is the runs of one way to do a case, in the order of time.
type Side struct {
	Name string
	Runs []Run
}

// NewCase computes the results of a case, of which every side has the same number
// of runs, one or more.
func NewCase(name string, unit Unit, bytes, operations int64, sides []Side) Case {
	c := Case{Name: name, Unit: unit, Bytes: bytes, Operations: operations}
	for _, s := range sides {
		r := Result{Side: s.Name, Seconds: spread(seconds(s.Runs)), Ratios: make(map[string]Spread), Runs: s.Runs}
		r.Value = c.value(r.Seconds.Median)
		r.Utilization = utilizations(s.Runs)
		r.Source = medianSource(s.Runs)
		for _, other := range sides {
			if other.Name != s.Name && isBase(other.Name) {
				r.Ratios[other.Name] = ratio(seconds(s.Runs), seconds(other.Runs))
			}
		}
		c.Results = append(c.Results, r)
	}
	return c
}

// value is a time in the unit of the case.
func (c *Case) value(seconds float64) float64 {
	switch c.Unit {
	case Throughput:
		return float64(c.Bytes) / seconds / 1e9
	case Latency:
		return seconds / float64(c.Operations) * 1e6
	default:
		return seconds
	}
}
