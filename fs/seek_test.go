package fs

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// The kernel sends no more LSEEK if the source does not know the holes of files.
func TestSourceWithoutHoles(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	source := struct{ drivers.Driver }{drivertest.NewMem(0)}
	levels, err := tiers.New(source, nil, tiers.Options{}, log)
	if err != nil {
		t.Fatal(err)
	}
	names, err := metadata.New(t.Context(), levels, metadata.Options{}, log)
	if err != nil {
		t.Fatal(err)
	}
	f := &fileSystem{names: names, log: log}
	if got := f.Lseek(nil, new(fuse.LseekIn), new(fuse.LseekOut)); got != statusNeverAgain {
		t.Errorf("got %v, want %v", got, statusNeverAgain)
	}
}

func TestSeek(t *testing.T) {
	inside := []drivers.Hole{{Start: 2, End: 4}, {Start: 6, End: 7}}
	for _, test := range []struct {
		name       string
		holes      []drivers.Hole
		data, hole []int64 // from each offset of a file of 8 bytes, and the offset after it
	}{
		{"none", nil, []int64{0, 1, 2, 3, 4, 5, 6, 7, -1}, []int64{8, 8, 8, 8, 8, 8, 8, 8, -1}},
		{"inside", inside, []int64{0, 1, 4, 4, 4, 5, 7, 7, -1}, []int64{2, 2, 2, 3, 6, 6, 6, 8, -1}},
		{"at the start", []drivers.Hole{{Start: 0, End: 3}}, []int64{3, 3, 3, 3, 4, 5, 6, 7, -1}, []int64{0, 1, 2, 8, 8, 8, 8, 8, -1}},
		{"at the end", []drivers.Hole{{Start: 5, End: 8}}, []int64{0, 1, 2, 3, 4, -1, -1, -1, -1}, []int64{5, 5, 5, 5, 5, 5, 6, 7, -1}},
		{"all", []drivers.Hole{{Start: 0, End: 8}}, []int64{-1, -1, -1, -1, -1, -1, -1, -1, -1}, []int64{0, 1, 2, 3, 4, 5, 6, 7, -1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var data, hole []int64
			for off := range int64(9) {
				data = append(data, seek(test.holes, 8, off, unix.SEEK_DATA))
				hole = append(hole, seek(test.holes, 8, off, unix.SEEK_HOLE))
			}
			if !slices.Equal(data, test.data) || !slices.Equal(hole, test.hole) {
				t.Errorf("data: got %v, want %v\nhole: got %v, want %v", data, test.data, hole, test.hole)
			}
			if got := seek(test.holes, 8, -1, unix.SEEK_DATA); got != -1 {
				t.Errorf("before the file: got %d", got)
			}
		})
	}
}
