package apart

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

// opensFor is how long a child goes on that has called Opened. It is longer than its limit.
const opensFor = 6 * time.Second

// behavior is the environment variable with what a child does.
const behavior = "MILKWEED_TEST_APART"

func TestMain(m *testing.M) {
	if Inside() {
		switch os.Getenv(behavior) {
		case "opens":
			Opened()
			time.Sleep(opensFor)
		case "hangs":
			time.Sleep(time.Minute)
		}
		Exit(7)
	}
	os.Exit(m.Run())
}

// The limit is for a child that does not call Opened.
func TestLimit(t *testing.T) {
	for _, tt := range []struct {
		behavior string
		limit    time.Duration
		code     int
		err      error
	}{{"ends", time.Minute, 7, nil}, {"opens", opensFor - time.Second, 7, nil}, {"hangs", time.Second, 1, ErrHangs}} {
		t.Setenv(behavior, tt.behavior)
		if code, err := Run(context.Background(), tt.limit); code != tt.code || !errors.Is(err, tt.err) {
			t.Errorf("%s: exit code %d, %v", tt.behavior, code, err)
		}
	}
}

// A child ends with its parent's context.
func TestCancelled(t *testing.T) {
	t.Setenv(behavior, "hangs")
	ctx, cancel := context.WithTimeout(context.Background(), time.Second/2)
	defer cancel()
	start := time.Now()
	if _, err := Run(ctx, time.Minute); err == nil || time.Since(start) > 30*time.Second {
		t.Errorf("got %v after %v", err, time.Since(start))
	}
}
