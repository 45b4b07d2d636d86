package manifest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sync/singleflight"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

var (
	_ drivers.Driver     = (*Driver)(nil)
	_ drivers.Readlinker = (*Driver)(nil)
	_ drivers.Statfser   = (*Driver)(nil)
	_ drivers.Sampler    = (*Driver)(nil)
	_ drivers.Profiler   = (*Driver)(nil)
	_ drivers.Comparer   = (*Driver)(nil)
	_ drivers.Pinner     = (*Driver)(nil)
	_ drivers.Permitter  = (*Driver)(nil)
)

// A Driver has the names of a manifest and the contents of another driver, to which it sends no request for
// a name or an attribute. All methods may be called concurrently.
//
// The Version of a file begins with its SHA-256. It changes when the file is opened and is not the one
// that was opened before, so that no reader gets a mixture of two files. The nanoseconds of the
// modification time are a digest of the Version. Owners are those of the process.
type Driver struct {
	inner drivers.Driver
	fixed atomic.Pointer[Manifest]                     // of the whole source; nil: each directory in the root has a manifest of its own
	file  string                                       // the name of that in the directory
	again func(ctx context.Context) (*Manifest, error) // see Follow; nil: fixed stays
	root  rootFile

	loads singleflight.Group // by generation

	mu       panics.Mutex         // guards the following, and name.stamp
	loaded   map[string]*Manifest // by generation
	changes  map[*name]uint32     // of a file, since it was opened first
	rejected map[*name]bool       // the version at the source has another content
}

// New returns a driver for a source with a manifest.
func New(inner drivers.Driver, m *Manifest) *Driver {
	d := &Driver{inner: inner}
	d.fixed.Store(m)
	return d
}

// NewGenerations returns a driver for a source whose root holds generations, directories that have a
// manifest each, in a file of the same name. It is read when the generation is used first.
func NewGenerations(inner drivers.Driver, file string) *Driver {
	return &Driver{inner: inner, file: file}
}

// ErrNone is the error for a generation that has no manifest. It matches syscall.EIO.
var ErrNone = fmt.Errorf("it has no manifest: %w", syscall.EIO)

// Generation returns the manifest of a generation. It is read once.
func (d *Driver) Generation(ctx context.Context, generation string) (*Manifest, error) {
	d.mu.Lock()
	m := d.loaded[generation]
	d.mu.Unlock()
	if m != nil {
		return m, nil
	}
	v, err, _ := d.loads.Do(generation, func() (v any, err error) {
		defer panics.Catch(&err)
		ctx := context.WithoutCancel(ctx)
		m, err := Open(ctx, d.inner, generation+"/"+d.file)
		if errors.Is(err, fs.ErrNotExist) {
			if _, err := d.inner.Stat(ctx, generation); err != nil {
				return nil, err
			}
			err = fmt.Errorf("%s/%s: %w", generation, d.file, ErrNone) // its files are not known to be missing
		}
		if err != nil {
			return nil, err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.loaded == nil {
			d.loaded = make(map[string]*Manifest)
		}
		d.loaded[generation] = m
		return m, nil
	})
	if err != nil {
		return nil, err
	}
	return v.(*Manifest), nil
}

// Open reads a manifest from a file of a driver.
func Open(ctx context.Context, from drivers.Driver, fileName string) (*Manifest, error) {
	o, err := from.Open(ctx, fileName)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	m, err := Load(io.NewSectionReader(readerAt{ctx, o}, 0, o.Info().Size))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", fileName, err)
	}
	return m, nil
}

// A readerAt makes an Object an io.ReaderAt.
type readerAt struct {
	ctx context.Context
	obj drivers.Object
}

func (r readerAt) ReadAt(p []byte, off int64) (int, error) { return r.obj.ReadAt(r.ctx, p, off) }

// resolve returns the manifest that has a name, and the name in it. The manifest is nil for the root of
// generations, and what is in it.
func (d *Driver) resolve(ctx context.Context, fileName string) (m *Manifest, inside string, err error) {
	switch {
	case !drivers.ValidName(fileName):
		return nil, "", syscall.EINVAL
	case ctx.Err() != nil:
		return nil, "", context.Cause(ctx)
	case d.fixed.Load() != nil:
		return d.fixed.Load(), fileName, nil
	}
	generation, inside, below := strings.Cut(fileName, "/")
	if !below {
		return nil, ".", nil
	}
	m, err = d.Generation(ctx, generation)
	return m, inside, err
}

// pathError is the error of an operation on a name.
func pathError(op, fileName string, err error) error {
	return &fs.PathError{Op: op, Path: fileName, Err: err}
}

// Stat implements drivers.Driver.
func (d *Driver) Stat(ctx context.Context, fileName string) (drivers.Info, error) {
	if fileName == "." && ctx.Err() == nil {
		return d.statRoot(ctx)
	}
	m, inside, err := d.resolve(ctx, fileName)
	switch {
	case err != nil:
		return drivers.Info{}, pathError("stat", fileName, err)
	case m == nil:
		return d.inner.Stat(ctx, fileName)
	}
	if found := m.dirs[inside]; found != nil {
		return found.info(path.Base(fileName)), nil
	}
	n := m.find(inside)
	if n == nil {
		return drivers.Info{}, pathError("stat", fileName, syscall.ENOENT)
	}
	return d.info(n), nil
}

// ReadDir implements drivers.Driver.
func (d *Driver) ReadDir(ctx context.Context, dirName string) ([]drivers.Info, error) {
	m, inside, err := d.resolve(ctx, dirName)
	if err == nil && m == nil && dirName != "." {
		m, err = d.Generation(ctx, dirName)
	}
	switch {
	case err != nil:
		return nil, pathError("readdir", dirName, err)
	case m == nil:
		return d.inner.ReadDir(ctx, dirName)
	}
	found := m.dirs[inside]
	switch {
	case found == nil && m.find(inside) != nil:
		return nil, pathError("readdir", dirName, syscall.ENOTDIR)
	case found == nil:
		return nil, pathError("readdir", dirName, syscall.ENOENT)
	}
	infos := make([]drivers.Info, len(found.names))
	for i := range found.names {
		if n := &found.names[i]; n.mode&syscall.S_IFMT == syscall.S_IFDIR {
			infos[i] = m.dirs[path.Join(inside, n.text)].info(n.text)
		} else {
			infos[i] = d.info(n)
		}
	}
	return infos, nil
}

// info describes a directory.
func (d *dir) info(base string) drivers.Info {
	return drivers.Info{
		Name: base, Mode: d.mode, Nlink: 1, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()),
		Mtime: d.mtime, Ctime: d.mtime, Atime: d.mtime,
	}
}

// info describes a name that is not a directory.
func (d *Driver) info(n *name) drivers.Info {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.infoLocked(n)
}

// infoLocked is info; d.mu must be held.
func (d *Driver) infoLocked(n *name) drivers.Info {
	i := drivers.Info{
		Name: n.text, Mode: n.mode, Nlink: 1, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()),
		Size: n.size, Blocks: drivers.FullBlocks(n.size), Mtime: n.time(),
	}
	if i.IsRegular() {
		version := n.sum[:]
		if c := d.changes[n]; c > 0 {
			version = binary.LittleEndian.AppendUint32(version, c)
		}
		i.Version = string(version)
		i.Mtime = drivers.VersionedTime(i.Mtime, i.Version)
	}
	i.Ctime, i.Atime = i.Mtime, i.Mtime
	return i
}

// Open implements drivers.Driver. If the source does not have the file, or has one of another size, or
// Reject was called for the one that it has, the error matches drivers.ErrMismatch.
func (d *Driver) Open(ctx context.Context, fileName string) (drivers.Object, error) {
	m, inside, err := d.resolve(ctx, fileName)
	switch {
	case err != nil:
		return nil, pathError("open", fileName, err)
	case m == nil:
		return d.inner.Open(ctx, fileName)
	case m.dirs[inside] != nil:
		return nil, pathError("open", fileName, syscall.EISDIR)
	}
	n := m.find(inside)
	switch {
	case n == nil:
		return nil, pathError("open", fileName, syscall.ENOENT)
	case n.mode&syscall.S_IFMT == syscall.S_IFLNK:
		return nil, pathError("open", fileName, syscall.ELOOP)
	case n.mode&syscall.S_IFMT != syscall.S_IFREG:
		return nil, pathError("open", fileName, syscall.ENXIO)
	}
	o, err := d.inner.Open(ctx, fileName)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return nil, mismatch(fileName, "the source does not have it")
	case errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENXIO):
		return nil, mismatch(fileName, "it is no file at the source")
	case err != nil:
		return nil, err
	}
	info, rejected := d.admit(n, o.Info())
	switch size := o.Info().Size; {
	case size != n.size:
		o.Close()
		return nil, mismatch(fileName, fmt.Sprintf("it has %d bytes at the source, and %d in the manifest", size, n.size))
	case rejected:
		o.Close()
		return nil, mismatch(fileName, "the SHA-256 of the file at the source is not that in the manifest")
	}
	return &object{o, info}, nil
}

// mismatch returns an error for a file that is not the one in the manifest.
func mismatch(fileName, problem string) error {
	return fmt.Errorf("%s: %s: %w", fileName, problem, drivers.ErrMismatch)
}

// admit records which version of a file the source has, and returns the Info of it, and whether it was
// rejected.
func (d *Driver) admit(n *name, atSource drivers.Info) (info drivers.Info, rejected bool) {
	stamp := stampOf(atSource)
	d.mu.Lock()
	defer d.mu.Unlock()
	if n.stamp != stamp && n.stamp != 0 {
		if d.changes == nil {
			d.changes = make(map[*name]uint32)
		}
		d.changes[n]++
		delete(d.rejected, n)
	}
	n.stamp = stamp
	return d.infoLocked(n), d.rejected[n]
}

// stampOf returns a hash of what identifies a version of a file. It is not 0.
func stampOf(i drivers.Info) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %d %d %s", i.Inode, i.Size, i.Mtime.UnixNano(), i.Version)
	return h.Sum64() | 1
}

// Digest implements drivers.Pinner.
func (d *Driver) Digest(info drivers.Info) (sum [sha256.Size]byte, ok bool) {
	if !info.IsRegular() || len(info.Version) < len(sum) {
		return sum, false
	}
	return [sha256.Size]byte([]byte(info.Version[:len(sum)])), true
}

// Reject implements drivers.Pinner.
func (d *Driver) Reject(fileName string, info drivers.Info) {
	m, inside, err := d.resolve(context.Background(), fileName)
	if err != nil || m == nil {
		return
	}
	n := m.find(inside)
	if n == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.infoLocked(n).Version != info.Version { // it was opened since, and was another one
		return
	}
	if d.rejected == nil {
		d.rejected = make(map[*name]bool)
	}
	d.rejected[n] = true
}

// HaveSameContent implements drivers.Comparer.
func (d *Driver) HaveSameContent(_ context.Context, _ [2]string, infos [2]drivers.Info) bool {
	x, ok := d.Digest(infos[0])
	y, both := d.Digest(infos[1])
	return ok && both && x == y && infos[0].Size == infos[1].Size
}

// Permits implements drivers.Permitter. The permissions in a manifest are not those of the source, which
// may deny everything but to a user to whom nothing is denied.
func (d *Driver) Permits(info drivers.Info, _ bool) (permitted, known bool) {
	p, ok := drivers.As[drivers.Permitter](d.inner)
	if !ok {
		return true, true
	}
	const nobody = 1<<32 - 1
	always, _ := p.Permits(drivers.Info{Mode: info.Type(), UID: nobody, GID: nobody}, true)
	return always, always
}

// User implements drivers.Permitter.
func (d *Driver) User() string {
	if p, ok := drivers.As[drivers.Permitter](d.inner); ok {
		return p.User()
	}
	return ""
}

// Access implements drivers.Permitter.
func (d *Driver) Access(ctx context.Context, fileName string) error {
	if p, ok := drivers.As[drivers.Permitter](d.inner); ok {
		return p.Access(ctx, fileName)
	}
	return nil
}

// Readlink implements drivers.Readlinker.
func (d *Driver) Readlink(ctx context.Context, fileName string) (string, error) {
	m, inside, err := d.resolve(ctx, fileName)
	if err == nil && m == nil {
		if l, ok := drivers.As[drivers.Readlinker](d.inner); ok {
			return l.Readlink(ctx, fileName)
		}
		err = syscall.EINVAL
	}
	if err == nil {
		if target, ok := m.targets[inside]; ok {
			return target, nil
		}
		err = syscall.EINVAL
		if m.dirs[inside] == nil && m.find(inside) == nil {
			err = syscall.ENOENT
		}
	}
	return "", pathError("readlink", fileName, err)
}

// Statfs implements drivers.Statfser.
func (d *Driver) Statfs(ctx context.Context) (drivers.Statfs, error) {
	s, ok := drivers.As[drivers.Statfser](d.inner)
	if !ok {
		return drivers.Statfs{}, syscall.ENOSYS
	}
	return s.Statfs(ctx)
}

// Profile implements drivers.Profiler.
func (d *Driver) Profile() drivers.Profile {
	p := drivers.ProfileOf(d.inner)
	p.NamesInMemory = true
	return p
}

// Sample implements drivers.Sampler. The files are those of one generation that was read, if there are
// generations.
func (d *Driver) Sample(_ context.Context, n int) (drivers.Sample, error) {
	found := drivers.Sample{Files: make(map[string]drivers.Info)}
	m, prefix := d.fixed.Load(), ""
	if m == nil {
		d.mu.Lock()
		for generation := range d.loaded {
			m, prefix = d.loaded[generation], generation
		}
		d.mu.Unlock()
	}
	if m == nil {
		return found, nil
	}
	for dirName := range m.dirs { // in any order
		names := m.dirs[dirName].names
		for i := 0; i < len(names) && i < max(1, n/4) && len(found.Files) < n; i++ {
			info := d.info(&names[i])
			name := path.Join(prefix, dirName, info.Name)
			switch {
			case info.IsRegular():
				found.Files[name] = info
			case info.Type() == syscall.S_IFLNK && len(found.Links) < n:
				found.Links = append(found.Links, name)
			}
		}
	}
	return found, nil
}

// An object is an open file, whose Info is that of the Driver.
type object struct {
	drivers.Object
	info drivers.Info
}

// Info implements drivers.Object.
func (o *object) Info() drivers.Info { return o.info }

// Unwrap returns the file as the source opened it, for drivers.As.
func (o *object) Unwrap() drivers.Object { return o.Object }
