package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	milkweed "github.com/milkweedfs/milkweed/fs"
)

// source looks at a source that is a folder. Of a bucket Bucket tells.
func (h host) source(ctx context.Context, c *config.Config) []Finding {
	path := c.Source.Path
	if path == "" {
		return nil
	}
	late := problem(exit.Source, "source", "See whether its server is up, and whether other programs can list it.",
		"%s does not answer for %s", path, h.patience)
	return h.within(ctx, late, func() []Finding { return h.lookAtSource(path) })
}

func (h host) lookAtSource(path string) []Finding {
	const name = "source"
	info, err := h.stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return problem(exit.Source, name, "Name a directory that exists, or mount the file system that it is on.", "%s does not exist", path)
	case err == nil && !info.IsDir():
		return problem(exit.Source, name, "Name the directory that the file is in.", "%s is not a directory", path)
	case err == nil:
		err = listable(path)
	}
	switch {
	case err == io.EOF:
		return warning(name, "See whether the file system that should be there is mounted.", "%s is empty", path)
	case errors.Is(err, fs.ErrPermission):
		return problem(exit.Source, name, "Run milkweed as a user who may list and enter it.", "%s may not be read", path)
	case err != nil:
		return problem(exit.Source, name, "See whether other programs can list it.", "%s: %w", path, reason(err))
	}
	if m := h.mountOf(resolve(path)); m.fstype == milkweed.Type {
		return warning(name, fmt.Sprintf("Name what is mounted there, %s, as the source.", m.source),
			"%s is itself in a Milkweed mount, %s", path, m.point)
	}
	st, err := h.statfs(path)
	if err != nil {
		return problem(exit.Source, name, "See whether other programs can list it.", "%s: %w", path, reason(err))
	}
	return ok(name, "%s, on %s", path, typeName(st))
}

// listable reads one name of a directory and looks at what it names, for which
// one must be able to enter. It returns io.EOF for an empty directory.
func listable(dir string) error {
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
	return nil // it vanished meanwhile
}

// resolve follows symbolic links as far as they lead.
func resolve(path string) string {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		return resolved
	}
	parent := filepath.Dir(path)
	if parent == path {
		return path
	}
	return filepath.Join(resolve(parent), filepath.Base(path))
}

func (h host) mountPoint(ctx context.Context, c *config.Config) []Finding {
	point := c.Mount.Point
	late := problem(exit.MountPoint, "mount point", detach(point), "%s does not answer for %s", point, h.patience)
	if m, ok := h.mountAt(point); ok {
		late = problem(exit.MountPoint, "mount point", detach(point), "%s (%s of %s) does not answer for %s", point, m.fstype, m.source, h.patience)
	}
	return h.within(ctx, late, func() []Finding { return h.lookAtMountPoint(point) })
}

func detach(point string) string {
	return fmt.Sprintf(`Detach it with "fusermount3 -uz %s", or choose another mount point.`, point)
}

func (h host) lookAtMountPoint(point string) []Finding {
	const name = "mount point"
	bad := func(remedy, format string, args ...any) []Finding {
		return problem(exit.MountPoint, name, remedy, format, args...)
	}
	info, err := h.stat(point)
	if errors.Is(err, unix.ENOTCONN) {
		return bad(fmt.Sprintf(`Remove it with "milkweed umount %s" or "fusermount3 -u %s".`, point, point),
			"%s is left over from a file system whose daemon has ended: %w", point, reason(err))
	}
	if m, ok := h.mountAt(resolve(point)); ok {
		if m.fstype == milkweed.Type {
			return bad(fmt.Sprintf(`Use it as it is, or unmount it with "milkweed umount %s".`, point), "%s is already a Milkweed mount of %s", point, m.source)
		}
		return bad("Choose another mount point, such as an empty directory in it.", "%s is already a mount, %s of %s", point, m.fstype, m.source)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return bad(fmt.Sprintf(`Make it with "mkdir -p %s".`, point), "%s does not exist", point)
	case errors.Is(err, fs.ErrPermission):
		return bad("Choose one below a directory that you may enter.", "%s may not be reached", point)
	case errors.Is(err, unix.ENOTDIR), err == nil && !info.IsDir():
		return bad("Choose an empty directory.", "%s is not a directory", point)
	case err != nil:
		return bad("Choose another mount point.", "%s: %w", point, reason(err))
	}
	switch err := empty(point); {
	case errors.Is(err, fs.ErrPermission):
		return bad("Choose a directory of your own.", "%s may not be listed", point)
	case err != nil:
		return bad("Choose an empty directory: a mount would hide what is in this one.", "%s: %w", point, reason(err))
	}
	return h.mountable(point, info)
}

var errNotEmpty = errors.New("is not empty")

func empty(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	switch _, err := f.Readdirnames(1); err {
	case io.EOF:
		return nil
	case nil:
		return errNotEmpty
	default:
		return err
	}
}

// mountable checks what fusermount3 asks of a user: to be able to write to the
// mount point, and to own it if it is sticky.
func (h host) mountable(point string, info os.FileInfo) []Finding {
	const name = "mount point"
	if h.uid != 0 {
		if err := unix.Faccessat(unix.AT_FDCWD, point, unix.W_OK, unix.AT_EACCESS); err != nil {
			return problem(exit.MountPoint, name, "Choose a directory of your own: fusermount3 asks for that.", "%s: %w", point, reason(err))
		}
		if info.Mode()&fs.ModeSticky != 0 && owner(info) != h.uid {
			return problem(exit.MountPoint, name, "Choose a directory of your own: fusermount3 asks for that.", "%s is sticky and not yours", point)
		}
	}
	return ok(name, "%s is an empty directory", point)
}

func owner(info os.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }

func (h host) tiers(ctx context.Context, c *config.Config) []Finding {
	var findings []Finding
	for _, t := range c.Tiers {
		name := "tier " + t.Name
		late := problem(exit.Tier, name, "Choose another directory for it, on a disk of this machine.",
			"%s does not answer for %s", t.Path, h.patience)
		findings = append(findings, h.within(ctx, late, func() []Finding { return h.lookAtTier(name, t, c.Source.Name()) })...)
	}
	return findings
}

func (h host) lookAtTier(name string, t config.Tier, source string) []Finding {
	bad := func(remedy, format string, args ...any) []Finding {
		return problem(exit.Tier, name, remedy, format, args...)
	}
	dir, info, err := h.existing(t.Path)
	switch {
	case err != nil:
		return bad("Choose another directory.", "%s: %w", dir, reason(err))
	case !info.IsDir():
		return bad("Choose a directory.", "%s is not a directory", dir)
	case dir == t.Path && owner(info) != h.uid && owner(info) != 0:
		return bad("Choose a directory of your own: its owner could change the copies.", "%s belongs to user %d", dir, owner(info))
	}
	switch err := tryWriting(dir); {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT): // what it holds can be read
		return warning(name, "Remove what is not needed there, or choose another directory.", "cannot write to %s: %v", dir, reason(err))
	case errors.Is(err, unix.EROFS):
		return bad("Choose a directory on a file system that is mounted for writing.", "cannot write to %s: %w", dir, reason(err))
	case err != nil:
		return bad("Choose a directory that you may write to.", "cannot write to %s: %w", dir, reason(err))
	}
	st, err := h.statfs(dir)
	if err != nil {
		return bad("Choose another directory.", "%s: %w", dir, reason(err))
	}
	var warnings []Finding
	if dir == t.Path && info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
		warnings = append(warnings, warning(name, fmt.Sprintf(`Keep others from replacing the copies with "chmod o-w %s".`, dir),
			"everyone may rename what is in %s", dir)...)
	}
	if kind := typeNames[int64(st.Type)]; kind.network {
		warnings = append(warnings, warning(name, "Choose a directory in the memory or on a disk of this machine.",
			"%s is on %s, which is hardly faster than the source", t.Path, kind.name)...)
	}
	warnings = append(warnings, h.room(name, t, dir, source, st)...)
	if len(warnings) > 0 {
		return warnings
	}
	return ok(name, "%s, on %s, quota %s, %s free%s", t.Path, typeName(st), t.Quota, size(available(st)), h.swapNote(st))
}

// namesFile checks the folder of the file that keeps the name space.
func (h host) namesFile(ctx context.Context, c *config.Config) []Finding {
	file := c.Mount.Names
	if file == "" {
		return nil
	}
	late := problem(exit.Usage, "names", "Choose another file for mount.names, on a disk of this machine.",
		"%s does not answer for %s", file, h.patience)
	return h.within(ctx, late, func() []Finding { return h.lookAtNamesFile(file) })
}

func (h host) lookAtNamesFile(file string) []Finding {
	const name = "names"
	dir := filepath.Dir(file)
	info, err := h.stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return problem(exit.Usage, name, fmt.Sprintf(`Make it with "mkdir -p %s".`, dir), "the folder of %s does not exist", file)
	case err != nil:
		return problem(exit.Usage, name, "Choose another file for mount.names.", "%s: %w", dir, reason(err))
	case !info.IsDir():
		return problem(exit.Usage, name, "Choose another file for mount.names.", "%s is not a directory", dir)
	}
	if info, err := h.stat(file); err == nil && !info.Mode().IsRegular() {
		return problem(exit.Usage, name, "Choose another file for mount.names.", "%s is not a file", file)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return warning(name, "Choose a file for mount.names in a folder that you may write to.", "%s cannot be written at unmount: %v", file, err)
	}
	return ok(name, "%s", file)
}

// existing returns the nearest of path and its parents that is there.
func (h host) existing(path string) (string, os.FileInfo, error) {
	for {
		info, err := h.stat(path)
		if !errors.Is(err, fs.ErrNotExist) || path == filepath.Dir(path) {
			return path, info, err
		}
		path = filepath.Dir(path)
	}
}

// tryWriting makes a folder with a file in dir, and removes both.
func tryWriting(dir string) (err error) {
	probe, err := os.MkdirTemp(dir, ".milkweed-check-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(probe)) }()
	return os.WriteFile(filepath.Join(probe, "probe"), make([]byte, 4096), 0o600)
}

// tiny is less room than anybody means: a quota of "64" is one without a unit.
const tiny = 1 << 20

// room compares the quota with the file system of dir, which is the tier or the
// nearest parent that exists.
func (h host) room(name string, t config.Tier, dir, source string, st unix.Statfs_t) []Finding {
	room := available(st)
	if _, err := h.stat(filepath.Join(t.Path, config.DatasetID(source))); err == nil {
		// Copies from before count as free for us. How large they are takes
		// long to find out; they are no larger than all that is used.
		room += int64(st.Blocks-st.Bfree) * st.Bsize
	}
	quota := t.Quota.Of(room)
	switch {
	case quota > room:
		return warning(name, `Lower the quota, or use a share such as quota = "90%".`,
			"the quota is %s, and %s has %s free", t.Quota, dir, size(available(st)))
	case quota < tiny:
		return warning(name, "Raise the quota, or give it a unit such as GiB, or make room there.",
			"the quota, %s, leaves room for %s", t.Quota, size(quota))
	}
	return nil
}

func available(st unix.Statfs_t) int64 { return int64(st.Bavail) * st.Bsize }

func size(n int64) string { return humanize.IBytes(uint64(max(0, n))) }

// swapNote says that what is in memory may not stay there.
func (h host) swapNote(st unix.Statfs_t) string {
	if st.Type != unix.TMPFS_MAGIC {
		return ""
	}
	swaps, _ := os.ReadFile(filepath.Join(h.root, "proc/swaps"))
	if strings.Count(string(swaps), "\n") > 1 { // more than the heading
		return "; it may be swapped out"
	}
	return "; it is memory"
}

// A fileSystem is a kind of file system, as statfs(2) tells it.
type fileSystem struct {
	name    string
	network bool // or another daemon: reads leave this machine, or this kernel
}

var typeNames = map[int64]fileSystem{
	unix.TMPFS_MAGIC:           {"tmpfs", false},
	unix.RAMFS_MAGIC:           {"ramfs", false},
	unix.EXT4_SUPER_MAGIC:      {"ext4", false},
	unix.XFS_SUPER_MAGIC:       {"xfs", false},
	unix.BTRFS_SUPER_MAGIC:     {"btrfs", false},
	unix.F2FS_SUPER_MAGIC:      {"f2fs", false},
	unix.OVERLAYFS_SUPER_MAGIC: {"overlayfs", false},
	0x2fc12fc1:                 {"zfs", false},
	0xca451a4e:                 {"bcachefs", false},
	unix.NFS_SUPER_MAGIC:       {"NFS", true},
	unix.SMB_SUPER_MAGIC:       {"SMB", true},
	unix.SMB2_SUPER_MAGIC:      {"SMB", true},
	unix.CIFS_SUPER_MAGIC:      {"SMB", true},
	unix.CEPH_SUPER_MAGIC:      {"Ceph", true},
	unix.V9FS_MAGIC:            {"9p", true},
	unix.AFS_SUPER_MAGIC:       {"AFS", true},
	unix.FUSE_SUPER_MAGIC:      {"FUSE", true},
	0x0bd00bd0:                 {"Lustre", true},
	0x47504653:                 {"GPFS", true},
	0x19830326:                 {"BeeGFS", true},
}

func typeName(st unix.Statfs_t) string {
	if kind, ok := typeNames[int64(st.Type)]; ok {
		return kind.name
	}
	return fmt.Sprintf("a file system of type %#x", st.Type)
}

func statfs(path string) (unix.Statfs_t, error) {
	var st unix.Statfs_t
	err := unix.Statfs(path, &st)
	return st, err
}
