package control

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

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

// A listener whose socket is removed makes it again, also after Drain and again and again. While it cannot, it says so
// once, and goes on trying.
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
		if err := os.RemoveAll(map[bool]string{true: folder, false: gone}[round%3 == 1]); err != nil {
			t.Fatal(err)
		}
		drivertest.Eventually(t, "the socket is there again", func() bool {
			_, err := os.Lstat(gone)
			return err == nil && answers()
		})
		if clients := Draining(t.Context()); len(clients) != round/3 {
			t.Errorf("round %d: %d daemons drain", round, len(clients))
		}
		if n := log.count("made again"); n != round+1 {
			t.Errorf("the socket was made again %d times, want %d", n, round+1)
		}
	}
	if err := os.RemoveAll(dir + "/made"); err != nil {
		t.Fatal(err)
	}
	drivertest.Eventually(t, "the log has the failure", func() bool { return log.count("cannot find this daemon") > 0 })
	time.Sleep(10 * keepTime) // it tries again
	if got := l.Told(0); got == "" || log.count("cannot find this daemon") != 1 {
		t.Errorf("told %q, %d lines", got, log.count("cannot find this daemon"))
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	drivertest.Eventually(t, "the socket is there again", answers)
}

// A user who is told the path of a socket that was removed finds the new one there.
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
	l, log := listenIn(t, shortDir(t))
	path := l.Addr().String()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := replaceSocket(t.Context(), path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Told(0); got != path || log.count("cannot find this daemon") != 1 {
		t.Errorf("told %s; the log: %s", got, &log.buf)
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
