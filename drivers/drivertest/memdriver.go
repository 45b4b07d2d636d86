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

	"github.com/milkweedfs/milkweed/drivers"
)

// view calls f with the node at name, to read it.
func (m *Mem) view(ctx context.Context, op, name string, f func(n *node) error) error {
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

// check returns an error if ctx is done or name is invalid.
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

// pathError adds the operation and the name to err, unless it is nil or io.EOF.
func pathError(op, name string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// Open implements drivers.Driver.
func (m *Mem) Open(ctx context.Context, name string) (drivers.Object, error) {
	var o *memObject
	err := m.view(ctx, "open", name, func(n *node) error {
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
	err := m.view(ctx, "readdir", dir, func(n *node) error {
		if n.kids == nil {
			return syscall.ENOTDIR
		}
		for _, kid := range n.kids {
			if !kid.hidden {
				infos = append(infos, kid.info)
			}
		}
		return nil
	})
	return infos, err
}

// Stat implements drivers.Driver.
func (m *Mem) Stat(ctx context.Context, name string) (drivers.Info, error) {
	var info drivers.Info
	err := m.view(ctx, "stat", name, func(n *node) error {
		info = n.info
		return nil
	})
	return info, err
}

// Readlink implements drivers.Readlinker.
func (m *Mem) Readlink(ctx context.Context, name string) (string, error) {
	var target string
	err := m.view(ctx, "readlink", name, func(n *node) error {
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
	err := m.view(ctx, "listxattr", name, func(n *node) error {
		attrs = slices.DeleteFunc(slices.Sorted(maps.Keys(n.xattrs)), func(attr string) bool { return !userAttr(attr) })
		return nil
	})
	return attrs, err
}

// Getxattr implements drivers.Xattrer.
func (m *Mem) Getxattr(ctx context.Context, name, attr string) ([]byte, error) {
	var value []byte
	err := m.view(ctx, "getxattr", name, func(n *node) error {
		v, ok := n.xattrs[attr]
		if !ok || !userAttr(attr) {
			return syscall.ENODATA
		}
		value = bytes.Clone(v)
		return nil
	})
	return value, err
}

// ACL implements drivers.ACLer.
func (m *Mem) ACL(ctx context.Context, name string) (acl []byte, info drivers.Info, err error) {
	err = m.view(ctx, "getxattr", name, func(n *node) error {
		acl, info = bytes.Clone(n.xattrs[drivers.ACLXattr]), n.info
		return nil
	})
	return acl, info, err
}

// Holes implements drivers.HoleFinder.
func (m *Mem) Holes(ctx context.Context, name string) (holes []drivers.Hole, info drivers.Info, err error) {
	err = m.view(ctx, "holes", name, func(n *node) error {
		if !n.isFile() {
			return syscall.EINVAL
		}
		holes, info = n.holes, n.info
		return nil
	})
	return holes, info, err
}

func userAttr(attr string) bool { return strings.HasPrefix(attr, "user.") }

// Statfs implements drivers.Statfser. Without a capacity the size is 1 TiB.
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

// Probe implements drivers.Prober. It fails only if ctx is done.
func (m *Mem) Probe(ctx context.Context) error { return ctx.Err() }

// ProbeCopy implements drivers.CopyProber.
func (m *Mem) ProbeCopy(ctx context.Context, name string) (inFlight int, err error) {
	return 0, m.view(ctx, "probe", name, func(*node) error { return nil })
}

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

// Create implements drivers.Store. It reserves the size of the copy.
func (m *Mem) Create(ctx context.Context, name string, info drivers.Info) (drivers.Writer, error) {
	if err := m.reserve(ctx, name, info.Size); err != nil {
		return nil, pathError("create", name, err)
	}
	return &memWriter{mem: m, name: name, info: info}, nil
}

// reserve adds size to m.used, and creates the parent directories of name.
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

// A memObject is an open file of one version.
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

// readAt reads from data, as io.ReaderAt does.
func readAt(data, p []byte, off int64) (int, error) {
	n := copy(p, data[min(off, int64(len(data))):])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// A memWriter is an uncommitted copy.
type memWriter struct {
	mem  *Mem
	name string
	info drivers.Info

	mu   sync.Mutex // guards the following; locked before mem.mu
	data []byte
	done bool // committed or aborted
}

func (w *memWriter) WriteAt(p []byte, off int64) (int, error) {
	if !drivers.WholeUnits(off, int64(len(p)), w.info.Size) {
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
	n := m.newNode(base, syscall.S_IFREG|0o600)
	n.setData(w.data)
	n.info.Mtime, n.info.Ctime = w.info.Mtime, w.info.Ctime
	n.info.Mode, n.info.Nlink = syscall.S_IFREG|w.info.Mode&0o7777, w.info.Nlink
	n.info.UID, n.info.GID = w.info.UID, w.info.GID
	m.used -= w.info.Size // reserved by Create; attach adds it again
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
