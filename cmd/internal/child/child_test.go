package child

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// sh returns a command that runs a shell script.
func sh(script string) *exec.Cmd { return exec.Command("sh", "-c", script) }

func TestRun(t *testing.T) {
	stdout, stderr, err := Run(sh("echo out; echo warning >&2"))
	if string(stdout) != "out\n" || string(stderr) != "warning\n" || err != nil {
		t.Errorf("got %q, %q, %v", stdout, stderr, err)
	}
}

// The error of a command has the exit code, the message and the remedy that the
// program reported, without the warnings above them.
func TestRunReportsTheError(t *testing.T) {
	_, _, err := Run(sh(`echo warning >&2; printf 'milkweed: tier ssd: no space\n  Free some.\n' >&2; exit 5`))
	if got, want := exit.Of(err), exit.Tier; got != want {
		t.Errorf("exit code %d, want %d", got, want)
	}
	if got, want := err.Error(), "sh -c: tier ssd: no space\n  Free some."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The exit code of a panic, 2, is not a documented one.
func TestRunReportsAPanic(t *testing.T) {
	_, _, err := Run(sh(`printf 'panic: oops\n' >&2; exit 2`))
	if got, want := exit.Of(err), exit.Failure; got != want {
		t.Errorf("exit code %d, want %d", got, want)
	}
	if err == nil || !strings.Contains(err.Error(), "panic: oops") {
		t.Errorf("got %v", err)
	}
}

func TestProcess(t *testing.T) {
	p, err := Start(sh("cat"))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 2} {
		if err := p.Send(n); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int{1, 2} {
		var got int
		if err := p.Receive(&got); err != nil || got != want {
			t.Errorf("got %d, %v; want %d", got, err, want)
		}
	}
	if err := errors.Join(p.Stop(), p.Stop()); err != nil {
		t.Error(err)
	}
}

// Receive returns the reason why a process ended.
func TestProcessDies(t *testing.T) {
	p, err := Start(sh(`printf 'milkweed: no source\n' >&2; exit 3`))
	if err != nil {
		t.Fatal(err)
	}
	var reply int
	err = p.Receive(&reply)
	if got, want := exit.Of(err), exit.Source; got != want {
		t.Errorf("exit code %d, want %d: %v", got, want, err)
	}
}

func TestServe(t *testing.T) {
	var out bytes.Buffer
	err := Serve(strings.NewReader("1 2"), &out, func(n int, reply func(any) error) error {
		return errors.Join(reply(n), reply(10*n))
	})
	if got, want := out.String(), "1\n10\n2\n20\n"; err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

// A head keeps the first bytes and accepts the others.
func TestHead(t *testing.T) {
	var h head
	for range 3 {
		if n, err := h.Write(make([]byte, headSize/2+1)); n != headSize/2+1 || err != nil {
			t.Fatalf("wrote %d, %v", n, err)
		}
	}
	if got := len(h.data); got != headSize {
		t.Errorf("kept %d bytes, want %d", got, headSize)
	}
}
