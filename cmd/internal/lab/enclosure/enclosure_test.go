package enclosure

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/fs"
)

// enclosedEnv is an environment variable for the test binary. If it is set, the binary is an
// enclosed program that starts a process, prints its folder and whether the path in the variable
// is a mount point, and waits.
const enclosedEnv = "MILKWEED_TEST_ENCLOSED"

// verifyEnv is an environment variable of the enclosed program. If it is set, the program calls Verify. It
// has what Verify says of the process that is left.
const verifyEnv = "MILKWEED_TEST_VERIFY"

// nameless is what Verify says of a process without words, as each is in the middle of an execve(2).
const nameless = "(cat)"

func TestMain(m *testing.M) {
	point := os.Getenv(enclosedEnv)
	if point == "" {
		os.Exit(m.Run())
	}
	code, err := Run("milkweed-enclosure-", func(folder string) (int, error) {
		child := exec.Command("setsid", "sleep", "1000")
		want := os.Getenv(verifyEnv)
		if want == nameless {
			child = exec.Command("cat")
			child.Args = []string{""}
			if _, err := child.StdinPipe(); err != nil { // it waits for that
				return 1, err
			}
		}
		child.Stdout = os.Stdout
		if err := child.Start(); err != nil {
			return 1, err
		}
		table, err := mounts.Read(mounts.Self)
		if err != nil {
			return 1, err
		}
		_, mounted := table.At(point)
		fmt.Println(folder, mounted)
		io.Copy(io.Discard, os.Stdin)
		if want != "" { // once the process has begun its program
			for end := time.Now().Add(endTime); time.Now().Before(end); time.Sleep(time.Millisecond) {
				if all, err := left(); err != nil || strings.Contains(strings.Join(all, "\n"), want) {
					break
				}
			}
			endTime = 0
			return Verify(0), nil
		}
		return 7, nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// An enclosed is an enclosed program that waits.
type enclosed struct {
	cmd     *exec.Cmd
	stdin   io.Closer
	stdout  io.Reader
	stderr  bytes.Buffer // of a program that has ended
	folder  string
	mounted bool // whether point is a mount point there
}

// start starts the program with the path of a mount point.
func start(t *testing.T, point string) *enclosed {
	t.Helper()
	e := &enclosed{cmd: exec.Command("/proc/self/exe")}
	e.cmd.Env = append(os.Environ(), enclosedEnv+"="+point, "TMPDIR="+t.TempDir())
	e.cmd.Stderr = io.MultiWriter(os.Stderr, &e.stderr)
	stdin, err := e.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := e.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	e.stdin, e.stdout = stdin, stdout
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanln(stdout, &e.folder, &e.mounted); err != nil {
		t.Fatal(err)
	}
	return e
}

// wait waits until no process of the program is left.
func (e *enclosed) wait(t *testing.T) {
	t.Helper()
	if _, err := io.Copy(io.Discard, e.stdout); err != nil { // it ends when no process has it open
		t.Error(err)
	}
	e.stdin.Close()
	e.cmd.Wait()
}

// When the first process is killed or the program ends, all processes end, also those in a session
// of their own. The folder is removed at the end of the program.
func TestRun(t *testing.T) {
	drivertest.Need(t, "root")
	for _, kill := range []bool{true, false} {
		e := start(t, "/")
		if kill {
			e.cmd.Process.Kill()
		} else {
			e.stdin.Close()
		}
		e.wait(t)
		if got := e.cmd.ProcessState.ExitCode(); !kill && got != 7 {
			t.Errorf("exit code %d, want 7", got)
		}
		if _, err := os.Stat(e.folder); !kill && !os.IsNotExist(err) {
			t.Errorf("the folder is left: %v", err)
		}
	}
}

// Verify names a process that is left.
func TestVerify(t *testing.T) {
	drivertest.Need(t, "root")
	for _, want := range []string{": sleep 1000", nameless} {
		t.Setenv(verifyEnv, want)
		e := start(t, "/")
		e.stdin.Close()
		e.wait(t)
		if got := e.cmd.ProcessState.ExitCode(); got != 1 || !strings.Contains(e.stderr.String(), want) {
			t.Errorf("exit code %d, want 1; stderr %q, want %q", got, &e.stderr, want)
		}
	}
}

// An enclosure has no copies of the mounts of Milkweed, and has copies of others.
func TestMountsOfOthers(t *testing.T) {
	drivertest.Need(t, "root")
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	for kind, c := range map[string]struct {
		options string
		want    bool
	}{
		fs.Type: {fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device.Fd()), false},
		"tmpfs": {"size=4096", true},
	} {
		point, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("none", point, kind, 0, c.options); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(point, unix.MNT_DETACH)
		e := start(t, point)
		if e.mounted != c.want {
			t.Errorf("a mount of type %s is in the enclosure: %v, want %v", kind, e.mounted, c.want)
		}
		e.stdin.Close()
		e.wait(t)
	}
}
