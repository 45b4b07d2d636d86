package control

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// If another user has taken the name of the directory of the sockets, a daemon makes another one,
// and commands and later daemons find it.
func TestFolderOfAnother(t *testing.T) {
	t.Setenv(FolderEnv, "")
	t.Setenv("XDG_RUNTIME_DIR", "")
	tmp, run := tmpFolder, runFolder
	t.Cleanup(func() { tmpFolder, runFolder = tmp, run })
	tmpFolder, runFolder = t.TempDir(), "/nonexistent"
	const uid = 4000017
	name := filepath.Join(tmpFolder, "milkweed-4000017")
	make := func(owner int, path string) {
		t.Helper()
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Lchown(path, owner, owner); err != nil {
			drivertest.Skipf(t, "root is required to make a directory of another user")
		}
	}
	make(4000018, name)
	if err := os.Symlink(t.TempDir(), name+"-1"); err != nil {
		t.Fatal(err)
	}
	make(uid, name+"-2")
	if got, err := makeFolder(uid); got != name+"-2" || err != nil {
		t.Errorf("the folder of a daemon: got %s, %v", got, err)
	}
	if !slices.Contains(folders(uid), name+"-2") {
		t.Errorf("a command searches %q", folders(uid))
	}
	for _, foreign := range []string{name, name + "-1"} {
		if checkFolder(foreign, uid) == nil {
			t.Errorf("%s is used", foreign)
		}
	}
}

// A runtime directory whose path is too long for a socket is not used, by daemons and commands alike.
func TestLongRuntimeDir(t *testing.T) {
	t.Setenv(FolderEnv, "")
	tmp, run := tmpFolder, runFolder
	t.Cleanup(func() { tmpFolder, runFolder = tmp, run })
	base := t.TempDir()
	tmpFolder, runFolder = base, "/nonexistent"
	used := make(map[bool]int)
	for length := len(base) + 2; length < 200; length++ {
		dir := filepath.Join(base, strings.Repeat("x", length-len(base)-1))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Setenv("XDG_RUNTIME_DIR", dir)
		folder, err := makeFolder(os.Geteuid())
		if err != nil {
			t.Fatal(err)
		}
		for _, point := range []string{"/", "/mnt/imagenet", "/" + strings.Repeat("y", 300)} {
			for _, path := range []string{socketPath(folder, point), namedPath(folder, point), drainPath(socketPath(folder, point), 1<<22)} {
				if len(path) > maxSocketPath {
					t.Errorf("with a runtime directory of %d bytes, the socket is %s", length, path)
				}
			}
		}
		if !slices.Contains(folders(os.Geteuid()), folder) {
			t.Errorf("a command does not search %s", folder)
		}
		used[strings.HasPrefix(folder, dir)]++
	}
	if used[true] < 5 || used[false] < 100 {
		t.Errorf("%d runtime directories were used, and %d were not", used[true], used[false])
	}
}
