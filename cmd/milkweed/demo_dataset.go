package main

import (
	"fmt"
	"math/rand/v2"
)

// The sizes of small files, as photographs have them, and of large ones.
const (
	smallSize   = 60e3
	smallSpread = 50e3
	largeSize   = 32e6
	classes     = 20 // folders for the small files
)

// planDataset returns the samples, without their checksums.
func planDataset(small, large int) []sample {
	rng := rand.New(rand.NewPCG(1, 1))
	var samples []sample
	for i := range small {
		name := fmt.Sprintf("class%02d/%05d.jpg", i%classes, i)
		samples = append(samples, sample{Name: name, Size: smallSize + rng.Int64N(smallSpread)})
	}
	for i := range large {
		samples = append(samples, sample{Name: fmt.Sprintf("shard%03d.tar", i), Size: largeSize})
	}
	return samples
}

// shuffled returns the samples in the order of an epoch.
func shuffled(samples []sample, epoch int) []sample {
	order := append([]sample(nil), samples...)
	rng := rand.New(rand.NewPCG(2, uint64(epoch)))
	rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	return order
}
