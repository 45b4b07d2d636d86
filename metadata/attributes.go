package metadata

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// If the source is a drivers.Namer, a listing costs one request: it returns names and types, and
// the entries are Unknown. A program that needs no attributes causes no further request. (If the
// source is local, a listing has the attributes: they take less time than the FUSE round trips for
// them.) The attributes are requested as follows:
//
//  1. A lookup of an Unknown entry requests that name alone, unless the name belongs to a batch
//     that is in flight.
//  2. If the names of a directory are looked up in order, as by ls -l and find, a lookup requests
//     the next batchSize names together, in parallel, and those that follow need no request. If
//     every n-th name is looked up, these are every n-th, too. A job that looks names up in no order
//     opens them: the client of the source may request each name at its open once more, so that a
//     request ahead would save nothing.
//  3. A program that has looked up the last names that it has read of a directory, as ls -l does,
//     gets the following ones with their attributes (Container.Complete).
//  4. Walk requests all of them.
//
// A name whose request hangs stays Unknown, and delays its batch by a second.

const (
	batchSize   = 64 // names that a lookup requests together, at most
	orderGap    = 16 // how far after the last name a lookup in order may be
	creditOrder = 16 // names that a lookup in order allows to be requested ahead; another one forbids as many
)

// ahead is the state of a directory for requesting attributes before they are needed. Its zero
// value is that of a directory that was never listed.
type ahead struct {
	unknown atomic.Int32 // number of Unknown entries; changes under the lock of the directory
	last    uint32       // position after the last name that was looked up; 0: none was
	credit  uint8        // number of names that may be requested ahead
	step    uint8        // the distances of the names that were looked up since there was no credit are multiples of it
}

// A batch is a request for the attributes of names.
type batch struct {
	names []string // in their order
	ended chan struct{}
}

// covers reports whether the batch is in flight and includes a name.
func (b *batch) covers(name string) bool {
	if b == nil {
		return false
	}
	if _, has := slices.BinarySearch(b.names, name); !has {
		return false
	}
	select {
	case <-b.ended:
		return false
	default:
		return true
	}
}

// overlaps reports whether the batch is in flight and includes one of the entries.
func (b *batch) overlaps(entries []*Entry) bool {
	return slices.ContainsFunc(entries, func(e *Entry) bool { return b.covers(e.Name()) })
}

// lookedUp records the lookup of a name, for the decision whether to request others ahead.
func (d *directory) lookedUp(name string) {
	if d.ahead.unknown.Load() == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	i, ok := search(d.sorted, name)
	if !ok || !d.everListed { // no program has requested the other names
		return
	}
	d.ahead.lookedUp(i)
}

// lookedUp records the lookup of the name at position i.
func (a *ahead) lookedUp(i int) {
	distance := max(i+1-int(a.last), int(a.last)-i-1)
	switch {
	case !a.follows(i):
		a.credit -= min(a.credit, creditOrder)
	case a.credit == 0:
		a.credit, a.step = creditOrder, uint8(distance)
	default:
		a.credit = min(a.credit+creditOrder, batchSize)
	}
	step := int(a.step)
	for distance != 0 { // the greatest common divisor
		step, distance = distance, step%distance
	}
	a.step, a.last = uint8(min(step, math.MaxUint8)), uint32(i)+1
}

// follows reports whether position i follows the last name that was looked up.
func (a *ahead) follows(i int) bool {
	return a.last > 0 && i >= int(a.last) && i < int(a.last)+orderGap
}

// startBatch starts a batch with the entry e, which was Unknown, and those that follow it, if the credit
// suffices. If e belongs to the batch in flight, it returns that one and no entries.
func (d *directory) startBatch(e *Entry) (entries []*Entry, b *batch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.batch.covers(e.Name()) {
		return nil, d.batch
	}
	i, ok := search(d.sorted, e.Name())
	if !ok || !d.sorted[i].Unknown() || int(d.ahead.credit) < min(batchSize, len(d.sorted)) {
		return nil, nil
	}
	d.ahead.credit = 0
	for ; i < len(d.sorted) && len(entries) < batchSize; i += max(1, int(d.ahead.step)) {
		if d.sorted[i].Unknown() {
			entries = append(entries, d.sorted[i])
		}
	}
	return entries, d.newBatch(entries)
}

// newBatch records a batch of entries, which are in the order of their names; d.mu must be held.
func (d *directory) newBatch(entries []*Entry) *batch {
	b := &batch{ended: make(chan struct{})}
	for _, e := range entries {
		b.names = append(b.names, e.Name())
	}
	d.batch = b
	return b
}

// lookupUnknown is Lookup of an Unknown entry.
func (c *Container) lookupUnknown(ctx context.Context, dir, e *Entry) (*Entry, error) {
	if c.byName {
		switch entries, b := dir.dir.startBatch(e); {
		case len(entries) > 0:
			c.requestBatch(ctx, dir, entries, b)
		case b != nil:
			timeout := time.NewTimer(lookupTimeout)
			defer timeout.Stop()
			select {
			case <-b.ended:
			case <-timeout.C:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		if now, _, _ := dir.dir.find(e.Name()); now != nil && !now.Unknown() && c.fresh(now.validated.Load()) {
			return now, nil
		}
	}
	return c.lookupByStat(ctx, dir, e.Name(), nil)
}

// requestBatch requests the attributes of the entries of a batch, and ends it.
func (c *Container) requestBatch(ctx context.Context, dir *Entry, entries []*Entry, b *batch) error {
	defer close(b.ended)
	return c.requestAttributes(ctx, dir, entries)
}

// requestAttributes requests the attributes of Unknown entries of dir. Those that the source does
// not return stay Unknown.
func (c *Container) requestAttributes(ctx context.Context, dir *Entry, entries []*Entry) error {
	requested := c.now()
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	infos, err := c.source.StatNames(ctx, dir.Path(), names)
	if err != nil {
		return err
	}
	infos = slices.DeleteFunc(infos, func(i drivers.Info) bool { return i.Err != nil })
	copies := c.copiesOfNames(ctx, dir, infos, requested)
	d := dir.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if dir.Stale() {
		return nil
	}
	for i, info := range infos {
		if now := d.get(info.Name); now != nil && now.Unknown() {
			c.putVersion(dir, now, info, requested, copies[i])
		}
	}
	return nil
}

// copiesOfNames returns the copies of what infos describe, which is in dir. It makes no request
// for single names to a tier without the directory.
func (c *Container) copiesOfNames(ctx context.Context, dir *Entry, infos []drivers.Info, requested uint32) []nameCopies {
	all := make([]nameCopies, len(infos))
	retired := dir.dir.countRetired()
	for i := range all {
		all[i].retired = retired
	}
	for _, t := range c.levels.Tiers() {
		if _, err := t.Stat(ctx, dir.CopyName()); isAbsent(err) {
			continue
		}
		for i, info := range infos {
			if e := makeEntry(dir, info, requested); e.Placeable() {
				all[i].examine(ctx, t, e)
			}
		}
	}
	return all
}

// putVersion puts the version that info describes, which is new to the container, into dir in
// place of now, the present entry of its name or nil, and returns its entry. The lock of dir must
// be held.
func (c *Container) putVersion(dir, now *Entry, info drivers.Info, requested uint32, copies nameCopies) *Entry {
	c.changes.Add(1)
	if now != nil && now.Unknown() && now.kind == info.Type() && info.Version == "" {
		c.learn(now, info, requested, copies)
		return now
	}
	e := makeEntry(dir, info, requested)
	c.addVersion(e, now, copies)
	c.put(dir.dir, e)
	if now != nil {
		c.retire(now)
	}
	return e
}

// learn gives an Unknown entry its attributes. The lock of its directory must be held.
func (c *Container) learn(e *Entry, info drivers.Info, requested uint32, copies nameCopies) {
	e.set(info)
	e.validated.Store(requested)
	if e.dir != nil {
		e.dir.mu.Lock()
		if !e.dir.everListed {
			e.dir.stamp = makeStamp(timesOf(info))
		}
		e.dir.mu.Unlock()
	}
	bits := e.levelBits(copies)
	if e.parent.dir.retired != copies.retired {
		bits |= unverified
	}
	// From here on, the size may be read without the lock.
	e.change(func(s uint32) (uint32, bool) { return s&^unknown | bits, true })
	e.parent.dir.ahead.unknown.Add(-1)
	c.table.countBytes(e, 1)
}

// Complete requests the attributes of entries, which follow each other in the listing of dir, if
// the names before them were looked up. It returns when it has them, or those that the source
// returns in time.
func (c *Container) Complete(ctx context.Context, dir *Entry, entries []*Entry) {
	d := dir.dir
	if len(entries) == 0 || d.ahead.unknown.Load() == 0 {
		return
	}
	d.mu.Lock()
	i, ok := search(d.sorted, entries[0].Name())
	if !ok || !d.ahead.follows(i) {
		d.mu.Unlock()
		return
	}
	d.ahead.last = uint32(i + len(entries))
	d.mu.Unlock()
	c.requestUnknown(ctx, dir, entries)
}

// requestUnknown requests the attributes of those entries of dir that are Unknown.
func (c *Container) requestUnknown(ctx context.Context, dir *Entry, entries []*Entry) error {
	d := dir.dir
	for c.byName && d.ahead.unknown.Load() > 0 {
		d.mu.Lock()
		b := d.batch
		var unknown []*Entry
		for _, e := range entries {
			if e.Unknown() && !e.Stale() {
				unknown = append(unknown, e)
			}
		}
		if len(unknown) == 0 || ctx.Err() != nil {
			d.mu.Unlock()
			break
		}
		if !b.overlaps(unknown) {
			b = d.newBatch(unknown)
			d.mu.Unlock()
			return c.requestBatch(ctx, dir, unknown, b)
		}
		d.mu.Unlock()
		select { // a reader needs some of them
		case <-b.ended:
		case <-ctx.Done():
		}
	}
	return nil
}

// names returns the content of dir at the source. If the source is a drivers.Namer, only those
// names have attributes that are cached and not Unknown, and only if the directory was listed
// before. complete reports that the attributes of all entries that are not Unknown were requested.
func (c *Container) names(ctx context.Context, dir *Entry) (infos []drivers.Info, complete bool, err error) {
	if !c.byName {
		infos, err = c.source.ReadDir(ctx, dir.Path())
		return infos, true, err
	}
	infos, err = c.source.Names(ctx, dir.Path())
	if err != nil {
		return nil, false, err
	}
	slices.SortFunc(infos, compareNames) // so that the IDs are in this order
	d := dir.dir
	d.mu.RLock()
	var names []string
	var known []int
	for i, info := range infos {
		if e := d.get(info.Name); e != nil && !e.Unknown() {
			names, known = append(names, info.Name), append(known, i)
		}
	}
	everListed := d.everListed
	d.mu.RUnlock()
	if !everListed || len(names) == 0 {
		return infos, len(names) == 0, nil
	}
	const most = 1024 // so that a request that hangs delays few names
	for len(names) > 0 {
		n := min(len(names), most)
		some, err := c.source.StatNames(ctx, dir.Path(), names[:n])
		if err != nil {
			return nil, false, err
		}
		for i, info := range some {
			infos[known[i]] = info
		}
		names, known = names[n:], known[n:]
	}
	infos = slices.DeleteFunc(infos, func(i drivers.Info) bool { return errors.Is(i.Err, fs.ErrNotExist) })
	return infos, true, nil
}
