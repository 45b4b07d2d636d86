package mounts

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// AwaitUnmount returns when a file system is unmounted, also while others are mounted and
// unmounted, and while a copy of the mount is in another mount namespace.
func TestAwaitUnmount(t *testing.T) {
	drivertest.Need(t, "root")
	churn, stop := context.WithCancel(t.Context())
	defer stop()
	other := t.TempDir()
	churned := make(chan struct{})
	go func() {
		defer close(churned)
		for churn.Err() == nil {
			unix.Mount("test", other, "tmpfs", 0, "size=4096")
			unix.Unmount(other, unix.MNT_DETACH)
		}
	}()
	defer func() { stop(); <-churned }()
	for range 5 {
		point := t.TempDir()
		if err := unix.Mount("test", point, "tmpfs", 0, "size=4096"); err != nil {
			t.Fatal(err)
		}
		table, err := Read(Self)
		m, ok := table.At(point)
		if err != nil || !ok {
			t.Fatalf("not in the table: %v", err)
		}
		elsewhere := exec.Command("unshare", "--mount", "--propagation", "private", "sleep", "20")
		if err := elsewhere.Start(); err != nil {
			t.Fatal(err)
		}
		gone := make(chan error, 1)
		go func() { gone <- AwaitUnmount(t.Context(), m.Dev) }()
		time.Sleep(20 * time.Millisecond)
		if err := unix.Unmount(point, 0); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-gone:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("AwaitUnmount has not returned")
		}
		elsewhere.Process.Kill()
		elsewhere.Wait()
	}
}
