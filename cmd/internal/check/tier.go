package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers"
)

// tiers checks all tiers at once, so that several that hang delay it by one time-out. A tier that
// does not work now is a Warning, because a mount starts without it.
func (h host) tiers(ctx context.Context, c *config.Config) []Finding {
	findings := make([][]Finding, len(c.Tiers))
	var checking sync.WaitGroup
	for i, t := range c.Tiers {
		name := "tier " + t.Name
		onTimeout := warning(name, "Check its disk, or choose another directory for it.",
			"%s did not respond within %s; %s", t.Path, h.timeout, startsWithout)
		checking.Go(func() {
			findings[i] = h.withTimeout(ctx, onTimeout, func() []Finding { return h.checkTier(name, t, c.Source.Name()) })
		})
	}
	checking.Wait()
	return slices.Concat(findings...)
}

const startsWithout = "a mount starts without the tier, and uses it when it works"

func (h host) checkTier(name string, t config.Tier, source string) []Finding {
	findings, err := h.inspectTier(name, t, source)
	switch {
	case err == nil:
		return findings
	case h.isIll(t.Path, err):
		return warning(name, err.Remedy, "%v; %s", err, startsWithout)
	}
	return problem(exit.Tier, name, err.Remedy, "%w", err)
}

// A TierError is a reason why a tier cannot be used.
type TierError struct {
	Err    error
	Remedy string // a sentence
}

func (e *TierError) Error() string { return e.Err.Error() }

func (e *TierError) Unwrap() error { return e.Err }

// Tier returns a *TierError if a tier cannot be used. Source is the Name of the source. Tier blocks
// on a file system that hangs.
func Tier(t config.Tier, source string) error {
	if _, err := thisHost().inspectTier("", t, source); err != nil {
		return err
	}
	return nil
}

// IsIll reports whether err means that the tier at path does not work now, but may work later.
// Otherwise the configuration is wrong, or another mount uses the tier.
func IsIll(path string, err error) bool { return thisHost().isIll(path, err) }

// wrongTier are the errors of a tier that only another configuration avoids.
var wrongTier = []unix.Errno{
	unix.EACCES, unix.EPERM, unix.ENOENT, unix.ENOTDIR, unix.EISDIR, unix.EEXIST,
	unix.ELOOP, unix.ENAMETOOLONG, unix.EINVAL, unix.EOPNOTSUPP, unix.ENOSYS, unix.ENOTTY,
}

func (h host) isIll(path string, err error) bool {
	if errors.Is(err, errNotMounted) || errors.Is(err, drivers.ErrAbandoned) { // it did not answer in time
		return true
	}
	errno, ok := errors.AsType[unix.Errno](err)
	if errno == unix.EROFS { // the kernel makes a file system read-only after an error
		m, _ := h.mounts().Of(config.RealPath(path))
		return !m.ReadOnly
	}
	return ok && !slices.Contains(wrongTier, errno)
}

// inspectTier checks a tier. If it can be used, the findings are warnings, or one that is OK. Name
// is the name of the findings, and source the Name of the source.
func (h host) inspectTier(name string, t config.Tier, source string) ([]Finding, *TierError) {
	fail := func(remedy, format string, args ...any) ([]Finding, *TierError) {
		return nil, &TierError{fmt.Errorf(format, args...), remedy}
	}
	if err := h.checkMounted(t.Path); err != nil {
		return nil, err
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
	switch _, err := h.unit(dir); {
	// Without room, it is only a warning, because existing copies can still be read.
	case errors.Is(err, unix.EFBIG):
		return warning(name, "Raise the limit on the size of files (ulimit -f).", "cannot write to %s: %v", dir, reason(err)), nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return warning(name, "Remove files that are not needed there, or choose another directory.", "cannot write to %s: %v", dir, reason(err)), nil
	case errors.Is(err, unix.EROFS):
		return fail("Choose a directory on a file system that is mounted for writing.", "cannot write to %s: %w", dir, reason(err))
	case err != nil:
		return fail("Choose a directory that you may write to.", "cannot write to %s: %w", dir, reason(err))
	}
	st, err := h.statfs(dir)
	if err != nil {
		return fail("Choose another directory.", "%s: %w", dir, reason(err))
	}
	if st.Blocks == 0 && t.Quota.Percent > 0 {
		return fail(`Set a quota in bytes, such as quota = "100GB".`, "the quota is %s, but the file system of %s reports no size", t.Quota, dir)
	}
	var warnings []Finding
	if dir == t.Path && info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
		warnings = append(warnings, warning(name, fmt.Sprintf(`Prevent others from replacing the copies with "chmod o-w %s".`, dir),
			"all users may rename the files in %s", dir)...)
	}
	if fs := fileSystemOf(st); fs.Remote {
		warnings = append(warnings, warning(name, "Choose a directory in the memory or on a disk of this machine.",
			"%s is on %s, which is hardly faster than the source", t.Path, fs.Name)...)
	}
	warnings = append(warnings, h.checkQuota(name, t, dir, source, st)...)
	if len(warnings) > 0 {
		return warnings, nil
	}
	free := size(available(st)) + " free"
	if st.Blocks == 0 {
		free = "of unknown size"
	}
	return ok(name, "%s, on %s, quota %s, %s%s", t.Path, fileSystemOf(st).Name, t.Quota, free, h.memoryNote(st)), nil
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

// minQuota is the quota in bytes below which checkQuota warns. A smaller quota is
// probably a mistake, such as "64" without a unit.
const minQuota = 1 << 20

// checkQuota compares the quota with the free space of the file system of dir. Dir is
// the directory of the tier, or its nearest parent that exists.
func (h host) checkQuota(name string, t config.Tier, dir, source string, st unix.Statfs_t) []Finding {
	usable, _ := h.usable(t, source, st)
	quota := t.Quota.Of(usable)
	switch {
	case quota > usable && st.Blocks > 0:
		return warning(name, `Reduce the quota, or use a percentage such as quota = "90%".`,
			"the quota is %s, but %s has %s free", t.Quota, dir, size(available(st)))
	case quota < minQuota:
		return warning(name, "Increase the quota, or give it a unit such as GiB, or free space there.",
			"the quota %s allows copies of %s", t.Quota, size(quota))
	}
	return nil
}

// usable returns the space on the file system of a tier that copies may take. The space of existing
// copies counts as free. It takes long to add up their sizes: if there are some, all used space of the
// file system is taken as an upper bound, and counted is false.
func (h host) usable(t config.Tier, source string, st unix.Statfs_t) (bytes int64, counted bool) {
	if _, err := h.stat(filepath.Join(t.Path, config.DatasetID(source))); err != nil {
		return available(st), true
	}
	return available(st) + int64(st.Blocks-st.Bfree)*st.Bsize, false
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
