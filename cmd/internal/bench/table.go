package bench

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
)

// Bytes formats a number of bytes in decimal units, as bandwidths have them.
func Bytes(n int64) string { return humanize.Bytes(uint64(max(n, 0))) }

// Head prints the machine, the source and the configuration, which are known
// before the first measurement.
func (r *Report) Head(w io.Writer) error {
	_, err := fmt.Fprintf(w, `date      %s
command   %s
milkweed  %s
rclone    %s
machine   Linux %s, %d CPUs, %s of memory
tiers     in %s (%s), with the native files
source    a simulated parallel file system (PFS): %gms for each operation, %s/s for all readers together;
          %s
runs      %d of each side, in turn; scale %g
ratios    time divided by that of the other side, as the median of all pairs (min to max); below 1 is faster
`,
		r.Date.Format("2006-01-02 15:04"), r.Command, r.Version, r.Rclone,
		r.Kernel, r.CPUs, Bytes(r.MemoryBytes), r.TierFolder, r.TierFileSystem,
		r.LatencySeconds*1e3, Bytes(r.SourceBandwidth), r.SourceBehaviour, r.Runs, r.Scale)
	return err
}

// A column is a column of the table of a group. A cell may be "".
type column struct {
	title string
	cell  func(Case, Result) string
}

var columns = []column{
	{"CASE", func(c Case, _ Result) string { return c.Name }},
	{"SIDE", func(_ Case, r Result) string { return r.Side }},
	{"VALUE", func(c Case, r Result) string { return number(r.Value) + " " + string(c.Unit) }},
	{"TO NATIVE", func(_ Case, r Result) string { return r.ratio(Native) }},
	{"TO DIRECT", func(_ Case, r Result) string { return r.ratio(Direct) }},
	{"TO RCLONE", func(_ Case, r Result) string { return r.ratio(Rclone) }},
	{"SAMPLES/S", func(c Case, r Result) string {
		if c.Samples == 0 {
			return ""
		}
		return number(float64(c.Samples) / r.Seconds.Median)
	}},
	{"UTILISATION", func(_ Case, r Result) string { return r.utilization() }},
	{"WAITED LATENCY/BANDWIDTH/FILL/TIER", func(_ Case, r Result) string { return r.waits() }},
	{"SOURCE OPS", func(_ Case, r Result) string { return r.source(func(s SourceUse) int64 { return s.Operations }) }},
	{"OPENS", func(_ Case, r Result) string { return r.source(func(s SourceUse) int64 { return s.Opens }) }},
	{"BYTES/UNPLACED", func(_ Case, r Result) string { return r.bytesByUnplaced() }},
}

// Table prints the group, without the columns that are empty.
func (g *Group) Table(w io.Writer) error {
	shown := slices.DeleteFunc(slices.Clone(columns), func(c column) bool { return g.lacks(c) })
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\n%s\n", g.Name)
	for _, line := range g.Caption {
		fmt.Fprintf(w, "  %s\n", line)
	}
	for _, line := range g.LeftOut {
		fmt.Fprintf(w, "  left out: %s\n", line)
	}
	for i, c := range shown {
		fmt.Fprint(t, separator(i), c.title)
	}
	fmt.Fprintln(t)
	for _, c := range g.Cases {
		for _, r := range c.Results {
			for i, col := range shown {
				fmt.Fprint(t, separator(i), orDash(col.cell(c, r)))
			}
			fmt.Fprintln(t)
		}
	}
	return t.Flush()
}

// lacks reports whether the column is empty in all rows of the group.
func (g *Group) lacks(col column) bool {
	for _, c := range g.Cases {
		for _, r := range c.Results {
			if col.cell(c, r) != "" {
				return false
			}
		}
	}
	return true
}

func separator(i int) string {
	if i == 0 {
		return ""
	}
	return "\t"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// number formats a number with at least three significant digits.
func number(f float64) string {
	if f >= 100 {
		return strconv.FormatFloat(f, 'f', 0, 64)
	}
	s := strconv.FormatFloat(f, 'g', 3, 64)
	if strings.Contains(s, "e") {
		return strconv.FormatFloat(f, 'f', 6, 64)
	}
	return s
}

func (r Result) ratio(to string) string {
	s, ok := r.Ratios[to]
	if !ok {
		return ""
	}
	return fmt.Sprintf("%.2f (%.2f to %.2f)", s.Median, s.Min, s.Max)
}

func (r Result) utilization() string {
	if r.Utilization == nil {
		return ""
	}
	return fmt.Sprintf("%.1f %%", 100*r.Utilization.Median)
}

// waits returns the times that the readers waited, by cause.
func (r Result) waits() string {
	if r.Waits == nil {
		return ""
	}
	w := *r.Waits
	return fmt.Sprintf("%.2f/%.2f/%.2f/%.2f s", w.Latency, w.Bandwidth, w.Fill, w.Tier)
}

func (r Result) source(count func(SourceUse) int64) string {
	if r.Source == nil {
		return ""
	}
	return humanize.Comma(count(*r.Source))
}

// bytesByUnplaced returns the bytes read from the source, divided by those that
// had no local copy.
func (r Result) bytesByUnplaced() string {
	switch {
	case r.Source == nil:
		return ""
	case r.Source.UnplacedBytes == 0:
		return fmt.Sprintf("%s/0", Bytes(r.Source.Bytes))
	default:
		return fmt.Sprintf("%.3f", float64(r.Source.Bytes)/float64(r.Source.UnplacedBytes))
	}
}
