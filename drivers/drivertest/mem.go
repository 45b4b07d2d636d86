package drivertest

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

var (
	_ drivers.Store      = (*Mem)(nil)
	_ drivers.Readlinker = (*Mem)(nil)
	_ drivers.Xattrer    = (*Mem)(nil)
	_ drivers.Statfser   = (*Mem)(nil)
	_ drivers.Prober     = (*Mem)(nil)
)

// A Mem holds files in memory. It is a source or a tier for tests that are not
// about either. The methods that are not of an interface are for the test: each
// makes the directories that a name needs, and panics if it cannot do what it
// is told. All methods may be called concurrently.
type Mem struct {
	capacity int64 // bytes that files may have; 0 is any number

	mu   sync.RWMutex // guards the following, and all nodes
	root *node
	used int64     // bytes of files, and of copies in the making
	last time.Time // the latest time that was given out
}

// A node is a file, a directory, a link or a special file.
type node struct {
	info   drivers.Info
	kids   map[string]*node // of a directory
	data   []byte           // of a file; replaced, never changed
	target string           // of a link
	xattrs map[string][]byte
}

// NewMem returns an empty Mem in which files may have so many bytes in all,
// or any number if capacity is 0.
func NewMem(capacity int64) *Mem {
	m := &Mem{capacity: capacity}
	m.root = m.node(".", syscall.S_IFDIR|0o755)
	return m
}

// now is a time that was not given out before. m.mu must be held.
func (m *Mem) now() time.Time {
	t := time.Now().Round(0)
	if !t.After(m.last) {
		t = m.last.Add(1)
	}
	m.last = t
	return t
}

// node makes what is not in the tree yet. m.mu must be held.
func (m *Mem) node(name string, mode uint32) *node {
	now := m.now()
	n := &node{info: drivers.Info{Name: name, Mode: mode, Nlink: 1, Mtime: now, Ctime: now, Atime: now}}
	if mode&syscall.S_IFMT == syscall.S_IFDIR {
		n.kids = make(map[string]*node)
		n.info.Nlink = 2
	}
	return n
}

func (n *node) isFile() bool { return n.info.Mode&syscall.S_IFMT == syscall.S_IFREG }
func (n *node) isLink() bool { return n.info.Mode&syscall.S_IFMT == syscall.S_IFLNK }

// size is what a node takes of the capacity: of a file, its bytes.
func (n *node) size() int64 {
	size := int64(len(n.data))
	for _, kid := range n.kids {
		size += kid.size()
	}
	return size
}

// find returns the node at name, following no link. m.mu must be held.
func (m *Mem) find(name string) (*node, error) {
	n := m.root
	if name == "." {
		return n, nil
	}
	for elem := range strings.SplitSeq(name, "/") {
		if n.isLink() {
			return nil, syscall.ELOOP
		}
		if n = n.kids[elem]; n == nil {
			return nil, syscall.ENOENT
		}
	}
	return n, nil
}

// makeDir returns the directory at name, which it makes, also in place of a
// file. m.mu must be held.
func (m *Mem) makeDir(name string) (*node, error) {
	n := m.root
	if name == "." {
		return n, nil
	}
	for elem := range strings.SplitSeq(name, "/") {
		next := n.kids[elem]
		if next == nil || next.isFile() {
			next = m.node(elem, syscall.S_IFDIR|0o755)
			m.attach(n, next)
		}
		if next.kids == nil {
			return nil, syscall.ENOTDIR
		}
		n = next
	}
	return n, nil
}

// attach puts n into dir, in place of what has its name. m.mu must be held.
func (m *Mem) attach(dir, n *node) {
	if old := dir.kids[n.info.Name]; old != nil {
		m.used -= old.size()
	}
	m.used += n.size()
	dir.kids[n.info.Name] = n
	dir.info.Mtime = m.now()
}

// put makes a node at name, in place of what is there.
func (m *Mem) put(name string, mode uint32, fill func(n *node)) drivers.Info {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base := split(name)
	parent, err := m.makeDir(dir)
	if err != nil || !drivers.ValidName(name) || name == "." {
		panic("drivertest: no place for " + name)
	}
	n := m.node(base, mode)
	fill(n)
	m.attach(parent, n)
	return n.info
}

// Put makes a file, in place of any other: an Object open on that keeps its
// version. The modification time is one that no other Put gave.
func (m *Mem) Put(name string, data []byte) drivers.Info {
	return m.put(name, syscall.S_IFREG|0o644, func(n *node) { n.setData(data) })
}

// PutAt is Put with a modification time.
func (m *Mem) PutAt(name string, data []byte, mtime time.Time) drivers.Info {
	return m.put(name, syscall.S_IFREG|0o644, func(n *node) {
		n.setData(data)
		n.info.Mtime = mtime
	})
}

func (n *node) setData(data []byte) {
	n.data = bytes.Clone(data)
	n.info.Size = int64(len(data))
}

// Mkdir makes a directory.
func (m *Mem) Mkdir(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.makeDir(name); err != nil {
		panic("drivertest: no place for " + name)
	}
}

// Symlink makes name a link to target.
func (m *Mem) Symlink(target, name string) {
	m.put(name, syscall.S_IFLNK|0o777, func(n *node) {
		n.target = target
		n.info.Size = int64(len(target))
	})
}

// Special makes a file of another kind, such as syscall.S_IFIFO.
func (m *Mem) Special(name string, mode uint32) {
	m.put(name, mode|0o644, func(*node) {})
}

// change calls f on the node at name.
func (m *Mem) change(name string, f func(n *node)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(name)
	if err != nil {
		panic("drivertest: there is no " + name)
	}
	m.used -= n.size()
	f(n)
	m.used += n.size()
}

// Overwrite changes the content of a file in place, under those who have it
// open.
func (m *Mem) Overwrite(name string, data []byte) {
	m.change(name, func(n *node) {
		n.setData(data)
		n.info.Mtime = m.now()
		n.info.Ctime = n.info.Mtime
	})
}

// Chmod sets the permissions of a file or directory. Nothing here asks for
// them.
func (m *Mem) Chmod(name string, perm uint32) {
	m.change(name, func(n *node) { n.info.Mode = n.info.Mode&^0o7777 | perm })
}

// Setxattr sets an attribute.
func (m *Mem) Setxattr(name, attr string, value []byte) {
	m.change(name, func(n *node) {
		if n.xattrs == nil {
			n.xattrs = make(map[string][]byte)
		}
		n.xattrs[attr] = bytes.Clone(value)
	})
}

// Delete removes what is at name, with all that is below it.
func (m *Mem) Delete(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base := split(name)
	parent, err := m.find(dir)
	if err != nil || parent.kids[base] == nil {
		panic("drivertest: there is no " + name)
	}
	m.detach(parent, base)
}

// detach removes a name from dir. m.mu must be held.
func (m *Mem) detach(dir *node, name string) {
	m.used -= dir.kids[name].size()
	delete(dir.kids, name)
	dir.info.Mtime = m.now()
}

// Used is how many bytes files have, with copies in the making.
func (m *Mem) Used() int64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.used
}

// at calls f on the node at name, to read it.
func (m *Mem) at(ctx context.Context, op, name string, f func(n *node) error) error {
	err := check(ctx, name)
	if err == nil {
		m.mu.RLock()
		defer m.mu.RUnlock()
		var n *node
		if n, err = m.find(name); err == nil {
			err = f(n)
		}
	}
	return pathError(op, name, err)
}

func check(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !drivers.ValidName(name) {
		return syscall.EINVAL
	}
	for elem := range strings.SplitSeq(name, "/") {
		if len(elem) > 255 {
			return syscall.ENAMETOOLONG
		}
	}
	return nil
}

func pathError(op, name string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// Open implements drivers.Driver.
func (m *Mem) Open(ctx context.Context, name string) (drivers.Object, error) {
	var o *memObject
	err := m.at(ctx, "open", name, func(n *node) error {
		switch {
		case n.isLink():
			return syscall.ELOOP
		case n.kids != nil:
			return syscall.EISDIR
		case !n.isFile():
			return syscall.ENXIO
		}
		o = &memObject{mem: m, node: n, name: name, info: n.info}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return o, nil
}

// ReadDir implements drivers.Driver.
func (m *Mem) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	var infos []drivers.Info
	err := m.at(ctx, "readdir", dir, func(n *node) error {
		if n.kids == nil {
			return syscall.ENOTDIR
		}
		for _, kid := range n.kids {
			infos = append(infos, kid.info)
		}
		return nil
	})
	return infos, err
}

// Stat implements drivers.Driver.
func (m *Mem) Stat(ctx context.Context, name string) (drivers.Info, error) {
	var info drivers.Info
	err := m.at(ctx, "stat", name, func(n *node) error {
		info = n.info
		return nil
	})
	return info, err
}

// Readlink implements drivers.Readlinker.
func (m *Mem) Readlink(ctx context.Context, name string) (string, error) {
	var target string
	err := m.at(ctx, "readlink", name, func(n *node) error {
		if !n.isLink() {
			return syscall.EINVAL
		}
		target = n.target
		return nil
	})
	return target, err
}

// Listxattr implements drivers.Xattrer.
func (m *Mem) Listxattr(ctx context.Context, name string) ([]string, error) {
	var attrs []string
	err := m.at(ctx, "listxattr", name, func(n *node) error {
		attrs = slices.DeleteFunc(slices.Sorted(maps.Keys(n.xattrs)), func(attr string) bool { return !userAttr(attr) })
		return nil
	})
	return attrs, err
}

// Getxattr implements drivers.Xattrer.
func (m *Mem) Getxattr(ctx context.Context, name, attr string) ([]byte, error) {
	var value []byte
	err := m.at(ctx, "getxattr", name, func(n *node) error {
		v, ok := n.xattrs[attr]
		if !ok || !userAttr(attr) {
			return syscall.ENODATA
		}
		value = bytes.Clone(v)
		return nil
	})
	return value, err
}

func userAttr(attr string) bool { return strings.HasPrefix(attr, "user.") }

// Statfs implements drivers.Statfser. Without a capacity there is a tebibyte.
func (m *Mem) Statfs(ctx context.Context) (drivers.Statfs, error) {
	if err := ctx.Err(); err != nil {
		return drivers.Statfs{}, pathError("statfs", ".", err)
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	total := m.capacity
	if total == 0 {
		total = 1 << 40
	}
	free := max(total-m.used, 0)
	return drivers.Statfs{Total: total, Free: free, Available: free}, nil
}

// Probe implements drivers.Prober: there is nothing that could be wrong.
func (m *Mem) Probe(ctx context.Context) error { return ctx.Err() }

// Remove implements drivers.Store.
func (m *Mem) Remove(ctx context.Context, name string) error {
	return pathError("remove", name, m.remove(ctx, name))
}

func (m *Mem) remove(ctx context.Context, name string) error {
	if err := check(ctx, name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(name)
	if err != nil {
		return err
	}
	if n.kids != nil {
		return syscall.EISDIR
	}
	dir, base := split(name)
	parent, err := m.find(dir)
	if err != nil {
		return err
	}
	m.detach(parent, base)
	return nil
}

// Create implements drivers.Store. The copy takes its space at once.
func (m *Mem) Create(ctx context.Context, name string, info drivers.Info) (drivers.Writer, error) {
	if err := m.reserve(ctx, name, info.Size); err != nil {
		return nil, pathError("create", name, err)
	}
	return &memWriter{mem: m, name: name, info: info}, nil
}

func (m *Mem) reserve(ctx context.Context, name string, size int64) error {
	if err := check(ctx, name); err != nil {
		return err
	}
	if name == "." || size < 0 {
		return syscall.EINVAL
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.capacity > 0 && m.used+size > m.capacity {
		return syscall.ENOSPC
	}
	dir, _ := split(name)
	if _, err := m.makeDir(dir); err != nil {
		return err
	}
	m.used += size
	return nil
}

// A memObject is open on the version that a node had.
type memObject struct {
	mem  *Mem
	node *node
	name string
	info drivers.Info
}

func (o *memObject) Info() drivers.Info { return o.info }

func (o *memObject) Close() error { return nil }

func (o *memObject) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	n, err := o.readAt(ctx, p, off)
	return n, pathError("read", o.name, err)
}

func (o *memObject) readAt(ctx context.Context, p []byte, off int64) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, syscall.EINVAL
	}
	o.mem.mu.RLock()
	defer o.mem.mu.RUnlock()
	if !o.node.info.SameVersion(o.info) {
		return 0, drivers.ErrChanged
	}
	return readAt(o.node.data, p, off)
}

func readAt(data, p []byte, off int64) (int, error) {
	n := copy(p, data[min(off, int64(len(data))):])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// A memWriter is a copy in the making.
type memWriter struct {
	mem  *Mem
	name string
	info drivers.Info

	mu   sync.Mutex // guards the following; mem.mu is taken after it
	data []byte
	done bool // committed or aborted
}

func (w *memWriter) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, pathError("write", w.name, syscall.EINVAL)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if grow := off + int64(len(p)) - int64(len(w.data)); grow > 0 && len(p) > 0 {
		w.data = append(w.data, make([]byte, grow)...)
	}
	return copy(w.data[min(off, int64(len(w.data))):], p), nil
}

func (w *memWriter) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, pathError("read", w.name, syscall.EINVAL)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return readAt(w.data, p, off)
}

func (w *memWriter) Commit() error { return pathError("commit", w.name, w.commit()) }

func (w *memWriter) commit() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done || int64(len(w.data)) != w.info.Size {
		return syscall.EINVAL
	}
	m := w.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base := split(w.name)
	parent, err := m.makeDir(dir)
	if err != nil {
		return err
	}
	if old := parent.kids[base]; old != nil && len(old.kids) > 0 {
		return syscall.EISDIR
	}
	n := m.node(base, syscall.S_IFREG|0o600)
	n.setData(w.data)
	n.info.Mtime = w.info.Mtime
	m.used -= w.info.Size // reserved, and counted by attach
	m.attach(parent, n)
	w.done = true
	return nil
}

func (w *memWriter) Abort() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		return
	}
	w.done = true
	w.mem.mu.Lock()
	defer w.mem.mu.Unlock()
	w.mem.used -= w.info.Size
}

func (w *memWriter) Close() error {
	w.Abort()
	return nil
}

// split cuts a name before its last element.
func split(name string) (dir, base string) {
	i := strings.LastIndexByte(name, '/')
	if i < 0 {
		return ".", name
	}
	return name[:i], name[i+1:]
}
