package procs

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// start starts a command in dir that prints a line when it is ready.
func start(t *testing.T, dir string, words ...string) int {
	t.Helper()
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = dir
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

func TestUsersAndNamespaces(t *testing.T) {
	drivertest.Need(t, "root", "unshare", "/usr/bin/python3")
	point := t.TempDir()
	if err := unix.Mount("test", point, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(point, unix.MNT_DETACH) })
	file := filepath.Join(point, "f")
	if err := os.WriteFile(file, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(point, &st); err != nil {
		t.Fatal(err)
	}
	const mapped = `import mmap, sys, time
with open(sys.argv[1], "rb") as f: m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
print(flush=True); time.sleep(600)`
	want := []int{
		start(t, point, "sh", "-c", "echo; exec sleep 600"),
		start(t, "/", "sh", "-c", `exec 3<"$1"; echo; exec sleep 600`, "sh", file),
		start(t, "/", "/usr/bin/python3", "-c", mapped, file),
		start(t, "/", "unshare", "--mount", "--propagation", "private", "sh", "-c", `exec 3<"$1"; umount -l "$2"; echo; exec sleep 600`, "sh", file, point),
	}
	elsewhere := start(t, "/", "unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 600")
	start(t, "/", "unshare", "--mount", "--propagation", "private", "sh", "-c", `umount "$1"; echo; exec sleep 600`, "sh", point)

	users, hidden := Users(st.Dev)
	pids := make(map[int]bool)
	for _, p := range users {
		pids[p.PID] = true
	}
	for i, pid := range want {
		if !pids[pid] {
			t.Errorf("process %d of the test is not in %v", i, users)
		}
	}
	if pids[elsewhere] { // hidden may have processes of the machine
		t.Errorf("users %v with %d, hidden %v", users, elsewhere, hidden)
	}
	// Other namespaces of this machine may have a copy of the mount, too.
	found := Namespaces(st.Dev)
	i := slices.IndexFunc(found, func(n Namespace) bool { return slices.Contains(n.Processes, Process{elsewhere, "sleep"}) })
	if i < 0 || len(found[i].Processes) != 1 {
		t.Fatalf("namespaces: %v", found)
	}
	if got, want := found[i].String(), fmt.Sprintf("mount namespace %d with sleep (%d)", found[i].ID, elsewhere); found[i].ID == 0 || got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A process that was killed has ended, although nobody has waited for it.
func TestAlive(t *testing.T) {
	pid := start(t, "/", "sh", "-c", "echo; exec sleep 600")
	if !Alive(pid) {
		t.Error("a process that runs has ended")
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	drivertest.Eventually(t, "the process has ended", func() bool { return !Alive(pid) })
	if err := unix.Kill(pid, 0); err != nil {
		t.Errorf("it is not there any more: %v", err)
	}
}
