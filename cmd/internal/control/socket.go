package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// FolderEnv is the environment variable that overrides the directory of the sockets.
const FolderEnv = "MILKWEED_RUNTIME_DIR"

// maxSocketPath is the length of a path in struct sockaddr_un, without the NUL.
const maxSocketPath = 107

// longestTail is the length of the longest name of a socket that has no readable part.
const longestTail = len("-0123456789abcdef.sock")

// hasRoom reports whether the path of a directory is short enough for sockets in it.
func hasRoom(folder string) bool { return len(folder)+len("/")+longestTail <= maxSocketPath }

// dialTimeout bounds how long a daemon may take to accept a connection.
const dialTimeout = 5 * time.Second

// dialPause is the time between two tries.
const dialPause = 5 * time.Millisecond

// maxFolders is the number of directories in tmpFolder that may have the sockets of a user.
const maxFolders = 10

// In tmpFolder every user can make directories, in runFolder only root. Tests replace both.
var tmpFolder, runFolder = "/tmp", "/run"

// errInUse is the error for a socket on which another daemon listens.
var errInUse = errors.New("another daemon listens on it")

// Listen creates the socket of a mount point, which is a path that Resolve returned, and
// listens on it. It replaces the socket of a daemon that has died. If a daemon listens on it,
// the error is an *exit.Error with the code MountPoint. Closing the listener removes the socket.
func Listen(ctx context.Context, mountPoint string) (*Listener, error) {
	return newListener(mountPoint, socketPath, false).listen(ctx)
}

// ListenForAll is Listen for a mount that other users may read. They can connect, unless there is no directory for the
// socket that they can enter; see Listener.Reachable.
func ListenForAll(ctx context.Context, mountPoint string) (*Listener, error) {
	return newListener(mountPoint, socketPath, true).listen(ctx)
}

// ListenNamed is Listen for a file system that another process has mounted, perhaps in another mount
// namespace. name is the absolute path under which it is known.
func ListenNamed(ctx context.Context, name string) (*Listener, error) {
	return newListener(name, namedPath, false).listen(ctx)
}

// drainSuffix ends the name of the socket of a daemon that drains.
const drainSuffix = ".drain"

// drainPath returns the name of the socket at path after Drain. It has at most longestTail bytes.
func drainPath(path string, pid int) string {
	hash := strings.TrimSuffix(path[strings.LastIndexByte(path, '-')+1:], socketSuffix)
	return filepath.Join(filepath.Dir(path), fmt.Sprintf("%.8s-%d%s", hash, pid, drainSuffix))
}

// removeDead removes the socket of a daemon that was killed.
func removeDead(ctx context.Context, path string) {
	unlock, err := lockFolder(ctx, path)
	if err != nil {
		return
	}
	defer unlock()
	if _, err := probe(ctx, path); errors.Is(err, syscall.ECONNREFUSED) {
		os.Remove(path)
	}
}

// folders lists the directories that may have the sockets of a user's daemons, the preferred
// one first. A command searches all of them, because its environment may differ from that of
// the daemon: under cron, sudo or a batch system.
func folders(uid int) []string {
	if dir := fromEnvironment(FolderEnv); dir != "" {
		return []string{dir}
	}
	var list []string
	if uid == 0 {
		// Preferred to $XDG_RUNTIME_DIR, which logind removes when root logs out.
		list = append(list, runFolder+"/milkweed")
	}
	list = append(list, serviceFolder())
	id := strconv.Itoa(uid)
	if dir := fromEnvironment("XDG_RUNTIME_DIR"); dir != "" && uid == os.Geteuid() {
		if dir = filepath.Join(dir, "milkweed"); hasRoom(dir) {
			list = append(list, dir)
		}
	}
	list = append(list, runFolder+"/user/"+id+"/milkweed", tmpFolder+"/milkweed-"+id)
	for i := 1; i < maxFolders; i++ { // another user may have taken the name
		list = append(list, fmt.Sprintf("%s/milkweed-%s-%d", tmpFolder, id, i))
	}
	return list
}

// startedIn is the first working directory of this process. A daemon changes it.
var startedIn, _ = os.Getwd()

// fromEnvironment returns the absolute path of a directory that an environment variable names, or "".
func fromEnvironment(variable string) string {
	dir := os.Getenv(variable)
	if dir != "" && !filepath.IsAbs(dir) {
		dir = filepath.Join(startedIn, dir)
	}
	return dir
}

// serviceFolder returns the directory of the sockets of the user of the systemd unit.
func serviceFolder() string { return runFolder + "/milkweed-service" }

// usableFolders lists those of folders in which no other user can make sockets.
func usableFolders(uid int) []string {
	return slices.DeleteFunc(folders(uid), func(folder string) bool { return checkFolder(folder, uid) != nil })
}

// makeFolder makes, or finds, the first usable directory for the sockets of a user. Others may enter it and use the
// sockets whose mode permits that. For all, it is the first that they can reach, if there is one.
func makeFolder(uid int, all bool) (string, error) {
	var errs []error
	for _, dir := range folders(uid) {
		if all && openToAll(filepath.Dir(dir)) != nil {
			continue
		}
		err := fs.ErrExist
		if dir != serviceFolder() { // the package makes that
			err = os.Mkdir(dir, 0o700)
		}
		made := err == nil
		if made || errors.Is(err, fs.ErrExist) {
			err = checkFolder(dir, uid)
		}
		if err == nil && (made || all && os.Getenv(FolderEnv) == "") { // otherwise the user has chosen its mode
			err = os.Chmod(dir, 0o711) // whatever the umask
		}
		if err == nil && all {
			err = openToAll(dir)
		}
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	if all {
		return makeFolder(uid, false)
	}
	return "", errors.Join(errs...)
}

// checkFolder returns an error if a user other than uid could have made the directory, can list it, or can
// make sockets in it. Any user can make the directory in /tmp, because its name is known.
func checkFolder(dir string, uid int) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: dir, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is not a directory", dir)
	case int(st.Uid) != uid:
		return fmt.Errorf("%s belongs to user %d, not %d", dir, st.Uid, uid)
	case st.Mode&0o066 != 0:
		return fmt.Errorf("%s is accessible to other users: its mode is %#o, not 0711 or 0700", dir, st.Mode&0o777)
	}
	return nil
}

// socketPath returns the path of the socket of a mount point. The name has a readable part and
// a hash, which makes it unique.
func socketPath(folder, mountPoint string) string {
	sum := sha256.Sum256([]byte(mountPoint))
	tail := "-" + hex.EncodeToString(sum[:8]) + socketSuffix
	readable := strings.Map(plain, filepath.Base(mountPoint))
	room := maxSocketPath - len(folder) - len("/") - len(tail)
	return filepath.Join(folder, readable[:min(len(readable), max(room, 0), 32)]+tail)
}

// socketSuffix ends the name of a socket.
const socketSuffix = ".sock"

// namedSuffix ends the name of the socket of ListenNamed.
const namedSuffix = ".name"

// namedPath returns the path of the socket of a file system that another process has mounted.
func namedPath(folder, name string) string {
	return strings.TrimSuffix(socketPath(folder, name), socketSuffix) + namedSuffix
}

// socketPaths lists the paths that the socket of a mount point may have in a directory.
func socketPaths(folder, mountPoint string) []string {
	return []string{namedPath(folder, mountPoint), socketPath(folder, mountPoint)}
}

// plain replaces each character that a shell may require to be quoted.
func plain(r rune) rune {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '.', r == '-', r == '_':
		return r
	}
	return '_'
}

// dialSocket connects to a socket. It tries again while the queue of the daemon is full: other users may fill it.
func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if !errors.Is(err, syscall.EAGAIN) {
			return conn, err
		}
		select {
		case <-time.After(dialPause):
		case <-ctx.Done():
			return nil, err
		}
	}
}
