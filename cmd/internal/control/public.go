package control

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
)

// TokenHeader is the header of a request with a token.
const TokenHeader = "Milkweed-Token"

// publicSuffix ends the name of the socket of guests.
const publicSuffix = ".pub"

// Limits of the socket of guests. A connection beyond them is closed at once.
const (
	maxGuestConns = 32 // of all users
	maxUserConns  = 8  // of one
)

// ListenPublic makes the socket of guests beside l, or in a directory that other users can reach, and
// listens on it. Closing the listener removes the socket. Only users with a token of t get an answer.
func (l *Listener) ListenPublic(ctx context.Context) (*PublicListener, error) {
	folder, err := publicFolder(os.Geteuid())
	if err != nil {
		return nil, fmt.Errorf("socket for other users: %w", err)
	}
	path := publicPath(folder, l.mountPoint)
	u, err := replaceSocket(ctx, folder, path, 0o666)
	if err != nil {
		return nil, fmt.Errorf("socket for other users: %w", err)
	}
	return &PublicListener{UnixListener: u, conns: make(map[int]int)}, nil
}

// publicPath returns the path of the socket of guests of a mount point.
func publicPath(folder, mountPoint string) string {
	return strings.TrimSuffix(socketPath(folder, mountPoint), ".sock") + publicSuffix
}

// isPublic reports whether the path of a socket is that of one for guests.
func isPublic(path string) bool { return strings.HasSuffix(path, publicSuffix) }

// publicFolder makes, or finds, the first directory for the sockets of a user that other users can
// reach, and lets them enter it. Nobody else can list it or make a socket in it, and the other sockets in
// it have the mode 0600.
func publicFolder(uid int) (string, error) {
	return usableFolder(uid, func(dir string) error {
		for above := filepath.Dir(dir); ; above = filepath.Dir(above) {
			var st unix.Stat_t
			if err := unix.Stat(above, &st); err != nil {
				return &os.PathError{Op: "stat", Path: above, Err: err}
			}
			if st.Mode&unix.S_IXOTH == 0 {
				return fmt.Errorf("other users cannot enter %s", above)
			}
			if above == "/" {
				break
			}
		}
		return os.Chmod(dir, 0o711)
	})
}

// A PublicListener listens on the socket of guests. It accepts a limited number of connections, in all
// and of each user.
type PublicListener struct {
	*net.UnixListener

	mu    sync.Mutex  // guards the following
	conns map[int]int // open connections by user; that of -1 is the number of all
}

// Accept implements net.Listener.
func (l *PublicListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		u, err := procs.Peer(conn)
		if err != nil || !l.take(u.UID) {
			conn.Close()
			continue
		}
		return &guestConn{UnixConn: conn, user: u, release: sync.OnceFunc(func() { l.put(u.UID) })}, nil
	}
}

// take counts a connection of a user, and reports whether there may be one more.
func (l *PublicListener) take(uid int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns[allUsers] >= maxGuestConns || l.conns[uid] >= maxUserConns {
		return false
	}
	l.conns[allUsers]++
	l.conns[uid]++
	return true
}

// allUsers is the key of PublicListener.conns for the number of all connections.
const allUsers = -1

// put counts a connection that was closed.
func (l *PublicListener) put(uid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[allUsers]--
	if l.conns[uid]--; l.conns[uid] == 0 {
		delete(l.conns, uid)
	}
}

// A guestConn is a connection to the socket of guests.
type guestConn struct {
	*net.UnixConn
	user    procs.User
	release func()
}

// Close implements net.Conn.
func (c *guestConn) Close() error {
	c.release()
	return c.UnixConn.Close()
}

// Tokens are proofs that users have read an attribute of the mount, which the kernel shows only to those
// who may read the root. A token is of one user, and is valid for one to two minutes.
type Tokens struct{ key [32]byte }

// tokenLife is the time after which the kernel must decide again.
const tokenLife = time.Minute

// NewTokens returns Tokens that no other process knows.
func NewTokens() *Tokens {
	t := new(Tokens)
	rand.Read(t.key[:])
	return t
}

// Of returns the token of a user at a time.
func (t *Tokens) Of(uid int, now time.Time) string {
	return hex.EncodeToString(t.sum(uid, now.Unix()/int64(tokenLife/time.Second)))
}

func (t *Tokens) sum(uid int, slot int64) []byte {
	h := hmac.New(sha256.New, t.key[:])
	fmt.Fprintf(h, "%d %d", uid, slot)
	return h.Sum(nil)
}

// Accepts reports whether a token is one of a user, and is valid.
func (t *Tokens) Accepts(uid int, token string, now time.Time) bool {
	given, err := hex.DecodeString(token)
	slot := now.Unix() / int64(tokenLife/time.Second)
	return err == nil && (hmac.Equal(given, t.sum(uid, slot)) || hmac.Equal(given, t.sum(uid, slot-1)))
}

// A PublicServer answers guests. A request without a valid token is refused, and so is each that only
// the owner may make.
type PublicServer struct {
	Tokens *Tokens

	// Guest returns what answers a user, or an error if the user may not read the mount.
	Guest func(ctx context.Context, u procs.User) (Guest, error)
}

// Serve serves on l in the manner of Server.Serve. It logs nothing, because a guest could fill the log.
func (s *PublicServer) Serve(ctx context.Context, l *PublicListener) error {
	return ServeHTTP(ctx, l, s.handler(), slog.New(slog.DiscardHandler))
}

func (s *PublicServer) handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, serve := range map[string]func(view, http.ResponseWriter, *http.Request){
		"GET /v1/status":  view.status,
		"GET /v1/where":   view.where,
		"POST /v1/plan":   view.addPlan,
		"GET /v1/plan":    view.getPlan,
		"DELETE /v1/plan": view.dropPlan,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			u, ok := r.Context().Value(peerKey{}).(procs.User)
			if !ok || !s.Tokens.Accepts(u.UID, r.Header.Get(TokenHeader), time.Now()) {
				respondError(w, errNotGuest)
				return
			}
			g, err := s.Guest(r.Context(), u)
			if err != nil {
				respondError(w, err)
				return
			}
			serve(view{g}, w, r)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { respondError(w, errOwnersOnly) })
	return mux
}

// The errors for guests.
var (
	errNotGuest = &exit.Error{
		Code: exit.NotMounted, Err: fmt.Errorf("only users who may read the mount may use this socket: %w", unix.EACCES),
		Remedy: "Send the value of the extended attribute user.milkweed.token of the mount point in the header " + TokenHeader + ".",
	}
	errOwnersOnly = &exit.Error{
		Code: exit.NotMounted, Err: fmt.Errorf("only root and the user who has mounted may do this: %w", unix.EACCES),
		Remedy: "Other users may use status, where and plan.",
	}
)
