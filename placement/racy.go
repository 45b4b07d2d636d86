package placement

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// A file is racy while its modification time or its change time is so recent that a later
// rewrite could leave both as they are: the file system gives the same time to changes within its
// granularity. The size and the times of such a file do not identify its content, so that no copy
// of it is made. (Git has the same problem and the same name for it: Documentation/
// technical/racy-git.txt.) When the file ceases to be racy, it is compared with the source once
// more, and the kernel drops the pages that it has cached meanwhile.
//
// The versions of an object store identify the content, so that its files are never racy.

// racyFiles decides which files are racy, and remembers those that were read while they were. Its
// methods may be called concurrently.
type racyFiles struct {
	window time.Duration // age of a time below which it is racy; 0: no file is racy
	start  time.Time     // when the handler was made

	ahead  atomic.Int64 // nanoseconds by which the clock of the source is ahead of the local one, at least
	future atomic.Int64 // the same, and not bounded by MaxClockAhead

	mu       panics.Mutex // guards the following
	until    map[*metadata.Entry]time.Time
	settling int   // files that settled has returned, and that are not settled yet
	seen     int64 // versions that were added to until
}

// MaxClockAhead bounds how far the clock of the source may be ahead. A change time that is further in
// the future does not measure the clock.
const MaxClockAhead = time.Hour

func newRacyFiles(window time.Duration) *racyFiles {
	return &racyFiles{window: window, start: time.Now(), until: make(map[*metadata.Entry]time.Time)}
}

// has reports whether e is racy now, and remembers it if so.
func (r *racyFiles) has(e *metadata.Entry, now time.Time) bool {
	if e = e.File(); r.window == 0 || e.Stale() {
		return false
	}
	info := e.Info()
	if info.Version != "" {
		return false
	}
	age := r.age(info, now)
	r.mu.Lock()
	defer r.mu.Unlock()
	until, known := r.until[e]
	switch {
	case known:
		return now.Before(until)
	case age >= r.window:
		return false
	}
	r.until[e] = now.Add(r.window - age)
	r.seen++
	return true
}

// ageOfChange returns the age of a change time by the clock of the source. That clock has set the
// time, which therefore shows how far it is ahead of the local clock. A time that is too far in the
// future is as old as the handler.
func (r *racyFiles) ageOfChange(ctime, now time.Time) time.Duration {
	ahead := int64(ctime.Sub(now))
	raise(&r.future, ahead)
	if ahead > int64(MaxClockAhead) {
		return now.Sub(r.start)
	}
	raise(&r.ahead, ahead)
	return time.Duration(r.ahead.Load() - ahead)
}

// raise sets v to n if that is more.
func raise(v *atomic.Int64, n int64) {
	for old := v.Load(); n > old; old = v.Load() {
		if v.CompareAndSwap(old, n) {
			return
		}
	}
}

// clockAhead returns by how much a change time was in the future when its file was opened, at most. It is
// 0 if none was.
func (r *racyFiles) clockAhead() time.Duration { return time.Duration(r.future.Load()) }

// ageOfContent returns the age of a modification time. A program may have set it, also to one in
// the future. That is not racy by itself: a rewrite would change it, and the change time shows
// when it was set.
func (r *racyFiles) ageOfContent(mtime, now time.Time) time.Duration {
	age := now.Add(time.Duration(r.ahead.Load())).Sub(mtime)
	if age < 0 {
		return r.window
	}
	return age
}

// total returns the number of versions of files that were racy when they were to be copied.
func (r *racyFiles) total() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen
}

// ChangedRecently reports whether e cannot be copied yet because it changed recently, or was not settled
// since. wait is how long that remains so at least, if it does not change again.
func (h *Handler) ChangedRecently(e *metadata.Entry) (wait time.Duration, recently bool) {
	return h.racy.left(e, time.Now())
}

// left is ChangedRecently. It remembers nothing.
func (r *racyFiles) left(e *metadata.Entry, now time.Time) (wait time.Duration, recently bool) {
	e = e.File()
	info := e.Info()
	if r.window == 0 || info.Version != "" {
		return 0, false
	}
	r.mu.Lock()
	until, known := r.until[e]
	r.mu.Unlock()
	if known {
		return max(0, until.Sub(now)), true
	}
	wait = r.window - r.age(info, now)
	return max(0, wait), wait > 0
}

// age returns the age of the times of a file, by the clock of the source.
func (r *racyFiles) age(info drivers.Info, now time.Time) time.Duration {
	return min(r.ageOfChange(info.Ctime, now), r.ageOfContent(info.Mtime, now))
}

// wait returns how long e remains racy.
func (r *racyFiles) wait(e *metadata.Entry, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.until[e.File()].Sub(now)
}

// len returns the number of files that were read while they were racy, and were not settled yet.
func (r *racyFiles) len() (n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for e := range r.until {
		if !e.Stale() { // otherwise the file has another version
			n++
		}
	}
	return n + int64(r.settling)
}

// settled removes and returns the files that are not racy any more, or none while those that it has
// returned before are being settled. The caller settles each of them, calls leave for it, and then
// calls end.
func (r *racyFiles) settled(now time.Time) (files []*metadata.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.settling > 0 {
		return nil
	}
	for e, until := range r.until {
		if !now.Before(until) {
			delete(r.until, e)
			files = append(files, e)
		}
	}
	r.settling = len(files)
	return files
}

// leave records that one of the files that settled has returned is settled.
func (r *racyFiles) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settling--
}

// end records that all files that settled has returned are settled, or could not be.
func (r *racyFiles) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settling = 0
}

// settleTimeout bounds the comparison of one file. A part of the source that hangs must not keep the
// other files from being settled. What waits for a rate limiter behind the reads of a job takes a second.
const settleTimeout = time.Minute

// settleRacy settles the files that are not racy any more, some at a time: each comparison lets the
// reads of the job pass for up to a second.
func (h *Handler) settleRacy(now time.Time) {
	files := h.racy.settled(now)
	if len(files) == 0 {
		return
	}
	defer h.racy.end()
	each(h.ctx, comparisons, files, h.settle)
}

// settle compares a file that is not racy any more with the source, and has the kernel drop its
// pages: they may be of any content that the file had while it was racy. Then it queues a copy of
// the file: the pages may have served all opens until now, and the next one may never come.
func (h *Handler) settle(e *metadata.Entry) {
	defer h.racy.leave()
	ctx, cancel := context.WithTimeout(drivers.Background(h.ctx), settleTimeout)
	defer cancel()
	switch err := h.names.Settle(ctx, e); {
	case h.ctx.Err() != nil, errors.Is(err, context.Canceled): // the source may stop first
	case err != nil:
		h.log.Log(ctx, drivers.WarnLevel(err), "file not compared with the source", "path", e.Path(), "err", err)
	default:
		h.queueCopy(e)
	}
}

// queueCopy queues a copy of e, unless it has one or cannot be copied now.
func (h *Handler) queueCopy(e *metadata.Entry) {
	rank := h.rank(e)
	if h.names.HasPieces(e) || e.Level() != tiers.AtSource || e.Claimed() || !h.mayPredict(e) || h.mayCopy(e, rank, forBackground) != nil {
		return
	}
	if f, _, err := h.claim(e, rank, forBackground); err == nil {
		f.release()
	}
}
