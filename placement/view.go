package placement

import (
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/refcount"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// A view is one place that a file is read from: a copy, a fill or the source. It is closed
// when the file has moved to another view and the last read in this one has ended.
type view struct {
	drivers.Object                 // nil if fill is set
	fill           *fill           // nil if Object is set
	level          tiers.Level     // of the copy, or of the copy that the fill makes
	copied         *metadata.Entry // whose copy Object is; nil if it is none
	atPeers        bool            // Object is the file at the peers; level is that of the source
	inPieces       bool            // Object is a *pieced; level is that of the source
	failed         atomic.Bool     // the file must move to another view
	refs           refcount.Count

	// Of a view for which atSource reports true: the level of the entry when the view was chosen, and the time
	// from which the tiers are examined again.
	entryLevel tiers.Level
	expires    time.Time
}

// sourceTTL is how long a file is read from the source before the tiers are examined again: one
// may have room now, or be healthy again.
const sourceTTL = time.Second

// sourceView makes a view at the source or at the peers, whose object is the file's.
func sourceView(o drivers.Object, e *metadata.Entry) *view {
	return &view{Object: o, entryLevel: e.Level(), expires: time.Now().Add(sourceTTL)}
}

// atSource reports whether the view is at the source, at the peers or in pieces, and not in a fill.
func (v *view) atSource() bool { return v.level == tiers.AtSource }

// usable reports whether e may be read in the view, and no better one is likely. A working
// copy stays usable after it was removed or superseded, since no other copy may have the version
// that is open. A nil view is not usable.
func (v *view) usable(e *metadata.Entry) bool {
	switch {
	case v == nil || v.failed.Load():
		return false
	case !v.atSource():
		return true
	}
	return v.entryLevel == e.Level() && (!e.Claimed() || e.Stale()) && time.Now().Before(v.expires)
}

// copy returns the open copy that the view reads.
func (v *view) copy() drivers.Object {
	if s, ok := v.Object.(*section); ok {
		return s.Object
	}
	return v.Object
}

// enter begins a read, and reports false if the view is closed.
func (v *view) enter() bool { return v.refs.Acquire() }

// leave ends a read. The file itself holds one reference, which it drops when it moves.
func (v *view) leave() {
	switch {
	case !v.refs.Release():
	case v.fill != nil:
		v.fill.release()
	case !v.atSource(): // the other objects are the file's
		v.Object.Close()
	}
}
