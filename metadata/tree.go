package metadata

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

const (
	maxVisits = 8  // directories that one call of Walk lists at the same time
	walkBatch = 64 // names of a directory whose attributes it requests together
)

// walkTimeout bounds how long Walk waits for the attributes of one name. After maxUnanswered names
// it waits for no other, because each request that hangs takes a goroutine.
const (
	walkTimeout   = 30 * time.Second
	maxUnanswered = 16
)

var errNoAnswer = fmt.Errorf("the source has not returned its attributes within %v", walkTimeout)

// Walk calls f for the given entries and for all entries below them, a directory before its
// entries. The calls are not concurrent, and in no certain order. No entry that f gets without an
// error is Unknown. If the source returns an error for the names in a directory, or for the
// attributes of an entry, or does not return these within walkTimeout, Walk calls f with the entry
// and that error, and goes on. It stops when ctx is done, or at the first error of f. It skips what
// is removed during the walk.
func (c *Container) Walk(ctx context.Context, entries []*Entry, f func(*Entry, error) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t := &treeWalk{c: c, f: f, stop: cancel, todo: newTodoList(reversed(entries)...)}
	t.todo.run(ctx, maxVisits,
		func(e *Entry) { t.visit(ctx, e) },
		func(e *Entry, err error) { t.fail(ctx, e, err) })
	return context.Cause(ctx)
}

// A treeWalk is one call of Walk.
type treeWalk struct {
	c    *Container
	stop context.CancelCauseFunc
	todo *todoList[*Entry]

	unanswered atomic.Int32 // names whose attributes the source has not returned in time

	mu sync.Mutex // held while f is called
	f  func(*Entry, error) error
}

// report calls f, unless the walk has ended.
func (t *treeWalk) report(ctx context.Context, e *Entry, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	if err := t.f(e, err); err != nil {
		t.stop(err)
	}
}

// fail reports an error for e, unless e was removed.
func (t *treeWalk) fail(ctx context.Context, e *Entry, err error) {
	if !e.Stale() && !errors.Is(err, fs.ErrNotExist) {
		t.report(ctx, e, fmt.Errorf("%s: %w", e.Path(), err))
	}
}

// visit reports an entry, whose attributes it requests if they are unknown, and the entries of a
// directory.
func (t *treeWalk) visit(ctx context.Context, e *Entry) {
	if e.Unknown() {
		now, err := t.lookup(ctx, e)
		if err != nil {
			t.fail(ctx, e, err)
			return
		}
		e = now
	}
	t.report(ctx, e, nil)
	if !e.IsDir() {
		return
	}
	entries, err := t.c.List(ctx, e)
	if err != nil {
		t.fail(ctx, e, err)
		return
	}
	t.names(ctx, e, entries)
}

// names reports the entries of a directory, or has them visited. It requests the attributes of one
// batch while it reports the one before.
func (t *treeWalk) names(ctx context.Context, dir *Entry, entries []*Entry) {
	request := func(batch []*Entry) <-chan error {
		done := make(chan error, 1)
		go func() {
			done <- panics.Do(func() error { return t.c.requestUnknown(ctx, dir, batch) })
		}()
		return done
	}
	batches := slices.Collect(slices.Chunk(entries, walkBatch))
	var later []*Entry
	var next <-chan error
	for i, batch := range batches {
		if i == 0 {
			next = request(batch)
		}
		err := <-next
		if i+1 < len(batches) {
			next = request(batches[i+1])
		}
		later = append(later, t.batch(ctx, dir, batch, err)...)
	}
	t.todo.push(reversed(later)...)
}

// lookup returns the entry that the name of e, which is Unknown, gets with its attributes.
func (t *treeWalk) lookup(ctx context.Context, e *Entry) (*Entry, error) {
	if t.unanswered.Load() >= maxUnanswered {
		return nil, errNoAnswer
	}
	ctx, cancel := context.WithTimeoutCause(ctx, walkTimeout, errNoAnswer)
	defer cancel()
	now, err := t.c.lookupByStat(ctx, e.parent, e.Name(), nil)
	if errors.Is(err, errNoAnswer) {
		t.unanswered.Add(1)
	}
	return now, err
}

// batch reports entries of a directory, except those that are to be visited, which it returns: the
// directories, and the entries whose attributes the source has not returned with the others. err is
// the error of the request for these.
func (t *treeWalk) batch(ctx context.Context, dir *Entry, entries []*Entry, err error) (later []*Entry) {
	if err != nil {
		return entries // each will show its own error
	}
	for _, e := range entries {
		if e.Stale() { // its type has changed
			e, _, _ = dir.dir.find(e.Name())
		}
		switch {
		case e == nil:
		case e.Unknown() || e.IsDir():
			later = append(later, e)
		default:
			t.report(ctx, e, nil)
		}
	}
	return later
}

// reversed returns the entries in reverse order.
func reversed(entries []*Entry) []*Entry {
	r := slices.Clone(entries)
	slices.Reverse(r)
	return r
}
