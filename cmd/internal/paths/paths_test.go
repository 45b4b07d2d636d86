package paths

import "testing"

func TestRel(t *testing.T) {
	for _, c := range []struct {
		path, dir, name string // name is "" for a path that is not below dir
	}{
		{"/a/b", "/a/b", "."},
		{"/a/b/c/d", "/a/b", "c/d"},
		{"/a/bc", "/a/b", ""},
		{"/a", "/a/b", ""},
		{"/a", "/", "a"},
		{"/", "/", "."},
	} {
		name, ok := Rel(c.path, c.dir)
		if want := c.name != ""; ok != want || ok && name != c.name || Within(c.path, c.dir) != want {
			t.Errorf("Rel(%q, %q) = %q, %v; want %q", c.path, c.dir, name, ok, c.name)
		}
	}
}
