package check

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	milkweed "github.com/milkweedfs/milkweed/fs"
)

// probeResults has, for the source and each tier, the reason why the kernel cannot
// read files there directly; nil if it can.
type probeResults struct {
	source error
	tiers  []error
}

// anyTier reports whether passthrough works for at least one tier. If not, why is
// the reason for the first tier.
func (p probeResults) anyTier() (works bool, why string) {
	for _, err := range p.tiers {
		if err == nil {
			return true, ""
		}
	}
	return false, p.tiers[0].Error()
}

// Reasons for which the source is not probed.
var (
	errRateLimited = errors.New("the source has a rate limit, which only the daemon can enforce")
	errNoFile      = errors.New("no file was found to probe the source with")
	errReadAhead   = errors.New("the daemon reads ahead of the job there, further than the kernel would")
	errBucket      = errors.New("the source is a bucket, which the kernel cannot read")
)

// probeTiers probes passthrough with a file in each tier.
func (h host) probeTiers(tiers []config.Tier) []error {
	errs := make([]error, len(tiers))
	for i, t := range tiers {
		errs[i] = h.probeFile(h.tempFile(t.Path))
	}
	return errs
}

// probeFile probes passthrough with a file and closes it, unless err is the error of opening it.
func (h host) probeFile(f *os.File, err error) error {
	if err != nil {
		return err
	}
	defer f.Close()
	return h.probe([]*os.File{f})[0]
}

// TierPassthrough returns why the kernel cannot read the files of a tier directly, or nil if it
// can. It creates a file without a name in the tier, and blocks on a file system that hangs.
func TierPassthrough(t config.Tier) error { return thisHost().probeTiers([]config.Tier{t})[0] }

// openAny opens the first of names that can be opened.
func openAny(source config.Source, names []string) (*os.File, error) {
	if source.URL != "" {
		return nil, errBucket
	}
	if source.Bandwidth > 0 || source.Operations > 0 {
		return nil, errRateLimited
	}
	for _, name := range names {
		f, err := os.OpenFile(filepath.Join(source.Path, name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err == nil {
			return f, nil
		}
	}
	return nil, errNoFile
}

// tempFile creates a file without a name in path, or in the nearest parent of path
// that exists.
func (h host) tempFile(path string) (*os.File, error) {
	dir, _, err := h.nearestExisting(path)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(dir, unix.O_TMPFILE|os.O_RDWR, 0o600)
	if err != nil { // not every file system supports O_TMPFILE
		f, err = unlinkedFile(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot create a file in %s: %w", dir, reason(err))
	}
	return f, nil
}

// unlinkedFile creates a file in dir and removes its name.
func unlinkedFile(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, ".milkweed-check-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// findings returns a finding for each tier and the source. If passthrough would be the
// mode, a failed probe is a Warning.
func (p probeResults) findings(c *config.Config, wouldBeMode bool) []Finding {
	var all []Finding
	for i, t := range c.Tiers {
		all = append(all, passthroughFinding("tier "+t.Name, p.tiers[i], wouldBeMode)...)
	}
	return append(all, passthroughFinding("source", p.source, wouldBeMode)...)
}

// passthroughFinding returns the finding for the probe of the source or of a tier.
func passthroughFinding(probed string, err error, wouldBeMode bool) []Finding {
	name := "passthrough, " + probed
	switch {
	case err == nil:
		return ok(name, "the kernel can read files there directly")
	case err == errRateLimited || err == errNoFile || err == errReadAhead || err == errBucket:
		return ok(name, "%v", err)
	case !wouldBeMode:
		return ok(name, "%v; the mode would not be passthrough in any case", err)
	}
	return warning(name, passthroughRemedy(err), "%v", err)
}

// passthroughRemedies are the remedies for errors of the probe.
var passthroughRemedies = []struct {
	err    error
	remedy string
}{
	{milkweed.ErrPrivilege, "Run the daemon as root or with CAP_SYS_ADMIN. An unprivileged container or pod has no passthrough: its reads go through the daemon."},
	{milkweed.ErrKernel, "Use Linux 6.9 or later, built with CONFIG_FUSE_PASSTHROUGH."},
	{milkweed.ErrStacked, "Use a file system that is not stacked on another, such as a volume of the container."},
	// The device may not be opened, or a file may not be created.
	{os.ErrPermission, "See the findings of fuse and of the tiers."},
}

const otherPassthroughRemedy = "Use another file system there, or ignore this: reads then go through the daemon."

func passthroughRemedy(err error) string {
	for _, r := range passthroughRemedies {
		if errors.Is(err, r.err) {
			return r.remedy
		}
	}
	return otherPassthroughRemedy
}

// PassthroughRemedy returns the remedy for an error of the probe by its text, which is what another
// process knows of it.
func PassthroughRemedy(reason string) string {
	for _, r := range passthroughRemedies {
		if strings.Contains(reason, r.err.Error()) {
			return r.remedy
		}
	}
	return otherPassthroughRemedy
}
