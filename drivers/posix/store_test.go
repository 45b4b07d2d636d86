package posix

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

func config(tier string) StoreConfig {
	return StoreConfig{Tier: tier, Dataset: "imagenet-1a2b", Source: "/lustre/imagenet", Mountpoint: "/mnt/imagenet"}
}

// openIn opens a store in tier. It is closed at the end of the test.
func openIn(t *testing.T, tier string) *Store {
	t.Helper()
	s, err := OpenStore(config(tier))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// crash releases the folder of s without closing the store, as the end of the process does.
func (s *Store) crash() {
	t := s.tree.Swap(nil)
	unix.Flock(t.lock, unix.LOCK_UN)
	t.release()
}

// addCopy commits a copy.
func addCopy(t *testing.T, s *Store, name, data string) {
	t.Helper()
	addCopyOf(t, s, name, data, time.Unix(1e9, 5))
}

// addCopyOf commits a copy of a file with a modification time.
func addCopyOf(t *testing.T, s *Store, name, data string, mtime time.Time) {
	t.Helper()
	if err := commitCopy(s, name, data, mtime); err != nil {
		t.Fatal(err)
	}
}

func commitCopy(s *Store, name, data string, mtime time.Time) error {
	w, err := s.Create(ctx, name, drivers.Info{Size: int64(len(data)), Mtime: mtime})
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err := w.WriteAt([]byte(data), 0); err != nil {
		return err
	}
	return w.Commit()
}

// A commit removes the record of the copy that it replaces, but not that of a new copy, whose file has got
// the inode number.
func TestReplacedWhileOthersAreMade(t *testing.T) {
	s := openIn(t, t.TempDir())
	var writers sync.WaitGroup
	for i := range 8 {
		name := fmt.Sprint("copy", i)
		writers.Go(func() {
			for range 200 {
				err := commitCopy(s, name, "data", time.Unix(1e9, 5))
				if err == nil {
					_, err = s.Stat(ctx, name)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
}

// has reports whether s has a copy of name. Stat, Open and ReadDir must agree.
func has(t *testing.T, s *Store, name string) bool {
	t.Helper()
	_, statErr := s.Stat(ctx, name)
	o, openErr := s.Open(ctx, name)
	if openErr == nil {
		o.Close()
	}
	infos, err := s.ReadDir(ctx, ".")
	listed := 0
	for _, info := range infos {
		if info.Name == name {
			listed++
		}
	}
	if err != nil || (statErr == nil) != (openErr == nil) || (openErr == nil) != (listed == 1) {
		t.Errorf("%s: Stat: %v; Open: %v; ReadDir: %d times, %v", name, statErr, openErr, listed, err)
	}
	return openErr == nil
}

func TestStore(t *testing.T) {
	wantNoLeak(t)
	for _, tmp := range tempFolders(t) {
		t.Run(tmp.fsType, func(t *testing.T) {
			drivertest.Run(t, func(t *testing.T) drivertest.Subject {
				s := openIn(t, tmp.make(t))
				return drivertest.StoreFolder(t, s, filepath.Join(s.Path(), filesName))
			})
		})
	}
}

func TestStorePermissions(t *testing.T) {
	tier := t.TempDir()
	defer unix.Umask(unix.Umask(0))
	for _, umask := range []int{0, 0o277} {
		unix.Umask(umask)
		s, err := OpenStore(StoreConfig{Tier: tier, Dataset: fmt.Sprint(umask), Source: "/x"})
		if err != nil {
			t.Fatal(err)
		}
		addCopy(t, s, "a/b/file", "data")
		err = filepath.WalkDir(s.Path(), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			want := fs.FileMode(0o600)
			if d.IsDir() {
				want = 0o700
			}
			if got := info.Mode().Perm(); got != want {
				t.Errorf("umask %o: %s has the permissions %o, want %o", umask, path, got, want)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		s.Close()
	}
}

func TestStoreIsReopened(t *testing.T) {
	wantNoLeak(t)
	tier := filepath.Join(t.TempDir(), "new/folder")
	s := openIn(t, tier)
	addCopy(t, s, "file", "data")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if _, err := s.Open(ctx, "file"); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Open of a closed store: %v, want fs.ErrClosed", err)
	}
	if !has(t, openIn(t, tier), "file") {
		t.Error("the copy is missing")
	}
}

func TestStoreIsLocked(t *testing.T) {
	wantNoLeak(t)
	tier := t.TempDir()
	s := openIn(t, tier)
	_, err := OpenStore(config(tier))
	var locked *LockedError
	if !errors.As(err, &locked) {
		t.Fatalf("got %v, want a LockedError", err)
	}
	if locked.Holder.PID != os.Getpid() || locked.Holder.Mountpoint != "/mnt/imagenet" {
		t.Errorf("got the holder %+v, want this process", locked.Holder)
	}
	if !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("the message lacks the process id: %v", err)
	}
	s.Close()
	openIn(t, tier)
}

func TestStoreRejectsOtherFolders(t *testing.T) {
	wantNoLeak(t)
	for _, test := range []struct {
		name, file, data string
	}{
		{"unknown file", "thesis.txt", "x"},
		{"marker is not JSON, without the layout", markerName, "x"},
		{"empty marker, without the layout", markerName, ""},
		{"another source", markerName, `{"format":1,"source":"/other","created":"2026-01-02T03:04:05Z"}`},
		{"later format", markerName, `{"format":2,"source":"/lustre/imagenet","shards":7}`},
		{"unknown field", markerName, `{"format":1,"source":"/lustre/imagenet","shards":7}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			tier := t.TempDir()
			file := filepath.Join(tier, "imagenet-1a2b", test.file)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(test.data), 0o644); err != nil {
				t.Fatal(err)
			}
			_, err := OpenStore(config(tier))
			var notOurs *NotOursError
			if !errors.As(err, &notOurs) {
				t.Fatalf("got %v, want a NotOursError", err)
			}
			if got, err := os.ReadFile(file); string(got) != test.data || err != nil {
				t.Errorf("%s was changed to %q, %v", test.file, got, err)
			}
		})
	}
}

func TestStoreRejectsLinks(t *testing.T) {
	wantNoLeak(t)
	for _, name := range []string{".", filesName, incomingName, markerName, lockName} {
		tier, elsewhere := t.TempDir(), t.TempDir()
		openIn(t, tier).Close()
		path := filepath.Join(tier, "imagenet-1a2b", name)
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(elsewhere, path); err != nil {
			t.Fatal(err)
		}
		if s, err := OpenStore(config(tier)); err == nil {
			s.Close()
			t.Errorf("%s is a symbolic link: OpenStore succeeds, want an error", name)
		}
		if got, _ := os.ReadDir(elsewhere); len(got) > 0 {
			t.Errorf("%s is a symbolic link: it was followed, and %v created", name, got)
		}
	}
}

func TestStoreRejectsOtherOwners(t *testing.T) {
	drivertest.Need(t, "root")
	wantNoLeak(t)
	for _, name := range []string{"", "imagenet-1a2b"} {
		tier := t.TempDir()
		folder := filepath.Join(tier, name)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(folder, 4242, 4242); err != nil {
			t.Fatal(err)
		}
		_, err := OpenStore(config(tier))
		var foreign *ForeignError
		if !errors.As(err, &foreign) || foreign.UID != 4242 || foreign.Path != folder {
			t.Errorf("got %v, want a ForeignError for user 4242", err)
		}
	}
}

func TestStoreRejectsInvalidDatasets(t *testing.T) {
	for _, dataset := range []string{"", ".", "..", "a/b", "/a"} {
		if _, err := OpenStore(StoreConfig{Tier: t.TempDir(), Dataset: dataset, Source: "/x"}); err == nil {
			t.Errorf("OpenStore for the dataset %q succeeds, want an error", dataset)
		}
	}
}

func TestStoreSweepsOnlyTemporaryFiles(t *testing.T) {
	wantNoLeak(t)
	tier := t.TempDir()
	s := openIn(t, tier)
	w, err := s.Create(ctx, "file", drivers.Info{Size: 4})
	if err != nil {
		t.Fatal(err)
	}
	incoming := filepath.Join(s.Path(), incomingName)
	for _, name := range []string{"notes.txt", "0123456789abcdef.part.bak", "0123456789ABCDEF.part"} {
		if err := os.WriteFile(filepath.Join(incoming, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(incoming, "0123456789abcdef.part"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.crash()
	openIn(t, tier)
	left, err := os.ReadDir(incoming)
	if len(left) != 4 || err != nil {
		t.Errorf("%v remain, %v; want the four that are no temporary files", left, err)
	}
	w.Close()
}

func TestStoreIsFull(t *testing.T) {
	s := openIn(t, t.TempDir())
	if _, err := s.Create(ctx, "file", drivers.Info{Size: 1 << 60}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v, want ENOSPC", err)
	}
}

// A file that the file system cannot hold because of its name is refused before it is read. The error
// says that other files are not concerned.
func TestUnfit(t *testing.T) {
	wantNoLeak(t)
	s := openIn(t, t.TempDir())
	addCopy(t, s, "file", "data")
	long := strings.Repeat("x", 300)
	for _, name := range []string{long, "d/" + long, long + "/f"} {
		w, err := s.Create(ctx, name, drivers.Info{Size: 4})
		if err == nil {
			w.Close()
		}
		if !errors.Is(err, drivers.ErrUnfit) || !errors.Is(err, syscall.ENAMETOOLONG) {
			t.Errorf("create %.5s: %v", name, err)
		}
		if err := s.Link(ctx, "file", name, drivers.Info{Size: 4}); !errors.Is(err, drivers.ErrUnfit) && !errors.Is(err, syscall.ENAMETOOLONG) {
			t.Errorf("link %.5s: %v", name, err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(s.Path(), incomingName)); len(left) > 0 || err != nil {
		t.Errorf("left %v, %v", left, err)
	}
}

// A copy has the modification time of its file, whether the file system of the tier can store that or
// not: the record has it.
func TestTimesThatAreNotStored(t *testing.T) {
	if testing.Short() {
		t.Skip("drops the page cache of the machine")
	}
	drivertest.Need(t, "root", "mkfs.ext4", "losetup")
	times := map[string]time.Time{
		"nanoseconds": time.Unix(1e9, 123456789), "2100": time.Unix(4102444800, 0), "1850": time.Unix(-3786912000, 0),
		"36812": time.Unix(1<<40, 7), "0": time.Unix(0, 0),
	}
	disk := wholeSeconds(t)
	for _, tier := range []string{t.TempDir(), disk} {
		s := openIn(t, tier)
		for name, mtime := range times {
			addCopyOf(t, s, name, "data", mtime)
		}
		s.Close()
		if tier == disk { // what the kernel still knows is no evidence
			run(t, "sh", "-ec", "echo 2 >/proc/sys/vm/drop_caches")
		}
		s = openIn(t, tier)
		for name, want := range times {
			if !has(t, s, name) {
				t.Errorf("no copy of %s", name)
				continue
			}
			info, err := s.Stat(ctx, name)
			o := openCopyOf(t, s, name)
			if err != nil || !info.Mtime.Equal(want) || !o.Info().Mtime.Equal(want) {
				t.Errorf("%s: got %v and %v, %v", name, info.Mtime, o.Info().Mtime, err)
			}
			if v, ok := drivers.As[drivers.Verifier](o); !ok || v.Verify(ctx) != nil {
				t.Errorf("%s: an open copy counts as changed", name)
			}
		}
		if err := os.Chtimes(copyPath(s, "nanoseconds"), time.Time{}, time.Unix(1e9+1, 0)); err != nil {
			t.Fatal(err)
		}
		if has(t, s, "nanoseconds") {
			t.Error("a copy that was modified is one")
		}
	}
}

// wholeSeconds mounts a file system that stores whole seconds, from 1901 to 2038.
func wholeSeconds(t *testing.T) (path string) {
	return drivertest.Disk(t, "mkfs.ext4", "-q", "-I", "128")
}

func TestCommitAfterClose(t *testing.T) {
	wantNoLeak(t)
	s := openIn(t, t.TempDir())
	addCopy(t, s, "file", "data")
	o, w := openHandles(t, s)
	s.Close()
	log := filepath.Join(s.Path(), recordsName)
	before, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if parts, err := os.ReadDir(filepath.Join(s.Path(), incomingName)); err != nil || len(parts) > 0 {
		t.Errorf("left in incoming: %v, %v", parts, err)
	}
	if err := w.Commit(); err == nil {
		t.Error("a commit after Close succeeds")
	}
	if after, err := os.ReadFile(log); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the log has changed, although another process may have locked it: %v", err)
	}
	if n, err := o.ReadAt(ctx, make([]byte, 4), 0); n != 4 || err != nil {
		t.Errorf("ReadAt of an open Object: %d, %v", n, err)
	}
}

// openHandles opens the copy "file" and begins the empty copy "late". Both are closed at the
// end of the test.
func openHandles(t *testing.T, s *Store) (drivers.Object, drivers.Writer) {
	t.Helper()
	o, err := s.Open(ctx, "file")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	w, err := s.Create(ctx, "late", drivers.Info{Mtime: time.Unix(1e9, 0)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return o, w
}

func TestProbeRecreatesRemovedFiles(t *testing.T) {
	wantNoLeak(t)
	for _, removed := range []string{".", "..", filesName, incomingName, markerName, lockName, recordsName} {
		t.Run(removed, func(t *testing.T) {
			tier := filepath.Join(t.TempDir(), "tier")
			s := openIn(t, tier)
			addCopy(t, s, "file", "data")
			o, _ := openHandles(t, s)
			if err := os.RemoveAll(filepath.Join(s.Path(), removed)); err != nil {
				t.Fatal(err)
			}
			if err := s.Probe(ctx); err != nil {
				t.Fatal(err)
			}
			wantNotInherited(t, tier)
			gone := removed == "." || removed == ".." || removed == filesName
			if has(t, s, "file") == gone {
				t.Errorf("the store has the copy: %v", !gone)
			}
			addCopy(t, s, "dir/again", "data")
			got := make([]byte, 4)
			if _, err := o.ReadAt(ctx, got, 0); err != nil || !bytes.Equal(got, []byte("data")) {
				t.Errorf("ReadAt of an open Object: %q, %v", got, err)
			}
			if _, err := OpenStore(config(tier)); !errors.As(err, new(*LockedError)) {
				t.Errorf("second OpenStore: %v, want a LockedError", err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			openIn(t, tier)
		})
	}
}

// wantNotInherited checks that no program which this process starts gets a descriptor of a file of the
// tier: it would keep the lock after the end of this process.
func wantNotInherited(t *testing.T, tier string) {
	t.Helper()
	open := descriptorsIn(t, tier)
	if len(open) == 0 {
		t.Error("the store has no descriptor")
	}
	for fd, path := range open {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%s is inherited: %v", path, err)
		}
	}
}

// The operations may fail, because the folder is removed. But no descriptor may be used after
// it was closed, since its number may then be that of another file, and none may stay open.
func TestProbeWhileTheStoreIsUsed(t *testing.T) {
	wantNoLeak(t)
	s := openIn(t, t.TempDir())
	use := func(name string) {
		w, err := s.Create(ctx, name, drivers.Info{Size: 4, Mtime: time.Unix(1e9, 0)})
		if err != nil {
			return
		}
		defer w.Close()
		w.WriteAt([]byte("data"), 0)
		if w.Commit() != nil {
			return
		}
		if o, err := s.Open(ctx, name); err == nil {
			defer o.Close()
			got := make([]byte, 4)
			if _, err := o.ReadAt(ctx, got, 0); err != nil || string(got) != "data" {
				t.Errorf("read %q, %v", got, err)
			}
		}
		s.ReadDir(ctx, ".")
		s.Remove(ctx, name)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					use(fmt.Sprintf("dir/%d", i))
				}
			}
		})
	}
	for range 50 {
		os.RemoveAll(s.Path()) // may fail, because the goroutines create files in it
		if err := s.Probe(ctx); err != nil {
			t.Error(err)
		}
		if err := s.Sync(ctx); err != nil {
			t.Error(err)
		}
	}
	s.Close()
	close(done)
	wg.Wait()
}

// If the disk of a tier is unmounted, Probe does not create the tier on the disk below.
func TestProbeWithoutTheDisk(t *testing.T) {
	wantNoLeak(t)
	disk := t.TempDir()
	mount := func() {
		if err := unix.Mount("milkweed-test", disk, "tmpfs", 0, "size=1m"); err != nil {
			drivertest.Skipf(t, "needs permission to mount: %v", err)
		}
	}
	unmount := func() { unix.Unmount(disk, unix.MNT_DETACH) }
	if onRoot, err := sameDevice(disk, "/"); err != nil || !onRoot {
		drivertest.Skipf(t, "needs temporary files on the root file system (%v)", err)
	}
	mount()
	t.Cleanup(unmount)
	s := openIn(t, filepath.Join(disk, "tier"))
	unmount()
	if err := s.Probe(ctx); err == nil {
		t.Error("Probe succeeds without the disk, want an error")
	}
	if left, err := os.ReadDir(disk); len(left) > 0 || err != nil {
		t.Errorf("Probe created %v on the disk below, %v", left, err)
	}
	mount()
	if err := s.Probe(ctx); err != nil {
		t.Errorf("Probe after the disk was mounted again: %v", err)
	}
	addCopy(t, s, "file", "data")
	s.Close()
}

func sameDevice(a, b string) (bool, error) {
	var sa, sb unix.Stat_t
	err := errors.Join(unix.Stat(a, &sa), unix.Stat(b, &sb))
	return sa.Dev == sb.Dev, err
}

func TestProbeRejectsOtherFolders(t *testing.T) {
	wantNoLeak(t)
	s := openIn(t, t.TempDir())
	if err := os.Rename(s.Path(), s.Path()+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(s.Path(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.Path(), "thesis.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Probe(ctx); !errors.As(err, new(*NotOursError)) {
		t.Errorf("got %v, want a NotOursError", err)
	}
}

// damages returns damaged versions of a marker by their names.
func damages(good []byte) map[string][]byte {
	all := map[string][]byte{
		"zeros":      make([]byte, len(good)),
		"a page":     make([]byte, 4096),
		"too large":  bytes.Repeat([]byte("x"), 100_000),
		"other JSON": []byte(`{"name":"milkweed"}`),
		"no format":  []byte(`{"source":"/lustre/imagenet"}`),
		"binary":     {0xff, 0xfe, 0, 1, 2, 3},
		"doubled":    slices.Concat(good, good),
	}
	for i := range bytes.TrimSpace(good) {
		all[fmt.Sprintf("%d bytes", i)] = good[:i]
		all[fmt.Sprintf("zeros after %d bytes", i)] = slices.Concat(good[:i], make([]byte, len(good)-i))
		flipped := bytes.Clone(good)
		flipped[i] ^= 1 << (i % 8)
		all[fmt.Sprintf("a bit of byte %d", i)] = flipped
	}
	return all
}

// A damaged or missing marker is replaced. No copy is lost, no other file is touched, and the
// damaged marker is kept.
func TestDamagedMarker(t *testing.T) {
	wantNoLeak(t)
	tier := t.TempDir()
	s := openIn(t, tier)
	addCopy(t, s, "copy", "data")
	s.Close()
	path := filepath.Join(s.Path(), markerName)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(s.Path(), "notes.txt")
	if err := os.WriteFile(other, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	reopen := func(t *testing.T) {
		t.Helper()
		s, err := OpenStore(config(tier))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if !has(t, s, "copy") {
			t.Error("the copy is lost")
		}
		data, err := os.ReadFile(path)
		if m, invalid := decodeMarker(data); err != nil || invalid != nil || m.Source != "/lustre/imagenet" {
			t.Errorf("the marker is %q, %v", data, err)
		}
		if _, err := os.Lstat(other); err != nil {
			t.Error(err)
		}
	}
	for name, data := range damages(good) {
		if m, err := decodeMarker(data); err == errLaterFormat || err == nil && m.Source == "/lustre/imagenet" {
			continue // a flipped bit has made another format, or changed nothing that counts
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) { reopen(t) })
		kept, _ := filepath.Glob(path + ".damaged-*")
		if len(kept) != 1 {
			t.Fatalf("%s: kept: %q, want one file", name, kept)
		}
		if got, err := os.ReadFile(kept[0]); !bytes.Equal(got, data) || err != nil {
			t.Errorf("%s: kept %q, %v; want %q", name, got, err, data)
		}
		os.Remove(kept[0])
	}
	t.Run("missing", func(t *testing.T) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		reopen(t)
	})
}

// A damaged marker is not replaced in a folder that Milkweed may not have created.
func TestDamagedMarkerElsewhere(t *testing.T) {
	wantNoLeak(t)
	for name, change := range map[string]func(folder string) error{
		"no copies":             func(f string) error { return os.RemoveAll(filepath.Join(f, filesName)) },
		"no incoming":           func(f string) error { return os.Remove(filepath.Join(f, incomingName)) },
		"open to others":        func(f string) error { return os.Chmod(f, 0o755) },
		"copies open to others": func(f string) error { return os.Chmod(filepath.Join(f, filesName), 0o770) },
		"incoming is a file": func(f string) error {
			return errors.Join(os.Remove(filepath.Join(f, incomingName)), os.WriteFile(filepath.Join(f, incomingName), nil, 0o700))
		},
		"a log of others": func(f string) error { return os.Chmod(filepath.Join(f, recordsName), 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			tier := t.TempDir()
			s := openIn(t, tier)
			addCopy(t, s, "copy", "data")
			s.Close()
			path := filepath.Join(s.Path(), markerName)
			if err := errors.Join(os.WriteFile(path, []byte("x"), 0o600), change(s.Path())); err != nil {
				t.Fatal(err)
			}
			if _, err := OpenStore(config(tier)); !errors.As(err, new(*NotOursError)) {
				t.Errorf("got %v, want a NotOursError", err)
			}
			if got, err := os.ReadFile(path); string(got) != "x" || err != nil {
				t.Errorf("the marker was changed to %q, %v", got, err)
			}
		})
	}
}

// Whatever is in the marker, opening the folder replaces it or refuses the folder, and the copy
// stays.
func FuzzOpenMarker(f *testing.F) {
	f.Add(encode(newMarker("/lustre/imagenet")))
	f.Add(encode(newMarker("/lustre/other")))
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		tier := t.TempDir()
		s := openIn(t, tier)
		addCopy(t, s, "copy", "data")
		s.Close()
		path := filepath.Join(s.Path(), markerName)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := OpenStore(config(tier))
		if err == nil {
			defer s.Close()
			if !has(t, s, "copy") {
				t.Error("the copy is lost")
			}
			return
		}
		if got, _ := os.ReadFile(path); !errors.As(err, new(*NotOursError)) || !bytes.Equal(got, data) {
			t.Errorf("%v, and the marker is %q", err, got)
		}
	})
}

func FuzzDecodeMarker(f *testing.F) {
	f.Add(encode(newMarker("/lustre/x")))
	f.Add(encode(marker{Format: format, Source: "/lustre/x", Created: time.Unix(1e9, 0).UTC()}))
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte(`{"format":1,"source":"x"} {}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decodeMarker(data)
		if err != nil {
			return
		}
		if m.Format != format || m.Source == "" {
			t.Errorf("%q is accepted as %+v", data, m)
		}
		decoded, err := decodeMarker(encode(m))
		if err != nil || decoded.Source != m.Source || !decoded.Created.Equal(m.Created) {
			t.Errorf("%+v is encoded and decoded as %+v, %v", m, decoded, err)
		}
	})
}

// A change that has not begun when the store is closed fails, and creates and removes nothing: another
// process may use the folder.
func TestChangesOfAClosedStore(t *testing.T) {
	s := openIn(t, t.TempDir())
	addCopy(t, s, "file", "data")
	addCopy(t, s, "damaged", "data")
	if err := os.Truncate(filepath.Join(s.Path(), filesName, "damaged"), 1); err != nil {
		t.Fatal(err)
	}
	info := drivers.Info{Size: 4, Mtime: time.Unix(1e9, 5)}
	w, err := s.Create(ctx, "other", info)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteAt([]byte("data"), 0); err != nil {
		t.Fatal(err)
	}
	list := func() (names []string) {
		err := filepath.WalkDir(s.Path(), func(path string, _ fs.DirEntry, err error) error {
			names = append(names, path)
			return err
		})
		if err != nil {
			t.Error(err)
		}
		return names
	}
	before := list()
	s.changes.Lock()
	s.closed = true // Close has not yet taken the tree from operations that began before
	s.changes.Unlock()
	defer func() { s.closed = false }()
	for want, change := range map[string]func() error{
		"create new/file: file already closed":    func() error { _, err := s.Create(ctx, "new/file", info); return err },
		"commit other: file already closed":       w.Commit,
		"link file new/file: file already closed": func() error { return s.Link(ctx, "file", "new/file", info) },
		"restamp file: file already closed":       func() error { return s.Restamp(ctx, "file", info) },
		"remove file: file already closed":        func() error { return s.Remove(ctx, "file") },
		"readdir .: file already closed":          func() error { _, err := s.Sweep(ctx, "."); return err },
	} {
		if err := change(); !errors.Is(err, fs.ErrClosed) || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		if after := list(); !slices.Equal(before, after) {
			t.Errorf("after %s, the files are %q, want %q", want, after, before)
		}
	}
	w.Abort()
}
