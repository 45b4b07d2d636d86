package control_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// serveAll serves a mount that other users may read, until the test ends.
func serveAll(t *testing.T, s *control.Server) *control.Listener {
	t.Helper()
	drivertest.Need(t, "root")
	controltest.Folder(t)
	if err := os.Chmod(os.Getenv(control.FolderEnv), 0o711); err != nil {
		t.Fatal(err)
	}
	l, err := control.ListenForAll(t.Context(), mountPoint)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := s.Serve(ctx, l); err != nil {
			t.Errorf("the server: %v", err)
		}
	})
	t.Cleanup(func() { stop(); serving.Wait() })
	return l
}

// A visitor is a connection of a user to the socket of a server.
type visitor struct {
	net.Conn
	uid     int
	replies *bufio.Reader
}

// visit connects as a user.
func visit(t *testing.T, l *control.Listener, uid int) *visitor {
	t.Helper()
	made := make(chan net.Conn)
	go func() { // the user is that of a thread, which ends with the goroutine
		defer close(made)
		runtime.LockOSThread()
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
			t.Error(e)
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: l.Addr().String()})
		}
		if err != nil {
			t.Error(err)
			return
		}
		f := os.NewFile(uintptr(fd), "socket")
		defer f.Close()
		conn, err := net.FileConn(f)
		if err != nil {
			t.Error(err)
			return
		}
		made <- conn
	}()
	conn, ok := <-made
	if !ok {
		t.FailNow()
	}
	t.Cleanup(func() { conn.Close() })
	return &visitor{Conn: conn, uid: uid, replies: bufio.NewReader(conn)}
}

// request returns the status of the reply to a request without a body, or 0 if there is none.
func (v *visitor) request(line string) int {
	fmt.Fprintf(v, "%s HTTP/1.1\r\nHost: x\r\n\r\n", line)
	resp, err := http.ReadResponse(v.replies, nil)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	for buf := make([]byte, 1<<10); err == nil; {
		_, err = resp.Body.Read(buf)
	}
	return resp.StatusCode
}

// Users whom the kernel has let read the root of the mount within a minute may make the requests of a guest. Others may
// make none, and root may make all.
func TestGuests(t *testing.T) {
	var (
		mu    sync.Mutex
		users []procs.User
	)
	d := &controltest.Daemon{}
	l := serveAll(t, &control.Server{Daemon: d, Guest: func(u procs.User) (control.Guest, error) {
		mu.Lock()
		defer mu.Unlock()
		users = append(users, u)
		return d, nil
	}})
	own := []string{"GET /v1/status", "GET /v1/where?path=a", "POST /v1/plan", "GET /v1/plan", "DELETE /v1/plan?stream=x"}
	others := []string{
		"GET /v1/config", "GET /v1/trace", "GET /v1/peers", "GET /v1/exchange", "GET /v1/generations", "GET /v1/ready", "GET /metrics",
		"GET /debug/pprof/", "GET /debug/pprof/profile", "GET /debug/pprof/trace", "GET /", "POST /v1/status", "GET /v1/status/",
		"POST /v1/estimate", "POST /v1/reload", "POST /v1/warmup", "POST /v1/refresh", "POST /v1/evict", "POST /v1/scrub", "POST /v1/exchange",
		"POST /v1/exchange/epoch", "DELETE /v1/exchange", "POST /v1/shutdown", "POST /v1/generations/switch", "POST /v1/generations/prepare",
		"POST /v1/generations/drop",
	}
	want := func(who string, uid int, requests []string, permitted bool) {
		t.Helper()
		for _, line := range requests {
			v := visit(t, l, uid)
			if got := v.request(line); got == 0 || (got != http.StatusForbidden) != permitted {
				t.Errorf("%s: %s: got %d", who, line, got)
			}
			if got := v.request(line); (got != 0) != (uid == 0) {
				t.Errorf("%s: %s, again on the connection: got %d", who, line, got)
			}
		}
	}
	want("root", 0, own, true)
	want("a user who has not read the attribute", 77, append(own, others...), false)
	if got := l.Told(77); got != l.Addr().String() {
		t.Errorf("the user is told %s", got)
	}
	want("a guest", 77, own, true)
	want("a guest", 77, others, false)
	want("another user", 78, own, false)
	before := visit(t, l, 77)
	drivertest.Eventually(t, "a connection is permitted", func() bool { return control.Conns(l) == 1 })
	control.Told(l, 77, control.VisitTime+time.Second)
	if got := before.request("GET /v1/status"); got != http.StatusOK {
		t.Errorf("a connection that was made before: got %d", got)
	}
	want("a user who has read the root long ago", 77, own, false)
	control.Told(l, 78, 0)
	if got := control.Known(l); got != 1 {
		t.Errorf("%d users are remembered", got)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, u := range users {
		if u.UID != 77 || u.PID != os.Getpid() || len(u.Groups) == 0 {
			t.Errorf("a request of %+v", u)
		}
	}
	if len(users) != len(own)+1 {
		t.Errorf("%d requests of guests", len(users))
	}
}

// Without guests, no other user has a reply, whatever they have read.
func TestNoGuests(t *testing.T) {
	l := serveAll(t, &control.Server{Daemon: &controltest.Daemon{}})
	l.Told(77)
	if got := visit(t, l, 77).request("GET /v1/status"); got != http.StatusForbidden {
		t.Errorf("got %d", got)
	}
}

// A daemon that has no mount yet answers no guest.
func TestGuestsOfStartingDaemon(t *testing.T) {
	s := &control.Server{Daemon: &controltest.Daemon{}, Guest: func(procs.User) (control.Guest, error) {
		t.Error("a daemon without a mount has a guest")
		return nil, os.ErrPermission
	}}
	s.Starting(mountPoint, "waiting")
	l := serveAll(t, s)
	l.Told(77)
	if got := visit(t, l, 77).request("GET /v1/status"); got != http.StatusServiceUnavailable {
		t.Errorf("got %d", got)
	}
}

// Guests, and who is refused, get a reply, and the connection ends, although the rest of the request does not come.
func TestUnfinishedRequests(t *testing.T) {
	d := &controltest.Daemon{}
	l := serveAll(t, &control.Server{Daemon: d, Guest: func(procs.User) (control.Guest, error) { return d, nil }})
	l.Told(77)
	for uid, want := range map[int]int{77: http.StatusOK, 78: http.StatusForbidden} {
		v := visit(t, l, uid)
		v.SetReadDeadline(time.Now().Add(10 * time.Second))
		fmt.Fprint(v, "GET /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
		resp, err := http.ReadResponse(v.replies, nil)
		if err != nil {
			t.Errorf("user %d: %v", uid, err)
			continue
		}
		if resp.Body.Close(); resp.StatusCode != want || !resp.Close {
			t.Errorf("user %d: got %+v", uid, resp)
		}
	}
}

// The socket for all is in a directory that all users can enter and nobody else can list. If there is none, it is where
// it would be for the owner, and Reachable says why nobody else can connect.
func TestSocketForAll(t *testing.T) {
	controltest.Folder(t)
	base := os.Getenv(control.FolderEnv)
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	listen := func(folder string, f func(context.Context, string) (*control.Listener, error)) *control.Listener {
		t.Helper()
		t.Setenv(control.FolderEnv, folder)
		l, err := f(t.Context(), mountPoint)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	modes := func(l *control.Listener, folder, socket os.FileMode) {
		t.Helper()
		path := l.Addr().String()
		for path, want := range map[string]os.FileMode{filepath.Dir(path): os.ModeDir | folder, path: os.ModeSocket | socket} {
			if info, err := os.Stat(path); err != nil || info.Mode() != want {
				t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
			}
		}
	}
	all := listen(base+"/all", control.ListenForAll)
	modes(all, 0o711, 0o666)
	if err := all.Reachable(); err != nil {
		t.Error(err)
	}
	modes(listen(base+"/own", control.Listen), 0o711, 0o600)

	for _, name := range []string{"/closed", "/closed/x", "/made"} {
		if err := os.Mkdir(base+name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for folder, closed := range map[string]string{base + "/closed/x": base + "/closed/x", base + "/made": base + "/made", base + "/closed/y": base + "/closed"} {
		l := listen(folder, control.ListenForAll)
		if err := l.Reachable(); err == nil || !strings.Contains(err.Error(), "other users cannot enter "+closed+",") {
			t.Errorf("%s: %v", folder, err)
		}
	}
}

// The paths of a plan are passed on in parts that are bounded in bytes, too.
func TestPlanPartsAreBounded(t *testing.T) {
	d := &controltest.Daemon{}
	dial(t, d)
	long := strings.Repeat("x", 4000) + "\x00"
	if code, reply := request(t, "POST /v1/plan", strings.NewReader(strings.Repeat(long, 2000))); code != http.StatusOK {
		t.Errorf("got %d, %s", code, reply)
	}
	parts, paths, _ := d.Planned.Calls()
	if len(paths) != 2000 || len(parts) < 7 {
		t.Errorf("%d paths in %d parts", len(paths), len(parts))
	}
}
