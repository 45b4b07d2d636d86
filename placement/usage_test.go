package placement

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// Usage counts opens and reads, the different files among them, and in which order they were.
func TestUsageOfReaders(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
		r.put("d/a", 1000)
		r.put("d/b", 1000)
		r.put("e/large", 10<<20)
		for range 2 {
			for _, name := range []string{"d/a", "d/b"} {
				if _, err := r.read(name); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(2 * time.Second)
		obj := r.open("e/large")
		r.check(readAt(context.Background(), obj, make([]byte, 4096), 8<<20))
		r.check(readAt(context.Background(), obj, make([]byte, 4096), 8<<20+4096))
		r.check(readAt(context.Background(), obj, make([]byte, 4096), 0))
		r.check(obj.Close())
		r.settled()

		s := r.handler.Stats()
		got := s.Usage
		if got.Files != 3 || got.FilesBytes != 2000+10<<20 || got.DaemonBytes != got.FilesBytes || got.Neighbors != 3 || got.InOrder != 2 || got.ActiveSeconds != 2 {
			t.Errorf("opens: got %+v", got)
		}
		if got.Sequential != 6 || got.Random != 1 || got.Spliced != 0 || got.RequestSizes[0] != 7 || got.FileSizes[0] != 4 || got.FileSizes[7] != 1 {
			t.Errorf("reads: got %+v", got)
		}
		read := s.FillOpens.Read
		for _, o := range s.Opens {
			read += o.Read
		}
		if want := int64(4*1000 + 3*4096); read != want {
			t.Errorf("%d bytes read, want %d", read, want)
		}

		obj = r.open("e/large") // the kernel reads it directly
		r.handler.usage.openedDirectly(r.entry("e/large"), 1)
		r.handler.usage.openedDirectly(r.entry("e/large"), 1)
		r.check(obj.Close())
		if got := r.handler.Stats().Usage; got.DaemonBytes != 2000 || got.FilesBytes != 2000+10<<20 {
			t.Errorf("in passthrough: got %+v", got)
		}
	})
}

// Sizes have the bucket of their bound.
func TestUsageSizes(t *testing.T) {
	var s Sizes
	for _, n := range []int64{0, 4096, 4097, 1 << 30, 1<<30 + 1} {
		s.add(n)
	}
	if want := (Sizes{0: 2, 1: 1, 8: 1, 9: 1}); s.load() != want {
		t.Errorf("got %v, want %v", s, want)
	}
}

// A copy counts for the coverage of the dataset while its tier works: in one that is down, it is read from the source.
func TestCoverageOfATierThatIsDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
		names := []string{"a", "b", "c", "d"}
		for _, name := range names {
			r.put(name, 1000)
		}
		if c := r.handler.Coverage(); c.Complete || c.OpenedComplete || c.UnlistedDirs != 1 {
			t.Errorf("at first: got %+v", c)
		}
		if _, err := r.names.List(r.ctx, r.names.Root()); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			r.read(name)
		}
		r.settled()
		time.Sleep(time.Second)
		if c := r.handler.Coverage(); !c.Complete || !c.OpenedComplete || c.Files != 4 || c.CopiedBytes != 4000 || c.Opened != 4 {
			t.Errorf("after an epoch: got %+v", c)
		}
		r.to[0].Add(drivertest.Rule{Op: drivertest.OpOpen, Err: syscall.EIO})
		for _, name := range names {
			r.read(name)
		}
		if h := r.levels.Tiers()[0].Stats().Health; h != tiers.Down {
			t.Fatalf("the tier is %v", h)
		}
		if c := r.handler.Coverage(); c.Complete || c.OpenedComplete || c.CopiedFiles != 0 || c.OpenedMissing != 4 {
			t.Errorf("the tier is down: got %+v", c)
		}
	})
}

// An estimate of a warm-up counts what is missing, and what does not fit.
func TestEstimate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{8 << 10, 16 << 10}})
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
			r.put(name, 4000)
		}
		r.put("empty", 0)
		r.put("large", 20<<10)
		if got, err := r.handler.Place(r.ctx, r.entry("a")); got != Placed {
			t.Fatalf("got %v, %v", got, err)
		}
		var got Estimate
		r.check(r.handler.Estimate(r.ctx, []*metadata.Entry{r.names.Root()}, func(e Estimate) { got = e }, func(e *metadata.Entry, err error) { t.Error(e.Path(), err) }))
		want := Estimate{
			Files: 9, Bytes: 7*4000 + 20<<10, CopiedFiles: 2, CopiedBytes: 4000,
			NeededBytes: 6*4096 + 20<<10, RoomBytes: 20 << 10, SkippedFiles: 2, SkippedBytes: 4000 + 20<<10,
		}
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}
