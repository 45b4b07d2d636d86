// Package filelist reads lists of files: plans, and the files of an exchange. `milkweed plan --help` describes
// their syntax.
package filelist

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/milkweedfs/milkweed/cmd/internal/paths"
	"github.com/milkweedfs/milkweed/placement"
)

// maxPath is the length in bytes of the longest path in a list, with the mount point.
const maxPath = 8192

// Errors of files that are no lists.
var (
	ErrNUL   = errors.New("it has a NUL byte, and is no list of paths with one on each line")
	ErrEmpty = errors.New("it has no paths")
)

// Read calls f for each path in r, which ends with end: '\n', or NUL. The path is then a name in the form of
// drivers.ValidName: one below a mount point, which may have several spellings, is made relative to it. Empty
// paths are omitted. Read returns the first error of r or f, or that of the first path that is not the name of
// a file in the mount, with its number. If end is '\n' and there is a NUL, the error is ErrNUL.
func Read(r io.Reader, end byte, points []string, f func(name string) error) error {
	in := bufio.NewReaderSize(r, maxPath+2)
	unit, found := "path", false
	if end == '\n' {
		unit = "line"
	}
	for number := 1; ; number++ {
		path, err := in.ReadSlice(end)
		switch {
		case err == bufio.ErrBufferFull:
			return fmt.Errorf("%s %d: a path of more than %d bytes", unit, number, maxPath)
		case err != nil && err != io.EOF:
			return err
		}
		last := err == io.EOF
		path = bytes.TrimSuffix(path, []byte{end})
		if end == '\n' {
			path = bytes.TrimSuffix(path, []byte{'\r'})
			if bytes.IndexByte(path, 0) >= 0 {
				return ErrNUL
			}
		}
		if len(path) > 0 {
			found = true
			name, err := placement.ListedName(relative(string(path), points))
			if err != nil {
				return fmt.Errorf("%s %d: %w", unit, number, err)
			}
			if err := f(name); err != nil {
				return err
			}
		}
		switch {
		case last && !found:
			return ErrEmpty
		case last:
			return nil
		}
	}
}

// relative returns a path relative to the mount point that it is below, if it is below one.
func relative(path string, points []string) string {
	for _, point := range points {
		if name, ok := paths.Rel(path, point); ok && point != "" {
			return strings.TrimLeft(name, "/")
		}
	}
	return path
}

// checked is how much of a file Check reads: a mount must be ready at once.
const checked = 64 << 10

// Check returns an error if the beginning of a file shows that it is no list of paths, one on each line.
func Check(name string, points []string) error {
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
	begin, err := io.ReadAll(io.LimitReader(f, checked))
	if end := bytes.LastIndexByte(begin, '\n'); len(begin) == checked && end >= 0 {
		begin = begin[:end] // the line after it may be cut
	}
	if err == nil {
		err = Read(bytes.NewReader(begin), '\n', points, func(string) error { return nil })
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
