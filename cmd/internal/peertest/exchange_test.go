package peertest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/dataset"
	"github.com/milkweedfs/milkweed/placement"
	"github.com/milkweedfs/milkweed/placement/exchange"
	"github.com/milkweedfs/milkweed/tiers"
)

// A shuffler is a process of testdata/job.py: one rank of a job with partial local shuffling.
type shuffler struct {
	node  *node
	cmd   *exec.Cmd
	epoch io.WriteCloser
	out   *bufio.Reader
	errs  *os.File
}

// shuffle starts a rank of a job on the node. args are those of testdata/job.py.
func (n *node) shuffle(args ...string) *shuffler {
	n.c.t.Helper()
	cmd := exec.Command("/usr/bin/python3", slices.Concat([]string{"-B", "testdata/job.py", n.point, n.c.content.folder,
		"--nodes", strconv.Itoa(len(n.c.nodes)), "--node", strconv.Itoa(slices.Index(n.c.nodes, n))}, args)...)
	examples, err := filepath.Abs("../../../examples/pytorch")
	n.c.check(err)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // with the workers of the DataLoader
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "PYTHONPATH=" + examples, "PYTHONWARNINGS=error::RuntimeWarning", "HOME=" + n.dir}
	s := &shuffler{node: n, cmd: cmd}
	s.errs, err = os.CreateTemp(n.dir, "job")
	n.c.check(err)
	cmd.Stderr = s.errs
	s.epoch, err = cmd.StdinPipe()
	n.c.check(err)
	out, err := cmd.StdoutPipe()
	n.c.check(err)
	s.out = bufio.NewReader(out)
	n.c.check(n.Do(cmd.Start))
	n.c.t.Cleanup(s.kill)
	return s
}

// kill ends the process and its workers. One that has just started would not notice the end of the process.
func (s *shuffler) kill() {
	if s.cmd.ProcessState == nil { // otherwise the process group may be another one by now
		unix.Kill(-s.cmd.Process.Pid, unix.SIGKILL)
	}
	s.cmd.Wait()
	s.errs.Close()
}

// line returns a line of output. If the job has failed, it returns "".
func (s *shuffler) line() string {
	text, _ := s.out.ReadString('\n')
	return text
}

// begin begins an epoch. The caller calls want.
func (s *shuffler) begin(epoch int) { fmt.Fprintln(s.epoch, epoch) }

// A result is what a rank has read in an epoch.
type result struct {
	Samples     []int   `json:"samples"`
	Utilisation float64 `json:"utilisation"` // of the emulated accelerator
}

// want returns the result of the epoch.
func (s *shuffler) want() (r result) {
	s.node.c.t.Helper()
	text := s.line()
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		errs, _ := os.ReadFile(s.errs.Name())
		s.node.c.t.Errorf("%s: a job has failed: %v %q\n%s", s.node.Name, err, text, errs)
	}
	return r
}

// wantReady waits until the job has started.
func (s *shuffler) wantReady() {
	s.node.c.t.Helper()
	if got := s.line(); got != "ready\n" {
		errs, _ := os.ReadFile(s.errs.Name())
		s.node.c.t.Fatalf("%s: a job does not start: %q\n%s", s.node.Name, got, errs)
	}
}

// An exchangers is a cluster with jobs that exchange files.
type exchangers struct {
	*cluster
	fraction float64
	ranks    int // on each node
	jobs     map[*node][]*shuffler
	names    []string
	sizes    []int64
	plan     *exchange.Plan
}

// exchange mounts the dataset on all nodes, and starts the ranks of a job.
func (c *cluster) exchange(fraction float64, ranks int) *exchangers {
	c.t.Helper()
	x := &exchangers{cluster: c, fraction: fraction, ranks: ranks, jobs: make(map[*node][]*shuffler)}
	files := slices.Clone(c.content.files)
	slices.SortFunc(files, func(a, b dataset.File) int { return strings.Compare(a.Name, b.Name) })
	for _, f := range files {
		x.names, x.sizes = append(x.names, f.Name), append(x.sizes, f.Size)
	}
	var err error
	x.plan, err = exchange.New(exchange.Config{Files: len(files), Nodes: len(c.nodes), Seed: 1, Fraction: fraction})
	c.check(err)
	c.mount(c.peers()...)
	x.startJobs(c.nodes...)
	return x
}

// startJobs starts the ranks of the job on some nodes.
func (x *exchangers) startJobs(nodes ...*node) {
	x.t.Helper()
	for _, n := range nodes {
		x.jobs[n] = nil
		for rank := range x.ranks {
			x.jobs[n] = append(x.jobs[n], n.shuffle("--q", fmt.Sprint(x.fraction), "--ranks", strconv.Itoa(x.ranks), "--rank", strconv.Itoa(rank)))
		}
	}
	for _, n := range nodes {
		for _, s := range x.jobs[n] {
			s.wantReady()
		}
	}
}

// at returns an epoch of the plan.
func (x *exchangers) at(epoch int) *exchange.Epoch {
	e := x.plan.Start()
	for e.Number() < epoch {
		e.Advance()
	}
	return e
}

// run lets the jobs of some nodes read an epoch. during is called when they have begun.
func (x *exchangers) run(epoch int, during func(), nodes ...*node) {
	x.t.Helper()
	for _, n := range nodes {
		for _, s := range x.jobs[n] {
			s.begin(epoch)
		}
	}
	if during != nil {
		during()
	}
	times := make([]int, len(x.names))
	for _, n := range nodes {
		for _, s := range x.jobs[n] {
			for _, index := range s.want().Samples {
				times[index]++
			}
		}
	}
	e := x.at(epoch)
	for file, got := range times {
		want := 0
		if slices.Contains(nodes, x.nodes[e.Holder(file)]) {
			want = 1
		}
		if got != want {
			x.t.Fatalf("epoch %d: sample %d was read %d times, want %d", epoch, file, got, want)
		}
	}
}

// arrived waits until the files of the next epoch have arrived on some nodes, and those that were given
// away are dropped.
func (x *exchangers) arrived(epoch int, nodes ...*node) {
	x.t.Helper()
	for _, n := range nodes {
		var s placement.ExchangeStats
		x.eventually(n.Name+" has the files of the next epoch", func() bool {
			s = n.status().Exchange
			return s.Epoch == int64(epoch) && s.Complete && s.ArrivedFiles == s.IncomingFiles && s.GivenFiles == 0
		})
	}
}

// moved returns the bytes that move before the epoch after an epoch. A node that gets back what it held
// one epoch before still has it.
func (x *exchangers) moved(epoch int) (bytes int64) {
	now, next := x.at(epoch), x.at(epoch+1)
	for file, size := range x.sizes {
		to := next.Holder(file)
		if to != now.Holder(file) && (epoch == 0 || x.at(epoch-1).Holder(file) != to) {
			bytes += size
		}
	}
	return bytes
}

// received returns what all nodes have read from others.
func (x *exchangers) received() (bytes int64) {
	for _, n := range x.nodes {
		bytes += n.counts().Bytes
	}
	return bytes
}

// Jobs of PyTorch on four nodes, with two ranks each. Each sample is read once in each epoch, the source
// serves each byte once, and what moves is what the plan says.
func TestClusterExchanges(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster of daemons")
	}
	t.Parallel()
	content := small
	if long() {
		content = many
	}
	c := newCluster(t, shape{nodes: 4, content: content})
	x := c.exchange(0.3, 2)
	for epoch := range 5 {
		before := x.received()
		u := x.use(func() {
			x.run(epoch, nil, x.nodes...)
			x.arrived(epoch, x.nodes...)
		})
		if epoch == 0 {
			x.wantSource("epoch 0", u, 1, once)
		} else if u.Bytes != 0 {
			t.Errorf("epoch %d: %d bytes were read from the source", epoch, u.Bytes)
		}
		got, want := x.received()-before, x.moved(epoch)
		t.Logf("epoch %d: %d bytes moved, %.4f of the dataset; global shuffling moves 0.75", epoch, got, float64(got)/float64(x.content.size()))
		if got != want {
			t.Errorf("epoch %d: %d bytes were read from other nodes, want %d", epoch, got, want)
		}
		now, next := x.at(epoch), x.at(epoch+1)
		for i, n := range x.nodes {
			var held int64
			for file, size := range x.sizes {
				if now.Holder(file) == i || next.Holder(file) == i {
					held += tiers.Allocated(size)
				}
			}
			if s := n.status(); s.Tiers[0].UsedBytes != held || s.Exchange.Room != held || s.Exchange.DroppedForRoom != 0 {
				t.Errorf("epoch %d: %s uses %d bytes, want %d: %+v", epoch, n.Name, s.Tiers[0].UsedBytes, held, s.Exchange)
			}
		}
	}
	x.umount()
}

// A node is killed with its job in each phase, and both start again from that epoch, with the copies or
// without. The jobs of the other nodes see no error, and none loses a sample.
func TestClusterExchangeLosesANode(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster of daemons")
	}
	t.Parallel()
	c := newCluster(t, shape{nodes: 4, content: small})
	x := c.exchange(0.5, 1)
	lost := x.nodes[2]
	others := slices.DeleteFunc(slices.Clone(x.nodes), func(n *node) bool { return n == lost })
	x.run(0, nil, x.nodes...)
	x.arrived(0, x.nodes...)
	args := c.peers()
	for i, phase := range []struct {
		name string
		wait func(epoch int)
		cold bool
	}{
		{"while it gets files, warm", func(int) {}, false},
		{"while it gets files, cold", func(int) {}, true},
		{"before the others have dropped what they gave it, warm", func(epoch int) {
			x.eventually("the epoch begins", func() bool { return lost.status().Exchange.Epoch == int64(epoch) })
		}, false},
		{"after that, warm", func(epoch int) { x.arrived(epoch, lost) }, false},
		{"after that, cold", func(epoch int) { x.arrived(epoch, lost) }, true},
	} {
		epoch := i + 1
		t.Log(phase.name)
		for _, s := range x.jobs[lost] {
			s.begin(epoch)
		}
		x.run(epoch, func() {
			phase.wait(epoch)
			lost.signal(unix.SIGKILL)
			for _, s := range x.jobs[lost] {
				s.kill()
			}
			x.eventually("the daemon has ended", func() bool { return len(lost.processes()) == 0 })
			c.check(unix.Unmount(lost.point, unix.MNT_DETACH))
		}, others...)
		if phase.cold {
			lost.empty()
		}
		c.check(lost.mount(args...))
		x.startJobs(lost)
		u := x.use(func() {
			x.run(epoch, nil, lost)
			x.arrived(epoch, x.nodes...)
		})
		t.Logf("%s: epoch %d again on this node cost %.3f of the dataset from the source", phase.name, epoch, float64(u.Bytes)/float64(x.content.size()))
	}
	u := x.use(func() {
		x.run(6, nil, x.nodes...)
		x.arrived(6, x.nodes...)
	})
	if u.Bytes != 0 {
		t.Errorf("when all are well again, %d bytes were read from the source", u.Bytes)
	}
	x.umount()
}

// A job starts again from a checkpoint with fewer nodes.
func TestClusterExchangeOfAnotherRoster(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster of daemons")
	}
	t.Parallel()
	c := newCluster(t, shape{nodes: 4, content: small})
	x := c.exchange(0.3, 1)
	for epoch := range 2 {
		x.run(epoch, nil, x.nodes...)
		x.arrived(epoch, x.nodes...)
	}
	for _, n := range x.nodes {
		for _, s := range x.jobs[n] {
			s.kill()
		}
	}
	x.umount()
	all := c.nodes
	c.nodes = c.nodes[:3]
	fewer := c.exchange(0.3, 1)
	u := fewer.use(func() {
		fewer.run(2, nil, c.nodes...)
		fewer.arrived(2, c.nodes...)
	})
	t.Logf("%.3f of the dataset was read from the source", float64(u.Bytes)/float64(c.content.size()))
	if u.Bytes == 0 || u.Bytes > c.content.size() {
		t.Errorf("%d bytes were read from the source", u.Bytes)
	}
	u = fewer.use(func() {
		fewer.run(3, nil, c.nodes...)
		fewer.arrived(3, c.nodes...)
	})
	if u.Bytes != 0 {
		t.Errorf("epoch 3: %d bytes were read from the source", u.Bytes)
	}
	fewer.umount()
	c.nodes = all
}
