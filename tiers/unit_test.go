package tiers

import (
	"context"
	"errors"
	"hash/fnv"
	"maps"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/posix"
)

// A blockStore is a Mem on a file system that allocates multiples of unit, and more for some copies. It
// gives a copy the inode number of its name.
type blockStore struct {
	*drivertest.Mem
	unit int64

	mu   sync.Mutex       // guards the following
	more map[string]int64 // bytes beyond that, by the name of a copy
}

func (s *blockStore) Statfs(ctx context.Context) (drivers.Statfs, error) {
	st, err := s.Mem.Statfs(ctx)
	st.Unit = s.unit
	return st, err
}

func (s *blockStore) setMore(name string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.more == nil {
		s.more = make(map[string]int64)
	}
	s.more[name] = bytes
}

func (s *blockStore) withBlocks(name string, info drivers.Info) drivers.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := fnv.New64a()
	h.Write([]byte(name))
	info.Inode = h.Sum64()
	info.Blocks = (AllocatedIn(s.unit, info.Size) + s.more[name]) / drivers.BlockBytes
	return info
}

func (s *blockStore) Stat(ctx context.Context, name string) (drivers.Info, error) {
	info, err := s.Mem.Stat(ctx, name)
	return s.withBlocks(name, info), err
}

func (s *blockStore) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	infos, err := s.Mem.ReadDir(ctx, dir)
	for i, info := range infos {
		infos[i] = s.withBlocks(path.Join(dir, info.Name), info)
	}
	return infos, err
}

const cluster = 64 << 10

// wantAccount checks what the account of a tier has.
func wantAccount(t *testing.T, when string, tier *Tier, bytes, files int64) {
	t.Helper()
	if s := tier.Stats(); s.Used != bytes || s.Files != files || s.Filling != 0 {
		t.Errorf("%s: got %d bytes in %d files, %d in flight; want %d in %d", when, s.Used, s.Files, s.Filling, bytes, files)
	}
}

// Room is reserved in the unit of the file system.
func TestUnit(t *testing.T) {
	store := &blockStore{Mem: drivertest.NewMem(0), unit: cluster}
	tier, stop := startTier(t, store, Quota{Bytes: 4*cluster + cluster/2})
	defer stop()
	for _, name := range []string{"a", "b", "c"} {
		mustPlace(t, tier, name, 1000)
	}
	wantAccount(t, "three clusters", tier, 3*cluster, 3)
	if tier.Fits(cluster + 1) {
		t.Error("room for two clusters, and one is left")
	}
	if _, ok := tier.Reserve(bg, cluster+1); ok {
		t.Error("two clusters were reserved, and one is left")
	}
	mustPlace(t, tier, "d", cluster)
	wantAccount(t, "four clusters", tier, 4*cluster, 4)
	if ok, _ := place(tier, "e", 1); ok || tier.Fits(1) {
		t.Error("room for a cluster in half of one")
	}
	if n := len(tier.space.oddities); n != 0 { // each takes memory
		t.Errorf("%d copies are odd", n)
	}
	var found []int64
	if err := tier.Copies(bg, ".", func(copies []CopyInfo) error {
		for _, c := range copies {
			found = append(found, c.Room)
		}
		return nil
	}); err != nil || !slices.Equal(found, []int64{cluster, cluster, cluster, cluster}) {
		t.Errorf("the room of copies: got %d, %v", found, err)
	}
}

// A unit that is known late, or changes, counts for further copies, and the account is right.
func TestUnitIsKnownLate(t *testing.T) {
	store := &blockStore{Mem: drivertest.NewMem(0), unit: cluster}
	var known atomic.Int64
	tier, stop := startTier(t, &lateUnit{store, &known}, Quota{Bytes: 4 * cluster})
	defer stop()
	mustPlace(t, tier, "a", 1000)
	mustPlace(t, tier, "lost", 1000)
	wantAccount(t, "two clusters", tier, 2*cluster, 2)
	if !tier.Fits(3 * allocationUnit) {
		t.Error("no room for three units of 4 KiB")
	}
	known.Store(cluster)
	mustPlace(t, tier, "b", 1000)
	mustPlace(t, tier, "c", 1000)
	if ok, _ := place(tier, "d", 1); ok {
		t.Error("a fifth cluster")
	}
	wantAccount(t, "four clusters", tier, 4*cluster, 4)
	store.Delete("lost")
	tier.Lost("lost", 1000)
	wantAccount(t, "three clusters", tier, 3*cluster, 3)
	for _, name := range []string{"a", "b", "c"} {
		if err := tier.Remove(bg, name); err != nil {
			t.Error(err)
		}
	}
	wantAccount(t, "nothing", tier, 0, 0)
}

// A lateUnit is a blockStore that does not know its unit at first.
type lateUnit struct {
	*blockStore
	known *atomic.Int64
}

func (s *lateUnit) Statfs(ctx context.Context) (drivers.Statfs, error) {
	st, err := s.blockStore.Statfs(ctx)
	st.Unit = s.known.Load()
	return st, err
}

// A copy that occupies less than was expected counts with that: content beside the attributes, on NTFS.
func TestFewerBlocks(t *testing.T) {
	store := &blockStore{Mem: drivertest.NewMem(0), unit: cluster}
	store.setMore("a", -cluster+512)
	tier, stop := startTier(t, store, Quota{Bytes: 2 * cluster})
	defer stop()
	mustPlace(t, tier, "a", 500)
	wantAccount(t, "in less than a block", tier, allocationUnit, 1)
	mustPlace(t, tier, "b", 500)
	wantAccount(t, "another", tier, allocationUnit+cluster, 2)
	if err := tier.Remove(bg, "a"); err != nil {
		t.Error(err)
	}
	wantAccount(t, "removed", tier, cluster, 1)
}

// A copy counts with the blocks that it has, if these are more than its size needs, until it is removed: then
// it returns as much as it took, whatever its blocks are by then.
func TestMoreBlocks(t *testing.T) {
	const size, more = 1000, 8 << 10
	kept := errors.New("kept")
	for _, test := range []struct {
		name        string
		do          func(tier *Tier, faults *drivertest.Faults, mem *drivertest.Mem) error
		bytes, file int64 // afterwards
	}{
		{"remove", func(tier *Tier, _ *drivertest.Faults, _ *drivertest.Mem) error { return tier.Remove(bg, "a") }, 0, 0},
		{"a removal that fails", func(tier *Tier, faults *drivertest.Faults, _ *drivertest.Mem) error {
			faults.Add(drivertest.Rule{Op: drivertest.OpRemove, Err: kept})
			if err := tier.Remove(bg, "a"); !errors.Is(err, kept) {
				return errors.Join(errors.New("removed"), err)
			}
			return nil
		}, allocationUnit + more, 1},
		{"a removal that fails, and another", func(tier *Tier, faults *drivertest.Faults, _ *drivertest.Mem) error {
			faults.Add(drivertest.Rule{Op: drivertest.OpRemove, Err: kept})
			tier.Remove(bg, "a")
			faults.Clear()
			return tier.Remove(bg, "a")
		}, 0, 0},
		{"a removal of one that was found, which fails", func(tier *Tier, faults *drivertest.Faults, _ *drivertest.Mem) error {
			faults.Add(drivertest.Rule{Op: drivertest.OpRemove, Err: kept})
			err := tier.Copies(bg, ".", func(copies []CopyInfo) error {
				_, err := tier.RemoveFound(bg, copies[0])
				return err
			})
			if !errors.Is(err, kept) {
				return errors.Join(errors.New("removed"), err)
			}
			return nil
		}, allocationUnit + more, 1},
		{"remove one that was found", func(tier *Tier, _ *drivertest.Faults, _ *drivertest.Mem) error {
			return tier.Copies(bg, "a", func(copies []CopyInfo) error {
				if got := copies[0].Room; got != allocationUnit+more/2 { // by its blocks now
					return errors.New("another room")
				}
				_, err := tier.RemoveFound(bg, copies[0])
				return err
			})
		}, 0, 0},
		{"commit over it", func(tier *Tier, _ *drivertest.Faults, _ *drivertest.Mem) error {
			mustPlace(t, tier, "a", 2*allocationUnit)
			return nil
		}, 2*allocationUnit + more/2, 1},
		{"a copy that was lost", func(tier *Tier, _ *drivertest.Faults, mem *drivertest.Mem) error {
			mem.Delete("a")
			tier.Lost("a", size)
			return nil
		}, 0, 0},
		{"a copy that was lost, and is made again", func(tier *Tier, _ *drivertest.Faults, mem *drivertest.Mem) error {
			mem.Delete("a")
			tier.Lost("a", size)
			mustPlace(t, tier, "a", size)
			return nil
		}, allocationUnit + more/2, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := &blockStore{Mem: drivertest.NewMem(0), unit: allocationUnit}
			faults := drivertest.NewFaults(store)
			store.setMore("a", more)
			tier, stop := startTier(t, faults, Quota{Bytes: 1 << 20})
			defer stop()
			mustPlace(t, tier, "a", size)
			wantAccount(t, "a copy", tier, allocationUnit+more, 1)
			store.setMore("a", more/2)
			if err := test.do(tier, faults, store.Mem); err != nil {
				t.Fatal(err)
			}
			wantAccount(t, test.name, tier, test.bytes, test.file)
			if n := len(tier.space.oddities); int64(n) != test.file {
				t.Errorf("%d copies with more blocks: %v", n, slices.Collect(maps.Values(tier.space.oddities)))
			}
		})
	}

	t.Run("restart", func(t *testing.T) {
		store := &blockStore{Mem: drivertest.NewMem(0), unit: allocationUnit}
		for _, name := range []string{"a", "d/b"} {
			store.Put(name, make([]byte, allocationUnit))
			store.setMore(name, more)
		}
		tier, stop := startTier(t, store, Quota{Bytes: 1 << 20})
		defer stop()
		wantAccount(t, "a scan", tier, 2*(allocationUnit+more), 2)
		if err := tier.Remove(bg, "a"); err != nil {
			t.Error(err)
		}
		wantAccount(t, "one removed", tier, allocationUnit+more, 1)
	})

	t.Run("an open copy", func(t *testing.T) {
		store := &blockStore{Mem: drivertest.NewMem(0), unit: allocationUnit}
		store.setMore("a", more)
		tier, stop := startTier(t, store, Quota{Bytes: 1 << 20})
		defer stop()
		mustPlace(t, tier, "a", allocationUnit)
		o, err := tier.Open(bg, "a", info(allocationUnit))
		if err == nil {
			err = tier.Remove(bg, "a")
		}
		if err != nil {
			t.Fatal(err)
		}
		wantAccount(t, "removed, and open", tier, allocationUnit+more, 0)
		o.Close()
		wantAccount(t, "closed", tier, 0, 0)
	})
}

// A copy that gets the inode number of one that was lost under another name, as that of a link, takes its place in
// what is odd.
func TestLostUnderAnotherName(t *testing.T) {
	s := &space{basis: allocationUnit}
	odd := drivers.Info{Inode: 7, Size: 1, Blocks: 3 * allocationUnit / drivers.BlockBytes}
	s.settle("a", odd)
	s.lost("b", 1)
	s.settle("c", odd)
	if bytes, _ := s.returns("c", odd); s.used+allocationUnit != 2*allocationUnit || bytes != 3*allocationUnit {
		t.Errorf("got %d bytes, of which a removal returns %d", s.used+allocationUnit, bytes)
	}
}

// A tier on a disk with clusters holds as many copies as its quota has clusters, of which links take none.
func TestUnitOfDisk(t *testing.T) {
	disk := drivertest.Disk(t, "mkfs.ext4", "-q", "-m", "0", "-O", "bigalloc", "-C", "65536")
	tier, stop := startFolder(t, posix.StoreConfig{Tier: disk, Dataset: "data", Source: "test"})
	defer stop()
	mustPlace(t, tier, "v1/a", 10_000)
	mustPlace(t, tier, "v1/b", cluster+1)
	wantAccount(t, "two copies", tier, 3*cluster, 2)
	if err := tier.Link(bg, "v1/b", "v2/b", info(cluster+1)); err != nil {
		t.Fatal(err)
	}
	wantAccount(t, "a link", tier, 3*cluster, 3)
	for _, name := range []string{"v1/b", "v1/a"} {
		if err := tier.Remove(bg, name); err != nil {
			t.Error(err)
		}
	}
	wantAccount(t, "one of two names", tier, 2*cluster, 1)
	if err := tier.Remove(bg, "v2/b"); err != nil {
		t.Error(err)
	}
	wantAccount(t, "nothing", tier, 0, 0)
	var st syscall.Statfs_t
	if err := syscall.Statfs(disk, &st); err != nil || st.Bsize == cluster {
		t.Errorf("statfs(2) shows clusters of %d bytes: %v", st.Bsize, err)
	}
}
