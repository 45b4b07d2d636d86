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
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
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
		if procs.Alive(pid) {
			folder := filepath.Join("/proc", e.Name())
			left = append(left, fmt.Sprintf("the process %d: %s, %s", pid, name(folder), state(folder)))
		}
	}
	return left, nil
}

// state says what the threads of a process do in the kernel.
func state(folder string) string {
	var all []string
	threads, _ := filepath.Glob(filepath.Join(folder, "task", "*"))
	for _, t := range threads {
		stack, _ := os.ReadFile(filepath.Join(t, "stack"))
		calls := strings.Split(strings.TrimSpace(string(stack)), "\n")
		all = append(all, strings.Join(calls[:min(len(calls), 6)], " "))
	}
	return "in " + strings.Join(all, "; ")
}

// name names the process of a folder in /proc by its words or, if it has none, as in the middle of an
// execve(2), by its program in parentheses.
func name(folder string) string {
	words, _ := os.ReadFile(filepath.Join(folder, "cmdline"))
	if words = bytes.TrimSpace(bytes.ReplaceAll(words, []byte{0}, []byte{' '})); len(words) > 0 {
		return string(words)
	}
	program, _ := os.ReadFile(filepath.Join(folder, "comm"))
	return fmt.Sprintf("(%s)", bytes.TrimSpace(program))
}
