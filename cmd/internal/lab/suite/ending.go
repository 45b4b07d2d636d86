package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/lab"
)

// Limits of what the runner does itself. Each of these takes seconds, unless a disk or a mount hangs.
const (
	lookLimit  = time.Minute
	cleanLimit = time.Minute
	buildLimit = 10 * time.Minute
)

// within calls f, and waits for it for at most limit. The goroutine stays if a system call of f hangs,
// which nothing can end.
func within(limit time.Duration, what string, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return fmt.Errorf("%s has not ended within %v", what, limit)
	}
}

// readWithin returns the data of a file of /proc, or nothing: the kernel makes a reader of the arguments
// of a process wait while the process is in a system call that maps memory and hangs.
func readWithin(limit time.Duration, path string) (data []byte) {
	var read []byte
	err := within(limit, path, func() (err error) {
		read, err = os.ReadFile(path)
		return err
	})
	if err == nil {
		data = read
	}
	return data
}

// An overError is the reason why a step was ended: its time, or that of the run, is over.
type overError struct {
	what  string
	limit time.Duration
}

func (e overError) Error() string {
	return fmt.Sprintf(endedAfter+"%v, the limit of %s", e.limit, e.what)
}

// endedAfter begins the error of a step whose time is over.
const endedAfter = "ended after "

// isOver reports whether the reason of an error is that a time is over.
func isOver(err error) bool {
	_, ok := errors.AsType[overError](err)
	return ok
}

// command runs the command of a step. When ctx is done, it ends the processes of the step. If a time is
// over, it calls over before; Go programs print their goroutines then.
func (r *runner) command(ctx context.Context, cmd *exec.Cmd, over func()) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if errors.Is(err, exec.ErrWaitDelay) {
			return fmt.Errorf("a process that it has left holds its output: %w", err)
		}
		return err
	case <-ctx.Done():
	}
	reason := context.Cause(ctx)
	if !isOver(reason) {
		return errors.Join(reason, r.stop(cmd, unix.SIGTERM, ended))
	}
	over()
	reason = fmt.Errorf("%w, with these processes:\n%s", reason, r.describeProcesses())
	return errors.Join(reason, r.stop(cmd, unix.SIGQUIT, ended))
}

// stop ends the processes of a step, whose command sends its error to ended. It sends them first, and
// after the grace it kills them. The error says what it cannot end.
func (r *runner) stop(cmd *exec.Cmd, first unix.Signal, ended <-chan error) error {
	unix.Kill(-cmd.Process.Pid, first)
	select {
	case <-ended:
		return nil
	case <-time.After(r.grace):
	}
	unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	cleaned := r.clean() // it also ends what waits for a mount of the step
	select {
	case <-ended:
		return cleaned
	case <-time.After(r.grace):
		return errors.Join(fmt.Errorf("process %d does not end after SIGKILL: %s", cmd.Process.Pid, processState(cmd.Process.Pid)), cleaned)
	}
}

// describeProcesses returns a line for each process of the steps.
func (m *machine) describeProcesses() string {
	var b strings.Builder
	found := m.processes() // which is never long: it waits for no process
	for _, pid := range slices.Sorted(maps.Keys(found)) {
		fmt.Fprintf(&b, "process %d, %s: %s\n", pid, processState(pid), found[pid])
	}
	return b.String()
}

// processState returns the state of a process, as ps prints it, and in which function of the kernel it
// waits.
func processState(pid int) string {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat := readWithin(time.Second, filepath.Join(dir, "stat"))
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) == 0 {
		return "ended"
	}
	return strings.TrimSuffix(fields[0]+" in "+string(readWithin(time.Second, filepath.Join(dir, "wchan"))), " in ")
}

// A lineWriter calls line with each line that is written. A last line may have no end.
type lineWriter struct {
	mu       sync.Mutex // guards the following, and what line changes
	line     func([]byte)
	rest     []byte // of the last line
	finished bool
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.finished {
		return 0, io.ErrClosedPipe
	}
	w.rest = append(w.rest, p...)
	for {
		i := bytes.IndexByte(w.rest, '\n')
		if i < 0 {
			return len(p), nil
		}
		w.line(w.rest[:i+1])
		w.rest = w.rest[i+1:]
	}
}

// finish calls line with the rest. What is written afterwards is an error.
func (w *lineWriter) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.rest) > 0 {
		w.line(w.rest)
	}
	w.rest, w.finished = nil, true
}

// dumpLines is how many lines of the goroutines of a test are shown.
const dumpLines = 40

// goroutinesOf returns those goroutines of a dump that are in a test, but not those that wait for its
// subtests. They have the calls of this module, the innermost first. If there are none, it returns the
// beginning of the dump.
func goroutinesOf(dump, name string) string {
	var kept []string
	for _, block := range strings.Split(dump, "\n\n") {
		if !strings.HasPrefix(block, "goroutine ") || strings.Contains(block, "\ntesting.(*T).Run(") || !strings.Contains(block, "."+name+"(") && !strings.Contains(block, "."+name+".func") {
			continue
		}
		lines := strings.Split(block, "\n")
		kept = append(kept, lines[0])
		for i := 1; i+1 < len(lines); i += 2 { // a function, and its place in a file
			if call, ok := strings.CutPrefix(lines[i], lab.Module+"/"); ok {
				place, _, _ := strings.Cut(strings.TrimSpace(lines[i+1]), " +0x")
				kept = append(kept, "  "+call+" "+place)
			}
		}
	}
	if len(kept) == 0 {
		kept = strings.Split(dump, "\n")
	}
	return strings.Join(kept[:min(len(kept), dumpLines)], "\n")
}
