package drivertest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A Subject is an empty driver under test, with functions that change its storage without
// the driver. Driver, Put and Remove are required. Another function is nil if the storage
// has no such operation; tests that need it are then not run. The functions create the
// parent directories of a name, and fail the test if the change fails.
type Subject struct {
	Driver drivers.Driver

	Put       func(name string, data []byte) // creates or replaces a file in one atomic step
	PutMany   func(files map[string][]byte)  // creates many files quickly; nil: Put is called for each
	Remove    func(name string)              // removes a file
	Overwrite func(name string, data []byte) // changes a file so that its old version cannot be read
	Mkdir     func(name string)              // creates a directory
	Symlink   func(target, name string)      // creates a symbolic link
	Special   func(name string)              // creates a FIFO
	Setxattr  func(name, attr, value string) // sets an extended attribute; may skip the test

	// Names reports whether the storage can have a file of that name; nil: all valid names.
	Names func(name string) bool
}

// Folder returns a Subject whose driver reads the folder root of the operating system.
func Folder(t *testing.T, driver drivers.Driver, root string) Subject {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	prepare := func(name string) string { // creates the parents and returns the path
		path := filepath.Join(root, name)
		must(os.MkdirAll(filepath.Dir(path), 0o700))
		return path
	}
	return Subject{
		Driver: driver,
		Put: func(name string, data []byte) {
			f, err := os.CreateTemp(root, "put")
			must(err)
			_, err = f.Write(data)
			must(err)
			must(f.Close())
			// By the kernel's clock, two changes within a tick have the same time.
			must(os.Chtimes(f.Name(), time.Time{}, time.Now()))
			must(os.Rename(f.Name(), prepare(name)))
		},
		Remove: func(name string) { must(os.Remove(prepare(name))) },
		Overwrite: func(name string, data []byte) {
			// Two changes within a tick of the kernel's clock can have the same modification
			// time.
			time.Sleep(20 * time.Millisecond)
			must(os.WriteFile(prepare(name), data, 0o600))
		},
		Mkdir:   func(name string) { must(os.MkdirAll(prepare(name), 0o700)) },
		Symlink: func(target, name string) { must(os.Symlink(target, prepare(name))) },
		Special: func(name string) { must(syscall.Mkfifo(prepare(name), 0o600)) },
		Setxattr: func(name, attr, value string) {
			err := syscall.Setxattr(prepare(name), attr, []byte(value), 0)
			if errors.Is(err, syscall.ENOTSUP) {
				Skipf(t, "needs extended attributes, which the file system of %s lacks", root)
			}
			must(err)
		},
	}
}

// StoreFolder returns a Subject whose driver is a Store with copies in the folder root of the
// operating system. Put commits a copy, because a file that somebody else puts into the folder
// is not one. For the same reason there is no Overwrite.
func StoreFolder(t *testing.T, store drivers.Store, root string) Subject {
	s := Folder(t, store, root)
	s.Overwrite = nil
	s.Put = func(name string, data []byte) {
		t.Helper()
		info := drivers.Info{Size: int64(len(data)), Mtime: time.Now(), Mode: 0o600, Nlink: 1}
		w, err := store.Create(context.Background(), name, info)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		if _, err := w.WriteAt(data, 0); err != nil {
			t.Fatal(err)
		}
		if err := w.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	return s
}
