package placement

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// covers compares the Coverage of a rig with one of which only the numbers are given.
func (r *rig) covers(when string, want Coverage, complete, opened bool) {
	r.t.Helper()
	r.settled()
	want.Complete, want.OpenedComplete = complete, opened
	if got := NewSurvey(r.handler).Coverage(); got != want {
		r.t.Errorf("%s:\ngot  %+v\nwant %+v", when, got, want)
	}
}

// all lists the whole dataset.
func (r *rig) all() {
	r.t.Helper()
	r.check(r.names.Walk(r.ctx, []*metadata.Entry{r.names.Root()}, func(_ *metadata.Entry, err error) error { return err }))
}

func TestCoverage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 20}, ttl: time.Second})
		a, b := r.put("d/a", 10_000), r.put("d/b", 20_000)
		r.put("e/f/large", 2<<20)
		r.mem.Put("e/empty", nil)
		r.mem.Symlink("a", "d/link")
		r.covers("before any access", Coverage{UnlistedDirs: 1}, false, false)
		r.wantFile("d/a", a) // is looked up, and nothing is listed
		r.covers("after a file", Coverage{Files: 1, Bytes: 10_000, CopiedFiles: 1, CopiedBytes: 10_000, OpenedFiles: 1, OpenedBytes: 10_000, OpenedCopied: 10_000, UnlistedDirs: 2}, false, true)
		r.all()
		r.covers("after the listings", Coverage{Files: 4, Bytes: 30_000 + 2<<20, CopiedFiles: 2, CopiedBytes: 10_000, OpenedFiles: 1, OpenedBytes: 10_000, OpenedCopied: 10_000}, false, true)
		_, err := r.read("e/f/large")
		r.check(err)
		r.wantFile("d/b", b)
		r.covers("a file without room", Coverage{Files: 4, Bytes: 30_000 + 2<<20, CopiedFiles: 3, CopiedBytes: 30_000, OpenedFiles: 3, OpenedBytes: 30_000 + 2<<20, OpenedCopied: 30_000, OpenedMissing: 1}, false, false)

		r.mem.Delete("e/f/large")
		time.Sleep(2 * time.Second)
		r.all()
		r.covers("without that file", Coverage{Files: 3, Bytes: 30_000, CopiedFiles: 3, CopiedBytes: 30_000, OpenedFiles: 2, OpenedBytes: 30_000, OpenedCopied: 30_000}, true, true)

		r.put("d/a", 5000)
		time.Sleep(2 * time.Second)
		r.entry("d/a")
		r.covers("a new version", Coverage{Files: 3, Bytes: 25_000, CopiedFiles: 2, CopiedBytes: 20_000, OpenedFiles: 2, OpenedBytes: 25_000, OpenedCopied: 20_000, OpenedMissing: 1}, false, false)
	})
}

// Copies that were made ahead count until their files are opened, or the copies are gone.
func TestCoverageOfUnopenedFiles(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 20}})
		var bytes int64
		for i := range 20 {
			r.put(fmt.Sprintf("d/%02d", i), 1000+i)
			bytes += int64(1000 + i)
		}
		r.all()
		read := func(n int) {
			for i := range n {
				_, err := r.read(fmt.Sprintf("d/%02d", i))
				r.check(err)
				r.idle()
			}
		}
		read(4)
		want := Coverage{Files: 20, Bytes: bytes, CopiedFiles: 20, CopiedBytes: bytes, OpenedFiles: 4, OpenedBytes: 4006, OpenedCopied: 4006, UnopenedFiles: 16, UnopenedBytes: bytes - 4006}
		r.covers("after some files in order", want, true, true)
		r.handler.Drop(r.ctx, []string{"d/19"}, func(DropReport) {})
		r.all()
		want.CopiedFiles, want.CopiedBytes, want.UnopenedFiles, want.UnopenedBytes = 19, bytes-1019, 15, want.UnopenedBytes-1019
		r.covers("without a copy", want, false, true)
		read(20)
		r.covers("after all", Coverage{Files: 20, Bytes: bytes, CopiedFiles: 20, CopiedBytes: bytes, OpenedFiles: 20, OpenedBytes: bytes, OpenedCopied: bytes}, true, true)
	})
}

// The names of a listing without attributes may be files.
func TestCoverageOfUnknownNames(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 20}, remote: true, idle: true})
		for i := range 100 {
			r.put(fmt.Sprintf("d/%d", i), 1000)
		}
		r.check(r.names.ListAhead(r.ctx, r.entry("d")))
		got := NewSurvey(r.handler).Coverage()
		if want := (Coverage{UnlistedDirs: 1, UnknownNames: 100}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

// A copy in a tier that is down is not read.
func TestCoverageOfTierThatIsDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 20}})
		data := r.put("f", 10_000)
		r.wantFile("f", data)
		r.all()
		r.covers("with the tier", Coverage{Files: 1, Bytes: 10_000, CopiedFiles: 1, CopiedBytes: 10_000, OpenedFiles: 1, OpenedBytes: 10_000, OpenedCopied: 10_000}, true, true)
		r.to[0].Add(drivertest.Rule{Hang: true})
		for r.levels.Tiers()[0].Stats().Health != tiers.Down {
			r.levels.Tiers()[0].Stat(r.ctx, "f")
		}
		r.covers("without it", Coverage{Files: 1, Bytes: 10_000, OpenedFiles: 1, OpenedBytes: 10_000, OpenedMissing: 1}, false, false)
	})
}

// A file that is copied in pieces has a copy when all of them have.
func TestCoverageOfPieces(t *testing.T) {
	const size = 3*testPiece - 1
	c := newCluster(t, divided(1, 1<<30)...)
	c.put(1, func(int) int { return size })
	n := c.nodes[0]
	n.all()
	c.epoch(1)
	c.settle()
	n.covers("after an epoch", Coverage{Files: 1, Bytes: size, CopiedFiles: 1, CopiedBytes: size, OpenedFiles: 1, OpenedBytes: size, OpenedCopied: size}, true, true)
	for name := range c.files {
		p := n.pieces(name)[1]
		if n.entry(name).Level() != tiers.AtSource || !p.Demote(p.Level()) {
			t.Fatalf("%s is not copied in pieces", name)
		}
	}
	n.covers("without a piece", Coverage{Files: 1, Bytes: size, CopiedBytes: size - testPiece, OpenedFiles: 1, OpenedBytes: size, OpenedCopied: size - testPiece, OpenedMissing: 1}, false, false)
}

// After a restart, nothing is known of the pieces of a file until it is opened.
func TestCoverageOfPiecesAfterRestart(t *testing.T) {
	const size = 3*testPiece - 1
	c := newCluster(t, divided(1, 1<<30)...)
	c.put(1, func(int) int { return size })
	n := c.nodes[0]
	c.epoch(1)
	c.settle()
	names, err := metadata.New(n.ctx, n.levels, metadata.Options{TTL: time.Hour, PieceSize: testPiece}, n.handler.log)
	n.check(err)
	defer names.Close()
	n.check(names.Walk(n.ctx, []*metadata.Entry{names.Root()}, func(_ *metadata.Entry, err error) error { return err }))
	s := NewSurvey(New(n.levels, names, Config{Workers: 1}, n.handler.log))
	got := s.Coverage()
	if want := (Coverage{Files: 1, Bytes: size, UnknownFiles: 1}); got != want || got.NamesKnown() || got.Missing() != 0 {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// While the source does not let the daemon list a directory, the dataset is not known.
func TestCoverageOfDeniedDirectory(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 20}})
		r.put("denied/f", 1000)
		remove := r.from.Add(drivertest.Rule{Op: drivertest.OpReadDir, Name: "denied", Err: syscall.EACCES})
		list := func() {
			r.names.Walk(r.ctx, []*metadata.Entry{r.names.Root()}, func(*metadata.Entry, error) error { return nil })
		}
		list()
		r.covers("while it is denied", Coverage{DeniedDirs: 1}, false, false)
		remove()
		list()
		r.covers("afterwards", Coverage{Files: 1, Bytes: 1000}, false, false)
	})
}

// Only the current generation is the dataset.
func TestCoverageOfGenerations(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 20}})
		r.put("v1/f", 1000)
		r.put("v2/d/g", 2000)
		names, err := metadata.New(r.ctx, r.levels, metadata.Options{TTL: time.Hour, Generation: "v1"}, r.handler.log)
		r.check(err)
		defer names.Close()
		r.check(names.Walk(r.ctx, []*metadata.Entry{names.Root()}, func(_ *metadata.Entry, err error) error { return err }))
		s := NewSurvey(New(r.levels, names, Config{Workers: 1}, r.handler.log))
		if got, want := s.Coverage(), (Coverage{Files: 1, Bytes: 1000}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		_, err = names.Switch(r.ctx, "v2")
		r.check(err)
		s.Forget()
		if got, want := s.Coverage(), (Coverage{Files: 1, Bytes: 2000}); got != want {
			t.Errorf("after a switch: got %+v, want %+v", got, want)
		}
	})
}

// The result of a long pass is returned for a while, or until Forget.
func TestSurveyIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 20}, idle: true})
		s := NewSurvey(r.handler)
		s.Coverage()
		r.put("f", 1000)
		r.all()
		s.until = time.Now().Add(time.Second) // as after a pass of 50 ms
		if got := s.Coverage(); got.Files != 0 {
			t.Errorf("within that time: %+v", got)
		}
		time.Sleep(time.Second)
		if got := s.Coverage(); got.Files != 1 {
			t.Errorf("after it: %+v", got)
		}
		r.mem.Delete("f")
		r.names.Changed(r.entry("f"))
		s.until = time.Now().Add(time.Hour)
		s.Forget()
		if got := s.Coverage(); got.Files != 0 {
			t.Errorf("after Forget: %+v", got)
		}
	})
}

func BenchmarkSurvey(b *testing.B) {
	r := newRig(b, rigOptions{quotas: []int64{1 << 20}, idle: true})
	const files = 200_000
	for i := range files {
		r.mem.Put(fmt.Sprintf("%d/%d", i/1000, i), []byte("x"))
	}
	r.all()
	s := NewSurvey(r.handler)
	for b.Loop() {
		s.until = time.Time{}
		if got := s.Coverage(); got.Files != files {
			b.Fatalf("%+v", got)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/files, "ns/file")
}
