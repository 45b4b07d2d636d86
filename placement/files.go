package placement

import (
	"container/list"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// files are the files that are open: one for each entry, for all who have it
// open. One that nobody has open any more may stay:
//
//   - what no tier has room for is opened at the source once, and stays open for
//     the next epoch, as far as keep allows;
//   - what is read without being opened, in a stateless mount, stays open until
//     it has been for linger, since the next read is likely to follow.
type files struct {
	keep int // files at the source that stay open

	mu     sync.Mutex // guards the following
	open   map[*metadata.Entry]*file
	kept   list.List     // of *file: those at the source, the one unused for the longest first
	cursor *list.Element // in kept: where the last sweep stopped
	linger list.List     // of *file: the others, likewise
	closed bool          // nothing stays
}

// linger is how long a file that was read without being opened may have been
// open before it is closed, so that what becomes of its copy is noticed, and
// maxLinger how many such files there may be.
const (
	linger    = 2 * time.Second
	maxLinger = 1024
)

// A stay is the place of a file that nobody has open, among those that stay.
type stay struct {
	in    *list.List
	at    *list.Element
	since time.Time
}

// acquire returns the file of an entry, and reports whether it was not open
// until now. The caller gives it back by release.
func (fs *files) acquire(h *Handler, e *metadata.Entry) (f *file, fresh bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f = fs.open[e]
	if f != nil && f.broken.Load() { // who has it goes on with it
		fs.forget(f)
		f = nil
	}
	if f == nil {
		f = newFile(h, e)
		if fs.open == nil {
			fs.open = make(map[*metadata.Entry]*file)
		}
		fs.open[e] = f
		fresh = true
	}
	fs.leave(f)
	f.users++
	return f, fresh
}

// release gives a file back. The last who does so closes it, unless it stays;
// that a file was read without being opened makes it stay.
func (fs *files) release(f *file, read bool) {
	fs.mu.Lock()
	f.users--
	var last *file
	switch {
	case f.users > 0:
	case fs.closed || f.broken.Load() || f.entry.Stale() || f.filled():
		last = fs.forget(f)
	case f.stays():
		last = fs.add(&fs.kept, f, fs.keep)
	case read:
		last = fs.add(&fs.linger, f, maxLinger)
	default:
		last = fs.forget(f)
	}
	fs.mu.Unlock()
	if last != nil {
		last.close()
	}
}

// add lets a file stay, and returns the one that must go instead, if any; fs.mu
// must be held.
func (fs *files) add(l *list.List, f *file, most int) *file {
	f.stay = stay{l, l.PushBack(f), time.Now()}
	if l.Len() <= most {
		return nil
	}
	return fs.forget(l.Front().Value.(*file))
}

// leave takes a file out of those that stay; fs.mu must be held.
func (fs *files) leave(f *file) {
	if f.stay.in == nil {
		return
	}
	if fs.cursor == f.stay.at {
		fs.cursor = fs.cursor.Next()
	}
	f.stay.in.Remove(f.stay.at)
	f.stay = stay{}
}

// forget takes a file out that is to be closed, and returns it; fs.mu must be
// held.
func (fs *files) forget(f *file) *file {
	fs.leave(f)
	if fs.open[f.entry] == f { // and not one that was opened in its place
		delete(fs.open, f.entry)
	}
	return f
}

// len returns how many files at the source stay open.
func (fs *files) len() int64 {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return int64(fs.kept.Len())
}

// maxStay is how long a file at the source stays open that nobody opens: longer
// than an epoch takes, and not for ever, since it may have been removed.
const maxStay = 24 * time.Hour

// maxSweep bounds how many files one sweep looks at.
const maxSweep = 4096

// sweep closes what has lingered, and some of what has another version by now or
// was not opened for long.
func (fs *files) sweep(now time.Time) {
	fs.mu.Lock()
	var gone []*file
	for e := fs.linger.Front(); e != nil; {
		f := e.Value.(*file)
		e = e.Next()
		if now.Sub(f.since) > linger {
			gone = append(gone, fs.forget(f))
		}
	}
	if fs.cursor == nil {
		fs.cursor = fs.kept.Front()
	}
	for n := 0; n < maxSweep && fs.cursor != nil; n++ {
		f := fs.cursor.Value.(*file)
		fs.cursor = fs.cursor.Next()
		if f.entry.Stale() || now.Sub(f.stay.since) > maxStay {
			gone = append(gone, fs.forget(f))
		}
	}
	fs.mu.Unlock()
	closeAll(gone)
}

// close closes what stays, now and later.
func (fs *files) close() {
	fs.mu.Lock()
	fs.closed = true
	var gone []*file
	for _, l := range []*list.List{&fs.kept, &fs.linger} {
		for e := l.Front(); e != nil; e = l.Front() {
			gone = append(gone, fs.forget(e.Value.(*file)))
		}
	}
	fs.mu.Unlock()
	closeAll(gone)
}

// closeAll closes files, several at a time: to a parallel file system each may be
// a question.
func closeAll(gone []*file) {
	var closers sync.WaitGroup
	for part := range slices.Chunk(gone, len(gone)/16+1) {
		closers.Go(func() {
			for _, f := range part {
				f.close()
			}
		})
	}
	closers.Wait()
}

// Open opens a regular file where it is best read: on the fastest tier that
// has a copy, or in a fill, which it starts if there is a tier for the file,
// or at the source. What is returned moves from one to the other as copies
// come and go, and can Lend its content while that is in a local file. The
// error is the source's; it matches drivers.ErrChanged if the source has
// another version by now, in which case e is stale. So that an open can say it
// where the source Lists, it waits for the first block of a file that is being
// copied, if that is not there yet: the name is then looked up again, while a
// read could only say so to whoever reads.
func (h *Handler) Open(ctx context.Context, e *metadata.Entry) (drivers.Object, error) {
	f, fresh := h.files.acquire(h, e)
	err := h.opened(ctx, f, fresh)
	if err == nil && h.remote {
		err = f.awaitFirst(ctx)
	}
	if err != nil {
		h.files.release(f, false)
		return nil, err
	}
	return f, nil
}

// awaitFirst is the awaitFirst of the fill that the file is read from, if it is.
func (f *file) awaitFirst(ctx context.Context) error {
	v := f.at.Load()
	if v == nil || v.fill == nil || !v.enter() {
		return nil
	}
	defer v.leave()
	return v.fill.awaitFirst(ctx)
}

// opened goes to where a file is best read, and counts that it was opened. One
// that has been open at the source is of the version that the source had then.
func (h *Handler) opened(ctx context.Context, f *file, fresh bool) error {
	if f.entry.Size() == 0 {
		return nil
	}
	if !fresh {
		f.leaveFailed()
	}
	v, err := f.view(ctx)
	if err != nil {
		return err
	}
	defer v.leave()
	if !fresh {
		if err := f.verify(ctx, v); err != nil {
			return err
		}
	}
	if v.fill != nil {
		h.fillOpens.add(f.entry.Size())
	} else {
		h.opens[v.level].add(f.entry.Size())
	}
	h.ahead.opened(h, f.entry)
	return nil
}

// leaveFailed has the file be read elsewhere if the fill that it is read from has
// failed: what the source said then it may say no more.
func (f *file) leaveFailed() {
	if v := f.at.Load(); v != nil && v.fill != nil && v.fill.result() != nil {
		v.failed.Store(true)
	}
}

// ReadAt reads from a file that was not opened, as the ReadAt of one that was.
// The first read counts as an open.
func (h *Handler) ReadAt(ctx context.Context, e *metadata.Entry, p []byte, off int64) (int, error) {
	f, fresh := h.files.acquire(h, e)
	defer h.files.release(f, true)
	if fresh {
		if err := h.opened(ctx, f, true); err != nil {
			return 0, err
		}
	}
	return f.ReadAt(ctx, p, off)
}

// SpliceDescriptor is drivers.Splicer for the file of e, if that is open.
func (h *Handler) SpliceDescriptor(e *metadata.Entry) (fd uintptr, release func(n int), err error) {
	f := h.files.find(e)
	if f == nil {
		return 0, nil, errors.ErrUnsupported
	}
	fd, done, err := f.SpliceDescriptor()
	if err != nil {
		h.files.release(f, true)
		return 0, nil, err
	}
	return fd, func(n int) {
		done(n)
		h.files.release(f, true)
	}, nil
}

// find returns the file of an entry if it is open, and else nil. The caller
// gives it back by release.
func (fs *files) find(e *metadata.Entry) *file {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.open[e]
	if f != nil {
		fs.leave(f)
		f.users++
	}
	return f
}

// SpliceDescriptor implements drivers.Splicer for a file that is read from a copy.
func (f *file) SpliceDescriptor() (fd uintptr, release func(n int), err error) {
	v := f.at.Load()
	if !v.best(f.entry) || !v.enter() {
		return 0, nil, errors.ErrUnsupported
	}
	if s, ok := drivers.As[drivers.Splicer](v.Object); ok {
		var done func(int)
		if fd, done, err = s.SpliceDescriptor(); err == nil {
			return fd, func(n int) {
				done(n)
				v.leave()
			}, nil
		}
	}
	v.leave()
	return 0, nil, errors.ErrUnsupported
}

// BackingFile implements drivers.BackingFiler for a file that is read from a copy, or
// from the source if no tier has room for it. A registered open counts as passthrough.
//
// A small file at the source has no backing file: the kernel would open it once more for
// each open of the mount, while the daemon has it open already.
func (f *file) BackingFile(register func(fd uintptr) error) (release func(), err error) {
	v := f.at.Load()
	if v == nil || !v.enter() {
		return nil, errors.ErrUnsupported
	}
	b, ok := drivers.As[drivers.BackingFiler](v.Object)
	if !ok || v.level == tiers.AtSource && (f.entry.Size() < lendFrom || !f.stays()) {
		v.leave()
		return nil, errors.ErrUnsupported
	}
	done, err := b.BackingFile(register)
	if err != nil {
		v.leave()
		return nil, err
	}
	f.handler.lent[v.level].add(f.entry.Size())
	return func() {
		done()
		v.leave()
	}, nil
}

// lendFrom is the size from which a file at the source is lent, in bytes.
const lendFrom = 8 << 20
