package main

import (
	"bufio"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// A sample is a file of the demo's dataset.
type sample struct {
	Name string `json:"name"` // below the dataset's folder
	Size int64  `json:"size"`
	CRC  uint32 `json:"crc"` // of its content, as crcTable makes it
}

// crcTable is of the polynomial that processors have an instruction for.
var crcTable = crc32.MakeTable(crc32.Castagnoli)

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

func totalSize(samples []sample) int64 {
	n := int64(0)
	for _, s := range samples {
		n += s.Size
	}
	return n
}

// shuffled returns the samples in the order of an epoch.
func shuffled(samples []sample, epoch int) []sample {
	order := append([]sample(nil), samples...)
	rng := rand.New(rand.NewPCG(2, uint64(epoch)))
	rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	return order
}

// writeDataset makes the files in a folder, and notes their checksums.
func writeDataset(ctx context.Context, dir string, samples []sample) error {
	for i := range samples {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := samples[i].write(dir, uint64(i)); err != nil {
			return fmt.Errorf("make the dataset: %w", err)
		}
	}
	return nil
}

// write makes the file, with content that no other seed gives.
func (s *sample) write(dir string, seed uint64) error {
	path := filepath.Join(dir, s.Name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	sum := crc32.New(crcTable)
	w := bufio.NewWriterSize(io.MultiWriter(f, sum), 256<<10)
	if _, err := io.CopyN(w, rand.NewChaCha8(key), s.Size); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	s.CRC = sum.Sum32()
	return f.Close()
}
