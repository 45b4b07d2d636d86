package main

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// A heldWriter writes when it is let go.
type heldWriter struct {
	bytes.Buffer
	let chan error // the error of the next write; closed: none
}

func (w *heldWriter) Write(p []byte) (int, error) {
	if err := <-w.let; err != nil {
		return 0, err
	}
	return w.Buffer.Write(p)
}

// A file that takes nothing delays nobody who logs. What waits is written later, in its order, and then how many
// messages are missing.
func TestLogThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := &heldWriter{let: make(chan error)}
		l := new(daemonLog)
		l.Logger = slog.New(l.handler(held, "text", &l.level))
		long := strings.Repeat("x", 1000)
		const all = 2 * maxUnwritten / 1000
		for i := range all {
			l.Info(long, "i", i)
			if i == 0 {
				synctest.Wait() // it is being written: the others wait
			}
		}
		lost := l.lost()
		if lost < all/3 || lost > 2*all/3 {
			t.Errorf("%d of %d messages are lost", lost, all)
		}
		start := time.Now()
		l.close()
		if waited := time.Since(start); waited != writeLogTime {
			t.Errorf("close takes %v, want %v", waited, writeLogTime)
		}
		close(held.let)
		l.close()
		lines := strings.Split(held.String(), "\n")
		for i := range all - int(lost) {
			if want := fmt.Sprintf("i=%d", i); !strings.HasSuffix(lines[i], want) {
				t.Fatalf("line %d is %q, want %q at its end", i, lines[i], want)
			}
		}
		rest := strings.Join(lines[all-int(lost):], "\n")
		if want := fmt.Sprintf("msg=\"messages of the log were lost\" count=%d\n", lost); !strings.HasSuffix(rest, want) {
			t.Errorf("the end of the log is %q, want %q", rest, want)
		}
	})
}

// Messages that cannot be written are counted, and reported when the next one is written.
func TestLogThatFails(t *testing.T) {
	failing := &heldWriter{let: make(chan error, 2)}
	failing.let <- unix.ENOSPC
	failing.let <- errors.New("still full")
	close(failing.let)
	l := new(daemonLog)
	l.Logger = slog.New(l.handler(failing, "text", &l.level))
	for i := range 4 {
		l.Info("message", "i", i)
		l.close()
		if got, want := l.lost(), int64(min(i+1, 2)); got != want {
			t.Errorf("after message %d, %d are lost, want %d", i, got, want)
		}
	}
	got := failing.String()
	if strings.Count(got, "\n") != 3 || strings.Contains(got, "i=1") || !strings.Contains(got, "count=2") || !strings.Contains(got, "i=3") {
		t.Errorf("the log is\n%s", got)
	}
}
