package placement

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/posix"
	"github.com/milkweedfs/milkweed/metadata"
)

// A file for which no tier has room is opened at the source once, stays open while the
// idle-handle cache has room, and is closed when the source has another version.
func TestIdleHandles(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{4096}, ttl: time.Second, handles: 3})
		var want [5][]byte
		for i := range want {
			want[i] = r.put(fmt.Sprint("f", i), 1<<20)
		}
		for range 4 {
			for i := range 3 {
				r.wantFile(fmt.Sprint("f", i), want[i])
			}
		}
		if got := r.from.Count(drivertest.OpOpen); got != 3 {
			t.Errorf("opens at the source of 3 files, 4 times: got %d, want 3", got)
		}
		for i := range want { // f3 and f4 replace f0 and f1
			r.wantFile(fmt.Sprint("f", i), want[i])
		}
		if got := r.from.Count(drivertest.OpOpen); got != 5 {
			t.Errorf("opens at the source: got %d, want 5", got)
		}
		if got, idle := r.source.opened(), r.handler.Stats().IdleHandles; got != 3 || idle != 3 {
			t.Errorf("open at the source: got %d, of which %d are idle; want 3", got, idle)
		}
		want[4] = r.put("f4", 2<<20)
		time.Sleep(2*time.Second + recentAge/4) // longer than the TTL of names, and between two sweeps
		r.wantFile("f4", want[4])
		time.Sleep(2 * recentAge)               // until the sweep finds the other version
		if got := r.source.opened(); got != 2 { // f3 and the new f4, which has replaced f2
			t.Errorf("open at the source after a change: got %d, want 2", got)
		}
	})
}

// An idle file whose content may differ is replaced by the next open, and closed.
func TestDoubtfulIdleHandle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{4096}, handles: 3})
		data := r.put("f", 1<<20)
		for range 3 {
			r.wantFile("f", data)
			r.names.Doubt(r.entry("f"))
		}
		r.wantFile("f", data)
		if got, idle := r.source.opened(), r.handler.Stats().IdleHandles; got != 1 || idle != 1 {
			t.Errorf("open at the source: got %d, of which %d are idle; want 1", got, idle)
		}
	})
}

// A file that is read without being opened is opened once for reads that follow each other,
// and closed afterwards.
func TestReadWithoutOpen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
		data := r.put("f", 5<<20)
		e := r.entry("f")
		read := func() {
			t.Helper()
			for off := 0; off < len(data); off += 1 << 20 {
				r.wantAt(unopened{r.handler, e}, off, 1<<20, data)
			}
		}
		read()
		r.settled()
		time.Sleep(2 * recentAge)
		if got := r.stores[0].opened() + r.source.opened(); got != 0 {
			t.Errorf("open files after a while: got %d, want none", got)
		}
		opens, before := r.to[0].Count(drivertest.OpOpen), r.handler.Stats()
		read()
		if got := r.to[0].Count(drivertest.OpOpen) - opens; got != 1 {
			t.Errorf("opens of the copy for 5 reads: got %d, want 1", got)
		}
		if st := r.handler.Stats(); st.Opens[1].Files-before.Opens[1].Files != 1 || st.Opens[1].Bytes-before.Opens[1].Bytes != 5<<20 {
			t.Errorf("opens: %+v before 5 reads, %+v after", before.Opens, st.Opens)
		}
		// Also while reads continue, a removed copy is noticed.
		r.check(r.stores[0].Remove(t.Context(), "f"))
		for range 10 {
			time.Sleep(recentAge / 2)
			read()
		}
		r.settled()
		if _, err := r.stores[0].Stat(t.Context(), "f"); err != nil {
			t.Errorf("the removed copy is not made again: %v", err)
		}
	})
}

// An unopened is an Object that reads a file without opening it.
type unopened struct {
	handler *Handler
	entry   *metadata.Entry
}

func (u unopened) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	return u.handler.ReadAt(ctx, u.entry, p, off)
}
func (u unopened) Info() drivers.Info { return u.entry.Info() }
func (u unopened) Close() error       { return nil }

// Reads with and without an open share files, which are opened and closed all the time.
func TestFilesRace(t *testing.T) {
	r := newRig(t, rigOptions{quotas: []int64{300 << 10}, ttl: 10 * time.Millisecond, handles: 2})
	var want [8][]byte
	for i := range want {
		want[i] = r.put(fmt.Sprint("f", i), 100_000+i)
	}
	var readers sync.WaitGroup
	for seed := range 8 {
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(seed), 1))
			for range 300 {
				i := rng.IntN(len(want))
				name := fmt.Sprint("f", i)
				if seed%2 == 0 {
					r.wantFile(name, want[i])
				} else {
					off := rng.IntN(len(want[i]) - 1000)
					r.wantAt(unopened{r.handler, r.entry(name)}, off, 1000, want[i])
				}
			}
		})
	}
	for range 100 {
		r.handler.files.sweep(time.Now().Add(time.Hour))
		time.Sleep(time.Millisecond)
	}
	readers.Wait()
}

// backing registers the backing file of obj for a moment.
func backing(obj drivers.Object) error {
	release, err := obj.(*file).BackingFile(func(uintptr) error { return nil })
	if err == nil {
		release()
	}
	return err
}

// A file has a backing file where it is on a tier; at the source, if it is large and stays there.
func TestBackingFile(t *testing.T) {
	r := newRig(t, rigOptions{quotas: []int64{10 << 20}})
	register := func(name string) error {
		obj := r.open(name)
		defer obj.Close()
		return backing(obj)
	}
	r.put("copy", 1<<20)
	r.put("large", 11<<20)
	r.put("small", backingFrom-1)
	r.put("full", 4<<20)
	if _, err := r.read("full"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.read("copy"); err != nil {
		t.Fatal(err)
	}
	r.settled()
	// Files in memory have no descriptor, so that every request fails.
	for _, name := range []string{"copy", "large", "small"} {
		if err := register(name); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: got %v, want %v", name, err, errors.ErrUnsupported)
		}
	}
	if st := r.handler.Stats(); st.Passthrough[0].Files != 0 || st.Passthrough[1].Files != 0 {
		t.Errorf("opens without a backing file were counted as passthrough: %+v", st.Passthrough)
	}
}

// Files that are opened in the order of their names are prefetched. Files that are opened in
// another order are not.
func TestPrefetchedInOrder(t *testing.T) {
	for _, c := range []struct {
		name  string
		order func(i int) int
		files int
		size  int
		most  int64 // files prefetched after the last one that was opened
		least int64
	}{
		{"in order", func(i int) int { return i }, 12, 10_000, maxDepth + 1, 16},
		{"two readers, nearly in order", func(i int) int { return i ^ 1 }, 12, 10_000, maxDepth + 1, 16},
		{"every third", func(i int) int { return 3 * i }, 12, 10_000, maxDepth + 1, 16},
		{"backwards", func(i int) int { return 199 - i }, 12, 10_000, 0, 0},
		{"far apart", func(i int) int { return i * 67 % 200 }, 12, 10_000, 0, 0},
		{"large ones", func(i int) int { return i }, 4, maxAhead/2 + 1, 1, 1},
		{"middling ones", func(i int) int { return i }, 6, maxAhead / 4, 4, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, rigOptions{quotas: []int64{1 << 40}})
				total := 200
				if c.size > 1<<20 {
					total = 12
				}
				data := make([]byte, c.size)
				for i := range total {
					r.mem.Put(fmt.Sprintf("d/%03d", i), data)
				}
				_, err := r.names.List(t.Context(), r.entry("d"))
				r.check(err)
				last := 0
				for i := range c.files {
					last = max(last, c.order(i))
					obj := r.open(fmt.Sprintf("d/%03d", c.order(i)))
					if _, err := obj.ReadAt(t.Context(), make([]byte, min(c.size, wantedRun)), 0); err != nil && err != io.EOF {
						t.Error(err)
					}
					obj.Close()
					time.Sleep(time.Second)
				}
				r.settled()
				st := r.handler.Stats()
				ahead := int64(0)
				for i := last + 1; i < total; i++ {
					if r.entry(fmt.Sprintf("d/%03d", i)).Level() != 0 {
						ahead++
					}
				}
				if ahead > c.most || ahead < c.least {
					t.Errorf("files prefetched after the last open: got %d, want %d to %d", ahead, c.least, c.most)
				}
				if (st.Prefetched > 0) != (c.least > 0) {
					t.Errorf("files prefetched: got %d", st.Prefetched)
				}
				if got := r.from.Count(drivertest.OpOpen); got != st.Placed {
					t.Errorf("opens at the source: got %d for %d files", got, st.Placed)
				}
			})
		})
	}
}

// A file that cannot be prefetched, because no tier has room or because the source does not
// open it, is read when it is opened. The other files are prefetched.
func TestCannotBePrefetched(t *testing.T) {
	for _, c := range []struct {
		name       string
		quota      int64
		rule       drivertest.Rule
		prefetched int64
		attempts   int64 // opens at the source before the other files are opened
	}{
		// Files 2 to 9 are predicted after the open of file 1, and those up to 18 after that of
		// file 2, or up to 19 if six files before have vanished.
		{"readable", 1 << 30, drivertest.Rule{Op: drivertest.OpStatfs}, 17, 19},
		{"no room", 6 * 12 << 10, drivertest.Rule{Op: drivertest.OpStatfs}, 4, 6},
		{"not readable", 1 << 30, drivertest.Rule{Op: drivertest.OpOpen, Name: "d/00[4-9]", Err: errBroken}, 11, 19},
		{"not there", 1 << 30, drivertest.Rule{Op: drivertest.OpOpen, Name: "d/00[4-9]", Err: fs.ErrNotExist}, 12, 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, rigOptions{quotas: []int64{c.quota}, workers: 1}) // which reserves room in order
				var want [20][]byte
				for i := range want {
					want[i] = r.put(fmt.Sprintf("d/%03d", i), 10_000+i)
				}
				_, err := r.names.List(t.Context(), r.entry("d"))
				r.check(err)
				r.from.Add(c.rule)
				for i := range 3 {
					r.wantFile(fmt.Sprintf("d/%03d", i), want[i])
					time.Sleep(time.Second)
				}
				r.settled()
				if got := r.handler.Stats().Prefetched; got != c.prefetched {
					t.Errorf("files prefetched: got %d, want %d", got, c.prefetched)
				}
				if got := r.from.Count(drivertest.OpOpen); got != c.attempts {
					t.Errorf("opens at the source: got %d, want %d", got, c.attempts)
				}
				r.from.Clear()
				time.Sleep(maxBackoff)
				for i := range want {
					r.wantFile(fmt.Sprintf("d/%03d", i), want[i])
				}
				r.settled()
			})
		})
	}
}

// After a file that is open at the source has failed, the next open opens it again.
func TestBrokenSourceIsOpenedAgain(t *testing.T) {
	r := newRig(t, rigOptions{quotas: []int64{4096}, handles: 10})
	data := r.put("f", 1<<20)
	r.wantFile("f", data)
	r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Err: errBroken, Times: 1})
	held := r.open("f")
	if _, err := r.read("f"); !errors.Is(err, errBroken) {
		t.Errorf("read of a failing file: got %v, want %v", err, errBroken)
	}
	r.wantFile("f", data)
	if got := r.from.Count(drivertest.OpOpen); got != 2 {
		t.Errorf("opens at the source: got %d, want 2", got)
	}
	held.Close()
	r.wantFile("f", data)
	if got := r.source.opened(); got != 1 {
		t.Errorf("open at the source: got %d, want 1", got)
	}
}

// The open of an idle file verifies its version, and returns the error that an open at the
// source would.
func TestIdleFileHasChanged(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, random(1, 10_000), 0o600); err != nil {
		t.Fatal(err)
	}
	source, err := posix.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	r := newRig(t, rigOptions{over: source, handles: 10})
	r.wantFile("f", random(1, 10_000))
	if err := os.WriteFile(path, random(2, 10_001), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.handler.Open(t.Context(), r.entry("f")); !errors.Is(err, drivers.ErrChanged) {
		t.Errorf("open of a rewritten file: got %v, want %v", err, drivers.ErrChanged)
	}
	r.wantFile("f", random(2, 10_001))
}

// A file that is to be prefetched and is opened is read at once, also when all workers wait for
// files that hang.
func TestOpenedBeforePrefetch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, workers: 2})
		for i := range 40 {
			r.put(fmt.Sprintf("d/%03d", i), 10_000)
		}
		_, err := r.names.List(t.Context(), r.entry("d"))
		r.check(err)
		r.from.Add(drivertest.Rule{Op: drivertest.OpOpen, Hang: true, Match: func(name string) bool { return name > "d/002" && name < "d/005" }})
		for i := range 3 {
			r.wantFile(fmt.Sprintf("d/%03d", i), random(uint64(5)<<32+10_000, 10_000))
		}
		time.Sleep(time.Second)
		if got := r.from.Hung(); got != 2 {
			t.Fatalf("opens that hang: got %d, want those of both workers", got)
		}
		r.wantFile("d/006", random(uint64(5)<<32+10_000, 10_000))
		r.from.Clear()
		r.settled()
	})
}

// Files that wait to be prefetched when the handler stops are not claimed.
func TestStoppedDuringPrefetch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, workers: 1})
		for i := range 40 {
			r.put(fmt.Sprintf("d/%03d", i), 10_000)
		}
		_, err := r.names.List(t.Context(), r.entry("d"))
		r.check(err)
		r.from.Add(drivertest.Rule{Op: drivertest.OpRead, Hang: true, Match: func(name string) bool { return name > "d/002" }})
		for i := range 3 {
			r.wantFile(fmt.Sprintf("d/%03d", i), random(uint64(5)<<32+10_000, 10_000))
		}
		synctest.Wait()
		if r.from.Hung() == 0 {
			t.Fatal("no file is being prefetched")
		}
		r.stop()
		synctest.Wait() // before the requests that hang are answered
		r.end()
		for i := 3; i < 40; i++ {
			if e := r.entry(fmt.Sprintf("d/%03d", i)); e.Claimed() || e.Level() != 0 {
				t.Errorf("%s is still claimed", e.Path())
			}
		}
	})
}

// A stateless read of a placed file, and a read of an open one, allocate nothing before they
// reach the tier.
func TestReadPathAllocatesNothing(t *testing.T) {
	r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
	data := r.put("f", 1<<20)
	r.wantFile("f", data)
	r.settled()
	e := r.entry("f")
	r.wantAt(unopened{r.handler, e}, 0, 1000, data)
	if got := testing.AllocsPerRun(100, func() {
		f, fresh := r.handler.files.acquire(r.handler, e)
		if fresh {
			t.Error("the file is not open any more")
		}
		v, err := f.enterView(t.Context())
		if err != nil {
			t.Error(err)
		}
		v.leave()
		if f.outdated() {
			t.Error("the file is read in a fill")
		}
		r.handler.files.release(f)
	}); got != 0 {
		t.Errorf("allocations: got %v, want none", got)
	}
}

// A close that hangs does not keep other files from being closed.
func TestSweepDuringHungClose(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{})
		hung, other := r.put("hung", 1000), r.put("other", 2000)
		r.from.Add(drivertest.Rule{Op: drivertest.OpClose, Name: "hung", Hang: true})
		r.wantAt(unopened{r.handler, r.entry("hung")}, 0, 1000, hung)
		time.Sleep(2 * recentAge)
		if got := r.from.Hung(); got != 1 {
			t.Fatalf("closes that hang: got %d, want 1", got)
		}
		r.wantAt(unopened{r.handler, r.entry("other")}, 0, 1000, other)
		time.Sleep(2 * recentAge)
		if got := r.source.opened(); got != 1 {
			t.Errorf("open at the source: got %d, want only the file whose close hangs", got)
		}
		r.from.Clear()
	})
}

// A close at the source that hangs keeps neither the sweep nor the end of the handler from
// going on.
func TestHungCloseAtSource(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{4096}, ttl: time.Second, handles: 10})
		want := r.put("f", 1<<20)
		r.wantFile("f", want)
		r.from.Add(drivertest.Rule{Op: drivertest.OpClose, Hang: true})
		other := r.put("f", 2<<20)
		time.Sleep(2 * time.Second) // longer than the TTL of names
		r.wantFile("f", other)
		time.Sleep(3 * recentAge) // the sweep closes the handle of the first version
		if got := r.from.Hung(); got != 1 {
			t.Fatalf("%d closes hang, want that of the first version", got)
		}
		third := r.put("f", 3<<20)
		time.Sleep(2 * time.Second)
		r.wantFile("f", third)
		time.Sleep(3 * recentAge) // the sweep goes on, and closes that of the second one
		if got := r.from.Hung(); got != 2 {
			t.Errorf("%d closes hang, want 2: the sweep stopped at the first", got)
		}
		start := time.Now()
		r.stop()
		ended := make(chan struct{})
		go func() {
			r.running.Wait()
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Error("the handler did not end while a close hangs")
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("the end took %v", took)
		}
		r.from.Clear()
	})
}

// A stateless read of a copy that cannot be read is repeated at the source, although the file is
// opened again for each attempt.
func TestStatelessReadOfBadCopy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
		data := r.put("f", 1<<20)
		r.wantFile("f", data)
		r.settled()
		r.stop()
		r.running.Wait() // from now on, no file is kept open
		r.to[0].Add(drivertest.Rule{Op: drivertest.OpRead, Err: fs.ErrPermission})
		p := make([]byte, 1000)
		for attempt := range 2 {
			_, err := r.handler.ReadAt(t.Context(), r.entry("f"), p, 0)
			if retry := attempt == 0; errors.Is(err, drivers.ErrRetry) != retry || !retry && err != nil {
				t.Errorf("attempt %d: got %v", attempt+1, err)
			}
		}
		if got := r.entry("f").Level(); got != 1 {
			t.Errorf("level: got %d, want 1", got)
		}
	})
}
