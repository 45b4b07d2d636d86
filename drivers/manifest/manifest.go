// Package manifest is the list of the files of a dataset with the hash of each, and a driver that takes
// the names from one.
//
// The format is that of mtree(5), because it has everything that a mount shows: names, types, sizes,
// permissions, times, targets of links, and SHA-256; any byte in a name; and other programs that write
// and verify it, such as mtree(8) and bsdtar(1). The manifests of BagIt (RFC 8493) and of sha256sum(1)
// have hashes and names only.
package manifest

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"path"
	"slices"
	"sort"
	"strings"
	"syscall"
	"time"
)

// A Manifest is the name space of a dataset, in memory: about 90 bytes and the name for each file. Its
// methods may be called concurrently.
type Manifest struct {
	Files int64             // regular files
	Bytes int64             // their sizes
	Names int64             // entries of all types
	Sum   [sha256.Size]byte // SHA-256 of the manifest itself

	// Unsealed tells that another program has written the manifest, so that it has no end that shows
	// that it is complete.
	Unsealed bool

	dirs    map[string]*dir   // by name
	targets map[string]string // of symbolic links, by name
}

// A dir is a directory of a Manifest.
type dir struct {
	mode   uint32
	mtime  time.Time
	listed bool   // it has an entry, and is not only a part of the names of others
	names  []name // sorted by text
}

// A name is an entry in a directory. That of a directory has only the type in mode.
type name struct {
	text   string
	mode   uint32
	mtimeN uint32
	mtime  int64  // seconds
	size   int64  // of a link, the length of its target
	stamp  uint64 // of the version of a file at the source that was opened last; see Driver
	sum    [sha256.Size]byte
}

// errNoNames is the error for a manifest of another program without entries.
var errNoNames = errors.New("it has no names")

// Load reads a manifest. If it is not valid, the error has the number of the line, or the name. If a Writer
// has written it and it is not complete, the error matches ErrDamaged.
func Load(r io.Reader) (*Manifest, error) {
	m := &Manifest{dirs: make(map[string]*dir), targets: make(map[string]string)}
	s, err := decode(bufio.NewReaderSize(r, 1<<20), m.add)
	if err != nil {
		return nil, err
	}
	m.Names, m.Unsealed = s.entries, !s.ended
	if m.Unsealed && m.Names == 0 {
		return nil, errNoNames
	}
	m.dir(".")
	s.hash.Sum(m.Sum[:0])
	for dirName, d := range m.dirs {
		d.names = slices.Clip(d.names)
		slices.SortFunc(d.names, func(a, b name) int { return cmp.Compare(a.text, b.text) })
		for i := 1; i < len(d.names); i++ {
			if d.names[i].text == d.names[i-1].text {
				return nil, fmt.Errorf("%q occurs twice", path.Join(dirName, d.names[i].text))
			}
		}
	}
	return m, nil
}

// add adds an entry, which may come before its directory.
func (m *Manifest) add(e Entry) error {
	if e.IsDir() {
		d := m.dir(strings.Clone(e.Name))
		if d.listed {
			return fmt.Errorf("%q occurs twice", e.Name)
		}
		d.mode, d.mtime, d.listed = e.Mode, e.Mtime, true
		return nil
	}
	if e.Name == "." {
		return fmt.Errorf("the root is not a directory: %w", syscall.ENOTDIR)
	}
	if e.Mtime.IsZero() {
		e.Mtime = time.Unix(0, 0)
	}
	if e.IsSymlink() {
		e.Size = int64(len(e.Target))
	}
	dirName, base := path.Split(e.Name)
	d := m.dir(path.Clean(dirName))
	d.names = append(d.names, name{
		text: strings.Clone(base), mode: e.Mode, size: e.Size, sum: e.SHA256,
		mtime: e.Mtime.Unix(), mtimeN: uint32(e.Mtime.Nanosecond()),
	})
	switch {
	case e.IsRegular():
		m.Files++
		m.Bytes += e.Size
	case e.IsSymlink():
		m.targets[strings.Clone(e.Name)] = strings.Clone(e.Target)
	}
	return nil
}

// dir returns the directory of a name, which it adds with those above it.
func (m *Manifest) dir(dirName string) *dir {
	if d := m.dirs[dirName]; d != nil {
		return d
	}
	d := &dir{mode: syscall.S_IFDIR | defaultDirMode}
	m.dirs[strings.Clone(dirName)] = d
	if dirName != "." {
		above, base := path.Split(dirName)
		parent := m.dir(path.Clean(above))
		parent.names = append(parent.names, name{text: strings.Clone(base), mode: syscall.S_IFDIR})
	}
	return d
}

// find returns a name that is not a directory, or nil.
func (m *Manifest) find(fileName string) *name {
	dirName, base := path.Split(fileName)
	d := m.dirs[path.Clean(dirName)]
	if d == nil {
		return nil
	}
	i := sort.Search(len(d.names), func(i int) bool { return d.names[i].text >= base }) // which copies no name
	if i == len(d.names) || d.names[i].text != base || d.names[i].mode&syscall.S_IFMT == syscall.S_IFDIR {
		return nil
	}
	return &d.names[i]
}

// Lookup returns the entry of a name. It reports whether there is one.
func (m *Manifest) Lookup(fileName string) (Entry, bool) {
	if d := m.dirs[fileName]; d != nil {
		return Entry{Name: fileName, Mode: d.mode, Mtime: d.mtime}, true
	}
	if n := m.find(fileName); n != nil {
		return m.entry(fileName, n), true
	}
	return Entry{}, false
}

// entry returns the entry of a name that is not a directory.
func (m *Manifest) entry(fileName string, n *name) Entry {
	e := Entry{Name: fileName, Mode: n.mode, SHA256: n.sum, Target: m.targets[fileName], Mtime: n.time()}
	if e.IsRegular() {
		e.Size = n.size
	}
	return e
}

// time returns the modification time.
func (n *name) time() time.Time { return time.Unix(n.mtime, int64(n.mtimeN)) }

// All yields the entries: each directory, and then what it has, sorted by name.
func (m *Manifest) All() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		for _, dirName := range slices.Sorted(maps.Keys(m.dirs)) {
			d := m.dirs[dirName]
			if !yield(Entry{Name: dirName, Mode: d.mode, Mtime: d.mtime}) {
				return
			}
			for i := range d.names {
				n := &d.names[i]
				if n.mode&syscall.S_IFMT == syscall.S_IFDIR {
					continue
				}
				if !yield(m.entry(path.Join(dirName, n.text), n)) {
					return
				}
			}
		}
	}
}
