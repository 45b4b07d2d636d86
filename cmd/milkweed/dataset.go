package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// A sample is a file of a dataset that is made here.
type sample struct {
	Name string `json:"name"` // below the dataset's folder
	Size int64  `json:"size"`
	CRC  uint32 `json:"crc"` // of its content, as crcTable makes it
}

// crcTable is of the polynomial that processors have an instruction for.
var crcTable = crc32.MakeTable(crc32.Castagnoli)

func totalSize(samples []sample) int64 {
	n := int64(0)
	for _, s := range samples {
		n += s.Size
	}
	return n
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
	sum := crc32.New(crcTable)
	w := bufio.NewWriterSize(io.MultiWriter(f, sum), 256<<10)
	if _, err := io.CopyN(w, content(seed), s.Size); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	s.CRC = sum.Sum32()
	return f.Close()
}

// content is an endless stream that no other seed gives.
func content(seed uint64) io.Reader {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return rand.NewChaCha8(key)
}

// measure notes the size and the checksum of the file as it is at path.
func (s *sample) measure(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := crc32.New(crcTable)
	s.Size, err = io.Copy(sum, f)
	s.CRC = sum.Sum32()
	return err
}
