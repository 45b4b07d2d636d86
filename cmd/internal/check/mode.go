package check

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/drivers"
)

// A Service is how the kernel gets at the content of files.
type Service struct {
	Mode   config.Mode // never config.Auto
	Reason string      // why this one, on one line

	// Why the kernel does not read the files of a place by itself; nil if it
	// does.
	Source error
	Tiers  []error // in the order of the configuration
}

// Decide finds out how the kernel is to be served. It looks at some files of
// the source, and in each tier makes a file that has no name and is gone
// afterwards. It waits for a file system that hangs: Run is there to tell of one.
func Decide(ctx context.Context, c *config.Config, source drivers.Sampler) Service {
	l := thisHost().look(ctx, c, source)
	mode, reason := l.choose(c.Mount.Mode)
	s := Service{Mode: mode, Reason: reason, Source: in(mode, l.source)}
	for _, err := range l.tiers {
		s.Tiers = append(s.Tiers, in(mode, err))
	}
	return s
}

// in returns why the kernel does not read a place by itself in a mount with
// mode, of why it could not.
func in(mode config.Mode, err error) error {
	if err == nil && mode != config.Passthrough {
		return fmt.Errorf("the mode is %s", mode)
	}
	return err
}

// A look is what the choice of a mode depends on.
type look struct {
	sample []drivers.Info // of the files of the source
	probes                // whether passthrough could be
}

// look looks at what the configuration leaves open.
func (h host) look(ctx context.Context, c *config.Config, source drivers.Sampler) look {
	if !mayPassThrough(c) {
		return look{probes: probes{tiers: make([]error, len(c.Tiers))}}
	}
	ctx, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	sample, _ := source.Sample(ctx, sampleFiles) // a source that fails shows nothing
	return look{slices.Collect(maps.Values(sample)), h.probePlaces(c, slices.Sorted(maps.Keys(sample)))}
}

// How much is looked at of the source. It is the time that a mount of a slow one
// takes longer.
const (
	sampleFiles = 64
	sampleTime  = 300 * time.Millisecond
)

// mayPassThrough reports whether the configuration lets the kernel read by
// itself.
func mayPassThrough(c *config.Config) bool {
	return c.Mount.Mode == config.Auto || c.Mount.Mode == config.Passthrough
}

func (l look) choose(want config.Mode) (config.Mode, string) {
	works, why := l.inATier()
	return ChooseMode(want, works, why, l.sample)
}

// statelessBelow is the mean size of the files of a dataset, in bytes, below
// which the kernel had better open them without asking the daemon than read them
// by itself. The former is faster for files that it has the pages of, the latter
// for others, and nobody knows how many those will be. Measured by
// BenchmarkStatelessAgainstPassthrough in fs, stateless takes 0.36 and 1.8 times
// as long for files of 256 KiB, 0.61 and 2.5 times for those of 1 MiB: in between
// it has as much to lose as to win.
const statelessBelow = 512 << 10

// ChooseMode returns the mode of a mount whose configuration wants one, and why,
// on one line. Passthrough reports whether it works in at least one tier, and
// why says why it does not. The sample is of the files of the dataset.
func ChooseMode(want config.Mode, passthrough bool, why string, sample []drivers.Info) (mode config.Mode, reason string) {
	switch {
	case want == config.Passthrough && !passthrough:
		return config.Cached, "passthrough was asked for, and does not work: " + why
	case want != config.Auto:
		return want, "it was asked for"
	case !passthrough:
		return config.Stateless, "passthrough does not work: " + why
	case len(sample) == 0:
		return config.Stateless, "no file was found to tell the size of files by"
	}
	mean := meanSize(sample)
	found := fmt.Sprintf("files are %s on average (%d sampled)", size(mean), len(sample))
	if mean < statelessBelow {
		return config.Stateless, fmt.Sprintf("%s, and under %s they open faster without asking", found, size(statelessBelow))
	}
	return config.Passthrough, fmt.Sprintf("%s, and from %s on they are read faster by the kernel itself", found, size(statelessBelow))
}

func meanSize(files []drivers.Info) int64 {
	sum := 0.0 // sparse files can be larger than all int64 together
	for _, f := range files {
		sum += float64(f.Size)
	}
	return int64(sum / float64(len(files)))
}

// A Source is an open source.
type Source interface {
	drivers.Sampler
	io.Closer
}

// Preview tells what Decide would say of c, where the kernel could read files by
// itself, and what to do about the rest. None of it keeps a mount from working.
// It calls open for the source, and closes that.
func Preview(ctx context.Context, c *config.Config, open func() (Source, error)) []Finding {
	return thisHost().preview(ctx, c, open)
}

func (h host) preview(ctx context.Context, c *config.Config, open func() (Source, error)) []Finding {
	late := warning("mode", "See what is said of the source and the tiers.",
		"the source or a tier does not answer for %s", h.patience)
	return h.within(ctx, late, func() []Finding {
		source, err := open()
		if err != nil {
			return warning("mode", "See what is said of the source.", "not known: %v", reason(err))
		}
		defer source.Close()
		return h.lookAtMode(ctx, c, source)
	})
}

func (h host) lookAtMode(ctx context.Context, c *config.Config, source drivers.Sampler) []Finding {
	l := h.look(ctx, c, source)
	mode, reason := l.choose(c.Mount.Mode)
	findings := ok("mode", "%s: %s", mode, reason)
	if c.Mount.Mode == config.Passthrough && mode != config.Passthrough {
		findings = warning("mode", "See what is said of passthrough in each tier.", "%s: %s", mode, reason)
	}
	if !mayPassThrough(c) {
		return findings
	}
	best, _ := ChooseMode(c.Mount.Mode, true, "", l.sample)
	return slices.Concat(findings, l.findings(c, best == config.Passthrough))
}
