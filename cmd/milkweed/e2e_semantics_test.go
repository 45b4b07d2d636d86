package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// The tests in this file hold statements of docs/SEMANTICS.md that need a user,
// a mount option or a bucket.

// inode returns the inode number and the link count of a path.
func (s *site) inode(path string) (number, links uint64) {
	s.t.Helper()
	var st unix.Stat_t
	s.check(unix.Lstat(path, &st))
	return st.Ino, uint64(st.Nlink)
}

// Inode numbers are Milkweed's own: stat and readdir agree on them, hard links are files of their own,
// and a new version of a file has a new number.
func TestInodeNumbers(t *testing.T) {
	s := newSite(t)
	s.write("d/f", 1000)
	s.sh(`ln "$1/d/f" "$1/d/second" && ln -s f "$1/d/link" && mkdir "$1/d/e"`, s.source)
	s.milkweed(append(s.mountWords("64MiB"), "--attr-timeout", "300ms")...)
	dir := s.point + "/d"
	differ := s.must(python, "-c", `
import os, sys
for e in os.scandir(sys.argv[1]):
    if e.inode() != os.lstat(e.path).st_ino:
        print(e.name, e.inode(), os.lstat(e.path).st_ino)
`, dir)
	if differ != "" {
		t.Errorf("readdir and stat differ:\n%s", differ)
	}
	first, links := s.inode(dir + "/f")
	second, _ := s.inode(dir + "/second")
	if links != 1 || first == second {
		t.Errorf("hard links: %d links, numbers %d and %d; want 1 link each, and two numbers", links, first, second)
	}
	s.check(os.Remove(s.source + "/d/f"))
	s.write("d/f", 2000)
	s.eventually("the new version has a new number", func() bool {
		now, _ := s.inode(dir + "/f")
		return now != first
	})
	s.umount()
	s.wantNothing()
}

// The access time is the source's, and reads through the mount do not change it.
func TestAccessTime(t *testing.T) {
	s := newSite(t)
	s.write("f", 1000)
	accessed := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	s.check(os.Chtimes(s.source+"/f", accessed, accessed.AddDate(1, 0, 0)))
	s.milkweed(append(s.mountWords("64MiB"), "--attr-timeout", shortTTL)...)
	wantTime := func(path string) {
		t.Helper()
		var st unix.Stat_t
		s.check(unix.Stat(path, &st))
		if got := time.Unix(st.Atim.Unix()); !got.Equal(accessed) {
			t.Errorf("%s was accessed at %v, want %v", path, got, accessed)
		}
	}
	wantTime(s.point + "/f")
	s.must("cat", s.point+"/f")
	s.settled()
	wantTime(s.source + "/f")
	before := s.status().Source.Stats
	s.eventually("the attributes have expired", func() bool {
		wantTime(s.point + "/f")
		return s.status().Source.Stats > before
	})
	s.umount()
	s.wantNothing()
}

// Without allow_other only the owner of the mount may use it. With it, the
// permission bits of the source decide.
func TestAccess(t *testing.T) {
	drivertest.Need(t, "setpriv")
	s := newSite(t)
	s.write("public/f", 10)
	s.write("private/f", 10)
	s.write("public/secret", 10)
	s.sh(`chmod 700 "$1/private" && chmod 600 "$1/public/secret"`, s.source)
	wantAccess := func(want map[string]bool) {
		t.Helper()
		for name, allowed := range want {
			r := s.run("setpriv", "--reuid="+nobody, "--regid="+nobody, "--clear-groups", "--", "cat", filepath.Join(s.point, name))
			if allowed != (r.code == exit.OK) || !allowed && !strings.Contains(r.stderr, "Permission denied") {
				t.Errorf("%s: exit code %d, %q; want access: %v", name, r.code, r.stderr, allowed)
			}
		}
	}
	s.mount("64MiB")
	wantAccess(map[string]bool{"public/f": false, "public/secret": false, "private/f": false})
	s.umount()
	s.mountWith("allow_other", "64MiB")
	wantAccess(map[string]bool{"public/f": true, "public/secret": false, "private/f": false})
	s.umount()
	s.wantNothing()
}

// Without allow_other, a program finds the same files executable as at the source.
func TestExecutable(t *testing.T) {
	parallel(t)
	find := func(s *site, dir string) string {
		return s.must("sh", "-ec", `cd "$1" && find . -executable | sort`, "sh", dir)
	}
	parallel(t)
	run := func(t *testing.T, s *site) {
		for _, mode := range []string{"644", "755", "600", "700", "611", "444", "111"} {
			for _, owner := range []string{"0", nobody} {
				name := mode + "-" + owner
				s.write(name, 10)
				s.sh(`chmod "$2" "$1" && chown "$3" "$1"`, s.source+"/"+name, mode, owner)
			}
		}
		s.check(os.Mkdir(s.source+"/folder", 0o755))
		s.mount("64MiB")
		if got, want := find(s, s.point), find(s, s.source); got != want || !strings.Contains(want, "folder") {
			t.Errorf("executable: got\n%swant\n%s", got, want)
		}
		s.umount()
		s.wantNothing()
	}
	t.Run("root", func(t *testing.T) { run(t, newSite(t)) })
	t.Run("user", func(t *testing.T) {
		drivertest.Need(t, "fusermount3")
		s := newSite(t)
		s.inNamespace(fuseForAll)
		s.giveToNobody()
		run(t, s)
	})
}

// With the option noexec no file of the mount is executed.
func TestNoExec(t *testing.T) {
	s := newSite(t)
	s.check(os.WriteFile(s.source+"/script", []byte("#!/bin/sh\necho ran\n"), 0o755))
	s.mount("64MiB")
	if got := s.must("sh", "-c", s.point+"/script"); got != "ran\n" {
		t.Errorf("got %q, want ran", got)
	}
	s.umount()
	s.mountWith("noexec", "64MiB")
	if r := s.run("sh", "-c", s.point+"/script"); r.code == exit.OK || !strings.Contains(r.stderr, "Permission denied") {
		t.Errorf("with noexec: exit code %d, %s%s", r.code, r.stdout, r.stderr)
	}
	s.umount()
	s.wantNothing()
}

// Extended attributes are shown with the option xattrs only.
func TestXattrsAreOff(t *testing.T) {
	s := newSite(t)
	s.write("f", 10)
	if err := unix.Setxattr(s.source+"/f", "user.colour", []byte("orange"), 0); err == unix.EOPNOTSUPP {
		drivertest.Skipf(t, "no extended attributes where the source is")
	} else {
		s.check(err)
	}
	get := func() (string, error) {
		value := make([]byte, 100)
		n, err := unix.Getxattr(s.point+"/f", "user.colour", value)
		return string(value[:max(n, 0)]), err
	}
	s.mount("64MiB")
	if got, err := get(); err != unix.EOPNOTSUPP {
		t.Errorf("by default: got %q, %v, want %v", got, err, unix.EOPNOTSUPP)
	}
	s.umount()
	s.mountWith("xattrs", "64MiB")
	if got, err := get(); got != "orange" || err != nil {
		t.Errorf("with the option: got %q, %v", got, err)
	}
	s.umount()
	s.wantNothing()
}

// The attributes of a bucket are those that docs/SEMANTICS.md lists.
func TestBucketAttributes(t *testing.T) {
	s := newSite(t)
	s.write("d/f", 1000)
	b := newBucket(s)
	before := time.Now().Add(-time.Second)
	s.milkweed(b.mountWords()...)
	got := s.must("find", s.point, "-mindepth", "1", "-printf", "%P %y %m %n %U %s\n")
	if want := "d d 755 1 0 0\nd/f f 644 1 0 1000\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if _, err := unix.Listxattr(s.point+"/d/f", nil); err != unix.EOPNOTSUPP {
		t.Errorf("extended attributes: got %v, want %v", err, unix.EOPNOTSUPP)
	}
	object, err := os.Stat(s.source + "/d/f")
	s.check(err)
	file, err := os.Stat(s.point + "/d/f")
	s.check(err)
	if got, want := file.ModTime().Unix(), object.ModTime().Unix(); got != want {
		t.Errorf("seconds of the modification time: got %d, want %d", got, want)
	}
	dir, err := os.Stat(s.point + "/d")
	s.check(err)
	if got := dir.ModTime(); got.Before(before) || got.After(time.Now()) {
		t.Errorf("modification time of a directory: got %v, want that of the mount", got)
	}
	s.umount()
	s.wantNothing()
}
