package metadata

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// Confirm requests a name from the source, whatever its TTL is, but once in a second.
func TestConfirm(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.source.Put("f", []byte("old"))
		e := w.get(t, "f")
		time.Sleep(time.Minute)
		w.faults.Reset()
		for range 3 {
			if got, err := w.Confirm(bg, e); got != e || err != nil {
				t.Fatalf("got %v, %v", got, err)
			}
		}
		if n := w.faults.Count(drivertest.OpStat); n != 1 {
			t.Errorf("%d requests, want 1", n)
		}
		time.Sleep(time.Minute)
		w.source.Put("f", []byte("new one"))
		now, err := w.Confirm(bg, e)
		if err != nil || now == e || now.Size() != 7 || !e.Stale() {
			t.Fatalf("after a change: got %v, %v", now, err)
		}
		if got, err := w.Confirm(bg, e); got != now || err != nil {
			t.Errorf("of a stale entry: got %v, %v", got, err)
		}
		time.Sleep(time.Minute)
		w.source.Delete("f")
		if _, err := w.Confirm(bg, now); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("of a name that was removed: %v", err)
		}
	})
}

// Visit calls its function for all entries, in steps of any size. A directory is listed when all its
// names were known.
func TestVisit(t *testing.T) {
	w := newWorld(t, time.Hour)
	want := []string{".", "d"}
	w.source.Mkdir("d")
	d := w.get(t, "d")
	if w.IsListed(d) {
		t.Error("a directory is listed before it was read")
	}
	for i := range 3000 {
		name := fmt.Sprintf("d/f%d", i)
		w.source.Put(name, nil)
		want = append(want, name)
	}
	w.list(t, "d")
	if !w.IsListed(d) {
		t.Error("a directory is not listed")
	}
	slices.Sort(want)
	for _, step := range []int{1, 1000, 100_000} {
		var got []string
		for next := uint64(1); next != 0; {
			next = w.Visit(next, step, func(e *Entry) { got = append(got, e.Path()) })
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("steps of %d: got %d entries, want %d", step, len(got), len(want))
		}
	}
}
