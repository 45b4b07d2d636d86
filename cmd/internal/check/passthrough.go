package check

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	milkweed "github.com/milkweedfs/milkweed/fs"
)

// probes say of each place why the kernel could not read files there by itself:
// nil if it could.
type probes struct {
	source error
	tiers  []error
}

// inATier reports whether it could in at least one tier, and if not, why not in
// the first.
func (p probes) inATier() (works bool, why string) {
	for _, err := range p.tiers {
		if err == nil {
			return true, ""
		}
	}
	return false, p.tiers[0].Error()
}

// Why the source is not tried.
var (
	errCapped = errors.New("the source has a cap, to which the daemon keeps")
	errNoFile = errors.New("no file was found to try it with")
	errBucket = errors.New("the source is a bucket, which the kernel cannot read")
)

// probePlaces tries it with a file in each tier, and with one of the names in
// the source.
func (h host) probePlaces(c *config.Config, names []string) probes {
	p := probes{tiers: make([]error, len(c.Tiers))}
	var files []*os.File
	var found []*error // where that of each file goes
	add := func(to *error, f *os.File, err error) {
		if *to = err; err == nil {
			files = append(files, f)
			found = append(found, to)
		}
	}
	for i, t := range c.Tiers {
		f, err := h.nameless(t.Path)
		add(&p.tiers[i], f, err)
	}
	f, err := openOne(c.Source, names)
	add(&p.source, f, err)
	for i, err := range h.probe(files) {
		*found[i] = err
		files[i].Close()
	}
	return p
}

// openOne opens the first of names that can be opened.
func openOne(source config.Source, names []string) (*os.File, error) {
	if source.URL != "" {
		return nil, errBucket
	}
	if source.Bandwidth > 0 || source.Operations > 0 {
		return nil, errCapped
	}
	for _, name := range names {
		f, err := os.OpenFile(filepath.Join(source.Path, name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err == nil {
			return f, nil
		}
	}
	return nil, errNoFile
}

// nameless makes a file without a name in the nearest folder of path that
// exists.
func (h host) nameless(path string) (*os.File, error) {
	dir, _, err := h.existing(path)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(dir, unix.O_TMPFILE|os.O_RDWR, 0o600)
	if err != nil { // not every file system makes one at once
		f, err = unlinked(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("no file can be made in %s: %w", dir, reason(err))
	}
	return f, nil
}

// unlinked makes a file in dir and takes its name away.
func unlinked(dir string) (*os.File, error) {
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

// findings tells of each place whether the kernel could read files there by
// itself. That it could not is a warning where it would.
func (p probes) findings(c *config.Config, would bool) []Finding {
	var all []Finding
	for i, t := range c.Tiers {
		all = append(all, passthrough("tier "+t.Name, p.tiers[i], would)...)
	}
	return append(all, passthrough("source", p.source, would)...)
}

func passthrough(place string, err error, would bool) []Finding {
	name := "passthrough, " + place
	switch {
	case err == nil:
		return ok(name, "the kernel can read files there by itself")
	case err == errCapped || err == errNoFile || err == errBucket:
		return ok(name, "%v", err)
	case !would:
		return ok(name, "%v; the mode would not be passthrough anyway", err)
	}
	return warning(name, passthroughRemedy(err), "%v", err)
}

func passthroughRemedy(err error) string {
	switch {
	case errors.Is(err, milkweed.ErrPrivilege):
		return "Run the daemon as root or with CAP_SYS_ADMIN."
	case errors.Is(err, milkweed.ErrKernel):
		return "Use Linux 6.9 or later, built with CONFIG_FUSE_PASSTHROUGH."
	case errors.Is(err, milkweed.ErrStacked):
		return "Use a file system that is stacked on no other, such as a volume of the container."
	case errors.Is(err, os.ErrPermission): // to open the device or to make a file, which is told elsewhere
		return "See what is said of fuse and of the tiers."
	}
	return "Use another file system there, or leave it so: reads go through the daemon."
}
