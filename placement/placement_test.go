package placement

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

var errBroken = fmt.Errorf("injected: %w", syscall.EIO)

// Concurrent first opens of a file share one fill, and the source is read once.
func TestFirstOpensShareAFill(t *testing.T) {
	r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
	const size = 5<<20 + 123
	data := r.put("f", size)
	e := r.entry("f")
	begin := make(chan struct{})
	var readers sync.WaitGroup
	for i := range 2000 {
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			<-begin
			obj, err := r.handler.Open(context.Background(), e)
			if err != nil {
				t.Error(err)
				return
			}
			defer obj.Close()
			off := rng.IntN(size)
			r.wantAt(obj, off, min(1+rng.IntN(4<<10), size-off), data)
		})
	}
	close(begin)
	readers.Wait()
	r.settled()
	if got := r.from.Count(drivertest.OpOpen); got != 1 {
		t.Errorf("opens of the source: got %d, want 1", got)
	}
	if got := r.from.Bytes(drivertest.OpRead); got != size {
		t.Errorf("bytes read from the source: got %d, want %d", got, size)
	}
	if got := r.to[0].Count(drivertest.OpCreate); got != 1 {
		t.Errorf("copies begun: got %d, want 1", got)
	}
	if got := e.Level(); got != 1 {
		t.Errorf("level: got %d, want 1", got)
	}
	r.wantFile("f", data)
}

// A copy counts as one in flight until it counts as placed, also in statistics that are taken between
// the two.
func TestCopyIsInFlightUntilPlaced(t *testing.T) {
	r := newRig(t, rigOptions{quotas: []int64{1 << 30}, workers: 4})
	for i := range 1000 {
		name := fmt.Sprint(i)
		r.wantFile(name, r.put(name, 100))
		for {
			s := r.handler.Stats()
			if s.InFlight > 0 {
				continue
			}
			if want := int64(i + 1); s.Placed != want {
				t.Fatalf("%d copies were placed when none was in flight, want %d", s.Placed, want)
			}
			break
		}
	}
}

// A block that a reader requests is fetched at once, however much is queued. The blocks after
// it are fetched next.
func TestDemandBeforePrefetch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const slow = time.Second
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}, workers: 4})
		for i := range 10 {
			r.put(fmt.Sprintf("cold%d", i), 12<<20)
		}
		data := r.put("wanted", 20<<20)
		r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Delay: slow})
		for i := range 10 {
			defer r.open(fmt.Sprintf("cold%d", i)).Close()
		}
		wanted := r.open("wanted")
		defer wanted.Close()
		time.Sleep(5*slow + slow/2) // background reads are in flight
		begin := time.Now()
		r.wantAt(wanted, 7<<20, 100, data)
		if got := time.Since(begin); got != slow {
			t.Errorf("wait of the reader: got %v, want %v, one read of the source", got, slow)
		}
		before := len(r.source.spans())
		time.Sleep(3 * slow)
		after := r.source.spans()[before:]
		if len(after) < 8 {
			t.Fatalf("reads in 3 s by 4 workers: got %d, want at least 8", len(after))
		}
		var offsets []int64
		for _, s := range after {
			if s.name != "wanted" {
				t.Errorf("%s was read before the blocks after the reader's block", s.name)
			}
			offsets = append(offsets, s.off>>20)
		}
		slices.Sort(offsets)
		if offsets[0] != 8 {
			t.Errorf("blocks read ahead: got %d, want those from 8 on", offsets)
		}
		r.stop() // the other copies would take long
	})
}

// Blocks are fetched ahead of a reader as long as it reads, also if other files were queued
// before.
func TestReadAheadGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const size = 40 << 20
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}, workers: 4})
		r.put("cold", 64<<20)
		data := r.put("read", size)
		r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Delay: 10 * time.Millisecond})
		defer r.open("cold").Close()
		obj := r.open("read")
		defer obj.Close()
		var stalls int
		for off := 0; off < size; off += 128 << 10 {
			begin := time.Now()
			r.wantAt(obj, off, 128<<10, data)
			if time.Since(begin) > 0 {
				stalls++
			}
			time.Sleep(time.Millisecond)
		}
		if stalls > 2 {
			t.Errorf("waits of a sequential reader: got %d, want 2 at most, at the start", stalls)
		}
	})
}

// The first block is fetched when a file is opened. Files that are not read are then
// completed one by one, in the order of the opens.
func TestBackgroundOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}, workers: 1})
		names := []string{"b", "c", "a"}
		release := r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Hang: true})
		for _, name := range names {
			r.put(name, 3<<20)
			r.open(name).Close()
		}
		release()
		r.from.Release()
		r.settled()
		var got []string
		for _, s := range r.source.spans() {
			if s.off > 0 {
				got = append(got, fmt.Sprint(s.name, s.off>>20))
			}
		}
		want := []string{"b1", "b2", "c1", "c2", "a1", "a2"}
		if !slices.Equal(got, want) {
			t.Errorf("source reads: got %q, want %q", got, want)
		}
	})
}

// After the read of any one byte, the whole file is copied, also if the file is closed
// meanwhile.
func TestWholeFileAfterOneTouch(t *testing.T) {
	r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
	const size = 6<<20 + 1
	data := r.put("dir/f", size)
	obj := r.open("dir/f")
	r.wantAt(obj, size-1, 1, data)
	obj.Close()
	r.settled()
	if got := r.entry("dir/f").Level(); got != 1 {
		t.Errorf("level: got %d, want 1", got)
	}
	if got := r.from.Bytes(drivertest.OpRead); got != size {
		t.Errorf("bytes read from the source: got %d, want %d", got, size)
	}
	r.wantFile("dir/f", data)
	if got := r.from.Bytes(drivertest.OpRead); got != size {
		t.Errorf("bytes read from the source after it was placed: got %d, want %d", got, size)
	}
}

// Reads end at the end of the file.
func TestSizes(t *testing.T) {
	r := newRig(t, rigOptions{quotas: []int64{3 << 20}})
	for _, size := range []int{0, 1, blockSize - 1, blockSize, blockSize + 1, 4 << 20} { // no tier has room for the last
		name := fmt.Sprint(size)
		data := r.put(name, size)
		for range 2 { // in a fill, and on a tier
			r.wantFile(name, data)
			obj := r.open(name)
			for _, off := range []int64{int64(size), int64(size) + 1, 1 << 40} {
				if n, err := obj.ReadAt(t.Context(), make([]byte, 10), off); n != 0 || err == nil || err.Error() != "EOF" {
					t.Errorf("size %d, read at %d: got %d, %v; want EOF", size, off, n, err)
				}
			}
			if n, err := obj.ReadAt(t.Context(), make([]byte, 10), int64(max(size-1, 0))); n != min(size, 1) || err == nil || err.Error() != "EOF" {
				t.Errorf("size %d, read over the end: got %d, %v; want %d, EOF", size, n, err, min(size, 1))
			}
			obj.Close()
			r.settled()
		}
	}
}

// The number of blocks in memory is bounded, whatever the number of waiting readers.
func TestMemoryIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const workers = 3
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}, workers: workers})
		r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Hang: true})
		var readers sync.WaitGroup
		for i := range 40 {
			name := fmt.Sprint("f", i)
			data := r.put(name, 1<<20)
			readers.Go(func() { r.wantFile(name, data) })
		}
		synctest.Wait()
		if got, most := r.from.Hung(), workers+16; got > most || got < 16 {
			t.Errorf("blocks in memory: got %d, want 16 to %d", got, most)
		}
		r.from.Clear()
		readers.Wait()
		r.settled()
	})
}

// An open starts a failed copy again after a backoff that doubles. A failure is forgotten if
// the file is not opened. Place does not wait for the backoff.
func TestBackoff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
		data := r.put("f", 1000)
		remove := r.to[0].Add(drivertest.Rule{Op: drivertest.OpCommit, Err: errBroken})
		tried := func() int64 {
			r.wantFile("f", data)
			r.settled()
			return r.to[0].Count(drivertest.OpCreate)
		}
		if got := tried(); got != 1 {
			t.Fatalf("copies begun by the first read: got %d, want 1", got)
		}
		want := int64(1)
		for pause := minBackoff; want < 15; pause = min(2*pause, maxBackoff) {
			time.Sleep(pause - 10*time.Millisecond)
			if got := tried(); got != want {
				t.Fatalf("copies begun before %v: got %d, want %d", pause, got, want)
			}
			time.Sleep(10*time.Millisecond + time.Second) // the tier must be healthy by then
			want++
			if got := tried(); got != want {
				t.Fatalf("copies begun after %v: got %d, want %d", pause, got, want)
			}
		}
		if _, err := r.handler.Place(t.Context(), r.entry("f")); !errors.Is(err, errBroken) {
			t.Errorf("Place: got %v, want %v", err, errBroken)
		}
		if got := r.to[0].Count(drivertest.OpCreate); got != want+1 {
			t.Errorf("copies begun by Place: got %d, want one more than %d", got, want)
		}

		r.put("g", 1000)
		time.Sleep(3 * maxBackoff)
		r.handler.Place(t.Context(), r.entry("g"))
		time.Sleep(2 * recentAge)
		if got := len(r.handler.backoffs); got != 1 {
			t.Errorf("failures remembered: got %d, want only that of g", got)
		}
		remove()
		time.Sleep(time.Minute)
		if got, err := r.handler.Place(t.Context(), r.entry("g")); got != Placed || err != nil {
			t.Errorf("Place: got %v, %v; want Placed", got, err)
		}
		if got := len(r.handler.backoffs); got != 0 {
			t.Errorf("failures remembered: got %d, want 0", got)
		}
	})
}

// An error of the source is returned to the reader that caused the request. The next read
// makes another request.
func TestSourceErrors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
		data := r.put("f", 3<<20)
		r.from.Add(drivertest.Rule{Op: drivertest.OpOpen, Err: errBroken, Times: 1})
		if _, err := r.handler.Open(t.Context(), r.entry("f")); !errors.Is(err, syscall.EIO) {
			t.Errorf("open: got %v, want EIO", err)
		}
		release := r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Err: errBroken})
		obj := r.open("f")
		defer obj.Close()
		if err := readAt(t.Context(), obj, make([]byte, 10), 0); !errors.Is(err, syscall.EIO) {
			t.Errorf("read: got %v, want EIO", err)
		}
		release()
		r.wantAt(obj, 0, 3<<20, data)
		r.wantFile("f", data)
		time.Sleep(2 * minBackoff)
		r.wantFile("f", data)
		r.settled()
		if got := r.entry("f").Level(); got != 1 {
			t.Errorf("level: got %d, want 1", got)
		}
	})
}

// An error of a background read is not returned to a reader.
func TestBackgroundErrors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
		data := r.put("f", 8<<20)
		r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Err: errBroken, Times: 1})
		obj := r.open("f")
		defer obj.Close()
		synctest.Wait()
		if got := r.handler.Stats().Failed; got != 1 {
			t.Fatalf("copies failed: got %d, want 1", got)
		}
		r.wantAt(obj, 0, 8<<20, data)
	})
}

// A tier that fails in the middle of a copy delays the reader, and causes no error.
func TestTierFailsMidway(t *testing.T) {
	faults := map[string]drivertest.Rule{
		"write":         {Op: drivertest.OpWrite, Err: errBroken, After: 3},
		"full":          {Op: drivertest.OpWrite, Err: syscall.ENOSPC, After: 3},
		"hung write":    {Op: drivertest.OpWrite, Hang: true, After: 3},
		"read back":     {Op: drivertest.OpReadBack, Err: errBroken, After: 3},
		"hung readback": {Op: drivertest.OpReadBack, Hang: true, After: 3},
		"short":         {Op: drivertest.OpReadBack, Short: true, After: 3},
		"commit":        {Op: drivertest.OpCommit, Err: errBroken},
		"hung commit":   {Op: drivertest.OpCommit, Hang: true},
		"hung":          {Hang: true, After: 10},
	}
	for name, rule := range faults {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, rigOptions{quotas: []int64{1 << 30}, workers: 2})
				data := r.put("f", 9<<20)
				r.to[0].Add(rule)
				for range 3 {
					begin := time.Now()
					r.wantFile("f", data)
					if got := time.Since(begin); got > 15*time.Second {
						t.Errorf("time of reading: got %v, want at most three times the time-out", got)
					}
				}
				r.to[0].Clear()
				time.Sleep(2 * maxBackoff)
				r.wantFile("f", data)
				r.idle()
				if got := r.entry("f").Level(); got != 1 {
					t.Errorf("level after the tier has recovered: got %d, want 1", got)
				}
			})
		})
	}
}

// A copy that was truncated while a file is read in its fill is left, and the file stays what it is:
// that the copy has changed says nothing about the source.
func TestCopyOfAFillChanges(t *testing.T) {
	r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
	data := r.put("f", 3<<20)
	obj := r.open("f")
	defer obj.Close()
	r.wantAt(obj, 0, len(data), data)
	r.settled()
	e := r.entry("f")
	r.to[0].Add(drivertest.Rule{Op: drivertest.OpReadBack, Err: drivers.ErrChanged})
	r.wantAt(obj, 0, len(data), data)
	if r.to[0].Count(drivertest.OpReadBack) == 0 {
		t.Error("the copy of the fill was not read")
	}
	if e.Stale() {
		t.Error("the entry is stale")
	}
}

// A failure to read a copy back during its commit does not discard the copy. Readers wait for
// the end of the commit.
func TestReadBackFailsDuringCommit(t *testing.T) {
	for _, commits := range []bool{true, false} {
		t.Run(fmt.Sprint("commits=", commits), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, rigOptions{quotas: []int64{1 << 30}, tier: tiers.Options{Timeout: time.Second}})
				data := r.put("f", 1000)
				r.to[0].Add(drivertest.Rule{Op: drivertest.OpCommit, Hang: true})
				r.wantFile("f", data)
				synctest.Wait() // a commit would not begin after the errors
				before := r.to[0].Count(drivertest.OpReadBack)
				r.to[0].Add(drivertest.Rule{Op: drivertest.OpReadBack, Err: errBroken})
				var readers sync.WaitGroup
				for range 10 {
					readers.Go(func() { r.wantFile("f", data) })
				}
				synctest.Wait()
				if got := r.to[0].Count(drivertest.OpReadBack) - before; got > 10 {
					t.Errorf("reads of a copy that cannot be read: got %d, want one for each reader", got)
				}
				if commits {
					r.to[0].Clear()
				}
				readers.Wait()
				r.settled()
				if got := r.entry("f").Level(); (got == 1) != commits {
					t.Errorf("level: got %d", got)
				}
			})
		})
	}
}

// An open handle stays on its copy when the copy is removed or superseded.
func TestHandleKeepsItsCopy(t *testing.T) {
	r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
	data := r.put("f", 3<<20)
	r.wantFile("f", data)
	r.settled()
	obj := r.open("f")
	r.wantAt(obj, 0, 100, data)
	r.check(r.stores[0].Remove(t.Context(), "f"))
	r.mem.Put("f", random(9, 3<<20)) // the source no longer has the version
	r.wantAt(obj, 1<<20, 1<<20, data)
	r.wantFile("f", data) // other opens share the open copy
	r.wantAt(obj, 2<<20, 1<<20, data)
	obj.Close()
	if _, err := r.read("f"); !errors.Is(err, drivers.ErrChanged) {
		t.Errorf("open of what has changed: got %v, want %v", err, drivers.ErrChanged)
	}
}

// A handle does not collect descriptors while reads of a tier fail now and then.
func TestFlappingTierKeepsNothingOpen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
		data := r.put("f", 1<<20)
		r.wantFile("f", data)
		r.settled()
		r.to[0].Add(drivertest.Rule{Op: drivertest.OpRead, Err: errBroken, P: 0.5})
		obj := r.open("f")
		defer obj.Close()
		for range 200 {
			r.wantAt(obj, 0, 1000, data)
			time.Sleep(sourceTTL)
		}
		if got := r.stores[0].opened() + r.source.opened(); got > 2 {
			t.Errorf("open files after many failures: got %d, want at most one copy and the source", got)
		}
	})
}

// If one copy on a healthy tier cannot be read, the file is read from the source, and the copy
// is not opened again at once.
func TestOneBadCopy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
		good, bad := r.put("good", 1000), r.put("bad", 1<<20)
		r.wantFile("good", good)
		r.wantFile("bad", bad)
		r.settled()
		r.to[0].Add(drivertest.Rule{Op: drivertest.OpRead, Name: "bad", Err: errBroken})
		r.to[0].Add(drivertest.Rule{Op: drivertest.OpOpen, Name: "bad", Delay: time.Millisecond})
		ctx, stop := context.WithCancel(t.Context())
		var others sync.WaitGroup
		others.Go(func() { // keeps the tier healthy
			obj := r.open("good")
			defer obj.Close()
			for ctx.Err() == nil {
				r.wantAt(obj, 0, 10, good)
				time.Sleep(time.Microsecond * 100)
			}
		})
		r.to[0].Reset()
		obj := r.open("bad")
		for off := 0; off < 1<<20; off += 4096 {
			r.wantAt(obj, off, 4096, bad)
		}
		obj.Close()
		stop()
		others.Wait()
		if got := r.to[0].Count(drivertest.OpOpen); got > 3 {
			t.Errorf("opens of a bad copy: got %d, want few", got)
		}
	})
}

// A cancelled read returns, and the copy continues.
func TestReaderGoesAway(t *testing.T) {
	for _, op := range []drivertest.Op{drivertest.OpOpen, drivertest.OpRead} {
		t.Run(string(op), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
				data := r.put("f", 2<<20)
				r.from.Add(drivertest.Rule{Op: op, Hang: true})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				obj, err := r.handler.Open(ctx, r.entry("f"))
				if err == nil {
					_, err = obj.ReadAt(ctx, make([]byte, 10), 0)
					obj.Close()
				}
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
				}
				r.from.Clear()
				r.settled()
				if got := r.entry("f").Level(); got != 1 {
					t.Errorf("level: got %d, want 1", got)
				}
				r.wantFile("f", data)
				if got := r.from.Bytes(drivertest.OpRead); got != 2<<20 {
					t.Errorf("bytes read from the source: got %d, want %d", got, 2<<20)
				}
			})
		})
	}
}

// One read of a handle can be cancelled while another one waits.
func TestReadersOfOneHandle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{}) // without tiers, the only view is the source
		r.put("f", 1000)
		obj, _ := r.handler.files.acquire(r.handler, r.entry("f"))
		defer obj.Close()
		r.from.Add(drivertest.Rule{Op: drivertest.OpOpen, Hang: true})
		var first sync.WaitGroup
		first.Go(func() { obj.ReadAt(context.Background(), make([]byte, 10), 0) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := obj.ReadAt(ctx, make([]byte, 10), 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("second reader: got %v, want %v", err, context.DeadlineExceeded)
		}
		r.from.Clear()
		first.Wait()
	})
}

// Run returns within the time-out of a tier whatever hangs, and readers get no error.
func TestShutdown(t *testing.T) {
	hang := func(ops ...drivertest.Op) (rules []drivertest.Rule) {
		for _, op := range ops {
			rules = append(rules, drivertest.Rule{Op: op, Hang: true})
		}
		return rules
	}
	cases := map[string]struct{ source, tier []drivertest.Rule }{
		"nothing hangs":   {},
		"source open":     {source: hang(drivertest.OpOpen)},
		"source read":     {source: hang(drivertest.OpRead)},
		"source slow":     {source: []drivertest.Rule{{Op: drivertest.OpRead, Delay: time.Minute}}},
		"tier create":     {tier: hang(drivertest.OpCreate)},
		"tier statfs":     {tier: hang(drivertest.OpStatfs)},
		"tier write":      {tier: hang(drivertest.OpWrite)},
		"tier commit":     {tier: hang(drivertest.OpCommit)},
		"tier abort":      {tier: append(hang(drivertest.OpAbort), drivertest.Rule{Op: drivertest.OpWrite, Err: errBroken})},
		"tier":            {tier: hang("")},
		"tier and source": {source: hang(drivertest.OpRead), tier: hang("")},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, rigOptions{quotas: []int64{1 << 30}, workers: 3})
				for _, rule := range c.source {
					r.from.Add(rule)
				}
				for _, rule := range c.tier {
					r.to[0].Add(rule)
				}
				var readers sync.WaitGroup
				for i := range 24 {
					data := r.put(fmt.Sprint("f", i), 1<<20+1)
					e := r.entry(fmt.Sprint("f", i))
					readers.Go(func() {
						obj, err := r.handler.Open(context.Background(), e)
						if err != nil {
							t.Errorf("open: %v", err)
							return
						}
						defer obj.Close()
						r.wantAt(obj, i<<10, 1000, data)
					})
				}
				time.Sleep(10 * time.Millisecond)
				begin := time.Now()
				r.stop()
				r.running.Wait()
				if got := time.Since(begin); got > 10*time.Second {
					t.Errorf("time until Run returned: got %v, want at most twice the time-out", got)
				}
				r.from.Clear()
				r.to[0].Clear()
				readers.Wait()
				if outcome, err := r.handler.Place(t.Context(), r.entry("f0")); outcome != Placed && err == nil {
					t.Errorf("Place after the end: got %v without an error", outcome)
				}
			})
		})
	}
}

// A file for which no tier has room is counted as skipped once, and placed when there is room.
func TestSkipped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 20}})
		large, small := r.put("large", 2<<20), r.put("small", 900<<10)
		late := r.put("late", 400<<10)
		for range 3 {
			r.wantFile("large", large)
			r.wantFile("small", small)
			r.settled()
			r.wantFile("late", late)
		}
		if got := r.handler.Stats(); got.Skipped != 2 || got.Placed != 1 {
			t.Errorf("got %d skipped and %d placed, want 2 and 1", got.Skipped, got.Placed)
		}
		obj := r.open("late")
		defer obj.Close()
		r.wantAt(obj, 0, 10, late)
		r.check(r.stores[0].Remove(t.Context(), "small"))
		r.levels.Tier(1).Lost("f", 900<<10)
		time.Sleep(2 * sourceTTL)
		r.wantAt(obj, 0, 10, late) // the open handle moves to a fill
		r.settled()
		if got := r.entry("late").Level(); got != 1 {
			t.Errorf("level: got %d, want 1", got)
		}
	})
}

// rigs runs a test in a bubble twice: with a source that is a folder, and with a bucket.
func rigs(t *testing.T, opts rigOptions, test func(t *testing.T, r *rig)) {
	for _, kind := range []string{"folder", "bucket"} {
		t.Run(kind, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				if kind == "bucket" {
					opts.bucket = &drivertest.Bucket{Length: 1 << 20}
				}
				test(t, newRig(t, opts))
			})
		})
	}
}

// The copy of an earlier version, which fills a tier, makes room for the new one.
func TestFullOfAnOutdatedCopy(t *testing.T) {
	rigs(t, rigOptions{quotas: []int64{1 << 20}, ttl: time.Second}, func(t *testing.T, r *rig) {
		r.wantFile("f", r.put("f", 900<<10))
		r.settled()
		data := r.put("f", 904<<10)
		time.Sleep(2 * time.Second)
		r.wantFile("f", data)
		r.settled()
		if got := r.levels.Tier(1).Stats().Used; r.entry("f").Level() != 1 || got != 904<<10 {
			t.Errorf("level %d, %d bytes used; want 1, %d", r.entry("f").Level(), got, 904<<10)
		}
		if got := r.handler.Stats().Skipped; got != 0 {
			t.Errorf("%d files were skipped, want none", got)
		}
	})
}

// A tier that failed when the file was looked up has a copy. The copy is used when the tier has
// recovered, although there is no room for another one.
func TestFullAndFailingAtFirst(t *testing.T) {
	rigs(t, rigOptions{quotas: []int64{1 << 20}}, func(t *testing.T, r *rig) {
		data, other := r.put("f", 900<<10), r.put("other", 900<<10)
		r.wantFile("f", data)
		r.settled()
		r.to[0].Add(drivertest.Rule{Op: drivertest.OpStat, Err: errBroken})
		r.to[0].Add(drivertest.Rule{Op: drivertest.OpReadDir, Err: errBroken})
		r.names.Changed(r.entry("f"))
		r.wantFile("f", data)
		r.to[0].Clear()
		time.Sleep(time.Hour)
		before := r.from.Bytes(drivertest.OpRead)
		r.wantFile("f", data)
		if got := r.from.Bytes(drivertest.OpRead) - before; got != 0 || r.entry("f").Level() != 1 {
			t.Errorf("got %d bytes read from the source, level %d; want none, 1", got, r.entry("f").Level())
		}
		// A tier that has no copy of a file is examined once.
		stats := r.to[0].Count(drivertest.OpStat)
		for range 5 {
			r.wantFile("other", other)
			time.Sleep(time.Minute)
		}
		if got := r.to[0].Count(drivertest.OpStat) - stats; got > 1 {
			t.Errorf("lookups of a missing copy: got %d, want 1", got)
		}
	})
}

// A fill whose entry becomes stale between the claim and the start leaves the copy of the next
// version alone, and makes no request to the source.
func TestStaleBeforeStart(t *testing.T) {
	rigs(t, rigOptions{quotas: []int64{1 << 30}, idle: true}, func(t *testing.T, r *rig) {
		r.wantFile("f", r.put("f", 400<<10))
		synctest.Wait()
		r.put("f", 500<<10)
		r.names.Changed(r.entry("f"))
		first := r.entry("f")
		waiting := r.handler.prefetch(first, nil)
		data := r.put("f", 600<<10)
		r.names.Changed(first)
		r.wantFile("f", data)
		synctest.Wait()
		before := r.from.Count(drivertest.OpOpen) + r.from.Count(drivertest.OpRead)
		r.running.Go(func() { r.handler.Run(r.ctx) })
		waiting.begin()
		r.settled()
		r.wantFile("f", data)
		if st := r.levels.Tier(1).Stats(); r.entry("f").Level() != 1 || st.Used != 600<<10 || st.Files != 1 {
			t.Errorf("level %d, %d bytes used by %d files; want 1, %d by 1", r.entry("f").Level(), st.Used, st.Files, 600<<10)
		}
		if got := r.from.Count(drivertest.OpOpen) + r.from.Count(drivertest.OpRead) - before; got != 0 {
			t.Errorf("requests to the source after the file was placed: got %d, want none", got)
		}
	})
}

// The progress that Warmup reports adds up.
func TestWarmup(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{2 << 20, 4 << 20}})
		var want Progress
		for i := range 200 {
			name, size := fmt.Sprintf("d%d/f%d", i%7, i), i*i
			switch {
			case i%50 == 7:
				name, size = name+".bad", 5000
				want.Failed.add(int64(size))
			case i%50 == 8:
				size = 5 << 20
				want.Skipped.add(int64(size))
			default:
				want.Placed.add(int64(size))
			}
			r.put(name, size)
			want.Found.add(int64(size))
		}
		r.mem.Symlink("f0", "d0/link")
		r.mem.Special("d0/fifo", syscall.S_IFIFO)
		r.mem.Mkdir("empty")
		r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Err: errBroken, Match: func(name string) bool { return bytes.HasSuffix([]byte(name), []byte(".bad")) }})
		var last Progress
		var failures int
		err := r.handler.Warmup(t.Context(), []*metadata.Entry{r.names.Root()}, func(p Progress) { last = p }, func(e *metadata.Entry, err error) {
			if !errors.Is(err, errBroken) {
				t.Errorf("%s: got %v, want %v", e.Path(), err, errBroken)
			}
			failures++
		})
		r.check(err)
		if last != want {
			t.Errorf("progress: got %+v, want %+v", last, want)
		}
		if int64(failures) != want.Failed.Files {
			t.Errorf("failures reported: got %d, want %d", failures, want.Failed.Files)
		}
		if got := r.handler.Stats().Placed; got != want.Placed.Files-1 { // the empty file needs no copy
			t.Errorf("files placed: got %d, want %d", got, want.Placed.Files-1)
		}
	})
}

// Warmup goes on after a name and a directory that the source does not show, and counts them as
// failed.
func TestWarmupGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
		for i := range 100 {
			r.put(fmt.Sprintf("d%d/f%d", i%2, i), 1000)
		}
		for _, op := range []drivertest.Op{drivertest.OpEntry, drivertest.OpStat} {
			r.from.Add(drivertest.Rule{Op: op, Name: "d0/f50", Err: errBroken})
		}
		r.from.Add(drivertest.Rule{Op: drivertest.OpReadDir, Name: "d1", Err: errBroken})
		var last Progress
		failed := make(map[string]error)
		err := r.handler.Warmup(t.Context(), []*metadata.Entry{r.names.Root()}, func(p Progress) { last = p }, func(e *metadata.Entry, err error) {
			failed[e.Path()] = err
		})
		r.check(err)
		if want := (Progress{Found: Amount{51, 49_000}, Placed: Amount{49, 49_000}, Failed: Amount{Files: 2}}); last != want {
			t.Errorf("progress: got %+v, want %+v", last, want)
		}
		if len(failed) != 2 || !errors.Is(failed["d0/f50"], errBroken) || !errors.Is(failed["d1"], errBroken) {
			t.Errorf("failures: got %v", failed)
		}
	})
}

// A Warmup lists all files before it has copied them, so that its total is known early.
func TestWarmupListsAhead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
		for i := range 1000 {
			r.put(fmt.Sprint("f", i), 1000)
		}
		r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Hang: true})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var last Progress
		r.handler.Warmup(ctx, []*metadata.Entry{r.names.Root()}, func(p Progress) {
			if p.Failed.Files == 0 { // until it is cancelled
				last = p
			}
		}, func(*metadata.Entry, error) {})
		if want := (Progress{Found: Amount{1000, 1_000_000}}); last != want {
			t.Errorf("progress: got %+v, want %+v", last, want)
		}
	})
}

// Warmup returns when its context is done.
func TestWarmupCancelled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
		for i := range 100 {
			r.put(fmt.Sprint("f", i), 1000)
		}
		r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Hang: true, After: 10})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := r.handler.Warmup(ctx, []*metadata.Entry{r.names.Root()}, func(Progress) {}, func(*metadata.Entry, error) {})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
	})
}

// A file that ends before its size is read as the source returns it: to its end, and 0 bytes there.
// A read after that fails. The file gets no copy, is not copied again at each open, and its warm-up
// fails.
func TestShortFile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const end = 3<<20 + 100
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
		data := r.put("f", 5<<20)
		r.from.Add(drivertest.Rule{Op: drivertest.OpRead, End: end})
		for range 10 {
			obj := r.open("f")
			var got []byte
			for n := -1; n != 0; {
				buf := make([]byte, 1<<17)
				var err error
				n, err = obj.ReadAt(t.Context(), buf, int64(len(got)))
				for errors.Is(err, drivers.ErrRetry) {
					n, err = obj.ReadAt(t.Context(), buf, int64(len(got)))
				}
				if err != nil && err != io.EOF {
					t.Fatalf("read at %d: %v", len(got), err)
				}
				got = append(got, buf[:n]...)
			}
			if !bytes.Equal(got, data[:end]) {
				t.Fatalf("got %d bytes, want the %d of the source", len(got), end)
			}
			if n, err := obj.ReadAt(t.Context(), make([]byte, 10), 4<<20); n != 0 || !errors.Is(err, drivers.ErrShort) {
				t.Errorf("after the end: got %d bytes and %v", n, err)
			}
			obj.Close()
			time.Sleep(10 * time.Second)
		}
		r.settled()
		if e := r.entry("f"); e.Level() != tiers.AtSource || e.Stale() {
			t.Errorf("level %d, stale %v", e.Level(), e.Stale())
		}
		if got := r.handler.Stats().Failed; got != 1 {
			t.Errorf("copies attempted: got %d, want 1", got)
		}
		if outcome, err := r.handler.Place(t.Context(), r.entry("f")); outcome != Failed || !errors.Is(err, drivers.ErrShort) {
			t.Errorf("Place: got %v and %v", outcome, err)
		}
	})
}

// If a file changes during its fill, readers of the old version get an error, and the copy is
// discarded.
func TestChangedUnderAFill(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}, workers: 1})
		old := r.put("f", 4<<20)
		r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Delay: time.Second})
		obj := r.open("f")
		defer obj.Close()
		r.wantAt(obj, 0, 10, old)
		fresh := random(7, 4<<20)
		r.mem.Overwrite("f", fresh)
		time.Sleep(10 * time.Second)
		r.wantAt(obj, 0, 10, old) // this block was copied before the change
		if err := readAt(t.Context(), obj, make([]byte, 10), 3<<20); !errors.Is(err, drivers.ErrChanged) {
			t.Errorf("read: got %v, want %v", err, drivers.ErrChanged)
		}
		r.wantFile("f", fresh)
		r.settled()
		if got := r.entry("f").Level(); got != tiers.Level(1) {
			t.Errorf("level of the new version: got %d, want 1", got)
		}
	})
}
