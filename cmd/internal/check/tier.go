package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

func (h host) tiers(ctx context.Context, c *config.Config) []Finding {
	var findings []Finding
	for _, t := range c.Tiers {
		name := "tier " + t.Name
		onTimeout := problem(exit.Tier, name, "Choose another directory for it, on a disk of this machine.",
			"%s did not respond within %s", t.Path, h.timeout)
		findings = append(findings, h.withTimeout(ctx, onTimeout, func() []Finding { return h.inspectTier(name, t, c.Source.Name()) })...)
	}
	return findings
}

// inspectTier checks a tier. Name is the name of the finding, and source the Name of
// the source.
func (h host) inspectTier(name string, t config.Tier, source string) []Finding {
	fail := func(remedy, format string, args ...any) []Finding {
		return problem(exit.Tier, name, remedy, format, args...)
	}
	dir, info, err := h.nearestExisting(t.Path)
	switch {
	case err != nil:
		return fail("Choose another directory.", "%s: %w", dir, reason(err))
	case !info.IsDir():
		return fail("Choose a directory.", "%s is not a directory", dir)
	case dir == t.Path && owner(info) != h.uid && owner(info) != 0:
		return fail("Choose a directory of your own: its owner could change the copies.", "%s belongs to user %d", dir, owner(info))
	}
	switch err := tryWriting(dir); {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		// This is only a warning, because existing copies can still be read.
		return warning(name, "Remove files that are not needed there, or choose another directory.", "cannot write to %s: %v", dir, reason(err))
	case errors.Is(err, unix.EROFS):
		return fail("Choose a directory on a file system that is mounted for writing.", "cannot write to %s: %w", dir, reason(err))
	case err != nil:
		return fail("Choose a directory that you may write to.", "cannot write to %s: %w", dir, reason(err))
	}
	st, err := h.statfs(dir)
	if err != nil {
		return fail("Choose another directory.", "%s: %w", dir, reason(err))
	}
	var warnings []Finding
	if dir == t.Path && info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
		warnings = append(warnings, warning(name, fmt.Sprintf(`Prevent others from replacing the copies with "chmod o-w %s".`, dir),
			"all users may rename the files in %s", dir)...)
	}
	if fs := fileSystems[int64(st.Type)]; fs.remote {
		warnings = append(warnings, warning(name, "Choose a directory in the memory or on a disk of this machine.",
			"%s is on %s, which is hardly faster than the source", t.Path, fs.name)...)
	}
	warnings = append(warnings, h.checkQuota(name, t, dir, source, st)...)
	if len(warnings) > 0 {
		return warnings
	}
	return ok(name, "%s, on %s, quota %s, %s free%s", t.Path, fileSystemName(st), t.Quota, size(available(st)), h.memoryNote(st))
}

// nearestExisting returns path if it exists, and otherwise its nearest parent that
// does.
func (h host) nearestExisting(path string) (string, os.FileInfo, error) {
	for {
		info, err := h.stat(path)
		if !errors.Is(err, fs.ErrNotExist) || path == filepath.Dir(path) {
			return path, info, err
		}
		path = filepath.Dir(path)
	}
}

// tryWriting creates a folder with a file in dir, and removes both.
func tryWriting(dir string) (err error) {
	probe, err := os.MkdirTemp(dir, ".milkweed-check-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(probe)) }()
	return os.WriteFile(filepath.Join(probe, "probe"), make([]byte, 4096), 0o600)
}

// minQuota is the quota in bytes below which checkQuota warns. A smaller quota is
// probably a mistake, such as "64" without a unit.
const minQuota = 1 << 20

// checkQuota compares the quota with the free space of the file system of dir. Dir is
// the directory of the tier, or its nearest parent that exists.
func (h host) checkQuota(name string, t config.Tier, dir, source string, st unix.Statfs_t) []Finding {
	usable := available(st)
	if _, err := h.stat(filepath.Join(t.Path, config.DatasetID(source))); err == nil {
		// The space of existing copies counts as free. It takes long to add up their
		// sizes, so all used space of the file system is taken as an upper bound.
		usable += int64(st.Blocks-st.Bfree) * st.Bsize
	}
	quota := t.Quota.Of(usable)
	switch {
	case quota > usable:
		return warning(name, `Reduce the quota, or use a percentage such as quota = "90%".`,
			"the quota is %s, but %s has %s free", t.Quota, dir, size(available(st)))
	case quota < minQuota:
		return warning(name, "Increase the quota, or give it a unit such as GiB, or free space there.",
			"the quota %s allows copies of %s", t.Quota, size(quota))
	}
	return nil
}

// memoryNote returns a note for a tier that is memory, and whether the machine may
// swap it out. For other tiers it returns "".
func (h host) memoryNote(st unix.Statfs_t) string {
	if st.Type != unix.TMPFS_MAGIC {
		return ""
	}
	swaps, _ := os.ReadFile(filepath.Join(h.root, "proc/swaps"))
	if strings.Count(string(swaps), "\n") > 1 { // more than the heading
		return "; it may be swapped out"
	}
	return "; it is memory"
}
