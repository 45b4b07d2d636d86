package blob

import (
	"context"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	cdk "gocloud.dev/blob"

	"github.com/milkweedfs/milkweed/drivers"
)

// An object store has keys, and no directories. What a key has before each "/"
// is shown as a directory, and the rest of it as a file in there. A key that ends
// in "/" is a directory that somebody has made, which may be empty. Some keys
// have no place among names like these, and are hidden; docs/SEMANTICS.md says
// which.

// showable reports whether an element of a key can be a name in a file system.
func showable(elem string) bool {
	return elem != "" && elem != "." && elem != ".." && len(elem) <= 255 && strings.IndexByte(elem, 0) < 0 && utf8.ValidString(elem)
}

// A page is one answer to a request for keys.
type page struct {
	items []item
	next  []byte // what asks for the page after; empty: there is none
}

// page asks for one page of at most so many keys that begin with prefix. With a
// delimiter, keys that have one after the prefix are shown as the one directory
// that they are in.
func (b *Bucket) page(ctx context.Context, prefix, delimiter string, token []byte, most int, p patience) (page, error) {
	opts := &cdk.ListOptions{Prefix: prefix, Delimiter: delimiter, BeforeList: b.vendor.list(prefix)}
	for effort := b.effort(p); ; {
		objects, next, t, err := b.listPage(ctx, token, most, opts)
		if err == nil {
			found := page{items: make([]item, len(objects)), next: next}
			for i, o := range objects {
				found.items[i] = b.vendor.item(o)
			}
			if byKey := func(a, b item) int { return strings.Compare(a.key, b.key) }; !slices.IsSortedFunc(found.items, byKey) {
				slices.SortFunc(found.items, byKey) // the library sorts keys that it has changed
			}
			return found, nil
		}
		if err := effort.again(ctx, b.vendor, explain(b.vendor, t, err)); err != nil {
			return page{}, err
		}
	}
}

// listPage sends the request.
func (b *Bucket) listPage(ctx context.Context, token []byte, most int, opts *cdk.ListOptions) ([]*cdk.ListObject, []byte, *trace, error) {
	ctx, dog, cancel := watched(ctx, b.stall)
	defer cancel()
	ctx, t := traced(ctx, list, dog)
	objects, next, err := b.vendor.bucket().ListPage(ctx, token, most, opts)
	return objects, next, t, dog.rest(err)
}

// pageSize is how many keys are asked for at once: as many as stores give.
const pageSize = 1000

// Profile implements drivers.Profiler. 16 streams carry 128 MiB, which is what
// 10 Gb/s transfer in a tenth of a second; docs/performance.md has the measurement.
func (b *Bucket) Profile() drivers.Profile {
	return drivers.Profile{Latency: drivers.LatencyRequest, Concurrency: 16, Stride: stride}
}

// List implements drivers.Lister. A part is what a page of keys has in it.
func (b *Bucket) List(ctx context.Context, dir string, part func([]drivers.Info) error) error {
	if err := b.list(ctx, dir, part); err != nil {
		return wrap(ctx, "list", dir, err)
	}
	return nil
}

func (b *Bucket) list(ctx context.Context, dir string, part func([]drivers.Info) error) error {
	if !drivers.ValidName(dir) {
		return errName
	}
	l := listing{bucket: b, prefix: b.prefix(dir)}
	var exists bool
	for token := cdk.FirstPageToken; len(token) > 0; {
		p, err := b.page(ctx, l.prefix, "/", token, pageSize, reading)
		if err != nil {
			return err
		}
		exists = exists || len(p.items) > 0
		infos := l.infos(p.items)
		if token = p.next; len(token) == 0 {
			infos = l.end(infos)
		}
		if len(infos) == 0 {
			continue
		}
		if err := part(infos); err != nil {
			return err
		}
	}
	b.hidden.set(dir, l.hidden)
	if !exists && dir != "." {
		return errAbsent
	}
	return nil
}

// A listing turns the keys of one directory, which come by name, into names.
type listing struct {
	bucket  *Bucket
	prefix  string
	pending []item // files that may turn out to be directories too, each a prefix of the next
	hidden  int64
}

// infos returns what is known of the names when items have come.
func (l *listing) infos(items []item) []drivers.Info {
	infos := make([]drivers.Info, 0, len(items))
	for _, i := range items {
		infos = l.settle(infos, i.key)
		rest, below := strings.CutPrefix(i.key, l.prefix)
		name, slash := strings.CutSuffix(rest, "/")
		switch {
		case below && rest == "" && i.size == 0: // the directory itself, as somebody made it
		case !below || slash != i.dir || !showable(name):
			l.hide(i.key)
		case i.dir:
			infos = append(l.shadow(infos, name), l.bucket.directory(name))
		default:
			l.pending = append(l.pending, i)
		}
	}
	return infos
}

// settle adds the pending files that are no directories, since keys have got
// past those that would be in them.
func (l *listing) settle(infos []drivers.Info, key string) []drivers.Info {
	for n := len(l.pending); n > 0; n-- {
		i := l.pending[n-1]
		if key <= i.key+"/" && strings.HasPrefix(key, i.key) {
			break
		}
		infos = append(infos, l.bucket.file(i))
		l.pending = l.pending[:n-1]
	}
	return infos
}

// shadow hides the file that has the name of a directory, if there is one: what
// is in the directory could not be reached otherwise.
func (l *listing) shadow(infos []drivers.Info, name string) []drivers.Info {
	if n := len(l.pending); n > 0 && l.pending[n-1].key == l.prefix+name {
		l.hide(l.pending[n-1].key)
		l.pending = l.pending[:n-1]
	}
	return infos
}

// end adds what is still pending.
func (l *listing) end(infos []drivers.Info) []drivers.Info {
	for _, i := range l.pending {
		infos = append(infos, l.bucket.file(i))
	}
	l.pending = nil
	return infos
}

// hide counts a key that is not shown.
func (l *listing) hide(key string) {
	l.hidden++
	l.bucket.hidden.once.Do(func() {
		l.bucket.log.Warn("keys that no file system can show are hidden; this is the first of them", "key", key)
	})
}

// A hidden counts the keys that are not shown, by directory: those that were
// found when it was last listed.
type hidden struct {
	once sync.Once // for the log

	mu    sync.Mutex // guards the following
	in    map[string]int64
	total int64
}

func (h *hidden) set(dir string, n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.total += n - h.in[dir]
	if n == 0 {
		delete(h.in, dir)
		return
	}
	if h.in == nil {
		h.in = make(map[string]int64)
	}
	h.in[dir] = n
}

func (h *hidden) load() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.total
}

// prefix returns what the keys in a directory begin with.
func (b *Bucket) prefix(dir string) string {
	if dir == "." {
		return b.location.Prefix
	}
	return b.location.Prefix + dir + "/"
}

// The modes of what is shown. Nobody may write, and everybody read whom the mount
// lets in.
const (
	fileMode = 0o100444
	dirMode  = 0o040555
)

// directory describes a directory. It has no times of its own.
func (b *Bucket) directory(name string) drivers.Info {
	return drivers.Info{
		Name: name, Mode: dirMode, Nlink: 2, UID: b.uid, GID: b.gid,
		Mtime: b.since, Ctime: b.since, Atime: b.since,
	}
}

// file describes an object.
func (b *Bucket) file(i item) drivers.Info {
	mtime := stamp(i)
	return drivers.Info{
		Name: i.key[strings.LastIndexByte(i.key, '/')+1:], Mode: fileMode, Nlink: 1, UID: b.uid, GID: b.gid,
		Size: i.size, Mtime: mtime, Ctime: mtime, Atime: mtime, Version: i.version,
	}
}

// stamp returns the time of an object in whole seconds, as stores tell it, and in
// the nanoseconds a digest of its version. So a copy, which has the time and the
// size of its object and nothing else to be known by, is told from that of
// another version also if the object was overwritten within the second; of two
// versions, one in a billion would pass for the other.
func stamp(i item) time.Time {
	var digest int64
	if i.version != "" {
		h := fnv.New64a()
		h.Write([]byte(i.version))
		digest = int64(h.Sum64() % 1e9)
	}
	return time.Unix(i.mtime.Unix(), digest)
}
