package demo

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/milkweedfs/milkweed/cmd/internal/dataset"
)

// The dataset has small files with sizes like those of photographs, in folders,
// and large files like archives.
const (
	smallSize    = 60e3
	smallSpread  = 50e3
	smallFolders = 20
	largeSize    = 32e6
)

// plan returns the files of the dataset, without their checksums.
func plan(small, large int) []dataset.File {
	rng := rand.New(rand.NewPCG(1, 1))
	var files []dataset.File
	for i := range small {
		name := fmt.Sprintf("class%02d/%05d.jpg", i%smallFolders, i)
		files = append(files, dataset.File{Name: name, Size: smallSize + rng.Int64N(smallSpread)})
	}
	for i := range large {
		files = append(files, dataset.File{Name: fmt.Sprintf("shard%03d.tar", i), Size: largeSize})
	}
	return files
}

// shuffled returns the files in the order of an epoch.
func shuffled(files []dataset.File, epoch int) []dataset.File {
	order := slices.Clone(files)
	rng := rand.New(rand.NewPCG(2, uint64(epoch)))
	rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	return order
}
