package drivertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// MountMapped makes an idmapped mount of the mount at from, as container runtimes do for a user namespace: the IDs from 0
// on appear as those from first on. It is there until the test ends. The error is that of mount_setattr(2). Where the
// kernel cannot do so for FUSE, the test is skipped.
func MountMapped(t testing.TB, from string, first int) (point string, err error) {
	t.Helper()
	Need(t, "root")
	var name unix.Utsname
	var major, minor int
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		t.Fatalf("the release of Linux is %s: %v", release, err)
	}
	if major < 6 || major == 6 && minor < 12 {
		Skipf(t, "idmapped mounts of FUSE need Linux 6.12")
	}
	namespace := userNamespace(t, first)
	defer namespace.Close()
	tree, err := unix.OpenTree(unix.AT_FDCWD, from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(namespace.Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return "", os.NewSyscallError("mount_setattr", err)
	}
	point = t.TempDir()
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, point, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(point, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", point, err)
		}
	})
	return point, nil
}

// userNamespace opens a user namespace in which the IDs from 0 on are those from first on here.
func userNamespace(t testing.TB, first int) *os.File {
	t.Helper()
	cmd := exec.Command("cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: 1 << 16}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	stdin.Close()
	if err := errors.Join(err, cmd.Wait()); err != nil {
		t.Fatal(err)
	}
	return namespace
}
