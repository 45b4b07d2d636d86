// Package planfile reads files that list paths in the order in which a job will open them.
package planfile

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// MaxPath is the length of the longest path in bytes.
const MaxPath = 4096

// Errors of files that are not plans.
var (
	ErrNUL   = errors.New("it has a NUL byte, and is no list of paths with one on each line")
	ErrEmpty = errors.New("it has no paths")
)

// Read calls f for each path in r, which ends with end: '\n', or NUL. It omits empty paths, and
// the end of a path that is longer than MaxPath. It returns the first error of r or f. If end is
// '\n' and there is a NUL, the error is ErrNUL.
func Read(r io.Reader, end byte, f func(path []byte) error) error {
	in := bufio.NewReaderSize(r, MaxPath+2)
	for {
		path, err := in.ReadSlice(end)
		path = bytes.TrimSuffix(path, []byte{end})
		if end == '\n' {
			path = bytes.TrimSuffix(path, []byte{'\r'})
			if bytes.IndexByte(path, 0) >= 0 {
				return ErrNUL
			}
		}
		if len(path) > 0 {
			if err := f(path); err != nil {
				return err
			}
		}
		for err == bufio.ErrBufferFull {
			_, err = in.ReadSlice(end)
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// checked is how much of a file Check reads: a mount must be ready at once.
const checked = 64 << 10

// Check returns an error if the beginning of a file shows that it is no list of paths.
func Check(name string) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a file", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	n := 0
	err = Read(io.LimitReader(f, checked), '\n', func(path []byte) error {
		if n++; len(path) > MaxPath {
			return fmt.Errorf("path %d is longer than %d bytes", n, MaxPath)
		}
		return nil
	})
	if err == nil && n == 0 {
		err = ErrEmpty
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
