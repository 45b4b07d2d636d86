// Package metadata is the metadata container: the name space of a dataset,
// which maps every logical path to its attributes and to the level its best
// copy is on.
//
// The name space is loaded as it is looked at: a name by one Stat of the
// source, a directory by one ReadDir, and whether a tier already holds a copy
// by the same question to each tier. Nothing is loaded ahead, so a mount costs
// the same for ten files and for ten million. What was loaded is believed for
// a time, and then asked for again when it is next wanted.
//
// A source that says that it Lists, such as an object store, is not asked for
// names one by one: who wants one has its directory listed, once for all who
// want something of it, and kept. Only a name that is not known and for which
// that takes too long, or which was found to be wrong, is asked for by a Stat.
//
// An Entry is one version of one file. When the source has another version,
// that is another Entry with another ID, and the old one is stale: whoever has
// it open goes on with the old content, and nobody sees some of each.
package metadata

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/tiers"
)

// A Container is the name space of one dataset. Its methods may be called
// concurrently, but for Close.
type Container struct {
	levels *tiers.Hierarchy
	source *tiers.Source
	lists  bool // the source Lists
	ttl    time.Duration
	log    *slog.Logger
	start  time.Time
	root   *Entry
	table  table
	saved  *savedNames   // the metadata snapshot, or nil
	warned atomic.Uint32 // when it was last logged that the source does not answer, by now
	stale  staleNames

	background background // where directories are listed, of a source that Lists
}

// Options configure a Container. The zero value caches nothing.
type Options struct {
	TTL      time.Duration // how long names and attributes are cached before they are validated at the source
	Snapshot string        // file with the metadata snapshot to start from; "": none
	Dataset  string        // identity of the source that a snapshot must be of
}

// New makes the namespace of the source of levels. It makes one request to the source,
// for the root. A snapshot that does not exist, is damaged or is of another dataset is not
// used; if the file is not a snapshot, the error matches ErrForeign. The caller closes the
// container.
func New(ctx context.Context, levels *tiers.Hierarchy, opts Options, log *slog.Logger) (*Container, error) {
	c := &Container{levels: levels, source: levels.Source(), ttl: opts.TTL, log: log, start: time.Now().Add(-past)}
	c.lists = c.source.IsLister()
	c.background.ctx, c.background.stop = context.WithCancelCause(context.Background())
	info, err := c.source.Stat(ctx, ".")
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("source: %w", syscall.ENOTDIR)
	}
	c.root = c.newEntry(nil, info, c.now())
	c.root.lookups.Store(1) // the kernel never forgets the root
	if err := c.openSnapshot(opts.Snapshot, opts.Dataset); err != nil {
		return nil, err
	}
	return c, nil
}

// openSnapshot is restore, except that an unusable snapshot is only logged.
func (c *Container) openSnapshot(path, dataset string) error {
	if path == "" {
		return nil
	}
	err := c.restore(path, dataset)
	switch {
	case errors.Is(err, ErrForeign):
		return err
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		c.log.Warn("metadata snapshot is not used", "err", err)
	}
	return nil
}

// Root returns the root directory. Its ID is 1.
func (c *Container) Root() *Entry { return c.root }

// Len returns the number of entries that are loaded.
func (c *Container) Len() int { return int(c.table.live.Load()) }

// Bytes returns the size of all regular files that are loaded. As in Len, those
// that are stale are among them while the kernel knows them.
func (c *Container) Bytes() int64 { return c.table.bytes.Load() }

// now is the time since c.start in units of tick, and never 0.
func (c *Container) now() uint32 { return uint32(time.Since(c.start)/tick) + 1 }

// tick is the unit in which times are kept: 32 bits of it are 13 years. They
// count from a past before the container was made, since what Restore brings
// was asked for by an earlier one.
const (
	tick = 100 * time.Millisecond
	past = 365 * 24 * time.Hour
)

// fresh reports whether what was asked at the time at may still be believed.
func (c *Container) fresh(at uint32) bool {
	return at != 0 && time.Duration(c.now()-at)*tick < c.ttl
}

// TTL returns for how much longer what is known of e will be believed. Whoever
// tells others of e, such as the kernel, has them believe it no longer.
func (c *Container) TTL(e *Entry) time.Duration {
	return max(c.ttl-time.Duration(c.now()-e.checked.Load())*tick, 0)
}

// Lookup returns the entry of a name in a directory. The error for a name that
// is not there matches io/fs.ErrNotExist, that for a directory that is stale
// syscall.ESTALE. A name that was known is still found while the source fails.
//
// Of a source that Lists, it has the directory listed if no listing is believed.
// It is answered when its name has come, or in the end; after a second with what
// was known of the name before, or if that is nothing, by asking for the one name.
func (c *Container) Lookup(ctx context.Context, dir *Entry, name string) (*Entry, error) {
	d := dir.dir
	if d == nil {
		return nil, syscall.ENOTDIR
	}
	if err := c.recall(ctx, dir); err != nil {
		return nil, err
	}
	e, listed, doubt := d.find(name)
	fresh := c.fresh(listed)
	switch {
	case e != nil && c.fresh(e.checked.Load()):
		return e, nil
	case e == nil && fresh && !doubt:
		return nil, fs.ErrNotExist
	case c.lists && !fresh:
		return c.lookupListed(ctx, dir, name)
	}
	return c.ask(ctx, dir, name, e)
}

// ask asks the source for one name, of which e was known, or nil.
func (c *Container) ask(ctx context.Context, dir *Entry, name string, e *Entry) (*Entry, error) {
	at := c.now()
	info, err := c.source.Stat(ctx, pathOf(dir, name))
	if errors.Is(err, fs.ErrNotExist) && e != nil && c.sourceLost(ctx) {
		err = syscall.ESTALE // the whole source has gone, not this file
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if e := c.forgetName(dir, name, at); e != nil {
			return e, nil
		}
		return nil, err
	case err != nil && e != nil && ctx.Err() == nil:
		c.warn(e, err)
		e.checked.Store(c.now())
		return e, nil
	case err != nil:
		return nil, err
	}
	info.Name = name
	return c.merge(ctx, dir, info, at)
}

// warnPause is the time between warnings of one outage of the source, which
// would otherwise be one for each name.
const warnPause = 10 * time.Second

// warn logs that the source was asked for e and did not answer.
func (c *Container) warn(e *Entry, err error) {
	now, last := c.now(), c.warned.Load()
	if last != 0 && time.Duration(now-last)*tick < warnPause || !c.warned.CompareAndSwap(last, now) {
		return
	}
	c.log.Warn("source does not answer; going on with what is known", "path", e.Path(), "err", err)
}

// Refresh asks the source again for e if it was last asked too long ago. If
// the source has another version, e becomes stale.
func (c *Container) Refresh(ctx context.Context, e *Entry) error {
	if c.fresh(e.checked.Load()) || e.Stale() {
		return nil
	}
	if e.parent != nil {
		_, err := c.Lookup(ctx, e.parent, e.Name())
		return err
	}
	if !c.lists { // where the root has no attributes of its own
		if info, err := c.source.Stat(ctx, "."); err == nil && info.IsDir() {
			e.update(info)
		}
	}
	e.checked.Store(c.now())
	return nil
}

// Changed says that the source was found to have another version of e, or none.
// It makes e stale, so that the next look at its name finds the new version. Of a
// source that Lists, that is a Stat of the one name: what was listed with it is
// believed as before, unless so many names of the directory have changed that it
// takes less to list it again.
func (c *Container) Changed(e *Entry) {
	if e.parent == nil {
		return
	}
	d := e.parent.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.get(e.Name()) == e {
		c.forget(d, e)
		if c.lists {
			d.doubt(e.Name())
		}
	}
}

// sourceLost reports whether the root of the source has gone: then a name that
// is not there says nothing of the file.
func (c *Container) sourceLost(ctx context.Context) bool {
	info, err := c.source.Stat(ctx, ".")
	return err != nil || info.Nlink == 0 && !c.lists // what Lists has no links to count
}

// outdated reports whether the answer of a source that Lists to what it was asked
// at the time at says less of a name than its entry e, or nil: it was asked for e
// later. Of another source it never is: a file system says what is there when it
// answers.
func (c *Container) outdated(at uint32, e *Entry) bool {
	return c.lists && e != nil && !e.Stale() && e.checked.Load() > at
}

// merge brings what the source said of one name, when asked at the time at,
// into the directory, and returns the entry that the name has then.
func (c *Container) merge(ctx context.Context, dir *Entry, info drivers.Info, at uint32) (*Entry, error) {
	d := dir.dir
	d.mu.Lock()
	old := d.get(info.Name)
	if c.outdated(at, old) {
		d.mu.Unlock()
		return old, nil
	}
	if old != nil && old.is(info) {
		old.set(info)
		old.checked.Store(at)
		d.mu.Unlock()
		return old, nil
	}
	d.mu.Unlock()

	// The tiers are examined without the lock. If another goroutine was faster, its entry
	// wins.
	e := makeEntry(dir, info, at)
	found := c.locate(ctx, e)
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.get(info.Name)
	switch {
	case dir.Stale(): // or e would never be dropped
		return nil, syscall.ESTALE
	case now != nil && (now != old || c.outdated(at, now)):
		return now, nil
	}
	c.addVersion(e, now, found)
	d.put(e)
	if now != nil {
		c.supersede(now)
	}
	return e, nil
}

// addVersion gives e, which describes a version that the container has not seen before, its
// ID and its level. old is the entry that e's name has until now, or nil; found are the
// copies that the tiers had under the name. The caller holds the lock of the directory and
// puts e in the place of old.
//
// A fill of an earlier version may have published its copy since the tiers were examined.
// No tier had it then, and it is outdated now, so e is Unverified if an earlier version has
// lost the name since, or loses it to e.
func (c *Container) addVersion(e, old *Entry, found located) {
	c.table.add(e)
	e.locate(found.copies, found.unverified)
	if old != nil || e.parent.dir.removals != found.removals {
		e.setBits(unverified)
	}
}

// A Listing is what was in a directory at one time.
type Listing struct {
	Entries []*Entry // sorted by name; shared, and not to be changed
	Version uint64   // another if the Entries are others, and never 0
}

// List returns the entries of Listing.
func (c *Container) List(ctx context.Context, dir *Entry) ([]*Entry, error) {
	l, err := c.Listing(ctx, dir)
	return l.Entries, err
}

// Listing returns what is in a directory. It costs no memory while nothing is
// changed there. While the source fails, or nothing of a listing comes within a
// second, it returns what was listed before. Otherwise it waits until all names
// are known, or ctx is done.
func (c *Container) Listing(ctx context.Context, dir *Entry) (Listing, error) {
	d := dir.dir
	if d == nil {
		return Listing{}, syscall.ENOTDIR
	}
	if err := c.recall(ctx, dir); err != nil {
		return Listing{}, err
	}
	if c.lists {
		return c.listListed(ctx, dir)
	}
	var l Listing
	begun, err := d.begin(ctx, func() bool {
		if !c.fresh(d.listed) {
			return false
		}
		l = d.listing()
		return true
	})
	if !begun {
		return l, err
	}
	err = c.load(ctx, dir)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.end(err)
	if err != nil && (d.listed == 0 || dir.Stale() || ctx.Err() != nil) {
		return Listing{}, err
	}
	if err != nil {
		c.warn(dir, err)
		d.listed = c.now()
	}
	return d.listing(), nil
}

// load lists a directory of a source that does not List.
func (c *Container) load(ctx context.Context, dir *Entry) error {
	at := c.now()
	name := dir.Path()
	infos, err := c.source.ReadDir(ctx, name)
	if err != nil {
		return err
	}
	if len(infos) == 0 && c.sourceLost(ctx) {
		return syscall.ESTALE
	}
	copies := c.copies(ctx, dir)
	d := dir.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if dir.Stale() {
		return syscall.ESTALE
	}
	seen := make([]*Entry, 0, len(infos))
	for _, info := range infos {
		if !validName(info.Name) {
			continue // no driver should, and no kernel could, say this
		}
		old := d.get(info.Name)
		e := old
		switch {
		case old != nil && old.checked.Load() > at: // a lookup has a later answer
		case old != nil && old.is(info):
			old.set(info)
			old.checked.Store(at)
		default:
			e = makeEntry(dir, info, at)
			c.addVersion(e, old, copies.of(info.Name))
		}
		seen = append(seen, e)
	}
	for _, gone := range d.replace(seen, at) {
		c.supersede(gone)
	}
	d.listed, d.known = at, true
	return nil
}

// Index returns the position of e among the entries of its directory by name.
// It reports listed if the directory has been listed, however long ago, and e
// was among them or has been merged with them since.
func (c *Container) Index(e *Entry) (i int, listed bool) {
	if e.parent == nil {
		return 0, false
	}
	d := e.parent.dir
	d.mu.RLock()
	defer d.mu.RUnlock()
	i, ok := search(d.sorted, e.Name())
	if !ok || !d.known || d.sorted[i] != e {
		return 0, false
	}
	return i, true
}

// Siblings returns up to n entries of e's directory, itself among them, from a
// position on that is counted as Index counts.
func (c *Container) Siblings(e *Entry, from, n int) []*Entry {
	if e.parent == nil {
		return nil
	}
	d := e.parent.dir
	d.mu.RLock()
	defer d.mu.RUnlock()
	from = min(max(from, 0), len(d.sorted))
	return slices.Clone(d.sorted[from:min(from+max(n, 0), len(d.sorted))])
}

// validName reports whether name may be that of an entry other than the root.
func validName(name string) bool {
	return name != "." && !strings.Contains(name, "/") && drivers.ValidName(name)
}

// A heldCopy is what one tier has under a name. A directory may have a million of
// them for as long as it is being listed: it is less than a drivers.Info.
type heldCopy struct {
	level       tiers.Level
	mode        uint32
	mtimeN      uint32
	mtime, size int64
}

func makeHeldCopy(l tiers.Level, i drivers.Info) heldCopy {
	return heldCopy{l, i.Mode, uint32(i.Mtime.Nanosecond()), i.Mtime.Unix(), i.Size}
}

// info returns what tells versions of a copy apart.
func (h heldCopy) info() drivers.Info {
	return drivers.Info{Mode: h.mode, Size: h.size, Mtime: time.Unix(h.mtime, int64(h.mtimeN))}
}

// located are the copies that the tiers had under one name.
type located struct {
	copies     []heldCopy // the fastest first
	unverified bool       // a tier did not answer
	removals   uint32     // directory.removals before the tiers were examined
}

// The copies are those that the tiers had of the files in a directory.
type copies struct {
	tiers      []map[string]heldCopy // by name
	unverified bool                  // a tier did not answer
	removals   uint32                // directory.removals before the tiers were examined
}

// of returns the copies under a name.
func (c *copies) of(name string) located {
	l := located{unverified: c.unverified, removals: c.removals}
	for _, t := range c.tiers {
		if h, ok := t[name]; ok {
			l.copies = append(l.copies, h)
		}
	}
	return l
}

// copies lists a directory in every tier. The lock of the directory must not be held.
func (c *Container) copies(ctx context.Context, dir *Entry) copies {
	all := copies{removals: dir.dir.removed()}
	name := dir.CopyName()
	for _, t := range c.levels.Tiers() {
		infos, err := t.ReadDir(ctx, name)
		if err != nil && !isAbsent(err) {
			all.unverified = true
		}
		held := make(map[string]heldCopy, len(infos))
		for _, info := range infos {
			held[info.Name] = makeHeldCopy(t.Level(), info)
		}
		all.tiers = append(all.tiers, held)
	}
	return all
}

// locate looks for copies of e in every tier. The lock of e's directory must not be held.
func (c *Container) locate(ctx context.Context, e *Entry) located {
	l := located{removals: e.parent.dir.removed()}
	if !e.placeable() {
		return l
	}
	name := e.CopyName()
	for _, t := range c.levels.Tiers() {
		info, err := t.Stat(ctx, name)
		switch {
		case err == nil:
			l.copies = append(l.copies, makeHeldCopy(t.Level(), info))
		case !isAbsent(err):
			l.unverified = true
		}
	}
	return l
}

// isAbsent reports whether err says that a tier holds no such name.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// Readlink returns the target of a symbolic link, as the source has it.
func (c *Container) Readlink(ctx context.Context, e *Entry) (string, error) {
	return c.source.Readlink(ctx, e.Path())
}

// Listxattr lists the user attributes of an entry, as the source has them.
func (c *Container) Listxattr(ctx context.Context, e *Entry) ([]string, error) {
	return c.source.Listxattr(ctx, e.Path())
}

// Getxattr returns a user attribute of an entry, as the source has it.
func (c *Container) Getxattr(ctx context.Context, e *Entry, attr string) ([]byte, error) {
	return c.source.Getxattr(ctx, e.Path(), attr)
}

// Statfs tells the size of the source.
func (c *Container) Statfs(ctx context.Context) (drivers.Statfs, error) {
	return c.source.Statfs(ctx)
}

// Resolve returns the entry of a path below the root, such as "train/a.jpg",
// or of "." itself. It does not follow links.
func (c *Container) Resolve(ctx context.Context, name string) (*Entry, error) {
	e := c.root
	if name = path.Clean(name); name == "." {
		return e, nil
	}
	for elem := range strings.SplitSeq(name, "/") {
		var err error
		if e, err = c.Lookup(ctx, e, elem); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return e, nil
}

// Walk calls f for e and for all that is below it, directories before what
// they hold, until f or the source fails.
func (c *Container) Walk(ctx context.Context, e *Entry, f func(*Entry) error) error {
	if err := f(e); err != nil {
		return err
	}
	if !e.IsDir() {
		return nil
	}
	entries, err := c.List(ctx, e)
	if err != nil {
		if e.Stale() {
			return nil // it went away while we walked
		}
		return fmt.Errorf("%s: %w", e.Path(), err)
	}
	for _, below := range entries {
		if err := c.Walk(ctx, below, f); err != nil {
			return err
		}
	}
	return nil
}

// forgetName drops a name that the source did not have when asked at the time at.
// If it has an entry of which more was said later, that stays, and is returned.
func (c *Container) forgetName(dir *Entry, name string, at uint32) *Entry {
	d := dir.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.doubts, name)
	e := d.get(name)
	if c.outdated(at, e) {
		return e
	}
	if e != nil {
		c.forget(d, e)
	}
	return nil
}

// forget drops e, which has its name; d.mu must be held.
func (c *Container) forget(d *directory, e *Entry) {
	d.delete(e.Name())
	if !c.lists {
		d.listed = 0 // what else the directory holds may have changed too, and is found out by one ReadDir
	}
	c.supersede(e)
}

// supersede drops e, whose name has another entry now or none, and has the
// kernel told if it knows e. What is below e the kernel reaches by this name. The lock of
// e's directory must be held.
func (c *Container) supersede(e *Entry) {
	e.parent.dir.removals++
	c.drop(e)
	if e.lookups.Load() > 0 {
		c.stale.add(e)
	}
}

// drop makes e, which has lost its name, and all below it stale.
func (c *Container) drop(e *Entry) {
	e.setBits(stale)
	if e.dir != nil {
		e.dir.mu.Lock()
		below := e.dir.all()
		e.dir.mu.Unlock()
		for _, b := range below {
			c.drop(b)
		}
	}
	if e.lookups.Load() == 0 {
		c.table.remove(e)
	}
}

// Get returns the entry of an ID, or nil if there is none or it was forgotten.
func (c *Container) Get(id uint64) *Entry { return c.table.get(id) }

// Hold says that the kernel is about to be told of e once more.
func (c *Container) Hold(e *Entry) {
	e.lookups.Add(1)
	if e.Stale() { // since it was found, when supersede may not have seen it held
		c.stale.add(e)
	}
}

// Forget says that the kernel has forgotten an ID n times. A stale entry that
// the kernel does not know is let go.
func (c *Container) Forget(id, n uint64) {
	if e := c.Get(id); e != nil && e.lookups.Add(-int64(n)) <= 0 && e.Stale() {
		c.table.remove(e)
	}
}

// newEntry makes an entry of what the source said when asked at the time at,
// and gives it an ID.
func (c *Container) newEntry(parent *Entry, info drivers.Info, at uint32) *Entry {
	e := makeEntry(parent, info, at)
	c.table.add(e)
	return e
}

// makeEntry makes an entry without an ID.
func makeEntry(parent *Entry, info drivers.Info, at uint32) *Entry {
	e := &Entry{parent: parent, text: info.Name, nameLen: uint32(len(info.Name)), kind: info.Type()}
	if info.IsDir() {
		e.dir = new(directory)
	} else {
		e.text += info.Version
	}
	e.set(info)
	e.checked.Store(at)
	return e
}

// pathOf returns the path of a name in a directory.
func pathOf(dir *Entry, name string) string {
	if dir.parent == nil {
		return name
	}
	return dir.Path() + "/" + name
}

// A table finds entries by their IDs, which count up from 1 and are never used
// again. Reading it takes no lock.
type table struct {
	chunks atomic.Pointer[[]*chunk]
	live   atomic.Int64 // entries
	bytes  atomic.Int64 // of those that are regular files

	mu   sync.Mutex // guards the following, and the changing of chunks
	last uint64
}

type chunk [1024]atomic.Pointer[Entry]

func (t *table) add(e *Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	e.id = t.last
	var chunks []*chunk
	if p := t.chunks.Load(); p != nil {
		chunks = *p
	}
	i := int(e.id / uint64(len(chunk{})))
	if i == len(chunks) {
		grown := append(chunks, new(chunk)) // readers of the old slice never look past its length
		chunks = grown
		t.chunks.Store(&grown)
	}
	chunks[i][e.id%uint64(len(chunk{}))].Store(e)
	t.live.Add(1)
	t.bytes.Add(e.bytes())
}

func (t *table) slot(id uint64) *atomic.Pointer[Entry] {
	p := t.chunks.Load()
	if i := id / uint64(len(chunk{})); p != nil && i < uint64(len(*p)) {
		return &(*p)[i][id%uint64(len(chunk{}))]
	}
	return nil
}

func (t *table) get(id uint64) *Entry {
	if s := t.slot(id); s != nil {
		return s.Load()
	}
	return nil
}

func (t *table) remove(e *Entry) {
	if t.slot(e.id).CompareAndSwap(e, nil) {
		t.live.Add(-1)
		t.bytes.Add(-e.bytes())
	}
}
