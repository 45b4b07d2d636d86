package placement

import (
	"errors"
	"io/fs"
	"syscall"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// recheck examines the tiers for copies of an entry that the caller has claimed and that
// is Unverified. It publishes the entry if a tier holds its version, and then reports
// true. It removes copies of other versions. If every tier has answered, the entry is no
// longer Unverified.
func (h *Handler) recheck(e *metadata.Entry) bool {
	if !e.Unverified() {
		return false
	}
	want, all := e.Info(), true
	for _, t := range h.levels.Tiers() {
		info, err := t.Stat(h.ctx, e.CopyName())
		switch {
		case err == nil && want.SameContent(info):
			e.Publish(t.Level())
			return true
		case (err == nil || errors.Is(err, drivers.ErrCorrupt)) && info.IsRegular():
			all = h.removeOutdated(t, e) && all
		case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
			all = false
		}
	}
	if all {
		e.Verified()
	}
	return false
}

// removeOutdated removes the copy of another version that t holds under e's name, and
// reports success. Once e is stale, the copy may be that of its successor and stays.
func (h *Handler) removeOutdated(t *tiers.Tier, e *metadata.Entry) bool {
	if e.Stale() || !t.Scanned() {
		return false
	}
	if err := t.Remove(h.ctx, e.CopyName()); err != nil {
		h.log.Warn("outdated copy not removed", "path", e.Path(), "err", err)
		return false
	}
	return true
}

// missing handles a copy of e that the tier of level l did not have when it was opened. The
// copy may have been made since. missing therefore claims the entry, so that the copy cannot
// change, and examines the tier again.
func (h *Handler) missing(e *metadata.Entry, l tiers.Level) {
	if !e.Retract(l) { // stale, or handled by another goroutine
		e.Demote(l)
		return
	}
	t := h.levels.Tier(l)
	info, err := t.Stat(h.ctx, e.CopyName())
	switch {
	case err == nil && e.Info().SameContent(info):
		e.Publish(l)
		return
	case errors.Is(err, fs.ErrNotExist):
		t.Lost(e.CopyName(), e.Size())
	}
	e.Release()
}

// corrupt removes the copy of e on level l, because it is corrupt. o is the open copy, or nil if
// it could not be opened. The next open copies the file again. If the tier fails to remove the
// copy, the next open finds it again, and compares it with its checksums.
func (h *Handler) corrupt(e *metadata.Entry, l tiers.Level, o drivers.Object, cause error) {
	if found, _ := h.discard(h.levels.Tier(l), tiers.CopyName(e.CopyName()), o, cause); found {
		e.Demote(l)
	}
}

// discard removes a corrupt copy, and logs that. It reports whether the copy was found; if another
// one has the name by now, that stays. The error means that the tier failed to remove the copy; it
// is logged, too. No entry is changed.
func (h *Handler) discard(t *tiers.Tier, name tiers.CopyName, o drivers.Object, cause error) (found bool, err error) {
	removed, err := t.Discard(h.ctx, name, o)
	if removed || err != nil {
		h.log.Error("copy is corrupt", "path", string(name), "tier", t.Name(), "err", cause)
	}
	if err != nil {
		h.log.Warn("corrupt copy not removed", "path", string(name), "tier", t.Name(), "err", err)
	}
	return removed || err != nil, err
}

// Retract drops the copy of e, if a tier holds one, and reports whether it did. Open files
// stay readable: handles that are open on the copy keep it, and its room is returned when
// the last of them is closed. While a handle is open on the copy, later opens share
// it. After that, an open reads from the source or makes a new copy. The error
// is that of the tier; then the copy may still be on its disk, and a later open finds it.
func (h *Handler) Retract(e *metadata.Entry) (bool, error) {
	l := e.Level()
	if !e.Retract(l) {
		return false, nil
	}
	defer e.Release()
	t := h.levels.Tier(l)
	if _, err := t.Stat(h.ctx, e.CopyName()); errors.Is(err, fs.ErrNotExist) { // removed by hand
		t.Lost(e.CopyName(), e.Size())
	} else if err := t.Remove(h.ctx, e.CopyName()); err != nil {
		return false, err
	}
	e.Verified()
	return true, nil
}
