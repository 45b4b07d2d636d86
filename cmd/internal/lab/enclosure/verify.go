package enclosure

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/fs"
)

// endTime bounds how long the last processes may take to end.
var endTime = 30 * time.Second

// Verify returns the exit code of tests that ran inside with this code: 1 if they have left a process or a
// mount of Milkweed, which it prints.
func Verify(code int) int {
	for deadline := time.Now().Add(endTime); code == 0; time.Sleep(20 * time.Millisecond) {
		switch left, err := left(); {
		case err != nil:
			fmt.Fprintln(os.Stderr, "what the tests have left:", err)
			code = 1
		case len(left) == 0:
			return 0
		case time.Now().After(deadline):
			fmt.Fprintln(os.Stderr, "the tests have left", strings.Join(left, ", "))
			code = 1
		}
	}
	return code
}

// left returns the processes inside, and the mounts of Milkweed.
func left() (left []string, err error) {
	table, err := mounts.Read(mounts.Self)
	if err != nil {
		return nil, err
	}
	for _, m := range table {
		if m.Type == fs.Type {
			left = append(left, "the mount "+m.Point)
		}
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || slices.Contains([]int{1, os.Getpid()}, pid) {
			continue
		}
		if name, runs := process(filepath.Join("/proc", e.Name())); runs {
			left = append(left, fmt.Sprintf("the process %d: %s", pid, name))
		}
	}
	return left, nil
}

// process names the process of a folder in /proc, and reports whether it has not ended: by its words or,
// if it has none, by its program in parentheses. In the middle of an execve(2) it has none.
func process(folder string) (name string, runs bool) {
	words, _ := os.ReadFile(filepath.Join(folder, "cmdline"))
	stat, err := os.ReadFile(filepath.Join(folder, "stat")) // see proc_pid_stat(5)
	program, end := bytes.IndexByte(stat, '('), bytes.LastIndex(stat, []byte(") "))
	if err != nil || program < 0 || end < 0 || bytes.ContainsAny(stat[end+2:end+3], "ZX") {
		return "", false
	}
	if words = bytes.TrimSpace(bytes.ReplaceAll(words, []byte{0}, []byte{' '})); len(words) == 0 {
		words = stat[program : end+1]
	}
	return string(words), true
}
