package metadata

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A listing for prefetch costs one request and makes all names known, without attributes. For
// programs it changes nothing: a name that appears later is found at once, a lookup requests its own
// name only, a program that lists the directory gets its present content, and Revalidate requests
// what was looked up.
func TestListAhead(t *testing.T) {
	w := newNamerWorld(t, time.Hour)
	const files = 300
	for i := range files {
		w.source.Put(fmt.Sprintf("d/%03d", i), []byte("x"))
	}
	looked := w.get(t, "d/007")
	dir := looked.Parent()
	if _, listed := w.Cached(dir); listed {
		t.Error("the directory counts as listed before")
	}
	w.faults.Reset()
	for range 2 {
		if err := w.ListAhead(bg, dir); err != nil {
			t.Fatal(err)
		}
	}
	entries, listed := w.Cached(dir)
	if lists, stats := w.faults.Count(drivertest.OpReadDir), w.faults.Count(drivertest.OpEntry)+w.faults.Count(drivertest.OpStat); lists != 1 || stats != 0 {
		t.Errorf("got %d listings and %d requests for attributes, want 1 and 0", lists, stats)
	}
	if len(entries) != files || !listed || entries[7] != looked || !entries[8].Unknown() {
		t.Errorf("got %d entries, listed %v, want %d, and those that were known", len(entries), listed, files)
	}
	if i, ok := w.Index(looked); i != 7 || !ok {
		t.Errorf("got index %d, %v; want 7, true", i, ok)
	}

	e, err := w.Known(bg, entries[8])
	if err != nil || e != entries[8] || e.Size() != 1 {
		t.Errorf("got %v, %v; want the entry with its attributes", e, err)
	}
	w.source.Put("d/new", nil)
	w.get(t, "d/new")
	w.faults.Reset()
	for i := range 100 {
		w.get(t, fmt.Sprintf("d/%03d", 100+i*77%100)) // in no order
	}
	if got := w.faults.Count(drivertest.OpEntry) + w.faults.Count(drivertest.OpStat); got != 100 {
		t.Errorf("requests for 100 names: got %d, want 100", got)
	}

	w.source.Put("d/newer", nil)
	if got := w.list(t, "d"); len(got) != files*4+len("new newer") {
		t.Errorf("got listing %q", got)
	}
}

// Revalidate requests only names that programs have looked up.
func TestRevalidateAfterListAhead(t *testing.T) {
	w := newNamerWorld(t, time.Hour)
	for i := range 300 {
		w.source.Put(fmt.Sprintf("d/%03d", i), []byte("x"))
	}
	dir := w.get(t, "d/007").Parent()
	if err := w.ListAhead(bg, dir); err != nil {
		t.Fatal(err)
	}
	entries, _, _, _ := dir.dir.known()
	if len(entries) != 1 {
		t.Errorf("got %d names to compare, want 1", len(entries))
	}
}

// A listing for prefetch whose files are replaced meanwhile is not repeated.
func TestListAheadWhileFilesChange(t *testing.T) {
	mem := drivertest.NewMem(0)
	source := &overtaken{Driver: mem}
	w := worldOf(t, source, time.Hour)
	consume(t, w, func(Outdated) {})
	mem.Put("d/f", nil)
	old := w.get(t, "d/f")
	lists := 0
	source.after = func() {
		lists++
		mem.Put("d/f", []byte("x"))
		w.revalidate(t, ".")
	}
	if err := w.ListAhead(bg, old.Parent()); err != nil || lists != 1 {
		t.Errorf("got %v after %d listings, want one", err, lists)
	}
	if e := w.get(t, "d/f"); e == old || e.Size() != 1 {
		t.Errorf("got %+v, want the new version", e.Info())
	}
}

// A source that calls after when it has listed the directory d.
type overtaken struct {
	drivers.Driver
	after func()
}

func (o *overtaken) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	infos, err := o.Driver.ReadDir(ctx, dir)
	if dir == "d" && o.after != nil {
		o.after()
	}
	return infos, err
}

// A listing for prefetch does not bring back a name that was found missing after the source had
// answered.
func TestListAheadIsOvertaken(t *testing.T) {
	validate := func(t *testing.T, w *world) { w.revalidate(t, ".") }
	for _, tt := range []struct {
		name     string
		lists    int // listings that are overtaken
		want     error
		overtake func(t *testing.T, w *world)
	}{
		{"by a validation", 1, nil, validate},
		{"by a listing", 1, nil, func(t *testing.T, w *world) { w.list(t, "d") }},
		{"by many validations", maxListings, errVanishing, validate},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mem := drivertest.NewMem(0)
			source := &overtaken{Driver: mem}
			w := worldOf(t, source, time.Hour)
			consume(t, w, func(Outdated) {})
			mem.Put("d/kept", nil)
			for i := range tt.lists {
				mem.Put(fmt.Sprint("d/removed", i), nil)
				w.get(t, fmt.Sprint("d/removed", i))
			}
			next := 0
			source.after = func() {
				after := source.after
				source.after = nil
				mem.Delete(fmt.Sprint("d/removed", next))
				tt.overtake(t, w)
				if next++; next < tt.lists {
					source.after = after
				}
			}
			if err := w.ListAhead(bg, w.get(t, "d")); err != tt.want {
				t.Errorf("got error %v, want %v", err, tt.want)
			}
			if next != tt.lists {
				t.Errorf("%d listings were overtaken, want %d", next, tt.lists)
			}
			for i := range tt.lists {
				wantMissing(t, w, fmt.Sprint("d/removed", i))
			}
			if got := w.list(t, "d"); got != "kept" {
				t.Errorf("got listing %q, want the name that is left", got)
			}
		})
	}
}
