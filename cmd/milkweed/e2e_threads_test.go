package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// asUserOfOne makes a user that has no other processes the owner of the site and the user of the commands, in
// what the words of wrapper make. The user has a name, which fusermount3 needs.
func (s *site) asUserOfOne(uid string, wrapper ...string) {
	s.t.Helper()
	drivertest.Need(s.t, "prlimit")
	s.inNamespace(fuseForAll+`
		cp /etc/passwd "$1/passwd"; echo "job:x:$2:$2::/:/bin/sh" >>"$1/passwd"; mount --bind "$1/passwd" /etc/passwd`, uid)
	s.wrapper = append(s.wrapper, wrapper...)
	s.giveTo(uid)
}

// withChildren begins a program in Python. use_up makes as many processes as the user may have, which wait, and
// end_children ends them.
const withChildren = `
import os, signal
pids = []
def use_up():
    try:
        while True:
            pid = os.fork()
            if pid == 0:
                signal.pause()
            pids.append(pid)
    except BlockingIOError:
        pass
def end_children():
    for pid in pids:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
`

// printed returns a function that waits for the next line of a job, and compares it with want.
func (s *site) printed(out io.Reader) (next func(want string)) {
	lines := bufio.NewScanner(out)
	return func(want string) {
		s.t.Helper()
		if !lines.Scan() || lines.Text() != want {
			s.t.Fatalf("the job printed %q, want %q; the log:\n%s", lines.Text(), want, s.logs())
		}
	}
}

// A job that makes as many processes as its user may have does not end the daemon, which needs threads.
func TestJobUsesUpProcesses(t *testing.T) {
	parallel(t)
	for _, mode := range []string{"cached", "stateless"} {
		t.Run(mode, func(t *testing.T) {
			s := newSite(t)
			varied(s)
			for i := range 4 {
				s.write("large"+string(rune('0'+i)), 8<<20)
			}
			s.asUserOfOne(map[string]string{"cached": "4000018", "stateless": "4000019"}[mode])
			s.wrapper = append(s.wrapper, "prlimit", "--nproc=600:600", "--")
			s.mountWith("mode="+mode, "16MiB", "64MiB")
			const job = withChildren + `import os, sys
use_up()
try:
    assert len(pids) > 50, len(pids)
    for epoch in range(2):
        for top, _, names in os.walk(sys.argv[1]):
            for name in names:
                path = os.path.join(top, name)
                with open(path, "rb") as a, open(os.path.join(sys.argv[2], os.path.relpath(path, sys.argv[1])), "rb") as b:
                    os.posix_fadvise(a.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    assert a.read() == b.read(), path
    print(len(pids), "children")
finally:
    end_children()
`
			if got := s.must(python, "-c", job, s.point, s.source); !strings.HasSuffix(got, "children\n") {
				t.Errorf("got %q", got)
			}
			s.settled()
			s.umount()
			s.wantNothing()
		})
	}
}

// In a container, with a job that makes as many processes as their user may have, the daemon lives. In a PID namespace
// it does not see other processes of this user, which count, too. The root of a user namespace is limited as well.
func TestThreadsInContainer(t *testing.T) {
	if testing.Short() {
		t.Skip("makes many processes")
	}
	parallel(t)
	pidNamespace := []string{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"}
	asRoot := []string{"unshare", "--user", "--map-root-user", "--"}
	for _, c := range []struct {
		name         string
		outer, inner []string // wrappers
		uid, others  string
	}{
		{"150 others", pidNamespace, nil, "4000022", "150"},
		{"280 others", pidNamespace, nil, "4000023", "280"},
		{"user namespaces", nil, append(asRoot, append(asRoot, "unshare", "--mount", "--")...), "4000024", "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			for i := range 100 {
				s.write(fmt.Sprintf("%03d", i), 100_000)
			}
			s.asUserOfOne(c.uid, c.outer...)
			hidden := s.command(python, "-c", withChildren+`
import sys
for _ in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        signal.pause()
print("ready", flush=True)
sys.stdin.read()
`, c.others)
			in, err := hidden.StdinPipe()
			s.check(err)
			out, err := hidden.StdoutPipe()
			s.check(err)
			s.check(hidden.Start())
			defer hidden.Wait()
			defer in.Close()
			s.printed(out)("ready")

			s.wrapper = append(append(s.wrapper, "prlimit", "--nproc=400:400", "--"), c.inner...)
			const job = withChildren + `
import concurrent.futures, subprocess, sys, threading
program, source, point, tier, *options = sys.argv[1:]
subprocess.run([program, "mount", *options, "--tier", "ssd:" + tier + ":64MiB", source, point], check=True)
def read(name):
    with open(point + "/" + name, "rb") as a, open(source + "/" + name, "rb") as b:
        os.posix_fadvise(a.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return a.read() == b.read()
names = os.listdir(source)
with concurrent.futures.ThreadPoolExecutor(20) as pool:
    together = threading.Barrier(20)
    list(pool.map(lambda _: together.wait(), range(20)))  # all threads are there
    use_up()
    print(all(pool.map(read, 3 * names)))
end_children()
subprocess.run([program, "umount", point], check=True)
`
			if got := s.must(python, "-c", job, s.program, s.source, s.point, s.tier(1), "-o", "mode=cached,clock_skew=0s"); got != "True\n" {
				t.Errorf("the job printed %q", got)
			}
		})
	}
}

// While 300 calls of a job that has used up the processes of its user hang in the source, the daemon lives:
// copies are read, and status, metrics and the log say that calls wait. When the user may have more
// processes, no call waits for others. All end when the source answers.
func TestThreadsWhileSourceHangs(t *testing.T) {
	parallel(t)
	s := newSite(t)
	for i := range 20 {
		s.write(fmt.Sprintf("placed/%03d", i), 20_000)
	}
	for i := range 300 {
		s.write(fmt.Sprintf("later/%03d", i), 5_000)
	}
	s.asUserOfOne("4000020")
	copied := s.source
	stop, resume := s.hangable()
	s.wrapper = append(s.wrapper, "prlimit", "--nproc=1200:1200", "--")
	s.mountWith("mode=cached,attr_timeout=10m", "64MiB")
	s.must(python, "-c", "import sys; [open(sys.argv[1] + '/placed/%03d' % i, 'rb').read() for i in range(20)]", s.point)
	s.settled()
	const job = withChildren + `import os, sys, threading, time
point, want, go = sys.argv[1:]
def same(path):
    with open(os.path.join(point, path), "rb") as a, open(os.path.join(want, path), "rb") as b:
        os.posix_fadvise(a.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert a.read() == b.read(), path
later = ["later/" + name for name in os.listdir(point + "/later")]
for name in later:
    os.stat(os.path.join(point, name))
print("ready", flush=True)
while not os.path.exists(go + "1"):
    time.sleep(0.01)
begin, good = threading.Event(), []
def read(path):
    begin.wait()
    same(path)
    good.append(path)
threads = [threading.Thread(target=read, args=(path,)) for path in later]
for t in threads:
    t.start()
use_up()
try:
    assert len(pids) > 10, len(pids)
    begin.set()
    while not os.path.exists(go + "2"):
        time.sleep(0.01)
    for i in range(20):
        same("placed/%03d" % i)
    print("copies", flush=True)
    while not os.path.exists(go + "3"):
        time.sleep(0.01)
finally:
    end_children()
for t in threads:
    t.join()
print(len(good), flush=True)
`
	cmd := s.command(python, "-c", job, s.point, copied, s.dir+"/go")
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	s.check(err)
	s.check(cmd.Start())
	next := s.printed(out)
	next("ready")
	stop()
	s.check(os.WriteFile(s.dir+"/go1", nil, 0o644))
	s.eventually("calls wait", func() bool { return s.status().WaitingCalls > 0 })
	s.check(os.WriteFile(s.dir+"/go2", nil, 0o644))
	next("copies")
	if !strings.Contains(s.get("/metrics"), "milkweed_calls_waiting ") {
		t.Error("the metrics do not say how many calls wait")
	}
	if !strings.Contains(s.logs(), "there may be no more threads") {
		t.Errorf("the log does not say that calls wait:\n%s", s.logs())
	}
	s.check(os.WriteFile(s.dir+"/go3", nil, 0o644))
	s.eventually("no call waits for others", func() bool { return s.status().WaitingCalls == 0 })
	resume()
	next("300")
	s.check(cmd.Wait())
	s.umount()
}

// While reads of large files hang in the source, no read takes more than one thread if there can be no more.
func TestThreadsOfLargeReads(t *testing.T) {
	parallel(t)
	s := newSite(t)
	for i := range 100 {
		s.write(fmt.Sprintf("%03d", i), 0)
		s.check(os.Truncate(fmt.Sprintf("%s/%03d", s.source, i), 1<<20))
	}
	s.asUserOfOne("4000021")
	stop, resume := s.hangable()
	s.wrapper = append(s.wrapper, "prlimit", "--nproc=1000:1000", "--")
	s.mountWith("mode=cached,attr_timeout=10m", "4KiB") // no file gets a copy
	const job = withChildren + `import mmap, os, sys, threading
files = [os.open(os.path.join(sys.argv[1], name), os.O_RDONLY | os.O_DIRECT) for name in sorted(os.listdir(sys.argv[1]))]
for f in files:
    assert os.preadv(f, [mmap.mmap(-1, 4096)], 0) == 4096
begin, good = threading.Event(), []
def read(f):
    begin.wait()
    if os.preadv(f, [mmap.mmap(-1, 1 << 20)], 0) == 1 << 20:
        good.append(f)
threads = [threading.Thread(target=read, args=(f,)) for f in files]
for t in threads:
    t.start()
use_up()
try:
    print("ready", flush=True)
    sys.stdin.readline()
    begin.set()
    sys.stdin.readline()
finally:
    end_children()
for t in threads:
    t.join()
print(len(good), flush=True)
`
	cmd := s.command(python, "-c", job, s.point)
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	s.check(err)
	out, err := cmd.StdoutPipe()
	s.check(err)
	s.check(cmd.Start())
	next := s.printed(out)
	step := func() {
		t.Helper()
		_, err := in.Write([]byte("\n"))
		s.check(err)
	}
	next("ready")
	stop()
	step()
	s.eventually("calls wait", func() bool { return s.status().WaitingCalls > 0 })
	step()
	resume()
	next("100")
	s.check(cmd.Wait())
	s.umount()
}
