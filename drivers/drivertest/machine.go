package drivertest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// AllEnv is an environment variable. If it is set, no test may skip because this machine lacks something:
// `make check` sets it.
const AllEnv = "MILKWEED_TEST_ALL"

// Skipf skips a test because this machine lacks something, or fails it if AllEnv is set. .ci/gotest.sh
// reports the messages.
func Skipf(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv(AllEnv) == "" {
		t.Skipf("left out: "+format, args...)
	} else {
		t.Fatalf(format+"; "+AllEnv+" allows no skip", args...)
	}
}

// Need calls Skipf if this machine lacks one of the requirements of a test; see Lacks.
func Need(t testing.TB, what ...string) {
	t.Helper()
	for _, w := range what {
		if err := Lacks(w); err != nil {
			Skipf(t, "the test needs %s: %v", w, err)
		}
	}
}

// Disk makes a file system of 320 MiB, of which XFS needs 300, and returns the path where it is mounted until the end of
// the test. Mkfs is the program that makes it, such as mkfs.xfs, and its options.
func Disk(t testing.TB, mkfs ...string) string {
	t.Helper()
	Need(t, "root", mkfs[0], "losetup")
	dir := t.TempDir()
	point, image := filepath.Join(dir, "disk"), filepath.Join(dir, "image")
	t.Cleanup(func() { unix.Unmount(point, unix.MNT_DETACH) }) // EINVAL: it was not mounted
	for _, words := range [][]string{
		{"mkdir", point},
		{"truncate", "-s", "320M", image},
		append(slices.Clone(mkfs), image),
		{"mount", "-o", "loop", image, point},
	} {
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", words, err, out)
		}
	}
	return point
}

// Lacks returns nil if this machine meets a requirement: "root", an absolute path that exists, a
// program, or "python3-" and the name of a module of Debian's Python.
func Lacks(what string) (err error) {
	module, isModule := strings.CutPrefix(what, "python3-")
	switch {
	case what == "root":
		if os.Geteuid() != 0 {
			err = os.ErrPermission
		}
	case filepath.IsAbs(what):
		_, err = os.Stat(what)
	case isModule:
		err = exec.Command("/usr/bin/python3", "-c", "import importlib.util, sys; sys.exit(not importlib.util.find_spec(sys.argv[1]))", module).Run()
	default:
		_, err = Installed(what)
	}
	return err
}

// cache is the user's cache folder. It is read before a test can change HOME.
var cache, cacheErr = os.UserCacheDir()

// Installed returns the path of a program that .ci/deps.sh has installed in the user's cache folder,
// or that is in $PATH.
func Installed(program string) (path string, err error) {
	if cacheErr != nil {
		return "", cacheErr
	}
	return find(filepath.Join(cache, "milkweed-test"), program)
}

// find prefers a program in the folder bin of dir to one in $PATH.
func find(dir, program string) (path string, err error) {
	if path, err := exec.LookPath(filepath.Join(dir, "bin", program)); err == nil {
		return path, nil
	}
	if path, err = exec.LookPath(program); err != nil {
		return "", fmt.Errorf("%w; `make deps` installs what the tests need", err)
	}
	return path, nil
}

// eventually bounds Eventually. Only a condition that never holds reaches it, also on a machine that
// is busy with other work.
const eventually = time.Minute

// Eventually waits until a condition holds, and fails the test if it does not within a minute.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	pause := time.Millisecond
	for deadline := time.Now().Add(eventually); !holds(); time.Sleep(pause) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", eventually, what)
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
}

// WaitsIn reports whether a thread of a process waits in a function of the kernel whose name contains name.
// It needs root.
func WaitsIn(pid int, name string) bool {
	return slices.ContainsFunc(threads(pid, "wchan"), func(function string) bool { return strings.Contains(function, name) })
}

// Stop sends SIGSTOP to a process, and returns when all of its threads have stopped. At the end of the test
// it gets SIGCONT: a process that waits for its reply may not end before.
func Stop(t testing.TB, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Kill(pid, unix.SIGCONT) }) // ESRCH: it has ended
	Eventually(t, "all threads have stopped", func() bool {
		stats := threads(pid, "stat")
		return len(stats) > 0 && !slices.ContainsFunc(stats, func(stat string) bool {
			_, state, _ := strings.Cut(stat, ") ")
			return !strings.HasPrefix(state, "T")
		})
	})
}

// threads returns the contents of a file in /proc of each thread of a process. A thread that has ended has none.
func threads(pid int, name string) (contents []string) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/%s", pid, name))
	for _, file := range files {
		if content, err := os.ReadFile(file); err == nil {
			contents = append(contents, string(content))
		}
	}
	return contents
}

// A Buffer collects what concurrent calls of Write get, such as the lines of a log. The zero value is empty.
type Buffer struct {
	mu  sync.Mutex // guards the following
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String returns all that was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
