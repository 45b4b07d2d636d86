package metadata

import (
	"context"
	"errors"
	"io/fs"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/tiers"
)

// A tierCopy is the copy that one tier holds under a name. It is smaller than a
// drivers.Info, because there may be a million of them while a directory is listed.
type tierCopy struct {
	level       tiers.Level
	mode        uint32
	mtimeN      uint32
	mtime, size int64
}

func makeTierCopy(l tiers.Level, i drivers.Info) tierCopy {
	return tierCopy{l, i.Mode, uint32(i.Mtime.Nanosecond()), i.Mtime.Unix(), i.Size}
}

// info returns the attributes that distinguish versions of a copy.
func (c tierCopy) info() drivers.Info {
	return drivers.Info{Mode: c.mode, Size: c.size, Mtime: time.Unix(c.mtime, int64(c.mtimeN))}
}

// nameCopies are the copies that the tiers held under one name.
type nameCopies struct {
	copies     []tierCopy // the fastest first
	incomplete bool       // a tier did not respond
	retired    uint32     // directory.retired before the tiers were examined
}

// dirCopies are the copies that the tiers held in one directory.
type dirCopies struct {
	tiers      []map[string]tierCopy // the fastest first, by name
	incomplete bool                  // a tier did not respond
	retired    uint32                // directory.retired before the tiers were examined
}

// of returns the copies under a name.
func (d *dirCopies) of(name string) nameCopies {
	n := nameCopies{incomplete: d.incomplete, retired: d.retired}
	for _, t := range d.tiers {
		if c, ok := t[name]; ok {
			n.copies = append(n.copies, c)
		}
	}
	return n
}

// listCopies lists a directory in every tier. The directory must not be locked.
func (c *Container) listCopies(ctx context.Context, dir *Entry) dirCopies {
	d := dirCopies{retired: dir.dir.countRetired()}
	name := dir.CopyName()
	for _, t := range c.levels.Tiers() {
		infos, err := t.ReadDir(ctx, name)
		if err != nil && !isAbsent(err) {
			d.incomplete = true
		}
		byName := make(map[string]tierCopy, len(infos))
		for _, info := range infos {
			byName[info.Name] = makeTierCopy(t.Level(), info)
		}
		d.tiers = append(d.tiers, byName)
	}
	return d
}

// findCopies looks for copies of e in every tier. The directory of e must not be locked.
func (c *Container) findCopies(ctx context.Context, e *Entry) nameCopies {
	n := nameCopies{retired: e.parent.dir.countRetired()}
	if !e.Placeable() {
		return n
	}
	for _, t := range c.levels.Tiers() {
		n.examine(ctx, t, e)
	}
	return n
}

// examine looks for a copy of e in a tier.
func (n *nameCopies) examine(ctx context.Context, t *tiers.Tier, e *Entry) {
	info, err := t.Stat(ctx, e.CopyName())
	switch {
	case err == nil:
		n.copies = append(n.copies, makeTierCopy(t.Level(), info))
	case !isAbsent(err):
		n.incomplete = true
	}
}

// isAbsent reports whether err means that a tier has no file or directory of the name.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// addVersion adds e, a version that is new to the container, to the table, and sets its level. If
// the kernel has cached that the name is missing, Outdated yields the name. old is the entry that
// the name has at that time, or nil. copies are those that the tiers held. The caller holds the
// lock of the directory, and puts e in the place of old.
//
// A fill of an earlier version may have published its copy after the tiers were examined.
// That copy is not among copies and is outdated. Therefore e is Unverified if it replaces
// old, or if another entry of the directory was retired after the tiers were examined.
func (c *Container) addVersion(e, old *Entry, copies nameCopies) {
	c.table.add(e)
	if e.Unknown() {
		e.parent.dir.ahead.unknown.Add(1)
	}
	if e.parent.dir.removeMissing(e.Name()) {
		c.outdated.addName(e)
	}
	if old != nil && !old.Unknown() && !old.matches(e.info()) {
		c.overtake()
	}
	e.setLevel(copies)
	if old != nil && old.WasOpened() {
		e.MarkOpened()
	}
	if old != nil || e.parent.dir.retired != copies.retired {
		e.setBits(unverified)
	}
}

// setLevel sets the level of an entry without a copy to that of the fastest copy of its version;
// e.attributes must be held.
func (e *Entry) setLevel(n nameCopies) { e.setBits(e.levelBits(n)) }

// levelBits returns the level of the fastest copy of the version of e. If there is none, but there
// may be copies of other versions, it returns the bit unverified. e.attributes must be held.
func (e *Entry) levelBits(n nameCopies) uint32 {
	if !e.IsRegular() || e.size == 0 || e.isReserved() {
		return 0
	}
	for _, c := range n.copies {
		if e.sameVersion(c.info()) {
			return uint32(c.level)
		}
	}
	if n.incomplete || len(n.copies) > 0 {
		return unverified
	}
	return 0
}
