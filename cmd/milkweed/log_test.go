package main

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// Messages go to the log file, and to stderr until detach.
func TestLog(t *testing.T) {
	for _, c := range []struct {
		name               string
		file, foreground   bool
		wantErr, wantInLog string
	}{
		{"foreground", false, true, "info warn later", ""},
		{"foreground with file", true, true, "warn later", "info warn later"},
		{"background", false, false, "warn", ""},
		{"background with file", true, false, "warn", "info warn later"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "log")
			cfg := config.Log{Level: slog.LevelInfo, Format: "json"}
			if c.file {
				cfg.File = file
			}
			var stderr bytes.Buffer
			l, err := openLog(cfg, c.foreground, &stderr)
			if err != nil {
				t.Fatal(err)
			}
			l.Debug("debug")
			l.Info("info")
			l.Warn("warn")
			if !c.foreground {
				l.detach()
			}
			l.Error("later")
			l.close()
			inLog, _ := os.ReadFile(file)
			if got := messages(stderr.String()); got != c.wantErr {
				t.Errorf("stderr has %q, want %q", got, c.wantErr)
			}
			if got := messages(string(inLog)); got != c.wantInLog {
				t.Errorf("the file has %q, want %q", got, c.wantInLog)
			}
		})
	}
	_, err := openLog(config.Log{File: filepath.Join(t.TempDir(), "none", "log")}, true, os.Stderr)
	wantCode(t, err, exit.Usage)
}

// messages returns the messages of a log in JSON.
func messages(log string) string {
	var all []string
	for line := range strings.Lines(log) {
		_, after, _ := strings.Cut(line, `"msg":"`)
		message, _, _ := strings.Cut(after, `"`)
		all = append(all, message)
	}
	return strings.Join(all, " ")
}

// A mount whose log takes nothing serves its readers, and ends.
func TestMountWithoutRoomInLog(t *testing.T) {
	parallel(t)
	s := newSite(t)
	data := s.write("f", 100_000)
	path := s.dir + "/log"
	s.check(unix.Mkfifo(path, 0o600))
	pipe, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	s.check(err)
	defer pipe.Close()
	fillPipe(t, pipe)

	s.milkweed(append(s.mountWords("64MiB"), "--log-file", path, "--log-level", "debug")...)
	got, err := os.ReadFile(s.point + "/f")
	s.check(err)
	if !bytes.Equal(got, data) {
		t.Error("wrong bytes")
	}
	s.settled()
	s.check(unix.Kill(s.status().PID, unix.SIGHUP)) // the log has a line about it
	s.umount()
	s.eventually("the daemon has ended", func() bool { return len(s.processes()) == 0 })
	s.wantNothing()
}

// fillPipe writes to a pipe until it is full.
func fillPipe(t *testing.T, pipe *os.File) {
	t.Helper()
	err := pipe.SetWriteDeadline(time.Now().Add(time.Second))
	for err == nil {
		_, err = pipe.Write(make([]byte, 1<<16))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
}

// If the default log cannot be written, the daemon has no log, and the command says so.
func TestLogOfAnotherUser(t *testing.T) {
	s := newSite(t)
	s.inNamespace(fuseForAll)
	s.write("f", 1000)
	s.mount("1MiB") // as root
	s.umount()
	logs, err := filepath.Glob(s.dir + "/state/milkweed/*.log")
	s.check(err)
	s.giveToNobody()
	s.check(os.Chown(logs[0], 0, 0))
	if r := s.try(s.mountWords("1MiB")...); r.code != exit.OK || !strings.Contains(r.stderr, "warning: the daemon has no log: open "+logs[0]) {
		t.Errorf("exit code %d, %s", r.code, r.stderr)
	}
	s.umount()
	s.wantNothing()
}
