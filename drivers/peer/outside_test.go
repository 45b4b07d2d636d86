package peer

import (
	"errors"
	"reflect"
	"testing"
)

// A node that is not in the roster owns no file, serves nobody, and reads from those that are in it.
func TestOutside(t *testing.T) {
	source, b := newMemory(make(map[string][]byte)), newMemory(make(map[string][]byte))
	r := newRig(t, source, func(c *Config) {
		if c.Self == "a" {
			c.Self = ""
		}
	}, b)
	name := r.owned(1)
	put(name, content(1000), source, b)
	r.wantContent(r.open(name), content(1000))
	if got := r.stats(0, 1); got.Reads != 1 || got.Bytes != 1000 || source.opened() != 0 {
		t.Errorf("got %+v, and the source was opened %d times; want one read of 1000 bytes", got, source.opened())
	}
	if got := r.nodes[0].Rank(name); got != -1 {
		t.Errorf("rank %d", got)
	}
	if s, err := r.nodes[0].Listen("127.0.0.1:0", b); err == nil {
		s.Close()
		t.Error("it serves others")
	}
	if _, err := New(Config{Roster: r.nodes[0].cfg.Roster, Self: "z"}); err == nil {
		t.Error("a name that is not in the roster: no error")
	}
}

// The name of a cause is that of its counter.
func TestCause(t *testing.T) {
	for c := absent; c <= otherTLS; c++ {
		var m Misses
		*m.counter(c) = 1
		field, _ := reflect.TypeFor[Misses]().FieldByNameFunc(func(name string) bool {
			return reflect.ValueOf(m).FieldByName(name).Int() == 1
		})
		if got, want := Cause(&miss{cause: c, err: errSource}), field.Tag.Get("json"); got != want {
			t.Errorf("cause %d: got %q, want %q", c, got, want)
		}
	}
	if got := Cause(errors.New("other")); got != "" {
		t.Errorf("got %q for another error", got)
	}
}
