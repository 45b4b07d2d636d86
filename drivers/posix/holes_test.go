package posix

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

// Holes finds the holes of a file, up to MaxHoles. Blocks are those of stat(2).
func TestHoles(t *testing.T) {
	wantNoLeak(t)
	const hole = 1 << 16
	for _, tmp := range tempFolders(t) {
		t.Run(tmp.fsType, func(t *testing.T) {
			root := tmp.make(t)
			d := openDir(t, root)
			files := map[string]struct {
				size int64
				data []int64 // offsets of data
				want []drivers.Hole
			}{
				"empty":     {0, nil, nil},
				"full":      {4096, []int64{0}, nil},
				"all hole":  {3 * hole, nil, []drivers.Hole{{Start: 0, End: 3 * hole}}},
				"two holes": {5*hole + 7, []int64{0, 3 * hole}, []drivers.Hole{{Start: 4096, End: 3 * hole}, {Start: 3*hole + 4096, End: 5*hole + 7}}},
			}
			for name, f := range files {
				makeSparse(t, filepath.Join(root, name), f.size, f.data)
				holes, info, err := d.Holes(ctx, name)
				if !slices.Equal(holes, f.want) || err != nil {
					t.Errorf("%s: got %v, %v, want %v", name, holes, err, f.want)
				}
				var st unix.Stat_t
				if err := unix.Stat(filepath.Join(root, name), &st); err != nil || info.Size != f.size || info.Blocks != st.Blocks {
					t.Errorf("%s: got size %d and %d blocks, want %d and %d, %v", name, info.Size, info.Blocks, f.size, st.Blocks, err)
				}
				if got, want := info.IsSparse(), f.want != nil; got != want {
					t.Errorf("%s: IsSparse is %v", name, got)
				}
			}

			var many []int64
			for i := range int64(drivers.MaxHoles + 10) {
				many = append(many, 2*i*hole)
			}
			makeSparse(t, filepath.Join(root, "many"), many[len(many)-1]+hole, many)
			if holes, _, err := d.Holes(ctx, "many"); len(holes) != drivers.MaxHoles || err != nil {
				t.Errorf("a file with many holes: got %d, %v, want %d", len(holes), err, drivers.MaxHoles)
			}

			if _, _, err := d.Holes(ctx, "missing"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a missing file: %v", err)
			}
			if _, _, err := d.Holes(ctx, "."); !errors.Is(err, unix.EISDIR) {
				t.Errorf("a directory: %v", err)
			}
			done, cancel := context.WithCancel(ctx)
			cancel()
			if _, _, err := d.Holes(done, "full"); !errors.Is(err, context.Canceled) {
				t.Errorf("a done context: %v", err)
			}
		})
	}
}

// makeSparse makes a file with 4096 bytes of data at each of the offsets.
func makeSparse(t *testing.T, path string, size int64, data []int64) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	page := make([]byte, 4096)
	page[0] = 1
	for _, off := range data {
		if _, err := f.WriteAt(page, off); err != nil {
			t.Fatal(err)
		}
	}
}
