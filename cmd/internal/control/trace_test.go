package control_test

import (
	"errors"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// Lines arrive as they were sent, with any bytes in a path. The client can end the trace.
func TestTraceLines(t *testing.T) {
	size, first := int64(7), control.TraceLine{Mode: "cached"}
	read := control.TraceLine{Time: time.Unix(1, 2), Op: "read", Level: "ram", Seconds: 0.5, Cause: "tier", Size: &size}
	read.Path = "a\xff\n"
	c := dial(t, &controltest.Daemon{Lines: []control.TraceLine{first, read, {Dropped: 9}}})
	enough := errors.New("enough")
	var got []control.TraceLine
	err := c.Trace(t.Context(), control.TraceFilter{}, func(l control.TraceLine) error {
		if got = append(got, l); len(got) == 3 {
			return enough
		}
		return nil
	})
	if err != enough || got[0].Mode != "cached" || got[1].Path != "a\xff\n" || *got[1].Size != 7 || got[1].Offset != nil || got[2].Dropped != 9 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// The server refuses a wrong filter, and passes on why there is no trace.
func TestTraceRefused(t *testing.T) {
	many := &exit.Error{Code: exit.Usage, Err: errors.New("many"), Remedy: "End one."}
	c := dial(t, &controltest.Daemon{TraceErr: many})
	for glob, want := range map[string]string{"[": "not a pattern", "*": "many"} {
		err := c.Trace(t.Context(), control.TraceFilter{Glob: glob}, func(control.TraceLine) error { return nil })
		if exit.Of(err) != exit.Usage || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", glob, err)
		}
	}
	if _, err := c.Get(t.Context(), "/v1/trace?slow=x"); exit.Of(err) != exit.Usage {
		t.Errorf("a wrong duration: %v", err)
	}
}

func TestTraceMatches(t *testing.T) {
	for _, c := range []struct {
		glob, name string
		want       bool
	}{
		{"", "a/b", true},
		{"*.jpg", "a/b.jpg", true},
		{"*.jpg", "a.jpg/b", false},
		{"a/*", "a/b", true},
		{"a/*", "a/b/c", false},
		{"a/**", "a/b/c", false},
		{"b/*", "a/b/c", false},
		{"[ab]?", "x/b\xff", true},
	} {
		if got := (control.TraceFilter{Glob: c.glob}).Matches(c.name); got != c.want {
			t.Errorf("%q of %q: %v, want %v", c.glob, c.name, got, c.want)
		}
	}
}

// FuzzTraceFilter: a filter is refused as a usage error, or can be applied to any name, and its duration can be sent again.
func FuzzTraceFilter(f *testing.F) {
	f.Add("*.jpg", "10ms", "a/b.jpg")
	f.Add("[a", "-1s", "")
	f.Add(`a/\[*`, "", "a/[b\xff")
	f.Fuzz(func(t *testing.T, glob, slow, name string) {
		filter, err := control.ParseTraceFilter(glob, slow)
		if err != nil {
			if exit.Of(err) != exit.Usage {
				t.Fatalf("%v has the code %d", err, exit.Of(err))
			}
			return
		}
		if again, err := control.ParseTraceFilter(glob, filter.Slow.String()); err != nil || again != filter || filter.Slow < 0 {
			t.Fatalf("%+v is parsed as %+v, %v", filter, again, err)
		}
		filter.Matches(name)
		if _, err := path.Match(glob, name); err != nil {
			t.Fatalf("%q was accepted, and is refused for %q", glob, name)
		}
	})
}
