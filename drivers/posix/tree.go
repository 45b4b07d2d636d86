package posix

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The names in the folder of a dataset.
const (
	filesName    = "files"         // copies
	incomingName = "incoming"      // copies in the making
	markerName   = "milkweed.json" // a marker
	ledgerName   = "synced.json"   // a ledger
)

// A ForeignError is a folder that belongs to somebody who could change what is
// in it.
type ForeignError struct {
	Path string
	UID  uint32 // whose it is
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s: belongs to user %d, not to user %d, who runs this", e.Path, e.UID, os.Geteuid())
}

// A NotOursError is a dataset folder that Milkweed did not make, or made for
// something else. It was left as it is.
type NotOursError struct {
	Path   string
	Reason string
}

func (e *NotOursError) Error() string {
	return fmt.Sprintf("%s: not a Milkweed folder of this dataset: %s", e.Path, e.Reason)
}

// A tree is the folder of a dataset as it was opened. It is counted, because
// a Store that finds its folder removed opens a new tree while calls still
// use the old one.
type tree struct {
	refs     atomic.Int64           // calls and writers that use it, and one for the Store
	path     string                 // of the folder
	folder   int                    // descriptor of the folder
	incoming int                    // of incoming
	lock     int                    // of lock, which holds it
	files    *Dir                   // on files
	ledger   atomic.Pointer[ledger] // what is believed
}

// retain counts one more user. It reports false when the tree is closed.
func (t *tree) retain() bool {
	for {
		n := t.refs.Load()
		if n == 0 {
			return false
		}
		if t.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (t *tree) release() {
	if t.refs.Add(-1) == 0 {
		t.close()
	}
}

func (t *tree) close() {
	for _, fd := range []int{t.folder, t.incoming, t.lock} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	if t.files != nil {
		t.files.Close()
	}
}

// openTree opens the folder of config's dataset, and makes what is missing:
//
//  1. the tier's folder, which must be ours or root's;
//  2. the dataset's, which must be ours, and empty if it has no marker;
//  3. the lock: from here on there is no other Milkweed in it;
//  4. the ledger and the marker;
//  5. incoming and files.
//
// before, if not nil, is the tree that this one will replace.
func openTree(config StoreConfig, boot string, before *tree) (*tree, error) {
	t := &tree{
		path:     filepath.Join(config.Tier, config.Dataset),
		folder:   -1,
		incoming: -1,
		lock:     -1,
	}
	t.refs.Store(1)
	if err := t.open(config, boot, before); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *tree) open(config StoreConfig, boot string, before *tree) (err error) {
	tier, err := openTier(config.Tier)
	if err != nil {
		return err
	}
	defer unix.Close(tier)
	if t.folder, err = openOwn(tier, config.Dataset, t.path); err != nil {
		return err
	}
	held := -1
	if before != nil {
		held = before.lock
	}
	if before == nil || !sameFile(t.folder, before.folder) {
		if err := t.mayUse(); err != nil {
			return err
		}
	}
	if t.lock, err = takeLock(t.folder, held, t.path, config.holder()); err != nil {
		return err
	}
	if err := t.mark(config.Source, boot, before != nil); err != nil {
		return err
	}
	if t.incoming, err = openOwn(t.folder, incomingName, filepath.Join(t.path, incomingName)); err != nil {
		return err
	}
	files, err := openOwn(t.folder, filesName, filepath.Join(t.path, filesName))
	if err != nil {
		return err
	}
	t.files, err = newDir(files)
	return err
}

// openTier opens the folder at path, and makes it if it is not there. It may
// be a link, if those who may change the folder made that.
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

func trusted(st *unix.Stat_t) bool { return st.Uid == 0 || st.Uid == uint32(os.Geteuid()) }

// openOwn opens the folder name in dirfd, which must be ours and no link, and
// makes it if it is not there. path is for errors.
func openOwn(dirfd int, name, path string) (int, error) {
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
	if st.Uid != uint32(os.Geteuid()) {
		unix.Close(fd)
		return -1, &ForeignError{path, st.Uid}
	}
	return fd, nil
}

// mkdirAt makes a folder that is 0700 whatever the umask.
func mkdirAt(dirfd int, name string) error {
	if err := retry(func() error { return unix.Mkdirat(dirfd, name, 0o700) }); err != nil {
		return err
	}
	return unix.Fchmodat(dirfd, name, 0o700, 0)
}

// mayUse returns a NotOursError for a folder that has no marker and holds
// anything but what is there when Milkweed is interrupted before it writes it.
func (t *tree) mayUse() error {
	var st unix.Stat_t
	err := unix.Fstatat(t.folder, markerName, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil {
		return nil // mark will read it
	}
	if err != unix.ENOENT {
		return pathError("stat", filepath.Join(t.path, markerName), err)
	}
	names, err := listNames(t.folder)
	if err != nil {
		return pathError("readdir", t.path, err)
	}
	for _, name := range names {
		if name != lockName && name != ledgerName && !partName.MatchString(name) {
			return &NotOursError{t.path, fmt.Sprintf("it has no %s, and holds %q", markerName, name)}
		}
	}
	return nil
}

// listNames reads the folder fd from its start.
func listNames(fd int) ([]string, error) {
	if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
		return nil, err
	}
	return readNames(background, fd)
}

// mark reads the marker and the ledger, or makes them. The lock must be held.
// With reopened the file system may have lost what was not on the disk.
func (t *tree) mark(source, boot string, reopened bool) error {
	data, err := readSmall(t.folder, markerName)
	unmarked := errors.Is(err, unix.ENOENT)
	if err != nil && !unmarked {
		return pathError("read", filepath.Join(t.path, markerName), err)
	}
	if !unmarked {
		if err := t.checkMarker(data, source); err != nil {
			return err
		}
	}
	old := t.readLedger()
	err = t.saveLedger(func(now time.Time) ledger {
		if t.fresh() {
			return ledger{Boot: boot, Synced: now}
		}
		return old.opened(boot, now, reopened)
	})
	if err != nil {
		return pathError("write", filepath.Join(t.path, ledgerName), err)
	}
	if unmarked {
		if err := t.writeMarker(source); err != nil {
			return pathError("write", filepath.Join(t.path, markerName), err)
		}
	}
	return nil
}

func (t *tree) checkMarker(data []byte, source string) error {
	m, err := decodeMarker(data)
	if err != nil {
		return &NotOursError{t.path, fmt.Sprintf("%s: %v", markerName, err)}
	}
	if m.Source != jsonText(source) {
		return &NotOursError{t.path, fmt.Sprintf("it holds copies of %q, not of %q", m.Source, source)}
	}
	return nil
}

// readLedger returns the ledger in the folder. One that is not there, or cannot
// be read, is the zero one, for which nothing is on the disk.
func (t *tree) readLedger() ledger {
	var l ledger
	data, err := readSmall(t.folder, ledgerName)
	if err != nil || decodeStrict(data, &l) != nil {
		return ledger{}
	}
	return l
}

// fresh reports whether there was never a copy in the folder.
func (t *tree) fresh() bool {
	var st unix.Stat_t
	return unix.Fstatat(t.folder, filesName, &st, unix.AT_SYMLINK_NOFOLLOW) == unix.ENOENT
}

func (t *tree) writeMarker(source string) error {
	p, err := newPart(t.folder)
	if err != nil {
		return err
	}
	defer p.close()
	defer p.unlink()
	return p.publish(markerName, encode(marker{format, source, time.Now().Truncate(time.Second)}))
}

// saveLedger publishes the ledger that next returns, here and then on the
// disk: it is what was found out, whether or not the disk takes it. next is told what time it is for the file system: what was changed
// before next is called has no later time, and what is changed afterwards no
// earlier one.
func (t *tree) saveLedger(next func(now time.Time) ledger) error {
	p, err := newPart(t.folder)
	if err != nil {
		return err
	}
	defer p.close()
	defer p.unlink()
	now, err := p.made()
	if err != nil {
		return err
	}
	l := next(now)
	t.ledger.Store(&l)
	return p.publish(ledgerName, encode(l))
}

// sweep removes what an interrupted Milkweed left in incoming and in the folder
// itself, and returns how many files it left alone there because it did not
// make them.
func (t *tree) sweep() (strangers int, err error) {
	names, err := listNames(t.incoming)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		if !removePart(t.incoming, name) {
			strangers++
		}
	}
	names, err = listNames(t.folder)
	if err != nil {
		return strangers, err
	}
	for _, name := range names {
		removePart(t.folder, name)
	}
	return strangers, nil
}

// removePart removes name if it is a file of ours, and reports whether it was.
func removePart(dirfd int, name string) bool {
	return partName.MatchString(name) && removeRegular(dirfd, name) == nil
}

// removeRegular removes a regular file and nothing else.
func removeRegular(dirfd int, name string) error {
	var st unix.Stat_t
	err := unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil {
		err = notRegular(&st)
	}
	if err != nil {
		return err
	}
	return unix.Unlinkat(dirfd, name, 0)
}

// intact reports whether the path of the tree still leads to what is open.
func (t *tree) intact() (bool, error) {
	for name, fd := range map[string]int{
		".":          t.folder,
		filesName:    t.files.root,
		incomingName: t.incoming,
		lockName:     t.lock,
		markerName:   -1,
		ledgerName:   -1,
	} {
		var path, open unix.Stat_t
		err := unix.Lstat(filepath.Join(t.path, name), &path)
		if gone(err) {
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

// sameHome returns an error if a folder made at the tree's path would not be
// where the tree was: the disk of a tier that is not mounted any more must not
// be taken for the one below, which is often the system's.
func (t *tree) sameHome() error {
	var was, is, root unix.Stat_t
	if err := unix.Fstat(t.folder, &was); err != nil {
		return pathError("stat", t.path, err)
	}
	at := t.path
	err := unix.Lstat(at, &is)
	for gone(err) && at != "/" {
		at = filepath.Dir(at)
		err = unix.Stat(at, &is)
	}
	if err == nil {
		err = unix.Stat("/", &root)
	}
	if err != nil {
		return pathError("stat", at, err)
	}
	if is.Dev != was.Dev && is.Dev == root.Dev {
		return fmt.Errorf("%s: its file system is not mounted", t.path)
	}
	return nil
}
