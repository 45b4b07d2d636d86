package control_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// A server without a mount says what that waits for, and can be shut down. When the mount is about to be there,
// requests wait for it.
func TestStarting(t *testing.T) {
	controltest.Folder(t)
	l, err := control.Listen(t.Context(), mountPoint)
	if err != nil {
		t.Fatal(err)
	}
	d := &controltest.Daemon{MountPoint: mountPoint}
	server := &control.Server{Daemon: d}
	server.Starting(mountPoint, "opening the source")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	c, err := control.Dial(t.Context(), mountPoint)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	starting := func(err error, cause string) {
		t.Helper()
		if !errors.Is(err, control.ErrStarting) || exit.Of(err) != exit.NotMounted || !strings.Contains(err.Error(), mountPoint+" is not mounted yet: its daemon is ") ||
			!strings.Contains(err.Error(), cause) {
			t.Errorf("got %v, want %q", err, cause)
		}
	}
	_, err = c.Status(t.Context())
	starting(err, "opening the source")
	server.Starting(mountPoint, "waiting for a disk")
	_, _, err = control.Find(mountPoint + "/train")
	starting(err, "waiting for a disk")
	if _, err := control.Listen(t.Context(), mountPoint); exit.Of(err) != exit.MountPoint || !strings.Contains(err.Error(), "waiting for a disk") {
		t.Errorf("a second daemon: %v", err)
	}
	if all := control.AllStarting(t.Context()); len(all) != 1 {
		t.Errorf("%d daemons start, want 1", len(all))
	} else {
		starting(all[0].Err, "waiting for a disk")
		all[0].Close()
	}
	if err := c.Shutdown(t.Context(), false); err != nil || d.Shutdowns.Load() != 1 {
		t.Errorf("shutdown: %v", err)
	}

	server.Starting(mountPoint, "")
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Status(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a request before the mount: %v, want one that waits", err)
	}
	server.Started()
	if _, err := c.Status(t.Context()); err != nil {
		t.Error(err)
	}
	if all := control.AllStarting(t.Context()); len(all) != 0 {
		t.Errorf("%d daemons start, want none", len(all))
	}
	if _, _, err := control.Find(mountPoint); exit.Of(err) != exit.NotMounted || errors.Is(err, control.ErrStarting) {
		t.Errorf("a daemon whose mount this process does not see: %v", err)
	}
}
