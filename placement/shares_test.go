package placement

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// A share is a job that reads a part of the files of a dataset. Each file that is predicted has a
// copy at once.
type share struct {
	*rig
	files  []*metadata.Entry // of the dataset, by name
	placed map[*metadata.Entry]bool

	source int64 // bytes that were copied
	found  int   // files that had a copy when they were opened
}

// bigFiles is a source on which each file has the same size, whatever it holds.
type bigFiles struct {
	recordedNamer
	size int64
}

func (b bigFiles) Stat(ctx context.Context, name string) (drivers.Info, error) {
	info, err := b.recordedNamer.Stat(ctx, name)
	if err == nil && !info.IsDir() {
		info.Size = b.size
	}
	return info, err
}

// newShare makes a dataset of dirs directories with a number of files each.
func newShare(t *testing.T, dirs, files int, size int64) *share {
	t.Helper()
	mem := drivertest.NewMem(0)
	over := bigFiles{recordedNamer{newRecorder(t, mem), drivertest.NewNamer(mem)}, size}
	s := &share{rig: newRig(t, rigOptions{quotas: []int64{1 << 50}, idle: true, over: over}), placed: make(map[*metadata.Entry]bool)}
	for d := range dirs {
		for i := range files {
			mem.Put(fmt.Sprintf("d%04d/%05d", d, i), []byte("x"))
		}
	}
	for d := range dirs {
		_, err := s.names.List(s.ctx, s.entry(fmt.Sprintf("d%04d", d)))
		s.check(err)
		for i := range files {
			s.files = append(s.files, s.entry(fmt.Sprintf("d%04d/%05d", d, i)))
		}
	}
	return s
}

// place makes a copy of e at the source's cost, unless there is one.
func (s *share) place(e *metadata.Entry) {
	if !s.placed[e] {
		s.placed[e] = true
		s.source += e.Size()
	}
}

// open opens files, and copies what is predicted after each of them.
func (s *share) open(files ...*metadata.Entry) {
	s.t.Helper()
	h := s.handler
	for _, e := range files {
		missing := !s.placed[e]
		if !missing {
			s.found++
		}
		s.place(e)
		h.predict(e, missing, h.record.Opened(e.ID(), false))
		for next := h.inOrder.next(); next != nil; next = h.inOrder.next() {
			if !s.placed[next] {
				s.place(next)
				h.scattered.foreign(next)
			}
		}
		for next := h.scattered.next(); next != nil; next = h.scattered.next() {
			if next.IsDir() {
				s.check(s.names.ListAhead(s.ctx, next))
				h.scattered.listed(next)
				continue
			}
			s.place(next)
			h.scattered.settle(next, next, true)
		}
	}
}

// every returns each n-th of the files from the first one on.
func every(files []*metadata.Entry, first, n int) (all []*metadata.Entry) {
	for i := first; i < len(files); i += n {
		all = append(all, files[i])
	}
	return all
}

func sizes(files []*metadata.Entry) (bytes int64) {
	for _, e := range files {
		bytes += e.Size()
	}
	return bytes
}

func mixed(files []*metadata.Entry, seed uint64) []*metadata.Entry {
	files = slices.Clone(files)
	rand.New(rand.NewPCG(seed, 5)).Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	return files
}

// interleave returns the files in the order of loader processes that read batches in turn.
func interleave(files []*metadata.Entry, workers, batch int) (all []*metadata.Entry) {
	for from := 0; from < len(files); from += workers * batch {
		for i := range batch {
			for w := range workers {
				if n := from + w*batch + i; n < len(files) {
					all = append(all, files[n])
				}
			}
		}
	}
	return all
}

// copiedBeside returns the number of copies of files that are not of a job.
func (s *share) copiedBeside(job []*metadata.Entry) (n int) {
	for e := range s.placed {
		if !slices.Contains(job, e) {
			n++
		}
	}
	return n
}

// A job that reads every n-th file of a dataset causes little else to be copied: for n from 2 to 16,
// in the order of the names, with several loader processes, or in no order; small and large files, in
// one directory and in many; also if it first looks at a file of another share. Most small files
// of its own share are copied before it opens them. In the next epochs nothing else is copied, also
// if some copies were lost and the opens were counted anew.
func TestSharesAreRecognized(t *testing.T) {
	for _, c := range []struct {
		dirs, files int
		size        int64
	}{{1, 2000, 100_000}, {20, 100, 100_000}, {1, 256, 32 << 20}, {8, 64, 32 << 20}} {
		for _, n := range []int{2, 3, 4, 5, 8, 16} {
			for name, in := range map[string]func(files []*metadata.Entry) []*metadata.Entry{
				"in order":        func(files []*metadata.Entry) []*metadata.Entry { return files },
				"shuffled":        func(files []*metadata.Entry) []*metadata.Entry { return mixed(files, uint64(n)) },
				"several loaders": func(files []*metadata.Entry) []*metadata.Entry { return interleave(files, 4, 4) },
			} {
				for _, look := range []int{0, 1} {
					t.Run(fmt.Sprintf("1 of %d in %d of %d of %d bytes %s after %d", n, c.dirs, c.files, c.size, name, look), func(t *testing.T) {
						s := newShare(t, c.dirs, c.files, c.size)
						job := in(every(s.files, n-1, n))
						s.open(s.files[:look]...)
						s.open(job...)
						own := sizes(job) + sizes(s.files[:look])
						if got := float64(s.source) / float64(own); got > 1.05 {
							t.Errorf("first epoch: got %.3f times the bytes of the job", got)
						}
						if got := float64(s.found) / float64(len(job)); c.size < maxScattered && got < 0.5 {
							t.Errorf("got %.2f of the files copied before they were opened", got)
						}
						before := s.copiedBeside(job)
						for epoch := range uint64(2) {
							s.handler.scattered.prune(time.Now().Add(2 * calmAfter))
							for _, lost := range every(mixed(job, epoch), 0, 20) {
								delete(s.placed, lost)
							}
							s.open(mixed(job, epoch)...)
							s.open(job...)
						}
						if got := s.copiedBeside(job) - before; got != 0 {
							t.Errorf("later epochs: %d files were copied that the job does not open", got)
						}
					})
				}
			}
		}
	}
}

// The same with workers, and with several readers, of directories that nobody has listed.
func TestSharesOfUnlistedDirectories(t *testing.T) {
	for _, c := range []struct{ dirs, files int }{{1, 1000}, {20, 50}, {200, 5}} {
		for _, n := range []int{2, 5} {
			for _, shuffle := range []bool{false, true} {
				t.Run(fmt.Sprintf("1 of %d in %d of %d shuffled %v", n, c.dirs, c.files, shuffle), func(t *testing.T) {
					bubble(t, func(t *testing.T) {
						r := slowSource(t)
						s := newUnlisted(r, c.dirs, c.files, 10_000, 1)
						all := slices.Sorted(slices.Values(s.names))
						data := make(map[string][]byte)
						for i, name := range s.names {
							data[name] = s.data[i]
						}
						s.names, s.data = nil, nil
						for i := n - 1; i < len(all); i += n {
							s.names = append(s.names, all[i])
						}
						if shuffle {
							rand.New(rand.NewPCG(1, 1)).Shuffle(len(s.names), func(i, j int) { s.names[i], s.names[j] = s.names[j], s.names[i] })
						}
						for _, name := range s.names {
							s.data = append(s.data, data[name])
						}
						for range 2 {
							s.epoch(4, len(s.names))
							s.settled()
							if got := float64(r.copied()) / float64(s.own(len(s.names))); got > 1.05 || got < 1 {
								t.Errorf("got %.3f times the bytes of the job, want 1 to 1.05", got)
							}
						}
					})
				})
			}
		}
	}
}

// A job that opens a random part of the files in the order of their names shows which ones it does not
// open: those that it has passed. Soon no others are prefetched. One that leaves out few has them
// copied, as one that opens all.
func TestPassedFiles(t *testing.T) {
	for _, c := range []struct {
		dirs, files int
		part        float64
		most, found float64
	}{
		{1, 2000, 0.3, 1.05, 0}, {1, 2000, 0.5, 1.05, 0}, {1, 2000, 0.9, 1.12, 0.9}, {1, 2000, 1, 1, 0.9},
		{20, 100, 0.3, 1.1, 0}, {20, 100, 0.5, 1.1, 0}, {20, 100, 0.9, 1.12, 0.9}, {20, 100, 1, 1, 0.9},
		{400, 5, 0.3, 1.05, 0}, {400, 5, 0.5, 1.05, 0}, {400, 5, 0.9, 1.12, 0.4}, {400, 5, 1, 1, 0.5},
	} {
		t.Run(fmt.Sprintf("%v of %d of %d", c.part, c.dirs, c.files), func(t *testing.T) {
			s := newShare(t, c.dirs, c.files, 100_000)
			var job []*metadata.Entry
			random := rand.New(rand.NewPCG(1, 9))
			for _, e := range s.files {
				if random.Float64() < c.part {
					job = append(job, e)
				}
			}
			s.open(job...)
			if got := float64(s.source) / float64(sizes(job)); got > c.most {
				t.Errorf("got %.3f times the bytes of the job, want at most %v", got, c.most)
			}
			if got := float64(s.found) / float64(len(job)); got < c.found {
				t.Errorf("got %.2f of the files copied before they were opened, want %v", got, c.found)
			}
		})
	}
}

// A job that reads one file of each directory has no directory listed, in whatever order it reads: the
// source gets one request for each name, and an open and a read of each file.
func TestOneFileInEachDirectory(t *testing.T) {
	for _, shuffle := range []bool{false, true} {
		t.Run(fmt.Sprint("shuffled ", shuffle), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := slowSource(t)
				const rows, columns = 20, 25
				var files []string
				for row := range rows {
					for column := range columns {
						name := fmt.Sprintf("array/c/%d/%d/0", row, column)
						r.mem.Put(name, make([]byte, 1000))
						files = append(files, name)
					}
				}
				if shuffle {
					rand.New(rand.NewPCG(1, 1)).Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
				}
				before := r.levels.Source().Stats().SourceCounters
				for _, name := range files {
					_, err := r.read(name)
					r.check(err)
				}
				r.settled()
				got := r.levels.Source().Stats().SourceCounters
				const n = rows * columns
				if lists, stats := got.ReadDirs-before.ReadDirs, got.Stats-before.Stats; lists != 0 || stats != 2+rows+2*n {
					t.Errorf("got %d listings and %d requests for attributes, want none and %d", lists, stats, 2+rows+2*n)
				}
				if opens, reads := got.Opens-before.Opens, got.Reads-before.Reads; opens != n || reads != n {
					t.Errorf("got %d opens and %d reads of %d files", opens, reads, n)
				}
			})
		})
	}
}

// A job that reads the two files of each directory one after the other has few directories listed: those
// that are listed lead to no file that it has not opened.
func TestListingsThatDoNotPay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := slowSource(t)
		const dirs = 500
		for i := range dirs {
			for _, name := range []string{"image", "label"} {
				r.mem.Put(fmt.Sprintf("d%04d/%s", i, name), make([]byte, 1000))
			}
		}
		before := r.levels.Source().Stats().ReadDirs
		for i := range dirs {
			for _, name := range []string{"image", "label"} {
				_, err := r.read(fmt.Sprintf("d%04d/%s", i, name))
				r.check(err)
			}
		}
		r.settled()
		if got := r.levels.Source().Stats().ReadDirs - before; got > 3*freeListings {
			t.Errorf("got %d listings, want at most %d", got, 3*freeListings)
		}
	})
}

// Of the copies that were made before an open, those are counted that were opened since, once each.
func TestPrefetchedCopiesAreCounted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := slowSource(t)
		s := newShuffled(r, 1, 200, 10_000)
		unopened := func() (files, bytes int64) {
			st := r.handler.Stats()
			return st.Prefetched - st.PrefetchedOpened, st.PrefetchedBytes - st.PrefetchedOpenedBytes
		}
		for range 2 {
			s.epoch(4, 60)
			s.settled()
			st := r.handler.Stats()
			var size int64
			for i, name := range s.names[60:] {
				if r.entry(name).Level() != tiers.AtSource {
					size += int64(len(s.data[60+i]))
				}
			}
			if files, bytes := unopened(); files == 0 || files != st.Placed-60 || bytes != size {
				t.Errorf("got %d copies of %d bytes that were not opened, want %d of %d", files, bytes, st.Placed-60, size)
			}
		}
		s.epoch(4, 200)
		s.settled()
		if files, bytes := unopened(); files != 0 || bytes != 0 {
			t.Errorf("all files were opened: got %d copies of %d bytes that were not", files, bytes)
		}
	})
}
