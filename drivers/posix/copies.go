package posix

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

// Copies implements drivers.Sweeper. It omits files that Milkweed did not create: those of
// another user, and those that have neither a record under their name nor copyMode.
func (s *Store) Copies(ctx context.Context, dir string) ([]drivers.Info, error) {
	return s.readDir(ctx, dir, func(t *tree, _ int, name string, info *drivers.Info) (bool, error) {
		return t.hasCreated(ctx, name, info)
	})
}

// isValid reports whether the regular file info is a valid copy of name, and sets the attributes
// in info to those that the source file had when it was copied.
func (t *tree) isValid(ctx context.Context, name string, info *drivers.Info) (bool, error) {
	info.Names = info.Nlink
	rec, err := t.validate(ctx, name, *info)
	switch {
	case err == nil:
		*info = rec.apply(*info)
		return true, nil
	case errors.Is(err, drivers.ErrCorrupt), err == unix.ENOENT: // ENOENT: the file of another user
		return false, nil
	}
	return false, err
}

// hasCreated reports whether the regular file info is a copy of name that this package has
// written. The copy may be damaged since.
func (t *tree) hasCreated(ctx context.Context, name string, info *drivers.Info) (bool, error) {
	if !isOwn(info.UID) {
		return false, nil
	}
	info.Names = info.Nlink
	rec, err := t.records.find(ctx, info.Inode, name)
	if err != nil && !errors.Is(err, errNoRecord) {
		return false, err
	}
	hasRecord := err == nil && rec.name == nameHash(name)
	if hasRecord && rec.describes(name, *info) {
		info.Mtime = rec.source.Mtime
	}
	return hasRecord || hasCopyMode(info), nil
}

// hasCopyMode reports whether a file has the attributes with which this package creates copies.
func hasCopyMode(info *drivers.Info) bool { return info.Mode&0o7777 == copyMode && info.Nlink == 1 }
