package enclosure

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
)

// enclosedEnv is an environment variable for the test binary. If it is set, the binary is an
// enclosed program that starts a process, and waits.
const enclosedEnv = "MILKWEED_TEST_ENCLOSED"

func TestMain(m *testing.M) {
	if os.Getenv(enclosedEnv) == "" {
		os.Exit(m.Run())
	}
	code, err := Run("milkweed-enclosure-", func(folder string) (int, error) {
		child := exec.Command("setsid", "sleep", "1000")
		child.Stdout = os.Stdout
		if err := child.Start(); err != nil {
			return 1, err
		}
		fmt.Println(folder)
		io.Copy(io.Discard, os.Stdin)
		return 7, nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// When the first process is killed or the program ends, all processes end, also those in a session
// of their own. The folder is removed at the end of the program.
func TestRun(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("the test needs root")
		}
		t.Skip("the test needs root")
	}
	for _, kill := range []bool{true, false} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), enclosedEnv+"=1", "TMPDIR="+t.TempDir())
		cmd.Stderr = os.Stderr
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var folder string
		if _, err := fmt.Fscanln(stdout, &folder); err != nil {
			t.Fatal(err)
		}
		if kill {
			cmd.Process.Kill()
		} else {
			stdin.Close()
		}
		if _, err := io.Copy(io.Discard, stdout); err != nil { // it ends when no process has it open
			t.Error(err)
		}
		stdin.Close()
		cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); !kill && got != 7 {
			t.Errorf("exit code %d, want 7", got)
		}
		if _, err := os.Stat(folder); !kill && !os.IsNotExist(err) {
			t.Errorf("the folder is left: %v", err)
		}
	}
}
