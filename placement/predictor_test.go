package placement

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/tiers"
)

// A shuffled is a rig with many small files, and a random order in which to read them.
type shuffled struct {
	*rig
	names []string
	data  [][]byte
}

// newShuffled makes dirs directories with a number of files each, of up to size bytes, at the
// source of r, and lists the directories. No name of r may have been looked up before.
func newShuffled(r *rig, dirs, files, size int) *shuffled {
	r.t.Helper()
	s := newUnlisted(r, dirs, files, size, 1)
	for d := range dirs {
		_, err := r.names.List(r.ctx, s.entry(fmt.Sprintf("d%04d", d)))
		s.check(err)
	}
	return s
}

// newUnlisted is newShuffled with no directory listed, and another seed of the order.
func newUnlisted(r *rig, dirs, files, size int, seed uint64) *shuffled {
	r.t.Helper()
	s := &shuffled{rig: r}
	for d := range dirs {
		for i := range files {
			name := fmt.Sprintf("d%04d/%05d", d, i)
			data := random(uint64(d*files+i), 1+(size*(i%7+1)/7))
			s.mem.Put(name, data)
			s.names, s.data = append(s.names, name), append(s.data, data)
		}
	}
	rng := rand.New(rand.NewPCG(seed, 2))
	rng.Shuffle(len(s.names), func(i, j int) {
		s.names[i], s.names[j] = s.names[j], s.names[i]
		s.data[i], s.data[j] = s.data[j], s.data[i]
	})
	return s
}

// epoch reads the first n files, which some readers share.
func (s *shuffled) epoch(readers, n int) {
	s.t.Helper()
	var all sync.WaitGroup
	for reader := range readers {
		all.Go(func() {
			for i := reader; i < n; i += readers {
				s.wantFile(s.names[i], s.data[i])
			}
		})
	}
	all.Wait()
}

// A shuffled epoch from an object store requests each file once, and many files are prefetched:
// in one directory, and in many.
func TestShuffledEpoch(t *testing.T) {
	for _, c := range []struct{ dirs, files int }{{1, 500}, {100, 5}, {20, 25}} {
		t.Run(fmt.Sprintf("%d of %d", c.dirs, c.files), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				bucket := &drivertest.Bucket{Latency: 20 * time.Millisecond, Length: 8 << 20}
				s := newShuffled(newRig(t, rigOptions{quotas: []int64{1 << 40}, workers: 8, bucket: bucket}), c.dirs, c.files, 1000)
				s.epoch(4, 500)
				s.settled()
				if got := bucket.Requests().Gets; got != 500 {
					t.Errorf("requests for 500 files: got %d", got)
				}
				st := s.handler.Stats()
				if st.Placed != 500 || st.Prefetched < 200 {
					t.Errorf("got %d files placed, %d of them prefetched; want 500, and at least 200", st.Placed, st.Prefetched)
				}
				s.epoch(4, 500)
				if got := bucket.Requests().Gets; got != 500 {
					t.Errorf("requests after another epoch: got %d, want 500", got)
				}
			})
		})
	}
}

// From an object store, the number of prefetched files is in proportion to that of opened files.
func TestFewOfManyFiles(t *testing.T) {
	for _, c := range []struct{ dirs, files, read, most, least int }{
		{1, 5000, minOpens, 0, 0},
		{1, 5000, 20, 20 * 20, 16 * 15},
		{1, 5000, 60, 60 * 20, 60 * 15},
		{60, 600, minOpens, 0, 0},
		{60, 600, 80, 80 * 20, 80 * 15},
	} {
		t.Run(fmt.Sprintf("%d of %d in %d directories", c.read, c.files*c.dirs, c.dirs), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				bucket := &drivertest.Bucket{Latency: 20 * time.Millisecond, Length: 8 << 20}
				s := newShuffled(newRig(t, rigOptions{quotas: []int64{1 << 40}, workers: 8, bucket: bucket}), c.dirs, c.files, 100)
				for i := range c.read { // one after the other, each three times
					for range 3 {
						s.wantFile(s.names[i], s.data[i])
					}
					time.Sleep(time.Second)
				}
				s.settled()
				most, least := int64(c.read+c.most), int64(c.read)
				if got := bucket.Requests().Gets; got > most || got < least {
					t.Errorf("requests for %d files: got %d, want at most %d", c.read, got, most)
				}
				if got := s.handler.Stats().Prefetched; got < int64(c.least)*9/10 {
					t.Errorf("files prefetched: got %d, want about %d", got, c.least)
				}
			})
		})
	}
}

// A tier cannot take all files of the dataset, and a job reads some that fit into half of it.
// All of those are placed: prefetched files do not take their room.
func TestSomeOfManyFilesArePlaced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const room = 1000
		bucket := &drivertest.Bucket{Latency: 20 * time.Millisecond, Length: 8 << 20}
		s := newShuffled(newRig(t, rigOptions{quotas: []int64{room * 4096}, workers: 8, bucket: bucket}), 1, 3000, 4000)
		for range 2 {
			for i := range room / 2 {
				s.wantFile(s.names[i], s.data[i])
				time.Sleep(5 * time.Millisecond)
			}
		}
		s.settled()
		for _, name := range s.names[:room/2] {
			if s.entry(name).Level() == tiers.AtSource {
				t.Errorf("%s is at the source", name)
			}
		}
		st := s.handler.Stats()
		if st.Prefetched < room/4 || st.Placed > room {
			t.Errorf("got %d files placed, %d of them prefetched; want at least %d", st.Placed, st.Prefetched, room/4)
		}
	})
}

// Opens now and then do not count as a job that shuffles.
func TestOpensAreCountedAnew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const dirs, files = 60, 600
		bucket := &drivertest.Bucket{Length: 8 << 20}
		s := newShuffled(newRig(t, rigOptions{quotas: []int64{1 << 40}, bucket: bucket}), dirs, files, 100)
		for i := range 3 * minOpens / 2 {
			if i == minOpens-1 {
				time.Sleep(calmAfter + time.Minute)
			}
			s.wantFile(s.names[i], s.data[i])
		}
		s.settled()
		if got := s.handler.Stats().Prefetched; got != 0 {
			t.Errorf("files prefetched: got %d, want none", got)
		}
	})
}

// For a job that shuffles, no files are prefetched for which no tier has room, and large ones not
// before the job has opened a third of the files.
func TestNotPrefetchedForShuffledJobs(t *testing.T) {
	const files = 1000
	for _, c := range []struct {
		name  string
		opts  rigOptions
		size  int
		least int64 // files prefetched
		most  int64
	}{
		{"no room", rigOptions{quotas: []int64{7 * 4000}, bucket: &drivertest.Bucket{Length: 8 << 20}}, 7 * 100, 0, files},
		{"no tier", rigOptions{bucket: &drivertest.Bucket{Length: 8 << 20}}, 700, 0, 0},
		{"file system", rigOptions{quotas: []int64{1 << 40}}, 700, 1, 50},
		{"small", rigOptions{quotas: []int64{1 << 40}, bucket: &drivertest.Bucket{Length: 8 << 20}}, 700, 1, files},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newShuffled(newRig(t, c.opts), 1, files, c.size)
				for i := range 50 {
					s.wantFile(s.names[i], s.data[i])
					s.settled()
				}
				st := s.handler.Stats()
				if st.Prefetched < c.least || st.Prefetched > c.most {
					t.Errorf("files prefetched: got %d, want %d to %d", st.Prefetched, c.least, c.most)
				}
				if got := s.from.Count(drivertest.OpOpen); len(c.opts.quotas) > 0 && got > st.Placed+50 {
					t.Errorf("opens at the source: got %d, want those of %d copies, and of files without room", got, st.Placed)
				}
			})
		})
	}
	t.Run("large", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r := newRig(t, rigOptions{quotas: []int64{1 << 40}, bucket: &drivertest.Bucket{Length: 8 << 20}})
			data := make([]byte, maxScattered+1)
			for i := range 60 {
				r.mem.Put(fmt.Sprintf("d/%02d", i), data)
			}
			_, err := r.names.List(t.Context(), r.entry("d"))
			r.check(err)
			for i := range 30 {
				r.wantFile(fmt.Sprintf("d/%02d", (59+37*i)%60), data)
			}
			r.settled()
			if got := r.handler.Stats(); got.Placed != 30 || got.Prefetched != 0 {
				t.Errorf("got %d placed and %d prefetched, want 30 and 0", got.Placed, got.Prefetched)
			}
		})
	})
}

// Files that may be opened at some time are copied after everything else. Until then they are
// not claimed, and one that is opened meanwhile is read at once.
func TestScatteredPrefetchComesLast(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const opened = 100
		bucket := &drivertest.Bucket{Length: 1 << 20}
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, workers: 2, bucket: bucket})
		large := r.put("large", 40<<20)
		s := newShuffled(r, 1, 2000, 100)
		s.wantWhole("large")
		remove := s.from.Add(drivertest.Rule{Op: drivertest.OpRead, Name: "large", Hang: true})
		s.touch("large") // occupies the workers
		for i := range opened + 50 {
			s.wantFile(s.names[i], s.data[i])
		}
		synctest.Wait()
		if got := s.handler.Stats().InFlight; got != 1 {
			t.Errorf("fills in flight: got %d, want only that of the large file", got)
		}
		if got := s.handler.Stats().Prefetched; got != 0 {
			t.Errorf("files prefetched: got %d, want none yet", got)
		}
		remove()
		s.from.Release()
		s.settled()
		s.wantFile("large", large)
		streams, others := 0, 0
		for _, span := range s.source.spans() {
			if span.name == "large" {
				streams++
			} else if streams >= 40-2 { // each worker may be late with its last
				others++
			}
		}
		if most := len(s.names) - opened - 50; others > most || others < most*2/3 {
			t.Errorf("files copied after the large one: got %d, want about %d", others, most)
		}
	})
}

// Files that wait to be prefetched when the handler stops cause no request, and stay
// unclaimed.
func TestStoppedBeforeScatteredPrefetch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		bucket := &drivertest.Bucket{Length: 1 << 20}
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, workers: 1, bucket: bucket})
		r.put("large", 8<<20)
		s := newShuffled(r, 1, 500, 100)
		s.from.Add(drivertest.Rule{Op: drivertest.OpStream, Name: "large", Hang: true})
		s.touch("large")
		for i := range 30 {
			s.wantFile(s.names[i], s.data[i])
		}
		if p := s.handler.scattered; p.ready.Len() != 1 {
			t.Fatal("no files wait to be prefetched")
		}
		before, creates := bucket.Requests().Gets, s.to[0].Count(drivertest.OpCreate)
		s.stop()
		s.running.Wait()
		if got := bucket.Requests().Gets - before; got != 0 {
			t.Errorf("requests after the end: got %d, want none", got)
		}
		if got := s.to[0].Count(drivertest.OpCreate) - creates; got != 0 {
			t.Errorf("copies begun after the end: got %d, want none", got)
		}
		for _, name := range s.names {
			if e := s.entry(name); e.Claimed() {
				t.Errorf("%s is still claimed", name)
			}
		}
	})
}

// BenchmarkShuffled is a first epoch over small files in random order, by four readers, from an
// object store with a latency of 20 ms.
func BenchmarkShuffled(b *testing.B) {
	files := drivertest.Size(2000, 60)
	for _, c := range []struct {
		name     string
		workers  int
		prefetch bool
	}{
		{"no prefetch", 8, false},
		{"8 workers", 8, true},
		{"64 workers", 64, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				bucket := &drivertest.Bucket{Latency: 20 * time.Millisecond, Length: 8 << 20}
				s := newShuffled(newRig(b, rigOptions{quotas: []int64{1 << 40}, workers: c.workers, bucket: bucket}), 1, files, 20_000)
				if !c.prefetch {
					s.handler.scattered.waste = func(float64) float64 { return 0 }
				}
				b.StartTimer()
				s.epoch(4, files)
				b.StopTimer()
				s.end()
				b.StartTimer()
			}
			b.ReportMetric(float64(files*b.N)/b.Elapsed().Seconds(), "files/s")
		})
	}
}
