package main

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// loaders is how many loops keep the processors busy, and how many keep the disk busy.
const loaders = 8

// loadRole is the first argument of the process that is the load.
const loadRole = "load"

// startLoad keeps the machine busy until end is called. dir is where it writes.
func startLoad(dir string) (end func(), err error) {
	// The process is not one of the step: it does not have the folder in its environment, and gets the
	// path from its standard input.
	cmd := exec.Command("/proc/self/exe", loadRole)
	cmd.Env = []string{fmt.Sprintf("GOMAXPROCS=%d", 2*loaders)}
	cmd.Stdin, cmd.Stderr = strings.NewReader(dir), os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() {
		cmd.Process.Kill()
		cmd.Wait()
	}, nil
}

// load keeps the machine busy for ever.
func load(dir string) error {
	for range loaders {
		go func() {
			for sum := [sha256.Size]byte{}; ; {
				sum = sha256.Sum256(sum[:])
			}
		}()
	}
	failed := make(chan error)
	for range loaders {
		go func() { failed <- writeForEver(dir) }()
	}
	return <-failed
}

// writeForEver writes files without a name to the disk, 16 MiB at a time.
func writeForEver(dir string) error {
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	f, err := os.CreateTemp(dir, "load-")
	if err != nil {
		return err
	}
	defer f.Close()
	if err := os.Remove(filepath.Join(f.Name())); err != nil {
		return err
	}
	for i := int64(0); ; i++ {
		if _, err := f.WriteAt(data, i%16<<20); err != nil {
			return err
		}
		if i%16 == 15 {
			if err := f.Sync(); err != nil {
				return err
			}
		}
	}
}
