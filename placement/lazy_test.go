package placement

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/tiers"
)

// lazyHandles is Config.IdleHandles of a rig that may have 4 lazy fills.
const lazyHandles = 32

// wantLazy checks the number of lazy fills, and what they have copied. It must be called in a bubble.
func (r *rig) wantLazy(when string, files, units int64) {
	r.t.Helper()
	synctest.Wait() // a block that was read may not have been copied yet
	if got := r.handler.Stats(); got.Lazy != files || got.LazyBytes != units*unitSize {
		r.t.Errorf("%s: got %d lazy fills with %d bytes, want %d with %d units", when, got.Lazy, got.LazyBytes, files, units)
	}
}

// idle waits until nothing is copied, or about to be copied. It must be called in a bubble.
func (r *rig) idle() {
	r.t.Helper()
	synctest.Wait() // a reader that wants the file has others ask for the rest
	r.settled()
	synctest.Wait()
}

// wantPart opens a file, and checks 100 bytes at an offset.
func (r *rig) wantPart(name string, off int, data []byte) {
	r.t.Helper()
	obj := r.open(name)
	defer obj.Close()
	r.wantAt(obj, off, 100, data)
}

// wantRead checks how many bytes of a file were read at the source.
func (r *rig) wantRead(name string, want int64) {
	r.t.Helper()
	var got int64
	for _, s := range r.source.spans() {
		if s.name == name {
			got += int64(s.n)
		}
	}
	if got != want {
		r.t.Errorf("bytes of %s read at the source: got %d, want %d", name, got, want)
	}
}

// taken returns the bytes of the first tier that copies take, with those in flight.
func (r *rig) taken() int64 {
	_, taken := r.levels.Tier(1).Room()
	return taken
}

// drop removes the copies at and below a path.
func (r *rig) drop(path string) (last DropReport) {
	r.t.Helper()
	if err := r.handler.Drop(r.t.Context(), []string{path}, func(d DropReport) { last = d }); err != nil {
		r.t.Error(err)
	}
	return last
}

// bothSources runs a test in a bubble with the kinds of sources for which fills differ. The source has a file f of
// size bytes, which are data.
func bothSources(t *testing.T, size int, f func(t *testing.T, r *rig, data []byte)) {
	for name, bucket := range map[string]*drivertest.Bucket{"files": nil, "objects": {Length: 8 << 20}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, rigOptions{quotas: []int64{1 << 40}, handles: lazyHandles, bucket: bucket})
				f(t, r, r.put("f", size))
			})
		})
	}
}

// Of a large file, what a reader asks for is fetched, once, and nothing else.
func TestPartOfLargeFile(t *testing.T) {
	bothSources(t, 20<<20, func(t *testing.T, r *rig, data []byte) {
		beginning := 0
		if r.bucket != nil {
			beginning = 1 // its open finds out whether the source still has the version
		}
		for range 3 {
			obj := r.open("f")
			r.wantAt(obj, 19<<20+17, 1000, data)
			r.wantAt(obj, 10<<20-10, 20, data) // in two units
			r.wantAt(obj, 11<<20, 1000, data)  // follows
			obj.Close()
			time.Sleep(time.Minute)
			r.idle()
			r.wantRead("f", int64(4+beginning)*unitSize)
			r.wantLazy("after some reads", 1, int64(4+beginning))
		}
		if got := r.taken(); got > 8<<20 {
			t.Errorf("%d bytes of the tier are taken, want at most 8 MiB", got)
		}
		f, filling := r.handler.Filling(r.entry("f"))
		if want := (Filling{Copied: int64(4+beginning) * unitSize, Lazy: true}); !filling || f != want {
			t.Errorf("got %+v, %t; want %+v", f, filling, want)
		}
	})
}

// requestedUnits returns the requests to the source in the order of their offsets, in units: from the first one up to,
// but not including, the last one.
func (r *rig) requestedUnits() (all [][2]int) {
	for _, s := range r.source.spans() {
		all = append(all, [2]int{int(s.off / unitSize), units(s.off + int64(s.n))})
	}
	slices.SortFunc(all, func(a, b [2]int) int { return a[0] - b[0] })
	return all
}

// wantRequests fails the test if the requests to the source were not those, which are as requestedUnits returns them.
func (r *rig) wantRequests(want [][2]int) {
	r.t.Helper()
	if got := r.requestedUnits(); !slices.Equal(got, want) {
		r.t.Errorf("requests for units: got %d, want %d", got, want)
	}
}

// What a reader gets of a large file is twice as much with each request, up to a block, as long as it goes on in
// sequence. A request serves one range of the source.
func TestRequestsInSequence(t *testing.T) {
	want := map[bool][][2]int{
		false: {{0, 1}, {1, 3}, {3, 7}, {7, 8}, {8, 15}, {15, 16}, {16, 23}, {23, 24}, {24, 31}, {32, 33}, {33, 40}, {40, 41}, {478, 479}, {479, 480}, {480, 481}},
		true:  {{0, 1}, {1, 3}, {3, 7}, {7, 15}, {15, 23}, {23, 31}, {32, 33}, {33, 41}, {478, 479}, {479, 481}},
	}
	bothSources(t, 60<<20+1, func(t *testing.T, r *rig, data []byte) {
		obj := r.open("f")
		defer obj.Close()
		for off := 0; off < 3<<20; off += 64 << 10 {
			r.wantAt(obj, off, 64<<10, data)
		}
		r.wantAt(obj, 32*unitSize, 4096, data) // units are left out
		r.wantAt(obj, 33*unitSize, 4096, data)
		for off := 478 * unitSize; off < len(data); off += 64 << 10 {
			r.wantAt(obj, off, min(64<<10, len(data)-off), data)
		}
		r.idle()
		r.wantRequests(want[r.bucket != nil])
	})
}

// A reader of samples gets each with one request, from the third one on, whatever it reads now and then.
func TestSamplesOfLargeFile(t *testing.T) {
	bothSources(t, 60<<20, func(t *testing.T, r *rig, data []byte) {
		obj := r.open("f")
		defer obj.Close()
		for _, u := range []int{80, 160, 240, 320, 440} {
			for off := range 8 {
				r.wantAt(obj, u*unitSize+off<<16, 64<<10, data)
			}
			r.wantAt(obj, 400*unitSize, 4096, data)
		}
		r.idle()
		want := [][2]int{{80, 81}, {81, 83}, {83, 87}, {160, 161}, {161, 163}, {163, 167}, {240, 244}, {320, 324}, {400, 401}, {440, 444}}
		if r.bucket != nil {
			want = slices.Insert(want, 0, [2]int{0, 1})
		}
		r.wantRequests(want)
	})
}

// The typical run of reads is that of at least half of them.
func TestTypicalRun(t *testing.T) {
	const size = 10 << 30
	for name, c := range map[string]struct {
		runs []int64 // their lengths
		want int64
	}{
		"none":                  {nil, 0},
		"one":                   {[]int64{1000}, 0},
		"two":                   {[]int64{1000, 2000}, 1000},
		"three":                 {[]int64{1000, 300, 2000}, 1000},
		"after a header":        {[]int64{10, 1000, 1000}, 1000},
		"with an index between": {[]int64{1000, 10, 1000, 10, 1000, 10, 1000, 10}, 10},
		"with an index":         {[]int64{1000, 1000, 10, 1000, 1000, 10}, 1000},
		"beside a long one":     {[]int64{10, 1 << 30, 10}, 10},
		"the latest seven":      {[]int64{10, 10, 10, 10, 10, 10, 10, 10, 20, 20, 20, 20, 20}, 20},
	} {
		t.Run(name, func(t *testing.T) {
			i := newInterest(size)
			for at, n := range c.runs {
				off := int64(at) * (size / 20)
				i.record(off, n/2, blocks(size))
				if expected, _, _ := i.record(off+n/2, n-n/2, blocks(size)); expected != n {
					t.Errorf("a reader of %d bytes is expected to read %d more", n, expected)
				}
			}
			if expected, _, _ := i.record(size/2+size/4, 1, blocks(size)); expected != c.want {
				t.Errorf("%d bytes are expected after runs of %d, want %d", expected, c.runs, c.want)
			}
		})
	}
}

// A random read of a large file that is copied as a whole fetches the units that it asks for, at once. A reader that
// goes on gets the rest of the block, and whole blocks after that, as do the workers.
func TestRandomReadsOfWantedFile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, idle: true})
		data := r.put("f", 60<<20)
		r.wantWhole("f")
		obj := r.open("f")
		defer obj.Close()
		for u := 300; u < 306; u++ {
			r.wantAt(obj, u*unitSize, 4096, data)
		}
		r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Delay: time.Second})
		began := time.Now()
		r.wantAt(obj, 420*unitSize+100, 2<<20, data)
		if got := time.Since(began); got != time.Second {
			t.Errorf("the read took %s, want 1s", got)
		}
		r.from.Clear()
		for _, u := range []int{80, 160, 240, 344} { // samples
			for off := range 8 {
				r.wantAt(obj, u*unitSize+off<<16, 64<<10, data)
			}
		}
		for _, u := range []int{381, 380} { // which have overtaken each other
			r.wantAt(obj, u*unitSize, 4096, data)
		}
		want := [][2]int{{0, 8}, {80, 81}, {81, 88}, {160, 164}, {240, 244}, {300, 301}, {301, 304}, {304, 312}, {344, 348}, {380, 381}, {381, 384}, {384, 385}, {420, 424}, {424, 432}, {432, 437}}
		r.wantRequests(want)
		r.running.Go(func() { r.handler.Run(r.ctx) })
		r.eventually("the file is copied", func() bool { return r.entry("f").Level() == 1 })
		for b := 1; b < 60; b++ {
			if !slices.Contains([]int{10, 20, 30, 37, 38, 43, 47, 48, 52, 53, 54}, b) {
				want = append(want, [2]int{8 * b, 8*b + 8})
			}
		}
		want = append(want, [][2]int{{164, 168}, {244, 248}, {296, 300}, {348, 352}, {376, 380}, {385, 392}, {416, 420}, {437, 440}}...)
		slices.SortFunc(want, func(a, b [2]int) int { return a[0] - b[0] })
		r.wantRequests(want)
		r.wantFile("f", data)
	})
}

// A random read of a file that is not large fetches the block.
func TestRandomReadOfSmallFile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, idle: true})
		data := r.put("f", lazyFrom)
		obj := r.open("f")
		defer obj.Close()
		r.wantAt(obj, 6<<20+5, 100, data)
		r.wantRequests([][2]int{{0, 8}, {48, 56}})
		r.running.Go(func() { r.handler.Run(r.ctx) })
		r.settled()
	})
}

// The requests that one read of a large file needs are made at once. What is present is not requested.
func TestRequestsOfOneRead(t *testing.T) {
	bothSources(t, 60<<20, func(t *testing.T, r *rig, data []byte) {
		obj := r.open("f")
		defer obj.Close()
		r.wantAt(obj, 31<<20+600_000, 1000, data) // unit 252
		r.wantAt(obj, 0, 1, data)
		r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Delay: time.Second})
		began := time.Now()
		r.wantAt(obj, 31<<20+300_000, 2<<20, data)
		if got := time.Since(began); got != time.Second {
			t.Errorf("the read took %s, want 1s", got)
		}
		r.idle()
		want := [][2]int{{0, 1}, {250, 252}, {252, 253}, {253, 256}, {256, 264}, {264, 267}}
		if r.bucket != nil {
			want = [][2]int{{0, 1}, {250, 252}, {252, 253}, {253, 256}, {256, 267}}
		}
		r.wantRequests(want)
		before := r.to[0].Count(drivertest.OpReadBack)
		r.wantAt(obj, 32<<20, 300_000, data)
		if got := r.to[0].Count(drivertest.OpReadBack) - before; got != 1 {
			t.Errorf("three units that are present were read in %d reads, want 1", got)
		}
	})
}

// If one of the requests that a read of a large file needs fails, the reader gets its error, or continues at the
// source.
func TestOneRequestOfReadFails(t *testing.T) {
	for failed := range 2 {
		bothSources(t, 60<<20, func(t *testing.T, r *rig, data []byte) {
			obj := r.open("f")
			defer obj.Close()
			r.wantAt(obj, 8<<20+1_300_000, 1000, data)
			r.from.Add(drivertest.Rule{Op: drivertest.OpRead, After: failed, Times: 1, Err: syscall.EIO})
			got := make([]byte, 1<<20)
			err := readAt(t.Context(), obj, got, 8<<20+900_000)
			if err == nil && !bytes.Equal(got, data[8<<20+900_000:][:1<<20]) || err != nil && !errors.Is(err, syscall.EIO) {
				t.Errorf("got %v, or wrong bytes; want no error or EIO", err)
			}
			r.idle()
			r.wantLazy("after an error", 0, 0)
			r.wantAt(obj, 40<<20, 1000, data)
		})
	}
}

// When a file of which some parts are present is copied as a whole, what is absent of each block is requested, and
// nothing else. A reader waits for what it needs of a block at once.
func TestRestOfParts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, handles: lazyHandles, workers: 1})
		data := r.put("f", 9<<20)
		obj := r.open("f")
		defer obj.Close()
		for _, u := range []int{0, 3, 4, 11, 13, 15, 70, 71} {
			r.wantAt(obj, u*unitSize, 1000, data)
		}
		r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Delay: time.Second})
		r.handler.wantWhole(r.entry("f"), (*fill).want)
		synctest.Wait() // the worker copies the beginning
		began := time.Now()
		r.wantAt(obj, 8*unitSize+5, 1<<20-5, data)
		if got := time.Since(began); got != time.Second {
			t.Errorf("the read took %s, want 1s", got)
		}
		r.eventually("the file is copied", func() bool { return r.entry("f").Level() == 1 })
		want := [][2]int{{0, 1}, {1, 3}, {3, 4}, {4, 5}, {5, 8}, {8, 11}, {11, 12}, {12, 13}, {13, 14}, {14, 15}, {15, 16}}
		for b := 2; b < 8; b++ {
			want = append(want, [2]int{8 * b, 8*b + 8})
		}
		want = append(want, [][2]int{{64, 70}, {70, 71}, {71, 72}}...)
		r.wantRequests(want)
		r.wantFile("f", data)
	})
}

// A large file is copied as a whole when a reader goes through a part of it, when readers have asked for an
// eighth of it, and when it is placed on request or planned. Each byte is read at the source once.
func TestWantedFile(t *testing.T) {
	const size = 12 << 20
	for name, want := range map[string]func(r *rig, obj drivers.Object, data []byte){
		"from the beginning": func(r *rig, obj drivers.Object, data []byte) {
			for off := 0; off < wantedRun; off += 128 << 10 {
				r.wantAt(obj, off, 128<<10, data)
			}
		},
		"from the middle": func(r *rig, obj drivers.Object, data []byte) {
			for off := 7<<20 + 5; off < 7<<20+5+wantedRun; off += 128 << 10 {
				r.wantAt(obj, off, 128<<10, data)
			}
		},
		"requests that overtake each other": func(r *rig, obj drivers.Object, data []byte) {
			for off := 0; off < 2*wantedRun; off += 512 << 10 {
				r.wantAt(obj, off^(512<<10), 512<<10, data)
			}
		},
		"in no order": func(r *rig, obj drivers.Object, data []byte) {
			for b := range 8 {
				r.wantAt(obj, (b*7%12)<<20, 4096, data)
			}
		},
		"on request": func(r *rig, obj drivers.Object, data []byte) {
			r.wantAt(obj, 10<<20, 4096, data)
			if got, err := r.handler.Place(r.t.Context(), r.entry("f")); got != Placed || err != nil {
				r.t.Errorf("got %v, %v; want it placed", got, err)
			}
		},
		"planned before it is opened": func(r *rig, obj drivers.Object, data []byte) {
			r.wantAt(obj, 10<<20, 4096, data)
			r.plan(PlanPart{}, "f")
		},
	} {
		t.Run(name, func(t *testing.T) {
			bothSources(t, size, func(t *testing.T, r *rig, data []byte) {
				obj := r.open("f")
				defer obj.Close()
				r.wantAt(obj, 11<<20, 4096, data)
				r.idle()
				if got := r.entry("f").Level(); got != tiers.AtSource {
					t.Fatal("the file was copied after one read")
				}
				want(r, obj, data)
				r.eventually("the file is copied", func() bool { return r.entry("f").Level() == 1 })
				r.idle()
				r.wantRead("f", size)
				r.wantLazy("in the end", 0, 0)
				r.wantFile("f", data)
				r.wantRead("f", size)
				if got := r.taken(); got != size {
					t.Errorf("%d bytes of the tier are taken, want %d", got, int64(size))
				}
			})
		})
	}
}

// What is less than that does not make a file wanted.
func TestUnwantedFile(t *testing.T) {
	const size = 60 << 20
	for name, read := range map[string]func(r *rig, obj drivers.Object, data []byte){
		"the same part again and again": func(r *rig, obj drivers.Object, data []byte) {
			for range 1000 {
				r.wantAt(obj, 5<<20, 64<<10, data)
			}
		},
		"a part and the kernel's read-ahead": func(r *rig, obj drivers.Object, data []byte) {
			for off := 9 << 20; off < 12<<20; off += 128 << 10 {
				r.wantAt(obj, off, 128<<10, data)
			}
		},
		"parts far from each other": func(r *rig, obj drivers.Object, data []byte) {
			for i := range 7 {
				r.wantAt(obj, i*8<<20+100, 64<<10, data)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, rigOptions{quotas: []int64{1 << 40}, handles: lazyHandles})
				data := r.put("f", size)
				obj := r.open("f")
				defer obj.Close()
				read(r, obj, data)
				r.idle()
				if got := r.handler.Stats(); got.Lazy != 1 || got.LazyBytes >= size/wantedShare {
					t.Errorf("got %d lazy fills with %d bytes, want 1 with less than an eighth", got.Lazy, got.LazyBytes)
				}
			})
		})
	}
}

// An eighth of the blocks, or eight, make a file wanted, whatever the reads have of each.
func TestWantedShare(t *testing.T) {
	for of, want := range map[int]int{9: 8, 60: 8, 64: 8, 160: 20, 20 << 10: 2560} {
		i := newInterest(int64(of) * blockSize)
		n := 0
		for wanted := false; !wanted && n < of; n++ {
			b := int64(n) * 7 % int64(of)
			_, _, wanted = i.record(b*blockSize, 1, of)
			i.record(b*blockSize, 1, of) // again
		}
		if n != want {
			t.Errorf("of %d blocks, %d are enough, want %d", of, n, want)
		}
	}
	if newInterest(lazyFrom) != nil {
		t.Error("a file of 8 MiB is large")
	}
}

// When most of the large files that readers have begun in a directory were wanted, another one is copied as a whole
// from its open on. That ends when readers want parts of them again. Another directory is not concerned.
func TestHabit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const size = 20 << 20
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, handles: lazyHandles})
		data := random(1, size)
		for i := range 12 {
			r.mem.Put(fmt.Sprintf("d/%02d", i), data)
		}
		r.mem.Put("other/f", data)
		part := func(name string) {
			r.wantPart(name, 0, data)
			r.idle()
		}
		part("d/00")
		r.wantLazy("after a part of the first file", 1, 1)
		r.wantFile("d/01", data)
		part("d/02")
		if got := r.entry("d/02").Level(); got != 1 {
			t.Error("after readers have read one of two files, the next one is not copied as a whole")
		}
		part("d/03")
		part("d/04")
		if a, b := r.entry("d/03").Level(), r.entry("d/04").Level(); a != 0 || b != 0 {
			t.Error("after readers have read parts of two of three files, others are copied as a whole")
		}
		var h habit
		for range 1000 {
			h.add(true, true)
		}
		parts := 0
		for ; h.isWhole(); parts++ {
			h.add(true, false)
		}
		if parts > habitSize {
			t.Errorf("after 1,000 files that were wanted, %d of which only parts were wanted are copied as a whole, want at most %d", parts, habitSize)
		}
		part("other/f")
		if got := r.entry("other/f").Level(); got != 0 {
			t.Error("a large file of another directory was copied after a read of a part")
		}
	})
}

// A file that the workers have copied before its reader has asked for much teaches that readers want it, too.
func TestHabitOfFastCopies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const size = 20 << 20
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, handles: lazyHandles})
		data := random(1, size)
		for i := range 6 {
			r.mem.Put(fmt.Sprintf("d/%02d", i), data)
		}
		r.wantWhole("d/00")
		for i := 1; i < 6; i++ {
			name := fmt.Sprintf("d/%02d", i)
			obj := r.open(name)
			r.wantAt(obj, 0, 100, data)
			r.idle()
			if got := r.entry(name).Level(); got != 1 {
				t.Errorf("%s is not copied as a whole", name)
			}
			for off := 0; off < size; off += 1 << 20 {
				r.wantAt(obj, off, 1<<20, data)
			}
			obj.Close()
		}
	})
}

// Large files are predicted where readers want large files, and not where they read parts of them.
func TestLargeFilesPredicted(t *testing.T) {
	for name, whole := range map[string]bool{"whole files": true, "parts": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				const size = 9 << 20
				r := newRig(t, rigOptions{quotas: []int64{1 << 40}, handles: 1 << 10})
				data := random(1, size)
				for i := range 16 {
					r.mem.Put(fmt.Sprintf("d/%02d", i), data)
				}
				_, err := r.names.List(t.Context(), r.entry("d"))
				r.check(err)
				for i := range 9 {
					if i >= 5 { // out of order
						i = 15 - 2*(i-5)
					}
					obj := r.open(fmt.Sprintf("d/%02d", i))
					n := 100
					if whole {
						n = size
					}
					r.wantAt(obj, 0, n, data)
					obj.Close()
					time.Sleep(time.Second)
				}
				r.idle()
				got := r.handler.Stats()
				if whole != (got.Prefetched > 2) {
					t.Errorf("%d files were prefetched", got.Prefetched)
				}
				if !whole && (r.copied() != 9*unitSize || got.Placed > 0) {
					t.Errorf("%d bytes were read at the source, and %d files copied; want 9 units, and none", r.copied(), got.Placed)
				}
			})
		})
	}
}

// Lazy fills take the room of their blocks, and leave the rest to other files. One that is wanted and gets
// no room for the rest ends, and its readers go on at the source.
func TestLazyFillRoom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const size = 20 << 20
		r := newRig(t, rigOptions{quotas: []int64{25 << 20}, handles: lazyHandles})
		data := r.put("large", size)
		other := r.put("second", size+1)
		small := r.put("small", 7<<19)
		obj := r.open("large")
		defer obj.Close()
		r.wantAt(obj, 15<<20, 100, data)
		obj2 := r.open("second")
		defer obj2.Close()
		r.wantAt(obj2, 15<<20, 100, other)
		for i := range 5 {
			r.mem.Put(fmt.Sprint("f", i), small)
			r.wantFile(fmt.Sprint("f", i), small)
			r.idle()
		}
		if got := r.handler.Stats(); got.Placed != 5 || got.Skipped != 0 {
			t.Fatalf("%d files were placed and %d skipped, want 5 and none", got.Placed, got.Skipped)
		}
		r.wantLazy("beside small files", 2, 2)
		if got, err := r.handler.Place(t.Context(), r.entry("large")); got != Skipped || err != nil {
			t.Errorf("a file that does not fit any more: got %v, %v", got, err)
		}
		r.wantLazy("after one was to be placed", 1, 1)
		r.wantAt(obj, 10<<20, 100, data)
		for off := 0; off < wantedRun; off += 128 << 10 {
			r.wantAt(obj2, off, 128<<10, other)
		}
		synctest.Wait()
		r.wantAt(obj2, 18<<20, 100, other)
		r.wantLazy("after the other was wanted", 0, 0)
		if got := r.handler.Stats(); got.Failed != 0 {
			t.Errorf("%d copies have failed, want none", got.Failed)
		}
		if got := r.taken(); got != 5*7<<19 {
			t.Errorf("%d bytes are taken, want those of five files", got)
		}
		for i := range 5 {
			if _, err := r.handler.Retract(r.entry(fmt.Sprint("f", i))); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
		r.wantAt(obj2, 0, size, other)
		time.Sleep(time.Minute)
		r.wantAt(obj2, 0, size, other)
		r.idle()
		if got := r.entry("second").Level(); got != 1 {
			t.Errorf("a wanted file is on level %d after there was room again, want 1", got)
		}
	})
}

// A lazy fill takes at most twice the room that it needs, and 64 MiB more.
func TestLazyRoom(t *testing.T) {
	for need, want := range map[int64]int64{0: 1, 1: 1, 2: 2, 3: 4, 33: 64, 65: 128, 129: 192, 500: 512, 10_000: 10_048} {
		if got := lazyRoom(need << 20); got != want<<20 {
			t.Errorf("need %d MiB: got room for %d MiB, want %d", need, got>>20, want)
		}
	}
}

// Where the device has no room for the whole file, because of a copy in flight, a lazy fill begins on another tier:
// the parts of a wanted file are not fetched again and again.
func TestLazyFillOnCrowdedDevice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		disk := crowdedDisk{drivertest.NewMem(0), func() int64 { return 40 << 20 }}
		r := newRig(t, rigOptions{onDisk: []drivers.Store{disk, drivertest.NewMem(0)}, quotas: []int64{1 << 40, 1 << 40}, handles: lazyHandles})
		other, ok := r.levels.Tier(1).Reserve(t.Context(), 28<<20)
		if !ok {
			t.Fatal("no room")
		}
		defer other.Return()
		data := r.put("f", 31<<20)
		for range 3 {
			obj := r.open("f")
			for b := range 8 {
				r.wantAt(obj, (2*b)<<20, 4096, data)
			}
			obj.Close()
			r.idle()
		}
		r.wantRead("f", 31<<20)
		if got := r.entry("f").Level(); got != 2 {
			t.Errorf("the file is on level %d, want 2", got)
		}
	})
}

// Until its readers have left, a lazy fill that has failed keeps the room that its copy takes.
func TestRoomOfFailedLazyFill(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{20 << 20}, handles: lazyHandles})
		data := r.put("f", 17<<20)
		obj := r.open("f")
		r.wantAt(obj, 16<<20, 100, data)
		small := r.put("small", 7<<20)
		r.wantFile("small", small)
		r.idle()
		if got, err := r.handler.Place(t.Context(), r.entry("f")); got != Skipped || err != nil {
			t.Fatal(got, err)
		}
		r.wantAt(obj, 16<<20, 100, data)
		if got := r.taken(); got != 8<<20 {
			t.Errorf("%d bytes are taken while the parts are open, want 8 MiB", got)
		}
		obj.Close()
		synctest.Wait()
		if got := r.taken(); got != 7<<20 {
			t.Errorf("%d bytes are taken after that, want 7 MiB", got)
		}
	})
}

// A lazy fill doubles its room. If there is room for less, it takes that, and it fails when there is none
// for what arrives next.
func TestLazyFillInTheLastRoom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{20 << 20}, handles: lazyHandles})
		data := r.put("f", 17<<20)
		obj := r.open("f")
		defer obj.Close()
		r.wantAt(obj, 0, 100, data)
		r.put("other", 14<<20)
		if got, err := r.handler.Place(t.Context(), r.entry("other")); got != Placed || err != nil {
			t.Fatal(got, err)
		}
		for b := range 6 {
			r.wantAt(obj, (3*b)<<20, 1<<20, data)
		}
		r.wantLazy("in the last room", 1, 6*unitsOfBlock)
		r.wantAt(obj, 16<<20, 100, data)
		r.wantLazy("without room", 0, 0)
		r.wantAt(obj, 1<<20, 100, data) // of which there is no part: otherwise the reader may stay in them
		synctest.Wait()                 // the fetch that has found no room holds the fill a little longer than its reader
		if got := r.taken(); got != 14<<20 {
			t.Errorf("%d bytes are taken, want those of the other file", got)
		}
	})
}

// If the tier of a lazy fill has no room for the rest of a wanted file, another tier gets the file, or the
// window of a plan does.
func TestRoomElsewhere(t *testing.T) {
	const size = 12 << 20
	for name, want := range map[string]struct {
		opts  rigOptions
		want  func(r *rig, obj drivers.Object, data []byte)
		level int
		held  int64 // copies in the window
	}{
		"placed": {rigOptions{quotas: []int64{15 << 20, 1 << 40}}, func(r *rig, obj drivers.Object, data []byte) {
			if got, err := r.handler.Place(r.t.Context(), r.entry("f")); got != Placed || err != nil {
				r.t.Error(got, err)
			}
		}, 2, 0},
		"read": {rigOptions{quotas: []int64{15 << 20, 1 << 40}}, func(r *rig, obj drivers.Object, data []byte) {
			for off := 0; off < size; off += 1 << 20 {
				r.wantAt(obj, off, 1<<20, data)
			}
		}, 2, 0},
		"planned": {rigOptions{quotas: []int64{40 << 20}, window: 25 << 20}, func(r *rig, obj drivers.Object, data []byte) {
			obj.Close()
			r.plan(PlanPart{}, "f")
		}, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				want.opts.handles = lazyHandles
				r := newRig(t, want.opts)
				data := r.put("f", size)
				obj := r.open("f")
				defer obj.Close()
				r.wantAt(obj, 11<<20, 100, data)
				small := r.put("small", 7<<20)
				r.wantFile("small", small)
				r.idle()
				r.wantLazy("of a part", 1, 1)
				want.want(r, obj, data)
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := int(r.entry("f").Level()); got != want.level {
					t.Errorf("the file is on level %d, want %d", got, want.level)
				}
				if got := r.handler.WindowStats().Files; got != want.held {
					t.Errorf("%d copies are in the window, want %d", got, want.held)
				}
				r.wantFile("f", data)
			})
		})
	}
}

// A crowdedDisk is a Mem on a device of which only some bytes are available.
type crowdedDisk struct {
	*drivertest.Mem
	available func() int64
}

func (d crowdedDisk) Statfs(context.Context) (drivers.Statfs, error) {
	return drivers.Statfs{Total: 1 << 40, Available: d.available(), Unit: blockSize / 256}, nil
}

// What lazy fills have written does not count as room that the device must have.
func TestWrittenParts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var r *rig
		disk := crowdedDisk{drivertest.NewMem(0), func() int64 {
			if r == nil {
				return 35 << 20
			}
			return 35<<20 - r.handler.Stats().LazyBytes
		}}
		r = newRig(t, rigOptions{onDisk: []drivers.Store{disk}, quotas: []int64{1 << 40}, handles: 1 << 10})
		for i := range 3 {
			name := fmt.Sprint("f", i)
			data := r.put(name, 9<<20)
			obj := r.open(name)
			for b := range 7 {
				r.wantAt(obj, b<<20, 100, data)
			}
			obj.Close()
		}
		r.wantLazy("of three files", 3, 21)
		r.put("g", 10<<20)
		if got, err := r.handler.Place(t.Context(), r.entry("g")); got != Placed || err != nil {
			t.Errorf("a file of 10 MiB, with 32.4 MiB available, of which 21.4 MiB are reserved: got %v, %v", got, err)
		}
	})
}

// A tier that hangs does not delay the readers of a lazy fill: they get blocks from memory. Nor does a
// request for a copy that is cancelled meanwhile count as an error of the tier.
func TestLazyFillOnHangingTier(t *testing.T) {
	for _, op := range []drivertest.Op{drivertest.OpStatfs, drivertest.OpWrite} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, rigOptions{quotas: []int64{1 << 40}, handles: lazyHandles})
			data := r.put("f", 17<<20)
			obj := r.open("f")
			defer obj.Close()
			r.wantAt(obj, 0, 100, data)
			synctest.Wait()
			r.to[0].Add(drivertest.Rule{Op: op, Delay: time.Second})
			began := time.Now()
			r.wantAt(obj, 9<<20, 100, data)
			if got := time.Since(began); got != 0 {
				t.Errorf("%s hangs: a read took %s", op, got)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if got, err := r.handler.Place(ctx, r.entry("f")); got != Failed || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s hangs: a request for a copy that ends: got %v, %v", op, got, err)
			}
			time.Sleep(10 * time.Second)
			if got := r.levels.Tier(1).Stats(); got.Errors != 0 || !r.levels.Tier(1).Accepts() {
				t.Errorf("%s hung for a second: the tier has %d errors", op, got.Errors)
			}
		})
	}
}

// The open of a file with an old lazy fill verifies that the source has the version. If it has another one,
// the open fails; if the server has forgotten the descriptor, the file is opened again.
func TestOpenOfOldLazyFill(t *testing.T) {
	for _, want := range []struct{ err, open error }{
		{nil, nil},
		{syscall.ESTALE, nil},
		{drivers.ErrChanged, drivers.ErrChanged},
	} {
		t.Run(fmt.Sprint(want.err), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				source := verifiable{drivertest.NewMem(0)}
				data := random(1, 17<<20)
				source.Put("f", data)
				r := newRig(t, rigOptions{over: source, quotas: []int64{1 << 40}, handles: lazyHandles})
				r.wantPart("f", 9<<20, data)
				r.from.Add(drivertest.Rule{Op: drivertest.OpVerify, Err: syscall.ESTALE})
				r.wantPart("f", 9<<20, data) // it was opened just now
				r.from.Clear()
				time.Sleep(time.Minute)
				r.wantLazy("after a while", 1, 1)
				if want.err != nil {
					r.from.Add(drivertest.Rule{Op: drivertest.OpVerify, Err: want.err, Times: 1})
				}
				e := r.entry("f")
				obj, err := r.handler.Open(t.Context(), e)
				if !errors.Is(err, want.open) || e.Stale() != (want.open != nil) {
					t.Errorf("open: got %v, stale %t; want %v", err, e.Stale(), want.open)
				}
				if err == nil {
					r.wantAt(obj, 3<<20, 100, data)
					obj.Close()
				}
				r.wantLazy("after the open", map[bool]int64{true: 1}[want.err == nil], map[bool]int64{true: 2}[want.err == nil])
			})
		})
	}
}

// The number of lazy fills is bounded. The one that was not used for the longest time ends; if all are in use, the file
// is copied as a whole.
func TestMaxLazyFills(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const size = 20 << 20
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, handles: lazyHandles})
		data := random(1, size)
		for i := range 10 {
			r.mem.Put(fmt.Sprint("f", i), data)
		}
		most := lazyHandles / 8
		for i := range most + 2 {
			r.wantPart(fmt.Sprint("f", i), 0, data)
			if i == most-1 { // use the first one again
				r.wantPart("f0", 0, data)
			}
			synctest.Wait() // a fetch may still have the fill
		}
		r.wantLazy("of many files", int64(most), int64(most))
		for i := range 4 {
			_, filling := r.handler.Filling(r.entry(fmt.Sprint("f", i)))
			if want := i == 0 || i == 3; filling != want {
				t.Errorf("file %d has a fill: %t, want %t", i, filling, want)
			}
		}
		var held []drivers.Object
		for i := range most + 1 {
			held = append(held, r.open(fmt.Sprint("f", 9-i)))
			r.wantAt(held[i], 0, 100, data)
		}
		r.idle()
		r.wantLazy("of many open files", int64(most), int64(most))
		if got := r.entry(fmt.Sprint("f", 9-most)).Level(); got != 1 {
			t.Error("beside open files with lazy fills, another one was not copied as a whole")
		}
		for _, o := range held {
			o.Close()
		}
	})
}

// A lazy fill without users ends when its version is gone, after a long time, when descriptors are scarce, and
// when the copy of its file is dropped. One with users stays.
func TestEndOfLazyFill(t *testing.T) {
	for name, end := range map[string]func(r *rig){
		"another version": func(r *rig) {
			r.mem.Put("f", random(2, 30<<20))
			time.Sleep(61 * time.Minute)
			r.entry("f")
			time.Sleep(time.Minute)
		},
		"a long time": func(r *rig) { r.handler.sweepLazy(time.Now().Add(maxIdle + time.Minute)) },
		"scarce descriptors": func(r *rig) {
			r.from.Add(drivertest.Rule{Op: drivertest.OpReadDir, Err: syscall.EMFILE, Times: 1})
			_, err := r.levels.Source().ReadDir(r.t.Context(), ".")
			r.check(err)
		},
		"dropped":     func(r *rig) { r.drop("f") },
		"all dropped": func(r *rig) { r.drop(".") },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, rigOptions{quotas: []int64{1 << 40}, handles: lazyHandles})
				data := r.put("f", 20<<20)
				obj := r.open("f")
				r.wantAt(obj, 7<<20, 100, data)
				end(r)
				r.wantLazy("of an open file", 1, 1)
				r.wantAt(obj, 9<<20, 100, data)
				obj.Close()
				synctest.Wait()
				end(r)
				time.Sleep(time.Second)
				r.wantLazy("of a file that is not open", 0, 0)
				if got := r.taken(); got != 0 {
					t.Errorf("%d bytes of the tier are taken, want none", got)
				}
				if got := r.source.opened() + r.stores[0].opened(); got != 0 {
					t.Errorf("%d files are open, want none", got)
				}
				if got := r.handler.Stats().Failed; got != 0 {
					t.Errorf("%d copies have failed, want none", got)
				}
			})
		})
	}
}

// Opens that find out at the same time that an old lazy fill is of no use verify it once each, also while its tier
// hangs. If the source still has the version, each verifies a few descriptors of it.
func TestOpensOfOldLazyFill(t *testing.T) {
	for _, cause := range []error{drivers.ErrChanged, syscall.ESTALE} {
		bubble(t, func(t *testing.T) {
			source := verifiable{drivertest.NewMem(0)}
			data := random(1, 17<<20)
			source.Put("f", data)
			r := newRig(t, rigOptions{over: source, quotas: []int64{1 << 40}, handles: lazyHandles})
			r.wantPart("f", 9<<20, data)
			time.Sleep(time.Minute)
			r.from.Add(drivertest.Rule{Op: drivertest.OpVerify, Delay: time.Millisecond, Err: cause})
			r.to[0].Add(drivertest.Rule{Op: drivertest.OpAbort, Delay: 2 * time.Second})
			e := r.entry("f")
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					obj, err := r.handler.Open(t.Context(), e)
					switch {
					case err == nil && cause == syscall.ESTALE: // with another descriptor
						obj.Close()
					case !errors.Is(err, cause):
						t.Errorf("%v: got %v", cause, err)
					}
				})
			}
			all.Wait()
			if got := r.from.Count(drivertest.OpVerify); got > 4*4 || got > 4 && cause == drivers.ErrChanged {
				t.Errorf("%v: %d verifications for 4 opens", cause, got)
			}
		})
	}
}

// Where the tier of some hangs, the other lazy fills end at once when descriptors are scarce.
func TestScarceDescriptorsWhileTierHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{20 << 20, 1 << 40}, handles: lazyHandles})
		data := random(1, 20<<20)
		for i := range 3 {
			name := fmt.Sprint("f", i)
			r.mem.Put(name, data)
			r.wantPart(name, 9<<20, data)
		}
		r.wantLazy("on two tiers", 3, 3)
		r.to[0].Add(drivertest.Rule{Op: drivertest.OpAbort, Delay: 3 * time.Second})
		began := time.Now()
		r.handler.relieveLazy()
		if got := time.Since(began); got != 0 {
			t.Errorf("it took %s", got)
		}
		r.wantLazy("after that", 0, 0)
		time.Sleep(time.Minute)
		if got := r.stores[0].opened() + r.stores[1].opened(); got != 0 {
			t.Errorf("%d files are open, want none", got)
		}
	})
}

// The open of an object with parts asks the store for nothing. If the object was overwritten, a read of another part
// finds that out, and the name is stale.
func TestPartsOfOverwritten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, handles: lazyHandles, bucket: &drivertest.Bucket{Length: 8 << 20}})
		data := r.put("f", 20<<20)
		e := r.entry("f")
		r.wantPart("f", 9<<20, data)
		time.Sleep(time.Minute)
		r.mem.Put("f", random(2, 20<<20))
		obj, err := r.handler.Open(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		defer obj.Close()
		r.wantAt(obj, 9<<20, 100, data)
		if err := readAt(t.Context(), obj, make([]byte, 100), 15<<20); !errors.Is(err, drivers.ErrChanged) || !e.Stale() {
			t.Errorf("read of another part: got %v, stale %t", err, e.Stale())
		}
	})
}

// A lazy fill that is read for a long time is not dropped soon after that.
func TestLazyFillInUse(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, handles: lazyHandles})
		data := r.put("f", 20<<20)
		obj := r.open("f")
		r.wantAt(obj, 7<<20, 100, data)
		r.handler.sweepLazy(time.Now().Add(maxIdle + time.Hour))
		time.Sleep(time.Hour)
		r.handler.sweepLazy(time.Now().Add(maxIdle + time.Hour))
		obj.Close()
		r.handler.sweepLazy(time.Now().Add(maxIdle - time.Second))
		r.wantLazy("a while after its last use", 1, 1)
	})
}

// A lazy fill with all blocks is not dropped: its copy is being committed.
func TestLazyFillBeingCommitted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const size = 17 << 20
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, handles: lazyHandles})
		data := r.put("f", size)
		obj := r.open("f")
		r.wantAt(obj, 0, 100, data)
		r.handler.mu.Lock()
		r.handler.fills[r.entry("f")].interest.wanted.Store(true) // so that it stays lazy
		r.handler.mu.Unlock()
		r.to[0].Add(drivertest.Rule{Op: drivertest.OpCommit, Delay: time.Second})
		r.wantAt(obj, 0, size, data)
		obj.Close()
		r.wantLazy("during the commit", 1, size/unitSize)
		r.handler.relieveLazy()
		time.Sleep(time.Minute)
		if got := r.entry("f").Level(); got != 1 || r.handler.Stats().Placed != 1 || r.taken() != size {
			t.Errorf("the file is on level %d, and %d bytes are taken", got, r.taken())
		}
	})
}

// Drop counts lazy fills, and ends those of the files that it names.
func TestDropParts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, handles: lazyHandles})
		for _, name := range []string{"d/f", "d/g", "d.f"} {
			data := r.put(name, 20<<20)
			got := make([]byte, 100)
			if _, err := r.handler.ReadAt(t.Context(), r.entry(name), got, 7<<20); err != nil || !bytes.Equal(got, data[7<<20:][:100]) {
				t.Fatalf("read %s: %v", name, err)
			}
		}
		r.wantLazy("of three files", 3, 3)
		for _, step := range []struct {
			path string
			want DropReport
		}{
			{"d/f", DropReport{Copies: 1, Bytes: 1 << 20}},
			{"d", DropReport{Copies: 1, Bytes: 1 << 20}},
			{".", DropReport{Copies: 1, Bytes: 1 << 20}},
			{".", DropReport{}},
		} {
			if got := r.drop(step.path); got != step.want {
				t.Errorf("dropped %s: got %+v, want %+v", step.path, got, step.want)
			}
		}
		r.wantLazy("after all were dropped", 0, 0)
	})
}

// A file whose plan has passed it, since it had a copy then, is copied as a whole when it is opened again.
func TestPlannedFileEvicted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, handles: lazyHandles})
		data := r.put("f", 20<<20)
		r.put("g", 100)
		if got, err := r.handler.Place(t.Context(), r.entry("f")); got != Placed || err != nil {
			t.Fatal(got, err)
		}
		r.plan(PlanPart{}, "g", "f")
		r.idle()
		r.drop("f")
		obj := r.open("f")
		defer obj.Close()
		r.wantAt(obj, 7<<20, 100, data)
		r.idle()
		if got := r.entry("f").Level(); got != 1 {
			t.Errorf("a planned file is on level %d, want 1", got)
		}
	})
}

// The SHA-256 of a file shows only of all of it that it is the right one.
func TestPinnedFileIsNotLazy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, _, says := newPinnedRig(t, 10<<20, 100<<20)
		r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Delay: time.Second})
		obj := r.open("right")
		defer obj.Close()
		r.wantAt(obj, 7<<20+5, 100, says)
		r.eventually("there is a copy", func() bool { return r.entry("right").Level() == 1 })
		if got := r.from.Count(drivertest.OpRead); got != 10 {
			t.Errorf("10 blocks were copied in %d requests, want 10", got)
		}
	})
}

// Readers, plans, requests for copies, and what ends lazy fills, at the same time.
func TestLazyFillsAtOnce(t *testing.T) {
	const files, size = 8, 17<<20 + 333
	r := newRig(t, rigOptions{quotas: []int64{60 << 20}, handles: lazyHandles, workers: 8})
	data := random(1, size)
	for i := range files {
		r.mem.Put(fmt.Sprint("d/", i), data)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for n := range 6 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(n), 1))
			for ctx.Err() == nil {
				name := fmt.Sprint("d/", rng.IntN(files))
				switch rng.IntN(20) {
				case 0:
					r.handler.Place(ctx, r.entry(name))
				case 1:
					if _, err := r.handler.Retract(r.entry(name)); err != nil {
						t.Error(err)
					}
				case 2:
					r.handler.relieveLazy()
				case 3:
					r.plan(PlanPart{Stream: fmt.Sprint(n)}, name)
				default:
					obj := r.open(name)
					at, length := rng.IntN(size-1), 4096
					if rng.IntN(5) == 0 {
						length = 2 << 20
					}
					for range 1 + rng.IntN(4) {
						length = min(length, size-at)
						r.wantAt(obj, at, length, data)
						if at += length; at >= size {
							break
						}
					}
					obj.Close()
				}
			}
		})
	}
	all.Wait()
	r.settled()
	r.handler.relieveLazy()
	var want int64
	for i := range files {
		if r.entry(fmt.Sprint("d/", i)).Level() == 1 {
			want += r.levels.Allocated(size)
		}
	}
	r.eventually("the account has the copies", func() bool { return r.taken() == want })
}
