package posix

import (
	"container/list"
	"errors"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/drivers/refcount"
)

// A resolver resolves names below a folder, and keeps O_PATH descriptors of what it has resolved for
// a short time. Some clients of remote file systems make a request for each component of a path at
// each use of it, so that they see every change (close-to-open consistency). With a resolver,
//
//   - a name is resolved below the descriptor of its directory, which takes one request;
//   - a file that has just been described is opened by its descriptor, without a request for its
//     name. It is not opened before: an open may block, fail, or make the server read the file from
//     a tape.
//
// A descriptor is of the file that had the name when it was resolved. So a directory that was
// renamed or replaced may be used under its old name for keepFor. This is bounded further:
//
//   - A request for the attributes of a directory resolves its name. If the name has another
//     directory, no descriptor of the old one or of directories below it is used any more. So a
//     program that resolves all components of a path, one after another, sees no outdated one.
//   - A name that is missing in a directory whose descriptor was kept is missing only if the whole
//     path, resolved again, leads to the same directory.
//   - The descriptor of a directory is used for keepFor after the oldest one on its path was
//     resolved.
//
// The descriptor of a file is used for keepFor after the file was described, whatever becomes of its
// directories: the file may have been replaced or renamed since, also to a place outside of the
// folder. The caller of Open compares the version in any case.
//
// All methods may be called concurrently.
type resolver struct {
	root *kept
	max  int // number of descriptors that are kept

	mu     sync.Mutex // guards the following, and the fields of kept as marked
	names  map[string]*kept
	order  list.List // of *kept: those in names, the oldest first
	timer  *time.Timer
	closed bool // nothing is kept any more
}

// A kept is the O_PATH descriptor of a name. Users hold references.
type kept struct {
	name string
	fd   int
	file identity
	refs refcount.Count

	// The following are guarded by resolver.mu.
	parent  *kept         // the directory below which the name was resolved; nil for the root
	since   time.Time     // when the name was resolved
	expires time.Time     // when the descriptor may not be used any more; at most keepFor later
	elem    *list.Element // in resolver.order; nil if it is not used any more
}

// An identity tells whether two descriptors are of the same file. An inode number alone does not,
// because the file system may use it again.
type identity struct {
	dev, ino uint64
	ctime    unix.Timespec
	mode     uint32
}

func identityOf(st *unix.Stat_t) identity {
	return identity{st.Dev, st.Ino, st.Ctim, st.Mode & unix.S_IFMT}
}

func (i identity) isDir() bool { return i.mode == unix.S_IFDIR }

const (
	keepFor  = time.Second // how long a descriptor is used
	maxNames = 1024        // descriptors that are kept, if RLIMIT_NOFILE is large
)

// newResolver returns a resolver below the folder root, which the caller closes after the resolver.
func newResolver(root int) *resolver {
	r := &resolver{root: &kept{name: ".", fd: root}, max: maxNames, names: make(map[string]*kept)}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		r.max = int(min(maxNames, limit.Cur/16))
	}
	return r
}

// close closes all descriptors that are not in use, and keeps no others.
func (r *resolver) close() {
	r.mu.Lock()
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
	}
	r.mu.Unlock()
	r.clear()
}

// clear closes all descriptors that are not in use.
func (r *resolver) clear() {
	r.mu.Lock()
	var dropped []*kept
	for e := r.order.Front(); e != nil; e = r.order.Front() {
		dropped = append(dropped, r.drop(e.Value.(*kept)))
	}
	r.mu.Unlock()
	r.release(dropped...)
}

// open opens name, which may be ".". It keeps the descriptor of a directory, so that a listing and
// the requests for the names in it are answered by the same one.
func (r *resolver) open(name string, flags int) (fd int, err error) {
	fd = -1
	err = r.resolve(name, func(parent *kept, base string) error {
		if flags&unix.O_DIRECTORY != 0 && base != "." {
			dir, err := r.descend(parent, name, base)
			if err != nil {
				return err
			}
			defer r.release(dir)
			parent, base = dir, "."
		}
		fd, err = openat2(parent.fd, base, flags)
		return err
	})
	return fd, err
}

// stat describes name, which may be a symbolic link, and keeps its descriptor if it is a file or a
// directory.
func (r *resolver) stat(name string, st *unix.Stat_t) error {
	return r.resolve(name, func(parent *kept, base string) error {
		fd, err := openat2(parent.fd, base, unix.O_PATH|unix.O_NOFOLLOW)
		if err != nil {
			r.forget(name)
			return err
		}
		if err := ignoringEINTR(func() error { return unix.Fstat(fd, st) }); err != nil {
			unix.Close(fd)
			return err
		}
		file := identityOf(st)
		if name == "." || !file.isDir() && file.mode != unix.S_IFREG {
			r.forget(name)
			return unix.Close(fd)
		}
		r.release(r.keep(name, parent, fd, file))
		return nil
	})
}

// take returns the descriptor of a file that was described at most keepFor ago, or nil. The caller
// releases it. It is returned once.
func (r *resolver) take(name string) *kept {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.names[name]
	if k == nil || k.file.isDir() || !time.Now().Before(k.expires) {
		return nil
	}
	return r.drop(k)
}

// resolve calls f with the directory of name and with its last component. If f fails because of a
// directory whose descriptor was kept, resolve calls it again with the directory that has the path
// now.
func (r *resolver) resolve(name string, f func(parent *kept, base string) error) error {
	dir, base := splitName(name)
	parent, wasKept, err := r.folder(dir, false)
	if err == nil {
		defer r.release(parent)
		err = f(parent, base)
	}
	if wasKept && mayBeOutdated(err) {
		now, _, failure := r.folder(dir, true)
		if failure != nil {
			return failure
		}
		defer r.release(now)
		if now != parent || err == unix.ESTALE {
			err = f(now, base)
		}
	}
	if err == unix.EMFILE || err == unix.ENFILE {
		r.clear()
	}
	return err
}

// splitName returns the directory and the last component of a name.
func splitName(name string) (dir, base string) {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		return name[:i], name[i+1:]
	}
	return ".", name
}

// mayBeOutdated reports whether err may be the result of a directory that was renamed, replaced or
// removed.
func mayBeOutdated(err error) bool {
	return isMissing(err) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EACCES)
}

// folder returns a directory, with a reference. If fresh is set, it resolves the whole path.
// Otherwise wasKept reports whether it has used a descriptor that was kept, also if it fails.
func (r *resolver) folder(name string, fresh bool) (k *kept, wasKept bool, err error) {
	if name == "." {
		r.root.refs.Acquire()
		return r.root, false, nil
	}
	if !fresh {
		if k := r.acquireFolder(name); k != nil {
			return k, true, nil
		}
	}
	dir, base := splitName(name)
	parent, wasKept, err := r.folder(dir, fresh)
	if err != nil {
		return nil, wasKept, err
	}
	defer r.release(parent)
	k, err = r.descend(parent, name, base)
	return k, wasKept, err
}

// descend returns the directory name, which is base in parent, with a reference, and keeps it.
func (r *resolver) descend(parent *kept, name, base string) (*kept, error) {
	fd, err := openat2(parent.fd, base, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		r.forget(name)
		return nil, err
	}
	// The client has the attributes since it has resolved the name: no request is needed.
	var st unix.Stat_t
	if err := unix.Fstatat(fd, "", &st, unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return r.keep(name, parent, fd, identityOf(&st)), nil
}

// acquireFolder returns the descriptor of a directory that is kept, with a reference, or nil.
func (r *resolver) acquireFolder(name string) *kept {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.names[name]
	if k == nil || !k.file.isDir() || !time.Now().Before(k.expires) {
		return nil
	}
	for dir := k.parent; dir != r.root; dir = dir.parent {
		if dir.elem == nil { // its name may have another directory now
			return nil
		}
	}
	k.refs.Acquire()
	return k
}

// keep keeps the descriptor of a name that was resolved below parent, takes it over, and returns it
// with a reference. If the name has the same directory as before, keep returns the one that it had.
func (r *resolver) keep(name string, parent *kept, fd int, file identity) *kept {
	now := time.Now()
	k := &kept{name: name, fd: fd, file: file}
	r.mu.Lock()
	var dropped []*kept
	switch old := r.names[name]; {
	case r.closed:
		r.mu.Unlock()
		return k
	case old != nil && file.isDir() && old.file == file:
		dropped = append(dropped, k)
		k = old
		r.order.MoveToBack(k.elem)
	default:
		if old != nil {
			dropped = append(dropped, r.drop(old))
		}
		if r.order.Len() >= r.max {
			if oldest := r.order.Front(); oldest != nil {
				dropped = append(dropped, r.drop(oldest.Value.(*kept)))
			}
		}
		r.names[name] = k
		k.elem = r.order.PushBack(k)
	}
	k.refs.Acquire()
	k.parent, k.since, k.expires = parent, now, now.Add(keepFor)
	if file.isDir() && parent != r.root && parent.expires.Before(k.expires) {
		k.expires = parent.expires
	}
	if r.timer == nil {
		r.expireAfter(keepFor)
	}
	r.mu.Unlock()
	r.release(dropped...)
	return k
}

// forget drops the descriptor of a name that has another file now, or none.
func (r *resolver) forget(name string) {
	r.mu.Lock()
	k := r.names[name]
	if k != nil {
		r.drop(k)
	}
	r.mu.Unlock()
	if k != nil {
		r.release(k)
	}
}

// expireAfter calls expire after d. r.mu must be held.
func (r *resolver) expireAfter(d time.Duration) {
	r.timer = time.AfterFunc(d, func() {
		defer panics.Contain()
		r.expire()
	})
}

// expire drops the descriptors that were kept for keepFor.
func (r *resolver) expire() {
	r.mu.Lock()
	now := time.Now()
	r.timer = nil
	var dropped []*kept
	for e := r.order.Front(); e != nil; e = r.order.Front() {
		k := e.Value.(*kept)
		if left := k.since.Add(keepFor).Sub(now); left > 0 {
			r.expireAfter(left)
			break
		}
		dropped = append(dropped, r.drop(k))
	}
	r.mu.Unlock()
	r.release(dropped...)
}

// drop removes k from the resolver, and returns it. The caller releases it when it has unlocked
// r.mu, which must be held.
func (r *resolver) drop(k *kept) *kept {
	delete(r.names, k.name)
	r.order.Remove(k.elem)
	k.elem = nil
	return k
}

// release drops references. The last one closes the descriptor.
func (r *resolver) release(ks ...*kept) {
	for _, k := range ks {
		if k.refs.Release() {
			unix.Close(k.fd)
		}
	}
}
