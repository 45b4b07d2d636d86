package tiers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/posix"
)

// used returns the bytes that the account of a tier has in use.
func used(tier *Tier) int64 { return tier.Stats().Used }

// memoryTier returns a tier in memory that holds copies of the given files of one page.
func memoryTier(t *testing.T, names ...string) *Tier {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "milkweed-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	store, err := posix.OpenStore(posix.StoreConfig{Tier: dir, Dataset: "d", Source: "/src", Mountpoint: "/mnt", Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	tier, stop := startTier(t, store, Quota{Bytes: 1 << 20})
	t.Cleanup(stop)
	for _, name := range names {
		mustPlace(t, tier, name, allocationUnit)
	}
	return tier
}

// A copy in a tier has the checksums of its store.
func TestCopyHasChecksums(t *testing.T) {
	tier := memoryTier(t, "f")
	o, err := tier.Open(bg, "f", info(allocationUnit))
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	c, ok := drivers.As[drivers.Checksummer](o)
	if !ok {
		t.Fatal("not a Checksummer")
	}
	if sums, err := c.Checksums(0, 1); len(sums) != 1 || err != nil {
		t.Errorf("got %v, %v; want one checksum", sums, err)
	}
}

// The room of a removed copy is returned when the last handle, splice descriptor or backing
// file is released, since the file occupies the disk until then.
func TestRemovedCopyKeepsItsRoomWhileOpen(t *testing.T) {
	for _, c := range []struct {
		name string
		hold func(t *testing.T, o drivers.Object) (release func()) // closes o at the latest
	}{
		{"handle", func(t *testing.T, o drivers.Object) func() { return func() { o.Close() } }},
		{"splice descriptor", func(t *testing.T, o drivers.Object) func() {
			s, ok := drivers.As[drivers.Splicer](o)
			if !ok {
				t.Fatal("not a Splicer")
			}
			_, release, err := s.SpliceDescriptor()
			if err != nil {
				t.Fatal(err)
			}
			o.Close()
			return func() { release(0) }
		}},
		{"backing file", func(t *testing.T, o drivers.Object) func() {
			b, ok := drivers.As[drivers.BackingFiler](o)
			if !ok {
				t.Fatal("not a BackingFiler")
			}
			release, err := b.BackingFile(func(uintptr) error { return nil })
			if err != nil {
				t.Fatal(err)
			}
			o.Close()
			return release
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tier := memoryTier(t, "f", "g")
			first, err := tier.Open(bg, "f", info(allocationUnit))
			if err != nil {
				t.Fatal(err)
			}
			second, err := tier.Open(bg, "f", info(allocationUnit))
			if err != nil {
				t.Fatal(err)
			}
			release := c.hold(t, first)
			if err := tier.Remove(bg, "f"); err != nil {
				t.Fatal(err)
			}
			if s := tier.Stats(); s.Used != 2*allocationUnit || s.Files != 1 {
				t.Errorf("removed while open: %d bytes of %d files, want %d of 1", s.Used, s.Files, 2*allocationUnit)
			}
			if n, err := second.ReadAt(bg, make([]byte, 10), 0); n != 10 || err != nil {
				t.Errorf("read of a removed copy: %d bytes, %v", n, err)
			}
			mustPlace(t, tier, "f", allocationUnit) // another copy of the same name
			second.Close()
			if got := used(tier); got != 3*allocationUnit {
				t.Errorf("with one user left: %d bytes, want %d", got, 3*allocationUnit)
			}
			release()
			if got := used(tier); got != 2*allocationUnit {
				t.Errorf("without users: %d bytes, want %d", got, 2*allocationUnit)
			}
			if err := tier.Remove(bg, "f"); err != nil {
				t.Fatal(err)
			}
			if got := used(tier); got != allocationUnit {
				t.Errorf("the other copy removed: %d bytes, want %d", got, allocationUnit)
			}
		})
	}
}

// The writer of a committed copy holds it, too: a fill is read through its writer.
func TestCommittedWriterHoldsItsCopy(t *testing.T) {
	tier := memoryTier(t)
	room, ok := tier.Reserve(bg, 10)
	if !ok {
		t.Fatal("no room")
	}
	w, err := tier.Create(bg, "f", info(10))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteAt(make([]byte, 10), 0); err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	room.Commit()
	if err := tier.Remove(bg, "f"); err != nil {
		t.Fatal(err)
	}
	if got := used(tier); got != allocationUnit {
		t.Errorf("while the writer is open: %d bytes, want %d", got, allocationUnit)
	}
	if n, err := w.ReadAt(make([]byte, 10), 0); n != 10 || err != nil {
		t.Errorf("read back: %d bytes, %v", n, err)
	}
	w.Close()
	if got := used(tier); got != 0 {
		t.Errorf("after Close: %d bytes", got)
	}
}

// Copies are opened, removed and replaced at the same time. In the end the account equals
// the content of the store.
func TestRemoveWhileOpened(t *testing.T) {
	mem := drivertest.NewMem(0)
	tier, stop := startTier(t, mem, Quota{Bytes: 1 << 30})
	defer stop()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(3, uint64(i)))
			for range 2000 {
				name := fmt.Sprint(rng.IntN(3))
				switch rng.IntN(3) {
				case 0:
					tier.Remove(bg, name) // fails if another change is in progress
				case 1:
					place(tier, name, allocationUnit)
				default:
					o, err := tier.Open(bg, name, info(allocationUnit))
					if err != nil {
						continue
					}
					if n, err := o.ReadAt(bg, make([]byte, 100), 0); n != 100 || err != nil && err != io.EOF {
						t.Errorf("read: %d bytes, %v", n, err)
					}
					o.Close()
				}
			}
		})
	}
	wg.Wait()
	checkAccount(t, tier, mem)
	if n := len(tier.space.open); n > 0 {
		t.Errorf("%d copies count as open", n)
	}
}

// slowOpen is a store whose Open hangs after it has opened the file, as in an fstat after the
// openat.
type slowOpen struct {
	drivers.Store
	hang chan struct{}
}

func (s *slowOpen) Open(ctx context.Context, name string) (drivers.Object, error) {
	o, err := s.Store.Open(ctx, name)
	<-s.hang
	return o, err
}

// An open that was abandoned may hold the copy, whose room is kept until the file is closed.
func TestAbandonedOpenHoldsItsCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := drivertest.NewMem(0)
		want := mem.Put("f", make([]byte, allocationUnit))
		store := &slowOpen{mem, make(chan struct{})}
		tier, stop := startTier(t, store, Quota{Bytes: 1 << 20})
		defer stop()
		if _, err := tier.Open(bg, "f", want); !errors.Is(err, drivers.ErrAbandoned) {
			t.Fatalf("got %v, want an abandoned open", err)
		}
		time.Sleep(maxProbe) // a probe succeeds
		if err := tier.Remove(bg, "f"); err != nil {
			t.Fatal(err)
		}
		if got := used(tier); got != allocationUnit {
			t.Errorf("while the open hangs: %d bytes, want %d", got, allocationUnit)
		}
		close(store.hang)
		synctest.Wait()
		if got := used(tier); got != 0 {
			t.Errorf("after the late open was closed: %d bytes", got)
		}
	})
}

// Nothing is removed before the scan, since the account may not include it.
func TestRemoveBeforeScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := drivertest.NewMem(0)
		mem.Put("f", make([]byte, allocationUnit))
		store := drivertest.NewFaults(mem)
		store.Add(drivertest.Rule{Op: drivertest.OpReadDir, Hang: true})
		h, stop := start(t, Options{}, Config{Name: "ram", Store: store, Quota: Quota{Bytes: 2 * allocationUnit}})
		defer stop()
		tier := h.Tier(1)
		if err := tier.Remove(bg, "f"); !errors.Is(err, errNotScanned) {
			t.Errorf("got %v, want %v", err, errNotScanned)
		}
		store.Clear()
		h.WaitScanned(bg)
		checkAccount(t, tier, mem)
	})
}
