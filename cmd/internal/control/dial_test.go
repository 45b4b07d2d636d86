package control

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A connection waits while the queue of the daemon is full, which every user may fill.
func TestDialWaitsForTheQueue(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(l)
	if err := unix.Bind(l, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(l, 0); err != nil {
		t.Fatal(err)
	}
	for full := false; !full; {
		c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(c)
		full = unix.Connect(c, &unix.SockaddrUnix{Name: path}) == unix.EAGAIN
	}
	ended := make(chan error, 1)
	go func() {
		conn, err := dialSocket(t.Context(), path)
		if err == nil {
			conn.Close()
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("with a full queue: %v", err)
	case <-time.After(20 * dialPause):
	}
	c, _, err := unix.Accept(l)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(c)
	if err := <-ended; err != nil {
		t.Errorf("with room in the queue: %v", err)
	}
}
