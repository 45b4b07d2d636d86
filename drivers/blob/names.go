package blob

import (
	"context"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/milkweedfs/milkweed/drivers"
)

// An object store has keys and no directories. This file maps "/" in keys to
// directories: the elements of a key before a "/" are directories, the last element
// is a file. An empty object whose key ends in "/" marks a directory, which may have
// no files. Keys that cannot be file names are hidden. docs/SEMANTICS.md has the
// rules.

// isFileName reports whether an element of a key can be a name in a file system.
func isFileName(elem string) bool {
	return elem != "" && elem != "." && elem != ".." && len(elem) <= 255 && strings.IndexByte(elem, 0) < 0 && utf8.ValidString(elem)
}

// A page is a part of a listing.
type page struct {
	items []item
	next  string // token of the next page; "": this is the last one

	misencoded bool // the store has encoded keys in another way than it said
}

// page lists one page of up to maxKeys keys that begin with prefix, in key order. If
// delimiter is not "", the keys that contain it after the prefix are replaced by the
// directory that they are in. The page has fewer keys only if it is the last one.
func (b *Bucket) page(ctx context.Context, prefix, delimiter, token string, maxKeys int, p retryPolicy) (page, error) {
	for retry := b.retrier(p); ; {
		if err := b.admit(ctx); err != nil {
			return page{}, err
		}
		found, t, err := b.listPage(ctx, prefix, delimiter, token, maxKeys)
		if err == nil {
			// Stores send keys and directories apart.
			slices.SortFunc(found.items, byKey)
			return found, nil
		}
		if reason, ok := isEndless(err); ok {
			return page{}, b.endless(prefix, reason)
		}
		if err := retry.wait(ctx, b.classify(t, err)); err != nil {
			return page{}, err
		}
	}
}

// listPage sends listing requests until a page has maxKeys keys: a store may send fewer.
// They share a watchdog and a trace.
func (b *Bucket) listPage(ctx context.Context, prefix, delimiter, token string, maxKeys int) (page, *trace, error) {
	ctx, watchdog, cancel := withWatchdog(ctx, b.stallTimeout)
	defer cancel()
	ctx, t := withTrace(ctx, list, watchdog)
	var order keyOrder
	for found := (page{next: token}); ; {
		part, err := b.vendor.list(ctx, prefix, delimiter, found.next, maxKeys-len(found.items))
		if err != nil {
			return page{}, t, watchdog.disarm(err)
		}
		b.examine(part)
		b.noteOrder(order.follow(part.items))
		found.items, found.next = append(found.items, part.items...), part.next
		if found.next == "" || len(found.items) >= maxKeys {
			return found, t, nil
		}
	}
}

// A keyOrder has the last key and the last directory of a listing so far. Stores send keys and
// directories apart.
type keyOrder struct{ key, dir string }

// follow reports whether items, the next ones, are in order.
func (o *keyOrder) follow(items []item) bool {
	sorted := true
	for _, i := range items {
		last := &o.key
		if i.dir {
			last = &o.dir
		}
		sorted = sorted && *last <= i.key
		*last = i.key
	}
	return sorted
}

// noteOrder records that the store does not list in key order, unless sorted is true.
func (b *Bucket) noteOrder(sorted bool) {
	if !sorted {
		b.note(&b.odd.unsorted, "listings are not in key order; a listing is shown when it is complete, and a single name may take as many requests as its directory")
	}
}

// pageSize is the number of keys per listing request: the maximum of the stores.
const pageSize = 1000

// Profile implements drivers.Profiler. 16 streams carry 128 MiB, which 10 Gb/s transfer in
// a tenth of a second; docs/performance.md has the measurement.
func (b *Bucket) Profile() drivers.Profile {
	return drivers.Profile{Latency: drivers.LatencyRequest, Concurrency: 16, Stride: stride}
}

// List implements drivers.Lister. It calls part once for each page of keys.
func (b *Bucket) List(ctx context.Context, dir string, part func([]drivers.Info) error) error {
	return wrap(ctx, "list", dir, b.list(ctx, dir, b.odd.unsorted.Load(), part))
}

// ReadDir implements drivers.Driver.
func (b *Bucket) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	var all []drivers.Info
	err := b.list(ctx, dir, true, func(infos []drivers.Info) error {
		all = append(all, infos...)
		return nil
	})
	return all, wrap(ctx, "list", dir, err)
}

// list calls part once for each page of keys, or once for all of them if collects: in a store that does not
// list in key order, names are certain after all keys.
func (b *Bucket) list(ctx context.Context, dir string, collects bool, part func([]drivers.Info) error) error {
	if !drivers.ValidName(dir) {
		return errName
	}
	l := listing{bucket: b, prefix: b.prefix(dir)}
	exists, last := false, ""
	var all []item
	err := b.eachPage(ctx, l.prefix, pageSize, func(items []item, more bool) (bool, error) {
		if exists = exists || len(items) > 0; len(items) > 0 {
			b.noteOrder(last <= items[0].key)
			last = items[len(items)-1].key
		}
		if !collects && b.odd.unsorted.Load() {
			return false, nil
		}
		if collects {
			if all = append(all, items...); more {
				return true, nil
			}
			items = all
			slices.SortFunc(items, byKey)
		}
		infos := l.infos(items)
		if !more {
			infos = l.finish(infos)
		}
		if len(infos) == 0 {
			return true, nil
		}
		return true, part(infos)
	})
	if err != nil {
		return err
	}
	if !collects && b.odd.unsorted.Load() {
		return b.list(ctx, dir, true, part) // once: the store has just shown it
	}
	b.hidden.set(dir, l.hidden)
	switch {
	case exists || dir == ".":
		return nil
	case b.location.Scheme == "azblob": // it may be empty, with a stub
		if _, _, isDir, err := b.find(ctx, b.location.Prefix+dir); isDir || err != nil {
			return err
		}
	}
	return errNotFound
}

func byKey(a, b item) int { return strings.Compare(a.key, b.key) }

// eachPage calls f with the pages of up to maxKeys keys that begin with prefix, with the directory in
// place of the keys that contain "/" after it, until f returns false or an error. more reports whether
// other pages follow.
func (b *Bucket) eachPage(ctx context.Context, prefix string, maxKeys int, f func(items []item, more bool) (bool, error)) error {
	var tokens tokenCheck
	for token, more := "", true; more; {
		p, err := b.page(ctx, prefix, "/", token, maxKeys, readRetries)
		if err != nil {
			return err
		}
		if err := tokens.add(p.next); err != nil {
			return b.endless(prefix, err)
		}
		token, more = p.next, p.next != ""
		if ok, err := f(p.items, more); !ok || err != nil {
			return err
		}
	}
	return nil
}

// A listing turns the keys of one directory, which arrive in key order, into names.
type listing struct {
	bucket  *Bucket
	prefix  string
	pending []item // files and stubs that may also be directories; each key is a prefix of the next one
	lastDir string // the last name of a directory
	hidden  int64
}

// infos returns the names that are certain after the keys of items. Some stores list the marker of a directory,
// or keys in it, instead of the directory or in addition to it.
func (l *listing) infos(items []item) []drivers.Info {
	infos := make([]drivers.Info, 0, len(items))
	for _, i := range items {
		infos = l.flushPending(infos, i.key)
		rest, below := strings.CutPrefix(i.key, l.prefix)
		name, _, isDir := strings.Cut(rest, "/")
		switch {
		case below && rest == "" && i.size == 0: // marks the directory itself
		case below && isDir && name != "" && name == l.lastDir:
		case !below || i.dir && !isDir || !isFileName(name):
			l.hide(i.key)
		case isDir:
			l.lastDir = name
			l.hideShadowed(name)
			infos = append(infos, l.bucket.directory(name))
		default:
			l.pending = append(l.pending, i)
		}
	}
	return infos
}

// flushPending appends the pending files that are not directories: key is past the
// keys that would be in them.
func (l *listing) flushPending(infos []drivers.Info, key string) []drivers.Info {
	for n := len(l.pending); n > 0; n-- {
		i := l.pending[n-1]
		if strings.HasPrefix(key, i.key) && (key <= i.key+"/" || strings.HasPrefix(key, i.key+"/")) {
			break
		}
		infos = append(infos, l.bucket.info(i))
		l.pending = l.pending[:n-1]
	}
	return infos
}

// hideShadowed hides the pending file with the same name as a directory, if there is
// one. If the file were shown, the files of the directory could not be reached.
func (l *listing) hideShadowed(name string) {
	n := len(l.pending)
	if n == 0 || l.pending[n-1].key != l.prefix+name {
		return
	}
	if i := l.pending[n-1]; !i.stub {
		l.hide(i.key)
	}
	l.pending = l.pending[:n-1]
}

// finish appends the files that are still pending after the last key.
func (l *listing) finish(infos []drivers.Info) []drivers.Info {
	for _, i := range l.pending {
		infos = append(infos, l.bucket.info(i))
	}
	l.pending = nil
	return infos
}

// hide counts a key that is not shown, and logs the first one of the bucket.
func (l *listing) hide(key string) {
	l.hidden++
	l.bucket.hidden.once.Do(func() {
		l.bucket.log.Warn("hid a key that is not a valid file name; later ones are only counted", "key", key)
	})
}

// hiddenKeys counts the keys that are not shown. A directory counts with the number
// of its last listing. The methods may be called concurrently.
type hiddenKeys struct {
	once sync.Once // for the log

	mu    sync.Mutex // guards the following
	byDir map[string]int64
	total int64
}

// set replaces the number of hidden keys of a directory.
func (h *hiddenKeys) set(dir string, n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.total += n - h.byDir[dir]
	if n == 0 {
		delete(h.byDir, dir)
		return
	}
	if h.byDir == nil {
		h.byDir = make(map[string]int64)
	}
	h.byDir[dir] = n
}

// load returns the number of hidden keys of all directories.
func (h *hiddenKeys) load() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.total
}

// prefix returns the common prefix of the keys in a directory.
func (b *Bucket) prefix(dir string) string {
	if dir == "." {
		return b.location.Prefix
	}
	return b.location.Prefix + dir + "/"
}

// The modes of files and directories: readable for every user that the mount admits. The mount is read-only;
// that the owner may write them is for copies, as cp -r gives a copy the mode of a directory.
const (
	fileMode = 0o100644
	dirMode  = 0o040755
)

// directory describes a directory. Buckets store no times for directories: they get
// the time when the bucket was opened.
func (b *Bucket) directory(name string) drivers.Info {
	return drivers.Info{
		Name: name, Mode: dirMode, Nlink: 1, UID: b.uid, GID: b.gid,
		Mtime: b.opened, Ctime: b.opened, Atime: b.opened,
	}
}

// info describes an object as it is shown.
func (b *Bucket) info(i item) drivers.Info {
	if i.stub {
		return b.directory(baseOf(i.key))
	}
	return b.file(i)
}

// baseOf returns the last element of a key.
func baseOf(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }

// file describes a file. If it has no ETag, the listed fraction of a second tells its versions apart.
func (b *Bucket) file(i item) drivers.Info {
	mtime := drivers.VersionedTime(i.mtime, i.version)
	return drivers.Info{
		Name: baseOf(i.key), Mode: fileMode, Nlink: 1, UID: b.uid, GID: b.gid,
		Size: i.size, Blocks: drivers.FullBlocks(i.size), Mtime: mtime, Ctime: mtime, Atime: mtime, Version: i.version,
	}
}
