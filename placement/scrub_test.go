package placement

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/posix"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// A disk is a rig whose tiers are folders, with checksums.
type disk struct {
	*rig
	folders []string // of the copies of each tier
}

// newDisk makes a rig with a tier in a folder for each quota.
func newDisk(t *testing.T, opts rigOptions) *disk {
	t.Helper()
	d := &disk{}
	for range opts.quotas {
		tier := t.TempDir()
		store, err := posix.OpenStore(posix.StoreConfig{Tier: tier, Dataset: "data", Source: "test"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		opts.onDisk = append(opts.onDisk, store)
		d.folders = append(d.folders, filepath.Join(tier, "data", "files"))
	}
	d.rig = newRig(t, opts)
	return d
}

// placed makes files of the source with these sizes, places them, and returns their contents.
func (d *disk) placed(sizes map[string]int) map[string][]byte {
	d.t.Helper()
	content := make(map[string][]byte)
	for name, size := range sizes {
		content[name] = d.put(name, size)
		d.wantFile(name, content[name])
	}
	d.settled()
	return content
}

// flip inverts one bit of the copy of a file in a tier, and restores the modification time.
func (d *disk) flip(tier int, name string, off int64) {
	d.t.Helper()
	path := filepath.Join(d.folders[tier-1], name)
	info, err := os.Stat(path)
	d.check(err)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	d.check(err)
	defer f.Close()
	b := make([]byte, 1)
	_, err = f.ReadAt(b, off)
	d.check(err)
	b[0] ^= 4
	_, err = f.WriteAt(b, off)
	d.check(err)
	d.check(os.Chtimes(path, time.Time{}, info.ModTime()))
}

// scrub runs a scrub to its end and returns its last report.
func (d *disk) scrub(opts ScrubOptions) (last ScrubReport) {
	d.t.Helper()
	d.check(d.handler.Scrub(context.Background(), opts, func(r ScrubReport) { last = r }))
	if sum := last.CopiesRight + last.CopiesCorrupt + last.CopiesFailed + last.CopiesGone; !last.Ended || sum != last.CopiesFound {
		d.t.Errorf("the last report does not add up: %+v", last)
	}
	return last
}

// sourceOperations returns the number of operations on the source.
func (d *disk) sourceOperations() (sum int64) {
	for _, op := range []drivertest.Op{
		drivertest.OpOpen, drivertest.OpRead, drivertest.OpStat, drivertest.OpReadDir, drivertest.OpReadlink,
		drivertest.OpXattr, drivertest.OpACL, drivertest.OpHoles, drivertest.OpStatfs, drivertest.OpVerify, drivertest.OpStream,
	} {
		sum += d.from.Count(op)
	}
	return sum
}

// wantAccount checks that the account of each tier is that of the files in its folder.
func (d *disk) wantAccount() {
	d.t.Helper()
	for i, folder := range d.folders {
		var bytes, files int64
		d.check(filepath.Walk(folder, func(_ string, info os.FileInfo, err error) error {
			if err == nil && info.Mode().IsRegular() {
				bytes += (info.Size() + 4095) / 4096 * 4096
				files++
			}
			return err
		}))
		d.eventually("the account of the tier is that of its files", func() bool {
			st := d.levels.Tier(tiers.Level(i + 1)).Stats()
			return st.Used == bytes && st.Files == files && st.Filling == 0
		})
	}
}

// A scrub finds each copy that has changed since it was verified, and no other. It removes it,
// counts it and copies it again; the next read is right. Copies that are right cost the source
// no operation.
func TestScrub(t *testing.T) {
	d := newDisk(t, rigOptions{quotas: []int64{1 << 30}})
	content := d.placed(map[string]int{"a/small": 100, "a/block": 1 << 20, "b/large": 5<<20 + 7, "b/right": 3 << 20, "right": 9})
	before := d.sourceOperations()
	first := d.scrub(ScrubOptions{Path: "."})
	if !first.Clean() || first.CopiesRight != 5 || first.BytesRead != first.BytesFound || first.CopiesExpected != 5 {
		t.Errorf("the first scrub: %+v", first)
	}
	if got := d.sourceOperations() - before; got != 0 {
		t.Errorf("operations on the source: got %d, want none", got)
	}
	flips := map[string]int64{"a/small": 99, "a/block": 0, "b/large": 5<<20 + 6}
	for name, off := range flips {
		d.flip(1, name, off)
	}
	got := d.scrub(ScrubOptions{Path: "."})
	if got.Clean() || got.CopiesCorrupt != 3 || got.CopiesRight != 2 || got.Refetched != 3 || got.RefetchFailed != 0 || len(got.Errors) != 3 {
		t.Errorf("the scrub after the flips: %+v", got)
	}
	for name, data := range content {
		if l := d.entry(name).Level(); l != 1 {
			t.Errorf("%s: level %d, want 1", name, l)
		}
		d.wantFile(name, data)
	}
	d.wantAccount()
	if third := d.scrub(ScrubOptions{Path: "."}); !third.Clean() || third.CopiesRight != 5 {
		t.Errorf("the third scrub: %+v", third)
	}
	stats := d.handler.ScrubStats()
	if c := stats.ScrubCounters; c.Scrubs != 3 || c.Corrupt != 3 || c.Right != 12 || c.Refetched != 3 || c.Failed != 0 {
		t.Errorf("counters: %+v", c)
	}
	if stats.InProgress || stats.Last == nil || stats.LastEnd == 0 || d.levels.Tier(1).Stats().Corrupt != 3 {
		t.Errorf("stats: %+v", stats)
	}
}

// A scrub of a directory or of a file verifies only the copies in it.
func TestScrubPath(t *testing.T) {
	d := newDisk(t, rigOptions{quotas: []int64{1 << 30}})
	d.placed(map[string]int{"a/x": 100, "a/b/y": 200, "z": 300})
	for path, want := range map[string]int64{".": 3, "a": 2, "a/b": 1, "z": 1, "a/x": 1, "missing": 0, "z/below": 0} {
		if got := d.scrub(ScrubOptions{Path: path}); got.CopiesRight != want || got.CopiesFound != want {
			t.Errorf("%s: %d copies, %d right; want %d", path, got.CopiesFound, got.CopiesRight, want)
		}
	}
	if got := d.levels.Tier(1).Stats(); got.Errors != 0 || got.Health != tiers.Healthy {
		t.Errorf("%d errors of the tier, %v; want none", got.Errors, got.Health)
	}
}

// A file that is open while a scrub removes its copy is read from another place. So is one that
// is opened between two reads.
func TestScrubOpenFile(t *testing.T) {
	d := newDisk(t, rigOptions{quotas: []int64{1 << 30}})
	content := d.placed(map[string]int{"f": 3 << 20})
	obj := d.open("f")
	defer obj.Close()
	d.wantAt(obj, 0, 3<<20, content["f"])
	d.flip(1, "f", 2<<20)
	if got := d.scrub(ScrubOptions{Path: "."}); got.CopiesCorrupt != 1 || got.Refetched != 1 {
		t.Errorf("got %+v", got)
	}
	d.wantAt(obj, 0, 3<<20, content["f"])
	d.wantFile("f", content["f"])
}

// A copy whose entry is not loaded is verified by its own record. If it is corrupt, it is
// removed without a request to the source. The next open copies the file.
func TestScrubWithoutEntries(t *testing.T) {
	d := newDisk(t, rigOptions{quotas: []int64{1 << 30}})
	content := d.placed(map[string]int{"a/x": 100, "a/y": 2 << 20, "z": 300})
	d.flip(1, "a/y", 1<<20)
	names, err := metadata.New(t.Context(), d.levels, metadata.Options{TTL: time.Hour}, d.handler.log)
	d.check(err)
	d.names.Close()
	d.names, d.handler.names = names, names
	before := d.sourceOperations()
	got := d.scrub(ScrubOptions{Path: "."})
	if got.CopiesCorrupt != 1 || got.CopiesRight != 2 || got.Refetched+got.RefetchFailed != 0 {
		t.Errorf("got %+v", got)
	}
	if got := d.sourceOperations() - before; got != 0 {
		t.Errorf("operations on the source: got %d, want none", got)
	}
	d.wantAccount()
	for name, data := range content {
		d.wantFile(name, data)
	}
	d.settled()
	d.wantAccount()
}

// An entry that is loaded while its copy is being discarded does not take the copy off the
// account again.
func TestScrubWhileLoading(t *testing.T) {
	d := newDisk(t, rigOptions{quotas: []int64{1 << 30}})
	content := d.placed(map[string]int{"f": 5000, "g": 100})
	d.flip(1, "f", 1)
	tier := d.levels.Tier(1)
	obj, err := tier.OpenAny(t.Context(), "f")
	d.check(err)
	removed, err := tier.Discard(t.Context(), "f", obj)
	if !removed || err != nil {
		t.Fatalf("Discard: got %v, %v", removed, err)
	}
	d.check(obj.Close())
	d.wantFile("f", content["f"]) // the level of the entry is still 1
	d.settled()
	d.wantAccount()
	if e := d.entry("f"); e.Level() != 1 {
		t.Errorf("level %d, want 1", e.Level())
	}
	d.check(os.Remove(filepath.Join(d.folders[0], "f"))) // a loss after the next commit counts
	d.wantFile("f", content["f"])
	d.settled()
	d.wantAccount()
}

// Copies that were truncated, replaced or touched are corrupt. Files that Milkweed did not
// create are not removed.
func TestScrubDamaged(t *testing.T) {
	d := newDisk(t, rigOptions{quotas: []int64{1 << 30}})
	content := d.placed(map[string]int{"truncated": 9000, "touched": 100, "right": 100})
	d.check(os.Truncate(filepath.Join(d.folders[0], "truncated"), 10))
	d.check(os.Chtimes(filepath.Join(d.folders[0], "touched"), time.Time{}, time.Unix(1, 0)))
	other := filepath.Join(d.folders[0], "notes.txt")
	d.check(os.WriteFile(other, []byte("x"), 0o600))
	got := d.scrub(ScrubOptions{Path: "."})
	if got.CopiesCorrupt != 2 || got.CopiesRight != 1 || got.Refetched != 2 {
		t.Errorf("got %+v", got)
	}
	d.check(os.Remove(other))
	d.wantAccount()
	for name, data := range content {
		d.wantFile(name, data)
	}
}

// A scrub reads no more bytes than its rate allows.
func TestScrubRate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDisk(t, rigOptions{quotas: []int64{1 << 30}})
		d.placed(map[string]int{"large": 20 << 20, "small": 1000})
		var ended sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		var last ScrubReport
		ended.Go(func() {
			if err := d.handler.Scrub(ctx, ScrubOptions{Path: ".", Rate: 1 << 20}, func(r ScrubReport) { last = r }); !errors.Is(err, context.Canceled) {
				t.Errorf("Scrub: got %v, want that it was cancelled", err)
			}
		})
		for second := range int64(10) {
			time.Sleep(time.Second)
			synctest.Wait()
			// The last block was read already, and waits.
			if got := d.handler.ScrubStats().Current.BytesRead; got > (second+2)<<20+1000 || got < second<<20 {
				t.Errorf("after %d s: %d bytes were read, at 1 MiB per second", second+1, got)
			}
		}
		cancel()
		ended.Wait()
		if !last.Stopped || !last.Ended || d.handler.ScrubStats().LastEnd != 0 {
			t.Errorf("the report of a scrub that was cancelled: %+v", last)
		}
		if got := d.scrub(ScrubOptions{Path: "."}); !got.Clean() {
			t.Errorf("the next scrub: %+v", got)
		}
	})
}

// While a reader uses the tier, each block is delayed; the scrub still ends.
func TestScrubYields(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDisk(t, rigOptions{quotas: []int64{1 << 30}, tier: tiers.Options{Timeout: time.Hour}})
		content := d.placed(map[string]int{"a": 8 << 20, "b": 1000})
		d.to[0].Add(drivertest.Rule{Op: drivertest.OpRead, Name: "b", Delay: 10 * time.Minute, Times: 1})
		var reader sync.WaitGroup
		reader.Go(func() { d.wantFile("b", content["b"]) })
		time.Sleep(time.Second)
		start := time.Now()
		got := d.scrub(ScrubOptions{Path: "."})
		if took := time.Since(start); !got.Clean() || took != 9*maxScrubYield {
			t.Errorf("9 blocks beside a reader: %v, want %v; %+v", took, 9*maxScrubYield, got)
		}
		reader.Wait()
		start = time.Now()
		d.scrub(ScrubOptions{Path: "."})
		if took := time.Since(start); took != 0 {
			t.Errorf("9 blocks without a reader: %v, want no delay", took)
		}
	})
}

// A second scrub is refused while one is in progress.
func TestScrubTwice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDisk(t, rigOptions{quotas: []int64{1 << 30}})
		d.placed(map[string]int{"f": 3 << 20})
		var first sync.WaitGroup
		first.Go(func() { d.scrub(ScrubOptions{Path: ".", Rate: 1000}) })
		synctest.Wait()
		if err := d.handler.Scrub(t.Context(), ScrubOptions{Path: "."}, func(ScrubReport) {}); !errors.Is(err, ErrScrubInProgress) {
			t.Errorf("got %v, want %v", err, ErrScrubInProgress)
		}
		first.Wait()
		d.scrub(ScrubOptions{Path: "."})
	})
}

// A tier that is down is skipped and named. Copies that cannot be read are counted and stay.
func TestScrubFailingTier(t *testing.T) {
	d := newDisk(t, rigOptions{quotas: []int64{1 << 20, 1 << 30}, tier: tiers.Options{Probe: time.Hour}})
	d.placed(map[string]int{"a": 900 << 10})
	d.placed(map[string]int{"b": 900 << 10, "c": 100 << 10, "d": 900 << 10})
	remove := d.to[1].Add(drivertest.Rule{Op: drivertest.OpRead, Name: "b", Err: errBroken, Times: 1})
	got := d.scrub(ScrubOptions{Path: "."})
	if got.Clean() || got.CopiesFailed != 1 || got.CopiesRight != 3 || len(got.Errors) != 1 || len(got.Skipped) != 0 {
		t.Errorf("one copy not readable: %+v", got)
	}
	remove()
	d.to[1].Add(drivertest.Rule{Op: drivertest.OpRead, Err: errBroken})
	got = d.scrub(ScrubOptions{Path: "."})
	if got.CopiesRight != 2 && got.CopiesRight != 1 || got.CopiesFailed == 0 || got.CopiesCorrupt != 0 {
		t.Errorf("no copy readable: %+v", got)
	}
	for range 3 { // failed reads take the tier down
		if o, err := d.levels.Tier(2).OpenAny(t.Context(), "d"); err == nil {
			tiers.CheckObject(t.Context(), o, func(int) error { return nil })
			o.Close()
		}
	}
	got = d.scrub(ScrubOptions{Path: "."})
	if len(got.Skipped) != 1 || got.Skipped[0].Tier != "tier2" || got.Clean() || got.CopiesCorrupt != 0 {
		t.Errorf("a tier that is down: %+v", got)
	}
}

// Scrubs find nothing wrong while copies are made, read, removed and replaced.
func TestScrubUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("has many readers for long")
	}
	d := newDisk(t, rigOptions{quotas: []int64{8 << 20, 1 << 30}})
	content := make(map[string][]byte)
	for i := range 40 {
		name := "d" + strconv.Itoa(i%3) + "/" + strconv.Itoa(i)
		content[name] = d.put(name, 1000+i*30_001)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for worker := range 3 {
		load.Go(func() {
			for ctx.Err() == nil {
				for name, data := range content {
					d.wantFile(name, data)
					if worker == 0 && len(data)%4000 == 1000 {
						d.handler.Retract(d.entry(name))
					}
				}
			}
		})
	}
	var right int64
	for n := 0; n < 20 || right < 200 && !t.Failed(); n++ {
		got := d.scrub(ScrubOptions{Path: "."})
		right += got.CopiesRight
		if got.CopiesCorrupt+got.CopiesFailed != 0 || len(got.Skipped) != 0 {
			t.Errorf("a false report: %+v", got)
		}
	}
	cancel()
	load.Wait()
	d.settled()
	d.wantAccount()
	for _, tier := range d.levels.Tiers() {
		if got := tier.Stats(); got.Corrupt != 0 || got.Errors != 0 {
			t.Errorf("%s: %d corrupt copies, %d errors", got.Name, got.Corrupt, got.Errors)
		}
	}
}

// A corrupt copy that cannot be removed counts as failed and is not read.
func TestScrubCannotRemove(t *testing.T) {
	d := newDisk(t, rigOptions{quotas: []int64{1 << 30}})
	content := d.placed(map[string]int{"f": 3 << 20})
	obj := d.open("f")
	defer obj.Close()
	d.wantAt(obj, 0, 3<<20, content["f"])
	d.flip(1, "f", 1<<20)
	remove := d.to[0].Add(drivertest.Rule{Op: drivertest.OpRemove, Err: errBroken})
	got := d.scrub(ScrubOptions{Path: "."})
	if got.CopiesFailed != 1 || got.CopiesCorrupt != 0 || got.Refetched != 0 || len(got.Errors) != 1 || !got.Errors[0].Corrupt {
		t.Errorf("got %+v", got)
	}
	if !d.entry("f").Doubtful() {
		t.Error("the kernel keeps the pages that it has read from the copy")
	}
	d.wantAt(obj, 0, 3<<20, content["f"])
	d.wantFile("f", content["f"])
	remove()
	if got := d.scrub(ScrubOptions{Path: "."}); got.CopiesFailed != 0 {
		t.Errorf("after the tier has recovered: %+v", got)
	}
	d.wantFile("f", content["f"])
	d.settled()
	d.wantAccount()
}
