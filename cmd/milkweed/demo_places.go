package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
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

// remove removes the folders, unless they are to be kept.
func (p *demoPlaces) remove(keep bool, stderr io.Writer) error {
	if err := unmountBelow(p.dir); err != nil {
		return err
	}
	if keep {
		fmt.Fprintf(stderr, "The dataset and the copies are in %s.\n", strings.Join(p.folders(), " and "))
		return nil
	}
	return removeAll(p.folders())
}

// folders lists the folders that all others are in.
func (p *demoPlaces) folders() []string {
	if p.inMemory() {
		return []string{p.dir, p.ramDir}
	}
	return []string{p.dir}
}
