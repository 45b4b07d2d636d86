package control

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"

	"golang.org/x/sys/unix"
)

// peerKey is the key of the user at the other end of a connection, in the context of its requests.
type peerKey struct{}

// withPeer adds the user at the other end of a connection to a Unix socket to ctx.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	if uid, err := peerUser(c); err == nil {
		return context.WithValue(ctx, peerKey{}, uid)
	}
	return ctx
}

// peerUser returns the user who has connected to a Unix socket, as the user namespace of this process
// sees that user.
func peerUser(c net.Conn) (uid int, err error) {
	unixConn, ok := c.(*net.UnixConn)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	if e := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil {
		return 0, e
	}
	if err != nil {
		return 0, err
	}
	return int(cred.Uid), nil
}

// ownersOnly refuses requests of users other than root and the owner of the socket. The mode of the
// socket does so too, unless somebody has changed it or has passed a connection on.
func ownersOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		uid, ok := r.Context().Value(peerKey{}).(int)
		if !ok || uid != 0 && uid != os.Geteuid() {
			http.Error(w, `{"code":7,"message":"only root and the user who has mounted may use this socket"}`, http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}
