// Package sandbox makes temporary folders with mounts in them, and removes both.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/child"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
)

// SHM is the folder in which Linux systems mount a tmpfs.
const SHM = "/dev/shm"

// A Sandbox is a temporary folder, with a second one in memory.
type Sandbox struct {
	Root   string // absolute and without symbolic links
	Memory string // on a tmpfs; Root if that is on a tmpfs, or if SHM has too little space
}

// New makes a sandbox in the folder parent, or in $TMPDIR if that is "". The
// names of its folders begin with prefix. memory is the number of bytes that the
// folder in memory has to have space for. The caller must call Remove or Unmount.
func New(parent, prefix string, memory int64) (*Sandbox, error) {
	root, err := os.MkdirTemp(parent, prefix)
	if err != nil {
		return nil, err
	}
	if root, err = control.Resolve(root); err != nil {
		return nil, err
	}
	s := &Sandbox{Root: root, Memory: root}
	if !s.InMemory() && hasMemory(SHM, memory) {
		if dir, err := os.MkdirTemp(SHM, prefix); err == nil {
			s.Memory = dir
		}
	}
	return s, nil
}

// hasMemory reports whether dir is on a tmpfs that has ample space for n bytes.
// In a container, SHM often has 64 MB.
func hasMemory(dir string, n int64) bool {
	var s unix.Statfs_t
	err := unix.Statfs(dir, &s)
	return err == nil && s.Type == unix.TMPFS_MAGIC && int64(s.Bavail)*s.Bsize > 2*n
}

// InMemory reports whether Memory is on a tmpfs.
func (s *Sandbox) InMemory() bool { return hasMemory(s.Memory, 0) }

// Path returns the path of a name in Root.
func (s *Sandbox) Path(name string) string { return filepath.Join(s.Root, name) }

// Mkdir makes a folder in Root and returns its path.
func (s *Sandbox) Mkdir(name string) (string, error) {
	dir := s.Path(name)
	return dir, os.Mkdir(dir, 0o755)
}

// Folders lists the folders of the sandbox, one or two.
func (s *Sandbox) Folders() []string {
	if s.Memory != s.Root {
		return []string{s.Root, s.Memory}
	}
	return []string{s.Root}
}

// Unmount detaches the mounts that are left in the sandbox.
func (s *Sandbox) Unmount() error {
	left, err := mounts.Below(s.Root)
	for _, point := range slices.Backward(left) {
		err = errors.Join(err, detach(point))
	}
	if err != nil {
		return fmt.Errorf("%s is left: %w", s.Root, err)
	}
	return nil
}

// Remove detaches the mounts and removes the folders. If a mount cannot be
// detached, nothing is removed: files could be removed through the mount.
func (s *Sandbox) Remove() error {
	if err := s.Unmount(); err != nil {
		return err
	}
	return removeAll(s.Folders())
}

// detach unmounts a mount of Milkweed that may be in use. Its context is not that
// of the caller, which is done after Ctrl-C.
func detach(point string) error {
	ctx, cancel := context.WithTimeout(context.Background(), child.StopTimeout)
	defer cancel()
	_, _, err := child.Run(child.Command(ctx, "umount", "--lazy", point))
	return err
}

func removeAll(folders []string) error {
	var errs []error
	for _, dir := range folders {
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// CheckMount returns an error if this machine cannot mount source at point. It
// mounts nothing.
func CheckMount(ctx context.Context, source, point string) error {
	c := config.Default()
	if err := c.Set("mount.point", point, "mount point"); err != nil {
		return err
	}
	if err := c.SetSource(source, "source"); err != nil {
		return err
	}
	return check.First(check.Run(ctx, &c))
}
