package posix

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/refcount"
)

// A path may lead to another folder later: something is mounted there after the Dir was opened, the
// folder is renamed and another one takes its place, or the server of its file system ends and another
// one is mounted. A Dir that kept its descriptor would show the old content, or nothing, for ever. Stat of
// the root therefore opens the path again, and reads another folder from then on if the path leads to one.
// The caller learns that from the Dev and the Inode of the root, which are then others.

// A root is the open folder of a Dir, or was it before. The Dir and each operation that uses the
// descriptor hold a reference. Open files have descriptors of their own.
type root struct {
	fd     int // O_PATH; -1: the Dir is closed
	fsType string
	file   fileID
	names  *resolver // nil if the file system is local: it resolves names without requests
	cache  cachePolicy
	refs   refcount.Count

	unsized sync.Map // by the unique ID of a mount on another device: isUnsized, a bool
}

// A fileID tells two files apart while a descriptor of each of them is open.
type fileID struct{ dev, ino, mount uint64 }

// newRoot returns the root of an O_PATH descriptor, which it takes over.
func newRoot(fd int) *root {
	fsType := fsType(fd)
	file, _ := identify(fd) // if that fails, the first Stat of the root makes another one
	return &root{fd: fd, fsType: fsType, file: file, cache: cachePolicy{inMemory: isInMemory(fsType)}}
}

// resolve makes a root that is not on a local file system resolve names without repeated requests. It is
// called before the root is used.
func (r *root) resolve() {
	if !isLocal(r.fsType) {
		r.names = newResolver(r.fd)
	}
}

// identify returns the identity of an open file. It makes no request to a server.
func identify(fd int) (fileID, error) {
	var st unix.Statx_t
	err := ignoringEINTR(func() error {
		return unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_INO|unix.STATX_MNT_ID, &st)
	})
	return fileID{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino, st.Mnt_id}, err
}

// open opens name.
func (r *root) open(name string, flags int) (int, error) {
	if r.names == nil {
		return openBelow(r.fd, name, flags)
	}
	return r.names.open(name, flags)
}

// release drops a reference. The last one closes the descriptors.
func (r *root) release() {
	if !r.refs.Release() {
		return
	}
	if r.names != nil {
		r.names.close()
	}
	unix.Close(r.fd)
}

// openFolder opens the folder at a path, which may be a symbolic link.
func openFolder(path string) (fd int, err error) {
	err = ignoringEINTR(func() error {
		fd, err = unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}

// acquire returns the root with a reference, which the caller releases.
func (d *Dir) acquire() *root {
	for {
		if r := d.root.Load(); r.refs.Acquire() {
			return r
		}
	}
}

// follow makes the folder that the path names now the root, if it is another one.
func (d *Dir) follow() error {
	fd, err := openFolder(d.path)
	if err != nil {
		return err
	}
	file, err := identify(fd)
	old := d.acquire()
	defer old.release()
	if err != nil || old.fd < 0 || file == old.file || file.dev == d.avoided.Load() {
		unix.Close(fd)
		return err
	}
	r := newRoot(fd)
	r.resolve()
	if !d.root.CompareAndSwap(old, r) { // another call, or Close, was faster
		r.release()
		return nil
	}
	old.release()
	return nil
}

// Avoid keeps the Dir from reading the file system of a device: that of a mount that this process serves,
// and that may be mounted at the path of its own source to hide it. The process would wait for itself.
func (d *Dir) Avoid(device uint64) { d.avoided.Store(device) }
