package accesses

import (
	"fmt"
	"slices"

	"github.com/dustin/go-humanize"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
)

// An Advice is a setting that would serve the accesses better, and what shows that.
type Advice struct {
	Seen    string `json:"seen"`
	Setting string `json:"setting"`
}

// The thresholds of advice.
const (
	MinOpens     = 100       // fewer opens are no basis for advice
	smallFile    = 512 << 10 // below this mean size, stateless is faster than passthrough (docs/performance.md)
	tinyFile     = 16 << 10  // below this mean size, the cost of an open exceeds that of the bytes
	mainCause    = 0.5       // share of the waits from which on a cause is the main one
	manyWaits    = 0.2       // seconds waited per second, from which on waits matter
	slowTier     = 0.005     // seconds that an operation takes on average, from which on a tier is slow
	missesMatter = 0.1       // share of the opens that the source served
	shuffled     = 0.7       // share of the opens in order, below which the order is none
)

// Advise returns the settings that would serve accesses better on a mount with a status.
func Advise(a Summary, s *control.Status) (all []Advice) {
	if a.Opens < MinOpens {
		return nil
	}
	add := func(setting, seen string, args ...any) {
		all = append(all, Advice{Seen: fmt.Sprintf(seen, args...), Setting: setting})
	}
	mean, mode := a.MeanFile(), config.Mode(s.Mode)
	switch {
	case mean < smallFile && mode != config.Stateless:
		add(`mount.mode = "stateless"`, "the files have %s on average, and the mode is %s", size(mean), mode)
	case mean >= smallFile && mode != config.Passthrough && passthrough(s):
		add(`mount.mode = "passthrough"`, "the files have %s on average, and the mode is %s", size(mean), mode)
	}
	if mean < tinyFile {
		add("Pack the files, as TFRecord or WebDataset do: no setting makes an open cheaper.", "the files have %s on average", size(mean))
	}
	misses := float64(a.Levels[control.SourceLevel]+a.Levels[control.FillLevel]) / float64(a.Opens)
	noRoom := s.Placement.Skipped > 0
	waits := a.Waited()
	if waits < manyWaits*a.Seconds {
		return all
	}
	share := func(cause string) float64 { return a.Waits[cause] / waits }
	random := a.Neighbors == 0 || float64(a.InOrder) < shuffled*float64(a.Neighbors)
	switch {
	case misses >= missesMatter && noRoom:
		add("A larger tier.quota, a further [[tier]], or a plan with placement.window; with several nodes, mount --peers.",
			"%.0f %% of the opens had no copy, and %s files had no room in the tiers", 100*misses, humanize.Comma(s.Placement.Skipped))
	case misses >= missesMatter && random && share(control.Latency)+share(control.FillCause) >= mainCause && s.Plan.StreamCount == 0:
		add("Hand over the order of the job: `milkweed plan`, or planned() of examples/pytorch.",
			"%.0f %% of the opens had no copy, in no order of their names, and readers waited %.1f s per second, mostly for requests of their own",
			100*misses, waits/a.Seconds)
	case misses >= missesMatter && share(control.Bandwidth) >= mainCause:
		add("`milkweed warmup` before the job, or mount --peers on several nodes; look for a limit in source.bandwidth.",
			"readers waited %.1f s per second, mostly for the bandwidth of the source", waits/a.Seconds)
	case share(control.TierCause) >= mainCause && waits >= slowTier*float64(a.Opens+a.Reads):
		add("A larger quota for the fastest tier; see the column HEALTH of `milkweed status`.",
			"readers waited %.1f s per second, mostly for tiers", waits/a.Seconds)
	}
	return all
}

// passthrough reports whether a tier has it, or would have it if the mode were another one.
func passthrough(s *control.Status) bool {
	return slices.ContainsFunc(s.Tiers, func(t control.Tier) bool {
		return check.PassthroughWorks(config.Mode(s.Mode), t.Passthrough, t.PassthroughReason)
	})
}

func size(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }
