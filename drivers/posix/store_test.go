package posix

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

// openIn opens a store that the test need not close.
func openIn(t *testing.T, tier, boot string) *Store {
	t.Helper()
	s, err := openStore(config(tier), boot)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// crash lets go of the folder of s as the end of the process would.
func (s *Store) crash() {
	t := s.tree.Swap(nil)
	unix.Flock(t.lock, unix.LOCK_UN)
	t.release()
}

func addCopy(t *testing.T, s *Store, name, data string) {
	t.Helper()
	w, err := s.Create(ctx, name, drivers.Info{Size: int64(len(data)), Mtime: time.Unix(1e9, 5)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.WriteAt([]byte(data), 0); err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
}

// has reports whether s shows name, in all its ways.
func has(t *testing.T, s *Store, name string) bool {
	t.Helper()
	_, stat := s.Stat(ctx, name)
	o, open := s.Open(ctx, name)
	if open == nil {
		o.Close()
	}
	infos, err := s.ReadDir(ctx, ".")
	listed := 0
	for _, info := range infos {
		if info.Name == name {
			listed++
		}
	}
	if err != nil || (stat == nil) != (open == nil) || (open == nil) != (listed == 1) {
		t.Errorf("%s: Stat says %v, Open %v, ReadDir shows %d, %v", name, stat, open, listed, err)
	}
	return open == nil
}

func TestStore(t *testing.T) {
	wantNoLeak(t)
	for _, tmp := range folders(t) {
		t.Run(tmp.fsType, func(t *testing.T) {
			drivertest.Run(t, func(t *testing.T) drivertest.Subject {
				s := openIn(t, tmp.make(t), "boot")
				return drivertest.Folder(t, s, filepath.Join(s.Path(), filesName))
			})
		})
	}
}

func TestStoreIsOursAlone(t *testing.T) {
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
				t.Errorf("umask %o: %s is %o, want %o", umask, path, got, want)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		s.Close()
	}
}

func TestStoreIsFoundAgain(t *testing.T) {
	wantNoLeak(t)
	tier := filepath.Join(t.TempDir(), "made/for/it")
	s := openIn(t, tier, "boot")
	addCopy(t, s, "file", "data")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	if _, err := s.Open(ctx, "file"); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Open of a closed store: %v", err)
	}
	if !has(t, openIn(t, tier, "boot"), "file") {
		t.Error("the copy is gone")
	}
}

func TestStoreIsLocked(t *testing.T) {
	wantNoLeak(t)
	tier := t.TempDir()
	s := openIn(t, tier, "boot")
	_, err := OpenStore(config(tier))
	var locked *LockedError
	if !errors.As(err, &locked) {
		t.Fatalf("got %v, want a LockedError", err)
	}
	if locked.Holder.PID != os.Getpid() || locked.Holder.Mountpoint != "/mnt/imagenet" {
		t.Errorf("holder is %+v", locked.Holder)
	}
	if !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("the message does not say who: %v", err)
	}
	s.Close()
	openIn(t, tier, "boot")
}

func TestStoreRefusesWhatIsNotOurs(t *testing.T) {
	wantNoLeak(t)
	for _, test := range []struct {
		name, file, data string
	}{
		{"somebody's folder", "thesis.txt", "x"},
		{"no JSON", markerName, "x"},
		{"empty marker", markerName, ""},
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
				t.Errorf("%s is %q now, %v", test.file, got, err)
			}
		})
	}
}

func TestStoreRefusesLinks(t *testing.T) {
	wantNoLeak(t)
	for _, name := range []string{".", filesName, incomingName, markerName, lockName} {
		tier, elsewhere := t.TempDir(), t.TempDir()
		openIn(t, tier, "boot").Close()
		path := filepath.Join(tier, "imagenet-1a2b", name)
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(elsewhere, path); err != nil {
			t.Fatal(err)
		}
		if s, err := OpenStore(config(tier)); err == nil {
			s.Close()
			t.Errorf("%s may be a link", name)
		}
		if got, _ := os.ReadDir(elsewhere); len(got) > 0 {
			t.Errorf("%s: the link was followed, and %v made", name, got)
		}
	}
}

func TestStoreRefusesStrangers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a folder away")
	}
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

func TestStoreRefusesOddDatasets(t *testing.T) {
	for _, dataset := range []string{"", ".", "..", "a/b", "/a"} {
		if _, err := OpenStore(StoreConfig{Tier: t.TempDir(), Dataset: dataset, Source: "/x"}); err == nil {
			t.Errorf("dataset %q is accepted", dataset)
		}
	}
}

func TestStoreSweepsOnlyItsOwn(t *testing.T) {
	wantNoLeak(t)
	tier := t.TempDir()
	s := openIn(t, tier, "boot")
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
	openIn(t, tier, "boot")
	left, err := os.ReadDir(incoming)
	if len(left) != 4 || err != nil {
		t.Errorf("left are %v, %v; want the four that are not ours", left, err)
	}
	w.Close()
}

func TestStoreIsFull(t *testing.T) {
	s := openIn(t, t.TempDir(), "boot")
	if _, err := s.Create(ctx, "file", drivers.Info{Size: 1 << 60}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v, want ENOSPC", err)
	}
}

func TestCommitTellsOfATimeThatIsNotKept(t *testing.T) {
	s := openIn(t, t.TempDir(), "boot")
	if s.FSType() == "tmpfs" {
		t.Skip("tmpfs keeps any time")
	}
	w, err := s.Create(ctx, "file", drivers.Info{Mtime: time.Unix(1<<40, 0)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Commit(); err == nil || !strings.Contains(err.Error(), "modification time") {
		t.Errorf("got %v", err)
	}
}

func TestCommitAfterClose(t *testing.T) {
	wantNoLeak(t)
	s := openIn(t, t.TempDir(), "boot")
	addCopy(t, s, "file", "data")
	o, err := s.Open(ctx, "file")
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	w, err := s.Create(ctx, "late", drivers.Info{Mtime: time.Unix(1e9, 0)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	s.Close()
	if err := w.Commit(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	if n, err := o.ReadAt(ctx, make([]byte, 4), 0); n != 4 || err != nil {
		t.Errorf("an Object that was open: %d, %v", n, err)
	}
}

func TestProbeMakesAgainWhatIsLost(t *testing.T) {
	wantNoLeak(t)
	for _, lost := range []string{".", "..", filesName, incomingName, markerName, lockName, ledgerName} {
		t.Run(lost, func(t *testing.T) {
			tier := filepath.Join(t.TempDir(), "tier")
			s := openIn(t, tier, "boot")
			addCopy(t, s, "file", "data")
			o, err := s.Open(ctx, "file")
			if err != nil {
				t.Fatal(err)
			}
			defer o.Close()
			w, err := s.Create(ctx, "late", drivers.Info{Mtime: time.Unix(1e9, 0)})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			if err := os.RemoveAll(filepath.Join(s.Path(), lost)); err != nil {
				t.Fatal(err)
			}
			if err := s.Probe(ctx); err != nil {
				t.Fatal(err)
			}
			if has(t, s, "file") {
				t.Error("the copy is believed")
			}
			addCopy(t, s, "dir/again", "data")
			got := make([]byte, 4)
			if _, err := o.ReadAt(ctx, got, 0); err != nil || !bytes.Equal(got, []byte("data")) {
				t.Errorf("an Object that was open: %q, %v", got, err)
			}
			if _, err := OpenStore(config(tier)); !errors.As(err, new(*LockedError)) {
				t.Errorf("the folder is not locked: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			openIn(t, tier, "boot")
		})
	}
}

// Nothing here is sure to succeed, but no descriptor may be used after it was
// closed, nor left open: others could have its number by then.
func TestProbeWhileTheStoreIsUsed(t *testing.T) {
	wantNoLeak(t)
	s := openIn(t, t.TempDir(), "boot")
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
		os.RemoveAll(s.Path()) // may fail, for others make files in it
		if err := s.Probe(ctx); err != nil {
			t.Error(err)
		}
		if err := s.Sync(); err != nil {
			t.Error(err)
		}
	}
	s.Close()
	close(done)
	wg.Wait()
}

// A tier whose disk is not mounted any more is not made on the disk below.
func TestProbeWithoutTheDisk(t *testing.T) {
	wantNoLeak(t)
	disk := t.TempDir()
	mount := func() {
		if err := unix.Mount("milkweed-test", disk, "tmpfs", 0, "size=1m"); err != nil {
			t.Skipf("mounting is not allowed: %v", err)
		}
	}
	unmount := func() { unix.Unmount(disk, unix.MNT_DETACH) }
	if onRoot, err := sameDevice(disk, "/"); err != nil || !onRoot {
		t.Skipf("temporary files are not on the root file system (%v)", err)
	}
	mount()
	t.Cleanup(unmount)
	s := openIn(t, filepath.Join(disk, "tier"), "boot")
	unmount()
	if err := s.Probe(ctx); err == nil {
		t.Error("the tier is taken for well")
	}
	if left, err := os.ReadDir(disk); len(left) > 0 || err != nil {
		t.Errorf("made on the disk below: %v, %v", left, err)
	}
	mount()
	if err := s.Probe(ctx); err != nil {
		t.Errorf("mounted again: %v", err)
	}
	addCopy(t, s, "file", "data")
	s.Close()
}

func sameDevice(a, b string) (bool, error) {
	var sa, sb unix.Stat_t
	err := errors.Join(unix.Stat(a, &sa), unix.Stat(b, &sb))
	return sa.Dev == sb.Dev, err
}

func TestProbeLeavesAStrangersFolder(t *testing.T) {
	wantNoLeak(t)
	s := openIn(t, t.TempDir(), "boot")
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

// tick waits until the file system's clock is another.
func tick() { time.Sleep(20 * time.Millisecond) }

func TestPowerFailure(t *testing.T) {
	wantNoLeak(t)
	tier := t.TempDir()

	s := openIn(t, tier, "boot 1")
	addCopy(t, s, "synced", "data")
	tick()
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	addCopy(t, s, "unsynced", "data")
	s.crash()

	// The daemon is started again: the kernel has everything.
	s = openIn(t, tier, "boot 1")
	if !has(t, s, "synced") || !has(t, s, "unsynced") {
		t.Error("a copy is lost with the daemon alone")
	}
	s.crash()

	// The machine is.
	s = openIn(t, tier, "boot 2")
	if !has(t, s, "synced") {
		t.Error("a copy that was synced is not believed")
	}
	if has(t, s, "unsynced") {
		t.Error("a copy that was not synced is believed")
	}
	addCopy(t, s, "replaced", "data")
	addCopy(t, s, "unsynced", "data")
	if !has(t, s, "replaced") || !has(t, s, "unsynced") {
		t.Error("a new copy is not believed")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	// Closed in order, everything is kept.
	s = openIn(t, tier, "boot 3")
	for _, name := range []string{"synced", "unsynced", "replaced"} {
		if !has(t, s, name) {
			t.Errorf("%s is not believed after an orderly end", name)
		}
	}
	s.crash()

	// Without a ledger nothing is.
	if err := os.Remove(filepath.Join(tier, "imagenet-1a2b", ledgerName)); err != nil {
		t.Fatal(err)
	}
	if has(t, openIn(t, tier, "boot 3"), "synced") {
		t.Error("a copy is believed without a ledger")
	}
}

func TestPowerFailureIsRemembered(t *testing.T) {
	tier := t.TempDir()
	s := openIn(t, tier, "boot 1")
	addCopy(t, s, "spoilt", "data")
	s.crash()
	tick()
	openIn(t, tier, "boot 2").Close()
	for _, boot := range []string{"boot 2", "boot 3"} {
		s := openIn(t, tier, boot)
		if has(t, s, "spoilt") {
			t.Errorf("in %s the copy is believed again", boot)
		}
		s.Close()
	}
}

func TestSyncThatFails(t *testing.T) {
	s := openIn(t, t.TempDir(), "boot")
	if err := s.Sync(); err != nil {
		t.Errorf("Sync of nothing: %v", err)
	}
	addCopy(t, s, "spoilt", "data")
	tick()
	s.syncfs = func(int) error { return unix.EIO }
	if err := s.Sync(); !errors.Is(err, unix.EIO) {
		t.Errorf("got %v, want EIO", err)
	}
	s.syncfs = syncfs
	if has(t, s, "spoilt") {
		t.Error("a copy that the disk did not take is believed")
	}
	addCopy(t, s, "spoilt", "data")
	if err := s.Sync(); err != nil || !has(t, s, "spoilt") {
		t.Errorf("the next one: %v", err)
	}
}

func TestLedgerStaysSmall(t *testing.T) {
	var l ledger
	now := time.Unix(1000, 0)
	first := now
	for range 3 * maxSpans {
		now = now.Add(time.Minute)
		l = l.opened(now.String(), now, false)
	}
	if len(l.Lost) > maxSpans {
		t.Errorf("%d spans", len(l.Lost))
	}
	if l.believes(first) || l.believes(now.Add(-time.Second)) || !l.believes(now) {
		t.Error("what is believed changed")
	}
}

func FuzzDecodeMarker(f *testing.F) {
	f.Add(encode(marker{format, "/lustre/x", time.Unix(1e9, 0).UTC()}))
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
		again, err := decodeMarker(encode(m))
		if err != nil || again.Source != m.Source || !again.Created.Equal(m.Created) {
			t.Errorf("%+v comes back as %+v, %v", m, again, err)
		}
	})
}
