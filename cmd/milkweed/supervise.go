package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/fs/fusectl"
)

// With --supervise, a mount has two processes, the supervisor and the daemon:
//
//  1. The supervisor starts this program again, with the same arguments, as the daemon (spawn).
//     In the environment, crashesEnv has the number of crashes so far and the cause of the last.
//  2. The daemon mounts and reports to the supervisor. The first time, the supervisor passes the
//     report on, as detach.go describes.
//  3. The supervisor passes signals on to the daemon, SIGHUP too, and waits for its end. If the daemon
//     was killed, the supervisor aborts the connection, without which the daemon may not end
//     (control.KilledError).
//  4. If the mount is gone then, it was unmounted, and the supervisor ends, too. Otherwise the
//     daemon has crashed. The supervisor starts another one, which removes the dead mount first.
//
// If the supervisor itself is killed, the daemon goes on without it.

// crashesEnv is the environment variable of a daemon that has a supervisor.
const crashesEnv = "MILKWEED_CRASHES"

// The supervisor mounts again at once after a crash. After further crashes it waits for a time that
// doubles from firstPause to maxPause, and after maxCrashes it gives up. A daemon that has served
// for steadyTime has not crashed before.
const (
	maxCrashes = 10
	firstPause = time.Second
	maxPause   = time.Minute
	steadyTime = 10 * time.Minute
)

// crashPause returns the pause after a number of crashes.
func crashPause(crashes int) time.Duration {
	if crashes <= 1 {
		return 0
	}
	return min(firstPause<<(crashes-2), maxPause)
}

// A supervised is a daemon that has a supervisor. The zero value is one that has none.
type supervised struct {
	on      bool
	crashes int64  // of earlier daemons of this mount
	cause   string // of the last crash; "" if there was none
}

// asSupervised returns the supervised of this process. Child processes do not inherit it.
func asSupervised() supervised {
	value, on := os.LookupEnv(crashesEnv)
	os.Unsetenv(crashesEnv)
	number, cause, _ := strings.Cut(value, " ")
	crashes, _ := strconv.ParseInt(number, 10, 64)
	return supervised{on, crashes, cause}
}

// supervise serves the mount in a daemon, and again if the daemon crashes. It reports
// to d, as serve does.
func (f *mountFlags) supervise(ctx context.Context, flags *pflag.FlagSet, args []string, stderr io.Writer, d *starter) error {
	c, err := f.load(flags, args, io.Discard) // the daemon prints its warnings
	if err != nil {
		return err
	}
	log, ready, err := f.openLog(c, stderr, d)
	if err != nil {
		return err
	}
	defer log.close()
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	s := &supervisor{dir: dir, point: c.Mount.Point, log: log.Logger, ready: ready, signals: make(chan os.Signal, 8)}
	signal.Notify(s.signals, shutdownSignals()...)
	defer signal.Stop(s.signals)
	s.hangups = catchHangups()
	defer signal.Stop(s.hangups)
	if err := ctx.Err(); err != nil { // a signal before Notify
		return err
	}
	return s.run()
}

// A supervisor starts a daemon again when it has crashed.
type supervisor struct {
	dir     string // the working directory of the daemons at their start
	point   string
	log     *slog.Logger
	ready   func() // called when the first daemon is ready
	signals chan os.Signal
	hangups chan os.Signal // SIGHUP, which a daemon gets when it is ready: it reloads its configuration
	stopped bool           // a signal has arrived
}

// run returns when the mount has ended, or the supervisor gives up.
func (s *supervisor) run() error {
	var (
		crashes, inRow int
		cause          string
	)
	for {
		start := time.Now()
		served, err := s.serve(crashes, cause)
		switch {
		case s.stopped, served && err == nil, crashes == 0 && !served, !served && exit.Of(err) == exit.NotMounted: // the last by umount
			return err
		case served && !s.mounted():
			return fmt.Errorf("the mount was unmounted, and then its daemon failed: %w", err)
		}
		if crashes++; time.Since(start) > steadyTime {
			inRow = 0
		}
		if inRow++; inRow == maxCrashes {
			return &exit.Error{
				Code:   exit.Failure,
				Err:    fmt.Errorf("the daemon of %s has crashed %d times, and is not started again: %w", text(s.point), crashes, err),
				Remedy: fmt.Sprintf("The log has the reasons. `milkweed umount %s` clears the mount.", text(s.point)),
			}
		}
		cause = err.Error()
		s.log.Error("the daemon has crashed; mounting again", "cause", cause, "crashes", crashes, "pause", crashPause(inRow))
		select {
		case <-time.After(crashPause(inRow)):
		case <-s.signals:
			return clearStale(context.Background(), s.point)
		}
		if served && !s.mounted() { // unmounted in the meantime
			return nil
		}
	}
}

// mounted reports whether the mount, or what a daemon has left of it, is there.
func (s *supervisor) mounted() bool {
	table, err := mounts.Read(mounts.Self)
	m, ok := table.At(s.point)
	return ok && m.Type == fs.Type || err != nil
}

// connection returns the connection of the mount, or nil if this process may not control it.
func (s *supervisor) connection() *fusectl.Connection {
	table, _ := mounts.Read(mounts.Self) // without it, the mount is not found
	m, _ := table.At(s.point)
	c, err := mounts.Connection(m.Dev, s.point)
	if err != nil {
		s.log.Info("a daemon that is killed may not end", "err", err)
	}
	return c
}

// serve runs one daemon to its end. It reports whether the mount was ready.
func (s *supervisor) serve(crashes int, cause string) (served bool, err error) {
	cmd, verdicts, err := spawn(s.dir, s.point, fmt.Sprintf("%s=%d %s", crashesEnv, crashes, cause))
	if err != nil {
		return false, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var connection *fusectl.Connection // nil until the daemon is ready
	defer func() { connection.Close() }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var hangups chan os.Signal // nil until the daemon is ready: before, SIGHUP would end it
	for {
		select {
		case v := <-verdicts:
			verdicts = nil
			served = v != nil && v.Ready
			if served && crashes == 0 {
				s.ready()
			}
			if !served {
				return false, failure(v, <-ended)
			}
			hangups = s.hangups
			connection = s.connection()
		case <-tick.C:
			if procs.Dying(cmd.Process.Pid) {
				s.log.Warn("the daemon was killed: aborting its connection", "err", connection.Abort())
				tick.Stop()
			}
		case <-hangups:
			cmd.Process.Signal(syscall.SIGHUP)
		case <-s.signals:
			s.stopped = true
			cmd.Process.Signal(syscall.SIGTERM)
		case err := <-ended:
			if verdicts != nil {
				if v := <-verdicts; v == nil || !v.Ready {
					return false, failure(v, err)
				}
			}
			return true, err
		}
	}
}
