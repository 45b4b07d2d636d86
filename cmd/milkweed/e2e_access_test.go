package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// denials are ways in which the source denies the user of the daemon a file that it has permitted
// before, as shell commands for the source $1 and the file $1/d/e/$2.
var denials = map[string]struct{ deny, permit string }{
	"mode":             {`chmod 600 "$1/d/e/$2"`, `chmod 644 "$1/d/e/$2"`},
	"owner":            {`chown 65534 "$1/d/e/$2" && chmod 044 "$1/d/e/$2"`, `chmod 444 "$1/d/e/$2"`},
	"ACL":              {`setfacl -m u:65534:--- "$1/d/e/$2"`, `setfacl -b "$1/d/e/$2"`},
	"ACL of a folder":  {`setfacl -m u:65534:--- "$1/d"`, `setfacl -b "$1/d"`},
	"mode of a folder": {`chmod 700 "$1/d/e"`, `chmod 755 "$1/d/e"`},
}

// A copy is opened only if the source would let the user of the daemon open the file: after a refresh,
// after a new mount, with and without a metadata snapshot, in each mode. A file that is open stays
// readable, and a permission that is given back is seen.
func TestSourceDenies(t *testing.T) {
	parallel(t)
	drivertest.Need(t, "fusermount3", "setfacl", "setpriv")
	for how, change := range denials {
		for _, mode := range []string{"passthrough", "cached", "stateless"} {
			t.Run(how+"/"+mode, func(t *testing.T) {
				s := newSite(t)
				for _, name := range []string{"small", "other"} {
					s.write("d/e/"+name, 5000)
				}
				s.write("d/e/empty", 0)
				s.inNamespace(fuseForAll)
				root := s.wrapper
				s.giveToNobody()
				if mode == "passthrough" {
					s.wrapper = append(s.wrapper[:len(s.wrapper)-1], "--inh-caps=+sys_admin", "--ambient-caps=+sys_admin", "--")
				}
				user := s.wrapper
				asRoot := func(script, name string) {
					t.Helper()
					s.wrapper = root
					defer func() { s.wrapper = user }()
					s.sh(script, s.source, name)
				}
				asRoot(`chown -R 0:0 "$1" && chmod -R u=rwX,go=rX "$1"`, "")
				reads := func(name string) bool {
					t.Helper()
					r := s.run("cat", s.point+"/d/e/"+name)
					if r.code != exit.OK && !strings.Contains(r.stderr, "Permission denied") {
						t.Errorf("%s: %s", name, r.stderr)
					}
					return r.code == exit.OK
				}
				want := func(when, name string, want bool) {
					t.Helper()
					if got := reads(name); got != want {
						t.Errorf("%s: may read %s: got %v, want %v", when, name, got, want)
					}
				}
				s.age()
				s.mountWith("mode="+mode, "64MiB")
				names := []string{"small", "empty"}
				if mode == "stateless" { // an empty file is not read
					names = names[:1]
				}
				s.milkweed("warmup", s.point)
				for _, name := range names {
					want("at first", name, true)
				}
				for _, name := range names {
					asRoot(change.deny, name)
				}
				inFolder := strings.Contains(how, "folder") // then refresh fails
				if r := s.try("refresh", s.point); inFolder != (r.code == exit.Incomplete) {
					t.Errorf("refresh: exit code %d\n%s", r.code, r.stderr)
				}
				for _, name := range names {
					if !inFolder || mode != "stateless" { // the kernel has the pages of the file, and its name
						want("after a refresh", name, false)
					}
				}
				if !inFolder {
					want("after a refresh", "other", true)
				}
				s.umount()
				for _, snapshot := range []string{"", ",metadata_snapshot=off"} {
					s.mountWith("mode="+mode+snapshot, "64MiB")
					for _, name := range names {
						want("after a new mount"+snapshot, name, false)
					}
					s.umount()
				}
				s.mountWith("mode="+mode, "64MiB")
				for _, name := range names {
					want("before it is given back", name, false)
				}
				for _, name := range names {
					asRoot(change.permit, name)
				}
				s.milkweed("refresh", s.point)
				for _, name := range names {
					want("after it is given back", name, true)
				}
				s.umount()
				s.wantNothing()
			})
		}
	}
}

// A file that is open when the source denies it stays readable.
func TestSourceDeniesOpenFile(t *testing.T) {
	drivertest.Need(t, "fusermount3", "setpriv")
	s := newSite(t)
	want := s.write("f", 3<<20)
	s.inNamespace(fuseForAll)
	root := s.wrapper
	s.giveToNobody()
	user := s.wrapper
	s.age()
	s.mountWith("mode=cached", "64MiB")
	s.milkweed("warmup", s.point)
	cmd := s.command("sh", "-ec", `exec <"$1/f"; echo open; while [ ! -e "$2" ]; do sleep 0.01; done; cat`, "sh", s.point, s.dir+"/go")
	out, err := cmd.StdoutPipe()
	s.check(err)
	s.check(cmd.Start())
	_, err = io.ReadFull(out, make([]byte, len("open\n")))
	s.check(err)
	s.wrapper = root
	s.sh(`chown 0 "$1" && chmod 600 "$1"`, s.source+"/f")
	s.wrapper = user
	s.milkweed("refresh", s.point)
	if r := s.run("cat", s.point+"/f"); r.code == exit.OK {
		t.Error("the file can be opened")
	}
	s.check(os.WriteFile(s.dir+"/go", nil, 0o600))
	got, err := io.ReadAll(out)
	s.check(err)
	s.check(cmd.Wait())
	if !bytes.Equal(got, want) {
		t.Errorf("the open file: got %d bytes, want the %d of the source", len(got), len(want))
	}
	s.umount()
	s.wantNothing()
}

// What the source decides costs no more operations than the opens that make the copies: in the first
// epoch, and in a later mount with a metadata snapshot. Without one, each file costs one.
func TestAccessOperations(t *testing.T) {
	drivertest.Need(t, "fusermount3", "setpriv")
	s := newSite(t)
	const files = 100
	for i := range files {
		s.write(fmt.Sprintf("d/%03d", i), 1000)
	}
	s.inNamespace(fuseForAll)
	root := s.wrapper
	s.giveToNobody()
	s.wrapper, root = root, s.wrapper
	s.sh(`chown -R 0:0 "$1" && chmod -R u=rwX,go=rX "$1"`, s.source) // an ACL might deny it: the mode is not enough
	s.wrapper = root
	s.age()
	for _, m := range []struct {
		when, options string
		opens         int64
	}{
		{"the first mount", "mode=cached", files},
		{"with a metadata snapshot", "mode=cached", 0},
		{"without one", "mode=cached,metadata_snapshot=off", files},
	} {
		s.mountWith(m.options, "64MiB")
		for range 3 {
			s.readAll()
		}
		if got := s.settled().Source.Opens; got != m.opens {
			t.Errorf("%s: %d opens of the source, want %d", m.when, got, m.opens)
		}
		s.umount()
	}
	s.wantNothing()
}
