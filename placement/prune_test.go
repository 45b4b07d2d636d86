package placement

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/posix"
	"github.com/milkweedfs/milkweed/metadata"
)

// prune revalidates the names and runs Prune to its end.
func (r *rig) prune(opts PruneOptions) (last PruneReport, err error) {
	r.t.Helper()
	if opts.Paths == nil {
		opts.Paths = []string{"."}
	}
	r.revalidate()
	_, err = r.handler.Prune(context.Background(), opts, func(p PruneReport) { last = p })
	return last, err
}

// revalidate compares the cached names with the source.
func (r *rig) revalidate() {
	r.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var kernel sync.WaitGroup
	kernel.Go(func() {
		for range r.names.Outdated(ctx) {
		}
	})
	r.check(r.names.Revalidate(ctx, []string{"."}, func(metadata.Finding) {}))
	stop()
	kernel.Wait()
}

// onDisks returns the files in the tiers.
func (d *disk) onDisks() (names []string) {
	d.t.Helper()
	for _, folder := range d.folders {
		d.check(filepath.WalkDir(folder, func(p string, e fs.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() {
				name, _ := filepath.Rel(folder, p)
				names = append(names, name)
			}
			return err
		}))
	}
	slices.Sort(names)
	return names
}

// Prune removes the copies of files that the source does not have, in all tiers, and no other. A dry
// run finds the same copies. Open files stay readable, and the room returns.
func TestPrune(t *testing.T) {
	d := newDisk(t, rigOptions{quotas: []int64{64 << 10, 1 << 30}})
	sizes := map[string]int{"top": 1000, "was": 1000}
	for i := range 10 {
		sizes[fmt.Sprintf("a/%d", i)] = 20_000
		sizes[fmt.Sprintf("gone/below/%d", i)] = 20_000
	}
	sizes["a/now/a/directory"] = 5000
	content := d.placed(sizes)
	open := d.open("a/3")
	defer open.Close()
	removed := []string{"a/3", "a/4", "was", "a/now/a/directory"}
	for i := range 10 {
		removed = append(removed, fmt.Sprintf("gone/below/%d", i))
	}
	for _, name := range removed {
		d.mem.Delete(name)
	}
	d.mem.Delete("gone/below")
	d.mem.Delete("gone")
	d.mem.Mkdir("was") // a directory has the name of the file now
	all := d.onDisks()
	if len(all) != len(sizes) {
		t.Fatalf("%d copies, want %d", len(all), len(sizes))
	}

	want := PruneReport{DryRun: true, NeedsForce: true, Examined: int64(len(sizes)), Orphans: 14, Unproven: 1, Bytes: 12*20480 + 4096 + 8192}
	if got, err := d.prune(PruneOptions{DryRun: true}); err != nil || got != want {
		t.Errorf("dry run: %+v, %v; want %+v", got, err, want)
	}
	if got := d.onDisks(); !slices.Equal(got, all) {
		t.Errorf("after a dry run, the tiers have %q", got)
	}
	want.DryRun, want.NeedsForce, want.Removed, want.Freed = false, false, want.Orphans, want.Bytes
	if got, err := d.prune(PruneOptions{Force: true}); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for _, name := range removed {
		delete(content, name)
	}
	if got := d.onDisks(); len(got) != len(content) || slices.ContainsFunc(got, func(name string) bool { return content[name] == nil }) {
		t.Errorf("the tiers have %q", got)
	}
	p := make([]byte, 20_000)
	if err := readAt(context.Background(), open, p, 0); err != nil || !bytes.Equal(p, random(uint64(len("a/3"))<<32+20_000, 20_000)) {
		t.Errorf("the open file of a pruned copy is not readable: %v", err)
	}
	open.Close()
	d.wantAccount()
	before := d.from.Count(drivertest.OpRead)
	for name, data := range content {
		d.wantFile(name, data)
	}
	if n := d.from.Count(drivertest.OpRead) - before; n > 0 {
		t.Errorf("%d reads at the source for files that have copies", n)
	}
	want = PruneReport{Examined: int64(len(content))}
	if got, err := d.prune(PruneOptions{}); err != nil || got != want {
		t.Errorf("a second time: %+v, %v; want %+v", got, err, want)
	}
}

// Prune below a path leaves other copies.
func TestPruneBelowPath(t *testing.T) {
	d := newDisk(t, rigOptions{quotas: []int64{1 << 30}})
	d.placed(map[string]int{"a/1": 100, "a/2": 100, "b/1": 100, "kept": 100})
	for _, name := range []string{"a/1", "a/2", "b/1"} {
		d.mem.Delete(name)
	}
	if got, err := d.prune(PruneOptions{Paths: []string{"b", "a/2"}, Force: true}); err != nil || got.Removed != 2 {
		t.Errorf("%+v, %v; want 2 removed", got, err)
	}
	if got, want := d.onDisks(), []string{"a/1", "kept"}; !slices.Equal(got, want) {
		t.Errorf("the tiers have %q, want %q", got, want)
	}
}

// Prune removes nothing if the source is empty or cannot be listed.
func TestPruneRefusesASuspiciousSource(t *testing.T) {
	d := newDisk(t, rigOptions{quotas: []int64{1 << 30}})
	d.placed(map[string]int{"1": 100, "2": 100})
	remove := d.from.Add(drivertest.Rule{Op: drivertest.OpReadDir, Err: syscall.EIO})
	if _, err := d.prune(PruneOptions{}); !errors.Is(err, syscall.EIO) {
		t.Errorf("a source that cannot be listed: %v", err)
	}
	remove()
	d.mem.Delete("1")
	d.mem.Delete("2")
	if _, err := d.prune(PruneOptions{}); !errors.Is(err, ErrEmptySource) {
		t.Errorf("an empty source: %v", err)
	}
	if got := d.onDisks(); len(got) != 2 {
		t.Errorf("the tiers have %q", got)
	}
}

// If the source lacks the files of more than half of the copies below a path, nothing is removed.
func TestPruneOfMost(t *testing.T) {
	for _, tt := range []struct {
		name    string
		gone    []string
		opts    PruneOptions
		want    PruneReport
		wantErr error
		dirs    []PrunedDir
	}{
		{"half", []string{"a/1", "a/2", "b/1"}, PruneOptions{}, PruneReport{Orphans: 3, Removed: 3}, nil, nil},
		{"more", []string{"a/1", "a/2", "b/1", "b/2"}, PruneOptions{}, PruneReport{Orphans: 4}, ErrManyOrphans,
			[]PrunedDir{{"a", 2, 8192, ""}, {"b", 2, 8192, ""}}},
		{"more, dry run", []string{"a/1", "a/2", "b/1", "b/2"}, PruneOptions{DryRun: true}, PruneReport{DryRun: true, NeedsForce: true, Orphans: 4}, nil,
			[]PrunedDir{{"a", 2, 8192, ""}, {"b", 2, 8192, ""}}},
		{"more, by force", []string{"a/1", "a/2", "b/1", "b/2"}, PruneOptions{Force: true}, PruneReport{Orphans: 4, Removed: 4}, nil, nil},
		{"more of one path", []string{"a/1", "b/1", "b/2"}, PruneOptions{Paths: []string{"a", "b"}}, PruneReport{Orphans: 3}, ErrManyOrphans,
			[]PrunedDir{{"a", 1, 4096, ""}, {"b", 2, 8192, ""}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newDisk(t, rigOptions{quotas: []int64{1 << 30}})
			d.placed(map[string]int{"a/1": 100, "a/2": 100, "a/3": 100, "b/1": 100, "b/2": 100, "b/3": 100})
			for _, name := range tt.gone {
				d.mem.Delete(name)
			}
			d.revalidate()
			if tt.opts.Paths == nil {
				tt.opts.Paths = []string{"."}
			}
			var got PruneReport
			dirs, err := d.handler.Prune(t.Context(), tt.opts, func(p PruneReport) { got = p })
			tt.want.Examined, tt.want.Bytes, tt.want.Freed = 6, 4096*tt.want.Orphans, 4096*tt.want.Removed
			if !errors.Is(err, tt.wantErr) || got != tt.want {
				t.Errorf("got %+v, %v\nwant %+v, %v", got, err, tt.want, tt.wantErr)
			}
			if !slices.Equal(dirs, tt.dirs) {
				t.Errorf("the directories are %+v, want %+v", dirs, tt.dirs)
			}
			if n := int64(len(d.onDisks())); n != 6-tt.want.Removed {
				t.Errorf("%d copies, want %d", n, 6-tt.want.Removed)
			}
		})
	}
}

// A directory that is empty now proves nothing about its files, nor about those of directories that were in
// it; an emptied directory in one that is not empty neither. The others are removed.
func TestPruneOfAnEmptiedDirectory(t *testing.T) {
	d := newDisk(t, rigOptions{quotas: []int64{1 << 30}})
	content := map[string]int{"kept/1": 100, "kept/sub/1": 100, "a/1": 100, "b/deep/1": 100, "b/deep/2": 100}
	for i := range 10 {
		content[fmt.Sprint("more/", i)] = 100
	}
	d.placed(content)
	for _, name := range []string{"kept/1", "kept/sub/1", "a/1", "b/deep/1", "b/deep/2", "b/deep"} {
		d.mem.Delete(name)
	}
	d.revalidate()
	var got PruneReport
	dirs, err := d.handler.Prune(t.Context(), PruneOptions{Paths: []string{"."}}, func(p PruneReport) { got = p })
	if !errors.Is(err, ErrUnproven) || got.Orphans != 5 || got.Unproven != 4 || got.Removed != 1 {
		t.Errorf("%+v, %v; want 5 orphans, 4 of them unproven", got, err)
	}
	want := []PrunedDir{{"a", 1, 4096, "it is empty"}, {"b/deep", 2, 8192, "it is empty"}, {"kept/sub", 1, 4096, "it is empty"}}
	if !slices.Equal(dirs, want) {
		t.Errorf("the directories are %+v, want %+v", dirs, want)
	}
	if got, err := d.prune(PruneOptions{Force: true}); err != nil || got.Removed != 4 {
		t.Errorf("by force: %+v, %v; want 4 removed", got, err)
	}
}

// What the source does not answer for stays, and so does a file that the cached names lack.
func TestPruneKeepsWhatItCannotExamine(t *testing.T) {
	d := newDisk(t, rigOptions{quotas: []int64{1 << 30}})
	d.placed(map[string]int{"a/gone": 100, "a/fails": 100, "a/back": 100, "b/kept": 100, "c/kept": 100})
	for _, name := range []string{"gone", "fails", "back"} {
		d.mem.Delete("a/" + name)
	}
	d.revalidate()
	d.put("a/back", 200) // the container has cached that it is gone
	d.from.Add(drivertest.Rule{Op: drivertest.OpStat, Name: "a/fails", Err: syscall.EIO})
	var last PruneReport
	_, err := d.handler.Prune(t.Context(), PruneOptions{Paths: []string{"."}}, func(p PruneReport) { last = p })
	d.check(err)
	if last.Orphans != 1 || last.Removed != 1 || last.Failed != 1 || last.Error == "" {
		t.Errorf("%+v; want 1 orphan and 1 that failed", last)
	}
	if got, want := d.onDisks(), []string{"a/back", "a/fails", "b/kept", "c/kept"}; !slices.Equal(got, want) {
		t.Errorf("the tiers have %q, want %q", got, want)
	}
}

// A tier that cannot be listed is skipped, and the copies of the others are removed.
func TestPruneSkipsATier(t *testing.T) {
	d := newDisk(t, rigOptions{quotas: []int64{4096, 1 << 30}})
	for _, name := range []string{"1", "2", "kept"} {
		d.put(name, 4000)
	}
	for _, name := range []string{"1", "2", "kept"} {
		d.wantFile(name, random(uint64(len(name))<<32+4000, 4000))
		d.settled()
	}
	d.mem.Delete("1")
	d.mem.Delete("2")
	d.to[0].Add(drivertest.Rule{Op: drivertest.OpReadDir, Err: syscall.EIO})
	got, err := d.prune(PruneOptions{Force: true})
	if err != nil || got.Skipped != 1 || got.Removed != 1 || got.Error == "" {
		t.Errorf("%+v, %v; want 1 tier skipped and 1 copy removed", got, err)
	}
}

// Copies of pieces go with their file, also when the mount that finds them divides no files; copies
// of pieces of the file's present size stay.
func TestPruneOfPieces(t *testing.T) {
	for _, divides := range []bool{true, false} {
		t.Run(fmt.Sprint(divides), func(t *testing.T) {
			tier := t.TempDir()
			store, err := posix.OpenStore(posix.StoreConfig{Tier: tier, Dataset: "data", Source: "test"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { store.Close() })
			opts := divided(1, 1<<30)
			opts[0].onDisk = []drivers.Store{store}
			c := newCluster(t, opts...)
			for _, name := range []string{"d/kept", "d/gone", "d/shorter"} {
				c.files[name] = random(1, 4*testPiece)
				c.mem.Put(name, c.files[name])
			}
			c.epoch(1)
			c.settle()
			r := c.nodes[0].rig
			d := &disk{r, []string{tier + "/data/files"}}
			before := d.onDisks()
			if len(before) != 12 {
				t.Fatalf("the tier has %q", before)
			}
			c.mem.Delete("d/gone")
			c.mem.Put("d/shorter", random(2, 3*testPiece))
			if !divides {
				names, err := metadata.New(t.Context(), r.levels, metadata.Options{}, r.handler.log)
				r.check(err)
				defer names.Close()
				defer func(old *metadata.Container) { r.names, r.handler.names = old, old }(r.names)
				r.names, r.handler.names = names, names
			}
			got, err := r.prune(PruneOptions{Force: true})
			if err != nil || got.Orphans != 8 || got.Removed != 8 {
				t.Errorf("%+v, %v; want 8 removed", got, err)
			}
			if after := d.onDisks(); len(after) != 4 {
				t.Errorf("the tier has %q", after)
			}
		})
	}
}

// A bucket costs the listings that are not cached, and nothing for a copy whose file is there.
func TestPruneOfABucket(t *testing.T) {
	r := newRig(t, rigOptions{quotas: []int64{1 << 30}, bucket: new(drivertest.Bucket)})
	content := make(map[string][]byte)
	for i := range 20 {
		name := fmt.Sprintf("d/%02d", i)
		content[name] = r.put(name, 1000)
	}
	for name, data := range content {
		r.wantFile(name, data)
	}
	r.settled()
	for i := range 5 {
		r.mem.Delete(fmt.Sprintf("d/%02d", i))
	}
	if got, err := r.prune(PruneOptions{}); err != nil || got.Examined != 20 || got.Removed != 5 || got.Failed != 0 {
		t.Errorf("%+v, %v; want 5 of 20 removed", got, err)
	}
}
