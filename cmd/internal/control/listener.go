package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
)

// A Listener listens on the socket of a mount point. If the socket is removed, as those of a user are when
// systemd-logind removes $XDG_RUNTIME_DIR, the listener makes it again where commands find it: in another directory, if
// that one is gone. Its methods may be called concurrently.
type Listener struct {
	Log *slog.Logger // for a socket that is made again; may be nil, and is set before Accept is called

	point  string                                 // the mount point
	pathIn func(folder, mountPoint string) string // the path of the socket in a directory, for commands
	all    bool                                   // for all users
	guests guestBook

	mu       sync.Mutex // guards the following
	socket   *socket
	draining bool
	closed   bool
	err      error // why the socket could not be made again, nil if it is there
}

// A socket is one on which this process listens.
type socket struct {
	*net.UnixListener
	path string
	file os.FileInfo // of path when it was made
}

// keepTime is the time after which an idle Listener looks whether its socket is still there.
var keepTime = 5 * time.Second

// listen makes the socket, and listens on it. The caller holds l.mu, or has the only reference to l.
func (l *Listener) listen(ctx context.Context) error {
	folder, err := makeFolder(os.Geteuid(), l.all)
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	if !hasRoom(folder) {
		return &exit.Error{
			Code:   exit.Usage,
			Err:    fmt.Errorf("control socket: the paths of sockets in %s would be longer than %d bytes", folder, maxSocketPath),
			Remedy: "Set " + FolderEnv + " to a directory with a shorter path.",
		}
	}
	mode := os.FileMode(0o600)
	if l.all {
		mode = 0o666
	}
	s, err := replaceSocket(ctx, l.path(folder), mode)
	isServedIn := func(other string) bool { return other != folder && isServed(ctx, l.path(other)) }
	if err == nil && slices.ContainsFunc(usableFolders(os.Geteuid()), isServedIn) { // the environment may have chosen another folder
		s.Close()
		err = errInUse
	}
	if errors.Is(err, errInUse) {
		e := &exit.Error{
			Code:   exit.MountPoint,
			Err:    fmt.Errorf("%s: a Milkweed is mounted there already, or its daemon has not ended yet", l.point),
			Remedy: fmt.Sprintf("`milkweed umount %s` unmounts it and waits for its end.", l.point),
		}
		if s, _ := startingAt(ctx, []string{l.point}); s != nil {
			s.Close()
			if starting, ok := errors.AsType[*exit.Error](s.Err); ok {
				e.Err, e.Remedy = starting.Err, starting.Remedy
			}
		}
		return e
	}
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	l.socket = s
	return nil
}

// path returns the path of the socket in a directory.
func (l *Listener) path(folder string) string {
	path := l.pathIn(folder, l.point)
	if l.draining {
		path = drainPath(path, os.Getpid())
	}
	return path
}

// isServed reports whether a daemon listens on a socket, or may do so.
func isServed(ctx context.Context, path string) bool {
	_, err := probe(ctx, path)
	return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED)
}

// replaceSocket listens on path, with a mode, and removes a socket there on which no daemon listens.
func replaceSocket(ctx context.Context, path string, mode os.FileMode) (*socket, error) {
	unlock, err := lockFolder(path)
	if err != nil {
		return nil, err
	}
	defer unlock()
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
		return nil, fmt.Errorf("%w: %w", errInUse, err) // such as EAGAIN: its queue is full
	}
	u, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		return nil, err
	}
	u.SetUnlinkOnClose(false) // Close removes no other file
	file, err := os.Lstat(path)
	if err = cmp.Or(err, os.Chmod(path, mode)); err != nil {
		os.Remove(path)
		u.Close()
		return nil, err
	}
	return &socket{u, path, file}, nil
}

// isThere reports whether the socket still is where it was made, or moved to.
func (s *socket) isThere() bool {
	file, err := os.Lstat(s.path)
	return err == nil && os.SameFile(file, s.file)
}

// Close removes the socket, and no longer listens on it.
func (s *socket) Close() error {
	if s.isThere() {
		os.Remove(s.path)
	}
	return s.UnixListener.Close()
}

// keep makes the socket again if commands do not find it any more. The caller holds l.mu.
func (l *Listener) keep() {
	if l.closed {
		return
	}
	why := checkFolder(filepath.Dir(l.socket.path), os.Geteuid())
	if why == nil && !l.socket.isThere() {
		why = &fs.PathError{Op: "lstat", Path: l.socket.path, Err: errors.New("the socket was removed")}
	}
	if why == nil {
		l.err = nil
		return
	}
	before := l.socket
	ctx, cancel := context.WithTimeout(context.Background(), keepTime)
	defer cancel()
	if err := l.listen(ctx); err != nil {
		if l.Log != nil && (l.err == nil || l.err.Error() != err.Error()) {
			l.Log.Warn("commands cannot find this daemon", "cause", why, "err", err)
		}
		l.err = err
		return
	}
	l.err = nil
	before.Close() // Accept goes on with the new one
	if l.Log != nil {
		l.Log.Warn("the control socket was made again", "cause", why, "socket", l.socket.path)
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		s := l.current()
		s.SetDeadline(time.Now().Add(keepTime))
		conn, err := s.AcceptUnix()
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				l.mu.Lock()
				l.keep()
				l.mu.Unlock()
			} else if l.current() == s {
				return nil, err
			}
			continue
		}
		uid, err := procs.PeerUser(conn)
		u := procs.User{UID: uid}
		if err == nil && !isOwner(uid) { // an owner may do everything, whatever its groups
			u, err = procs.Peer(conn)
		}
		if err == nil {
			return l.guests.enter(&peerConn{UnixConn: conn, user: u, book: &l.guests}), nil
		}
		conn.Close()
	}
}

// current returns the socket.
func (l *Listener) current() *socket {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.socket
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: l.current().path} }

// Told returns the path of the socket, which it makes again if it was removed. It is to be shown to a user whom the
// kernel lets read the root of the mount.
func (l *Listener) Told(uid uint32) string {
	l.guests.tell(uid)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keep()
	return l.socket.path
}

// Reachable returns nil if other users can connect, as far as the modes of directories tell.
func (l *Listener) Reachable() error { return openToAll(filepath.Dir(l.current().path)) }

// Drain gives the socket another name, so that another daemon can use the mount point. Draining
// finds it under that name.
func (l *Listener) Drain() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining = true
	if s := l.socket; s.isThere() {
		path := l.path(filepath.Dir(s.path))
		if err := os.Rename(s.path, path); err != nil {
			return err
		}
		s.path = path
	}
	l.keep() // it may have been removed
	return l.err
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	l.closed = true
	return l.socket.Close()
}
