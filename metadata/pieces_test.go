package metadata

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/tiers"
)

// newPieces returns a world in which files above 1 MiB are divided.
func newPieces(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, 0)
	w.pieceSize = 1 << 20
	return w
}

// A piece has the attributes of its file, except for the size, and becomes stale with it.
func TestPieces(t *testing.T) {
	w := newPieces(t)
	w.source.Put("d/f", make([]byte, 5<<19))
	e, err := w.Resolve(bg, "d/f")
	if err != nil {
		t.Fatal(err)
	}
	all, err := w.Pieces(bg, e)
	if err != nil || len(all) != 3 {
		t.Fatalf("got %d pieces, %v; want 3", len(all), err)
	}
	ids := map[uint64]bool{e.ID(): true}
	for i, p := range all {
		size := int64(1 << 20)
		if i == 2 {
			size = 1 << 19
		}
		want := e.Info()
		want.Name, want.Size, want.Blocks = fmt.Sprintf("%d.%d", i, e.Size()), size, size/512
		if p.Info() != want || p.Offset() != int64(i)<<20 || p.File() != e || p.Path() != "d/f" || !p.Claim() {
			t.Errorf("piece %d: %+v at %d, want %+v", i, p.Info(), p.Offset(), want)
		}
		if got, want := p.Unit(), "d/f\x00"+want.Name; got != want {
			t.Errorf("piece %d: unit %q, want %q", i, got, want)
		}
		if w.CachedCopy(tiers.CopyName(p.CopyName())) != p {
			t.Errorf("%s is not found", p.CopyName())
		}
		ids[p.ID()] = true
	}
	if len(ids) != 4 {
		t.Errorf("the IDs are not unique: %v", ids)
	}
	if again, _ := w.Pieces(bg, e); &again[0] != &all[0] {
		t.Error("a second call makes other pieces")
	}
	w.source.Put("d/f", make([]byte, 5<<19))
	w.Changed(e)
	for i, p := range all {
		if !p.Stale() {
			t.Errorf("piece %d is not stale", i)
		}
	}
	now, err := w.Resolve(bg, "d/f")
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := w.Pieces(bg, now); len(again) != 3 || again[0] == all[0] {
		t.Error("the new version has the pieces of the old one")
	}
}

// The IDs of pieces leave gaps in the table of entries.
func TestTableWithPieces(t *testing.T) {
	w := newPieces(t)
	w.source.Put("large", make([]byte, 1<<20+1))
	for i := range 3000 {
		w.table.newID()
		if i%1500 == 0 {
			w.source.Put(fmt.Sprint(i), nil)
			if _, err := w.Resolve(bg, fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	e, err := w.Resolve(bg, "large")
	if err != nil || w.Get(e.ID()) != e {
		t.Errorf("the entry with the ID %d is not found: %v", e.ID(), err)
	}
	seen := 0
	for next := uint64(1); next != 0; {
		next = w.Visit(next, 100, func(*Entry) { seen++ })
	}
	if seen != 4 {
		t.Errorf("visited %d entries, want 4", seen)
	}
}

// While a tier does not answer, pieces are Unverified: it may have copies of them.
func TestPiecesOfATierThatFails(t *testing.T) {
	w := newPieces(t)
	w.source.Put("f", make([]byte, 2<<20))
	e, err := w.Resolve(bg, "f")
	if err != nil {
		t.Fatal(err)
	}
	w.down[2].Add(drivertest.Rule{Op: drivertest.OpReadDir, Err: syscall.EIO})
	all, err := w.Pieces(bg, e)
	if err != nil || len(all) != 2 || !all[0].Unverified() || !all[1].Unverified() {
		t.Errorf("got %d pieces, %v", len(all), err)
	}
}

// What was read of the pieces of a file is as doubtful as what was read of the file.
func TestDoubtOfPieces(t *testing.T) {
	w := newPieces(t)
	w.source.Put("f", make([]byte, 3<<20))
	e, err := w.Resolve(bg, "f")
	if err != nil {
		t.Fatal(err)
	}
	all, err := w.Pieces(bg, e)
	if err != nil || len(all) != 3 {
		t.Fatalf("got %d pieces, %v; want 3", len(all), err)
	}
	w.Doubt(e)
	for i, p := range all {
		if !p.ResolveDoubt() {
			t.Errorf("piece %d is not doubtful", i)
		}
	}
}
