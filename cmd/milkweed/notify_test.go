package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// startService starts a mount in the foreground, and waits until it is ready, as a service manager does.
func (s *site) startService(cmd *exec.Cmd) {
	s.t.Helper()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: s.dir + "/notify", Net: "unixgram"})
	s.check(err)
	defer socket.Close()
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+s.dir+"/notify")
	s.check(cmd.Start())
	buf := make([]byte, 100)
	socket.SetReadDeadline(time.Now().Add(time.Minute))
	n, err := socket.Read(buf)
	if err != nil || string(buf[:n]) != "READY=1" {
		s.t.Fatalf("got %q, %v", buf[:n], err)
	}
}

// In the foreground, mount notifies a service manager when the mount is ready, and not before. A reload of
// the mount of a file fails if the file is invalid, or names no mount.
func TestServiceManager(t *testing.T) {
	s := newSite(t)
	data := s.write("f", 5000)
	conf := s.dir + "/tiering.toml"
	text := fmt.Sprintf("[source]\npath = %q\nclock_skew = \"0s\"\n[mount]\npoint = %q\n[[tier]]\nname = \"ram\"\npath = %q\nquota = \"64MiB\"\n", s.source, s.point, s.tier(1))
	s.check(os.WriteFile(conf, []byte(text), 0o600))
	cmd := s.command(s.program, "mount", "-f", "-c", conf)
	var log strings.Builder
	cmd.Stderr = &log
	s.startService(cmd)
	if got, err := os.ReadFile(s.point + "/f"); err != nil || string(got) != string(data) {
		t.Errorf("the mount is not ready: %v", err)
	}

	s.milkweed("config", "reload", "-c", conf)
	for bad, want := range map[string]struct {
		code exit.Code
		text string
	}{
		text + "lvel = 1\n":                          {exit.Usage, "lvel"},
		"[source]\npath = \"" + s.source + "\"\n":    {exit.Usage, "no mount.point"},
		strings.Replace(text, s.point, s.tier(1), 1): {exit.NotMounted, "not in a mount"},
	} {
		s.check(os.WriteFile(conf, []byte(bad), 0o600))
		if got := s.try("config", "reload", "-c", conf); got.code != want.code || !strings.Contains(got.stderr, want.text) {
			t.Errorf("exit code %d, %s; want %d, %s", got.code, got.stderr, want.code, want.text)
		}
	}
	s.check(unix.Kill(cmd.Process.Pid, unix.SIGTERM))
	if err := cmd.Wait(); err != nil || !strings.Contains(log.String(), "msg=mounted") {
		t.Errorf("%v: %s", err, &log)
	}
	s.wantNothing()
}
