package main

import (
	"archive/zip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// writeNPZ makes the file a numpy archive of one array of bytes, of about the
// size of the sample, and notes its size.
func (s *sample) writeNPZ(dir string, seed uint64) error {
	path := filepath.Join(dir, s.Name)
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	z := zip.NewWriter(f)
	member, err := z.CreateHeader(&zip.FileHeader{Name: "x.npy", Method: zip.Store})
	if err != nil {
		return err
	}
	if _, err := io.WriteString(member, npyHeader(s.Size)); err != nil {
		return err
	}
	if _, err := io.CopyN(member, content(seed), s.Size); err != nil {
		return err
	}
	if err := errors.Join(z.Close(), f.Close()); err != nil {
		return err
	}
	return s.measure(path)
}

// npyHeader is what stands before an array of n bytes in numpy's format 1.0. Its
// length is a multiple of 64.
func npyHeader(n int64) string {
	const magic = "\x93NUMPY\x01\x00"
	dict := fmt.Sprintf("{'descr': '|u1', 'fortran_order': False, 'shape': (%d,), }", n)
	dict += strings.Repeat(" ", 63-(len(magic)+2+len(dict))%64) + "\n"
	return magic + string(binary.LittleEndian.AppendUint16(nil, uint16(len(dict)))) + dict
}
