package placement

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/limit"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// slowSource is a remote file system with the speed of the simulated PFS of the demo.
func slowSource(t testing.TB) *rig {
	return newRig(t, rigOptions{
		quotas: []int64{1 << 40}, workers: 32, remote: true,
		limits: limit.Config{Latency: 2 * time.Millisecond, BytesPerSecond: 200e6},
	})
}

// copied returns the bytes that were read from the source.
func (r *rig) copied() int64 { return r.levels.Source().Stats().Bytes }

// own returns the size of the first n files.
func (s *shuffled) own(n int) (bytes int64) {
	for _, data := range s.data[:n] {
		bytes += int64(len(data))
	}
	return bytes
}

// What is prefetched from a file system for a job that reads a random part of the files is in
// proportion to what it has opened, with many seeds and shapes of datasets, and if each file is
// prefetched at once. In a full epoch, most files are.
func TestPrefetchIsInProportion(t *testing.T) {
	for _, c := range []struct{ dirs, files int }{{1, 2000}, {20, 100}, {400, 5}} {
		t.Run(fmt.Sprintf("%d of %d", c.dirs, c.files), func(t *testing.T) {
			r := newRig(t, rigOptions{quotas: []int64{1 << 40}, idle: true})
			s := newShuffled(r, c.dirs, c.files, 1000)
			entries := make([]*metadata.Entry, len(s.names))
			for i, name := range s.names {
				entries[i] = s.entry(name)
			}
			for seed := range uint64(40) {
				rand.New(rand.NewPCG(seed, 1)).Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
				p := newScattered(r.names, waste, func(int64, int64, int64) bool { return true })
				found := 0 // opened files that were prefetched
				placed := make(map[*metadata.Entry]bool)
				var own, source int64
				place := func(e *metadata.Entry) {
					placed[e] = true
					source += e.Size()
				}
				for i, e := range entries {
					own += e.Size()
					missing := !placed[e]
					if missing {
						place(e)
					} else {
						found++
					}
					at, listed := r.names.Index(e)
					p.shares.opened(e, at, listed)
					p.opened(e, false, missing)
					for next := p.next(); next != nil; next = p.next() {
						if next.IsDir() {
							r.check(r.names.ListAhead(t.Context(), next))
							p.listed(next)
							continue
						}
						place(next)
						p.settle(next, next, true)
					}
					percent, most := 100*(i+1)/len(entries), 2.0
					if percent <= 10 {
						most = 1.25
					}
					if got := float64(source) / float64(own); percent <= 30 && got > most {
						t.Fatalf("seed %d, after %d%%: got %.3f times the bytes of the job, want at most %v", seed, percent, got, most)
					}
				}
				if found < len(entries)/2 || len(placed) != len(entries) {
					t.Errorf("seed %d: %d opens found their file prefetched, and %d files were placed", seed, found, len(placed))
				}
			}
		})
	}
}

// The same with workers, and nothing listed at first or everything: no file is read twice, and what
// the predictor of opens in order adds counts as well.
func TestRandomSubsets(t *testing.T) {
	for _, c := range []struct {
		dirs, files int
		listed      bool
	}{{1, 1000, false}, {20, 50, false}, {200, 5, false}, {20, 50, true}, {200, 5, true}} {
		for percent, most := range map[int]float64{10: 1.25, 30: 2} {
			t.Run(fmt.Sprintf("%d of %d listed %v %d%%", c.dirs, c.files, c.listed, percent), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					r := slowSource(t)
					s := newUnlisted(r, c.dirs, c.files, 10_000, 1)
					if c.listed {
						s.list(c.dirs)
					}
					n := len(s.names) * percent / 100
					s.epoch(4, n)
					s.settled()
					if got := float64(r.copied()) / float64(s.own(n)); got > most || got < 1 {
						t.Errorf("got %.3f times the bytes of the job, want 1 to %v", got, most)
					}
				})
			})
		}
	}
}

// list lists the directories.
func (s *shuffled) list(dirs int) {
	for d := range dirs {
		_, err := s.rig.names.List(s.ctx, s.entry(fmt.Sprintf("d%04d", d)))
		s.check(err)
	}
}

// In a full epoch over a file system most files are prefetched, and each byte is read once. In the
// next one nothing is requested at all.
func TestFullEpochOfFileSystem(t *testing.T) {
	for _, c := range []struct{ dirs, files int }{{1, 500}, {20, 25}, {100, 5}} {
		t.Run(fmt.Sprintf("%d of %d", c.dirs, c.files), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := slowSource(t)
				s := newUnlisted(r, c.dirs, c.files, 90_000, 1)
				s.epoch(4, len(s.names))
				s.settled()
				st := r.handler.Stats()
				if got, want := r.copied(), s.own(len(s.names)); got != want {
					t.Errorf("got %d bytes from the source, want those of the dataset, %d", got, want)
				}
				if st.Placed != 500 || st.Prefetched < 200 {
					t.Errorf("got %d files placed, %d of them prefetched; want 500, and at least 200", st.Placed, st.Prefetched)
				}
				before := r.levels.Source().Stats().SourceCounters
				for range 2 {
					s.epoch(4, len(s.names))
					time.Sleep(calmAfter)
				}
				if got := r.levels.Source().Stats().SourceCounters; got != before {
					t.Errorf("operations in later epochs: got %+v, want %+v", got, before)
				}
			})
		})
	}
}

// The attributes of a predicted file are requested once: a lookup of the job that follows makes no
// request.
func TestPredictedFilesAreKnown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := slowSource(t)
		s := newUnlisted(r, 1, 1000, 1000, 1)
		s.epoch(4, 500)
		s.settled() // more than a third was opened
		if got := r.handler.Stats().Placed; got != 1000 {
			t.Fatalf("got %d files placed, want all", got)
		}
		before := r.levels.Source().Stats().Stats
		s.epoch(4, 1000)
		if got := r.levels.Source().Stats().Stats - before; got != 0 {
			t.Errorf("requests for attributes: got %d, want none", got)
		}
	})
}

// A job that reads the files of train in no order causes nothing of val to be read or listed,
// whether they are two directories or have directories of classes.
func TestOtherSplitIsNotPrefetched(t *testing.T) {
	for _, classes := range []int{0, 20} {
		t.Run(fmt.Sprint(classes), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := slowSource(t)
				var names []string
				for i := range 1000 {
					for _, split := range []string{"train", "val"} {
						name := path.Join(split, fmt.Sprintf("%04d", i))
						if classes > 0 {
							name = path.Join(split, fmt.Sprintf("c%02d", i%classes), fmt.Sprintf("%04d", i))
						}
						r.mem.Put(name, make([]byte, 1000))
						if split == "train" {
							names = append(names, name)
						}
					}
				}
				rand.New(rand.NewPCG(1, 1)).Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
				for _, name := range names[:600] {
					_, err := r.read(name)
					r.check(err)
				}
				r.settled()
				st := r.handler.Stats()
				if st.Placed != 1000 || st.Prefetched < 300 {
					t.Errorf("got %d files placed, %d of them prefetched; want 1000, and at least 300", st.Placed, st.Prefetched)
				}
				if _, listed := r.names.Cached(r.entry("val")); listed {
					t.Error("val was listed")
				}
			})
		})
	}
}

// A job reads one directory after the other, each in no order. First only files of directories with
// which the job has begun are prefetched.
func TestDirectoryAfterDirectory(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const dirs, files, read = 15, 100, 10
		r := slowSource(t)
		s := newUnlisted(r, dirs, files, 1000, 1)
		for d := range read {
			before := r.handler.Stats()
			for i := range files {
				_, err := r.read(fmt.Sprintf("d%04d/%05d", d, i*77%files))
				r.check(err)
			}
			r.settled()
			st := r.handler.Stats()
			if got := st.Prefetched - before.Prefetched; d < minTouched-1 && (got < files/4 || st.Placed != int64(d+1)*files) {
				t.Errorf("directory %d: got %d files prefetched and %d placed, want at least %d, and %d", d, got, st.Placed, files/4, (d+1)*files)
			}
		}
		if got := r.handler.Stats().Prefetched; got < read*files/2 {
			t.Errorf("got %d files prefetched, want at least %d", got, read*files/2)
		}
		if got, want := r.copied(), s.own(len(s.names)); got > want {
			t.Errorf("got %d bytes from the source, want at most %d", got, want)
		}
	})
}

// Beside a directory of which a job has read a third in no order, few opens in another one are enough.
func TestNextDirectory(t *testing.T) {
	r := newRig(t, rigOptions{quotas: []int64{1 << 40}, idle: true})
	newShuffled(r, 3, 100, 1000)
	p := newScattered(r.names, requestWaste, func(int64, int64, int64) bool { return true })
	read := func(dir, files int) (predicted int) {
		for i := range files {
			p.opened(r.entry(fmt.Sprintf("d%04d/%05d", dir, i*77%100)), false, true)
			for e := p.next(); e != nil; e = p.next() {
				predicted++
			}
		}
		return predicted
	}
	if got := read(2, fewOpens+1); got != 0 {
		t.Errorf("got %d files of the first directory predicted, want none", got)
	}
	read(0, minOpens+34)
	if got := read(1, fewOpens+1); got == 0 {
		t.Error("got no files of the next directory predicted")
	}
}

// A large file whose copy is not started, since there is no room for it, is not predicted again.
func TestLargeFilesArePredictedOnce(t *testing.T) {
	const files = 60
	r := newRig(t, rigOptions{quotas: []int64{1 << 40}, idle: true})
	data := make([]byte, maxScattered+1)
	for i := range files {
		r.mem.Put(fmt.Sprintf("d/%02d", i), data)
	}
	_, err := r.names.List(t.Context(), r.entry("d"))
	r.check(err)
	p := newScattered(r.names, requestWaste, func(int64, int64, int64) bool { return true })
	predicted := make(map[*metadata.Entry]int)
	for i := range files * 2 / 3 {
		p.opened(r.entry(fmt.Sprintf("d/%02d", i*7%files)), false, true)
		for e := p.next(); e != nil; e = p.next() {
			if predicted[e]++; predicted[e] > 1 {
				t.Fatalf("%s was predicted again", e.Path())
			}
			p.settle(e, e, false)
		}
	}
	if len(predicted) == 0 {
		t.Error("no file was predicted")
	}
}

// Two jobs at a time read two datasets in no order. Both are prefetched, each in proportion to what
// its job opens.
func TestTwoShuffledJobs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := slowSource(t)
		s := newUnlisted(r, 2, 1000, 1000, 1)
		opened := make([]int, 2)
		for _, name := range s.names { // the first job reads all, the second one a tenth
			d := int(name[4] - '0')
			if opened[d]++; d == 0 || opened[d] <= 100 {
				_, err := r.read(name)
				r.check(err)
			}
		}
		r.settled()
		placed := make([]int, 2)
		for i, name := range s.names {
			if r.entry(name).Level() != tiers.AtSource {
				placed[s.names[i][4]-'0']++
			}
		}
		if placed[0] != 1000 || placed[1] < 100 || placed[1] > 125 {
			t.Errorf("got %v files placed, want 1000, and 100 to 125", placed)
		}
	})
}

// hugeDirs is a remote file system on which a directory has the size of a million names.
type hugeDirs struct{ recordedNamer }

func (h hugeDirs) Stat(ctx context.Context, name string) (drivers.Info, error) {
	info, err := h.recordedNamer.Stat(ctx, name)
	if err == nil && info.IsDir() {
		info.Size = 32 << 20
	}
	return info, err
}

// A directory of a million names is not listed for a job that reads a hundred of its files.
func TestHugeDirectoryIsNotListed(t *testing.T) {
	for _, read := range []int{100, 1100} {
		t.Run(fmt.Sprint(read), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				mem := drivertest.NewMem(0)
				over := hugeDirs{recordedNamer{newRecorder(t, mem), drivertest.NewNamer(mem)}}
				r := newRig(t, rigOptions{quotas: []int64{1 << 40}, over: over})
				for i := range read {
					mem.Put(fmt.Sprintf("d/%05d", i), []byte("x"))
				}
				for i := range read {
					_, err := r.read(fmt.Sprintf("d/%05d", (i*79)%read))
					r.check(err)
				}
				synctest.Wait()
				if _, listed := r.names.Cached(r.entry("d")); listed != (read > 1000) {
					t.Errorf("listed after %d files: %v", read, listed)
				}
			})
		})
	}
}

// The listing of one directory hangs, and requests for the attributes of names in another one.
// Files of the other directories are prefetched, and read.
func TestPrefetchBesideHungDirectories(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const dirs, files = 20, 50
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, workers: 4, remote: true})
		s := newUnlisted(r, dirs, files, 1000, 1)
		var resolved atomic.Bool
		r.from.Add(drivertest.Rule{Op: drivertest.OpReadDir, Name: "d0003", Hang: true})
		r.from.Add(drivertest.Rule{Op: drivertest.OpStat, Name: "d0005/*", Hang: true, Match: func(string) bool { return resolved.Load() }})
		for _, name := range s.names {
			if path.Dir(name) == "d0005" {
				r.entry(name) // the job has looked these up before
			}
		}
		resolved.Store(true)
		n := 0
		for i, name := range s.names {
			if path.Dir(name) != "d0005" {
				s.wantFile(name, s.data[i])
				time.Sleep(time.Millisecond)
				n++
			}
		}
		r.settled()
		if got := r.handler.Stats().Prefetched; got < int64(n)/4 {
			t.Errorf("got %d of %d files prefetched, want at least %d", got, n, n/4)
		}
		r.from.Release()
	})
}

// Random opens in a directory do not look like opens in order to the predictor of these.
func TestNoOrderIsNotOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, idle: true})
		s := newShuffled(r, 20, 100, 100)
		p, ahead := r.handler.inOrder, 0
		for _, name := range s.names[:600] {
			e := s.entry(name)
			i, _ := r.names.Index(e)
			p.opened(opening{e, i, true, r.handler.scattered.shares.opened(e, i, true), false, false})
			for p.next() != nil {
				ahead++
			}
		}
		if ahead > 60 {
			t.Errorf("got %d predictions for 600 opens in no order, want at most 60", ahead)
		}
	})
}

// BenchmarkRandomSubset reads a random part of 2,004 files, four of which are large, through a
// handler, with four readers, from a source of 2 ms and 200 MB/s, of which nothing is listed. It
// reports the bytes from the source, as a multiple of those of the job, and the time, as a multiple
// of that of four readers of the source.
func BenchmarkRandomSubset(b *testing.B) {
	var (
		percents = drivertest.Size([]int{1, 5, 10, 20, 30, 50, 100}, []int{50})
		dirs     = drivertest.Size(20, 4)
		small    = drivertest.Size(100_000, 10_000) // bytes
		large    = drivertest.Size(32<<20, 5<<20)   // bytes
	)
	for _, percent := range percents {
		b.Run(fmt.Sprintf("%d%%", percent), func(b *testing.B) {
			var bytes, own int64
			var direct, took time.Duration
			for i := range b.N {
				r := slowSource(b)
				s := newUnlisted(r, dirs, 100, small, uint64(i))
				for l := range 4 {
					name := fmt.Sprintf("large/%d", l)
					s.names, s.data = append(s.names, name), append(s.data, make([]byte, large))
					r.mem.Put(name, s.data[len(s.data)-1])
				}
				rng := rand.New(rand.NewPCG(uint64(i), 3))
				rng.Shuffle(len(s.names), func(i, j int) {
					s.names[i], s.names[j] = s.names[j], s.names[i]
					s.data[i], s.data[j] = s.data[j], s.data[i]
				})
				n := len(s.names) * percent / 100
				start := time.Now()
				s.direct(4, n)
				direct += time.Since(start)
				before := r.copied()
				start = time.Now()
				s.epoch(4, n)
				took += time.Since(start)
				s.settled()
				bytes, own = bytes+r.copied()-before, own+s.own(n)
				r.end()
			}
			b.ReportMetric(float64(bytes)/float64(own), "source/own")
			b.ReportMetric(took.Seconds()/direct.Seconds(), "time/direct")
		})
	}
}

// direct reads the first n files from the source, with some readers.
func (s *shuffled) direct(readers, n int) {
	var all sync.WaitGroup
	source := s.levels.Source()
	for reader := range readers {
		all.Go(func() {
			buf := make([]byte, 1<<20)
			for i := reader; i < n; i += readers {
				_, err := source.Stat(s.ctx, s.names[i])
				s.check(err)
				obj, err := source.Open(s.ctx, s.names[i])
				s.check(err)
				for off := 0; off < len(s.data[i]); off += len(buf) {
					obj.ReadAt(s.ctx, buf[:min(len(buf), len(s.data[i])-off)], int64(off))
				}
				obj.Close()
			}
		})
	}
	all.Wait()
}
