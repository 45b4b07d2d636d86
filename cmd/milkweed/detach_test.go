package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// roleEnv is an environment variable for the test binary. If it is set, the binary is a command
// that starts a daemon, and that daemon.
const roleEnv = "MILKWEED_TEST_ROLE"

// play runs as the command, or as the daemon that the command starts. The role is the behaviour
// of the daemon. play reports errors like main, and returns the exit code.
func play(role string) int {
	if role == "reserve threads" {
		return playReserve()
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	d, err := asDaemon()
	switch {
	case err != nil:
	case d == nil:
		err = startDaemon(ctx, "")
	default:
		err = playDaemon(ctx, role, d)
	}
	report(os.Stderr, err)
	return int(exit.Of(err))
}

func playDaemon(ctx context.Context, role string, d *starter) error {
	fmt.Fprintln(os.Stderr, "a warning")
	switch role {
	case "ready":
		d.leave(nil)
		d.ready(true)
		fmt.Fprintln(os.Stderr, "written to /dev/null")
		time.Sleep(25 * time.Second) // longer than the test allows for the command
	case "fail":
		return d.end(&exit.Error{Code: exit.Tier, Err: errors.New("tier ssd: gone"), Remedy: "Mount it."})
	case "die":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "hang":
		fmt.Fprintln(os.Stderr, "pid", os.Getpid())
		<-ctx.Done()
		fmt.Fprintln(os.Stderr, "got SIGTERM")
		return d.end(ctx.Err())
	}
	return d.end(nil)
}

func command(role string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	return cmd, &stderr
}

// The command returns when the daemon is ready or has failed, with the exit code and the message
// of the daemon. The daemon closes the standard error of the command.
func TestStartDaemon(t *testing.T) {
	for _, c := range []struct {
		role string
		code exit.Code
		says string
	}{
		{"ready", exit.OK, "a warning\n"},
		{"fail", exit.Tier, "a warning\nmilkweed: tier ssd: gone\n  Mount it.\n"},
		{"die", exit.Failure, "a warning\nmilkweed: the daemon died before the mount was ready: signal: killed\n"},
		{"end", exit.Failure, "a warning\nmilkweed: the mount ended before it was ready\n"},
	} {
		t.Run(c.role, func(t *testing.T) {
			start := time.Now()
			cmd, stderr := command(c.role)
			cmd.Run() // reads stderr to its end
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("the command took %v", took)
			}
			if got := cmd.ProcessState.ExitCode(); got != int(c.code) {
				t.Errorf("exit code %d, want %d", got, c.code)
			}
			if got := stderr.String(); !strings.HasPrefix(got, c.says) || strings.Contains(got, "/dev/null") {
				t.Errorf("stderr %q, want %q", got, c.says)
			}
		})
	}
}

// A command that is interrupted ends the daemon.
func TestStartDaemonInterrupted(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd, _ := command("hang")
	cmd.Stderr = w
	err = cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	stderr := bufio.NewReader(r)
	var pid int
	_, err = fmt.Fscanf(stderr, "a warning\npid %d\n", &pid) // the daemon has started
	cmd.Process.Signal(syscall.SIGTERM)
	rest, _ := io.ReadAll(stderr) // until both have ended
	cmd.Wait()
	if err != nil {
		t.Fatalf("stderr ends %q: %v", rest, err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the daemon has not ended: %v", err)
	}
	if got := string(rest); got != "got SIGTERM\nmilkweed: interrupted\n" {
		t.Errorf("stderr %q", got)
	}
	if got := cmd.ProcessState.ExitCode(); got != int(exit.Failure) {
		t.Errorf("exit code %d, want %d", got, exit.Failure)
	}
}
