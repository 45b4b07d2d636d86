package fs

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// The fusermount3 of a cluster may be a program that leaves a process behind. Its message is that of the error if it
// fails, and nothing waits for the process.
func TestHelperLeavesAProcess(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, failure := range []string{"", "no such mount"} {
		script := "#!/bin/sh\nsleep 1000 &\necho $! > " + dir + "/pid\n"
		if failure != "" {
			script += "echo " + failure + " >&2\nexit 1\n"
		}
		if err := os.WriteFile(dir+"/fusermount3", []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		err := unmountByHelper(t.Context(), "/nowhere", false)
		if failure == "" && err != nil || failure != "" && (err == nil || !strings.Contains(err.Error(), failure)) {
			t.Errorf("got the error %v, want %q", err, failure)
		}
		text, err := os.ReadFile(dir + "/pid")
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Errorf("the process was not left behind: %v", err)
		}
	}
}
