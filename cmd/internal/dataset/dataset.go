// Package dataset makes synthetic datasets: files with pseudo-random content and
// known checksums.
package dataset

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

// A File is a file of a dataset.
type File struct {
	Name string `json:"name"` // relative to the folder of the dataset
	Size int64  `json:"size"`
	CRC  uint32 `json:"crc"` // checksum of the content; see Checksum
}

// castagnoli is the polynomial for which processors have an instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum adds p to a checksum, which begins as 0.
func Checksum(sum uint32, p []byte) uint32 { return crc32.Update(sum, castagnoli, p) }

// Size returns the total size of the files.
func Size(files []File) int64 {
	total := int64(0)
	for _, f := range files {
		total += f.Size
	}
	return total
}

// Write writes the files to a folder and sets their checksums.
func Write(ctx context.Context, folder string, files []File) error {
	for i := range files {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := files[i].Write(folder, uint64(i)); err != nil {
			return fmt.Errorf("write the dataset: %w", err)
		}
	}
	return nil
}

// Write writes the file to a folder and sets its checksum. Each seed gives a
// different content.
func (f *File) Write(folder string, seed uint64) error {
	path := filepath.Join(folder, f.Name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	sum := crc32.New(castagnoli)
	w := bufio.NewWriterSize(io.MultiWriter(out, sum), 256<<10)
	if _, err := io.CopyN(w, content(seed), f.Size); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	f.CRC = sum.Sum32()
	return out.Close()
}

// content returns an endless stream of bytes, a different one for each seed.
func content(seed uint64) io.Reader {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return rand.NewChaCha8(key)
}
