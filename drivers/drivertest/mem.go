package drivertest

import (
	"bytes"
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
	_ drivers.ACLer      = (*Mem)(nil)
	_ drivers.HoleFinder = (*Mem)(nil)
	_ drivers.Statfser   = (*Mem)(nil)
	_ drivers.Prober     = (*Mem)(nil)
	_ drivers.CopyProber = (*Mem)(nil)
)

// A Mem is a drivers.Store that holds files in memory. It is a source or a tier for tests of
// other packages. The methods that are not of an interface change the files for the test.
// They create the parent directories of a name, and panic if the change is impossible. All
// methods may be called concurrently.
type Mem struct {
	// Granularity of the times of files. 0: all modification times differ. It is set before the
	// first file is made.
	Granularity time.Duration

	capacity int64 // bytes of all files; 0: unlimited

	mu        sync.RWMutex // guards the following, and all nodes
	root      *node
	used      int64     // bytes of files and of uncommitted copies
	last      time.Time // the last result of now
	foldsCase bool      // see IgnoreCase
}

// A node is a file, a directory, a symbolic link or a special file.
type node struct {
	info   drivers.Info
	kids   map[string]*node  // entries of a directory; nil for other nodes
	data   []byte            // content of a file; replaced, never changed
	holes  []drivers.Hole    // holes of a file
	target string            // target of a link
	xattrs map[string][]byte // extended attributes
	hidden bool              // no listing shows it
}

// NewMem returns an empty Mem. capacity bounds the bytes of all files together; 0 is
// unlimited.
func NewMem(capacity int64) *Mem {
	m := &Mem{capacity: capacity}
	m.root = m.newNode(".", syscall.S_IFDIR|0o755)
	return m
}

// now returns the current time, or a later one so that all results differ, unless the times have
// a granularity. m.mu must be held.
func (m *Mem) now() time.Time {
	t := time.Now().Round(0)
	if m.Granularity > 0 {
		return t.Truncate(m.Granularity)
	}
	if !t.After(m.last) {
		t = m.last.Add(1)
	}
	m.last = t
	return t
}

// newNode returns a node that is not in the tree yet. m.mu must be held.
func (m *Mem) newNode(name string, mode uint32) *node {
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

// size returns the bytes of the files in n, which count towards the capacity.
func (n *node) size() int64 {
	size := int64(len(n.data))
	for _, kid := range n.kids {
		size += kid.size()
	}
	return size
}

// find returns the node at name. It follows no links. m.mu must be held.
func (m *Mem) find(name string) (*node, error) {
	n := m.root
	if name == "." {
		return n, nil
	}
	for elem := range strings.SplitSeq(name, "/") {
		if n.isLink() {
			return nil, syscall.ELOOP
		}
		if n = m.kid(n, elem); n == nil {
			return nil, syscall.ENOENT
		}
	}
	return n, nil
}

// kid returns the node of a name in a directory, or nil. m.mu must be held.
func (m *Mem) kid(dir *node, name string) *node {
	kid := dir.kids[name]
	if kid == nil && m.foldsCase {
		for spelling, other := range dir.kids {
			if strings.EqualFold(spelling, name) {
				return other
			}
		}
	}
	return kid
}

// IgnoreCase finds names in any spelling from now on. Listings have the one with which a file was made. No two
// names of a directory differ in their case only.
func (m *Mem) IgnoreCase() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.foldsCase = true
}

// Hide makes listings lack a name, which is still found, or have it again.
func (m *Mem) Hide(name string, hidden bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(name)
	if err != nil {
		panic(err)
	}
	n.hidden = hidden
}

// makeDir returns the directory at name and creates what is missing. It replaces files. m.mu
// must be held.
func (m *Mem) makeDir(name string) (*node, error) {
	n := m.root
	if name == "." {
		return n, nil
	}
	for elem := range strings.SplitSeq(name, "/") {
		next := n.kids[elem]
		if next == nil || next.isFile() {
			next = m.newNode(elem, syscall.S_IFDIR|0o755)
			m.attach(n, next)
		}
		if next.kids == nil {
			return nil, syscall.ENOTDIR
		}
		n = next
	}
	return n, nil
}

// attach adds n to dir and replaces the node of the same name. m.mu must be held.
func (m *Mem) attach(dir, n *node) {
	if old := dir.kids[n.info.Name]; old != nil {
		m.used -= old.size()
	}
	m.used += n.size()
	dir.kids[n.info.Name] = n
	dir.info.Mtime = m.now()
}

// put creates a node at name, in place of an existing one. fill sets its content.
func (m *Mem) put(name string, mode uint32, fill func(n *node)) drivers.Info {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base := split(name)
	parent, err := m.makeDir(dir)
	if err != nil || !drivers.ValidName(name) || name == "." {
		panic("drivertest: cannot create " + name)
	}
	n := m.newNode(base, mode)
	fill(n)
	m.attach(parent, n)
	return n.info
}

// Put creates or replaces a file and returns its Info. Objects that are open on a replaced
// file keep its version. The modification times of all Puts differ.
func (m *Mem) Put(name string, data []byte) drivers.Info {
	return m.put(name, syscall.S_IFREG|0o644, func(n *node) { n.setData(data) })
}

// PutAt is Put with the modification time mtime.
func (m *Mem) PutAt(name string, data []byte, mtime time.Time) drivers.Info {
	return m.put(name, syscall.S_IFREG|0o644, func(n *node) {
		n.setData(data)
		n.info.Mtime = mtime
	})
}

func (n *node) setData(data []byte) {
	n.data = bytes.Clone(data)
	n.info.Size = int64(len(data))
	n.info.Blocks = drivers.FullBlocks(n.info.Size)
	n.holes = nil
}

// SetHoles sets what Holes returns for a file, and its number of blocks. The content of a hole
// should be zeros.
func (m *Mem) SetHoles(name string, holes ...drivers.Hole) {
	m.change(name, func(n *node) {
		n.holes = holes
		n.info.Blocks = drivers.FullBlocks(n.info.Size)
		for _, h := range holes {
			n.info.Blocks -= (h.End - h.Start) / 512
		}
	})
}

// Chctime sets the change time of a file.
func (m *Mem) Chctime(name string, ctime time.Time) {
	m.change(name, func(n *node) { n.info.Ctime = ctime })
}

// Mkdir creates a directory.
func (m *Mem) Mkdir(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.makeDir(name); err != nil {
		panic("drivertest: cannot create " + name)
	}
}

// Symlink creates a symbolic link to target.
func (m *Mem) Symlink(target, name string) {
	m.put(name, syscall.S_IFLNK|0o777, func(n *node) {
		n.target = target
		n.info.Size = int64(len(target))
	})
}

// Special creates a file of another type, such as syscall.S_IFIFO.
func (m *Mem) Special(name string, mode uint32) {
	m.put(name, mode|0o644, func(*node) {})
}

// change calls f with the node at name, to change it.
func (m *Mem) change(name string, f func(n *node)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(name)
	if err != nil {
		panic("drivertest: " + name + " does not exist")
	}
	m.used -= n.size()
	f(n)
	m.used += n.size()
}

// Overwrite changes the content of a file in place. Reads of Objects that are open on it
// fail with drivers.ErrChanged.
func (m *Mem) Overwrite(name string, data []byte) {
	m.change(name, func(n *node) {
		n.setData(data)
		n.info.Mtime = m.now()
		n.info.Ctime = n.info.Mtime
	})
}

// Chmod sets the permissions of a file or directory. A Mem does not check them.
func (m *Mem) Chmod(name string, perm uint32) {
	m.change(name, func(n *node) {
		n.info.Mode = n.info.Mode&^0o7777 | perm
		n.info.Ctime = m.now()
	})
}

// Setxattr sets an extended attribute.
func (m *Mem) Setxattr(name, attr string, value []byte) {
	m.change(name, func(n *node) {
		if n.xattrs == nil {
			n.xattrs = make(map[string][]byte)
		}
		n.xattrs[attr] = bytes.Clone(value)
		n.info.Ctime = m.now()
	})
}

// Delete removes the node at name and all nodes below it.
func (m *Mem) Delete(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base := split(name)
	parent, err := m.find(dir)
	if err != nil || parent.kids[base] == nil {
		panic("drivertest: " + name + " does not exist")
	}
	m.detach(parent, base)
}

// detach removes the entry name from dir. m.mu must be held.
func (m *Mem) detach(dir *node, name string) {
	m.used -= dir.kids[name].size()
	delete(dir.kids, name)
	dir.info.Mtime = m.now()
}

// Used returns the bytes of all files and uncommitted copies.
func (m *Mem) Used() int64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.used
}

// Subject returns a Subject with the driver m.
func (m *Mem) Subject() Subject {
	return Subject{
		Driver:    m,
		Put:       func(name string, data []byte) { m.Put(name, data) },
		Remove:    m.Delete,
		Overwrite: m.Overwrite,
		Mkdir:     m.Mkdir,
		Symlink:   m.Symlink,
		Special:   func(name string) { m.Special(name, syscall.S_IFIFO) },
		Setxattr:  func(name, attr, value string) { m.Setxattr(name, attr, []byte(value)) },
	}
}

// split returns the directory and the last element of name. The root is ".".
func split(name string) (dir, base string) {
	i := strings.LastIndexByte(name, '/')
	if i < 0 {
		return ".", name
	}
	return name[:i], name[i+1:]
}
