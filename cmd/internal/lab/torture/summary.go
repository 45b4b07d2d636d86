package torture

import (
	"fmt"
	"io"
	"maps"
	"slices"
)

// maxFindings bounds the findings that are kept and logged. The counts are complete.
const maxFindings = 200

// A Finding is one thing that must not happen.
type Finding struct {
	Cause string `json:"cause"` // zeros, content, flip, planted, mixture, size, stale, denied, error, mount, hang, scrub, status or crash
	Cycle int    `json:"cycle"` // in which it was found
	Event string `json:"event"` // the last event before it
	Mode  string `json:"mode"`  // of the mount
	Text  string `json:"text"`
}

// A Summary is the result of a run.
type Summary struct {
	Seed       uint64  `json:"seed"`
	FileSystem string  `json:"file_system"`
	Seconds    float64 `json:"seconds"`
	Cycles     int     `json:"cycles"` // one for each daemon

	Events          map[string]int `json:"events"` // by kind
	Opens           int            `json:"opens"`
	AcrossPromotion int            `json:"opens_across_promotion"` // files that were open while their copy was published
	Reads           map[Kind]int   `json:"reads"`
	Bytes           int64          `json:"bytes"`           // that were compared
	Right           int            `json:"right"`           // reads of a version that may be read
	Excused         map[string]int `json:"excused"`         // errors and mixtures in an allowed window, by reason
	FlipsServed     int            `json:"flips_served"`    // reads of flipped bits that the daemon may have verified before the flip
	Slowest         float64        `json:"slowest_seconds"` // of all reads

	WrongReads  int            `json:"wrong_reads"`  // with bytes or a size of no version, or a mixture
	StaleReads  int            `json:"stale_reads"`  // of a version that was superseded long ago
	DeniedReads int            `json:"denied_reads"` // of a file that the daemon might not read for long
	Errors      int            `json:"errors"`       // that the source did not give
	Hangs       int            `json:"hangs"`
	ScrubErrors int            `json:"scrub_errors"` // flipped bits that a scrub has not found, and right copies that it has reported
	Causes      map[string]int `json:"causes"`       // of the six above
	Findings    []Finding      `json:"findings"`
}

func newSummary(seed uint64, fsType string) *Summary {
	return &Summary{
		Seed: seed, FileSystem: fsType, Events: make(map[string]int), Reads: make(map[Kind]int),
		Excused: make(map[string]int), Causes: make(map[string]int), Findings: []Finding{},
	}
}

// OK reports whether nothing was found that must not happen.
func (s *Summary) OK() bool {
	return s.WrongReads+s.StaleReads+s.DeniedReads+s.Errors+s.Hangs+s.ScrubErrors == 0
}

// Print prints the summary.
func (s *Summary) Print(w io.Writer) {
	fmt.Fprintf(w, "%d cycles in %.0f s on %s, seed %d\n", s.Cycles, s.Seconds, s.FileSystem, s.Seed)
	for _, kind := range slices.Sorted(maps.Keys(s.Events)) {
		fmt.Fprintf(w, "%8d  %s\n", s.Events[kind], kind)
	}
	fmt.Fprintf(w, "%8d  opens, %d of them across promotion; %.1f GB compared; the slowest read took %.1f s\n",
		s.Opens, s.AcrossPromotion, float64(s.Bytes)/1e9, s.Slowest)
	for _, why := range slices.Sorted(maps.Keys(s.Excused)) {
		fmt.Fprintf(w, "%8d  excused: %s\n", s.Excused[why], why)
	}
	fmt.Fprintf(w, "%8d  reads of bits flipped after their verification\n", s.FlipsServed)
	fmt.Fprintf(w, "%8d  wrong reads, %d stale ones, %d of denied files, %d errors, %d hangs, %d errors of scrubs\n",
		s.WrongReads, s.StaleReads, s.DeniedReads, s.Errors, s.Hangs, s.ScrubErrors)
	for _, cause := range slices.Sorted(maps.Keys(s.Causes)) {
		fmt.Fprintf(w, "%8d  %s\n", s.Causes[cause], cause)
	}
}
