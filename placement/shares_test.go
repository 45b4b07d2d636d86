package placement

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/metadata"
)

// A shareJob is a job that reads a part of the files of a dataset. Each file that is predicted has a
// copy at once.
type shareJob struct {
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

// newShareJob makes a dataset of dirs directories with a number of files each.
func newShareJob(t *testing.T, dirs, files int, size int64) *shareJob {
	t.Helper()
	var names []string
	for d := range dirs {
		for i := range files {
			names = append(names, fmt.Sprintf("d%04d/%05d", d, i))
		}
	}
	return newJobOn(t, names, size)
}

// newJobOn makes a dataset of files in directories, in the order of their names, and lists these.
func newJobOn(t *testing.T, names []string, size int64) *shareJob {
	t.Helper()
	mem := drivertest.NewMem(0)
	over := bigFiles{recordedNamer{newRecorder(t, mem), drivertest.NewNamer(mem)}, size}
	s := &shareJob{rig: newRig(t, rigOptions{quotas: []int64{1 << 50}, idle: true, over: over}), placed: make(map[*metadata.Entry]bool)}
	for _, name := range names {
		mem.Put(name, []byte("x"))
	}
	for i, name := range names {
		if dir := path.Dir(name); i == 0 || dir != path.Dir(names[i-1]) {
			_, err := s.names.List(s.ctx, s.entry(dir))
			s.check(err)
		}
		s.files = append(s.files, s.entry(name))
	}
	return s
}

// place makes a copy of e at the source's cost, unless there is one.
func (s *shareJob) place(e *metadata.Entry) {
	if !s.placed[e] {
		s.placed[e] = true
		s.source += e.Size()
	}
}

// run opens files, and copies what is predicted after each of them.
func (s *shareJob) run(files ...*metadata.Entry) {
	s.t.Helper()
	h := s.handler
	for _, e := range files {
		missing := !s.placed[e]
		if !missing {
			s.found++
		}
		s.place(e)
		h.predict(s.ctx, e, missing, e.MarkOpened())
		for next := h.inOrder.next(); next != nil; next = h.inOrder.next() {
			if !s.placed[next] {
				s.place(next)
				h.scattered.predictedInOrder(next)
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
func (s *shareJob) copiedBeside(job []*metadata.Entry) (n int) {
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
	}{{1, 2000, 100_000}, {20, 100, 100_000}, {1, 256, 4 << 20}, {8, 64, 4 << 20}} {
		for _, n := range []int{2, 3, 4, 5, 8, 16, 30} {
			for name, in := range map[string]func(files []*metadata.Entry) []*metadata.Entry{
				"in order":        func(files []*metadata.Entry) []*metadata.Entry { return files },
				"shuffled":        func(files []*metadata.Entry) []*metadata.Entry { return mixed(files, uint64(n)) },
				"several loaders": func(files []*metadata.Entry) []*metadata.Entry { return interleave(files, 4, 4) },
			} {
				for _, look := range []int{0, 1} {
					t.Run(fmt.Sprintf("1 of %d in %d of %d of %d bytes %s after %d", n, c.dirs, c.files, c.size, name, look), func(t *testing.T) {
						s := newShareJob(t, c.dirs, c.files, c.size)
						job := in(every(s.files, n-1, n))
						s.run(s.files[:look]...)
						s.run(job...)
						own := sizes(job) + sizes(s.files[:look])
						if most := own + max(own/20, int64(5*look)*c.size, int64(100-len(job))/4*c.size); s.source > most {
							t.Errorf("first epoch: got %d bytes from the source, want %d to %d", s.source, own, most)
						}
						least := 0.5
						switch {
						case c.size == maxScattered || n > 16:
							least = 0
						case name != "shuffled" && c.dirs == 1 && n < 8:
							least = 0.93
						}
						if got := float64(s.found) / float64(len(job)); got < least {
							t.Errorf("got %.2f of the files copied before they were opened, want %v", got, least)
						}
						before := s.copiedBeside(job)
						for epoch := range uint64(2) {
							s.handler.scattered.prune(time.Now().Add(2 * calmAfter))
							for _, lost := range every(mixed(job, epoch), 0, 20) {
								delete(s.placed, lost)
							}
							s.run(mixed(job, epoch)...)
							s.run(job...)
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

// The same from an object store, of which more is copied ahead.
func TestSharesOfBuckets(t *testing.T) {
	for _, c := range []struct{ dirs, files int }{{1, 4000}, {20, 200}} {
		for _, n := range []int{2, 4, 16} {
			t.Run(fmt.Sprintf("1 of %d in %d of %d", n, c.dirs, c.files), func(t *testing.T) {
				s := newShareJob(t, c.dirs, c.files, 100_000)
				s.handler.scattered.waste = requestWaste
				job := mixed(every(s.files, n-1, n), uint64(n))
				s.run(job...)
				if got := float64(s.source) / float64(sizes(job)); got > 1.05 {
					t.Errorf("got %.3f times the bytes of the job", got)
				}
				if got := float64(s.found) / float64(len(job)); got < 0.8 {
					t.Errorf("got %.2f of the files copied before they were opened", got)
				}
			})
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
		{400, 5, 0.3, 1.9, 0}, {400, 5, 0.5, 1.2, 0}, {400, 5, 0.9, 1.12, 0.4}, {400, 5, 1, 1, 0.5},
	} {
		t.Run(fmt.Sprintf("%v of %d of %d", c.part, c.dirs, c.files), func(t *testing.T) {
			s := newShareJob(t, c.dirs, c.files, 100_000)
			var job []*metadata.Entry
			random := rand.New(rand.NewPCG(1, 9))
			for _, e := range s.files {
				if random.Float64() < c.part {
					job = append(job, e)
				}
			}
			s.run(job...)
			if got := float64(s.source) / float64(sizes(job)); got > c.most {
				t.Errorf("got %.3f times the bytes of the job, want at most %v", got, c.most)
			}
			if got := float64(s.found) / float64(len(job)); got < c.found {
				t.Errorf("got %.2f of the files copied before they were opened, want %v", got, c.found)
			}
		})
	}
}

// Where files are missing, the numbers in the names show the share.
func TestSharesByNumber(t *testing.T) {
	for _, shuffle := range []bool{false, true} {
		for _, pattern := range []string{"frame_%06d.jpg", "%06d.mp4", "part-%05d-of-10000.tar"} {
			t.Run(fmt.Sprint(pattern, " shuffled ", shuffle), func(t *testing.T) {
				var names, share []string
				rng := rand.New(rand.NewPCG(1, 4))
				for i := range 2000 {
					if rng.IntN(5) == 0 {
						continue
					}
					names = append(names, "d/"+fmt.Sprintf(pattern, i))
					if i%4 == 3 {
						share = append(share, names[len(names)-1])
					}
				}
				s := newJobOn(t, names, 100_000)
				var job []*metadata.Entry
				for _, name := range share {
					job = append(job, s.entry(name))
				}
				if shuffle {
					job = mixed(job, 1)
				}
				s.run(job...)
				most, found := 1.05, 0.3
				if pattern[0] == 'p' { // the number of parts is the last number
					most, found = 2, 0
				}
				if got := float64(s.source) / float64(sizes(job)); got > most {
					t.Errorf("got %.3f times the bytes of the job, want at most %v", got, most)
				}
				if got := float64(s.found) / float64(len(job)); got < found {
					t.Errorf("got %.2f of the files copied before they were opened, want %v", got, found)
				}
			})
		}
	}
}

// Eight processes of a node that read their shares of a dataset for several nodes leave out the others, and
// so does a job that opens blocks of files.
func TestSharesOfSeveralProcesses(t *testing.T) {
	for _, c := range []struct{ dirs, files int }{{1, 2000}, {20, 100}} {
		for _, of := range []int{16, 32, 128} {
			t.Run(fmt.Sprintf("8 of %d in %d of %d", of, c.dirs, c.files), func(t *testing.T) {
				s := newShareJob(t, c.dirs, c.files, 100_000)
				var job []*metadata.Entry
				for i, e := range s.files {
					if i%of < 8 {
						job = append(job, e)
					}
				}
				s.run(job...)
				if got, most := len(s.placed), len(job)+len(job)/10+3*maxDepth/2; got > most {
					t.Errorf("got %d files copied, want %d to %d", got, len(job), most)
				}
			})
		}
	}
}

// Numbers that all are multiples of ten do not make a random tenth of the files a share.
func TestNumbersAreNotShares(t *testing.T) {
	var names []string
	for i := range 2000 {
		names = append(names, fmt.Sprintf("d/%06d", 10*i))
	}
	s := newJobOn(t, names, 100_000)
	job := mixed(s.files, 1)[:200]
	s.run(job...)
	if got := float64(s.source) / float64(sizes(job)); got > 1.25 {
		t.Errorf("got %.3f times the bytes of the job", got)
	}
}

// A job that has read its share and goes on with another one, or with all files, has these copied.
func TestAnotherShare(t *testing.T) {
	for _, shuffle := range []bool{false, true} {
		for _, c := range []struct{ dirs, files int }{{1, 2000}, {20, 100}} {
			t.Run(fmt.Sprintf("%d of %d shuffled %v", c.dirs, c.files, shuffle), func(t *testing.T) {
				s := newShareJob(t, c.dirs, c.files, 100_000)
				in := func(files []*metadata.Entry) []*metadata.Entry {
					if shuffle {
						return mixed(files, 2)
					}
					return files
				}
				s.run(in(every(s.files, 1, 4))...)
				if got, want := len(s.placed), 525; got > want {
					t.Errorf("got %d files copied, want at most %d", got, want)
				}
				s.found = 0
				s.run(in(every(s.files, 2, 4))...)
				if s.found < 200 {
					t.Errorf("another share: got %d of 500 files copied before they were opened", s.found)
				}
				s.found = 0
				rest := slices.DeleteFunc(slices.Clone(s.files), func(e *metadata.Entry) bool { return s.placed[e] })
				s.run(in(rest)...)
				if s.found < len(rest)/4 {
					t.Errorf("got %d of the other %d files copied before they were opened", s.found, len(rest))
				}
			})
		}
	}
}

// inBlocks returns the files in blocks, which are in no order.
func inBlocks(files []*metadata.Entry, size int) (all []*metadata.Entry) {
	for _, n := range rand.New(rand.NewPCG(1, 6)).Perm(len(files) / size) {
		all = append(all, files[n*size:(n+1)*size]...)
	}
	return all
}

// Jobs that open all files have them copied ahead, in orders that look like those of a share, or of a job
// that leaves out files.
func TestFullEpochsHaveNoShares(t *testing.T) {
	for name, c := range map[string]struct {
		dirs, files int
		order       func([]*metadata.Entry) []*metadata.Entry
		found       float64
	}{
		"4 loaders":             {1, 4096, func(f []*metadata.Entry) []*metadata.Entry { return interleave(f, 4, 32) }, 0.9},
		"8 loaders":             {1, 4096, func(f []*metadata.Entry) []*metadata.Entry { return interleave(f, 8, 64) }, 0.8},
		"16 loaders":            {1, 8192, func(f []*metadata.Entry) []*metadata.Entry { return interleave(f, 16, 8) }, 0.9},
		"16 loaders, many dirs": {20, 400, func(f []*metadata.Entry) []*metadata.Entry { return interleave(f, 16, 32) }, 0.8},
		"blocks of 16":          {1, 4000, func(f []*metadata.Entry) []*metadata.Entry { return inBlocks(f, 16) }, 0.85},
		"blocks of 32":          {1, 4000, func(f []*metadata.Entry) []*metadata.Entry { return inBlocks(f, 32) }, 0.85},
		"few files in a dir":    {1000, 3, func(f []*metadata.Entry) []*metadata.Entry { return mixed(f, 1) }, 0.65},
		"in no order":           {1, 4000, func(f []*metadata.Entry) []*metadata.Entry { return mixed(f, 1) }, 0.65},
		"a look at 40 dirs": {41, 500, func(f []*metadata.Entry) (all []*metadata.Entry) {
			for d := range 40 {
				all = append(all, f[500*d:500*d+4]...)
			}
			return append(all, f[40*500:]...)
		}, 0.65},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShareJob(t, c.dirs, c.files, 100_000)
			job := c.order(s.files)
			s.run(job...)
			if got := float64(s.found) / float64(len(job)); got < c.found {
				t.Errorf("got %.3f of the files copied before they were opened, want %v", got, c.found)
			}
		})
	}
}

// Of two directories at a time, one job reads a share and another one all files.
func TestShareBesideAll(t *testing.T) {
	s := newShareJob(t, 2, 2000, 100_000)
	share, all := mixed(every(s.files[:2000], 1, 4), 1), mixed(s.files[2000:], 1)
	for i, e := range share {
		s.run(e)
		s.run(all[4*i : 4*i+4]...)
	}
	if got := s.copiedBeside(append(share, all...)); got > 25 {
		t.Errorf("got %d files copied beside those of the jobs", got)
	}
	if got := float64(s.found) / 2500; got < 0.6 {
		t.Errorf("got %.3f of the files copied before they were opened", got)
	}
}

// A look at files that are not in the share changes nothing: neither they have others copied, nor is the
// share forgotten.
func TestLookDuringShare(t *testing.T) {
	for _, c := range []struct{ dirs, files int }{{1, 4000}, {20, 200}} {
		for _, n := range []int{4, 8} {
			for _, shuffle := range []bool{false, true} {
				t.Run(fmt.Sprintf("1 of %d in %d of %d shuffled %v", n, c.dirs, c.files, shuffle), func(t *testing.T) {
					s := newShareJob(t, c.dirs, c.files, 100_000)
					job := every(s.files, n-1, n)
					if shuffle {
						job = mixed(job, 1)
					}
					s.run(job[:5]...)
					s.run(s.files[40])
					s.run(job[5 : len(job)/6]...)
					s.run(s.files[80])
					s.run(job[len(job)/6:]...)
					if got := float64(s.source) / float64(sizes(job)); got > 1.05 {
						t.Errorf("got %.3f times the bytes of the job", got)
					}
					if got := float64(s.found) / float64(len(job)); got < 0.68 {
						t.Errorf("got %.3f of the files copied before they were opened", got)
					}
				})
			}
		}
	}
}

// The first steps of a shuffled share may be multiples of more than n. What was opened before n was found
// counts as a part of the share.
func TestFirstSteps(t *testing.T) {
	s := newShareJob(t, 20, 200, 100_000)
	job := mixed(every(s.files, 7, 8), 1)
	s.run(job...)
	if got := float64(s.found) / float64(len(job)); got < 0.67 {
		t.Errorf("got %.3f of the files copied before they were opened", got)
	}
}

// Steps may be longer than the window in which opens are in order.
func TestLongSteps(t *testing.T) {
	s := newShareJob(t, 20, 400, 100_000)
	job := every(s.files, 29, 30)
	s.run(job...)
	if got := float64(s.found) / float64(len(job)); got < 0.75 || s.source > sizes(job) {
		t.Errorf("got %.3f of %d files copied before they were opened, and %d bytes from the source", got, len(job), s.source)
	}
}

// After a share was read, a look at other files does not have another share copied.
func TestLookAfterShare(t *testing.T) {
	s := newShareJob(t, 1, 4000, 100_000)
	s.run(mixed(every(s.files, 1, 4), 1)...)
	s.run(s.files[2006], s.files[3310], s.files[3302])
	if got, most := len(s.placed), 1100; got > most {
		t.Errorf("got %d files copied, want at most %d", got, most)
	}
}

// A job that opens each file twice leaves out others all the same.
func TestPassedByFilesOpenedTwice(t *testing.T) {
	s := newShareJob(t, 1, 2000, 100_000)
	var job []*metadata.Entry
	random := rand.New(rand.NewPCG(1, 9))
	for _, e := range s.files {
		if random.Float64() < 0.5 {
			job = append(job, e, e)
		}
	}
	s.run(job...)
	if got := float64(2*s.source) / float64(sizes(job)); got > 1.1 {
		t.Errorf("got %.3f times the bytes of the job", got)
	}
}

// Empty files, which need no copy, are not left out.
func TestEmptyFilesArePassed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := slowSource(t)
		full := 0
		rng := rand.New(rand.NewPCG(1, 3))
		for i := range 600 {
			size := 1000 * rng.IntN(2)
			full += size / 1000
			r.mem.Put(fmt.Sprintf("d/%03d", i), make([]byte, size))
		}
		_, err := r.names.List(r.ctx, r.entry("d"))
		r.check(err)
		for i := range 600 {
			_, err := r.read(fmt.Sprintf("d/%03d", i))
			r.check(err)
		}
		r.settled()
		if got := r.handler.Stats().Prefetched; got < int64(full)*3/4 {
			t.Errorf("got %d files copied before they were opened, want nearly %d", got, full)
		}
	})
}

// Many files that are not in the share are left out in several steps.
func TestManyFilesAreLeftOut(t *testing.T) {
	var names []string
	for i := range 10_000 {
		names = append(names, fmt.Sprintf("d/%06d", 2*i))
	}
	for i := range 1000 {
		names = append(names, fmt.Sprintf("d/%06d", 20_000+i))
	}
	s := newJobOn(t, names, 100_000)
	job, dir := mixed(every(s.files[10_000:], 1, 2), 1), s.files[0].Parent()
	most, before := 0, 0
	for _, e := range job {
		s.run(e)
		others := len(s.handler.scattered.subtrees[dir].others)
		most, before = max(most, others-before), others
	}
	if most != looksPerOpen || s.copiedBeside(job) > 0 || s.found < len(job)/4 {
		t.Errorf("got %d files left out at a time, %d others copied, and %d of %d copied before they were opened", most, s.copiedBeside(job), s.found, len(job))
	}
}

// Nodes that share their tiers read the parts of a dataset together: the share of one is no reason to leave
// out the others'.
func TestNoSharesWithPeers(t *testing.T) {
	s := newShareJob(t, 1, 2000, 100_000)
	s.handler.scattered.shares.off = true
	s.run(every(s.files, 1, 4)...)
	if got := len(s.placed); got < 1900 {
		t.Errorf("got %d files copied, want all", got)
	}
}

func TestNumber(t *testing.T) {
	for name, want := range map[string]int{
		"000123.jpg": 123, "n01440764_10026.JPEG": 10026, "123.mp4": 123, "scan.0042": 42, "b.00007.h5": 7, "clip.mp4": 4,
		"README": -1, "": -1, "99999999999999999999.bin": -1,
	} {
		n, ok := number(name)
		if !ok {
			n = -1
		}
		if n != want {
			t.Errorf("%q: got %d, want %d", name, n, want)
		}
	}
}
