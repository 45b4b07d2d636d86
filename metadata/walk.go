package metadata

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"
	"syscall"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// A Finding is what Revalidate has found out about one name, or about several that are
// unchanged.
type Finding struct {
	Path   string // of the name; of the directory if the names in it are unchanged
	Change Change
	Names  int   // number of names if they are Unchanged; else 1
	Err    error // if not nil, the name or the names of the directory could not be compared
}

// ErrSource is the error of Revalidate if the root of the source cannot be read.
var ErrSource = errors.New("the source cannot be read")

// maxRequests bounds the requests of one call of Revalidate that are in flight.
const maxRequests = 8

// Revalidate compares what is cached of paths, and of everything below them, with the source
// now, whatever its TTL is: attributes, versions, listings, and names that were missing. Paths
// are as for Resolve; names that are not cached cost no request, except paths themselves. If a
// path exists neither in the cache nor at the source, the error matches io/fs.ErrNotExist. If the
// source is gone, it matches ErrSource.
//
// It calls found, never concurrently, for what it finds out. After a request that fails it
// continues with the other names. When it returns nil, all later lookups and listings return the
// new state, and Outdated has yielded every part of the kernel's cache that has changed. Then a
// goroutine must be in Outdated. As for WaitNotified, no request of the kernel may call it.
func (c *Container) Revalidate(ctx context.Context, paths []string, found func(Finding)) error {
	ctx = drivers.Background(ctx)
	w := &walk{c: c, found: found}
	w.wake.L = &w.mu
	if err := c.refreshRoot(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrSource, err)
	}
	for _, p := range paths {
		if err := w.start(ctx, p); err != nil {
			return err
		}
	}
	w.run(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return c.WaitNotified(ctx)
}

// A walk is one call of Revalidate.
type walk struct {
	c     *Container
	found func(Finding)

	reporting sync.Mutex // held while found is called

	mu     sync.Mutex // guards the following
	wake   sync.Cond  // signals that todo or active has changed
	todo   []visit    // a stack
	active int        // number of visits that have begun and not ended
}

// A visit is an entry that is to be validated, with what is cached below it.
type visit struct {
	e     *Entry
	valid bool // the entry itself is valid: only the names below it are not
}

// start validates the names of p one after another, and makes the last one the first visit.
func (w *walk) start(ctx context.Context, p string) error {
	e := w.c.root
	if p = path.Clean(p); p != "." {
		for elem := range strings.SplitSeq(p, "/") {
			if e.dir == nil {
				return fmt.Errorf("%s: %w", p, syscall.ENOTDIR)
			}
			if err := w.c.loadSnapshot(ctx, e); err != nil {
				return err
			}
			next, change, err := w.c.revalidateName(ctx, e, elem)
			switch {
			case err != nil:
				return fmt.Errorf("%s: %w", p, err)
			case next == nil && change == Unchanged:
				return fmt.Errorf("%s: %w", p, fs.ErrNotExist)
			}
			w.report(Finding{Path: pathOf(e, elem), Change: change, Names: 1})
			if next == nil {
				return nil // it was removed
			}
			e = next
		}
	}
	w.push(visit{e, true})
	return nil
}

// push adds visits.
func (w *walk) push(visits ...visit) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.todo = append(w.todo, visits...)
	w.wake.Broadcast()
}

// pop begins a visit. It reports false if none is left, or ctx is done.
func (w *walk) pop(ctx context.Context) (visit, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.todo) == 0 && w.active > 0 && ctx.Err() == nil {
		w.wake.Wait()
	}
	n := len(w.todo)
	if n == 0 || ctx.Err() != nil {
		return visit{}, false
	}
	v := w.todo[n-1]
	w.todo = w.todo[:n-1]
	w.active++
	return v, true
}

// end ends a visit.
func (w *walk) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active--
	w.wake.Broadcast()
}

// run makes the visits until none is left, or ctx is done.
func (w *walk) run(ctx context.Context) {
	defer context.AfterFunc(ctx, w.wakeAll)()
	var workers sync.WaitGroup
	for range maxRequests {
		workers.Go(func() {
			for {
				v, ok := w.pop(ctx)
				if !ok {
					return
				}
				if err := panics.Do(func() error { w.visit(ctx, v); return nil }); err != nil {
					w.fail(ctx, v.e, err)
				}
				w.end()
			}
		})
	}
	workers.Wait()
}

func (w *walk) wakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wake.Broadcast()
}

func (w *walk) report(f Finding) {
	w.reporting.Lock()
	defer w.reporting.Unlock()
	w.found(f)
}

// fail reports an error, unless the walk has ended or e was removed in the meantime.
func (w *walk) fail(ctx context.Context, e *Entry, err error) {
	if ctx.Err() == nil && !(errors.Is(err, syscall.ESTALE) && e.Stale()) {
		w.report(Finding{Path: e.Path(), Err: err})
	}
}

// visit validates one entry, and one directory below it if it is one.
func (w *walk) visit(ctx context.Context, v visit) {
	e := v.e
	if !v.valid {
		now, change, err := w.c.revalidateName(ctx, e.parent, e.Name())
		if err != nil {
			w.fail(ctx, e, err)
			return
		}
		w.report(Finding{Path: e.Path(), Change: change, Names: 1})
		if e = now; e == nil {
			return
		}
	}
	if e.dir == nil {
		return
	}
	if forgotten, err := w.c.forgetSnapshot(ctx, e); forgotten || err != nil {
		if err != nil {
			w.fail(ctx, e, err)
		}
		return
	}
	w.names(ctx, e)
}

// names validates the cached names in a directory.
func (w *walk) names(ctx context.Context, dir *Entry) {
	entries, missing, many, everListed := dir.dir.known()
	if !everListed && !many {
		w.eachName(ctx, dir, entries, missing)
		return
	}
	diff, err := w.c.relist(ctx, dir)
	switch {
	case isAbsent(err) && dir.parent != nil: // removed since it was validated
		w.push(visit{e: dir})
		return
	case err != nil:
		w.fail(ctx, dir, err)
	default:
		w.reportAll(diff.added, Added)
		w.reportAll(diff.removed, Removed)
		w.reportAll(diff.replaced, Replaced)
		for _, info := range diff.failed {
			w.report(Finding{Path: pathOf(dir, info.Name), Err: info.Err})
		}
		entries, _, _, _ = dir.dir.known()
		w.report(Finding{Path: dir.Path(), Names: max(len(entries)-len(diff.added)-len(diff.replaced)-len(diff.failed), 0)})
	}
	for _, e := range entries {
		if e.IsDir() {
			w.push(visit{e, err == nil})
		}
	}
}

// eachName validates the names of a directory that was never listed one by one: its other names
// may be many, and nothing is cached of them.
func (w *walk) eachName(ctx context.Context, dir *Entry, entries []*Entry, missing []string) {
	visits := make([]visit, len(entries))
	for i, e := range entries {
		visits[i] = visit{e: e}
	}
	w.push(visits...)
	for _, name := range missing {
		switch _, change, err := w.c.revalidateName(ctx, dir, name); {
		case err != nil:
			w.fail(ctx, dir, err)
			return
		case change != Unchanged:
			w.report(Finding{Path: pathOf(dir, name), Change: change, Names: 1})
		}
	}
}

func (w *walk) reportAll(entries []*Entry, change Change) {
	for _, e := range entries {
		w.report(Finding{Path: e.Path(), Change: change, Names: 1})
	}
}
