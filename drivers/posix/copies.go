package posix

import (
	"context"
	"errors"
	"path"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

// Copies implements drivers.Sweeper. It omits files that Milkweed did not create: those of
// another user, and those that have neither a record under their name nor copyMode.
func (s *Store) Copies(ctx context.Context, dir string) ([]drivers.Info, error) {
	if err := checkRequest(ctx, "readdir", dir); err != nil {
		return nil, err
	}
	t, err := s.acquire()
	if err != nil {
		return nil, pathError("readdir", dir, err)
	}
	defer t.release()
	fd, infos, err := t.files.list(ctx, dir)
	if err != nil {
		return nil, pathError("readdir", dir, err)
	}
	defer unix.Close(fd)
	copies := infos[:0]
	for _, info := range infos {
		if info.IsRegular() {
			created, err := t.hasCreated(ctx, path.Join(dir, info.Name), info)
			if err != nil {
				return nil, pathError("readdir", dir, err)
			}
			if !created {
				continue
			}
		}
		copies = append(copies, info)
	}
	return copies, nil
}

// hasCreated reports whether the regular file info is a copy of name that this package has
// written. The copy may be damaged since.
func (t *tree) hasCreated(ctx context.Context, name string, info drivers.Info) (bool, error) {
	if !isOwn(info.UID) {
		return false, nil
	}
	rec, err := t.records.find(ctx, info.Inode)
	if err != nil && !errors.Is(err, errNoRecord) {
		return false, err
	}
	hasRecord := err == nil && rec.name == nameHash(name)
	return hasRecord || info.Mode&0o7777 == copyMode && info.Nlink == 1, nil
}
