package placement

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// OpenShared opens the version of a file or piece that another node of the job requests. name is the
// unit of drivers.CutUnit. want has its size, modification time and Version, as that node knows them;
// rank is the place of this node among the choices for it, as that node sees it, or -1 if it is only to
// send a copy.
//
// The file is read from a copy, or in a fill while it is in flight. If there is neither, and rank is
// right, a fill from the source starts. The request waits as a reader of this node does, but is none
// for the predictors: what another node reads is not the job of this one.
//
// If there is no room, the error matches drivers.ErrFull; if the source has another version,
// drivers.ErrChanged; if there is no copy, and this node is not to make one now, fs.ErrNotExist.
// Other errors are those of the source or of ctx, or say that the tiers have not been scanned yet.
// If a copy fails, ReadAt of the Object continues in another one, in a fill or at the source. While
// the Object reads a copy, it has a backing file and checksums.
func (h *Handler) OpenShared(ctx context.Context, name string, want drivers.Info, rank int) (drivers.Object, error) {
	ctx = context.WithValue(ctx, peerKey{}, true)
	e, err := h.resolveShared(ctx, name, want)
	if err != nil {
		return nil, err
	}
	if !h.isChoice(e, rank) {
		if copied(e).Level() == tiers.AtSource {
			return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
		}
	}
	if err := h.awaitRoom(ctx, e); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	o, err := h.openShared(ctx, e)
	switch {
	case errors.Is(err, errNoRoom):
		return nil, fmt.Errorf("%s: %w", name, drivers.ErrFull)
	case isElsewhere(err):
		return nil, fmt.Errorf("%s: %w: %w", name, fs.ErrNotExist, err)
	case err != nil:
		return nil, err
	}
	return o, nil
}

// maxScanWait bounds how long after the start the requests of other nodes wait for the scan of the
// tiers. Later, the second choice is faster, although it then keeps the files.
const maxScanWait = 5 * time.Second

// errNotScanned: the tiers may have room when they have been scanned.
var errNotScanned = errors.New("the tiers have not been scanned yet")

// awaitRoom waits for the scan of the tiers if e has neither a copy nor a fill, and nothing else is
// known to have room for one. The error is errNotScanned, or ctx's.
func (h *Handler) awaitRoom(ctx context.Context, e *metadata.Entry) error {
	if e.Level() != tiers.AtSource || e.Claimed() || e.Unverified() || h.Fits(e.Size()) || !h.scanning() {
		return nil
	}
	wait, cancel := context.WithDeadline(ctx, h.peers.started.Add(maxScanWait))
	defer cancel()
	h.levels.WaitScanned(wait)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case h.scanning() && !h.Fits(e.Size()):
		return errNotScanned
	}
	return nil
}

// scanning reports whether the scan of a tier is awaited.
func (h *Handler) scanning() bool {
	return slices.ContainsFunc(h.levels.Tiers(), (*tiers.Tier).Scanning)
}

// resolveShared returns the entry of the version that another node requests. If this node knows
// another version, it confirms that at the source.
func (h *Handler) resolveShared(ctx context.Context, name string, want drivers.Info) (*metadata.Entry, error) {
	path, piece, valid := drivers.CutUnit(name)
	if h.peers == nil || !valid {
		return nil, fmt.Errorf("%q: %w", name, fs.ErrNotExist)
	}
	file, err := h.names.Resolve(ctx, path)
	if err != nil {
		return nil, err
	}
	e, err := h.unitOf(ctx, file, piece)
	if err == nil && (e == nil || !isVersion(e, want)) {
		if file, err = h.names.Confirm(ctx, file); err == nil {
			e, err = h.unitOf(ctx, file, piece)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case e == nil || !isVersion(e, want):
		return nil, fmt.Errorf("%q: %w", name, drivers.ErrChanged)
	}
	return e, nil
}

// unitOf returns the piece of a file that has a name, or the file itself if that is "". It returns nil
// if the file, as this node knows it, is not divided so.
func (h *Handler) unitOf(ctx context.Context, file *metadata.Entry, piece string) (*metadata.Entry, error) {
	switch {
	case piece != "":
		return h.names.Piece(ctx, file, piece)
	case h.names.HasPieces(file):
		return nil, nil
	}
	return file, nil
}

// isVersion reports whether want describes e.
func isVersion(e *metadata.Entry, want drivers.Info) bool {
	info := e.Info()
	if want.Mode == 0 {
		want.Mode = info.Mode
	}
	return e.IsRegular() && !e.Stale() && want.SameContent(info)
}

// openShared opens a file for another node. The error may be one that isElsewhere.
func (h *Handler) openShared(ctx context.Context, e *metadata.Entry) (*shared, error) {
	f := newFile(h, e)
	f.stateless, f.forPeer = true, true
	if e.Size() > 0 {
		v, err := f.enterView(ctx)
		if err != nil {
			f.close()
			return nil, err
		}
		v.leave()
		if err := h.names.Permit(ctx, e); err != nil {
			f.close()
			return nil, err
		}
	}
	return &shared{f}, nil
}

// peerKey is the context key of requests of other nodes.
type peerKey struct{}

// isForPeer reports whether another node has made a request.
func isForPeer(ctx context.Context) bool { return ctx.Value(peerKey{}) != nil }

// A shared is a file that another node reads.
type shared struct{ file *file }

var (
	_ drivers.Object       = (*shared)(nil)
	_ drivers.BackingFiler = (*shared)(nil)
	_ drivers.Checksummer  = (*shared)(nil)
)

// ReadAt implements drivers.Object. It repeats a read that matches drivers.ErrRetry by itself, unless
// the error also matches drivers.ErrAbandoned, after which the caller repeats it with a new buffer.
func (s *shared) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	ctx = context.WithValue(ctx, peerKey{}, true)
	for {
		n, err := s.file.ReadAt(ctx, p, off)
		if !errors.Is(err, drivers.ErrRetry) || errors.Is(err, drivers.ErrAbandoned) || ctx.Err() != nil {
			return n, err
		}
	}
}

// Checksums returns the stored checksums of blocks, while the Object reads a copy.
func (s *shared) Checksums(first, n int64) ([]uint32, error) {
	v := s.file.current.Load()
	if v == nil || !v.enter() {
		return nil, errors.ErrUnsupported
	}
	defer v.leave()
	if c, ok := drivers.As[drivers.Checksummer](v.Object); ok && !v.atSource() {
		return c.Checksums(first, n)
	}
	return nil, errors.ErrUnsupported
}

// A private is a shared of which this node itself is the reader. Its buffers are its own, so that no
// read of it is abandoned or has to be repeated.
type private struct{ *shared }

// ReadAt implements drivers.Object.
func (s private) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	for {
		buf := make([]byte, len(p))
		n, err := s.shared.ReadAt(ctx, buf, off)
		if !errors.Is(err, drivers.ErrRetry) || ctx.Err() != nil {
			return copy(p, buf[:n]), err
		}
	}
}

// BackingFile implements drivers.BackingFiler.
func (s *shared) BackingFile(register func(fd uintptr) error) (release func(), err error) {
	if v := s.file.current.Load(); v == nil || v.atSource() {
		return nil, errors.ErrUnsupported
	}
	return s.file.BackingFile(register)
}

// Info implements drivers.Object.
func (s *shared) Info() drivers.Info { return s.file.entry.Info() }

// Close implements drivers.Object.
func (s *shared) Close() error {
	s.file.close()
	return nil
}
