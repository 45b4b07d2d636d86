package fs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/posix"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/fs/fusectl"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/placement"
	"github.com/milkweedfs/milkweed/tiers"
)

// The tests in this file are about the start and the end of mounts, and about interrupted
// requests.

// A job whose read hangs at the source can be killed. Reads of other files do not hang.
func TestKilledReader(t *testing.T) {
	t.Parallel()
	for _, op := range []drivertest.Op{drivertest.OpRead, drivertest.OpOpen} {
		t.Run(string(op), func(t *testing.T) {
			t.Parallel()
			s := newStack(t, stackOptions{quotas: oneTier}, func(source string) {
				write(t, source, "hung", 3<<20, 1)
				write(t, source, "other", 3<<20, 2)
			})
			s.from.Add(drivertest.Rule{Op: op, Name: "hung", Hang: true})
			reader := exec.Command("cat", s.in("hung"))
			s.check(reader.Start())
			s.eventually("the source hangs", func() bool { return s.from.Hung() > 0 })
			sh(t, `cmp "$1" "$2"`, s.in("other"), filepath.Join(s.source, "other"))
			begin := time.Now()
			s.check(reader.Process.Kill())
			reader.Wait()
			if got := time.Since(begin); got > 30*time.Second {
				t.Errorf("the killed reader ended after %v, want 5 s", got)
			}
			sh(t, `cmp "$1" "$2"`, s.in("other"), filepath.Join(s.source, "other"))
			s.from.Clear()
			sh(t, `cmp "$1" "$2"`, s.in("hung"), filepath.Join(s.source, "hung"))
		})
	}
}

// A signal that the job catches does not end its request.
func TestSignalledReader(t *testing.T) {
	s := newStack(t, stackOptions{}, func(source string) { write(t, source, "f", 1000, 1) })
	s.from.Add(drivertest.Rule{Op: drivertest.OpOpen, Hang: true})
	reader := childCommand("hold", s.in("f"), "read")
	var out strings.Builder
	reader.Stdout = &out
	s.check(reader.Start())
	s.eventually("the source hangs", func() bool { return s.from.Hung() > 0 })
	for range 20 { // every Go program catches SIGURG
		s.check(reader.Process.Signal(syscall.SIGURG))
		time.Sleep(5 * time.Millisecond)
	}
	s.from.Clear()
	reader.Wait()
	if got, want := out.String(), "open\n"; got != want {
		t.Errorf("open by a job that got signals: got %q, want %q", got, want)
	}
}

// A mount with open files is not unmounted, but can be detached.
func TestUnmount(t *testing.T) {
	var data []byte
	s := newStack(t, stackOptions{quotas: oneTier}, func(source string) { data = write(t, source, "f", 3<<20, 1) })
	h := hold(t, s.in("f"))
	if err := s.mount.Unmount(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("unmount while a file is open: got %v, want EBUSY", err)
	}
	s.check(s.mount.Detach())
	if got := sh(t, `ls "$1"`, s.point); got != "" {
		t.Errorf("the mount is still visible: %s", got)
	}
	if got, want := h.read(2<<20, 100), hash(data[2<<20:][:100]); got != want {
		t.Errorf("read after detaching: got %s, want %s", got, want)
	}
	if err := s.mount.Unmount(); err == nil {
		t.Error("second unmount: got no error")
	}
	h.close()
	s.mount.Wait()
	if got := s.mount.OpenFiles(); got != 0 {
		t.Errorf("files open after the end: got %d, want 0", got)
	}
	s.shut()
}

// When an administrator aborts the connection, the mount ends and closes its files.
func TestAbort(t *testing.T) {
	s := newStack(t, stackOptions{quotas: oneTier}, func(source string) { write(t, source, "f", 3<<20, 1) })
	h := hold(t, s.in("f"))
	s.from.Add(drivertest.Rule{Op: drivertest.OpRead, Hang: true})
	s.abort()
	s.mount.Wait()
	if got := s.mount.OpenFiles(); got != 0 {
		t.Errorf("files open after the abort: got %d, want 0", got)
	}
	if got := h.read(1<<20, 100); !strings.Contains(got, "error") {
		t.Errorf("read after the abort: got %s, want an error", got)
	}
	h.close()
}

// abort aborts the connection of the mount. It skips the test if this process may not do so.
func (s *stack) abort() {
	s.t.Helper()
	err := s.control.Abort()
	if errors.Is(err, fusectl.ErrNone) {
		drivertest.Skipf(s.t, "%v", err)
	}
	s.check(err)
}

// A child process of the server does not inherit the connection, which it would keep alive after
// the server has ended.
func TestConnectionIsNotInherited(t *testing.T) {
	newStack(t, stackOptions{}, func(source string) {})
	if got := descriptorsOf("/dev/fuse"); len(got) == 0 {
		t.Fatal("this process has no connection")
	}
	if got := sh(t, `ls -l /proc/self/fd`); strings.Contains(got, "/dev/fuse") {
		t.Errorf("a child process has the connection:\n%s", got)
	}
}

// The error of a mount that fails has its cause, and no descriptor stays open.
func TestMountFails(t *testing.T) {
	s := newStack(t, stackOptions{}, func(source string) {})
	file := filepath.Join(s.dir, "file")
	s.check(os.WriteFile(file, nil, 0o644))
	for point, want := range map[string]error{filepath.Join(s.dir, "missing"): syscall.ENOENT, file: syscall.ENOTDIR} {
		before := descriptors()
		_, err := fs.New(s.names, s.handler, fs.Config{Point: point}, slog.New(slog.DiscardHandler))
		if !errors.Is(err, want) || !strings.Contains(err.Error(), point) {
			t.Errorf("mount %s: got %v, want %v", point, err, want)
		}
		if got := descriptors(); got > before {
			t.Errorf("open descriptors around a mount that failed: %d before, %d after", before, got)
		}
	}
}

// A user mounts, uses and unmounts without privileges, with fusermount3.
func TestMountAsUser(t *testing.T) {
	drivertest.Need(t, "root", "fusermount3") // all other tests mount as the user who runs them
	dir, err := os.MkdirTemp("", "milkweed")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Unmount(filepath.Join(dir, "mnt"), unix.MNT_DETACH)
		os.RemoveAll(dir)
	})
	write(t, dir, "source/f", 1000, 1)
	test := filepath.Join(dir, "test") // other users cannot access the folder of the test
	sh(t, `cp "$1" "$2" && mkdir "$3/mnt" && chmod -R a+rX "$3" && chown -R 65534 "$3"`, os.Args[0], test, dir)
	// A private mount namespace has a /dev/fuse that every user can open.
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c",
		`mknod -m 666 "$1/fuse" c 10 229 && mount --bind "$1/fuse" /dev/fuse &&
		exec setpriv --reuid 65534 --regid 65534 --clear-groups "$1/test" "$1"`, "sh", dir)
	cmd.Env = childCommand("serve").Env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// serveAsUser mounts the source in a folder, and runs processes that use the mount.
func serveAsUser(args []string) error {
	dir := args[0]
	log := slog.New(slog.DiscardHandler)
	source, err := posix.OpenDir(filepath.Join(dir, "source"))
	if err != nil {
		return err
	}
	levels, err := tiers.New(source, nil, tiers.Options{}, log)
	if err != nil {
		return err
	}
	names, err := metadata.New(context.Background(), levels, metadata.Options{TTL: time.Minute}, log)
	if err != nil {
		return err
	}
	files := placement.New(levels, names, placement.Config{Workers: 1}, log)
	mount := func() (*fs.Mount, error) {
		return fs.New(names, files, fs.Config{Point: filepath.Join(dir, "mnt"), Source: `a,b\c`, NegativeTTL: time.Minute}, log)
	}
	if _, err := fs.New(names, files, fs.Config{Point: "/", Source: "source"}, log); err == nil || !strings.Contains(err.Error(), "no write access") {
		return fmt.Errorf("mount on /: got %v, want what fusermount3 says", err)
	}
	m, err := mount()
	if err != nil {
		return err
	}
	if out, err := trySh(`cmp "$1"/mnt/f "$1"/source/f && grep -qF " $1/mnt ro," /proc/self/mountinfo && grep -qF ' - fuse.milkweed a,b\134c ' /proc/self/mountinfo`, dir); err != nil {
		return fmt.Errorf("use of the mount: %w: %s", err, out)
	}
	job := exec.Command("sh", "-c", `exec 3<"$1"/mnt/f && echo open && read line`, "sh", dir)
	in, err := job.StdinPipe()
	if err != nil {
		return err
	}
	out, err := job.StdoutPipe()
	if err != nil {
		return err
	}
	if err := job.Start(); err != nil {
		return err
	}
	if _, err := out.Read(make([]byte, 10)); err != nil {
		return err
	}
	if err := m.Unmount(); err == nil {
		return errors.New("unmount while a file is open: got no error")
	}
	if err := m.Detach(); err != nil {
		return err
	}
	in.Close()
	job.Wait()
	m.Wait()
	if m, err = mount(); err != nil {
		return err
	}
	err = m.Unmount()
	m.Wait()
	return err
}
