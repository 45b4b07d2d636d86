package tiers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sync/atomic"
	"syscall"

	"github.com/milkweedfs/milkweed/drivers"
)

// A CopyName is the name of a copy, or of a directory of copies, that was found in a tier. It
// need not be the CopyName of an entry that is loaded.
type CopyName string

// A CopyInfo is a copy that was found in a tier. It may be damaged.
type CopyInfo struct {
	Name CopyName
	Size int64 // of the file in the tier
	Room int64 // bytes that it occupies, with other names that share its storage

	info drivers.Info
}

// Copies calls f for each directory at and below root, with the copies in it. root is a
// directory or one copy; if the tier has no root, Copies does nothing. It stops at the first
// error of f or of the store. Like the scan, a listing takes time in proportion to its length
// and has no time-out.
func (t *Tier) Copies(ctx context.Context, root CopyName, f func(copies []CopyInfo) error) error {
	dirs := []string{string(root)}
	for len(dirs) > 0 {
		dir := dirs[len(dirs)-1]
		dirs = dirs[:len(dirs)-1]
		infos, err := t.listCopies(ctx, dir)
		switch {
		case errors.Is(err, syscall.ENOTDIR) && dir == string(root):
			return t.copyAlone(ctx, root, f)
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR): // removed meanwhile
			continue
		case err != nil:
			return err
		}
		var copies []CopyInfo
		for _, info := range infos {
			name := path.Join(dir, info.Name)
			switch {
			case info.IsDir():
				dirs = append(dirs, name)
			case info.IsRegular():
				copies = append(copies, foundCopy(name, info))
			}
		}
		if err := f(copies); err != nil {
			return err
		}
	}
	return nil
}

// copyAlone is Copies of one copy.
func (t *Tier) copyAlone(ctx context.Context, name CopyName, f func(copies []CopyInfo) error) error {
	info, err := t.Stat(ctx, string(name))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return nil
	case err != nil && !errors.Is(err, drivers.ErrCorrupt):
		return err
	case !info.IsRegular():
		return nil
	}
	return f([]CopyInfo{foundCopy(string(name), info)})
}

// foundCopy describes a copy that was found in a tier.
func foundCopy(name string, info drivers.Info) CopyInfo {
	return CopyInfo{CopyName(name), info.Size, occupied(info), info}
}

// listCopies lists a directory of copies, with the damaged ones.
func (t *Tier) listCopies(ctx context.Context, dir string) ([]drivers.Info, error) {
	if !t.health.readable() {
		return nil, t.note(listing, errDown)
	}
	infos, err := await(ctx, 0, func() ([]drivers.Info, error) {
		if s, ok := drivers.As[drivers.Sweeper](t.store); ok {
			return s.Copies(ctx, dir)
		}
		return t.store.ReadDir(ctx, dir)
	}, nil, nil)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR): // no failure of the tier
		return nil, err
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return infos, t.note(listing, err)
}

// ReadDirAny is ReadDir of a directory that is none of the source.
func (t *Tier) ReadDirAny(ctx context.Context, dir CopyName) ([]drivers.Info, error) {
	return t.ReadDir(ctx, string(dir))
}

// StatAny is Stat of a name that need not be that of an entry.
func (t *Tier) StatAny(ctx context.Context, name CopyName) (drivers.Info, error) {
	return t.Stat(ctx, string(name))
}

// RemoveAny is Remove of a copy that was found in the tier.
func (t *Tier) RemoveAny(ctx context.Context, name CopyName) error {
	return t.Remove(ctx, string(name))
}

// OpenAny opens the copy of name, whichever version it is of. If it is damaged, the error
// matches drivers.ErrCorrupt.
func (t *Tier) OpenAny(ctx context.Context, name CopyName) (drivers.Object, error) {
	return t.open(ctx, string(name), func(drivers.Info) bool { return true })
}

// CheckObject compares an open copy with its checksums, block by block. It calls pause after
// each block with the length of the block, and stops when that returns an error. The error
// matches drivers.ErrCorrupt if a block is not what was written. A copy without checksums has
// nothing to check.
func CheckObject(ctx context.Context, o drivers.Object, pause func(n int) error) error {
	c, ok := drivers.As[drivers.Checker](o)
	if !ok {
		return nil
	}
	for off, size := int64(0), o.Info().Size; off < size; off += drivers.ChecksumBlock {
		n, err := c.Check(ctx, off)
		if err == nil {
			err = pause(n)
		}
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// Discard removes a copy, because it is corrupt, and counts it. It reports whether it
// did. o is the copy that was found to be corrupt, and is still open; it is nil if the copy
// could not be opened. If another copy has the name by now, Discard leaves it. No entry needs
// to be claimed: if an entry is published on the copy meanwhile, Lost does not count it twice.
func (t *Tier) Discard(ctx context.Context, copied CopyName, o drivers.Object) (bool, error) {
	removed, err := t.removeIf(ctx, string(copied), func(now drivers.Info, damaged bool) bool {
		return damaged || o != nil && sameFile(now, o.Info())
	})
	if removed {
		atomic.AddInt64(&t.counters.Corrupt, 1)
	}
	return removed, err
}

// RemoveFound removes a copy that Copies has found. It reports whether it did. If another copy has the
// name by now, RemoveFound leaves it, unless that is of the same version and has the same inode number.
// As for Discard, no entry needs to be claimed.
func (t *Tier) RemoveFound(ctx context.Context, c CopyInfo) (bool, error) {
	return t.removeIf(ctx, string(c.Name), func(now drivers.Info, _ bool) bool { return sameFile(now, c.info) })
}

// removeIf removes the copy of name if is returns true for it, and reports whether it did.
func (t *Tier) removeIf(ctx context.Context, name string, is func(now drivers.Info, damaged bool) bool) (bool, error) {
	if !t.Scanned() {
		return false, fmt.Errorf("tier %s: remove %q: %w", t.name, name, errNotScanned)
	}
	return do(ctx, t, writing, func() (bool, error) {
		if !t.space.begin(name) { // it is being removed or replaced
			return false, nil
		}
		defer t.space.end(name)
		now, err := t.store.Stat(ctx, name)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
			return false, nil
		case err != nil && !errors.Is(err, drivers.ErrCorrupt):
			return false, err
		case !is(now, err != nil):
			return false, nil
		}
		if now.Names > 1 {
			t.sharing.Lock()
			defer t.sharing.Unlock()
			now = t.statShared(ctx, name, now)
		}
		bytes, keep := t.space.returns(name, now)
		if err := t.store.Remove(ctx, name); err != nil {
			keep()
			return false, err
		}
		t.space.discard(name, bytes)
		return true, nil
	}, nil)
}

// sameFile reports whether i and j describe the same file of a store.
func sameFile(i, j drivers.Info) bool { return i.Inode == j.Inode && i.SameVersion(j) }

// Busy reports whether an operation on the tier is in progress. A tier in memory is never busy.
func (t *Tier) Busy() bool { return t.inFlight.Load() > 0 }

// Available returns nil if the tier can be read and was scanned, and otherwise the reason.
func (t *Tier) Available() error {
	if state, cause := t.health.get(); state == Down {
		return fmt.Errorf("%w: %w", errDown, cause)
	}
	if !t.Scanned() {
		return errNotScanned
	}
	return nil
}

// discard takes the copy of name, which was removed, off the account, and remembers that until
// the next commit.
func (s *space) discard(name string, bytes int64) {
	s.removed(name, bytes)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.discarded == nil {
		s.discarded = make(map[string]bool)
	}
	s.discarded[name] = true
}

// isDiscarded reports whether the copy of name was discarded and not made again.
func (s *space) isDiscarded(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.discarded[name]
}

// linked adds the copy of name, which shares the storage of another one.
func (s *space) linked(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.discarded, name)
	s.files++
}

// committed adds an open handle of the copy of name, which was just committed.
func (s *space) committed(name string) *openCopy {
	s.mu.Lock()
	delete(s.discarded, name)
	s.mu.Unlock()
	return s.acquire(name)
}
