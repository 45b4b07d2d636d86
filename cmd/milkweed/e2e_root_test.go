package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// replacements are ways in which the path of a source comes to lead to another directory. Each has the
// file old and shows the file new afterwards.
var replacements = []struct {
	name          string
	before, after string   // shell commands, in the directory of the site; new has the new content
	mounts        []string // that are left
}{
	{"a folder is renamed", `true`, `mv source source.old && mv new source`, nil},
	{"the old folder is removed", `true`, `mv source source.old && mv new source && rm -r source.old`, nil},
	{"the source is mounted later", `mv source real && mkdir source`, `mount --bind new source`, []string{"source"}},
	{"another one is mounted", `mkdir real && mv source/* real && mount --bind real source`, `umount --lazy source && mount --bind new source`, []string{"source"}},
	{"a link to a mount is changed", `mkdir m1 m2 && mount --bind source m1 && mount --bind new m2 && mv source real && ln -s m1 source`,
		`ln -sfn m2 source`, []string{"m1", "m2"}},
}

// When the path of the source leads to another directory, the mount shows that one: within the consistency
// window, and at a refresh. A file that is open stays readable.
func TestSourceIsReplaced(t *testing.T) {
	parallel(t)
	for _, how := range replacements {
		for _, by := range []string{"refresh", "sweep"} {
			t.Run(how.name+"/"+by, func(t *testing.T) {
				s := newSite(t)
				old := s.write("old", 2<<20)
				s.write("both", 1000)
				s.sh(`mkdir -p "$1/new" && head -c 3000 /dev/urandom >"$1/new/new" && head -c 1000 /dev/urandom >"$1/new/both"`, s.dir)
				want, err := os.ReadFile(s.dir + "/new/both")
				s.check(err)
				if len(how.mounts) > 0 {
					s.inNamespace("true")
				}
				s.must("sh", "-ec", `cd "$1"; `+how.before, "sh", s.dir)
				s.age()
				options := "mode=cached,consistency=0s"
				if by == "sweep" {
					options = "mode=cached,consistency=2s"
				}
				s.mountWith(options, "64MiB")
				hasOld := s.run("cat", s.point+"/old").code == exit.OK
				s.run("cat", s.point+"/both", s.point+"/new", s.point+"/missing") // the kernel has cached what there is
				reader := s.command("sh", "-ec", `exec <"$1/old"; echo open; while [ ! -e "$2" ]; do sleep 0.01; done; cat`, "sh", s.point, s.dir+"/go")
				var out bytes.Buffer
				reader.Stdout = &out
				if hasOld {
					s.check(reader.Start())
					s.eventually("the file is open", func() bool { return out.Len() > 0 })
				}
				s.must("sh", "-ec", `cd "$1"; `+how.after, "sh", s.dir)
				if by == "refresh" {
					s.milkweed("refresh", s.point)
				}
				shows := func() bool {
					names := s.must("ls", s.point)
					r := s.run("cat", s.point+"/both")
					return names == "both\nnew\n" && r.stdout == string(want) && s.run("cat", s.point+"/old").code != exit.OK
				}
				if by == "refresh" && !shows() {
					t.Errorf("after the refresh: %q", s.must("ls", s.point))
				}
				s.eventually("the mount shows the other directory", shows)
				if hasOld {
					s.check(os.WriteFile(s.dir+"/go", nil, 0o600))
					s.check(reader.Wait())
					if got := bytes.TrimPrefix(out.Bytes(), []byte("open\n")); !bytes.Equal(got, old) {
						t.Errorf("the open file: %d bytes, want those of the old directory", len(got))
					}
				}
				s.eventually("the log says so", func() bool { return strings.Contains(s.logs(), "leads to another directory") })
				s.umount()
				for _, m := range how.mounts {
					s.must("umount", "--lazy", s.dir+"/"+m)
				}
				s.wantNothing()
			})
		}
	}
}

// When the FUSE server of the source ends, and another one is mounted in its place, the mount uses that
// one. Files that were open for the next epoch do not fail.
func TestSourceServerIsRestarted(t *testing.T) {
	drivertest.Need(t, "root")
	s := newSite(t)
	want := s.write("placed", 1000)
	large := s.write("large", 3<<20)
	real := s.source
	pfs := s.overPFS("0s", "1GB")
	s.age()
	s.mountWith("mode=cached,consistency=2s", "1MiB")
	read := func(name string, want []byte) bool {
		t.Helper()
		r := s.run("cat", s.point+"/"+name)
		return r.code == exit.OK && r.stdout == string(want)
	}
	for name, want := range map[string][]byte{"placed": want, "large": large} {
		if !read(name, want) {
			t.Fatalf("%s cannot be read at first", name)
		}
	}
	s.settled()
	s.check(unix.Kill(pfs, unix.SIGKILL))
	s.eventually("the server has ended", func() bool { _, err := os.Stat(s.source); return err != nil })
	if !read("placed", want) {
		t.Error("a copy cannot be read without the server")
	}
	s.check(unix.Unmount(s.source, unix.MNT_DETACH))
	s.check(os.Remove(s.source))
	path := s.source
	s.source = real
	s.overPFS("0s", "1GB")
	if s.source != path {
		t.Fatalf("the new server is at %s, not %s", s.source, path)
	}
	time.Sleep(1100 * time.Millisecond) // the kernel forgets the attributes that it has of the open file
	s.milkweed("refresh", s.point)
	if !read("large", large) {
		t.Error("a file without a copy cannot be read after the restart")
	}
	s.umount()
}

// When the path of a tier leads to another folder, a refresh makes the tier use that one, and the copies are
// made again. Files that are open are read from the old one.
func TestTierIsReplaced(t *testing.T) {
	s := newSite(t)
	want := s.write("f", 100_000)
	s.age()
	s.mountWith("mode=cached", "64MiB")
	s.must("cat", s.point+"/f")
	s.settled()
	tier := s.tier(1)
	s.check(os.Rename(tier, tier+".old"))
	s.check(os.Mkdir(tier, 0o700))
	s.milkweed("refresh", s.point)
	s.eventually("the tier is in its new folder", func() bool {
		_, err := os.Stat(s.dataset(1) + "/files")
		return err == nil && s.status().Tiers[0].Health == "healthy"
	})
	s.eventually("the file is copied there", func() bool {
		if got := s.must("cat", s.point+"/f"); got != string(want) {
			t.Fatal("not the bytes of the source")
		}
		_, err := os.Stat(s.dataset(1) + "/files/f")
		return err == nil
	})
	if _, err := os.Stat(strings.Replace(s.dataset(1), tier, tier+".old", 1) + "/files/f"); err != nil {
		t.Errorf("the old folder: %v", err)
	}
	s.umount()
	s.wantNothing()
}

// When the source is replaced, its manifest is read again, if it is a file of the dataset.
func TestManifestOfReplacedSource(t *testing.T) {
	s := newSite(t)
	s.write("both", 1000)
	s.write("old", 1000)
	s.sh(`mkdir "$1/new" && head -c 1000 /dev/urandom >"$1/new/both" && echo new >"$1/new/new"`, s.dir)
	for _, dir := range []string{s.source, s.dir + "/new"} {
		s.milkweed("manifest", "--output", dir+"/list.mtree", dir)
	}
	want, err := os.ReadFile(s.dir + "/new/both")
	s.check(err)
	s.age()
	s.mountWith("mode=cached,manifest=dataset:list.mtree", "64MiB")
	s.must("cat", s.point+"/both", s.point+"/old")
	s.sh(`cd "$1" && mv source source.old && mv new source`, s.dir)
	s.milkweed("refresh", s.point)
	if got := s.must("ls", s.point); got != "both\nnew\n" {
		t.Errorf("names: %q", got)
	}
	if got := s.must("cat", s.point+"/both"); got != string(want) {
		t.Error("not the bytes of the new directory")
	}
	s.umount()
	s.wantNothing()
}
