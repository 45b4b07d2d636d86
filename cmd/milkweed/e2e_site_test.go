package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/lab"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// The tests in the files e2e_*_test.go build the program, run its commands, and read its mounts
// with ordinary programs.

// python is the interpreter of the Debian packages, which provide the libraries.
const python = "/usr/bin/python3"

// raceEnv is an environment variable. If it is set, all sites run the program with the race detector.
const raceEnv = "MILKWEED_TEST_RACE"

// program returns the path of the program. It has no race detector, which takes most of the time of
// many tests, unless raceEnv is set.
func program() (string, error) { return lab.Program("cmd/milkweed", os.Getenv(raceEnv) != "") }

// racingProgram returns the path of the program with the race detector, if the tests have it.
func racingProgram() (string, error) {
	return lab.Program("cmd/milkweed", drivertest.Race() || os.Getenv(raceEnv) != "")
}

// A site is a directory with everything that a mount needs.
type site struct {
	t       testing.TB
	program string
	dir     string      // has the following, the tiers, and the state of the program
	source  string      // the dataset
	point   string      // the mount point
	env     []string    // the environment of every command
	wrapper []string    // a command that runs the commands in another namespace or as another user
	table   string      // the mount table of the commands
	reader  *fileReader // of read; nil before the first call
	root    string      // the root directory of the commands, as a path of the tests; "" if it is theirs
}

// newSite makes a site. At the end of the test it kills the processes of the site, unmounts its
// mounts, and removes it. Tests with a site run in parallel.
func newSite(t testing.TB) *site {
	t.Helper()
	drivertest.Need(t, "root", "/dev/fuse", python)
	parallel(t)
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir: other users may not enter it, and its path is too long for a socket.
	dir, err := os.MkdirTemp("", "milkweed-")
	if err != nil {
		t.Fatal(err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, program: path, dir: dir, source: dir + "/source", point: dir + "/point", table: mounts.Self}
	t.Cleanup(s.remove)
	s.check(os.Chmod(dir, 0o755))
	for _, name := range []string{"source", "point", "run", "state", "cache"} {
		s.check(os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	s.check(os.Chmod(dir+"/run", 0o711))
	s.env = append(os.Environ(),
		control.FolderEnv+"="+dir+"/run", "XDG_STATE_HOME="+dir+"/state", "XDG_CACHE_HOME="+dir+"/cache", "HOME="+dir,
		lab.OpenTimeout,
		"MILKWEED_CONFIG=", // do not use that of the developer
		"GORACE=halt_on_error=1 "+lab.RaceOptions) // a data race ends the daemon
	return s
}

// isParallel has the tests that have called Parallel, which a test may do once.
var isParallel sync.Map

// parallel lets a test run in parallel with others. A benchmark runs alone.
func parallel(t testing.TB) {
	p, ok := t.(interface{ Parallel() })
	if !ok {
		return
	}
	if _, again := isParallel.LoadOrStore(t, true); again {
		return
	}
	t.Cleanup(func() { isParallel.Delete(t) })
	p.Parallel()
}

// sitesPerCPU is the number of tests that run in parallel on each CPU. Most of them wait most of the
// time.
const sitesPerCPU = 3

// detectRaces says whether a site runs racingProgram. Daemons that are killed do, some of the times:
// the tests of their packages do not have such an end.
func (s *site) detectRaces(on bool) {
	s.t.Helper()
	build := program
	if on {
		build = racingProgram
	}
	var err error
	s.program, err = build()
	s.check(err)
}

// remove kills the processes of the site, unmounts its mounts, and removes its directory.
func (s *site) remove() {
	if s.t.Failed() {
		s.t.Logf("logs of the daemons:\n%s", s.logs())
	}
	for _, pid := range s.processes() {
		unix.Kill(pid, unix.SIGKILL)
	}
	s.unmountAll()
	if left := s.mounts(); len(left) > 0 {
		s.t.Errorf("still mounted: %q", left) // removing files through a mount must not happen
		return
	}
	if logs := s.logs(); strings.Contains(logs, "DATA RACE") || strings.Contains(logs, "panic:") {
		s.t.Errorf("log of a daemon:\n%s", logs)
	}
	if err := os.RemoveAll(s.dir); err != nil {
		s.t.Error(err)
	}
}

// origin is a copy of the mount namespace of the tests, made before the first test. The namespaces of
// tests are copies of it. A copy of the namespace of the tests would have the mounts of tests that run
// in parallel: they would be in use after they were unmounted, and their daemons would not end.
var origin *os.File

// keepOrigin sets origin.
func keepOrigin() error {
	holder := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec cat")
	stdin, err := holder.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := holder.StdoutPipe()
	if err != nil {
		return err
	}
	if err := holder.Start(); err != nil {
		return err
	}
	if _, err = bufio.NewReader(stdout).ReadString('\n'); err == nil {
		origin, err = os.Open(fmt.Sprintf("/proc/%d/ns/mnt", holder.Process.Pid))
	}
	stdin.Close()
	return errors.Join(err, holder.Wait())
}

// inNamespace makes a mount namespace, in which the commands run from now on. It has no mounts of
// other sites. The shell script setup runs in it first; $1 is an empty directory, and args are $2 and
// so on. Mounts in the namespace are not visible outside, and the kernel removes them with the
// namespace.
func (s *site) inNamespace(setup string, args ...string) {
	s.t.Helper()
	drivertest.Need(s.t, "unshare", "nsenter")
	scratch := s.dir + "/scratch"
	s.check(os.Mkdir(scratch, 0o755))
	args = append([]string{scratch}, args...)
	// The cat keeps the namespace. It ends with the test, even if the test is killed.
	holder := exec.Command("nsenter", append([]string{fmt.Sprintf("--mount=/proc/%d/fd/%d", os.Getpid(), origin.Fd()), "--",
		"unshare", "--mount", "--propagation", "private",
		"sh", "-ec", setup + "\necho ready; exec cat", "sh"}, args...)...)
	stdin, err := holder.StdinPipe()
	s.check(err)
	stdout, err := holder.StdoutPipe()
	s.check(err)
	holder.Stderr = os.Stderr
	s.check(holder.Start())
	s.t.Cleanup(func() {
		s.table, s.root = mounts.Self, ""
		stdin.Close()
		holder.Wait()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		s.t.Fatalf("no namespace: %q, %v", line, err)
	}
	s.table, s.root = fmt.Sprintf("/proc/%d/mountinfo", holder.Process.Pid), fmt.Sprintf("/proc/%d/root", holder.Process.Pid)
	s.wrapper = []string{"nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", holder.Process.Pid), "--"}
}

// inNamespaceOf lets the commands run in the namespace of another site, which it has made by
// inNamespace.
func (s *site) inNamespaceOf(other *site) {
	s.t.Cleanup(func() { s.table, s.root = mounts.Self, "" })
	s.wrapper, s.table, s.root = other.wrapper, other.table, other.root
}

// nobody is the user ID of a user without privileges.
const nobody = "65534"

// asNobody makes nobody the user of the commands.
func (s *site) asNobody() { s.as(nobody) }

// as makes the user with an ID that of the commands.
func (s *site) as(uid string) {
	s.t.Helper()
	drivertest.Need(s.t, "setpriv")
	s.wrapper = append(s.wrapper, "setpriv", "--reuid="+uid, "--regid="+uid, "--clear-groups", "--")
}

// giveToNobody is giveTo for nobody.
func (s *site) giveToNobody() { s.giveTo(nobody) }

// giveTo makes a user the owner of the site and the user of the commands. Nothing may be mounted yet.
func (s *site) giveTo(uid string) {
	s.t.Helper()
	s.sh(`chown -R "$2:$2" "$1"`, s.dir, uid)
	s.as(uid)
}

// fuseForAll is a setup of inNamespace after which all users may open /dev/fuse, as in common
// distributions.
const fuseForAll = `mount -t tmpfs none "$1" && mknod -m 666 "$1/fuse" c 10 229 && mount --bind "$1/fuse" /dev/fuse`

// unmountAll detaches the mounts of the site, the last first.
func (s *site) unmountAll() {
	for _, point := range slices.Backward(s.mounts()) {
		unix.Unmount(point, unix.MNT_DETACH)
	}
}

func (s *site) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// logs returns the logs of the daemons: of a long one the beginning and the end.
func (s *site) logs() string {
	const most = 1 << 13 // of the beginning, which says why a program has crashed, and of the end
	files, _ := filepath.Glob(s.dir + "/state/milkweed/*.log")
	var all strings.Builder
	for _, f := range files {
		data, _ := os.ReadFile(f)
		if len(data) > 2*most {
			all.Write(data[:most])
			all.WriteString("\n...\n")
			data = data[len(data)-most:]
		}
		all.Write(data)
	}
	return all.String()
}

// mounts lists the mount points in the site, in the order of mounting, without the directory
// that inNamespace makes.
func (s *site) mounts() []string {
	table, err := mounts.Read(s.table)
	if err != nil {
		s.t.Error(err)
	}
	var points []string
	for _, m := range table {
		if strings.HasPrefix(m.Point, s.dir+"/") && m.Point != s.dir+"/scratch" {
			points = append(points, m.Point)
		}
	}
	return points
}

// processes lists the processes of the site. It recognizes them by their environment.
func (s *site) processes() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		s.t.Error(err)
	}
	var pids []int
	for _, e := range entries {
		env, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ")) // empty if it has ended
		if pid, err := strconv.Atoi(e.Name()); err == nil && bytes.Contains(env, []byte(control.FolderEnv+"="+s.dir+"/run")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// sockets lists the control sockets.
func (s *site) sockets() []string {
	found, _ := filepath.Glob(s.dir + "/run/*")
	return found
}

// wantNothing fails the test if a mount has left anything other than copies and logs.
func (s *site) wantNothing() {
	s.t.Helper()
	if left := s.mounts(); len(left) > 0 {
		s.t.Errorf("still mounted: %q", left)
	}
	if left := s.processes(); len(left) > 0 {
		s.t.Errorf("still running: %d", left)
	}
	if left := s.sockets(); len(left) > 0 {
		s.t.Errorf("left in the directory of the sockets: %q", left)
	}
	parts, _ := filepath.Glob(s.dir + "/tier*/*/incoming/*")
	if len(parts) > 0 {
		s.t.Errorf("left in incoming: %q", parts)
	}
}

// A result is the output and the exit code of a command.
type result struct {
	stdout, stderr string
	code           exit.Code // -1 if a signal ended it
}

// commandTimeout bounds a command. Only one that hangs reaches it, also on a busy machine.
const commandTimeout = 8 * time.Minute

// command returns a command that runs in the site. It is killed when the test ends.
func (s *site) command(words ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(s.t.Context(), commandTimeout)
	s.t.Cleanup(cancel)
	words = slices.Concat(s.wrapper, words)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env = s.env
	cmd.WaitDelay = 10 * time.Second // in case a daemon does not close the pipe
	return cmd
}

// run runs a command to its end.
func (s *site) run(words ...string) result {
	s.t.Helper()
	cmd := s.command(words...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if ended := (*exec.ExitError)(nil); err != nil && !errors.As(err, &ended) {
		s.t.Fatalf("%q: %v\n%s", words, err, &stderr)
	}
	return result{stdout.String(), stderr.String(), exit.Code(cmd.ProcessState.ExitCode())}
}

// must runs a command and returns its standard output. If the command fails, the test fails.
func (s *site) must(words ...string) string {
	s.t.Helper()
	r := s.run(words...)
	if r.code != exit.OK {
		s.t.Fatalf("%q: exit code %d\n%s%s", words, r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// sh runs a shell script, in which args are $1 and so on. It runs as root, in the namespace of
// the test.
func (s *site) sh(script string, args ...string) string {
	s.t.Helper()
	out, err := exec.Command("sh", append([]string{"-ec", script, "sh"}, args...)...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s %q: %v\n%s", script, args, err, out)
	}
	return string(out)
}

// milkweed runs the program. If it fails, the test fails.
func (s *site) milkweed(words ...string) string {
	s.t.Helper()
	return s.must(s.words(words)...)
}

// words returns the words of a command of the program. For a mount, the clock of the source is the
// local one, so that files that the test has just written are copied.
func (s *site) words(words []string) []string {
	if words[0] == "mount" {
		words = append([]string{"mount", "-o", "clock_skew=0s"}, words[1:]...)
	}
	return append([]string{s.program}, words...)
}

// try runs the program, which may fail.
func (s *site) try(words ...string) result {
	s.t.Helper()
	return s.run(s.words(words)...)
}

// tier returns the path of tier n. The first is 1.
func (s *site) tier(n int) string { return s.dir + "/tier" + strconv.Itoa(n) }

// dataset returns the directory of the dataset in tier n.
func (s *site) dataset(n int) string { return filepath.Join(s.tier(n), config.DatasetID(s.source)) }

// mountWords returns the arguments that mount the source with tiers of these quotas.
func (s *site) mountWords(quotas ...string) []string {
	words := []string{"mount"}
	for i, quota := range quotas {
		words = append(words, "--tier", fmt.Sprintf("tier%d:%s:%s", i+1, s.tier(i+1), quota))
	}
	return append(words, s.source, s.point)
}

// mount mounts the source with tiers of these quotas.
func (s *site) mount(quotas ...string) {
	s.t.Helper()
	s.milkweed(s.mountWords(quotas...)...)
}

func (s *site) umount() {
	s.t.Helper()
	s.milkweed("umount", s.point)
}

// emptyTiers removes all copies. Nothing may be mounted.
func (s *site) emptyTiers() {
	s.t.Helper()
	tiers, _ := filepath.Glob(s.dir + "/tier*")
	for _, tier := range tiers {
		s.check(os.RemoveAll(tier))
	}
}

// status returns the status of the mount. It is requested without the program, which takes 60 ms of
// CPU time with the race detector, because tests poll it.
func (s *site) status() control.Status {
	s.t.Helper()
	status, err := control.DecodeStatus([]byte(s.get("/v1/status")))
	s.check(err)
	return status
}

// get returns what the daemon of the only mount responds on its control socket.
func (s *site) get(path string) string {
	s.t.Helper()
	sockets, _ := filepath.Glob(s.dir + "/run/*.sock")
	if len(sockets) != 1 {
		s.t.Fatalf("sockets: %q, want one", sockets)
	}
	client := http.Client{Timeout: commandTimeout, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", sockets[0])
	}}}
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://milkweed" + path)
	s.check(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	s.check(err)
	return string(body)
}

// settled waits until no copy is in flight, and returns the status.
func (s *site) settled() control.Status {
	s.t.Helper()
	var status control.Status
	s.eventually("no copy is in flight", func() bool {
		status = s.status()
		return status.Fills.InFlight == 0 && status.Fills.Unchecked == 0
	})
	return status
}

// closed waits until no copy is in flight and no file is open, and returns the status. The kernel
// tells the daemon that a file was closed after close(2) has returned.
func (s *site) closed() control.Status {
	s.t.Helper()
	var status control.Status
	s.eventually("files are closed", func() bool {
		status = s.settled()
		return status.OpenHandles == 0
	})
	return status
}

// age waits until the times of the directories of the source are so old that a metadata snapshot
// proves by them what their names are. It stores to a tenth of a second when a directory was listed.
func (s *site) age() { time.Sleep(time.Second / 4) }

// eventually waits until f returns true, and fails the test if that takes too long.
func (s *site) eventually(what string, f func() bool) {
	s.t.Helper()
	drivertest.Eventually(s.t, what, f)
}

// write makes a file of the source. Its content depends on its name.
func (s *site) write(name string, size int) []byte {
	s.t.Helper()
	var seed [32]byte
	copy(seed[:], name)
	data := make([]byte, size)
	rand.NewChaCha8(seed).Read(data)
	path := filepath.Join(s.source, name)
	s.check(os.MkdirAll(filepath.Dir(path), 0o755))
	s.check(os.WriteFile(path, data, 0o644))
	return data
}

// files returns the sizes of the files below a directory.
func (s *site) files(dir string) map[string]int64 {
	s.t.Helper()
	sizes := make(map[string]int64)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path == dir {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		sizes[strings.TrimPrefix(path, dir+"/")] = info.Size()
		return nil
	})
	s.check(err)
	return sizes
}

func total(sizes map[string]int64) (sum int64) {
	for _, n := range sizes {
		sum += n
	}
	return sum
}

// script runs a Python script. If it fails, the test fails.
func (s *site) script(path string, args ...string) string {
	s.t.Helper()
	abs, err := filepath.Abs(path)
	s.check(err)
	return s.must(append([]string{python, "-B", abs}, args...)...)
}

// epoch reads the whole dataset in 4 processes and compares it with the source. The page cache
// serves none of the reads.
func (s *site) epoch(seed int) {
	s.t.Helper()
	s.script("testdata/epoch.py", s.source, s.point, "--seed", strconv.Itoa(seed))
}
