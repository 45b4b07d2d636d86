package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// snapshot returns the path of the metadata snapshot in tier n.
func (s *site) snapshot(n int) string { return filepath.Join(s.dataset(n), snapshotName) }

// operations returns the number of operations on the source that readers have caused.
func (s *site) operations() int64 {
	s.t.Helper()
	status := s.status()
	o := status.Source.SourceOperations
	return o.Stats + o.ReadDirs + o.Opens + o.Reads - status.Sweep.Stats - status.Sweep.ReadDirs
}

// readAll reads the files of the dataset in one process, which lists no directory of the mount.
func (s *site) readAll() {
	s.t.Helper()
	s.must("sh", "-ec", `cd "$1" && find . -type f -print0 | (cd "$2" && xargs -0 cat >/dev/null)`, "sh", s.source, s.point)
}

// A second mount that reads 1,000 files, whose copies are in a tier, makes at most two operations
// on the source for each directory, without any configuration. So does a mount after the daemon was
// killed.
func TestRestartWithoutSource(t *testing.T) {
	if testing.Short() {
		t.Skip("kills and restarts daemons many times")
	}
	const dirs, most = 10 + 1, 2 * (10 + 1)
	s := newSite(t)
	for i := range 1000 {
		s.write(fmt.Sprintf("class%d/%03d.jpg", i%10, i), 1000)
	}
	s.age()
	words := s.mountWords("64MiB")
	s.milkweed(words...)
	s.milkweed("warmup", s.point)
	s.readAll()
	s.umount()
	if info, err := os.Stat(s.snapshot(1)); err != nil || info.Mode() != 0o600 {
		t.Fatalf("the snapshot: %v, %v", info, err)
	}
	for _, after := range []string{"umount", "a crash"} {
		s.milkweed(words...)
		s.readAll()
		if got := s.operations(); got > most {
			t.Errorf("after %s: %d operations on the source for %d directories, want at most %d", after, got, dirs, most)
		}
		s.check(unix.Kill(s.status().PID, unix.SIGKILL))
		s.umount()
	}
	s.milkweed(append(words, "-o", "metadata_snapshot=off")...)
	s.readAll()
	if got := s.operations(); got < 1000 {
		t.Errorf("without a snapshot: %d operations, so that the test shows nothing", got)
	}
	s.umount()
	s.wantNothing()
}

// The copies of a dataset are used by a mount of it through a link to a directory above it, too.
func TestRestartByAnotherPath(t *testing.T) {
	s := newSite(t)
	s.write("f", 1000)
	s.age()
	s.mount("64MiB")
	s.readAll()
	s.settled()
	s.umount()
	s.check(os.Symlink(s.dir, s.dir+"/link"))
	s.source = s.dir + "/link/" + filepath.Base(s.source)
	s.mount("64MiB")
	s.readAll()
	if got := s.status().Source.Bytes; got != 0 {
		t.Errorf("%d bytes of the source are read, want none", got)
	}
	s.umount()
	s.wantNothing()
}

// What has changed while the dataset was not mounted is seen at once, and a file that was rewritten
// in place within the consistency window.
func TestRestartAfterChanges(t *testing.T) {
	s := newSite(t)
	for _, name := range []string{"a/old", "a/removed", "a/replaced", "b/rewritten", "c/gone"} {
		s.write(name, 1000)
	}
	const options = "consistency=2s"
	s.mountWith(options, "64MiB")
	s.milkweed("warmup", s.point)
	s.epoch(1)
	s.umount()

	s.sh(`cd "$1" && rm a/removed && rm -r c && echo new >a/new && echo x >a/x && mv a/x a/replaced`, s.source)
	s.sh(`printf rewritten >"$1"/b/rewritten`, s.source) // another size, and the times of b are the same
	s.mountWith(options, "64MiB")
	start := time.Now()
	if got, want := s.must("sh", "-c", `cd "$1" && echo * a/* && cat a/new a/replaced`, "sh", s.point), "a b a/new a/old a/replaced\nnew\nx\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if r := s.run("cat", s.point+"/a/removed", s.point+"/c/gone"); r.code == 0 {
		t.Error("a removed file can be read")
	}
	old := s.must("cat", s.point+"/b/rewritten")
	for got := old; got != "rewritten"; got = s.must("cat", s.point+"/b/rewritten") {
		if got != old || len(old) != 1000 {
			t.Fatalf("a mixture: %q", got)
		}
		if time.Since(start) > 30*time.Second {
			t.Fatal("the rewritten file is not seen")
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.epoch(2)
	s.umount()
	s.wantNothing()
}

// A program that has seen a change in place sees it after a crash of the daemon, too, although the
// directory has the times that it had when the metadata was saved.
func TestCrashAfterChangeInPlace(t *testing.T) {
	s := newSite(t)
	s.write("d/f", 1000)
	s.write("d/g", 1000)
	s.age()
	s.mount("64MiB")
	s.epoch(1)
	s.umount()
	s.mountWith("attr_timeout=1s", "64MiB")
	read := func() string { return s.must("cat", s.point+"/d/f") }
	read()
	s.sh(`printf rewritten >"$1"/d/f`, s.source)
	s.eventually("the change is seen", func() bool { return read() == "rewritten" })
	s.eventually("the saved metadata is removed", func() bool { _, err := os.Stat(s.snapshot(1)); return os.IsNotExist(err) })
	s.check(unix.Kill(s.status().PID, unix.SIGKILL))
	s.umount()
	s.mount("64MiB")
	if got := read(); got != "rewritten" {
		t.Errorf("after a crash: got %d bytes, want those that were seen before", len(got))
	}
	s.umount()
	if _, err := os.Stat(s.snapshot(1)); err != nil {
		t.Errorf("the metadata is not saved again: %v", err)
	}
	s.wantNothing()
}

// A program sees a change in place after a crash also if the saved metadata could not be removed: what is then
// saved in another tier is newer. There is one file when that is possible again.
func TestCrashWithSavedMetadata(t *testing.T) {
	if testing.Short() {
		t.Skip("kills and restarts daemons many times")
	}
	s := newSite(t)
	s.write("d/f", 1000)
	s.age()
	s.mount("64MiB", "64MiB")
	s.epoch(1)
	s.umount()
	s.check(unix.Mount(s.snapshot(1), s.snapshot(1), "", unix.MS_BIND, "")) // a mount point cannot be removed
	s.mountWith("attr_timeout=1s", "64MiB", "64MiB")
	read := func() string { return s.must("cat", s.point+"/d/f") }
	read()
	s.sh(`printf rewritten >"$1"/d/f`, s.source)
	s.eventually("the change is seen", func() bool { return read() == "rewritten" })
	s.eventually("the metadata is saved in the other tier", func() bool { _, err := os.Stat(s.snapshot(2)); return err == nil })
	s.check(unix.Kill(s.status().PID, unix.SIGKILL))
	s.umount()
	s.check(unix.Unmount(s.snapshot(1), 0))
	s.mount("64MiB", "64MiB")
	if got := read(); got != "rewritten" {
		t.Errorf("after a crash: got %d bytes, want those that were seen before", len(got))
	}
	s.umount()
	if _, err := os.Stat(s.snapshot(1)); !os.IsNotExist(err) {
		t.Errorf("the earlier metadata is not removed: %v", err)
	}
	s.wantNothing()
}

// A snapshot that cannot be used is ignored with one line in the log, and replaced. A file that is
// no snapshot stays.
func TestUnusableSnapshot(t *testing.T) {
	if testing.Short() {
		t.Skip("kills and restarts daemons many times")
	}
	parallel(t)
	for what, c := range map[string]struct {
		spoil func(s *site, path string)
		keeps bool
	}{
		"truncated": {func(s *site, path string) { s.check(os.Truncate(path, 100)) }, false},
		"another source": {func(s *site, path string) {
			s.check(os.WriteFile(path, []byte("milkweed: names\n\x04\x01x\xa1\xb2\xc3\xd4"), 0o600))
		}, false},
		"later format": {func(s *site, path string) { s.check(os.WriteFile(path, []byte("milkweed: names\n\x63"), 0o600)) }, false},
		"foreign":      {func(s *site, path string) { s.check(os.WriteFile(path, []byte("mine"), 0o600)) }, true},
		"a directory":  {func(s *site, path string) { s.check(os.Remove(path)); s.check(os.Mkdir(path, 0o700)) }, true},
	} {
		t.Run(what, func(t *testing.T) {
			s := newSite(t)
			s.write("d/f", 1000)
			s.mount("64MiB")
			s.epoch(1)
			s.umount()
			c.spoil(s, s.snapshot(1))
			before, _ := os.Lstat(s.snapshot(1))
			r := s.try(s.mountWords("64MiB")...)
			if got := strings.Count(r.stderr, "metadata snapshot is not used"); r.code != 0 || got != 1 {
				t.Errorf("exit code %d, %d lines about the snapshot, want 1:\n%s", r.code, got, r.stderr)
			}
			s.epoch(2)
			s.umount()
			if after, err := os.Lstat(s.snapshot(1)); err != nil || os.SameFile(before, after) != c.keeps {
				t.Errorf("kept: got %v, want %v; %v", os.SameFile(before, after), c.keeps, err)
			}
			s.mount("64MiB")
			s.epoch(3)
			s.umount()
			s.wantNothing()
		})
	}
}

// The snapshot is in a tier on a disk if there is one, otherwise in memory, and of several the
// newest is used. Without a consistency window there is none. Two datasets that share a tier have one each. A tier that is gone has none.
func TestPlaceOfSnapshot(t *testing.T) {
	if testing.Short() {
		t.Skip("kills and restarts daemons many times")
	}
	s := newSite(t)
	s.write("d/f", 1000)
	for n := range 2 {
		s.check(os.Mkdir(s.tier(n+1), 0o700))
	}
	s.sh(`mount -t tmpfs none "$1"`, s.tier(1))
	s.mountWith("consistency=0s", "64MiB", "64MiB")
	s.epoch(0)
	s.umount()
	if _, err := os.Stat(s.snapshot(2)); err == nil {
		t.Error("it is saved without a consistency window")
	}
	s.mount("64MiB", "64MiB")
	s.epoch(1)
	s.umount()
	if _, err := os.Stat(s.snapshot(2)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(s.snapshot(1)); err == nil {
		t.Error("it is also in memory")
	}

	s.mount("64MiB") // without the disk
	s.write("d/g", 1000)
	s.age()
	s.epoch(2)
	s.umount()
	s.check(os.Chtimes(s.snapshot(1), time.Unix(1, 0), time.Unix(1, 0))) // the time in the file counts
	s.mount("64MiB", "64MiB")
	s.epoch(3)
	if got := s.operations(); got > 6 {
		t.Errorf("%d operations with the newer snapshot, want at most 2 for each directory and 2 for g", got)
	}
	s.umount()

	first := s.source
	s.source = s.dir + "/other"
	s.write("d/h", 1000)
	s.mount("64MiB", "64MiB")
	s.epoch(4)
	s.umount()
	s.source = first
	s.mount("64MiB", "64MiB")
	s.epoch(5)
	s.umount()

	s.check(os.RemoveAll(s.tier(2)))
	s.sh(`umount "$1"`, s.tier(1))
	s.mount("64MiB", "64MiB")
	s.epoch(6)
	s.umount()
	s.wantNothing()
}

// A snapshot on a file system that hangs refuses neither the start nor the end of a mount. One that
// does not fit on the disk, or may not be written, is not saved; the copies stay.
func TestSnapshotThatCannotBeSaved(t *testing.T) {
	if testing.Short() {
		t.Skip("kills and restarts daemons many times")
	}
	parallel(t)
	t.Run("hangs", func(t *testing.T) {
		s := newSite(t)
		s.write("d/f", 1000)
		heal := s.hang(s.dir + "/hung")
		d := serveWords(s, append(s.mountWords("64MiB"), "-o", "metadata_snapshot="+s.dir+"/hung/x"))
		s.epoch(1)
		if r := s.try("umount", s.point); r.code != 0 || !strings.Contains(r.stderr, "waiting for the daemon (process ") {
			t.Errorf("umount: exit code %d, %s", r.code, r.stderr)
		}
		d.wait()
		if got := d.stderr.String(); !strings.Contains(got, "metadata snapshot is not used") || !strings.Contains(got, "metadata snapshot is not saved") {
			t.Errorf("log:\n%s", got)
		}
		heal()
		s.wantNothing()
	})
	t.Run("full", func(t *testing.T) {
		s := newSite(t)
		s.write("d/f", 1000)
		s.check(os.Mkdir(s.tier(1), 0o700))
		s.sh(`mount -t tmpfs -o size=1m none "$1"`, s.tier(1))
		s.mount("64MiB")
		s.epoch(1)
		s.settled()
		s.sh(`dd if=/dev/zero of="$1"/other bs=4k 2>/dev/null || true`, s.tier(1))
		s.umount()
		s.wantNotSaved()
		s.check(os.Remove(s.tier(1) + "/other"))
		s.mount("64MiB")
		s.epoch(2)
		if got := s.status().Source.Bytes; got != 0 {
			t.Errorf("%d bytes of the source were read again", got)
		}
		s.umount()
		s.sh(`umount "$1"`, s.tier(1))
		s.wantNothing()
	})
	t.Run("not writable", func(t *testing.T) {
		s := newSite(t)
		s.write("d/f", 1000)
		s.inNamespace(fuseForAll)
		s.giveToNobody()
		s.mount("64MiB")
		s.epoch(1)
		s.settled()
		s.check(os.Chmod(s.dataset(1), 0o500))
		s.umount()
		s.wantNotSaved()
		s.check(os.Chmod(s.dataset(1), 0o700))
		s.mount("64MiB")
		s.epoch(2)
		if got := s.status().Source.Bytes; got != 0 {
			t.Errorf("%d bytes of the source were read again", got)
		}
		s.umount()
		s.wantNothing()
	})
}

// wantNotSaved fails the test unless the log says that the snapshot was not saved, and nothing is
// left of it.
func (s *site) wantNotSaved() {
	s.t.Helper()
	if got := s.logs(); !strings.Contains(got, "metadata snapshot is not saved") {
		s.t.Errorf("log:\n%s", got)
	}
	if left, _ := filepath.Glob(s.snapshot(1) + "*"); len(left) > 0 {
		s.t.Errorf("%q are left", left)
	}
}
