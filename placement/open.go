package placement

import (
	"context"
	"errors"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// Open opens a regular file where it is best read: on the fastest tier that has a copy; or in
// a fill, which it starts if a tier has room for the file; or at the source. The Object moves
// between these as copies come and go, and has a backing file and a splice descriptor while
// its content is in a local file. After an error of ReadAt that matches drivers.ErrRetry the
// caller repeats the read.
//
// The error of Open is the source's. It matches drivers.ErrChanged if the source has another
// version; e is stale then, and the caller looks the name up again. After the open it would be
// too late for that. The open of a source that is a drivers.VersionOpener does not find that out, nor does
// that of the peers; therefore Open waits for the first block of a fill from a source of
// drivers.LatencyRequest or from the peers.
func (h *Handler) Open(ctx context.Context, e *metadata.Entry) (drivers.Object, error) {
	f, fresh := h.files.acquire(h, e)
	ctx, op := f.trace(ctx)
	err := h.opened(ctx, f, fresh, 0)
	if err != nil && !fresh && f.broken.Load() { // the server of the descriptor is gone; another one may be there
		h.files.release(f)
		f, fresh = h.files.acquire(h, e)
		err = h.opened(ctx, f, fresh, 0)
	}
	if err == nil {
		err = f.awaitFirst(ctx)
	}
	if err == nil {
		err = f.holdSource(ctx)
	}
	op.endOpen(err)
	if err != nil {
		h.files.release(f)
		return nil, err
	}
	return f, nil
}

// ReadAt reads from a file that was not opened, as the ReadAt of an opened file does. The
// first read counts as an open. Since there are no opens that it could belong to, each read needs the
// permission of the source.
func (h *Handler) ReadAt(ctx context.Context, e *metadata.Entry, p []byte, off int64) (int, error) {
	f, fresh := h.files.acquire(h, e)
	defer h.files.release(f)
	if fresh {
		f.stateless = true
		opening, op := f.trace(ctx)
		err := h.opened(opening, f, true, off)
		op.endOpen(err)
		if err != nil {
			return 0, err
		}
		h.files.keep(f)
	} else if err := h.names.Permit(ctx, e); err != nil {
		return 0, err
	}
	n, err := f.ReadAt(ctx, p, off)
	h.settleFile(f)
	return n, err
}

// SpliceDescriptor is drivers.Splicer for a file that was not opened. It succeeds only after
// ReadAt, and while the source permits it.
func (h *Handler) SpliceDescriptor(e *metadata.Entry) (fd uintptr, release func(n int), err error) {
	if !h.names.IsPermitted(e) {
		return 0, nil, errors.ErrUnsupported
	}
	f := h.files.find(e)
	if f == nil {
		return 0, nil, errors.ErrUnsupported
	}
	fd, done, err := f.SpliceDescriptor()
	if err != nil {
		h.files.release(f)
		return 0, nil, err
	}
	return fd, func(n int) {
		done(n)
		h.files.release(f)
	}, nil
}

// opened chooses where a file is read, and counts the open. If the file, or its lazy fill, was open at the
// source before, opened verifies that the source still has the version. off is where the file is
// read first.
func (h *Handler) opened(ctx context.Context, f *file, fresh bool, off int64) error {
	if f.entry.Size() == 0 {
		return h.names.Permit(ctx, f.entry)
	}
	began := time.Now()
	h.epochs.opened(f.entry.ID(), off > 0)
	if !fresh {
		f.leaveFailed()
	}
	v, err := f.enterView(ctx)
	if err == nil && (!fresh || v.fill != nil) {
		v, err = f.verified(ctx, v)
	}
	if err != nil {
		return err
	}
	defer v.leave()
	if !fresh || !v.atSource() || v.atPeers || v.inPieces { // otherwise the source has just opened it
		if err := h.names.Permit(ctx, f.entry); err != nil {
			return err
		}
	}
	missing := v.fill != nil || v.level == tiers.AtSource
	if v.inPieces {
		o := v.Object.(*pieced)
		if missing = h.countPieced(o); missing && fresh {
			h.fillPieces(o.file, o.pieces)
		}
	} else {
		h.usage.at(h, v).add(f.entry.Size())
		if fresh && v.fill == nil && !v.atPeers && h.names.HasPieces(f.entry) {
			h.dropPieces(f.entry)
		}
	}
	first := h.usage.opened(f.entry, began)
	h.predict(ctx, f.entry, missing, first)
	return nil
}
