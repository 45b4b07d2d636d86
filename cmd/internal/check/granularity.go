package check

import (
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/drivers"
)

// granularities are the granularities of file times, the finest first. Local file systems advance
// their clock every 1 to 10 ms, whatever they store.
var granularities = []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second, 2 * time.Second}

// Granularity returns the granularity of the times of a source, by a sample of its files: the
// coarsest of which all times are multiples. It looks at change times, which programs cannot set.
// It returns 1 s for a sample that is too small to tell, and 0 for a source with versions.
func Granularity(sample []drivers.Info) time.Duration {
	const enough = 4
	distinct := make(map[time.Time]bool)
	for _, i := range sample {
		if i.Version != "" {
			return 0
		}
		distinct[i.Ctime.Round(0).UTC()] = true
	}
	coarsest := granularities[0]
	for _, g := range granularities {
		multiples := true
		for t := range distinct {
			multiples = multiples && (t.Unix()%2*int64(time.Second)+int64(t.Nanosecond()))%int64(g) == 0
		}
		if multiples {
			coarsest = g
		}
	}
	if len(distinct) == 0 || len(distinct) < enough && coarsest > granularities[0] {
		return time.Second
	}
	return coarsest
}

// RacyWindow returns the age below which a time of the source does not identify the content of a
// file. It is 0 for a source with versions.
func (s Service) RacyWindow(c *config.Config) time.Duration {
	if s.Granularity == 0 {
		return 0
	}
	return s.Granularity + c.Source.ClockSkew
}
