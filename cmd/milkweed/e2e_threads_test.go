package main

import (
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// asUserOfOne makes a user that has no other processes the owner of the site and the user of the commands.
// The user has a name, which fusermount3 needs.
func (s *site) asUserOfOne(uid string) {
	s.t.Helper()
	drivertest.Need(s.t, "prlimit")
	s.inNamespace(fuseForAll+`
		cp /etc/passwd "$1/passwd"; echo "job:x:$2:$2::/:/bin/sh" >>"$1/passwd"; mount --bind "$1/passwd" /etc/passwd`, uid)
	s.giveTo(uid)
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
			const job = `import os, signal, sys
pids = []
try:
    while True:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        pids.append(pid)
except BlockingIOError:
    pass
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
    for pid in pids:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
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
