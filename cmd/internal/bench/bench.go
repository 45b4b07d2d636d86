// Package bench defines the workloads of a benchmark, computes statistics from
// its measurements, and formats the results as a table and as an SVG picture. It
// reads no files and starts no processes.
package bench

import "time"

// A Report is the result of a benchmark.
type Report struct {
	Date             time.Time `json:"date"`
	Version          string    `json:"version"` // of Milkweed and of Go
	Rclone           string    `json:"rclone"`  // version, or the reason why it is left out
	Kernel           string    `json:"kernel"`
	CPUs             int       `json:"cpus"`
	MemoryBytes      int64     `json:"memory_bytes"`
	Command          string    `json:"command"`
	Scale            float64   `json:"scale"`
	Runs             int       `json:"runs"`                       // of each side of a case
	LatencySeconds   float64   `json:"latency_seconds"`            // of each operation of the source
	SourceBandwidth  int64     `json:"bandwidth_bytes_per_second"` // of all readers of the source
	SourceBehaviour  string    `json:"source_behaviour"`           // a sentence about its caches
	TierFolder       string    `json:"tier_folder"`                // of the tiers and the native files
	TierFileSystem   string    `json:"tier_file_system"`
	Groups           []Group   `json:"groups"`
	TemporaryFolders []string  `json:"temporary_folders"` // removed at the end
}

// A Group is a set of cases with the same sides.
type Group struct {
	Name    string   `json:"name"`
	Caption []string `json:"caption"`  // lines that explain the measurement
	LeftOut []string `json:"left_out"` // "SIDE: REASON" for each side that is not measured
	Cases   []Case   `json:"cases"`
}

// A Unit is the unit of a value.
type Unit string

// The units.
const (
	Throughput Unit = "GB/s" // bytes per time
	Latency    Unit = "µs"   // time per operation
	Duration   Unit = "s"    // time
)

// A Case is one measurement, done on several sides.
type Case struct {
	Name       string   `json:"name"`
	Unit       Unit     `json:"unit"`
	Bytes      int64    `json:"bytes"`             // total size of the files that a run reads or stats
	Operations int64    `json:"operations"`        // operations of a run
	Samples    int64    `json:"samples,omitempty"` // that a training reads in a run; 0 for none
	Results    []Result `json:"results"`           // of each side
}

// A Run is one measurement of a side.
type Run struct {
	Seconds     float64    `json:"seconds"`
	Utilization float64    `json:"utilization,omitempty"` // of the accelerator, up to 1; 0 for none
	Source      *SourceUse `json:"source,omitempty"`      // nil if the side has no source
	Waits       *Waits     `json:"waits,omitempty"`       // nil if the side does not measure them
}

// Waits are how long the readers waited, by cause, summed over the readers. The causes are those of
// `milkweed status`.
type Waits struct {
	Latency   float64 `json:"latency_seconds"`
	Bandwidth float64 `json:"bandwidth_seconds"`
	Fill      float64 `json:"fill_seconds"`
	Tier      float64 `json:"tier_seconds"`
}

// SourceUse counts the operations of the source.
type SourceUse struct {
	Operations    int64 `json:"operations"` // of all kinds
	Opens         int64 `json:"opens"`
	Bytes         int64 `json:"bytes"`          // bytes read
	UnplacedBytes int64 `json:"unplaced_bytes"` // bytes of the dataset that had no local copy before
}

// A Result summarises the runs of a side.
type Result struct {
	Side    string  `json:"side"`
	Value   float64 `json:"value"` // of the median run, in the unit of the case
	Seconds Spread  `json:"seconds"`
	// Ratios has, by the name of another side, the time divided by the time of that
	// side, in pairs of runs. A ratio below 1 is faster.
	Ratios      map[string]Spread `json:"ratios"`
	Utilization *Spread           `json:"utilization,omitempty"`
	Source      *SourceUse        `json:"source,omitempty"` // of the median run
	Waits       *Waits            `json:"waits,omitempty"`  // mean of the runs
	Runs        []Run             `json:"runs"`
}

// The sides other than Milkweed.
const (
	Native  = "native"   // the files on the file system of the tiers
	Direct  = "direct"   // the source
	Rclone  = "rclone"   // rclone mount with a full cache
	StageIn = "stage-in" // a script that copies the files before the training
)

// bases are the sides with which the others are compared.
var bases = []string{Native, Direct, Rclone}

// A Side is one way to do a case, with its runs in the order of time.
type Side struct {
	Name string
	Runs []Run
}

// NewCase computes the results of a case. All sides must have the same number of
// runs, at least one.
func NewCase(name string, unit Unit, bytes, operations int64, sides []Side) Case {
	c := Case{Name: name, Unit: unit, Bytes: bytes, Operations: operations}
	for _, s := range sides {
		r := Result{Side: s.Name, Seconds: spread(seconds(s.Runs)), Ratios: make(map[string]Spread), Runs: s.Runs}
		r.Value = c.value(r.Seconds.Median)
		r.Utilization = utilizations(s.Runs)
		r.Source = medianSource(s.Runs)
		r.Waits = Mean(s.Runs).Waits
		for _, other := range sides {
			if other.Name != s.Name && isBase(other.Name) {
				r.Ratios[other.Name] = ratio(seconds(s.Runs), seconds(other.Runs))
			}
		}
		c.Results = append(c.Results, r)
	}
	return c
}

// value converts a time to the unit of the case.
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
