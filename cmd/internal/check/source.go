package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/blob"
	milkweed "github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/fs/pfs"
)

// source checks a source that is a directory. Bucket reports on a bucket.
func (h host) source(ctx context.Context, c *config.Config) []Finding {
	path := c.Source.Path
	if path == "" {
		return nil
	}
	onTimeout := problem(exit.Source, "source", "Check whether its server is running, and whether other programs can list it.",
		"%s did not respond within %s", path, h.timeout)
	return h.withTimeout(ctx, onTimeout, func() []Finding { return h.inspectSource(path) })
}

func (h host) inspectSource(path string) []Finding {
	const (
		name   = "source"
		remedy = "Check whether other programs can list it."
	)
	info, err := h.stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return problem(exit.Source, name, "Name a directory that exists, or mount the file system that it is on.", "%s does not exist", path)
	case err == nil && !info.IsDir():
		return problem(exit.Source, name, "Name the directory that the file is in.", "%s is not a directory", path)
	case err == nil:
		err = checkListable(path)
	}
	switch {
	case err == io.EOF:
		return warning(name, "Check whether the file system of the dataset is mounted.", "%s is empty", path)
	case errors.Is(err, fs.ErrPermission):
		return problem(exit.Source, name, "Run milkweed as a user who may list and enter it.", "%s may not be read", path)
	case err != nil:
		return problem(exit.Source, name, remedy, "%s: %w", path, reason(err))
	}
	if m, _ := h.mounts().Of(config.RealPath(path)); m.Type == milkweed.Type && m.Source != pfs.DemoSource {
		return warning(name, fmt.Sprintf("Use the source of that mount, %s, as the source.", m.Source),
			"%s is itself in a Milkweed mount, %s", path, m.Point)
	}
	st, err := h.statfs(path)
	if err != nil {
		return problem(exit.Source, name, remedy, "%s: %w", path, reason(err))
	}
	return ok(name, "%s, on %s", path, fileSystemOf(st).Name)
}

// checkListable reads one name of a directory and the attributes of that file, which
// needs the right to enter the directory. It returns io.EOF for an empty directory.
func checkListable(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	names, err := f.Readdirnames(1)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(dir, names[0])); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil // the file was removed in between
}

// SourceError returns the error of a command for an error err of opening the source.
func SourceError(c config.Source, err error) error {
	code, remedy := exit.Source, "Check that the source is mounted and readable."
	if c.URL != "" {
		code, remedy = bucketRemedy(err)
	}
	return &exit.Error{Code: code, Err: fmt.Errorf("source: %w", err), Remedy: remedy}
}

// Bucket returns the finding for a source with a URL. Err is the error of opening it.
// If err is nil, signing describes how requests are signed.
func Bucket(c config.Source, signing string, err error) []Finding {
	const name = "source"
	if err != nil {
		code, remedy := bucketRemedy(err)
		return problem(code, name, remedy, "%w", err)
	}
	return ok(name, "%s can be listed; credentials: %s", c.Name(), signing)
}

// ClockRemedy is what to do about a wrong clock of this machine.
const ClockRemedy = "Set the clock of this machine, and keep it right with chrony."

// OddStore returns a finding for each oddity of a store, and one if a clock is wrong; see blob.Stats.
func OddStore(s blob.Stats) (all []Finding) {
	if s.ClockOffsetSeconds != 0 {
		all = warning("clock", ClockRemedy, "%s", s.Clock())
	}
	for _, text := range s.Oddities {
		all = append(all, warning("source", "See the versions of a bucket in docs/SEMANTICS.md. Use a manifest for a dataset that is overwritten in place.", "the store deviates from its protocol: %s", text)...)
	}
	return all
}

// bucketRemedy returns the exit code and the remedy for an error of a bucket.
func bucketRemedy(err error) (exit.Code, string) {
	for _, r := range bucketRemedies {
		if errors.Is(err, r.err) {
			return r.code, cmp.Or(blob.Remedy(err), r.remedy)
		}
	}
	return exit.Source, "Check whether the vendor's own tools can list it from this machine."
}

const unreachableRemedy = "Check the endpoint and the region, and whether this machine reaches them; HTTPS_PROXY sets a proxy."

var bucketRemedies = []struct {
	err    error
	code   exit.Code
	remedy string
}{
	{syscall.EINVAL, exit.Usage, "Add the missing setting to the URL or to the environment of this command. `milkweed mount --help` lists the options of a URL."},
	{fs.ErrPermission, exit.Source, "Supply credentials with the right to list it, where the vendor's own tools look for them. For a public bucket, add anonymous=true to the URL."},
	{fs.ErrNotExist, exit.Source, "Check the names of the bucket and of the prefix, and the endpoint if there is one."},
	{syscall.ENXIO, exit.Source, "Add region=REGION, the region of the bucket, to the URL."},
	{syscall.EPROTO, exit.Source, "Check whether the endpoint begins with http:// or https://, and whether this machine trusts its certificate; SSL_CERT_FILE sets the trusted certificates."},
	{syscall.EHOSTUNREACH, exit.Source, unreachableRemedy},
	{syscall.ENETUNREACH, exit.Source, unreachableRemedy},
	{syscall.ECONNREFUSED, exit.Source, unreachableRemedy},
	{syscall.ETIMEDOUT, exit.Source, unreachableRemedy},
}
