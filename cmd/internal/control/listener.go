package control

import (
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
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
)

// A Listener listens on the socket of a mount point. If commands cannot find the socket any more, Accept makes it again:
// systemd-logind removes $XDG_RUNTIME_DIR, for example. The methods may be called concurrently.
type Listener struct {
	Log *slog.Logger // says that the socket was made again; may be nil, and is set before the first other call

	point  string                                 // the mount point
	pathIn func(folder, mountPoint string) string // the path of the socket in a directory, for commands
	all    bool                                   // for all users
	guests guestBook
	asked  atomic.Bool        // Told waits for keep
	open   context.Context    // until Close
	end    context.CancelFunc // of open; called with mu held
	next   time.Time          // when Accept looks for the socket again; of Accept alone
	said   string             // the last failure that Accept has logged; of Accept alone

	making sync.Mutex // held while a socket is made or moved, which takes at most makeTime

	mu       sync.Mutex // guards the following
	socket   *socket
	draining bool
	failed   time.Time // when the socket could not be made again; zero: it is there, as far as is known
}

// A socket is one on which this process listens. It does not change.
type socket struct {
	*net.UnixListener
	folder string // as the environment names it, perhaps a link with a slash
	path   string
	file   os.FileInfo // of path, when it was made
}

// keepTime is the time between two looks for the socket. Tests shorten it.
var keepTime = 5 * time.Second

const (
	makeTime = 2 * time.Second // for making it again
	toldTime = time.Second     // in which Told waits for that, less than resolveTimeout
)

func newListener(point string, pathIn func(folder, mountPoint string) string, all bool) *Listener {
	open, end := context.WithCancel(context.Background())
	return &Listener{point: point, pathIn: pathIn, all: all, open: open, end: end, next: time.Now().Add(keepTime)}
}

// listen makes the first socket of l.
func (l *Listener) listen(ctx context.Context) (*Listener, error) {
	folder, err := makeFolder(os.Geteuid(), l.all)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	if !hasRoom(folder) {
		return nil, &exit.Error{
			Code:   exit.Usage,
			Err:    fmt.Errorf("control socket: the paths of sockets in %s would be longer than %d bytes", folder, maxSocketPath),
			Remedy: "Set " + FolderEnv + " to a directory with a shorter path.",
		}
	}
	l.socket, err = l.makeSocket(ctx, folder)
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
		return nil, e
	}
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return l, nil
}

// makeSocket makes a socket in a directory. The error matches errInUse if another daemon listens for the mount point.
func (l *Listener) makeSocket(ctx context.Context, folder string) (*socket, error) {
	mode := os.FileMode(0o600)
	if l.all {
		mode = 0o666
	}
	s, err := replaceSocket(ctx, l.path(folder), mode)
	if err != nil {
		return nil, err
	}
	own, err := os.Stat(folder)
	isServedIn := func(other string) bool { // the environment may have chosen another directory, or another name of this one
		info, err := os.Stat(other)
		return err == nil && !os.SameFile(info, own) && isServed(ctx, l.path(other))
	}
	if err == nil && slices.ContainsFunc(usableFolders(os.Geteuid()), isServedIn) {
		err = errInUse
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	s.folder = folder
	return s, nil
}

// path returns the path of the socket in a directory.
func (l *Listener) path(folder string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
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

// lockFolder locks the directory of a socket, and returns the function that unlocks it. Without the lock, two
// daemons could find the same dead socket, and the second would remove the new socket of the first.
func lockFolder(ctx context.Context, socket string) (unlock func() error, err error) {
	folder := filepath.Dir(socket)
	lock, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	for {
		switch err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return lock.Close, nil
		case err != unix.EWOULDBLOCK && err != unix.EINTR:
			lock.Close()
			return nil, &fs.PathError{Op: "flock", Path: folder, Err: err}
		}
		select {
		case <-time.After(dialPause):
		case <-ctx.Done():
			lock.Close()
			return nil, &fs.PathError{Op: "flock", Path: folder, Err: ctx.Err()}
		}
	}
}

// replaceSocket listens on path, with a mode, and removes a socket there on which no daemon listens.
func replaceSocket(ctx context.Context, path string, mode os.FileMode) (*socket, error) {
	unlock, err := lockFolder(ctx, path)
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
	u.SetUnlinkOnClose(false) // Close does that, and not if the file is another one
	file, err := os.Lstat(path)
	if err == nil {
		err = os.Chmod(path, mode)
	}
	if err != nil {
		os.Remove(path)
		u.Close()
		return nil, err
	}
	return &socket{UnixListener: u, folder: filepath.Dir(path), path: path, file: file}, nil
}

// isThere reports whether path is the socket.
func (s *socket) isThere() bool {
	file, err := os.Lstat(s.path)
	return err == nil && os.SameFile(file, s.file)
}

// lost returns why commands do not use the socket, or nil.
func (s *socket) lost() error {
	err := checkFolder(s.folder, os.Geteuid())
	if err == nil && !s.isThere() {
		err = fmt.Errorf("%s was removed or replaced", s.path)
	}
	return err
}

// Close removes the socket, and no longer listens on it.
func (s *socket) Close() error {
	if s.isThere() {
		os.Remove(s.path)
	}
	return s.UnixListener.Close()
}

// keep makes the socket again if commands cannot find it.
func (l *Listener) keep() error {
	err := l.makeAgain()
	failed := time.Time{}
	if err != nil {
		failed = time.Now()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = failed
	return err
}

// makeAgain is keep without a record of the failure.
func (l *Listener) makeAgain() error {
	l.making.Lock()
	defer l.making.Unlock()
	if l.open.Err() != nil {
		return net.ErrClosed
	}
	before := l.current()
	why := before.lost()
	if why == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(l.open, makeTime)
	defer cancel()
	folder, err := makeFolder(os.Geteuid(), l.all)
	if err != nil {
		return fmt.Errorf("%w; it cannot be made again: %w", why, err)
	}
	s, err := l.makeSocket(ctx, folder)
	if err != nil {
		return fmt.Errorf("%w; it cannot be made again as %s: %w", why, l.path(folder), err)
	}
	if !l.replace(s) {
		return s.Close()
	}
	before.Close() // Accept goes on with s
	if l.Log != nil {
		l.Log.Warn("the control socket was made again", "cause", why, "socket", s.path)
	}
	return nil
}

// replace makes s the socket, unless l was closed.
func (l *Listener) replace(s *socket) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open.Err() != nil {
		return false
	}
	l.socket = s
	return true
}

// current returns the socket.
func (l *Listener) current() *socket {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.socket
}

// Accept implements net.Listener. Only one goroutine calls it.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		s := l.current()
		s.SetDeadline(l.next)
		if (l.asked.Load() || !time.Now().Before(l.next)) && l.open.Err() == nil {
			err := l.keep()
			text := ""
			if err != nil {
				text = err.Error()
			}
			if text != "" && text != l.said && l.Log != nil && l.open.Err() == nil {
				l.Log.Warn("commands cannot find this daemon", "err", err)
			}
			l.said, l.next = text, time.Now().Add(keepTime)
			l.asked.Store(false)
			continue
		}
		conn, err := s.AcceptUnix()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case err != nil && l.current() == s:
			return nil, err
		case err != nil: // another one has taken its place
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

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: l.current().path} }

// Told returns the path of the socket, to be shown to a user whom the kernel lets read the root of the mount. If it was
// removed, Told waits until Accept has made it again, but not for long. The path is "" if there is none.
func (l *Listener) Told(uid uint32) string {
	l.guests.tell(uid)
	for began := time.Now(); ; time.Sleep(dialPause) {
		s := l.current()
		if s.lost() == nil {
			return s.path
		}
		l.mu.Lock()
		mayHelp := time.Since(l.failed) > keepTime && time.Since(began) < toldTime && l.open.Err() == nil
		l.mu.Unlock()
		if !mayHelp {
			return ""
		}
		l.asked.Store(true)
		s.SetDeadline(time.Unix(0, 1))
	}
}

// Reachable returns nil if other users can connect, as far as the modes of directories tell.
func (l *Listener) Reachable() error { return openToAll(filepath.Dir(l.current().path)) }

// Drain gives the socket another name, so that another daemon can use the mount point. Draining
// finds it under that name.
func (l *Listener) Drain() error {
	if err := l.rename(); err != nil {
		return err
	}
	return l.keep() // it may have been removed
}

// rename gives the socket, if it is there, the name of one of a daemon that drains.
func (l *Listener) rename() error {
	l.making.Lock()
	defer l.making.Unlock()
	l.mu.Lock()
	l.draining = true
	l.mu.Unlock()
	s := l.current()
	if !s.isThere() {
		return nil
	}
	renamed := *s
	renamed.path = l.path(filepath.Dir(s.path))
	if err := os.Rename(s.path, renamed.path); err != nil {
		return err
	}
	l.replace(&renamed)
	return nil
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open.Err() != nil {
		return net.ErrClosed
	}
	l.end()
	return l.socket.Close()
}
