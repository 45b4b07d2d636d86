package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
)

// demoPlaces are the folders of a demo.
type demoPlaces struct {
	dir    string // of all but the RAM tier
	ramDir string // of the RAM tier; dir if there is no memory for it

	ramQuota, ssdQuota int64
}

func (p *demoPlaces) data() string   { return filepath.Join(p.dir, "data") }
func (p *demoPlaces) source() string { return filepath.Join(p.dir, "source") }
func (p *demoPlaces) point() string  { return filepath.Join(p.dir, "mnt") }
func (p *demoPlaces) ssd() string    { return filepath.Join(p.dir, "ssd") }
func (p *demoPlaces) ram() string    { return filepath.Join(p.ramDir, "ram") }
func (p *demoPlaces) log() string    { return filepath.Join(p.dir, "milkweed.log") }

// inMemory reports whether the RAM tier is one.
func (p *demoPlaces) inMemory() bool { return p.ramDir != p.dir }

// shm is where memory is a file system.
const shm = "/dev/shm"

// makeDemoPlaces makes the folders for a dataset of so many bytes.
func makeDemoPlaces(dataset int64) (p *demoPlaces, err error) {
	const pattern = "milkweed-demo-"
	p = &demoPlaces{ramQuota: dataset/3 + 1, ssdQuota: dataset + dataset/8 + 1<<20} // a copy takes whole blocks
	if p.dir, err = os.MkdirTemp("", pattern); err != nil {
		return nil, err
	}
	if p.dir, err = filepath.EvalSymlinks(p.dir); err != nil { // as the kernel lists mounts
		return nil, err
	}
	p.ramDir = p.dir
	if hasMemory(shm, p.ramQuota) {
		if dir, err := os.MkdirTemp(shm, pattern); err == nil {
			p.ramDir = dir
		}
	}
	for _, dir := range []string{p.data(), p.source(), p.point(), p.ram(), p.ssd()} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, errors.Join(err, p.remove(false, io.Discard))
		}
	}
	return p, nil
}

// hasMemory reports whether dir is memory, with ample room for n bytes: in a
// container it is often 64 MB.
func hasMemory(dir string, n int64) bool {
	var s unix.Statfs_t
	err := unix.Statfs(dir, &s)
	return err == nil && s.Type == unix.TMPFS_MAGIC && int64(s.Bavail)*s.Bsize > 2*n
}

// remove removes the folders, unless they are to be kept. Mounts that are still
// there are taken out of sight before; while one stays nothing is removed, for
// that would be done through it.
func (p *demoPlaces) remove(keep bool, stderr io.Writer) error {
	left, err := mountsBelow(p.dir)
	for _, point := range left {
		err = errors.Join(err, unmount(context.Background(), point, true))
	}
	if err != nil {
		return fmt.Errorf("%s is left: %w", text(p.dir), err)
	}
	if keep {
		fmt.Fprintf(stderr, "The dataset and the copies are in %s.\n", strings.Join(p.folders(), " and "))
		return nil
	}
	for _, dir := range p.folders() {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// folders lists the folders that all others are in.
func (p *demoPlaces) folders() []string {
	if p.inMemory() {
		return []string{p.dir, p.ramDir}
	}
	return []string{p.dir}
}

// mountsBelow lists the mounts of Milkweed in a folder.
func mountsBelow(dir string) ([]string, error) {
	mounts, err := control.Mounts()
	var points []string
	for _, m := range mounts {
		if strings.HasPrefix(m.Point, dir+"/") {
			points = append(points, m.Point)
		}
	}
	return points, err
}
