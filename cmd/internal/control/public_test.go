package control_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
)

// A token is that of one user and of one mount, and is valid for one to two minutes.
func TestTokens(t *testing.T) {
	tokens, now := control.NewTokens(), time.Unix(1_800_000_000, 0)
	token := tokens.Of(77, now)
	for _, c := range []struct {
		what  string
		of    *control.Tokens
		uid   int
		token string
		after time.Duration
		want  bool
	}{
		{"at once", tokens, 77, token, 0, true},
		{"after a minute", tokens, 77, token, time.Minute, true},
		{"after two minutes", tokens, 77, token, 2 * time.Minute, false},
		{"before", tokens, 77, token, -2 * time.Minute, false},
		{"of another user", tokens, 78, token, 0, false},
		{"of another mount", control.NewTokens(), 77, token, 0, false},
		{"none", tokens, 77, "", 0, false},
		{"a part", tokens, 77, token[:32], 0, false},
		{"not hexadecimal", tokens, 77, "x" + token[1:], 0, false},
	} {
		if got := c.of.Accepts(c.uid, c.token, now.Add(c.after)); got != c.want {
			t.Errorf("%s: accepted: %v, want %v", c.what, got, c.want)
		}
	}
}

// listenPublic listens on the socket of guests of a mount point until the test ends.
func listenPublic(t *testing.T) *control.PublicListener {
	t.Helper()
	l, err := control.Listen(t.Context(), mountPoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	public, err := l.ListenPublic(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { public.Close() })
	return public
}

// A user has a limited number of connections to the socket of guests, and gets others when these end.
func TestGuestConnectionsAreBounded(t *testing.T) {
	controltest.Folder(t)
	l := listenPublic(t)
	server := &control.PublicServer{Tokens: control.NewTokens(), Guest: func(context.Context, procs.User) (control.Guest, error) {
		return &controltest.Daemon{}, nil
	}}
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(ctx, l) })
	defer serving.Wait()
	defer stop()
	answers := func(conn net.Conn) bool {
		fmt.Fprint(conn, "GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
		_, err := http.ReadResponse(bufio.NewReader(conn), nil)
		return err == nil
	}
	open := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	var conns []net.Conn
	for range 8 {
		conn := open()
		defer conn.Close()
		if !answers(conn) {
			t.Error("no answer")
		}
		conns = append(conns, conn)
	}
	extra := open()
	if answers(extra) {
		t.Error("one more connection has an answer")
	}
	extra.Close()
	conns[0].Close()
	for deadline := time.Now().Add(time.Minute); ; {
		conn := open()
		ok := answers(conn)
		conn.Close()
		if ok {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no answer after another connection has ended")
		}
	}
}

// The socket of guests is in a directory that all users can enter and nobody else can list. There is none in
// a directory that they cannot reach.
func TestFolderOfGuests(t *testing.T) {
	controltest.Folder(t)
	folder := os.Getenv(control.FolderEnv)
	l := listenPublic(t)
	for path, want := range map[string]os.FileMode{folder: os.ModeDir | 0o711, l.Addr().String(): os.ModeSocket | 0o666} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
	if sockets, _ := filepath.Glob(folder + "/*.sock"); len(sockets) != 1 {
		t.Errorf("sockets: %q", sockets)
	} else if info, err := os.Stat(sockets[0]); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%s: %v, %v", sockets[0], info.Mode(), err)
	}

	closed := filepath.Join(folder, "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv(control.FolderEnv, filepath.Join(closed, "x"))
	own, err := control.Listen(t.Context(), mountPoint)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if _, err := own.ListenPublic(t.Context()); err == nil || !strings.Contains(err.Error(), "other users cannot enter "+closed) {
		t.Errorf("in a directory that nobody can reach: %v", err)
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
