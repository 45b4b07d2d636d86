package sandbox

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// A sandbox has a path without symbolic links, as the kernel lists mounts, and
// leaves nothing behind.
func TestSandbox(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	s, err := New(link, "prefix-", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if real, err := filepath.EvalSymlinks(s.Root); err != nil || real != s.Root {
		t.Errorf("root %s is %s: %v", s.Root, real, err)
	}
	dir, err := s.Mkdir("a")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/file", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range s.Folders() {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
}

// SHM is used only if it has twice the space that is needed.
func TestNoMemory(t *testing.T) {
	s, err := New(t.TempDir(), "prefix-", 1<<50)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Remove()
	if s.Memory != s.Root {
		t.Errorf("the folder in memory is %s", s.Memory)
	}
}
