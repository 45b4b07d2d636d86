package control

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// ErrStarting matches the error of a request to a daemon that has no mount yet. Its text says what the
// daemon waits for.
var ErrStarting = errors.New("the mount is not there yet")

// A startingError matches ErrStarting.
type startingError string

func (e startingError) Error() string        { return string(e) }
func (e startingError) Is(target error) bool { return target == ErrStarting }

// A start is the way of a daemon to its mount. The zero value has arrived.
type start struct {
	waits atomic.Pointer[waiting] // nil: it has arrived
}

// A waiting is what a start waits for.
type waiting struct {
	err  error         // of requests; nil: they wait
	next chan struct{} // closed when the start waits for something else, or has arrived
}

// Starting makes the server refuse requests until Started is called: the daemon has no mount yet. The error says so
// of the mount point, as users read it, with a cause such as "opening the tiers". If cause is "", the mount is about
// to be there, and requests wait. Requests for a shutdown and for profiles are served. Starting may be called again, with
// another cause.
func (s *Server) Starting(point, cause string) {
	w := &waiting{next: make(chan struct{})}
	if cause != "" {
		w.err = &exit.Error{
			Code:   exit.NotMounted,
			Err:    startingError(fmt.Sprintf("%s is not mounted yet: its daemon is %s", point, cause)),
			Remedy: fmt.Sprintf("`milkweed umount %s` ends it.", point),
		}
	}
	s.start.set(w)
}

// Started lets the server serve all requests.
func (s *Server) Started() { s.start.set(nil) }

func (s *start) set(w *waiting) {
	if before := s.waits.Swap(w); before != nil {
		close(before.next)
	}
}

// err returns the error of a request.
func (s *start) err(ctx context.Context) error {
	for {
		w := s.waits.Load()
		switch {
		case w == nil:
			return nil
		case w.err != nil:
			return w.err
		}
		select {
		case <-w.next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// whenStarted serves by h what a daemon without a mount may be asked, and everything when it has one.
func (s *Server) whenStarted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/shutdown" && !strings.HasPrefix(r.URL.Path, "/debug/pprof/") {
			if err := s.start.err(r.Context()); err != nil {
				respondError(w, err)
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}

// A Starting is a daemon that has no mount yet.
type Starting struct {
	*Client
	Err error // says what it waits for, or that it does not answer
}

// readyTimeout bounds how long a daemon may take to say whether it has a mount.
const readyTimeout = 2 * time.Second

// AllStarting returns the daemons of this user, or for root of all users, that have no mount yet. The caller
// closes them.
func AllStarting(ctx context.Context) []Starting {
	table, _ := mounts.Read(mounts.Self) // without it, daemons that have a mount are asked, too
	var (
		mu    sync.Mutex // guards the following
		all   []Starting
		tasks sync.WaitGroup
	)
	eachFolder(func(folder string) {
		var others []string // sockets of daemons that have a mount
		for _, m := range reachable(table) {
			others = append(others, socketPaths(folder, m.Point)...)
		}
		sockets, _ := filepath.Glob(filepath.Join(folder, "*"))
		for _, path := range sockets {
			if ext := filepath.Ext(path); ext != socketSuffix && ext != namedSuffix || slices.Contains(others, path) {
				continue
			}
			tasks.Go(func() {
				defer panics.Contain()
				if c, _ := ask(ctx, "", path); c != nil {
					mu.Lock()
					defer mu.Unlock()
					all = append(all, *c)
				}
			})
		}
	})
	tasks.Wait()
	slices.SortFunc(all, func(a, b Starting) int { return strings.Compare(a.socket, b.socket) })
	return all
}

// StartingAt returns the daemon of this user, or for root of any user, that is to mount at path and has not yet, or
// nil if there is none. The caller closes it.
func StartingAt(ctx context.Context, path string) *Starting {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil
	}
	s, _ := startingAt(ctx, append(resolve(abs), abs))
	return s
}

// startingIn is StartingAt for a path that is to be in a mount. Ready reports that there was such a daemon, which has
// mounted meanwhile.
func startingIn(path string) (s *Starting, ready bool) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, false
	}
	var points []string
	for _, real := range append(resolve(abs), abs) {
		for ; real != filepath.Dir(real); real = filepath.Dir(real) {
			points = append(points, real)
		}
	}
	return startingAt(context.Background(), points)
}

// startingAt is startingIn for several mount points.
func startingAt(ctx context.Context, points []string) (s *Starting, ready bool) {
	slices.Sort(points)
	points = slices.Compact(points)
	eachFolder(func(folder string) {
		for _, point := range points {
			for _, path := range socketPaths(folder, point) {
				if s == nil && !ready {
					s, ready = ask(ctx, point, path)
				}
			}
		}
	})
	return s, ready
}

// eachFolder calls f with each directory that may have sockets of this user, or for root of any user.
func eachFolder(f func(folder string)) {
	uids := []int{os.Geteuid()}
	if os.Geteuid() == 0 {
		var st unix.Stat_t
		if unix.Lstat(serviceFolder(), &st) == nil {
			uids = append(uids, int(st.Uid))
		}
		users, _ := os.ReadDir(runFolder + "/user")
		for _, u := range users {
			if uid, err := strconv.Atoi(u.Name()); err == nil {
				uids = append(uids, uid)
			}
		}
	}
	slices.Sort(uids)
	for _, uid := range slices.Compact(uids) {
		for _, folder := range usableFolders(uid) {
			f(folder)
		}
	}
}

// ask asks the daemon that listens on a socket whether it has a mount. It returns the daemon if it has none, or does
// not answer.
func ask(ctx context.Context, mountPoint, socket string) (s *Starting, ready bool) {
	pid, err := probe(ctx, socket)
	if errors.Is(err, syscall.ECONNREFUSED) {
		removeDead(ctx, socket)
	}
	if err != nil {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	c := newClient(mountPoint, socket)
	_, err = c.get(ctx, "/v1/ready")
	switch {
	case errors.Is(err, ErrStarting):
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, new(*SilentError)):
		reason, remedy := config.Halted(pid)
		if reason == "" {
			reason, remedy = "it gives no answer", "It may be busy, or frozen."
		}
		err = &exit.Error{
			Code:   exit.NotMounted,
			Err:    fmt.Errorf("a daemon (process %d) has no mount here, and %s", pid, reason),
			Remedy: fmt.Sprintf("%s `kill -KILL %d` ends it, and a mount that it has elsewhere.", remedy, pid),
		}
	default:
		c.Close()
		return nil, err == nil
	}
	return &Starting{c, err}, false
}
