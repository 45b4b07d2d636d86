package fs_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

func init() { children["open"] = openOnce }

// openOnce opens a file by one system call and prints the error.
func openOnce(args []string) error {
	_, err := unix.Open(args[0], unix.O_RDONLY, 0)
	fmt.Println(err)
	return nil
}

// An open that a signal interrupts while the source hangs fails with EINTR,
// after the time in which the source may still answer.
func TestInterruptedRequest(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackOptions{}, func(source string) { write(t, source, "f", 1000, 1) })
	s.from.Add(drivertest.Rule{Op: drivertest.OpOpen, Hang: true})
	job := childCommand("open", s.in("f"))
	var out strings.Builder
	job.Stdout = &out
	s.check(job.Start())
	s.eventually("the source hangs", func() bool { return s.from.Hung() > 0 })
	start := time.Now()
	s.check(job.Process.Signal(syscall.SIGURG)) // which a Go program catches
	s.check(job.Wait())
	if got, want := out.String(), "interrupted system call\n"; got != want {
		t.Errorf("open: got %q after %v, want %q", got, time.Since(start), want)
	}
	s.from.Clear()
}
