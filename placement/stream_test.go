package placement

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/metadata"
)

// newBucketRig is newRig with one tier and a source that is read in streams of stride bytes.
func newBucketRig(t *testing.T, stride int64, workers int) *rig {
	t.Helper()
	return newRig(t, rigOptions{quotas: []int64{1 << 40}, workers: workers, bucket: &drivertest.Bucket{Length: stride}})
}

// streams returns the requests to the source in their order: the first block of each, and the
// number of blocks.
func (r *rig) streams() (requests [][2]int) {
	for _, s := range r.source.spans() {
		requests = append(requests, [2]int{int(s.off / blockSize), (s.n + blockSize - 1) / blockSize})
	}
	return requests
}

// A file that is read in order, or in the background, costs one request for each range, and
// no byte is requested twice.
func TestOneRequestForEachRange(t *testing.T) {
	for _, c := range []struct {
		stride  int64
		size    int
		ranges  int64
		workers int
	}{
		{4 << 20, 1, 1, 1},
		{4 << 20, 100_000, 1, 4},
		{4 << 20, 4 << 20, 1, 1},
		{4 << 20, 4<<20 + 1, 2, 4},
		{4 << 20, 13<<20 + 5, 4, 1},
		{4 << 20, 13<<20 + 5, 4, 8},
		{1, 3 << 20, 3, 2},           // at least a block
		{2<<20 + 1, 7 << 20, 3, 2},   // whole blocks
		{1 << 30, 10<<20 + 1, 1, 2},  // longer than the file
		{1 << 20, 5<<20 + 999, 6, 8}, // one block each
	} {
		for _, how := range []string{"in order", "one touch", "background", "two readers"} {
			t.Run(fmt.Sprintf("%d of %d by %d, %s", c.size, c.stride, c.workers, how), func(t *testing.T) {
				r := newBucketRig(t, c.stride, c.workers)
				data := r.put("f", c.size)
				r.wantWhole("f")
				switch how {
				case "in order":
					r.wantFile("f", data)
				case "one touch":
					obj := r.open("f")
					r.wantAt(obj, 0, 1, data)
					obj.Close()
				case "background":
					if _, err := r.handler.Place(t.Context(), r.entry("f")); err != nil {
						t.Error(err)
					}
				case "two readers":
					var readers sync.WaitGroup
					for range 2 {
						readers.Go(func() { r.wantFile("f", data) })
					}
					readers.Wait()
				}
				r.settled()
				if got := r.bucket.Requests().Gets; got != c.ranges {
					t.Errorf("requests: got %d, want %d", got, c.ranges)
				}
				if got := r.from.Bytes(drivertest.OpRead); got != int64(c.size) {
					t.Errorf("bytes read from the source: got %d, want %d", got, c.size)
				}
				if got := r.entry("f").Level(); got != 1 {
					t.Errorf("level: got %d, want 1", got)
				}
				r.wantFile("f", data)
			})
		}
	}
}

// Blocks land one by one as they arrive. A reader waits only for its own block, and a reader of
// a block that is in flight makes no request.
func TestBlocksLandAsTheyArrive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const slow = time.Second
		r := newBucketRig(t, 8<<20, 1)
		data := r.put("f", 8<<20)
		r.from.Add(drivertest.Rule{Op: drivertest.OpStream, Delay: slow})
		begin := time.Now()
		obj := r.open("f")
		defer obj.Close()
		var readers sync.WaitGroup
		for b := range 8 {
			readers.Go(func() {
				r.wantAt(obj, b<<20+17, 1000, data)
				if got, want := time.Since(begin), time.Duration(b+1)*slow; got != want {
					t.Errorf("arrival of block %d: got %v, want %v", b, got, want)
				}
			})
		}
		readers.Wait()
		r.settled()
		if got := r.bucket.Requests().Gets; got != 1 {
			t.Errorf("requests: got %d, want 1", got)
		}
	})
}

// A random read of a large file that is copied as a whole fetches the units that it requests, and no more, in a
// stream of their own. Where the reader continues in order, the rest of the block is fetched, too. The other
// units are fetched in the background.
func TestRandomReads(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const slow = time.Second
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, idle: true, bucket: &drivertest.Bucket{Length: 4 << 20}})
		data := r.put("f", 16<<20)
		r.wantWhole("f")
		r.from.Add(drivertest.Rule{Op: drivertest.OpStream, Delay: slow})
		obj := r.open("f")
		defer obj.Close()
		time.Sleep(100 * slow)
		for _, c := range []struct{ at, n, blocks int }{
			{14 << 20, 100, 1},
			{5<<20 + 1, 1 << 20, 2}, // in two blocks
			{9 << 20, 100, 1},
			{15 << 20, 100, 1},
			{10<<20 + 7, 100, 1}, // with the rest of its block
			{7 << 20, 100, 1},
			{10<<20 + 900_000, 100, 0},
		} {
			begin := time.Now()
			r.wantAt(obj, c.at, c.n, data)
			if got, most := time.Since(begin), time.Duration(c.blocks)*slow; got > most {
				t.Errorf("wait at %d: got %v, want at most %v", c.at, got, most)
			}
			time.Sleep(10 * slow)
		}
		r.wantRequests([][2]int{{0, 32}, {40, 49}, {56, 64}, {72, 73}, {80, 88}, {112, 113}, {120, 128}})
		r.running.Go(func() { r.handler.Run(r.ctx) })
		r.settled()
		r.wantRequests([][2]int{{0, 32}, {32, 40}, {40, 49}, {49, 56}, {56, 64}, {64, 72}, {72, 73}, {73, 80}, {80, 88}, {88, 96}, {96, 112}, {112, 113}, {113, 120}, {120, 128}})
		r.wantFile("f", data)
	})
}

// A reader that goes on in a block of which it has a part gets the rest of the block or, if it goes beyond that, the
// rest of the range.
func TestReadersGoOnInBlock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, idle: true, bucket: &drivertest.Bucket{Length: 4 << 20}})
		data := r.put("f", 16<<20)
		r.wantWhole("f")
		obj := r.open("f")
		defer obj.Close()
		for _, u := range []int{42, 72} {
			r.wantAt(obj, u*unitSize, 4096, data)
		}
		r.wantAt(obj, 43*unitSize, 3*unitSize, data)
		r.wantAt(obj, 73*unitSize, 8*unitSize, data)
		r.wantRequests([][2]int{{0, 32}, {42, 43}, {43, 48}, {72, 73}, {73, 96}})
		r.running.Go(func() { r.handler.Run(r.ctx) })
		r.settled()
		r.wantFile("f", data)
	})
}

// While a large file is copied, each random read is fetched in a stream of its own.
func TestRandomReadsDuringCopy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const stride = 8
		r := newBucketRig(t, stride<<20, 1)
		data := r.put("f", 8*stride<<20)
		r.wantWhole("f")
		r.from.Add(drivertest.Rule{Op: drivertest.OpStream, Delay: time.Second}) // of each block
		obj := r.open("f")
		defer obj.Close()
		reads := []int{7*stride + 3, 5*stride + 1, 6*stride + 6, 3*stride + 2, 4*stride + 5}
		for _, b := range reads {
			r.wantAt(obj, b<<20+9, 100, data)
		}
		got := r.requestedUnits()
		for _, b := range reads {
			if u := b * unitsOfBlock; !slices.Contains(got, [2]int{u, u + 1}) {
				t.Errorf("no stream of unit %d alone; streams of units: %d", u, got)
			}
		}
		r.from.Clear()
		r.settled()
		r.wantFile("f", data)
	})
}

// Several readers, each of which reads one part of a file in order, cause requests of whole
// ranges after their first one.
func TestReadersInOrderInParts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const readers, stride = 8, 4
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, idle: true, bucket: &drivertest.Bucket{Length: stride << 20}})
		data := r.put("f", readers*2*stride<<20)
		r.wantWhole("f")
		obj := r.open("f")
		defer obj.Close()
		for b := range 2 * stride {
			for i := range readers {
				r.wantAt(obj, (i*2*stride+b)<<20, 1<<20, data)
			}
		}
		r.settled()
		if got, want := len(r.streams()), 2*readers+readers-1; got != want { // and one more where each reader but the first begins
			t.Errorf("streams: got %d, want %d", got, want)
		}
	})
}

// Requests of the kernel's read-ahead that arrive a little out of order are sequential.
func TestFollow(t *testing.T) {
	m := newBlockMap(10_000<<20, 1<<20)
	for _, c := range []struct {
		block int
		want  bool
	}{{0, true}, {0, true}, {1, true}, {3, true}, {2, true}, {4, true}, {7, false}, {5, true}, {8, true}, {100, false}, {101, true}, {9, true}, {6, true}, {20, false}} {
		if got := m.follow(c.block); got != c.want {
			t.Errorf("block %d: got %v, want %v", c.block, got, c.want)
		}
	}
	for b := range 100 {
		m.follow(1000 + 10*b)
	}
	if got := len(m.readers.Streams()); got != crowd {
		t.Errorf("readers remembered: got %d, want %d", got, crowd)
	}
}

// When many large files are opened at once, only the first block of each is fetched at first. A
// file of one range is fetched by one request.
func TestManyOpenLargeFiles(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, idle: true, bucket: &drivertest.Bucket{Length: 4 << 20}})
		r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Hang: true})
		var data [crowd + 3][]byte
		for i := range data {
			data[i] = r.put(fmt.Sprint("f", i), 5<<20)
		}
		data[crowd+2] = r.put(fmt.Sprint("f", crowd+2), 4<<20)
		var readers sync.WaitGroup
		for i := range data {
			readers.Go(func() { r.wantFile(fmt.Sprint("f", i), data[i]) })
			synctest.Wait()
		}
		r.from.Clear()
		readers.Wait()
		r.settled()
		got := make(map[[2]int]int)
		for _, s := range r.streams() {
			got[s]++
		}
		want := map[[2]int]int{{0, 4}: crowd + 1, {4, 1}: crowd + 2, {0, 1}: 2, {1, 3}: 2}
		if !maps.Equal(got, want) {
			t.Errorf("streams of blocks: got %d, want %d", got, want)
		}
	})
}

// If an object was overwritten since it was listed, its open returns the error, and not the
// first read.
func TestOpenOfOverwritten(t *testing.T) {
	for _, size := range []int{1000, 5 << 20} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, rigOptions{quotas: []int64{1 << 40}, bucket: &drivertest.Bucket{Length: 2 << 20, Latency: 20 * time.Millisecond}})
			var entries [20]*metadata.Entry
			for i := range entries {
				r.put(fmt.Sprintf("d/%02d", i), size)
			}
			for i := range entries {
				entries[i] = r.entry(fmt.Sprintf("d/%02d", i))
			}
			data := make([][]byte, len(entries))
			for i := range entries {
				data[i] = r.put(fmt.Sprintf("d/%02d", i), size)
			}
			for i, e := range entries {
				for range 2 { // the second time during the backoff of the copy
					if _, err := r.handler.Open(t.Context(), e); !errors.Is(err, drivers.ErrChanged) {
						t.Errorf("open: got %v, want %v", err, drivers.ErrChanged)
					}
				}
				r.wantFile(fmt.Sprintf("d/%02d", i), data[i]) // the new version
			}
			r.settled()
		})
	}
}

// A file is opened although a tier fails, or although the source returns an error that is not
// final.
func TestOpenThoughCopyFails(t *testing.T) {
	for name, fail := range map[string]func(r *rig){
		"tier":   func(r *rig) { r.to[0].Add(drivertest.Rule{Op: drivertest.OpWrite, Err: fs.ErrPermission}) },
		"source": func(r *rig) { r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Times: 1, Err: errBroken}) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newBucketRig(t, 2<<20, 1)
				data := r.put("f", 1<<20)
				fail(r)
				r.wantFile("f", data)
				r.settled()
				if got := r.handler.Stats().Failed; got != 1 {
					t.Errorf("copies failed: got %d, want 1", got)
				}
			})
		})
	}
}

// Random reads cause no byte of the source to be read twice, with any number of workers.
func TestStreamsInRandomOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			const size = 30<<20 + 77
			r := newBucketRig(t, 4<<20, 1+int(seed))
			data := r.put("f", size)
			var readers sync.WaitGroup
			for i := range uint64(4) {
				readers.Go(func() {
					rng := rand.New(rand.NewPCG(seed, i))
					obj := r.open("f")
					defer obj.Close()
					for range 200 {
						off := rng.IntN(size)
						r.wantAt(obj, off, min(rng.IntN(200_000), size-off), data)
					}
				})
			}
			readers.Wait()
			r.settled()
			if got := r.from.Bytes(drivertest.OpRead); got != size {
				t.Errorf("bytes read from the source: got %d, want %d", got, size)
			}
		})
	}
}

// The number of streams is bounded, and each of them holds one block.
func TestMemoryOfStreamsIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const workers = 3
		r := newBucketRig(t, 8<<20, workers)
		r.from.Add(drivertest.Rule{Op: drivertest.OpStream, Hang: true})
		var want [24][]byte
		for i := range want {
			want[i] = r.put(fmt.Sprint("f", i), 9<<20)
		}
		var readers sync.WaitGroup
		for i := range want {
			readers.Go(func() { r.wantFile(fmt.Sprint("f", i), want[i]) })
		}
		synctest.Wait()
		if got, most := r.from.Hung(), workers+16; got != most {
			t.Errorf("streams: got %d, want %d", got, most)
		}
		r.from.Clear()
		readers.Wait()
		r.settled()
	})
}

// When a stream fails, the blocks that have landed can be read. The reader whose request failed
// gets the error, and other readers continue at the source. A later open copies the file.
func TestStreamBreaks(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]drivertest.Rule{
		"error":     {Op: drivertest.OpStream, After: 3, Times: 1, Err: errBroken},
		"truncated": {Op: drivertest.OpStream, After: 3, Times: 1, Short: true},
		"half":      {Op: drivertest.OpRead, Times: 1, Short: true},
		"denied":    {Op: drivertest.OpStream, After: 3, Times: 1, Err: fs.ErrPermission},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newBucketRig(t, 8<<20, 1)
				data := r.put("f", 8<<20)
				r.from.Add(rule)
				remove := r.from.Add(drivertest.Rule{Op: drivertest.OpStream, Delay: time.Second, Times: 3})
				obj := r.open("f")
				defer obj.Close()
				var readers sync.WaitGroup
				for b := range 8 { // some wait for blocks of the stream when it fails
					readers.Go(func() { r.wantAt(obj, b<<20, 1000, data) })
				}
				readers.Wait()
				remove()
				r.from.Clear()
				if got := r.handler.Stats(); got.Failed != 1 || got.InFlight != 0 {
					t.Errorf("copies failed: got %d, want 1; %d in flight", got.Failed, got.InFlight)
				}
				if got := r.entry("f").Level(); got != 0 {
					t.Errorf("level: got %d", got)
				}
				time.Sleep(2 * minBackoff)
				r.wantFile("f", data)
				r.settled()
				if got := r.entry("f").Level(); got != 1 {
					t.Errorf("level in the end: got %d, want 1", got)
				}
			})
		})
	}
}

// A reader whose own request fails gets the error of the source.
func TestStreamErrorIsTheReaders(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, idle: true, bucket: &drivertest.Bucket{Length: 4 << 20}})
		data := r.put("f", 8<<20)
		obj := r.open("f")
		defer obj.Close()
		r.wantAt(obj, 0, 4<<20, data)
		remove := r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Err: errBroken, Times: 1})
		if _, err := obj.ReadAt(t.Context(), make([]byte, 10), 5<<20); !errors.Is(err, errBroken) {
			t.Errorf("got %v, want %v", err, errBroken)
		}
		remove()
		r.wantAt(obj, 5<<20, 1000, data)
		if got := r.handler.Stats().Failed; got != 1 {
			t.Errorf("copies failed: got %d, want 1", got)
		}
	})
}

// A failure of the tier ends the streams of the fill at once, also those that transfer nothing.
// Their readers continue at the source without an error.
func TestTierFailsUnderStreams(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, idle: true, bucket: &drivertest.Bucket{Length: 4 << 20}})
		data := r.put("f", 16<<20)
		r.wantWhole("f")
		r.from.Add(drivertest.Rule{Op: drivertest.OpStream, After: 1, Delay: 1000 * time.Hour})
		r.to[0].Add(drivertest.Rule{Op: drivertest.OpWrite, Delay: time.Second, Err: errBroken})
		r.to[0].Add(drivertest.Rule{Op: drivertest.OpAbort, Delay: time.Second})
		obj := r.open("f")
		defer obj.Close()
		synctest.Wait() // the first block is being written
		var readers sync.WaitGroup
		for _, b := range []int{2, 5, 10, 12} { // one block of the first stream, and three of other streams
			readers.Go(func() { r.wantAt(obj, b<<20, 1000, data) })
		}
		synctest.Wait()
		if got := r.source.opened(); got != 1+4 {
			t.Fatalf("open streams: got %d, want 4", got-1)
		}
		time.Sleep(1500 * time.Millisecond) // the tier has failed, and the copy is being discarded
		if got := r.source.opened(); got != 1+1 {
			t.Errorf("open streams: got %d, want 1, that of the block which failed", got-1)
		}
		begin := time.Now()
		readers.Wait()
		if got := time.Since(begin); got > time.Minute {
			t.Errorf("wait for streams of a fill that has failed: got %v", got)
		}
		if got := r.handler.Stats(); got.Failed != 1 || got.InFlight != 0 {
			t.Errorf("got %d copies failed and %d in flight, want 1 and 0", got.Failed, got.InFlight)
		}
	})
}

// The handler stops although streams transfer nothing, and readers continue.
func TestStopUnderStreams(t *testing.T) {
	for _, op := range []drivertest.Op{drivertest.OpRead, drivertest.OpStream} {
		t.Run(string(op), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newBucketRig(t, 4<<20, 2)
				var want [24][]byte
				r.from.Add(drivertest.Rule{Op: op, Hang: true})
				for i := range want {
					want[i] = r.put(fmt.Sprint("f", i), 5<<20)
				}
				var readers sync.WaitGroup
				for i := range want {
					readers.Go(func() {
						obj := r.open(fmt.Sprint("f", i))
						defer obj.Close()
						r.wantAt(obj, i<<10, 1000, want[i])
					})
				}
				synctest.Wait()
				begin := time.Now()
				r.stop()
				r.running.Wait()
				if got := time.Since(begin); got > 10*time.Second {
					t.Errorf("time until Run returned: got %v, want at most 10s", got)
				}
				r.from.Clear()
				readers.Wait()
			})
		})
	}
}

// If an object was removed or has changed since it was listed, a read returns the error; with a
// tier, the open does. The entry becomes stale, and each read causes one request at most.
func TestListedFileIsGone(t *testing.T) {
	for name, change := range map[string]func(r *rig){
		"gone":      func(r *rig) { r.mem.Delete("f") },
		"replaced":  func(r *rig) { r.mem.Put("f", random(5, 3<<20)) },
		"rewritten": func(r *rig) { r.mem.Overwrite("f", random(5, 3<<20)) },
	} {
		for _, tiers := range []int{0, 1} {
			t.Run(fmt.Sprint(name, " tiers=", tiers), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					r := newRig(t, rigOptions{quotas: []int64{1 << 40}[:tiers], bucket: &drivertest.Bucket{Length: 2 << 20}})
					r.put("f", 3<<20)
					e := r.entry("f")
					change(r)
					for range 10 {
						obj, err := r.handler.Open(t.Context(), e)
						if tiers == 0 {
							r.check(err)
							_, err = obj.ReadAt(t.Context(), make([]byte, 10), 0)
							obj.Close()
						}
						if !errors.Is(err, drivers.ErrChanged) {
							t.Errorf("got %v, want %v", err, drivers.ErrChanged)
						}
					}
					for range 10 {
						if err := readAt(t.Context(), unopened{r.handler, e}, make([]byte, 10), 0); !errors.Is(err, drivers.ErrChanged) {
							t.Errorf("stateless read: got %v, want %v", err, drivers.ErrChanged)
						}
					}
					r.settled()
					if !e.Stale() {
						t.Error("the entry is not stale")
					}
					if got, most := r.bucket.Requests().Gets, [2]int64{20, 2}[tiers]; got > most {
						t.Errorf("requests: got %d for 10 opens and 10 reads, want at most %d", got, most)
					}
				})
			})
		}
		t.Run(name+" and is placed", func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newBucketRig(t, 2<<20, 4)
				r.put("f", 1<<20)
				e := r.entry("f")
				change(r)
				for range 3 {
					if outcome, err := r.handler.Place(t.Context(), e); outcome != Failed || !errors.Is(err, drivers.ErrChanged) {
						t.Errorf("Place: got %v, %v; want %v", outcome, err, drivers.ErrChanged)
					}
					if !e.Stale() {
						t.Error("the entry is not stale")
					}
				}
				if got := r.bucket.Requests().Gets; got != 1 {
					t.Errorf("requests: got %d, want 1, and none for a stale entry", got)
				}
			})
		})
	}
}

// A reader of a file without permission gets the error of the source. Each read causes one
// request; no copy is started before its backoff has ended.
func TestListedFileMayNotBeRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newBucketRig(t, 2<<20, 4)
		good, bad := r.put("good", 3<<20), r.put("bad", 3<<20)
		r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Name: "bad", Err: fs.ErrPermission})
		for range 20 {
			if _, err := r.read("bad"); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("got %v, want %v", err, fs.ErrPermission)
			}
		}
		if _, err := r.handler.Place(t.Context(), r.entry("bad")); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("Place: got %v, want %v", err, fs.ErrPermission)
		}
		r.wantFile("good", good)
		r.settled()
		if got, most := r.from.Count(drivertest.OpRead), int64(20+2*2+2); got > most {
			t.Errorf("requests for 20 reads, 2 copies and a good file: got %d, want at most %d", got, most)
		}
		if r.entry("bad").Stale() {
			t.Error("the entry without permission is stale")
		}
		r.from.Clear()
		time.Sleep(3 * minBackoff)
		r.wantFile("bad", bad)
		r.settled()
		if got := r.entry("bad").Level(); got != 1 {
			t.Errorf("level: got %d, want 1", got)
		}
	})
}

// A final error of the source is not returned to opens that come later.
func TestRefusalPasses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}, idle: true, bucket: &drivertest.Bucket{Length: 1 << 20}})
		data := r.put("f", 3<<20)
		holder := r.open("f")
		defer holder.Close()
		r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Err: fs.ErrPermission, Times: 1})
		r.running.Go(func() { r.handler.Run(r.ctx) }) // the workers are denied the other blocks
		synctest.Wait()
		if got := r.handler.Stats().Failed; got != 1 {
			t.Fatalf("copies failed: got %d, want 1", got)
		}
		r.wantFile("f", data)
		time.Sleep(time.Hour)
		r.wantFile("f", data)
		r.settled()
		if got := r.entry("f").Level(); got != 1 {
			t.Errorf("level: got %d, want 1", got)
		}
	})
}

// Files that are placed on request are opened by workers, and so no more of them at once than the
// limit of the gate. A reader of a queued file does not wait for a worker.
func TestPlacedFilesAreOpenedByWorkers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, workers: 8})
		var placers sync.WaitGroup
		files := make(map[string][]byte)
		for i := range 20 {
			name := fmt.Sprint("f", i)
			files[name] = r.put(name, 1000+i)
			r.entry(name)
		}
		r.from.Add(drivertest.Rule{Op: drivertest.OpOpen, Hang: true, Times: startBlocks})
		for name := range files {
			e := r.entry(name)
			placers.Go(func() {
				if outcome, err := r.handler.Place(r.ctx, e); outcome != Placed {
					t.Errorf("place %s: %v, %v", name, outcome, err)
				}
			})
			synctest.Wait()
		}
		if got := r.from.Hung(); got != startBlocks {
			t.Errorf("opens in flight: got %d, want %d", got, startBlocks)
		}
		var queued []string
		for name := range files {
			if r.handler.fills[r.entry(name)].slot.fresh {
				queued = append(queued, name)
			}
		}
		if want := 20 - startBlocks; len(queued) != want {
			t.Errorf("queued: got %d, want %d", len(queued), want)
		}
		for _, name := range queued {
			r.wantFile(name, files[name])
		}
		r.from.Clear()
		placers.Wait()
		r.settled()
		if got, want := r.from.Count(drivertest.OpRead), int64(20); got != want {
			t.Errorf("reads of the source: got %d, want %d", got, want)
		}
	})
}
