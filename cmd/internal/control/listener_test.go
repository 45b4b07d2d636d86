package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// logged is what a logger has written.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

// listenIn listens on a socket in folder.
func listenIn(t *testing.T, folder string) (l *Listener, log *logged) {
	t.Helper()
	t.Setenv(FolderEnv, folder)
	l, err := Listen(t.Context(), "/mnt/p")
	if err != nil {
		t.Fatal(err)
	}
	log = &logged{}
	l.Log = slog.New(slog.NewTextHandler(log, nil))
	return l, log
}

// serving serves requests on a socket in folder until the test ends, and looks for the socket after each time of keep.
func serving(t *testing.T, folder string, keep time.Duration) (*Listener, *logged) {
	t.Helper()
	usual := keepTime
	keepTime = keep
	l, log := listenIn(t, folder)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- ServeHTTP(ctx, l, http.NotFoundHandler(), l.Log) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		keepTime = usual
	})
	return l, log
}

// shortDir returns a directory whose path is short enough for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// A listener makes its socket again each time that it is removed, also after Drain. While it cannot, it goes on trying,
// and has logged that once.
func TestSocketIsMadeAgain(t *testing.T) {
	dir := shortDir(t)
	folder := dir + "/made/run"
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	l, log := serving(t, folder, 5*time.Millisecond)
	answers := func() bool {
		_, err := probe(t.Context(), l.Addr().String())
		return err == nil
	}
	for round := range 6 {
		if round == 3 {
			if err := l.Drain(); err != nil {
				t.Fatal(err)
			}
		}
		gone := l.Addr().String()
		removed := gone
		if round%3 == 1 {
			removed = folder
		}
		if err := os.Rename(removed, fmt.Sprint(dir, "/removed", round)); err != nil { // to remove a directory is not atomic
			t.Fatal(err)
		}
		drivertest.Eventually(t, "the socket is there again", func() bool {
			_, err := os.Lstat(gone)
			return err == nil && answers() && log.count("made again") > round
		})
		if clients := Draining(t.Context()); len(clients) != round/3 {
			t.Errorf("round %d: %d daemons drain", round, len(clients))
		}
		if n := log.count("made again"); n != round+1 {
			t.Errorf("the socket was made again %d times, want %d", n, round+1)
		}
	}
	if err := os.Rename(dir+"/made", dir+"/removed"); err != nil {
		t.Fatal(err)
	}
	drivertest.Eventually(t, "the log has the failure", func() bool { return log.count("cannot find this daemon") > 0 })
	time.Sleep(10 * keepTime) // it tries again
	if got := l.Told(0); got != "" || log.count("cannot find this daemon") != 1 {
		t.Errorf("told %q, %d lines", got, log.count("cannot find this daemon"))
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	drivertest.Eventually(t, "the socket is there again", answers)
}

// Connections do not keep a listener from making its socket again: they may be on a socket that others have made public.
func TestSocketIsMadeAgainWhileInUse(t *testing.T) {
	dir := shortDir(t)
	l, _ := serving(t, dir, 100*time.Millisecond)
	first := l.current()
	if err := os.Rename(first.path, dir+"/moved"); err != nil {
		t.Fatal(err)
	}
	conns := 0
	for began := time.Now(); l.current() == first; conns++ {
		if conn, err := dialSocket(t.Context(), dir+"/moved"); err == nil {
			conn.Close()
		}
		if time.Since(began) > 10*time.Second {
			t.Fatalf("not after %d connections", conns)
		}
	}
}

// The socket stays in a directory with a relative path when the process changes its own.
func TestRelativeRuntimeDir(t *testing.T) {
	dir := shortDir(t)
	relative, err := filepath.Rel(startedIn, dir)
	if err != nil {
		t.Fatal(err)
	}
	l, _ := serving(t, relative, 5*time.Millisecond)
	t.Chdir("/")
	if err := os.Remove(l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	drivertest.Eventually(t, "the socket is there again", func() bool { return l.current().lost() == nil })
	if got := l.Addr().String(); filepath.Dir(got) != dir {
		t.Errorf("the socket is %s", got)
	}
}

// While another process has the lock of the directory, a listener that has lost its socket answers and ends in time.
func TestLockedFolder(t *testing.T) {
	dir := shortDir(t)
	l, _ := serving(t, dir, 5*time.Millisecond)
	lock, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := errors.Join(unix.Flock(int(lock.Fd()), unix.LOCK_EX), os.Remove(l.Addr().String())); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if got := l.Told(0); got != "" {
			t.Errorf("told %q", got)
		}
		if err := l.Drain(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("drain: %v", err)
		}
	}()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("it waits for the lock")
	}
}

// The name of a directory may be that of a link, and end in a slash.
func TestFolderWithSlash(t *testing.T) {
	dir := shortDir(t)
	if err := errors.Join(os.Mkdir(dir+"/run", 0o700), os.Symlink(dir+"/run", dir+"/link")); err != nil {
		t.Fatal(err)
	}
	t.Setenv(FolderEnv, dir+"/link/")
	l, err := Listen(t.Context(), "/mnt/p")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.current().lost(); err != nil {
		t.Error(err)
	}
}

// A directory may have two names.
func TestFolderWithTwoNames(t *testing.T) {
	base, closed := closedRuntime(t)
	if err := os.Symlink(filepath.Dir(closed), base+"/alias"); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_RUNTIME_DIR", base+"/alias/closed")
	runFolder = base
	if err := errors.Join(os.Mkdir(base+"/user", 0o755), os.Symlink(closed, fmt.Sprintf("%s/user/%d", base, os.Geteuid()))); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(t.Context(), "/mnt/p")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// The path that Told returns is that of a socket that is there, also if it was removed before.
func TestToldSocketIsThere(t *testing.T) {
	l, _ := serving(t, shortDir(t), time.Hour)
	for range 10 {
		os.Remove(l.Addr().String())
		if _, err := probe(t.Context(), l.Told(0)); err != nil {
			t.Fatal(err)
		}
	}
}

// A listener whose socket another daemon has replaced leaves that one alone, also at its end.
func TestSocketOfAnother(t *testing.T) {
	l, _ := listenIn(t, shortDir(t))
	path := l.Addr().String()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := replaceSocket(t.Context(), path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.keep(); !errors.Is(err, errInUse) {
		t.Errorf("got error %v, want errInUse", err)
	}
	if got := l.Told(0); got != "" {
		t.Errorf("told %s", got)
	}
	l.Close()
	l.Close()
	if !other.isThere() {
		t.Error("the socket of the other daemon was removed")
	}
	if left, err := filepath.Glob(filepath.Dir(path) + "/*"); len(left) != 1 {
		t.Errorf("there are %q, %v", left, err)
	}
	other.Close()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}
