package control

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/placement"
)

// A Guest answers the requests of a user other than root and the owner of the socket, who may read the mount. A Daemon
// is that for its owner, who may see everything. The methods may be called concurrently.
type Guest interface {
	// Status returns the current status. It calls neither the tiers nor the source, so that
	// it returns soon even if they hang.
	Status(ctx context.Context) Status

	// Where returns the location of one file. name is relative to the mount point, in the form
	// of drivers.ValidName. If there is no such file, the error matches fs.ErrNotExist. If the user may not read
	// it, the error matches fs.ErrPermission.
	Where(ctx context.Context, name string) (Location, error)

	// Plan adds paths to the plan of the user, as placement.Handler.Plan does. A path is relative to the mount
	// point, or absolute and below it.
	Plan(part placement.PlanPart, paths []string) (placement.PlanResult, error)

	// Plans returns the state of the plan of the user.
	Plans() Plan

	// DropPlan drops a stream of that plan, if there is one of that name.
	DropPlan(stream string)

	// DropPlans drops that whole plan.
	DropPlans()
}

// Limits of the connections of users other than root and the owner. At a limit, a new connection takes the place of
// another one, so that nobody is kept out; see add.
const (
	maxGuestConns   = 256 // of all guests
	maxUserConns    = 64  // of one of them
	maxRefusedConns = 16  // of users who are no guests

	visitTime = time.Minute // between Told and a connection
)

// guestBook knows which users may connect as guests. A user may do so for visitTime after the kernel has let that user
// read the root of the mount: a connection is permitted as an open file is, when it is made.
type guestBook struct {
	mu      sync.Mutex           // guards the following
	told    map[uint32]time.Time // when a user was told the path of the socket
	pruned  time.Time            // when the users who were told long ago were forgotten
	guests  []*peerConn          // open connections of guests, the oldest first
	refused []*peerConn          // those of users who are no guests
}

// tell records when a user learns the path of the socket.
func (b *guestBook) tell(uid uint32) {
	if isOwner(int(uid)) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.told == nil {
		b.told = make(map[uint32]time.Time)
	}
	if now.Sub(b.pruned) > visitTime {
		maps.DeleteFunc(b.told, func(_ uint32, at time.Time) bool { return now.Sub(at) > visitTime })
		b.pruned = now
	}
	b.told[uid] = now
}

// isOwner reports whether a user is root or that of this process.
func isOwner(uid int) bool { return uid == 0 || uid == os.Geteuid() }

// enter finds out whether a new connection is one of a guest, and makes room for it.
func (b *guestBook) enter(c *peerConn) *peerConn {
	if isOwner(c.user.UID) {
		return c
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if at, told := b.told[uint32(c.user.UID)]; !told || time.Since(at) > visitTime {
		c.refused = true
		b.refused = add(b.refused, c, maxRefusedConns, maxRefusedConns)
	} else {
		b.guests = add(b.guests, c, maxGuestConns, maxUserConns)
	}
	return c
}

// add adds a connection. If its user has mostOfUser already, it replaces the oldest one of them. If there are most in
// all, it replaces the oldest one of the user with the largest number.
func add(conns []*peerConn, c *peerConn, most, mostOfUser int) []*peerConn {
	users := make(map[int]int)
	for _, other := range conns {
		users[other.user.UID]++
	}
	user := c.user.UID
	if len(conns) < most && users[user] < mostOfUser {
		return append(conns, c)
	}
	if users[user] < mostOfUser {
		for uid, n := range users {
			if n > users[user] {
				user = uid
			}
		}
	}
	first := max(0, slices.IndexFunc(conns, func(other *peerConn) bool { return other.user.UID == user }))
	conns[first].UnixConn.Close() // its server calls remove
	return append(slices.Delete(conns, first, first+1), c)
}

// remove forgets a connection that was closed.
func (b *guestBook) remove(c *peerConn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	is := func(other *peerConn) bool { return other == c }
	b.guests, b.refused = slices.DeleteFunc(b.guests, is), slices.DeleteFunc(b.refused, is)
}

// A peerConn is a connection of a user.
type peerConn struct {
	*net.UnixConn
	user    procs.User
	refused bool // the user is neither an owner nor a guest
	book    *guestBook
}

// Close implements net.Conn.
func (c *peerConn) Close() error {
	c.book.remove(c)
	return c.UnixConn.Close()
}

// peerKey is the key of a peerConn in the context of its requests.
type peerKey struct{}

// withPeer adds a connection to ctx.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, c)
}

// admit serves the requests of root and of the owner of the socket by owners, and those of guests as far as they may
// make them. Others than root and the owner have one request on each connection, so that none of theirs is idle, and
// no reply waits for the rest of a request.
func (s *Server) admit(owners http.Handler) http.Handler {
	guests := s.whenStarted(s.guestHandler())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, ok := r.Context().Value(peerKey{}).(*peerConn)
		if ok && isOwner(c.user.UID) {
			owners.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Connection", "close")
		if !ok || c.refused {
			respondError(w, errNoGuest)
			return
		}
		guests.ServeHTTP(w, r)
	})
}

// guestHandler serves the requests of guests.
func (s *Server) guestHandler() http.Handler {
	mux := http.NewServeMux()
	for pattern, serve := range map[string]func(view, http.ResponseWriter, *http.Request){
		"GET /v1/status":  view.status,
		"GET /v1/where":   view.where,
		"POST /v1/plan":   view.addPlan,
		"GET /v1/plan":    view.getPlan,
		"DELETE /v1/plan": view.dropPlan,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			g, err := s.guest(r)
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

// guest returns the Guest that answers a request.
func (s *Server) guest(r *http.Request) (Guest, error) {
	if s.Guest == nil {
		return nil, errNoGuest
	}
	return s.Guest(r.Context().Value(peerKey{}).(*peerConn).user)
}

// The errors for users who are neither root nor the owner of the socket.
var (
	errNoGuest = &exit.Error{
		Code: exit.NotMounted, Err: fmt.Errorf("only root, the user who has mounted, and users who may read the mount may use this socket: %w", unix.EACCES),
		Remedy: "Read the extended attribute user.milkweed.socket of the mount point before you connect.",
	}
	errOwnersOnly = &exit.Error{
		Code: exit.NotMounted, Err: fmt.Errorf("only root and the user who has mounted may do this: %w", unix.EACCES),
		Remedy: "Other users may use `milkweed status`, `where` and `plan`.",
	}
)

// openToAll returns an error if other users than its owner cannot enter a directory.
func openToAll(dir string) error {
	for ; ; dir = filepath.Dir(dir) {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			return &os.PathError{Op: "stat", Path: dir, Err: err}
		}
		if st.Mode&unix.S_IXOTH == 0 {
			return fmt.Errorf("other users cannot enter %s, which has the mode %#o", dir, st.Mode&0o777)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}
