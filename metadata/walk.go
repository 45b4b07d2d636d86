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
)

// A Finding is what Revalidate has found out about one name, or about several that are
// unchanged.
type Finding struct {
	Path   string // of the name; of the directory if the names in it are unchanged
	Change Change
	Names  int   // number of names if they are Unchanged; else 1
	Err    error // if not nil, the name or the names of the directory could not be compared
}

// ErrSource is the error of Revalidate if the root of the source cannot be read, or the directory of the
// current generation is gone.
var ErrSource = errors.New("the source cannot be read")

// maxRequests bounds the requests of one call of Revalidate that are in flight.
const maxRequests = 8

// Revalidate compares what is cached of paths, and of everything below them, with the source
// now, whatever its TTL is: attributes, versions, listings, and names that were missing. Paths
// are as for Resolve; names that are not cached cost no request, except paths themselves. If a
// path exists neither in the cache nor at the source, the error matches io/fs.ErrNotExist. If the
// source is gone, or the directory of the current generation in which a path is, it matches ErrSource.
//
// It calls found, never concurrently, for what it finds out. After a request that fails it
// continues with the other names. When it returns nil, all later lookups and listings return the
// new state, and Outdated has yielded every part of the kernel's cache that has changed. Then a
// goroutine must be in Outdated. As for WaitNotified, no request of the kernel may call it.
func (c *Container) Revalidate(ctx context.Context, paths []string, found func(Finding)) error {
	ctx = drivers.Background(ctx)
	w := &walk{c: c, found: found, todo: newTodoList[visit]()}
	if err := c.refreshRoot(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrSource, err)
	}
	for _, p := range paths {
		if err := w.start(ctx, p); err != nil {
			return err
		}
	}
	w.todo.run(ctx, maxRequests,
		func(v visit) { w.visit(ctx, v) },
		func(v visit, err error) { w.fail(ctx, v.e, err) })
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return c.WaitNotified(ctx)
}

// A walk is one call of Revalidate.
type walk struct {
	c     *Container
	found func(Finding)
	todo  *todoList[visit]

	reporting sync.Mutex // held while found is called
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
			case errors.Is(err, errLost):
				return fmt.Errorf("%w: %s: %w", ErrSource, p, err)
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
	w.todo.push(visit{e, true})
	return nil
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
		w.todo.push(visit{e: dir})
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
		w.c.forgetAllMissing(dir)
	}
	for _, e := range dir.dir.expireUnlisted() {
		w.todo.push(visit{e: e})
	}
	for _, e := range entries {
		if e.IsDir() {
			w.todo.push(visit{e, err == nil && !e.isLost()})
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
	w.todo.push(visits...)
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
