package posix

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/refcount"
)

// The names in the folder of a dataset.
const (
	filesName    = "files"         // folder of the copies
	incomingName = "incoming"      // folder of temporary files, which become copies
	markerName   = "milkweed.json" // a marker
	recordsName  = "checksums.log" // the records of the copies
)

// Copies returns the path of a directory of copies in a tier: that of all copies of a dataset, or of those
// below the directory dir of the dataset.
func Copies(tier, dataset, dir string) string { return filepath.Join(tier, dataset, filesName, dir) }

// A ForeignError reports a folder whose owner could change the copies in it.
type ForeignError struct {
	Path string
	UID  uint32 // the owner
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s: owned by user %d, but this process runs as user %d", e.Path, e.UID, os.Geteuid())
}

// A NotOursError reports a dataset folder that Milkweed did not create, or created for
// another dataset. The folder is left unchanged.
type NotOursError struct {
	Path   string
	Reason string
}

func (e *NotOursError) Error() string {
	return fmt.Sprintf("%s: not a Milkweed folder of this dataset: %s", e.Path, e.Reason)
}

// A tree is the set of open descriptors of a dataset folder. It has a reference count: a
// Store that finds its folder removed opens a new tree while calls still use the old one.
type tree struct {
	refs     refcount.Count // calls, writers and open copies that use it, and one for the Store
	path     string         // of the folder
	folder   int            // descriptor of the folder
	incoming int            // descriptor of incoming
	lock     int            // descriptor of lock, which holds the lock
	files    *Dir           // reads files
	records  *records       // of the copies in files
	unit     atomic.Int64   // see AllocationUnit; 0: not known
}

// allocationUnit is AllocationUnit of the copies, or 0 while no file can be written.
func (t *tree) allocationUnit() int64 {
	unit := t.unit.Load()
	if unit == 0 {
		unit, _ = AllocationUnit(t.incoming)
		t.unit.Store(unit)
	}
	return unit
}

// release drops a reference. The last one closes the descriptors.
func (t *tree) release() {
	if t.refs.Release() {
		t.close()
	}
}

func (t *tree) close() {
	if t.records != nil {
		t.records.close()
	}
	for _, fd := range []int{t.folder, t.incoming, t.lock} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	if t.files != nil {
		t.files.Close()
	}
}

// openTree opens the dataset folder of config and creates what is missing, in this order:
//
//  1. the folder of the tier, which must belong to this user or to root;
//  2. the folder of the dataset, which must belong to this user. If it has no marker, it must
//     be empty or have the layout of a dataset folder;
//  3. the lock, which excludes all other Milkweed processes from the folder;
//  4. the marker. A damaged one is replaced if the folder has the layout of a dataset folder;
//  5. incoming and files.
//
// If old is not nil, it is the tree that the new one will replace. The caller owns one
// reference. The log of records is read later, by the first call that needs it.
func openTree(config StoreConfig, old *tree) (*tree, error) {
	t := &tree{
		path:     filepath.Join(config.Tier, config.Dataset),
		folder:   -1,
		incoming: -1,
		lock:     -1,
	}
	if err := t.open(config, old); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *tree) open(config StoreConfig, old *tree) (err error) {
	tier, err := openTier(config.Tier)
	if err != nil {
		return err
	}
	defer unix.Close(tier)
	if t.folder, err = openOwned(tier, config.Dataset, t.path); err != nil {
		return err
	}
	oldLock := -1
	if old != nil {
		oldLock = old.lock
	}
	if old == nil || !sameFile(t.folder, old.folder) {
		if err := t.checkContents(); err != nil {
			return err
		}
	}
	if t.lock, err = takeLock(t.folder, oldLock, t.path, config.holder()); err != nil {
		return err
	}
	if err := t.openMarker(config); err != nil {
		return err
	}
	t.records = newRecords(t.folder)
	if t.incoming, err = openOwned(t.folder, incomingName, filepath.Join(t.path, incomingName)); err != nil {
		return err
	}
	files, err := openOwned(t.folder, filesName, filepath.Join(t.path, filesName))
	if err != nil {
		return err
	}
	t.files, err = newDir(files)
	return err
}

// root returns the folder of the copies.
func (t *tree) root() *root { return t.files.root.Load() }

// openTier opens the folder of a tier and creates it if it is missing. path may be a
// symbolic link if the link, like the folder, belongs to this user or to root.
func openTier(path string) (int, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return -1, pathError("stat", path, err)
	}
	if !trusted(&st) {
		return -1, &ForeignError{path, st.Uid}
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, pathError("open", path, err)
	}
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, pathError("stat", path, err)
	}
	if !trusted(&st) {
		unix.Close(fd)
		return -1, &ForeignError{path, st.Uid}
	}
	return fd, nil
}

// trusted reports whether st belongs to this user or to root.
func trusted(st *unix.Stat_t) bool { return st.Uid == 0 || isOwn(st.Uid) }

// isOwn reports whether a file belongs to this user.
func isOwn(uid uint32) bool { return uid == uint32(os.Geteuid()) }

// openOwned opens the folder name in dirfd and creates it if it is missing. It must belong
// to this user and must not be a symbolic link. path is for errors.
func openOwned(dirfd int, name, path string) (int, error) {
	if err := mkdirAt(dirfd, name); err != nil && err != unix.EEXIST {
		return -1, pathError("mkdir", path, err)
	}
	fd, err := openat2(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return -1, pathError("open", path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, pathError("stat", path, err)
	}
	if !isOwn(st.Uid) {
		unix.Close(fd)
		return -1, &ForeignError{path, st.Uid}
	}
	return fd, nil
}

// mkdirAt creates a folder with the permissions 0700, without regard to the umask.
func mkdirAt(dirfd int, name string) error {
	if err := ignoringEINTR(func() error { return unix.Mkdirat(dirfd, name, 0o700) }); err != nil {
		return err
	}
	return unix.Fchmodat(dirfd, name, 0o700, 0)
}

// checkContents returns a NotOursError if the folder has no marker, does not have the layout of
// a dataset folder, and holds a file other than those that exist when Milkweed is interrupted
// before it writes the marker.
func (t *tree) checkContents() error {
	var st unix.Stat_t
	err := unix.Fstatat(t.folder, markerName, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil {
		return nil // openMarker reads it
	}
	if err != unix.ENOENT {
		return pathError("stat", filepath.Join(t.path, markerName), err)
	}
	if ours, err := t.hasLayout(); err != nil || ours {
		return err
	}
	names, err := listNames(t.folder)
	if err != nil {
		return pathError("readdir", t.path, err)
	}
	for _, name := range names {
		if name != lockName && !tempFileName.MatchString(name) {
			return &NotOursError{t.path, fmt.Sprintf("it has no %s, but contains %q", markerName, name)}
		}
	}
	return nil
}

// hasLayout reports whether the folder has the layout of a dataset folder, with the owner and the
// permissions that Milkweed sets. Milkweed has then created the folder, even if its marker is
// damaged: the name of the folder, by which it was opened, has a hash of the source.
func (t *tree) hasLayout() (bool, error) {
	for name, mode := range map[string]uint32{
		".":          unix.S_IFDIR | 0o700,
		filesName:    unix.S_IFDIR | 0o700,
		incomingName: unix.S_IFDIR | 0o700,
		recordsName:  unix.S_IFREG | fileMode,
	} {
		var st unix.Stat_t
		err := unix.Fstatat(t.folder, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		switch {
		case err == unix.ENOENT && name == recordsName: // a power failure may have lost it
			continue
		case err == unix.ENOENT:
			return false, nil
		case err != nil:
			return false, pathError("stat", filepath.Join(t.path, name), err)
		case st.Mode&(unix.S_IFMT|0o777) != mode || !isOwn(st.Uid):
			return false, nil
		}
	}
	return true, nil
}

// listNames returns all names in the folder fd.
func listNames(fd int) ([]string, error) {
	if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
		return nil, err
	}
	entries, err := readEntries(background, fd)
	var names []string
	for _, e := range entries {
		names = append(names, e.name)
	}
	return names, err
}

// openMarker reads the marker. It writes it if it is missing, and replaces it if it is damaged.
// The lock must be held.
func (t *tree) openMarker(config StoreConfig) error {
	data, err := readSmall(t.folder, markerName)
	switch {
	case err == unix.ENOENT:
		return t.writeMarker(config.Source)
	case err == unix.ELOOP, err == unix.EISDIR, errors.Is(err, unix.ENXIO): // not a regular file
		return &NotOursError{t.path, fmt.Sprintf("%s: %v", markerName, err)}
	case err != nil && err != errLarge:
		return pathError("read", filepath.Join(t.path, markerName), err)
	}
	var m marker
	if err == nil {
		m, err = decodeMarker(data)
	}
	switch {
	case err == errLaterFormat:
		return &NotOursError{t.path, fmt.Sprintf("%s: %v", markerName, err)}
	case err != nil:
		return t.replaceMarker(config, err)
	case m.Source != jsonText(config.Source) && !sameDirectory(m.Source, config.Source):
		return &NotOursError{t.path, fmt.Sprintf("it holds copies of %q, not of %q", m.Source, config.Source)}
	}
	return nil
}

// sameDirectory reports whether two paths lead to the same directory, as those of a dataset may with a link in one of them.
func sameDirectory(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// replaceMarker replaces a damaged marker if the layout shows that the folder is ours. Otherwise
// it returns a NotOursError. The damaged file is kept under another name. If Milkweed is
// interrupted in between, the marker is missing, and written at the next start.
func (t *tree) replaceMarker(config StoreConfig, damage error) error {
	ours, err := t.hasLayout()
	if err != nil {
		return err
	}
	if !ours {
		return &NotOursError{t.path, fmt.Sprintf("%s: %v", markerName, damage)}
	}
	kept := fmt.Sprintf("%s.damaged-%016x", markerName, rand.Uint64())
	if err := unix.Renameat(t.folder, markerName, t.folder, kept); err != nil {
		return pathError("rename", filepath.Join(t.path, markerName), err)
	}
	config.Log.Warn("replaced a damaged marker; the copies are used",
		"file", filepath.Join(t.path, markerName), "kept", kept, "err", damage)
	return t.writeMarker(config.Source)
}

// writeMarker writes the marker.
func (t *tree) writeMarker(source string) error {
	f, err := newTempFile(t.folder, fileMode)
	if err == nil {
		defer f.close()
		defer f.unlink()
		err = f.publish(markerName, encode(newMarker(source)))
	}
	if err != nil {
		return pathError("write", filepath.Join(t.path, markerName), err)
	}
	return nil
}

// sweep removes the temporary files of an interrupted process from incoming and from the
// folder itself. It returns the number of files in incoming that it left in place because
// Milkweed did not create them.
func (t *tree) sweep() (unknown int, err error) {
	names, err := listNames(t.incoming)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		if !removeTempFile(t.incoming, name) {
			unknown++
		}
	}
	names, err = listNames(t.folder)
	if err != nil {
		return unknown, err
	}
	for _, name := range names {
		removeTempFile(t.folder, name)
	}
	return unknown, nil
}

// removeTempFile removes name if it is a temporary file, and reports whether it did.
func removeTempFile(dirfd int, name string) bool {
	return tempFileName.MatchString(name) && removeRegular(dirfd, name) == nil
}

// removeRegular removes name if it is a regular file of this user.
func removeRegular(dirfd int, name string) error {
	var st unix.Stat_t
	err := unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil {
		err = checkRegular(&st)
	}
	if err == nil && !isOwn(st.Uid) {
		err = unix.EPERM
	}
	if err != nil {
		return err
	}
	return unix.Unlinkat(dirfd, name, 0)
}

// intact reports whether the paths of the tree still lead to the files that are open.
func (t *tree) intact() (bool, error) {
	for name, fd := range map[string]int{
		".":          t.folder,
		filesName:    t.root().fd,
		incomingName: t.incoming,
		lockName:     t.lock,
		markerName:   -1,
	} {
		var path, open unix.Stat_t
		err := unix.Lstat(filepath.Join(t.path, name), &path)
		if isMissing(err) {
			return false, nil
		}
		if err == nil && fd >= 0 {
			err = unix.Fstat(fd, &open)
		}
		if err != nil {
			return false, pathError("stat", filepath.Join(t.path, name), err)
		}
		if fd >= 0 && (path.Dev != open.Dev || path.Ino != open.Ino) {
			return false, nil
		}
	}
	return true, nil
}

// checkMounted returns an error if the file system of the tree is no longer mounted: a
// folder created at the path of the tree would be on the file system of "/", and the old one
// was not. The tier must not fill that disk, which is often the system disk.
func (t *tree) checkMounted() error {
	var old, current, root unix.Stat_t
	if err := unix.Fstat(t.folder, &old); err != nil {
		return pathError("stat", t.path, err)
	}
	path := t.path
	err := unix.Lstat(path, &current)
	for isMissing(err) && path != "/" {
		path = filepath.Dir(path)
		err = unix.Stat(path, &current)
	}
	if err == nil {
		err = unix.Stat("/", &root)
	}
	if err != nil {
		return pathError("stat", path, err)
	}
	if current.Dev != old.Dev && current.Dev == root.Dev {
		return fmt.Errorf("%s: its file system is not mounted", t.path)
	}
	return nil
}
