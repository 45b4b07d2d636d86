package main

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/fs"
)

// The parts of a memory plan leave room for the kernel, and a small limit leaves no room for tiers
// in memory.
func TestMemoryPlan(t *testing.T) {
	for _, limit := range []int64{64 << 20, 100 << 20, 128 << 20, 1 << 30, 64 << 30} {
		for _, hasRAM := range []bool{false, true} {
			p := planMemory(limit, hasRAM)
			if p.heap < 32<<20 || p.heap+p.ram > limit*3/4 || p.workers < 1 || int64(p.workers)*3<<20+int64(p.reads*p.request)+p.ahead > p.heap || p.ahead < 4<<20 {
				t.Errorf("limit %d MiB: %+v", limit>>20, p)
			}
		}
	}
	if p := planMemory(math.MaxInt64, true); p.workers < 1<<20 || p.heap != math.MaxInt64 || p.reads != fs.MaxBackground || p.ahead != readAhead {
		t.Errorf("no limit: %+v", p)
	}
}

// A configuration is adapted to the limit, and a small one is refused.
func TestBoundMemory(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	c := config.Default()
	c.Placement.Workers = 64
	c.Tiers = []config.Tier{
		{Name: "ram", Path: "/dev/shm/milkweed-test-absent", Quota: config.Quota{Bytes: 1 << 40}},
		{Name: "ssd", Path: t.TempDir(), Quota: config.Quota{Bytes: 1 << 40}},
	}
	log := slog.New(slog.DiscardHandler)
	if p, err := boundMemory(&c, 256<<20, log); err != nil || p.request != smallRequests || p.reads*p.request > 16<<20 {
		t.Fatal(p, err)
	}
	if c.Placement.Workers != 8 || c.Tiers[0].Quota.Bytes != 128<<20 || c.Tiers[1].Quota.Bytes != 1<<40 {
		t.Errorf("got %d workers and the tiers %+v", c.Placement.Workers, c.Tiers)
	}
	if got := debug.SetMemoryLimit(-1); got != 64<<20 {
		t.Errorf("the heap has a limit of %d bytes", got)
	}
	if _, err := boundMemory(&c, 32<<20, log); exit.Of(err) != exit.Fuse {
		t.Errorf("32 MiB: got %v", err)
	}
}

// Check says that a mount will be refused, and of which tiers in memory it uses less than the quota.
func TestCheckMemory(t *testing.T) {
	c := config.Default()
	c.Tiers = []config.Tier{
		{Name: "ram", Path: "/dev/shm/milkweed-test-absent", Quota: config.Quota{Bytes: 1 << 40}},
		{Name: "small", Path: "/dev/shm/milkweed-test-absent2", Quota: config.Quota{Bytes: 1 << 20}},
		{Name: "ssd", Path: t.TempDir(), Quota: config.Quota{Bytes: 1 << 40}},
	}
	got := checkMemory(&c, 1<<30)
	if want := "the quota is 1TiB, and a mount uses 256 MiB: copies in memory are part of the 1.0 GiB of memory that the control group permits"; len(got) != 1 || got[0].Name != "tier ram" || got[0].Status != check.Warning || got[0].Detail != want {
		t.Errorf("got %+v, want %q", got, want)
	}
	if c.Tiers[0].Quota.Bytes != 1<<40 {
		t.Error("the configuration is changed")
	}
	if got := checkMemory(&c, math.MaxInt64); len(got) != 0 {
		t.Errorf("without a limit: %+v", got)
	}
	if err := check.First(checkMemory(&c, 32<<20)); exit.Of(err) != exit.Fuse {
		t.Errorf("32 MiB: %v", err)
	}
}

// Check examines the control group that it is in.
func TestCheckMemoryGroup(t *testing.T) {
	s := newSite(t)
	s.write("f", 1)
	s.memoryGroup("200M")
	if got, want := s.milkweed("check", "--tier", "ram:/dev/shm/milkweed-test-absent:1GiB", s.source), "the quota is 1GiB, and a mount uses 100 MiB"; !strings.Contains(got, want) {
		t.Errorf("no %q in\n%s", want, got)
	}
}

// memoryGroup makes a control group with a memory limit for the commands of a site, and returns the
// function that counts processes that were killed for exceeding it.
func (s *site) memoryGroup(limit string) (kills func() string) {
	s.t.Helper()
	const v1 = "/sys/fs/cgroup/memory"
	dir, limitFile, count := filepath.Join("/sys/fs/cgroup", filepath.Base(s.dir)), "memory.max", "memory.events"
	if drivertest.Lacks(v1) == nil {
		dir, limitFile, count = filepath.Join(v1, filepath.Base(s.dir)), "memory.limit_in_bytes", "memory.oom_control"
	}
	if os.Mkdir(dir, 0o755) != nil || os.WriteFile(filepath.Join(dir, limitFile), []byte(limit), 0o644) != nil {
		os.Remove(dir)
		drivertest.Skipf(s.t, "the test needs a control group with a memory limit")
	}
	s.t.Cleanup(func() { os.Remove(dir) })
	s.wrapper = []string{"sh", "-ec", `echo $$ > "$0/cgroup.procs"; exec "$@"`, dir}
	return func() string {
		data, err := os.ReadFile(filepath.Join(dir, count))
		s.check(err)
		for line := range strings.Lines(string(data)) {
			if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
				return strings.TrimSpace(n)
			}
		}
		return "unknown"
	}
}

// In the smallest control group that is accepted, many readers do not make the daemon exceed its
// limit.
func TestMemoryGroup(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole epochs")
	}
	s := newSite(t)
	for i := range 32 {
		s.write(fmt.Sprintf("f%02d", i), 4<<20)
	}
	limit := "64M"
	if os.Getenv(raceEnv) != "" { // its memory is not that of the Go heap
		limit = "512M"
	}
	kills := s.memoryGroup(limit)
	s.mount("1GiB")
	s.wrapper = nil
	s.sh(`cd "$1" && ls | xargs -P 32 -I{} cmp {} "$2/{}"`, s.source, s.point)
	if got := kills(); got != "0" {
		t.Errorf("%s processes were killed", got)
	}
	s.umount()
	s.wantNothing()
}

// The daemon has at least minThreads threads, but not if a control group limits its CPUs.
func TestThreads(t *testing.T) {
	for _, c := range []struct{ n, cpus, want int }{
		{1, 1, minThreads}, {2, 2, minThreads}, {64, 64, 64}, {2, 64, 2}, {16, 64, 16},
	} {
		if got := threads(c.n, c.cpus); got != c.want {
			t.Errorf("threads(%d, %d) = %d, want %d", c.n, c.cpus, got, c.want)
		}
	}
}

// Hidden threads are counted again if there are not enough: other daemons have started while they were counted.
func TestThreadsAreCountedAgain(t *testing.T) {
	drivertest.Need(t, "root")
	cmd, stderr := command("reserve threads")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4000026, Gid: 4000026}}
	if err := cmd.Run(); err != nil {
		t.Errorf("%v\n%s", err, stderr)
	}
}

// playReserve makes 100 threads, although the first count has left 10. It returns the exit code.
func playReserve() int {
	if isCounting() {
		return 0
	}
	err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: 1000, Max: 1000})
	before := threadsNow()
	left, _ := config.UserThreads(os.Getpid())
	r := &threadReserve{log: slog.New(slog.DiscardHandler), hidden: left - check.SpareThreads - 10, counted: time.Now()}
	r.reserve(before + 100)
	if made := threadsNow() - before; err != nil || made < 100 {
		fmt.Fprintf(os.Stderr, "%d threads were made, want 100; %v\n", made, err)
		return 1
	}
	return 0
}

// makeThreads makes threads while there is room, and they stay.
func TestMakeThreads(t *testing.T) {
	before := threadsNow()
	if made := makeThreads(20, func() int { return 0 }); made != 0 {
		t.Errorf("%d threads were made without room", made)
	}
	left := 10
	room := func() int { return min(4, left-(threadsNow()-before)) }
	makeThreads(20, room)
	if made := threadsNow() - before; made < 10 || made >= 20 {
		t.Errorf("%d threads were made with room for 10", made)
	}
	left = 1000
	now := threadsNow()
	if made := makeThreads(20, room); made != 20 || threadsNow() < now+20 {
		t.Errorf("%d threads were made, and there are %d, want 20 more than %d", made, threadsNow(), now)
	}
}
