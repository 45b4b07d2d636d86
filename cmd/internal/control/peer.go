package control

import (
	"context"
	"net"
	"net/http"
	"os"

	"github.com/milkweedfs/milkweed/cmd/internal/procs"
)

// peerKey is the key of the user at the other end of a connection, in the context of its requests.
type peerKey struct{}

// withPeer adds the user at the other end of a connection to a Unix socket to ctx.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	if conn, ok := c.(*net.UnixConn); ok {
		if uid, err := procs.PeerUser(conn); err == nil {
			return context.WithValue(ctx, peerKey{}, uid)
		}
	}
	return ctx
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
