package drivertest

import (
	"bytes"
	"context"
	"errors"
	"hash/crc32"
	"io/fs"
	"slices"
	"syscall"

	"github.com/milkweedfs/milkweed/drivers"
)

var optionalTests = []namedTest{
	{"user attributes are listed and read", suite.xattrs, suite.isXattrer},
	{"the size of the storage is consistent", suite.statfs, isA[drivers.Statfser]},
	{"names are listed without attributes, and described together", suite.namer, isA[drivers.Namer]},
	{"Verify detects a change", suite.verify, suite.isVerifier},
	{"a backing file has the content of the file", suite.backingFile, suite.hasBackingFile},
	{"stored checksums are those of the content", suite.checksums, suite.isChecksummer},
}

func (s suite) isXattrer() bool { return isA[drivers.Xattrer](s) && s.Setxattr != nil }

// isVerifier reports whether Objects are Verifiers and can be changed. It puts a file.
func (s suite) isVerifier() bool {
	_, ok := objectAs[drivers.Verifier](s)
	return ok && s.hasOverwrite()
}

// isChecksummer reports whether Objects are Checksummers. It puts a file.
func (s suite) isChecksummer() bool {
	_, ok := objectAs[drivers.Checksummer](s)
	return ok
}

// hasBackingFile reports whether Objects have backing files now. It puts a file.
func (s suite) hasBackingFile() bool {
	b, ok := objectAs[drivers.BackingFiler](s)
	if !ok {
		return false
	}
	release, err := b.BackingFile(func(uintptr) error { return nil })
	if err == nil {
		release()
	}
	return !errors.Is(err, errors.ErrUnsupported)
}

func (s suite) xattrs() {
	d := as[drivers.Xattrer](s)
	s.Put("file", content(10, 1))
	if got, err := d.Listxattr(ctx, "file"); len(got) != 0 || err != nil {
		s.Errorf("Listxattr without attributes: %q, %v", got, err)
	}
	_, err := d.Getxattr(ctx, "file", "user.colour")
	s.wantError("Getxattr of a missing attribute", err, syscall.ENODATA)
	s.Setxattr("file", "user.colour", "orange")
	s.Setxattr("file", "user.empty", "")
	got, err := d.Listxattr(ctx, "file")
	slices.Sort(got)
	if !slices.Equal(got, []string{"user.colour", "user.empty"}) || err != nil {
		s.Errorf("Listxattr: %q, %v", got, err)
	}
	if got, err := d.Getxattr(ctx, "file", "user.colour"); string(got) != "orange" || err != nil {
		s.Errorf("Getxattr: %q, %v", got, err)
	}
	if got, err := d.Getxattr(ctx, "file", "user.empty"); len(got) != 0 || err != nil {
		s.Errorf("Getxattr of an empty attribute: %q, %v", got, err)
	}
	_, err = d.Getxattr(ctx, "file", "security.selinux")
	s.wantError("Getxattr of an attribute outside user.", err, syscall.ENODATA)
	_, err = d.Listxattr(ctx, "missing")
	s.wantError("Listxattr of missing", err, fs.ErrNotExist)
}

func (s suite) statfs() {
	got, err := as[drivers.Statfser](s).Statfs(ctx)
	if err != nil || got.Total <= 0 || got.Free > got.Total || got.Available > got.Free {
		s.Errorf("Statfs: %+v, %v", got, err)
	}
}

func (s suite) verify() {
	s.Put("file", content(1000, 1))
	v, ok := drivers.As[drivers.Verifier](s.open("file"))
	if !ok {
		s.Fatal("the Object is not a Verifier")
	}
	if err := v.Verify(ctx); err != nil {
		s.Errorf("Verify of an unchanged file: %v", err)
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if err := v.Verify(done); err == nil {
		s.Error("Verify with a done context succeeds, want an error")
	}
	s.Overwrite("file", content(1000, 2))
	s.wantError("Verify of a changed file", v.Verify(ctx), drivers.ErrChanged)
}

func (s suite) backingFile() {
	want := content(100_000, 1)
	s.Put("file", want)
	o := s.open("file")
	b, ok := drivers.As[drivers.BackingFiler](o)
	if !ok {
		s.Fatal("the Object is not a BackingFiler")
	}
	got := make([]byte, len(want)+1)
	release, err := b.BackingFile(func(fd uintptr) error {
		n, err := syscall.Pread(int(fd), got, 0)
		got = got[:max(n, 0)]
		return err
	})
	if err != nil {
		s.Fatalf("BackingFile: %v", err)
	}
	if !bytes.Equal(got, want) {
		s.Errorf("the descriptor reads %d bytes, or wrong bytes; want %d", len(got), len(want))
	}
	release()
	s.wantContent(o, want)
	_, err = b.BackingFile(func(uintptr) error { return syscall.EPERM })
	s.wantError("BackingFile with a failing register", err, syscall.EPERM)
}

func (s suite) checksums() {
	want := content(2*drivers.ChecksumBlock+1000, 1)
	s.Put("file", want)
	c, ok := drivers.As[drivers.Checksummer](s.open("file"))
	if !ok {
		s.Fatal("the Object is not a Checksummer")
	}
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	for first := range int64(3) {
		sums, err := c.Checksums(first, 3-first)
		if err != nil || int64(len(sums)) != 3-first {
			s.Fatalf("Checksums: %d, %v; want %d", len(sums), err, 3-first)
		}
		for i, sum := range sums {
			block := want[(int(first)+i)*drivers.ChecksumBlock:]
			if sum != crc32.Checksum(block[:min(len(block), drivers.ChecksumBlock)], castagnoli) {
				s.Errorf("wrong checksum of block %d", int(first)+i)
			}
		}
	}
	for _, bad := range [][2]int64{{-1, 1}, {0, 4}, {3, 1}, {0, -1}} {
		if _, err := c.Checksums(bad[0], bad[1]); err == nil {
			s.Errorf("Checksums of %d blocks from %d succeeds, want an error", bad[1], bad[0])
		}
	}
}

func (s suite) namer() {
	d := as[drivers.Namer](s)
	s.Put("dir/a", content(10, 1))
	s.Put("dir/b", content(20, 1))
	s.Put("dir/below/c", content(30, 1))
	infos, err := d.Names(ctx, "dir")
	if err != nil {
		s.Fatal(err)
	}
	var names []string
	for _, i := range infos {
		names = append(names, i.Name)
		if i.Err != drivers.ErrNoAttributes || i.Type() != 0 && i.IsDir() != (i.Name == "below") {
			s.Errorf("Names: got %+v", i)
		}
	}
	slices.Sort(names)
	if want := []string{"a", "b", "below"}; !slices.Equal(names, want) {
		s.Errorf("Names: got %q, want %q", names, want)
	}
	infos, err = d.StatNames(ctx, "dir", []string{"b", "missing", "below"})
	if err != nil || len(infos) != 3 {
		s.Fatalf("StatNames: got %+v, %v", infos, err)
	}
	if i := infos[0]; i.Name != "b" || i.Size != 20 || i.Err != nil {
		s.Errorf("StatNames: got %+v for b", i)
	}
	if i := infos[1]; i.Name != "missing" || !errors.Is(i.Err, fs.ErrNotExist) {
		s.Errorf("StatNames: got %+v for missing", i)
	}
	if i := infos[2]; i.Name != "below" || !i.IsDir() || i.Err != nil {
		s.Errorf("StatNames: got %+v for below", i)
	}
	for _, dir := range []string{"missing", "missing/dir"} {
		_, err := d.Names(ctx, dir)
		s.wantError("Names of "+dir, err, fs.ErrNotExist)
		infos, err := d.StatNames(ctx, dir, []string{"a"})
		if err == nil {
			err = infos[0].Err
		}
		s.wantError("StatNames in "+dir, err, fs.ErrNotExist)
	}
}
