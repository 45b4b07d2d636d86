package placement

import (
	"errors"
	"io/fs"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/tiers"
)

// A corrupt copy is removed and counted once. Its readers get the bytes of the source, and the
// file is copied again.
func TestCorruptCopy(t *testing.T) {
	for _, op := range []drivertest.Op{drivertest.OpOpen, drivertest.OpRead} {
		t.Run(string(op), func(t *testing.T) {
			r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
			data := r.put("f", 3<<20)
			r.wantFile("f", data)
			r.settled()
			remove := r.to[0].Add(drivertest.Rule{Op: op, Err: drivers.ErrCorrupt})
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
		})
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

// Room for a copy that was rejected is returned.
func TestCopyIsReadBackBeforeItIsPublished(t *testing.T) {
	r := newRig(t, rigOptions{quotas: []int64{1 << 30}})
	r.to[0].Add(drivertest.Rule{Op: drivertest.OpOpen, Err: drivers.ErrCorrupt})
	for name, size := range map[string]int{"small": 1000, "large": 3 << 20} {
		data := r.put(name, size)
		r.wantFile(name, data)
		r.settled()
		want := tiers.Level(1)
		if size > drivers.ChecksumBlock {
			want = tiers.AtSource
		}
		if got := r.entry(name).Level(); got != want {
			t.Errorf("%s: level %d, want %d", name, got, want)
		}
	}
	if _, err := r.stores[0].Stat(t.Context(), "large"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the rejected copy: got %v, want none", err)
	}
	if tier := r.levels.Tier(1).Stats(); tier.Used != 4096 || tier.Filling != 0 || tier.Files != 1 || tier.Corrupt != 1 {
		t.Errorf("%d bytes used, %d filling, %d files, %d corrupt", tier.Used, tier.Filling, tier.Files, tier.Corrupt)
	}
}
