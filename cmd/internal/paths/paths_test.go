package paths

import (
	"encoding/json"
	"reflect"
	"testing"
)

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

// A struct with all kinds of names, and others.
type named struct {
	Embedded
	Path   string   `json:"path"`
	Target string   `json:"target,omitempty"`
	State  state    `json:"state"`
	Secret string   `json:"-"`
	Size   int64    `json:"size_bytes"`
	Users  []string `json:"users"`
}

type Embedded struct {
	Base string `json:"base"`
}

type state string

func (n named) MarshalJSON() ([]byte, error) {
	type plain named
	return Marshal(plain(n))
}

func (n *named) UnmarshalJSON(p []byte) error {
	type plain named
	return Unmarshal(p, (*plain)(n))
}

// What Marshal writes, Unmarshal reads, and names that are UTF-8 have one field.
func TestJSON(t *testing.T) {
	for _, c := range []struct {
		in   named
		want string
	}{
		{named{}, `{"base":"","path":"","state":"","size_bytes":0,"users":null}`},
		{named{Path: "é\n\"", Size: 7}, `{"base":"","path":"é\n\"","state":"","size_bytes":7,"users":null}`},
		{named{Path: "a\xff", Target: "\xfe\x00", State: "s\xfd", Embedded: Embedded{"b\xfc"}},
			`{"base":"b\ufffd","path":"a\ufffd","target":"\ufffd\u0000","state":"s\ufffd","size_bytes":0,"users":null,` +
				`"base_bytes":"Yvw=","path_bytes":"Yf8=","target_bytes":"/gA=","state_bytes":"c/0="}`},
	} {
		text, err := json.Marshal(c.in)
		if err != nil || string(text) != c.want {
			t.Errorf("got %s, %v; want %s", text, err, c.want)
		}
		var back named
		if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(back, c.in) {
			t.Errorf("%s: read as %+v, %v", text, back, err)
		}
	}
	for _, wrong := range []string{`[]`, `{"path":1}`, `{"path_bytes":"%"}`, `{"path_bytes":7}`, `null7`} {
		if err := json.Unmarshal([]byte(wrong), new(named)); err == nil {
			t.Errorf("%s: no error", wrong)
		}
	}
}
