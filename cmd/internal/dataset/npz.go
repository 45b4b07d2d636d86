package dataset

import (
	"archive/zip"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// WriteNPZ writes the file to a folder as a NumPy archive with one array of
// f.Size bytes. It then sets the size and the checksum to those of the archive,
// which is a little larger.
func (f *File) WriteNPZ(folder string, seed uint64) error {
	path := filepath.Join(folder, f.Name)
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	z := zip.NewWriter(out)
	member, err := z.CreateHeader(&zip.FileHeader{Name: "x.npy", Method: zip.Store})
	if err != nil {
		return err
	}
	if _, err := io.WriteString(member, npyHeader(f.Size)); err != nil {
		return err
	}
	if _, err := io.CopyN(member, content(seed), f.Size); err != nil {
		return err
	}
	if err := errors.Join(z.Close(), out.Close()); err != nil {
		return err
	}
	return f.measure(path)
}

// WriteNPY writes the file to a folder as a NumPy array of f.Size bytes. It then sets the size and the
// checksum to those of the file, which is a little larger.
func (f *File) WriteNPY(folder string, seed uint64) error {
	path := filepath.Join(folder, f.Name)
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := io.WriteString(out, npyHeader(f.Size)); err != nil {
		return err
	}
	if _, err := io.CopyN(out, content(seed), f.Size); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return f.measure(path)
}

// npyHeader returns the header of an array of n bytes in version 1.0 of NumPy's
// format. Its length is a multiple of 64.
func npyHeader(n int64) string {
	const magic = "\x93NUMPY\x01\x00"
	dict := fmt.Sprintf("{'descr': '|u1', 'fortran_order': False, 'shape': (%d,), }", n)
	dict += strings.Repeat(" ", 63-(len(magic)+2+len(dict))%64) + "\n"
	return magic + string(binary.LittleEndian.AppendUint16(nil, uint16(len(dict)))) + dict
}

// measure sets the size and the checksum to those of the file at path.
func (f *File) measure(path string) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	sum := crc32.New(castagnoli)
	f.Size, err = io.Copy(sum, in)
	f.CRC = sum.Sum32()
	return err
}
