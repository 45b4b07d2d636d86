package check

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/paths"
	"github.com/milkweedfs/milkweed/drivers"
)

// A Service is the way in which the kernel reads the content of files.
type Service struct {
	Mode   config.Mode // never config.Auto
	Reason string      // why this mode was chosen, on one line

	Source error // why the kernel does not read files of the source directly; nil if it does

	Granularity time.Duration // of the times of the source; 0: its versions identify the content

	Links Links // those of the sample that lead out of the mount
}

// Decide chooses the mode of a mount, and samples files for that. The source is where c says; for a generation that is
// its directory. Tiers has the result of TierPassthrough of each tier, or why the tier is not open.
func Decide(ctx context.Context, c *config.Config, source drivers.Sampler, tiers []error) Service {
	in := thisHost().modeInputs(ctx, c, source, tiers)
	mode, reason := in.chooseMode(c.Mount.Mode)
	return Service{Mode: mode, Reason: reason, Source: PassthroughError(mode, in.source), Granularity: Granularity(in.sample), Links: in.links}
}

// PassthroughError returns why the kernel does not read files of a directory directly
// in a mode. Probe is the error of the probe of the directory.
func PassthroughError(mode config.Mode, probe error) error {
	if probe == nil && mode != config.Passthrough {
		return otherMode(mode)
	}
	return probe
}

func otherMode(mode config.Mode) error { return fmt.Errorf("the mode is %s", mode) }

// PassthroughWorks reports whether the kernel reads files directly, or would in mode passthrough. Now is
// whether it does; if not, reason is the text of the PassthroughError.
func PassthroughWorks(mode config.Mode, now bool, reason string) bool {
	return now || reason == otherMode(mode).Error()
}

// modeInputs are the facts that the choice of a mode depends on.
type modeInputs struct {
	sample  []drivers.Info // of files of the source
	unsized func() string  // FindUnsized of the sample
	links   Links
	probeResults
}

// modeInputs collects the facts that the configuration does not make irrelevant. Tiers has
// the result of the probe of each tier.
func (h host) modeInputs(ctx context.Context, c *config.Config, source drivers.Sampler, tiers []error) modeInputs {
	sampling, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	sample, _ := source.Sample(sampling, sampleFiles) // after an error the sample may be empty
	in := modeInputs{
		sample:       slices.Collect(maps.Values(sample.Files)),
		links:        FindLinks(sampling, source, c.Source.Path, c.Mount.Point, sample.Links),
		probeResults: probeResults{tiers: make([]error, len(c.Tiers))},
	}
	if AllowsPassthrough(c) {
		in.tiers = tiers
		in.source = errReadAhead
		p, ok := drivers.As[drivers.Profiler](source)
		if !ok || p.Profile().ReadsAhead || c.Source.URL != "" {
			in.source = h.probeFile(openAny(c.Source, slices.Sorted(maps.Keys(sample.Files))))
		}
	}
	in.unsized = func() string {
		reading, cancel := context.WithTimeout(ctx, sampleTimeout)
		defer cancel()
		return FindUnsized(reading, source, sample.Files)
	}
	return in
}

// The limits of the sample of the source. The time-out bounds the delay of a mount
// with a slow source.
const (
	sampleFiles   = 64
	sampleTimeout = 300 * time.Millisecond
)

// AllowsPassthrough reports whether the configuration allows passthrough.
func AllowsPassthrough(c *config.Config) bool {
	return c.Mount.Mode == config.Auto || c.Mount.Mode == config.Passthrough
}

func (in modeInputs) chooseMode(configured config.Mode) (config.Mode, string) {
	works, why := in.anyTier()
	mode, reason := ChooseMode(configured, works, why, in.sample)
	if mode != config.Stateless || configured != config.Auto {
		return mode, reason
	}
	if name := in.unsized(); name != "" {
		return config.Cached, fmt.Sprintf("the source shows size 0 for %s, which may have content, and stateless cannot refuse every read of it", paths.Printable(name))
	}
	return mode, reason
}

// statelessBelow is the mean file size in bytes below which auto prefers stateless
// to passthrough. Stateless is faster for files in the page cache, and passthrough
// for other files; how many files will be in the page cache is not known in advance.
// By BenchmarkStatelessAgainstPassthrough in fs, stateless takes 0.36 times as long
// for cached files of 256 KiB and 1.8 times as long for others. For files of 1 MiB
// it is 0.61 and 2.5 times. In between, the possible loss equals the possible gain.
const statelessBelow = 512 << 10

// ChooseMode returns the mode of a mount and the reason on one line. Configured is
// the mode of the configuration. Passthrough reports whether passthrough works for at
// least one tier; if not, why is the reason. The sample is of files of the dataset.
func ChooseMode(configured config.Mode, passthrough bool, why string, sample []drivers.Info) (mode config.Mode, reason string) {
	switch {
	case configured == config.Passthrough && !passthrough:
		return config.Cached, "passthrough is configured, but does not work: " + why
	case configured != config.Auto:
		return configured, "it is configured"
	case !passthrough:
		return config.Stateless, "passthrough does not work: " + why
	case len(sample) == 0:
		return config.Stateless, "no file was found, so the size of files is not known"
	}
	mean := meanSize(sample)
	found := fmt.Sprintf("files are %s on average (%d sampled)", size(mean), len(sample))
	if mean < statelessBelow {
		return config.Stateless, fmt.Sprintf("%s, and below %s stateless is faster", found, size(statelessBelow))
	}
	return config.Passthrough, fmt.Sprintf("%s, and from %s on passthrough is faster", found, size(statelessBelow))
}

func meanSize(files []drivers.Info) int64 {
	sum := 0.0 // the sizes of sparse files may add up to more than an int64 holds
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

// Preview returns findings about the mode that Decide would choose for c, and about
// the directories for which passthrough works. None of them is a Problem. Preview
// opens what the mount shows with open, which also returns where it is, and closes it.
func Preview(ctx context.Context, c *config.Config, open func() (Source, config.Source, error)) []Finding {
	return thisHost().preview(ctx, c, open)
}

func (h host) preview(ctx context.Context, c *config.Config, open func() (Source, config.Source, error)) []Finding {
	onTimeout := warning("mode", "See the findings of the source and the tiers.",
		"the source or a tier did not respond within %s", h.timeout)
	return h.withTimeout(ctx, onTimeout, func() []Finding {
		source, at, err := open()
		if err != nil {
			return warning("mode", "See the finding of the source.", "not known: %v", reason(err))
		}
		defer source.Close()
		shown := *c
		shown.Source = at
		return h.inspectMode(ctx, &shown, source)
	})
}

func (h host) inspectMode(ctx context.Context, c *config.Config, source drivers.Sampler) []Finding {
	var tiers []error
	if AllowsPassthrough(c) {
		tiers = h.probeTiers(c.Tiers)
	}
	in := h.modeInputs(ctx, c, source, tiers)
	mode, reason := in.chooseMode(c.Mount.Mode)
	findings := ok("mode", "%s: %s", mode, reason)
	if c.Mount.Mode == config.Passthrough && mode != config.Passthrough {
		findings = warning("mode", "See the findings of passthrough for each tier.", "%s: %s", mode, reason)
	}
	if AllowsPassthrough(c) {
		best, _ := ChooseMode(c.Mount.Mode, true, "", in.sample)
		findings = append(findings, in.findings(c, best == config.Passthrough)...)
	}
	if why := IsImage(source, in.sample); why != "" && c.Source.Manifest == "" {
		findings = append(findings, warning("times", ImageRemedy,
			"%s: if it is replaced while nothing is mounted, files of the same size and time are taken for unchanged", why)...)
	}
	if detail, remedy := in.links.Advice(); detail != "" && c.Source.Manifest == "" { // which may have others
		findings = append(findings, warning("links", remedy, "%s", detail)...)
	}
	if g := Granularity(in.sample); g > 0 {
		findings = append(findings, ok("times", "they have a granularity of %v; a file that changed less than %v ago is not copied yet",
			g, g+c.Source.ClockSkew)...)
	}
	return findings
}
