package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/drivers/panics"
	milkweed "github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/placement"
)

const (
	maxResponse     = 16 << 20         // bytes of a response that is not a stream
	responseTimeout = 30 * time.Second // for a response that is not a stream

	generationsTimeout = 5 * time.Minute // for Generations, which lists all copies
)

// A Client sends requests to one daemon. Its methods may be called concurrently.
type Client struct {
	mountPoint string
	socket     string
	http       *http.Client
	pid        atomic.Int64 // of the daemon; 0 before the first connection
}

// Dial returns a client of the daemon of a mount point, which is a path that Resolve returned.
// The caller closes the client. If no daemon answers, the error is an *exit.Error with the code
// NotMounted. It matches a *KilledError if the daemon was killed and has not ended.
func Dial(ctx context.Context, mountPoint string) (*Client, error) {
	return dial(ctx, mountPoint, newRoot(mountPoint), owners(mountPoint))
}

// Visit is Dial, and if the daemon is that of another user, the client may make the requests of a Guest: those of
// Status, Where, AddPlan, Plan and DropPlan.
func Visit(ctx context.Context, mountPoint string) (*Client, error) {
	root, owners := newRoot(mountPoint), owners(mountPoint)
	c, err := dial(ctx, mountPoint, root, owners)
	if err == nil || os.Geteuid() == 0 {
		return c, err
	}
	path := root.socketOf(mounters(mountPoint))
	if path == "" {
		return nil, err
	}
	if _, failed := probe(ctx, path); failed != nil {
		return nil, err
	}
	return newClientOf(mountPoint, path, func() string { return cmp.Or(newRoot(mountPoint).socketOf(mounters(mountPoint)), path) }), nil
}

// dial is Dial for a daemon of one of its owners.
func dial(ctx context.Context, mountPoint string, root root, owners []int) (*Client, error) {
	path, err := findSocket(ctx, mountPoint, root, owners)
	if err != nil {
		return nil, notAnswering(mountPoint, err, root)
	}
	return newClientOf(mountPoint, path, func() string {
		if _, err := os.Lstat(path); err == nil {
			return path
		}
		found, _ := findSocket(ctx, mountPoint, newRoot(mountPoint), owners) // the daemon may have made it again
		return cmp.Or(found, path)
	}), nil
}

// findSocket returns the socket on which the daemon of a mount point listens. The error matches a *KilledError if the
// daemon was killed.
func findSocket(ctx context.Context, mountPoint string, root root, owners []int) (path string, err error) {
	var errs []error
	for _, uid := range owners {
		for _, folder := range usableFolders(uid) {
			for _, path := range socketPaths(folder, mountPoint) {
				_, err := probe(ctx, path)
				if err == nil || errors.As(err, new(*KilledError)) { // the root of a killed daemon does not answer either
					return path, err
				}
				errs = append(errs, err)
			}
		}
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	// The mount point may have had another path when the daemon began to listen, its environment may have been
	// another one, or the socket was removed.
	if path := root.socketOf(owners); path != "" {
		_, err := probe(ctx, path)
		if err == nil {
			return path, nil
		}
		errs = append(errs, err)
	}
	return "", cmp.Or(errors.Join(errs...), fs.ErrNotExist)
}

// A root returns what the root of a mount says, which is asked once: the path of the socket, or unix.ENODATA if the
// daemon has none at present.
type root func() (socket string, err error)

func newRoot(mountPoint string) root {
	return sync.OnceValues(func() (string, error) {
		type answer struct {
			path string
			err  error
		}
		answers := make(chan answer, 1)
		go func() { // it ends with the process
			buf := make([]byte, maxSocketPath)
			n, err := unix.Getxattr(mountPoint, milkweed.SocketXattr, buf)
			if err == unix.EACCES && os.Geteuid() == 0 && becomeMounter(mountPoint) == nil {
				n, err = unix.Getxattr(mountPoint, milkweed.SocketXattr, buf)
			}
			answers <- answer{string(buf[:max(n, 0)]), err}
		}()
		select {
		case a := <-answers:
			return a.path, a.err
		case <-time.After(resolveTimeout):
			return "", os.ErrDeadlineExceeded
		}
	})
}

// becomeMounter gives the calling goroutine the user and the group of the mount at a mount point. Without
// allow_other, only that user may read the mount, and not even root. The goroutine keeps its thread, which
// ends with it.
func becomeMounter(mountPoint string) error {
	all := mountedAt(mountPoint)
	if len(all) == 0 {
		return fs.ErrNotExist
	}
	runtime.LockOSThread()
	// The functions of package unix change all threads.
	uid, gid := uintptr(all[0].UID), uintptr(all[0].GID)
	if _, _, err := unix.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid); err != 0 {
		return err
	}
	if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); err != 0 {
		return err
	}
	return nil
}

// Works reports whether the root of a mount answers. Its daemon lives then, also if Dial fails.
func Works(mountPoint string) bool {
	root := newRoot(mountPoint)
	_, err := root()
	return err == nil || root.hasNone()
}

// hasNone reports whether the daemon has no socket at present.
func (r root) hasNone() bool {
	_, err := r()
	return errors.Is(err, unix.ENODATA)
}

// socketOf returns the socket that the root names if it is in a directory of one of these users, in which no other user
// can make sockets. The result is "" if there is none, or the daemon does not answer in time.
func (r root) socketOf(uids []int) string {
	path, err := r()
	if err != nil || !slices.ContainsFunc(uids, func(uid int) bool { return checkFolder(filepath.Dir(path), uid) == nil }) {
		return ""
	}
	return path
}

// Draining returns a client of each daemon of this user that drains: its mount is gone in the mount
// namespace in which it was mounted, and is in use elsewhere. The caller closes the clients.
func Draining(ctx context.Context) (clients []*Client) { return ownClients(ctx, drainSuffix) }

// ownClients returns a client of each daemon of this user whose socket has a name with a suffix.
func ownClients(ctx context.Context, suffix string) (clients []*Client) {
	for _, folder := range usableFolders(os.Geteuid()) {
		sockets, _ := filepath.Glob(filepath.Join(folder, "*"+suffix))
		for _, path := range sockets {
			if _, err := probe(ctx, path); errors.Is(err, syscall.ECONNREFUSED) {
				removeDead(ctx, path)
			} else if err == nil {
				clients = append(clients, newClient("", path))
			}
		}
	}
	return clients
}

func newClient(mountPoint, socket string) *Client {
	return newClientOf(mountPoint, socket, func() string { return socket })
}

// newClientOf is newClient for a daemon whose socket find returns before each connection.
func newClientOf(mountPoint, socket string, find func() string) *Client {
	c := &Client{mountPoint: mountPoint, socket: socket}
	c.http = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := dialSocket(ctx, find())
		if err != nil {
			return nil, err
		}
		if pid, err := procs.Listener(conn.(*net.UnixConn)); err == nil {
			c.pid.Store(int64(pid))
		}
		return conn, nil
	}}}
	return c
}

// A KilledError says that the daemon of a mount was killed, and has not ended. A thread of it may tell the
// kernel that a file has changed, and wait for the end of a read of that file, which only the daemon can
// answer. Then it does not end before its connection is aborted.
type KilledError struct{ PID int }

func (e *KilledError) Error() string {
	return fmt.Sprintf("the daemon (process %d) was killed, and has not ended", e.PID)
}

// PID returns the process ID of the daemon. The error matches a *KilledError if the daemon was killed.
func (c *Client) PID(ctx context.Context) (int, error) { return probe(ctx, c.socket) }

// probe returns the process that listens on socket. The error is a *KilledError if that was killed.
func probe(ctx context.Context, socket string) (pid int, err error) {
	conn, err := dialSocket(ctx, socket)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	pid, err = procs.Listener(conn.(*net.UnixConn))
	if err == nil && procs.Dying(pid) {
		return 0, &KilledError{pid}
	}
	return pid, err
}

// owners lists the users who may own the daemon of a mount point, as far as its socket obeys this one: the user of this
// process, and for root the user who mounted it.
func owners(mountPoint string) []int {
	uids := []int{os.Geteuid()}
	if os.Geteuid() == 0 {
		uids = append(uids, mounters(mountPoint)...)
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

// mounters lists the users who have mounted at a mount point. It is empty if they are not known.
func mounters(mountPoint string) (uids []int) {
	for _, m := range mountedAt(mountPoint) {
		uids = append(uids, m.UID)
	}
	return uids
}

// mountedAt lists the mounts of Milkweed at a mount point.
func mountedAt(mountPoint string) []Mount {
	table, _ := mounts.Read(mounts.Self)
	return slices.DeleteFunc(reachable(table), func(m Mount) bool { return m.Point != mountPoint })
}

// notAnswering returns the error for a mount point whose daemon does not answer. err is the
// error of the connection, and root that of the mount. If the connection was canceled or timed out, notAnswering returns err.
func notAnswering(mountPoint string, err error, root root) error {
	mounts, _ := Mounts()
	i := slices.IndexFunc(mounts, func(m Mount) bool { return m.Point == mountPoint })
	e := &exit.Error{Code: exit.NotMounted}
	switch {
	case errors.As(err, new(*KilledError)):
		e.Err = fmt.Errorf("%s: %w", mountPoint, err)
		e.Remedy = fmt.Sprintf("`milkweed umount %s` ends it and removes the mount. Then mount again.", mountPoint)
	case i < 0:
		e.Err = fmt.Errorf("no Milkweed is mounted at %s", mountPoint)
		e.Remedy = mountedRemedy(mounts)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case root.hasNone():
		e.Err = fmt.Errorf("%s is mounted and works, but its daemon has no control socket at present", mountPoint)
		e.Remedy = "The log of the daemon says why. It makes the socket again when it can."
	case mounts[i].UID != os.Geteuid() && os.Geteuid() != 0:
		e.Err = fmt.Errorf("%s was mounted by another user (%d); only that user and root can use its daemon, and with allow_other in part the users who may read it", mountPoint, mounts[i].UID)
		e.Remedy = "Run the command as that user or as root."
	case mounts[i].Part != "":
		e.Err = fmt.Errorf("%s is the part %s of a mount, whose daemon cannot be found from there", mountPoint, mounts[i].Part)
		e.Remedy = "Run the command where the whole dataset is mounted."
		if path := mounts[i].Whole(mounts); path != "" {
			e.Remedy = fmt.Sprintf("Use %s.", path)
		}
	default:
		e.Err = fmt.Errorf("the daemon of %s does not answer", mountPoint)
		e.Remedy = fmt.Sprintf("If it has died, `milkweed umount %s` removes the mount. Then mount again.", mountPoint)
		if path, err := root(); err == nil {
			e.Err = fmt.Errorf("%s is mounted and works, but its control socket cannot be used from here: %s", mountPoint, path)
			e.Remedy = "If the daemon runs in a container, run the command there."
		}
	}
	return e
}

// Close closes the connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Get returns the response to a GET request, such as "/metrics".
func (c *Client) Get(ctx context.Context, path string) ([]byte, error) { return c.get(ctx, path) }

// Status returns the status of the daemon.
func (c *Client) Status(ctx context.Context) (Status, error) {
	body, err := c.get(ctx, "/v1/status")
	if err != nil {
		return Status{}, err
	}
	return DecodeStatus(body)
}

// Settings returns the configuration with which the mount was made.
func (c *Client) Settings(ctx context.Context) (settings []config.Setting, err error) {
	body, err := c.get(ctx, "/v1/config")
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body, &settings); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return settings, nil
}

// Where returns the location of a file. name is relative to the mount point.
func (c *Client) Where(ctx context.Context, name string) (Location, error) {
	body, err := c.get(ctx, "/v1/where?"+url.Values{"path": {name}}.Encode())
	if err != nil {
		return Location{}, err
	}
	var loc Location
	if err := json.Unmarshal(body, &loc); err != nil {
		return Location{}, fmt.Errorf("where: %w", err)
	}
	return loc, nil
}

// Warmup places the files below the names. It calls progress from time to time, and returns
// the last Progress. When ctx is done, the warm-up ends. Copies that were complete stay.
func (c *Client) Warmup(ctx context.Context, names []string, progress func(Progress)) (Progress, error) {
	return post(ctx, c, "/v1/warmup", makeNames(names), "the warm-up", "Complete copies stay. ", progress)
}

// Estimate finds what Warmup would do, and copies nothing. It calls progress from time to time, and
// returns the last Progress.
func (c *Client) Estimate(ctx context.Context, names []string, progress func(Progress)) (Progress, error) {
	return post(ctx, c, "/v1/estimate", makeNames(names), "the estimate", "", progress)
}

// Refresh compares what is cached below the names with the source. It calls progress from time
// to time, and returns the last Refreshed, when every later open sees the state of the source.
func (c *Client) Refresh(ctx context.Context, names []string, opts RefreshOptions, progress func(Refreshed)) (Refreshed, error) {
	return post(ctx, c, "/v1/refresh", RefreshRequest{makeNames(names), opts}, "the refresh", "", progress)
}

// post sends a request whose response is a stream of events, and follows it.
func post[P any](ctx context.Context, c *Client, path string, req any, work, remedy string, progress func(P)) (last P, err error) {
	body, err := json.Marshal(req)
	if err != nil {
		return last, err
	}
	resp, err := c.do(ctx, http.MethodPost, path, body)
	if err != nil {
		return last, err
	}
	defer resp.Body.Close()
	return follow(ctx, resp.Body, work, remedy, progress)
}

// follow reads the events of a stream until the last, and returns its progress. work and remedy
// are for the error if the daemon ends before that.
func follow[P any](ctx context.Context, r io.Reader, work, remedy string, progress func(P)) (last P, err error) {
	for lines := json.NewDecoder(r); ; {
		var e Event[P]
		if err := lines.Decode(&e); err != nil {
			if ctx.Err() != nil {
				return last, ctx.Err()
			}
			return last, &exit.Error{
				Code:   exit.NotMounted,
				Err:    fmt.Errorf("the daemon ended during %s: %w", work, err),
				Remedy: remedy + "The log of the daemon has the reason.",
			}
		}
		last = e.Progress
		progress(last)
		switch {
		case e.Failure != nil:
			return last, e.Failure.Err()
		case e.End:
			return last, nil
		}
	}
}

// Evict removes the copies of the files at and below the names. It calls progress from time to time, and
// returns the last report.
func (c *Client) Evict(ctx context.Context, names []string, progress func(placement.DropReport)) (placement.DropReport, error) {
	return post(ctx, c, "/v1/evict", makeNames(names), "the removal of copies", "", progress)
}

// Shutdown starts the shutdown of the daemon, and does not wait for its end.
func (c *Client) Shutdown(ctx context.Context, abort bool) error {
	ctx, cancel := context.WithTimeout(ctx, responseTimeout)
	defer cancel()
	resp, err := c.do(ctx, http.MethodPost, fmt.Sprint("/v1/shutdown?abort=", abort), nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func (c *Client) get(ctx context.Context, url string) ([]byte, error) {
	return c.getWithin(ctx, responseTimeout, url)
}

// getWithin is get with another time-out.
func (c *Client) getWithin(ctx context.Context, timeout time.Duration, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resp, err := c.do(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(io.LimitReader(resp.Body, maxResponse))
}

// do sends a request. A status other than 2xx is an error. If there is no response after a second, do asks the daemon
// whether it is alive. The error matches a *SilentError if it does not say so.
func (c *Client) do(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx) // the response is read under it
	var settled sync.Once                       // by the response, or because the daemon is silent
	asking := time.AfterFunc(askAfter, func() {
		defer panics.Contain()
		if err := c.checkAlive(ctx); err != nil {
			settled.Do(func() { cancel(err) })
		}
	})
	resp, err := c.send(ctx, method, path, body)
	asking.Stop()
	settled.Do(func() {})
	if cause := context.Cause(ctx); errors.As(cause, new(*SilentError)) {
		if err == nil {
			resp.Body.Close()
		}
		err = cause
	}
	if err != nil {
		cancel(nil)
		return nil, err
	}
	resp.Body = &canceledBody{resp.Body, cancel}
	return resp, nil
}

const (
	askAfter   = time.Second
	aliveTime  = 10 * time.Second // for the answer of a daemon that runs; a machine that swaps may need that long
	haltedTime = time.Second      // after which one that does not run is taken not to go on by itself
)

// A SilentError says that a daemon does not run, or does not answer.
type SilentError struct{ text string }

func (e *SilentError) Error() string { return e.text }

// checkAlive returns an error that matches a *SilentError if the daemon does not run, or does not answer a request that
// needs neither a disk nor the source.
func (c *Client) checkAlive(ctx context.Context) error {
	silent := func(remedy, format string, args ...any) error {
		return &exit.Error{Code: exit.NotMounted, Err: &SilentError{fmt.Sprintf(format, args...)}, Remedy: remedy}
	}
	for {
		pid, wait := int(c.pid.Load()), aliveTime
		halted, _ := config.Halted(pid)
		if halted != "" {
			wait = haltedTime
		}
		if c.answers(ctx, wait) || ctx.Err() != nil {
			return nil
		}
		reason, remedy := config.Halted(pid)
		switch {
		case reason != "":
			return silent(remedy, "the daemon of %s (process %d) does not run, and reads wait for it: %s", c.mountPoint, pid, reason)
		case halted == "":
			return silent("The machine may be overloaded. If not, `milkweed debug` collects what is left of the daemon, for a report, and `milkweed umount --force` ends the mount.",
				"the daemon of %s hangs: it gives no answer within %v", c.mountPoint, askAfter+aliveTime)
		}
	}
}

// answers reports whether the daemon responds in time to a request that needs neither a disk nor the source.
func (c *Client) answers(ctx context.Context, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	resp, err := c.send(ctx, http.MethodGet, "/v1/ready", nil)
	if err == nil {
		resp.Body.Close()
	}
	return !errors.Is(err, context.DeadlineExceeded) // another error is an answer, too
}

// A canceledBody cancels the context of its request when it is closed.
type canceledBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *canceledBody) Close() error {
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}

// send sends a request once.
func (c *Client) send(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://milkweed"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if errors.Is(err, fs.ErrNotExist) || isGone(err) {
		return nil, notAnswering(c.mountPoint, err, newRoot(c.mountPoint))
	}
	if err != nil {
		return nil, fmt.Errorf("the daemon of %s: %w", c.mountPoint, err)
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		return nil, failure(resp)
	}
	return resp, nil
}

// failure returns the error in a response.
func failure(resp *http.Response) error {
	var f Failure
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err == nil {
		err = json.Unmarshal(body, &f)
	}
	if err != nil {
		return fmt.Errorf("the daemon responded with %s", resp.Status)
	}
	return f.Err()
}

// isGone reports whether err shows that the daemon has ended since Dial.
func isGone(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF)
}
