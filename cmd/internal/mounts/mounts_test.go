package mounts

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const text = `21 1 8:1 / / rw - ext4 /dev/sda1 rw
22 21 0:50 / /a\040b\011c\012d\134e rw,relatime shared:1 master:2 - fuse.milkweed /src\040x ro,user_id=7
23 21 0:51 / /a rw - tmpfs first rw
24 23 0:52 / /a ro,relatime - xfs second rw
`

func TestTable(t *testing.T) {
	table, err := Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := table[1], (Mount{"/a b\tc\nd\\e", "/", "fuse.milkweed", "/src x", "ro,user_id=7", unix.Mkdev(0, 50), 22, "1", false}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for path, want := range map[string]string{"/": "/dev/sda1", "/ab": "/dev/sda1", "/a": "second", "/a/x": "second"} {
		if got, ok := table.Of(path); !ok || got.Source != want {
			t.Errorf("Of(%q) = %+v, %v; want %s", path, got, ok, want)
		}
	}
	if m, _ := table.At("/a"); !m.ReadOnly {
		t.Error("/a is not mounted read-only")
	}
	for path, want := range map[string]bool{"/": true, "/a": true, "/a/x": false, "/ab": false} {
		if got, ok := table.At(path); ok != want {
			t.Errorf("At(%q) = %+v, %v; want %v", path, got, ok, want)
		}
	}
	if got, ok := (Table{}).Of("/"); ok {
		t.Errorf("an empty table: got %+v", got)
	}
}

func TestParseRefuses(t *testing.T) {
	if _, err := Parse(strings.NewReader("what is this\n")); err == nil {
		t.Error("no error")
	}
}

// The root is mounted, and no mount point is below itself.
func TestBelow(t *testing.T) {
	points, err := Below("/")
	if err != nil {
		t.Fatal(err)
	}
	if len(points) == 0 {
		t.Error("nothing is mounted below /")
	}
	for _, p := range points {
		if p == "/" {
			t.Error("/ is below itself")
		}
	}
}

// The mount points of a file system are those where it is on top.
func TestPoints(t *testing.T) {
	table := Table{{Point: "/a", Dev: 1}, {Point: "/b", Dev: 1}, {Point: "/a", Dev: 2}, {Point: "/b/c", Dev: 3}, {Point: "/d", Dev: 1}}
	if got := table.Points(1); !slices.Equal(got, []string{"/b", "/d"}) {
		t.Errorf("got %q", got)
	}
	if got := table.Points(4); got != nil {
		t.Errorf("got %q", got)
	}
}
