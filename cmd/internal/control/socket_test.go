package control

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
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
			t.Skip("root is required to make a directory of another user")
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
