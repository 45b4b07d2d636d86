package peer

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A node whose last answer was slow may be slower, and is not skipped.
func TestPaceOfASlowNode(t *testing.T) {
	var delay atomic.Int64
	r := newRig(t, newMemory(nil), func(c *Config) {
		if c.Self == "b" {
			c.About = func() About {
				time.Sleep(time.Duration(delay.Load()))
				return About{}
			}
		}
	}, newMemory(nil), newMemory(nil))
	for _, d := range []time.Duration{pingTimeout / 2, pingTimeout * 3 / 2} {
		delay.Store(int64(d))
		if _, err := r.nodes[0].ExchangeOf(t.Context(), 1); err != nil {
			t.Errorf("an answer after %v: %v", d, err)
		}
	}
}

// While the process is stopped, at most one step of within passes.
func TestWithinAStoppedProcess(t *testing.T) {
	const env, limit, stopped = "MILKWEED_TEST_WITHIN", 2 * time.Second, 3 * time.Second
	if os.Getenv(env) != "" {
		ctx, cancel := within(context.Background(), limit)
		defer cancel()
		last := time.Now()
		fmt.Println("begins")
		for time.Since(last) < limit {
			last = time.Now()
			time.Sleep(time.Millisecond)
		}
		fmt.Println("resumed:", context.Cause(ctx))
		<-ctx.Done()
		fmt.Println("done:", context.Cause(ctx))
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestWithinAStoppedProcess$")
	cmd.Env = append(os.Environ(), env+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	next := func() string {
		lines.Scan()
		return lines.Text()
	}
	if got := next(); got != "begins" {
		t.Fatalf("got %q", got)
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(stopped)
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"resumed: <nil>", "done: context deadline exceeded"} {
		if got := next(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
