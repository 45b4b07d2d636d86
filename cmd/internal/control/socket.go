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
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// FolderEnv names the environment variable with the folder of the sockets,
// where it shall not be one of those that Milkweed would choose.
const FolderEnv = "MILKWEED_RUNTIME_DIR"

// maxSocketPath is the room for a path in struct sockaddr_un, less its NUL.
const maxSocketPath = 107

// dialTimeout is how long a daemon may take to accept a connection.
const dialTimeout = 5 * time.Second

// errInUse is the error for a socket that another daemon answers on.
var errInUse = errors.New("another daemon serves it")

// Listen makes the socket for the mount at a mount point, which is as Resolve
// returns it. The socket that a dead daemon left is replaced; that of a live
// one is not. Closing the listener removes the socket.
func Listen(ctx context.Context, mountPoint string) (net.Listener, error) {
	folder, err := makeFolder(os.Geteuid())
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	path := socketPath(folder, mountPoint)
	if len(path) > maxSocketPath {
		return nil, &exit.Error{
			Code:   exit.Usage,
			Err:    fmt.Errorf("control socket: %s is longer than %d bytes", path, maxSocketPath),
			Remedy: "Set " + FolderEnv + " to a folder with a shorter path.",
		}
	}
	l, err := replaceSocket(ctx, folder, path)
	if errors.Is(err, errInUse) {
		return nil, &exit.Error{
			Code:   exit.MountPoint,
			Err:    fmt.Errorf("%s: a Milkweed is mounted there already, or is about to end", mountPoint),
			Remedy: fmt.Sprintf("`milkweed umount %s` ends it.", mountPoint),
		}
	}
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return l, nil
}

// replaceSocket listens on path, in place of a socket that nobody answers on.
// The lock on the folder keeps two daemons from finding the same dead socket
// and removing each other's new one.
func replaceSocket(ctx context.Context, folder, path string) (net.Listener, error) {
	lock, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, &fs.PathError{Op: "flock", Path: folder, Err: err}
	}
	conn, err := dialSocket(ctx, path)
	switch {
	case err == nil:
		conn.Close()
		return nil, errInUse
	case errors.Is(err, syscall.ECONNREFUSED):
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %w", errInUse, err) // its queue is full, say
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// folders lists where the sockets of a user's daemons can be, best first. A
// command looks in all of them: it may have another environment than the
// daemon, as under cron, sudo or a batch system.
func folders(uid int) []string {
	if dir := os.Getenv(FolderEnv); dir != "" {
		return []string{dir}
	}
	var list []string
	if uid == 0 {
		// Before $XDG_RUNTIME_DIR, which logind removes when root logs out.
		list = append(list, "/run/milkweed")
	}
	id := strconv.Itoa(uid)
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" && uid == os.Geteuid() {
		list = append(list, filepath.Join(dir, "milkweed"))
	}
	return append(list, "/run/user/"+id+"/milkweed", "/tmp/milkweed-"+id)
}

// makeFolder makes the first folder for sockets that can be made.
func makeFolder(uid int) (string, error) {
	var errs []error
	for _, dir := range folders(uid) {
		err := os.Mkdir(dir, 0o700)
		if err == nil || errors.Is(err, fs.ErrExist) {
			err = checkFolder(dir, uid)
		}
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// checkFolder refuses a folder that somebody else than uid could have put
// there, or can put sockets in: the one in /tmp has a name that all can guess.
func checkFolder(dir string, uid int) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: dir, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is not a folder", dir)
	case int(st.Uid) != uid:
		return fmt.Errorf("%s belongs to user %d, not %d", dir, st.Uid, uid)
	case st.Mode&0o077 != 0:
		return fmt.Errorf("%s is open to others: its mode is %#o, not 0700", dir, st.Mode&0o777)
	}
	return nil
}

// socketPath returns the path of the socket of a mount point: a readable part,
// and a hash that tells apart what reads the same.
func socketPath(folder, mountPoint string) string {
	sum := sha256.Sum256([]byte(mountPoint))
	tail := "-" + hex.EncodeToString(sum[:8]) + ".sock"
	readable := strings.Map(plain, filepath.Base(mountPoint))
	room := maxSocketPath - len(folder) - len("/") - len(tail)
	return filepath.Join(folder, readable[:min(len(readable), max(room, 0), 32)]+tail)
}

// plain keeps the characters that need no quoting in any shell.
func plain(r rune) rune {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '.', r == '-', r == '_':
		return r
	}
	return '_'
}

func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	return d.DialContext(ctx, "unix", path)
}
