package apart

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

// behavior is the environment variable with what a child does.
const behavior = "MILKWEED_TEST_APART"

func TestMain(m *testing.M) {
	if Inside() {
		switch os.Getenv(behavior) {
		case "opens":
			Opened()
			time.Sleep(3 * time.Second / 2)
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
		code     int
		err      error
	}{{"ends", 7, nil}, {"opens", 7, nil}, {"hangs", 1, ErrHangs}} {
		t.Setenv(behavior, tt.behavior)
		if code, err := Run(context.Background(), time.Second); code != tt.code || !errors.Is(err, tt.err) {
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
