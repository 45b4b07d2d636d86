package check

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
)

// errNotMounted is the error of a tier whose file system is not mounted.
var errNotMounted = errors.New("its file system is not mounted")

// The user's state folder has a file for each mount point of a file system that a tier was on. A
// mount point, in contrast to a device, stays the same when devices get other numbers, a disk is
// replaced, or a tmpfs is new. The name of the file depends on the machine, because machines may
// share a home directory.

// mountFile returns the path of the file for a mount point.
func (h host) mountFile(point string) string {
	name, _ := os.Hostname()
	sum := sha256.Sum256([]byte(name + "\x00" + point))
	return filepath.Join(h.state, "mounted-"+hex.EncodeToString(sum[:])[:12])
}

// checkMounted returns an error if path is in a folder on which a file system was mounted when a
// tier was there, and on which nothing is mounted now. Otherwise the copies would fill the disk
// below the mount point, which is often that of the system.
func (h host) checkMounted(path string) *TierError {
	real := config.RealPath(path)
	now, ok := h.mounts().Of(real)
	if !ok || h.state == "" {
		return nil
	}
	for dir := real; len(dir) > len(now.Point); dir = filepath.Dir(dir) {
		file := h.mountFile(dir)
		if _, err := os.Lstat(file); err == nil {
			return &TierError{
				Err:    fmt.Errorf("%s: %w: nothing is mounted on %s", path, errNotMounted, dir),
				Remedy: fmt.Sprintf("Mount it. If the copies are to go to the file system of %s instead, remove %s.", now.Point, file),
			}
		}
	}
	return nil
}

// RememberMount remembers on which mount point the file system of a tier is mounted, for Tier.
func RememberMount(path string) error { return thisHost().rememberMount(path) }

func (h host) rememberMount(path string) error {
	m, ok := h.mounts().Of(config.RealPath(path))
	if !ok || m.Point == "/" || h.state == "" {
		return nil
	}
	file := h.mountFile(m.Point)
	if _, err := os.Lstat(file); err == nil {
		return nil
	}
	if err := os.MkdirAll(h.state, 0o700); err != nil {
		return err
	}
	text := fmt.Sprintf("A file system was mounted on %s when Milkweed used it for copies.\n"+
		"Remove this file if copies may go to that directory while nothing is mounted there.\n", m.Point)
	return os.WriteFile(file, []byte(text), 0o600)
}
