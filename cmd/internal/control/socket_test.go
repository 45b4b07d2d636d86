package control

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
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
	if got, err := makeFolder(uid, false); got != name+"-2" || err != nil {
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

// closedRuntime makes $XDG_RUNTIME_DIR a directory that only its owner can enter. The other directories for sockets are in
// base.
func closedRuntime(t *testing.T) (base, closed string) {
	t.Helper()
	t.Setenv(FolderEnv, "")
	tmp, run := tmpFolder, runFolder
	t.Cleanup(func() { tmpFolder, runFolder = tmp, run })
	base, err := os.MkdirTemp("", "milkweed-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	closed = filepath.Join(base, "closed")
	if err := errors.Join(os.Chmod(base, 0o755), os.Mkdir(closed, 0o700)); err != nil {
		t.Fatal(err)
	}
	tmpFolder, runFolder = base, "/nonexistent"
	t.Setenv("XDG_RUNTIME_DIR", closed)
	return base, closed
}

// The sockets for all users are not in a directory that only their owner can enter, such as $XDG_RUNTIME_DIR, and commands
// of the owner find them.
func TestFolderForAll(t *testing.T) {
	base, closed := closedRuntime(t)
	uid := os.Geteuid()
	want := filepath.Join(base, fmt.Sprint("milkweed-", uid))
	if got, err := makeFolder(uid, true); got != want || err != nil || !slices.Contains(folders(uid), want) {
		t.Errorf("for all: got %s, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(closed, "milkweed")); err == nil {
		t.Error("a directory that is not used was made")
	}
	if got, err := makeFolder(uid, false); got != filepath.Join(closed, "milkweed") || err != nil {
		t.Errorf("for the owner: got %s, %v", got, err)
	}

	// A directory that an earlier mount has made is opened, and that of the service is not made.
	if err := os.Chmod(want, 0o700); err != nil {
		t.Fatal(err)
	}
	runFolder = base
	if uid == 0 { // root prefers another one; here, it cannot be made
		if err := os.WriteFile(filepath.Join(base, "milkweed"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := makeFolder(uid, true); got != want || err != nil || openToAll(got) != nil {
		t.Errorf("for all, later: got %s, %v, %v", got, err, openToAll(got))
	}
	if _, err := os.Stat(serviceFolder()); err == nil {
		t.Error("the directory of the service was made")
	}
}

// A mount point has one daemon of a user, although the mounts have their sockets in different directories.
func TestOneDaemonInAllFolders(t *testing.T) {
	base, closed := closedRuntime(t)
	const point = "/mnt/p"
	l, err := Listen(t.Context(), point)
	if err != nil || !strings.HasPrefix(l.Addr().String(), closed) {
		t.Fatalf("the first daemon: %v, %v", l, err)
	}
	accepted := make(chan error, 1)
	go func() {
		server := &Server{}
		server.Starting(point, "waiting")
		accepted <- ServeHTTP(t.Context(), l, server.whenStarted(http.NotFoundHandler()), slog.New(slog.DiscardHandler))
	}()
	if second, err := ListenForAll(t.Context(), point); err == nil || !strings.Contains(err.Error(), "its daemon is waiting") {
		t.Errorf("a second daemon: %v, %v", second, err)
	}
	if left, _ := filepath.Glob(base + "/milkweed-*/*"); len(left) != 0 {
		t.Errorf("the second daemon has left %q", left)
	}
	other, err := ListenForAll(t.Context(), "/mnt/q")
	if err != nil {
		t.Errorf("another mount point: %v", err)
	} else {
		other.Close()
	}
	l.Close()
	<-accepted
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
		folder, err := makeFolder(os.Geteuid(), false)
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
