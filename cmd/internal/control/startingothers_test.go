package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// Root finds the daemons of all users that have no mount yet. One that does not answer hides no other.
func TestStartingOfOthers(t *testing.T) {
	drivertest.Need(t, "root")
	t.Setenv(FolderEnv, "")
	tmp, run := tmpFolder, runFolder
	t.Cleanup(func() { tmpFolder, runFolder = tmp, run })
	dir, err := os.MkdirTemp("", "run-") // short: it has sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	tmpFolder, runFolder = dir+"/tmp", dir
	listen := func(folder string, uid int, point string) *Listener {
		t.Helper()
		if err := errors.Join(os.MkdirAll(folder, 0o700), os.Chown(folder, uid, uid)); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
		l := newListener(point, socketPath, false)
		var err error
		if l.socket, err = replaceSocket(t.Context(), socketPath(folder, point), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	serve := func(l net.Listener, point string) {
		server := &Server{}
		server.Starting(point, "waiting")
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- ServeHTTP(ctx, l, server.admit(server.whenStarted(http.NotFoundHandler())), slog.New(slog.DiscardHandler))
		}()
		t.Cleanup(func() { stop(); <-ended })
	}
	listen(dir+"/milkweed", 0, "/mnt/a")
	serve(listen(dir+"/milkweed", 0, "/mnt/b"), "/mnt/b")
	serve(listen(dir+"/milkweed-service", 4000017, "/mnt/c"), "/mnt/c")
	serve(listen(dir+"/user/4000018/milkweed", 4000018, "/mnt/d"), "/mnt/d")
	var got []string
	for _, s := range AllStarting(t.Context()) {
		got = append(got, strings.SplitN(s.Err.Error(), "\n", 2)[0])
		s.Close()
	}
	want := []string{ // in the order of their sockets
		"/mnt/c is not mounted yet: its daemon is waiting", fmt.Sprintf("a daemon (process %d) has no mount here, and it gives no answer", os.Getpid()),
		"/mnt/b is not mounted yet: its daemon is waiting", "/mnt/d is not mounted yet: its daemon is waiting",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	for point, ok := range map[string]bool{"/mnt/c": true, "/mnt/d": true, "/mnt/e": false} {
		s := StartingAt(t.Context(), point)
		if (s != nil) != ok {
			t.Errorf("a daemon starts at %s: %v", point, s)
		}
		if s != nil {
			s.Close()
		}
	}
}
