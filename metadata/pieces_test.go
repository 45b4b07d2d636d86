package metadata

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

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

// The copies of pieces are found while the attributes of their file change.
func TestPiecesWhileAttributesChange(t *testing.T) {
	w := newPieces(t)
	const files = 50
	for i := range files {
		name := fmt.Sprint("d/", i)
		info := w.source.Put(name, make([]byte, 2<<20))
		w.tier[1].PutAt(fmt.Sprintf(".milkweed-pieces/%s/1.%d", name, info.Size), make([]byte, 1<<20), info.Mtime)
	}
	for i := range files {
		name := fmt.Sprint("d/", i)
		e := w.get(t, name)
		var changing sync.WaitGroup
		done := make(chan struct{})
		changing.Go(func() {
			for perm := uint32(0o400); ; perm ^= 0o40 {
				w.source.Chmod(name, perm)
				if now, err := w.Resolve(bg, name); now != e || err != nil {
					t.Errorf("got another entry, %v", err)
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
		all, err := w.Pieces(bg, e)
		close(done)
		changing.Wait()
		if err != nil || len(all) != 2 || all[0].Level() != tiers.AtSource || all[1].Level() != 1 {
			t.Fatalf("%s: got %d pieces, %v", name, len(all), err)
		}
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

// getPieces returns a file with its pieces.
func (w *world) getPieces(t *testing.T, name string) (*Entry, []*Entry) {
	t.Helper()
	e := w.get(t, name)
	all, err := w.Pieces(bg, e)
	if err != nil || len(all) == 0 {
		t.Fatalf("got %d pieces, %v", len(all), err)
	}
	return e, all
}

// wantCopies checks which copies of the pieces of a file tier 1 has.
func (w *world) wantCopies(t *testing.T, name string, want ...string) {
	t.Helper()
	var got []string
	if err := w.levels.Tiers()[0].Copies(bg, w.PieceCopies(name), func(copies []tiers.CopyInfo) error {
		for _, c := range copies {
			got = append(got, string(c.Name))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("tier 1 has the copies %q, want %q", got, want)
	}
}

// A copy of a piece that is left behind while the pieces are being made is not missed.
func TestLeftCopyDuringPieces(t *testing.T) {
	w := newPieces(t)
	w.source.Put("f", make([]byte, 2<<20))
	old, was := w.getPieces(t, "f")
	w.source.Put("f", make([]byte, 2<<20))
	w.Changed(old)
	for i := range 5000 {
		e := w.get(t, "f")
		listed := make(chan struct{})
		w.down[2].Add(drivertest.Rule{Op: drivertest.OpReadDir, Times: 1, Match: func(string) bool {
			close(listed)
			return true
		}})
		var left sync.WaitGroup
		left.Go(func() {
			<-listed
			for range i % 500 {
				runtime.Gosched()
			}
			w.LeftCopy(was[1])
		})
		for range 4 { // so that a goroutine waits for the lock
			left.Go(func() {
				<-listed
				for range 2000 {
					w.CachedPieces(old)
				}
			})
		}
		_, all := w.getPieces(t, "f")
		left.Wait()
		if !all[1].Unverified() {
			t.Fatalf("the piece is not Unverified, in round %d", i)
		}
		w.down[2].Clear()
		w.Changed(e)
	}
}

// A copy of a piece of a file that has another size by now is removed.
func TestLeftCopyOfAnotherSize(t *testing.T) {
	w := newPieces(t)
	w.source.Put("f", make([]byte, 3<<20))
	old, was := w.getPieces(t, "f")
	w.source.Put("f", make([]byte, 2<<20))
	w.Changed(old)
	_, all := w.getPieces(t, "f")
	for i, p := range []*Entry{was[0], all[0], all[1]} {
		w.tier[1].PutAt(p.CopyName(), make([]byte, 1<<20), p.Info().Mtime.Add(time.Duration(i)))
	}
	w.LeftCopy(was[0])
	if _, again := w.getPieces(t, "f"); &again[0] != &all[0] {
		t.Error("the pieces were made again")
	}
	w.wantCopies(t, "f", ".milkweed-pieces/f/0.2097152", ".milkweed-pieces/f/1.2097152")
	before := w.down[1].Count(drivertest.OpReadDir)
	w.getPieces(t, "f")
	if got := w.down[1].Count(drivertest.OpReadDir); got != before {
		t.Error("the tier is listed again")
	}
}

// Copies of pieces of another size are removed when the scan of their tier has ended.
func TestPiecesBeforeScan(t *testing.T) {
	w := newPieces(t)
	w.source.Put("f", make([]byte, 2<<20))
	w.tier[1].Put(".milkweed-pieces/f/0.3145728", make([]byte, 1<<20))
	configs := []tiers.Config{{Name: "tier", Store: w.down[1], Quota: tiers.Quota{Bytes: 1 << 30}}}
	log := slog.New(slog.DiscardHandler)
	levels, err := tiers.New(w.faults, configs, tiers.Options{}, log)
	if err != nil {
		t.Fatal(err)
	}
	names, err := New(bg, levels, Options{PieceSize: 1 << 20}, log)
	if err != nil {
		t.Fatal(err)
	}
	defer names.Close()
	e, err := names.Resolve(bg, "f")
	if err != nil {
		t.Fatal(err)
	}
	get := func() {
		if all, err := names.Pieces(bg, e); err != nil || len(all) != 2 {
			t.Fatalf("got %d pieces, %v", len(all), err)
		}
	}
	get()
	w.wantCopies(t, "f", ".milkweed-pieces/f/0.3145728")
	ctx, cancel := context.WithCancel(bg)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { levels.Run(ctx) })
	levels.WaitScanned(bg)
	get()
	w.wantCopies(t, "f")
}

// What a tier has in the place of the copies of pieces is removed: the source had a directory where it
// has a file now, or the reverse.
func TestPiecesReplaceOtherCopies(t *testing.T) {
	for _, tt := range []struct{ what, file, copied string }{
		{"a directory was the file", "a", ".milkweed-pieces/a/0.2097152/1.3145728"},
		{"a directory was the file, with other names", "a", ".milkweed-pieces/a/b/c/1.3145728"},
		{"a file was the directory", "a/0.3145728", ".milkweed-pieces/a/0.3145728"},
		{"a file was a directory above", "a/0.3145728/b", ".milkweed-pieces/a/0.3145728"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			w := newPieces(t)
			w.source.Put(tt.file, make([]byte, 2<<20))
			w.tier[1].Put(tt.copied, make([]byte, 1<<20))
			w.getPieces(t, tt.file)
			w.wantCopies(t, ".")
		})
	}
}
