package procs

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
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

// A user is absent when the last thread of the user's last process has ended.
func TestAbsent(t *testing.T) {
	drivertest.Need(t, "root", "setpriv", "/usr/bin/python3")
	const shell, leaderless, nobody = 4000079, 4000080, 4000081
	all := []int{nobody, os.Geteuid(), shell, leaderless}
	want := func(want ...int) func() bool {
		return func() bool { return slices.Equal(Absent(all), want) }
	}
	if !want(nobody, shell, leaderless)() {
		t.Fatalf("absent: %v", Absent(all))
	}
	pid := start(t, "/", "setpriv", fmt.Sprint("--euid=", shell), "sh", "-p", "-c", "echo; exec sleep 600")
	start(t, "/", "setpriv", fmt.Sprint("--reuid=", leaderless), "/usr/bin/python3", "-c", `
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print(flush=True)
ctypes.CDLL(None).pthread_exit(None)`)
	if !want(nobody)() {
		t.Errorf("absent: %v", Absent(all))
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	drivertest.Eventually(t, "the user of the shell is absent", want(nobody, shell)) // it is not waited for yet
}

// The user at the other end of a socket is known with its groups, also if there are many.
func TestPeer(t *testing.T) {
	drivertest.Need(t, "root", "setpriv", "/usr/bin/python3")
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for dir := filepath.Dir(path); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		os.Chmod(dir, 0o755)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, count := range []int{0, 1, 64, 65, 1000} {
		want := User{UID: 77, Groups: []uint32{}}
		groups := "--clear-groups"
		for i := range count {
			want.Groups = append(want.Groups, uint32(1000+i))
		}
		if count > 0 {
			groups = "--groups=" + strings.Trim(strings.Join(strings.Fields(fmt.Sprint(want.Groups)), ","), "[]")
		}
		want.Groups = append(want.Groups, 88)
		cmd := exec.Command("setpriv", "--reuid=77", "--regid=88", groups, "--", "/usr/bin/python3", "-c",
			"import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])", path)
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		want.PID = cmd.Process.Pid
		conn, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Peer(conn); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%d groups: got %v, %v", count, got, err)
		}
		conn.Close()
	}
}
