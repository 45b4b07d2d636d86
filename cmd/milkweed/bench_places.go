package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/bench"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/posix"
)

// benchPlaces are the folders of a benchmark.
type benchPlaces struct {
	dir    string // of all but a RAM tier beside it
	ramDir string // of the RAM tier; dir if that is memory, or if none is there
}

func (p *benchPlaces) data() string   { return filepath.Join(p.dir, "data") }
func (p *benchPlaces) source() string { return filepath.Join(p.dir, "source") }

// makeBenchPlaces makes folders in parent, or, if that is "", where memory is a
// file system; with room for so many bytes.
func makeBenchPlaces(parent string, need int64) (p *benchPlaces, err error) {
	if parent == "" {
		parent = shm
	}
	if err := wantRoom(parent, need); err != nil {
		return nil, err
	}
	const pattern = "milkweed-bench-"
	p = &benchPlaces{}
	if p.dir, err = os.MkdirTemp(parent, pattern); err != nil {
		return nil, err
	}
	if p.dir, err = filepath.EvalSymlinks(p.dir); err != nil { // as the kernel lists mounts
		return nil, err
	}
	p.ramDir = p.dir
	if !hasMemory(p.dir, 0) && hasMemory(shm, need) {
		if dir, err := os.MkdirTemp(shm, pattern); err == nil {
			p.ramDir = dir
		}
	}
	// The readers of a mount that is another user's are that user's.
	err = os.Chmod(p.dir, 0o755)
	for _, dir := range []string{p.data(), p.source()} {
		err = errors.Join(err, os.Mkdir(dir, 0o755))
	}
	if err != nil {
		return nil, errors.Join(err, p.remove())
	}
	return p, nil
}

// wantRoom is an error if a file system has no room for n bytes.
func wantRoom(dir string, n int64) error {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return &exit.Error{Code: exit.Tier, Err: &os.PathError{Op: "statfs", Path: dir, Err: err}, Remedy: "--tier DIR names another folder."}
	}
	if free := int64(s.Bavail) * s.Bsize; free < n {
		return &exit.Error{
			Code:   exit.Tier,
			Err:    fmt.Errorf("%s: %s are free, and the benchmark takes %s", text(dir), bench.Bytes(free), bench.Bytes(n)),
			Remedy: "A smaller --scale takes less, and --tier DIR names another folder.",
		}
	}
	return nil
}

// make makes a folder below the others, empty, for a user; nil is this one.
func (p *benchPlaces) make(name string, user *benchUser) (string, error) {
	return makeFor(filepath.Join(p.dir, name), user)
}

func makeFor(dir string, user *benchUser) (string, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	if user == nil {
		return dir, nil
	}
	return dir, os.Chown(dir, int(user.Uid), int(user.Gid))
}

// folders lists the folders that all others are in.
func (p *benchPlaces) folders() []string {
	if p.ramDir != p.dir {
		return []string{p.dir, p.ramDir}
	}
	return []string{p.dir}
}

// remove removes the folders.
func (p *benchPlaces) remove() error {
	if err := unmountBelow(p.dir); err != nil {
		return err
	}
	return removeAll(p.folders())
}

// fileSystem names the type of the file system of a folder.
func fileSystem(dir string) string {
	d, err := posix.OpenDir(dir)
	if err != nil {
		return "unknown"
	}
	defer d.Close()
	kind := d.FSType()
	if kind == "tmpfs" {
		kind += ", which is memory"
	}
	return kind
}
