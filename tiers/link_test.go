package tiers

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/posix"
)

// startFolder starts a tier in a folder.
func startFolder(t *testing.T, config posix.StoreConfig) (tier *Tier, stop func()) {
	t.Helper()
	store, err := posix.OpenStore(config)
	if err != nil {
		t.Fatal(err)
	}
	tier, end := startTier(t, store, Quota{Bytes: 1 << 30})
	return tier, func() {
		end()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A link takes no room, and the last name of a copy returns it.
func TestLinkTakesNoRoom(t *testing.T) {
	tier, stop := startFolder(t, posix.StoreConfig{Tier: t.TempDir(), Dataset: "data", Source: "test"})
	defer stop()
	want := func(when string, used, files int64) {
		t.Helper()
		if s := tier.Stats(); s.Used != used || s.Files != files {
			t.Errorf("%s: %d bytes in %d files, want %d in %d", when, s.Used, s.Files, used, files)
		}
	}
	mustPlace(t, tier, "v1/a", 10000)
	mustPlace(t, tier, "v2/a", 5000)
	link := func() {
		t.Helper()
		if err := tier.Link(bg, "v1/a", "v2/a", info(10000)); err != nil {
			t.Fatal(err)
		}
	}
	link()
	want("a link in the place of a copy", Allocated(10000), 2)
	o, err := tier.Open(bg, "v1/a", info(10000))
	if err != nil {
		t.Fatal(err)
	}
	if err := tier.Remove(bg, "v1/a"); err != nil {
		t.Error(err)
	}
	want("the first name removed", Allocated(10000), 1)
	o.Close()
	want("and closed", Allocated(10000), 1)
	if err := tier.Link(bg, "v1/a", "v3/a", info(10000)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link of a missing copy: %v", err)
	}
	if err := tier.Remove(bg, "v2/a"); err != nil {
		t.Error(err)
	}
	want("the last name removed", 0, 0)

	mem, stopMem := startTier(t, drivertest.NewMem(0), Quota{Bytes: 1 << 20})
	defer stopMem()
	mustPlace(t, mem, "a", 100)
	if err := mem.Link(bg, "a", "b", info(100)); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a store that is no Linker: %v", err)
	}
}

// While copies are made, linked and removed at the same time, the account stays that of the next scan.
func TestAccountOfLinks(t *testing.T) {
	config := posix.StoreConfig{Tier: t.TempDir(), Dataset: "data", Source: "test"}
	tier, stop := startFolder(t, config)
	var workers sync.WaitGroup
	for i := range 4 {
		workers.Go(func() {
			rng := rand.New(rand.NewPCG(2, uint64(i)))
			for range 500 {
				a, b := fmt.Sprintf("v%d/f", rng.IntN(6)), fmt.Sprintf("v%d/f", rng.IntN(6))
				var err error
				switch rng.IntN(4) {
				case 0:
					_, err = place(tier, a, 6000)
				case 1:
					err = tier.Remove(bg, a)
				default:
					if a != b {
						err = tier.Link(bg, a, b, info(6000))
					}
				}
				if err != nil && !errors.Is(err, errBusy) && !errors.Is(err, fs.ErrNotExist) {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
	before := tier.Stats()
	stop()
	tier, stop = startFolder(t, config)
	defer stop()
	if after := tier.Stats(); after.Used != before.Used || after.Files != before.Files {
		t.Errorf("the scan found %d bytes in %d files, and the account had %d in %d", after.Used, after.Files, before.Used, before.Files)
	}
}
