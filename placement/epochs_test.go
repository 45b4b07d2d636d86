package placement

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// An epochRig records opens, one each millisecond.
type epochRig struct {
	epochs
	rand *rand.Rand
}

func newEpochRig() *epochRig {
	r := &epochRig{rand: rand.New(rand.NewPCG(1, 2))}
	r.totals = func() totals { return totals{at: time.Now()} }
	return r
}

// files returns the IDs from a to b.
func files(a, b uint64) (ids []uint64) {
	for id := a; id <= b; id++ {
		ids = append(ids, id)
	}
	return ids
}

// shuffled returns ids in a random order.
func (r *epochRig) shuffled(ids []uint64) []uint64 {
	ids = slices.Clone(ids)
	r.rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	return ids
}

func (r *epochRig) open(ids ...uint64) {
	for _, id := range ids {
		time.Sleep(time.Millisecond)
		r.opened(id, false)
	}
}

// twice returns ids, each of which comes again after some others, as when workers read the header
// of a file and then the file.
func twice(ids []uint64, after int) (all []uint64) {
	for i, id := range ids {
		all = append(all, id)
		if i >= after {
			all = append(all, ids[i-after])
		}
	}
	return append(all, ids[len(ids)-after:]...)
}

// interleaved returns the elements of a and b in turn.
func interleaved(a, b []uint64) (all []uint64) {
	for i := range a {
		all = append(all, a[i], b[i])
	}
	return all
}

// An epoch ends when the files that were opened in it are opened again, in any order.
func TestEpochs(t *testing.T) {
	const n = 5000
	for name, epoch := range map[string]func(r *epochRig) []uint64{
		"in order":      func(*epochRig) []uint64 { return files(1, n) },
		"shuffled":      func(r *epochRig) []uint64 { return r.shuffled(files(1, n)) },
		"opened twice":  func(r *epochRig) []uint64 { return twice(r.shuffled(files(1, n)), 16) },
		"validation":    func(r *epochRig) []uint64 { return append(r.shuffled(files(1, n-500)), files(n-499, n)...) },
		"eight files":   func(*epochRig) []uint64 { return files(1, 8) },
		"two read each": func(r *epochRig) []uint64 { ids := r.shuffled(files(1, n)); return interleaved(ids, ids) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newEpochRig()
				var want []time.Duration
				var count int64
				for range 4 {
					began := time.Now()
					ids := epoch(r)
					count = int64(len(slices.Compact(slices.Sorted(slices.Values(ids)))))
					r.open(ids...)
					want = append(want, time.Since(began))
				}
				got, ended := r.list()
				if len(got) != len(want) || ended != 3 {
					t.Fatalf("got %d epochs, of which %d ended; want %d and 3", len(got), ended, len(want))
				}
				for i, e := range got {
					// The last file of an epoch may be among the first of the next one.
					near := max(e.Took-want[i], want[i]-e.Took) <= 30*time.Millisecond
					if e.Files != count || e.Mixed || e.Ended != (i < 3) || !near {
						t.Errorf("epoch %d: got %+v; want %d files, not mixed, and %v", i+1, e, count, want[i])
					}
				}
			})
		})
	}
}

// If several jobs read the dataset at once, or one reads at random, the epochs are mixed.
func TestEpochsThatAreMixed(t *testing.T) {
	const n = 5000
	for name, opens := range map[string]func(r *epochRig) []uint64{
		"two shuffled jobs": func(r *epochRig) []uint64 {
			return interleaved(r.shuffled(files(1, n)), r.shuffled(files(1, n)))
		},
		"two jobs in order, one ahead": func(*epochRig) []uint64 {
			return interleaved(append(files(n/4, n), files(1, n/4-1)...), files(1, n))
		},
		"with replacement": func(r *epochRig) (ids []uint64) {
			for range n {
				ids = append(ids, 1+r.rand.Uint64N(n))
			}
			return ids
		},
		"another half each time": func(r *epochRig) []uint64 { return r.shuffled(files(1, n))[:n/2] },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newEpochRig()
				for range 6 {
					r.open(opens(r)...)
				}
				got, ended := r.list()
				if ended > 0 || len(got) == 0 {
					t.Errorf("got %d epochs that are not mixed; want none of %d", ended, len(got))
				}
			})
		})
	}
}

// A job that begins again ends the epoch. Another job begins an epoch after a pause. Reads that
// continue are no opens.
func TestEpochsOfOtherJobs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newEpochRig()
		r.open(files(1, 400)...) // aborted
		r.open(files(1, 1000)...)
		time.Sleep(2 * maxPause)
		r.open(files(2001, 2100)...)
		for range 10 {
			for _, id := range files(2001, 2100) {
				r.opened(id, true)
			}
		}
		var got []int64
		epochs, _ := r.list()
		for _, e := range epochs {
			got = append(got, e.Files)
		}
		if want := []int64{400, 1000, 100}; !slices.Equal(got, want) {
			t.Errorf("files of the epochs: got %v, want %v", got, want)
		}
		if got := epochs[1].Took; got > 2*time.Second {
			t.Errorf("the pause belongs to the epoch, which took %v", got)
		}
	})
}

// Fewer than minFiles files are no epoch. The list and the memory are bounded.
func TestEpochsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newEpochRig()
		for range 10 {
			r.open(files(1, minFiles-1)...)
		}
		if got, _ := r.list(); len(got) > 0 {
			t.Errorf("got %v of too few files", got)
		}
		for i := range uint64(2*maxEpochs + 1) {
			ids := files(i*10_000+10_000, i*10_000+10_100) // IDs of other versions of the files
			r.open(append(ids, ids...)...)
		}
		if got, _ := r.list(); len(got) > maxEpochs+1 {
			t.Errorf("got %d epochs, want %d at most", len(got), maxEpochs+1)
		}
		chunks := 0
		for _, c := range r.numbers {
			if c != nil {
				chunks++
			}
		}
		if chunks > 6 {
			t.Errorf("%d chunks are kept", chunks)
		}
	})
}

func BenchmarkEpochs(b *testing.B) {
	r := newEpochRig()
	ids := r.shuffled(files(1, drivertest.Size[uint64](1<<20, 1<<10)))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r.opened(ids[i%len(ids)], false)
	}
}
