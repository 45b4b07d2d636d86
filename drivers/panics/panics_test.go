package panics_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// logged returns what f logs.
func logged(f func()) string {
	var log bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	f()
	return log.String()
}

func guilty() { panic("oh") }

// A panic becomes an error, is counted, and is logged with its stack.
func TestCatch(t *testing.T) {
	count := panics.Count()
	var err error
	log := logged(func() {
		func() {
			defer panics.Catch(&err)
			guilty()
		}()
	})
	if e, ok := errors.AsType[*panics.Error](err); !ok || e.Value != "oh" {
		t.Errorf("got the error %v", err)
	}
	if !strings.Contains(log, "panics_test.guilty") {
		t.Errorf("the log has no stack: %s", log)
	}
	if got := panics.Count() - count; got != 1 {
		t.Errorf("counted %d panics, want 1", got)
	}
}

// Without a panic, Catch keeps the error of the operation.
func TestCatchNothing(t *testing.T) {
	want := errors.New("other")
	err := func() (err error) {
		defer panics.Catch(&err)
		return want
	}()
	if err != want {
		t.Errorf("got %v", err)
	}
}

// A function that panics is called again, until it returns or the context is done.
func TestRepeat(t *testing.T) {
	calls := 0
	logged(func() {
		panics.Repeat(t.Context(), func() {
			if calls++; calls == 1 {
				guilty()
			}
		})
	})
	if calls != 2 {
		t.Errorf("%d calls, want 2", calls)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	logged(func() { panics.Repeat(ctx, guilty) })
}

// A goroutine ends with a panic that is contained.
func TestContain(t *testing.T) {
	ended := make(chan struct{})
	log := logged(func() {
		go func() {
			defer close(ended)
			defer panics.Contain()
			guilty()
		}()
		<-ended
	})
	if !strings.Contains(log, "oh") {
		t.Errorf("not logged: %s", log)
	}
}
