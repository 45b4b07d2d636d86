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

func TestNaming(t *testing.T) {
	drivertest.Need(t, "env")
	const variable = "MILKWEED_TEST_NAMING"
	t.Setenv(variable, "/a") // of this process, which is not one of them
	pid := start(t, "/", "env", variable+"=/b:/c", "sh", "-c", "echo; exec sleep 600")
	for value, want := range map[string]bool{"/b": true, "/c": true, "/a": false, "/": false, "/b:/c": false} {
		found := slices.ContainsFunc(Naming(variable, value), func(p Process) bool { return p.PID == pid })
		if found != want {
			t.Errorf("%s: found %v, want %v", value, found, want)
		}
	}
}

// A user runs as long as one of its processes does.
func TestRunningUsers(t *testing.T) {
	drivertest.Need(t, "root", "setpriv")
	const uid = 4000079
	if RunningUsers()[uid] || !RunningUsers()[os.Getuid()] {
		t.Errorf("running users: %v", RunningUsers())
	}
	pid := start(t, "/", "setpriv", "--ruid="+fmt.Sprint(uid), "sh", "-c", "echo; exec sleep 600")
	if !RunningUsers()[uid] {
		t.Error("a user with a process does not run")
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	drivertest.Eventually(t, "the user does not run", func() bool { return !RunningUsers()[uid] }) // it is not waited for yet
}

// The groups of a user at the other end of a socket are known, also if there are many.
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
	for _, count := range []int{0, 1, 32, 33, 1000} {
		want := User{UID: 77, Groups: []uint32{88}}
		groups := "--clear-groups"
		for i := range count {
			want.Groups = append(want.Groups, uint32(1000+i))
		}
		if count > 0 {
			groups = "--groups=" + strings.Trim(strings.Join(strings.Fields(fmt.Sprint(want.Groups[1:])), ","), "[]")
		}
		cmd := exec.Command("setpriv", "--reuid=77", "--regid=88", groups, "--", "/usr/bin/python3", "-c",
			"import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])", path)
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
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

// A process is dying from SIGKILL until it is waited for.
func TestDying(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	if Dying(pid) {
		t.Error("a process that runs is dying")
	}
	cmd.Process.Kill()
	drivertest.Eventually(t, "a process that was killed is dying", func() bool { return Dying(pid) })
	cmd.Wait()
	if Dying(pid) {
		t.Error("a process that has ended is dying")
	}
}
