package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/lab"
	"github.com/milkweedfs/milkweed/cmd/internal/lab/torture"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := lab.RemovePrograms(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// build builds a command of this module and returns its path.
func build(t *testing.T, name string) string {
	t.Helper()
	path, err := lab.Program("cmd/"+name, false)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// start returns the command of a run, with a folder of its own for temporary files.
func start(t *testing.T, words ...string) (cmd *exec.Cmd, temp string, out *bytes.Buffer) {
	t.Helper()
	drivertest.Need(t, "root", "mkfs.ext4", "losetup")
	temp = t.TempDir()
	cmd = exec.Command(build(t, "torture"), append([]string{"-program", build(t, "milkweed"), "-seed", "1", "-files", "60"}, words...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+temp)
	out = new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, temp, out
}

// wantNothing fails the test if a run has left a file or a loop device.
func wantNothing(t *testing.T, temp string) {
	t.Helper()
	if left, _ := os.ReadDir(temp); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	// The kernel may detach a loop device a moment after the last process that has it mounted ends.
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		loops, err := exec.Command("losetup", "--all").Output()
		if err == nil && !strings.Contains(string(loops), temp) {
			return
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("loop devices: %s, %v", loops, err)
		}
	}
}

// A run of a few cycles finds nothing, counts what it did, and leaves nothing behind.
func TestFewCycles(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the torture suite")
	}
	summary := filepath.Join(t.TempDir(), "summary.json")
	cmd, temp, out := start(t, "-cycles", "3", "-faults", "kill,source", "-json", summary)
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	data, err := os.ReadFile(summary)
	if err != nil {
		t.Fatal(err)
	}
	var s torture.Summary
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	if s.Cycles != 3 || s.Events["SIGKILL"] == 0 || s.Right == 0 || s.Bytes == 0 || !s.OK() {
		t.Errorf("summary: %s", data)
	}
	wantNothing(t, temp)
}

// A run that is interrupted ends with an error, and leaves nothing behind.
func TestInterrupted(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the torture suite")
	}
	cmd, temp, out := start(t, "-duration", "1m", "-v")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(4 * time.Second) // in some cycle, or before the first
	cmd.Process.Signal(syscall.SIGINT)
	if err := cmd.Wait(); err == nil {
		t.Errorf("it succeeded:\n%s", out)
	}
	if !strings.Contains(out.String(), "interrupted") {
		t.Errorf("it does not say that it was interrupted:\n%s", out)
	}
	wantNothing(t, temp)
}

func TestUsage(t *testing.T) {
	for _, words := range [][]string{{"-fs"}, {"-faults", "kil"}, {"-frobnicate"}} {
		if code, err := run(words); code != 2 || err == nil {
			t.Errorf("%q: exit code %d, %v", words, code, err)
		}
	}
}
