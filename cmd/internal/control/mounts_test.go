package control

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
)

const table = `22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
40 27 0:50 / /mnt/a\040b ro,nosuid,nodev,relatime shared:7 - fuse.milkweed /lustre/x\134y ro,user_id=1000,group_id=100
41 27 0:51 / /mnt/data ro shared:8 master:1 - fuse.milkweed /src ro,user_id=0,group_id=0
42 41 0:52 / /mnt/data/inner rw - tmpfs tmpfs rw
43 27 0:53 / /mnt/hidden ro - fuse.milkweed /src ro,user_id=0
44 43 0:54 / /mnt/hidden rw - tmpfs tmpfs rw
`

func parseTable(t *testing.T) mounts.Table {
	t.Helper()
	all, err := mounts.Parse(strings.NewReader(table))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestReachable(t *testing.T) {
	got := reachable(parseTable(t))
	want := []Mount{{"/mnt/a b", `/lustre/x\y`, 1000, 100, got[0].Dev, ""}, {"/mnt/data", "/src", 0, 0, got[1].Dev, ""}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestFindInTable(t *testing.T) {
	all := parseTable(t)
	for _, c := range []struct {
		path, point, name string // "" for a path in no mount
	}{
		{"/mnt/data", "/mnt/data", "."},
		{"/mnt/data/train/x.jpg", "/mnt/data", "train/x.jpg"},
		{"/mnt/a b/x", "/mnt/a b", "x"},
		{"/mnt/database", "", ""},
		{"/mnt/data/inner/x", "", ""},
		{"/mnt/hidden", "", ""},
		{"/", "", ""},
	} {
		m, name, ok := find(all, c.path)
		if m.Point != c.point || name != c.name || ok != (c.point != "") {
			t.Errorf("%s: in %q as %q, %t; want %q, %q", c.path, m.Point, name, ok, c.point, c.name)
		}
	}
}

func TestFindOutside(t *testing.T) {
	_, _, err := Find(t.TempDir())
	if got, want := exit.Of(err), exit.NotMounted; got != want {
		t.Errorf("%v: code %d, want %d", err, got, want)
	}
}

func TestResolve(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	point := filepath.Join(dir, "point")
	link := filepath.Join(dir, "link")
	loop := filepath.Join(dir, "loop")
	for _, err := range []error{os.Mkdir(point, 0o755), os.Symlink("point", link), os.Symlink("loop", loop)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{point, link, point + "/", filepath.Join(link, "..", "point")} {
		if got, err := Resolve(path); err != nil || got != point {
			t.Errorf("Resolve(%q) = %q, %v; want %q", path, got, err, point)
		}
	}
	if _, err := Resolve(loop); err == nil {
		t.Error("a loop of links: no error")
	}
}
