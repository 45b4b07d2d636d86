package placement

import (
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/tiers"
)

// A corrupt copy is removed and counted once. Its readers get the bytes of the source, and the
// file is copied again.
func TestCorruptCopy(t *testing.T) {
	r := newDisk(t, rigOptions{quotas: []int64{1 << 30}})
	data := r.placed(map[string]int{"f": 3 << 20})["f"]
	remove := r.to[0].Add(drivertest.Rule{Op: drivertest.OpRead, Err: drivers.ErrCorrupt})
	obj := r.open("f")
	r.wantAt(obj, 1<<20, 1<<20, data)
	remove()
	obj.Close()
	r.settled()
	r.wantFile("f", data)
	r.settled()
	tier := r.levels.Tier(1).Stats()
	if tier.Corrupt != 1 || tier.Files != 1 || tier.Health != tiers.Healthy || r.entry("f").Level() != 1 {
		t.Errorf("%d corrupt copies, %d files, %v, level %d; want 1, 1, healthy, 1",
			tier.Corrupt, tier.Files, tier.Health, r.entry("f").Level())
	}
	if got := r.from.Bytes(drivertest.OpRead); got != 6<<20 {
		t.Errorf("source bytes: got %d, want twice the file", got)
	}
}

// A copy that was found to be corrupt, and was replaced before it could be removed, is not taken
// for the new one.
func TestCorruptCopyWasReplaced(t *testing.T) {
	r := newDisk(t, rigOptions{quotas: []int64{1 << 30}})
	data := r.placed(map[string]int{"f": 1000})["f"]
	e := r.entry("f")
	old, err := r.levels.Tier(1).Open(t.Context(), e.CopyName(), e.Info())
	r.check(err)
	defer old.Close()
	_, err = r.handler.Retract(e)
	r.check(err)
	r.wantFile("f", data)
	r.settled()
	r.handler.corrupt(e, 1, old, drivers.ErrCorrupt)
	if tier := r.levels.Tier(1).Stats(); e.Level() != 1 || tier.Files != 1 || tier.Corrupt != 0 {
		t.Errorf("level %d, %d files, %d corrupt; want 1, 1, 0", e.Level(), tier.Files, tier.Corrupt)
	}
}

// A file whose modification time was restored after it was rewritten is copied again, as soon
// as its attributes are validated. A change of the mode explains a new change time.
func TestRestoredModificationTime(t *testing.T) {
	r := newRig(t, rigOptions{quotas: []int64{1 << 30}, ttl: time.Millisecond})
	r.wantFile("f", r.put("f", 1000))
	r.settled()
	old := r.entry("f").Info()
	data := random(77, 1000)
	r.mem.PutAt("f", data, old.Mtime)
	time.Sleep(200 * time.Millisecond)
	r.wantFile("f", data)
	r.settled()
	if copied, err := r.stores[0].Stat(t.Context(), "f"); err != nil || !r.entry("f").Info().SameContent(copied) {
		t.Errorf("the copy is not that of the new content: %v", err)
	}
	if got := r.levels.Tier(1).Stats().Files; got != 1 {
		t.Errorf("%d copies, want 1", got)
	}
}

// A change of the mode explains one change time, and not later ones. The file is not copied again
// for it.
func TestModeExplainsOneChangeTime(t *testing.T) {
	r := newDisk(t, rigOptions{quotas: []int64{1 << 30}, ttl: time.Millisecond})
	data := r.placed(map[string]int{"f": 1000})["f"]
	old := r.entry("f").Info()
	r.mem.Chmod("f", 0o600)
	time.Sleep(200 * time.Millisecond)
	r.wantFile("f", data)
	r.settled()
	if got := r.from.Bytes(drivertest.OpRead); got != 1000 {
		t.Errorf("source bytes after chmod: got %d, want 1000", got)
	}
	rewritten := random(9, 1000)
	r.mem.PutAt("f", rewritten, old.Mtime)
	r.mem.Chmod("f", 0o600)
	time.Sleep(200 * time.Millisecond)
	r.wantFile("f", rewritten)
}

// With passthrough, a copy of several blocks is checked as soon as it is placed. If it is corrupt,
// it is removed, and its room is returned.
func TestCopyIsCheckedEarly(t *testing.T) {
	for _, early := range []bool{false, true} {
		r := newDisk(t, rigOptions{quotas: []int64{1 << 30}, passthrough: early})
		r.to[0].Add(drivertest.Rule{Op: drivertest.OpRead, Err: drivers.ErrCorrupt})
		for name, size := range map[string]int{"small": 1000, "large": 3 << 20} {
			r.wantFile(name, r.put(name, size))
			r.eventually("the copy is checked", func() bool {
				s := r.handler.Stats()
				return s.InFlight == 0 && s.Background == 0 && s.Unchecked == 0
			})
			want := tiers.Level(1)
			if early && size > drivers.ChecksumBlock {
				want = tiers.AtSource
			}
			if got := r.entry(name).Level(); got != want {
				t.Errorf("early %v, %s: level %d, want %d", early, name, got, want)
			}
		}
		if !early {
			continue
		}
		// The fill keeps its handle of the copy for a moment after its end.
		r.eventually("the room of the corrupt copy is returned", func() bool { return r.levels.Tier(1).Stats().Used == 4096 })
		if tier := r.levels.Tier(1).Stats(); tier.Files != 1 || tier.Corrupt != 1 {
			t.Errorf("%d files, %d corrupt; want 1, 1", tier.Files, tier.Corrupt)
		}
	}
}
