package control

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/procs"
)

// A user has a limited number of connections, all users together have, too, and so have those who are refused. A new one
// replaces the oldest, so that nobody keeps others out. Root and the owner are not limited.
func TestConnectionsOfUsersAreBounded(t *testing.T) {
	b := &guestBook{told: make(map[uint32]time.Time)}
	enter := func(uid int) *peerConn {
		t.Helper()
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fds[1])
		f := os.NewFile(uintptr(fds[0]), "")
		defer f.Close()
		conn, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		c := b.enter(&peerConn{UnixConn: conn.(*net.UnixConn), user: procs.User{UID: uid}, book: b})
		t.Cleanup(func() { c.Close() })
		return c
	}
	guests := func(uid, n int) (conns []*peerConn) {
		t.Helper()
		b.told[uint32(uid)] = time.Now()
		for range n {
			conns = append(conns, enter(uid))
		}
		return conns
	}
	want := func(what string, conns []*peerConn, closed int) {
		t.Helper()
		for i, c := range conns {
			if got := errors.Is(c.UnixConn.SetDeadline(time.Time{}), net.ErrClosed); got != (i < closed) {
				t.Errorf("%s: connection %d of %d is closed: %v", what, i, len(conns), got)
			}
		}
	}
	root := guests(0, 2*maxGuestConns)
	first := guests(100, maxUserConns)
	want("as many as a user may have", first, 0)
	first = append(first, guests(100, 1)...)
	want("one more", first, 1)
	others := guests(101, maxUserConns/2)
	for uid := 102; len(others) < maxGuestConns-maxUserConns; uid++ {
		others = append(others, guests(uid, maxUserConns/2)...)
	}
	want("as many as all may have", first, 1)
	guests(77, 2)
	want("after two more of another user", first, 3)
	want("after two more of another user", others, 0)

	few := enter(199)
	var refused []*peerConn
	for len(refused) < maxRefusedConns {
		refused = append(refused, enter(200))
	}
	want("a user who is refused often", refused, 1)
	want("beside a user who is refused often", []*peerConn{few}, 0)
	want("beside users who are refused", others, 0)
	want("beside users who are refused", first, 3)

	first[3].Close()
	guests(78, 1)
	want("in the place of a connection that has ended", first, 4)
	want("root", root, 0)
	for _, c := range append(append(append(first, others...), refused...), few) {
		c.Close()
		c.Close()
	}
	if len(b.guests) != 3 || len(b.refused) != 0 { // those of 77 and 78
		t.Errorf("at the end, %d guests and %d others are known", len(b.guests), len(b.refused))
	}
}
