package peertest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
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
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/dataset"
	"github.com/milkweedfs/milkweed/cmd/internal/lab"
	"github.com/milkweedfs/milkweed/cmd/internal/lab/enclosure"
	"github.com/milkweedfs/milkweed/cmd/internal/lab/netlab"
	"github.com/milkweedfs/milkweed/cmd/internal/reader"
	"github.com/milkweedfs/milkweed/cmd/internal/simpfs"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// Environment variables of the processes of the tests.
const (
	folderEnv  = "MILKWEED_TEST_FOLDER"  // the folder of the tests, on a tmpfs
	programEnv = "MILKWEED_TEST_PROGRAM" // the program without the race detector
	serveEnv   = "MILKWEED_TEST_SERVE"   // of a process that node.serve has started: the folder
)

// TestMain runs the tests in an enclosure, so that they leave nothing behind.
func TestMain(m *testing.M) {
	if folder := os.Getenv(serveEnv); folder != "" {
		fmt.Fprintln(os.Stderr, serveFolder(folder))
		os.Exit(1)
	}
	if program := os.Getenv(programEnv); program != "" { // started by package simpfs or reader
		fmt.Fprintln(os.Stderr, syscall.Exec(program, os.Args, os.Environ()))
		os.Exit(1)
	}
	if os.Geteuid() != 0 {
		os.Exit(m.Run()) // the tests skip
	}
	code, err := enclosure.Run("milkweed-peers-", func(folder string) (int, error) {
		err := errors.Join(
			unix.Mount("none", folder, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, ""),
			netlab.Hosts(folder),
			os.Setenv(folderEnv, folder))
		if err != nil {
			return 1, err
		}
		code := enclosure.Verify(m.Run())
		return code, lab.RemovePrograms()
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// raceEnv is the environment variable that gives the daemons the race detector, with the value 1. The
// packages that they are made of are tested with it; here it takes most of the time.
const raceEnv = "MILKWEED_TEST_RACE"

// programs returns the paths of the program: for the daemons with the race detector if raceEnv says so,
// and for the readers and the PFS without it.
var programs = sync.OnceValues(func() (p struct{ daemon, other string }, err error) {
	if p.other, err = lab.Program("cmd/milkweed", false); err != nil {
		return p, err
	}
	if p.daemon, err = lab.Program("cmd/milkweed", os.Getenv(raceEnv) == "1"); err != nil {
		return p, err
	}
	return p, os.Setenv(programEnv, p.other)
})

// A content is the files of a dataset in a folder.
type content struct {
	folder string
	files  []dataset.File
}

func (c content) size() int64 { return dataset.Size(c.files) }

var small = sync.OnceValues(func() (content, error) { return images("small", 600) })

// images makes files of 60 to 110 KB.
func images(name string, count int) (content, error) {
	var files []dataset.File
	for i := range count {
		files = append(files, dataset.File{Name: fmt.Sprintf("train/%d/%04d.jpg", i%6, i), Size: 60_000 + int64(i)*7919%50_000})
	}
	return write(name, files)
}

func write(name string, files []dataset.File) (content, error) {
	c := content{filepath.Join(os.Getenv(folderEnv), name), files}
	return c, dataset.Write(context.Background(), c.folder, c.files)
}

// A cluster is several nodes and the PFS that they share.
type cluster struct {
	t       testing.TB
	dir     string
	source  string // where the PFS is mounted
	network *netlab.Network
	pfs     *simpfs.PFS
	content content
	nodes   []*node
}

// A shape describes a cluster.
type shape struct {
	nodes   int
	content func() (content, error) // nil: small
	quota   float64                 // of the tier of each node, as a multiple of the size of the content; 0: everything fits
	source  simpfs.Speed            // of the PFS; with a bandwidth of 0, it is faster than the readers
	link    int64                   // bytes per second; 0: 400 MB/s
	network *netlab.Network         // nil: a new one
}

// newCluster makes a cluster. Nothing is mounted on its nodes yet.
func newCluster(t testing.TB, s shape) *cluster {
	t.Helper()
	drivertest.Need(t, "root", "/dev/fuse", "tc")
	_, err := programs()
	c := &cluster{t: t, network: s.network}
	c.check(err)
	if s.content == nil {
		s.content = small
	}
	c.content, err = s.content()
	c.check(err)
	c.dir, err = os.MkdirTemp(os.Getenv(folderEnv), "c")
	c.check(err)
	if c.network == nil {
		c.network, err = netlab.New(s.nodes, cmp.Or(s.link, 400e6))
		c.check(err)
		t.Cleanup(func() { c.network.Close() })
	}
	c.source = c.dir + "/" + filepath.Base(c.content.folder)
	c.check(os.Mkdir(c.source, 0o755))
	s.source.Direct = true // nodes do not share a page cache
	s.source.BytesPerSecond = cmp.Or(s.source.BytesPerSecond, 10e9)
	c.pfs, err = simpfs.Start(t.Context(), c.content.folder, c.source, s.source)
	c.check(err)
	t.Cleanup(c.remove)
	for i, host := range c.network.Nodes {
		n := &node{Node: host, c: c, dir: fmt.Sprintf("%s/%d", c.dir, i+1)}
		n.point, n.tier = n.dir+"/point", n.dir+"/tier"
		n.quota = int64(cmp.Or(s.quota, 1.1) * float64(c.content.size()))
		for _, name := range []string{"point", "tier", "run"} {
			c.check(os.MkdirAll(filepath.Join(n.dir, name), 0o700))
		}
		n.env = append(os.Environ(),
			control.FolderEnv+"="+n.dir+"/run", "XDG_STATE_HOME="+n.dir, "XDG_CACHE_HOME="+n.dir, "HOME="+n.dir,
			"MILKWEED_CONFIG=", lab.OpenTimeout, "GORACE=halt_on_error=1 "+lab.RaceOptions)
		c.nodes = append(c.nodes, n)
	}
	return c
}

// remove kills the daemons and removes everything.
func (c *cluster) remove() {
	for _, n := range c.nodes {
		for _, pid := range n.processes() {
			unix.Kill(pid, unix.SIGKILL)
		}
		for unix.Unmount(n.point, unix.MNT_DETACH) == nil {
		}
		log := n.log()
		if c.t.Failed() {
			c.t.Logf("log of %s:\n%s", n.Name, log[max(0, len(log)-4<<10):])
		}
		if strings.Contains(log, "DATA RACE") || strings.Contains(log, "panic:") {
			c.t.Errorf("log of %s:\n%s", n.Name, log)
		}
	}
	if err := errors.Join(c.pfs.Stop(), os.RemoveAll(c.dir)); err != nil {
		c.t.Error(err)
	}
}

func (c *cluster) check(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// each calls f with all nodes at the same time.
func (c *cluster) each(f func(*node) error) {
	c.t.Helper()
	var all errgroup.Group
	for _, n := range c.nodes {
		all.Go(func() error {
			if err := f(n); err != nil {
				return fmt.Errorf("%s: %w", n.Name, err)
			}
			return nil
		})
	}
	c.check(all.Wait())
}

// mount mounts the source on all nodes. args are further arguments of `milkweed mount`.
func (c *cluster) mount(args ...string) {
	c.t.Helper()
	c.each(func(n *node) error { return n.mount(args...) })
}

func (c *cluster) umount() {
	c.t.Helper()
	c.each((*node).umount)
}

// use returns what was requested from the PFS while f ran.
func (c *cluster) use(f func()) simpfs.Use {
	c.t.Helper()
	before, err := c.pfs.Use()
	c.check(err)
	f()
	after, err := c.pfs.Use()
	c.check(err)
	return after.Sub(before)
}

// wantSource checks the bytes that were read from the PFS, as a multiple of the dataset.
func (c *cluster) wantSource(what string, u simpfs.Use, least, most float64) {
	c.t.Helper()
	got := float64(u.Bytes) / float64(c.content.size())
	c.t.Logf("%s: source bytes / dataset = %.4f, %d opens", what, got, u.Opens)
	if got < least || got > most {
		c.t.Errorf("%s: the source was read %.4f times, want %g to %g", what, got, least, most)
	}
}

// epoch reads all files on all nodes at the same time, on each in an order of its own, and compares
// their content. It returns when no copy is in flight.
func (c *cluster) epoch(number int) {
	c.t.Helper()
	var jobs []*job
	for _, n := range c.nodes {
		jobs = append(jobs, n.start(number, 1))
	}
	for _, j := range jobs {
		j.want()
	}
	c.settle()
}

// settle waits until no copy is in flight.
func (c *cluster) settle() {
	c.t.Helper()
	for _, n := range c.nodes {
		c.eventually(n.Name+" makes no copy", func() bool {
			s := n.status()
			return s.Fills.InFlight == 0 && s.Fills.Unchecked == 0
		})
	}
}

// eventually waits until f returns true, and fails the test if that takes too long.
func (c *cluster) eventually(what string, f func() bool) {
	c.t.Helper()
	drivertest.Eventually(c.t, what, f)
}

// A node is a host with a mount.
type node struct {
	*netlab.Node
	c                *cluster
	dir, point, tier string
	quota            int64
	env              []string // of its processes
}

// run runs a command of the program on the node.
func (n *node) run(words ...string) (stdout string, err error) {
	p, err := programs()
	if err != nil {
		return "", err
	}
	err = n.Do(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, p.daemon, words...)
		cmd.Env, cmd.WaitDelay = n.env, time.Second
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("milkweed %s: %w\n%s", words[0], err, &errs)
		}
		stdout = out.String()
		return nil
	})
	return stdout, err
}

func (n *node) mount(args ...string) error {
	words := append([]string{"mount", "-o", "clock_skew=0s", "--tier", fmt.Sprintf("ram:%s:%d", n.tier, n.quota)}, args...)
	_, err := n.run(append(words, n.c.source, n.point)...)
	return err
}

func (n *node) umount() error {
	_, err := n.run("umount", n.point)
	return err
}

// status returns the status of the daemon.
func (n *node) status() control.Status {
	n.c.t.Helper()
	s, err := n.get()
	n.c.check(err)
	return s
}

// get requests the status from the control socket, without a process.
func (n *node) get() (s control.Status, err error) {
	sockets, err := filepath.Glob(n.dir + "/run/*.sock")
	if err != nil || len(sockets) != 1 {
		return s, fmt.Errorf("%s: sockets %q, %w", n.Name, sockets, err)
	}
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", sockets[0])
		},
	}}
	response, err := client.Get("http://milkweed/v1/status")
	if err != nil {
		return s, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return s, err
	}
	return control.DecodeStatus(data)
}

// processes lists the processes of the node. It recognizes them by their environment.
func (n *node) processes() (pids []int) {
	found, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range found {
		env, _ := os.ReadFile(file) // empty if it has ended
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && bytes.Contains(env, []byte(control.FolderEnv+"="+n.dir+"/run")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// log returns the log of the daemons of the node.
func (n *node) log() string {
	files, _ := filepath.Glob(n.dir + "/milkweed/*.log")
	var all strings.Builder
	for _, f := range files {
		data, _ := os.ReadFile(f)
		all.Write(data)
	}
	return all.String()
}

// A job is several processes that read all files on a node, each its share.
type job struct {
	node  *node
	group *reader.Group

	done   chan struct{} // closed when the following are set
	result reader.Result
	err    error
}

// start starts a job. The order of the files depends on the node and the number of the epoch.
func (n *node) start(epoch, readers int) *job {
	n.c.t.Helper()
	files := slices.Clone(n.c.content.files)
	rng := rand.New(rand.NewPCG(uint64(slices.Index(n.c.nodes, n)), uint64(epoch)))
	rng.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	j := &job{node: n, done: make(chan struct{})}
	n.c.check(n.Do(func() (err error) {
		j.group, err = reader.Start(context.Background(), readers, nil)
		return err
	}))
	go func() {
		defer close(j.done)
		defer j.group.Stop()
		j.result, j.err = j.group.DoSplit(reader.Task{Kind: reader.Epoch, Folder: n.point, Files: files}, nil)
	}()
	return j
}

// wait waits for the end of the job.
func (j *job) wait() (reader.Result, error) {
	<-j.done
	return j.result, j.err
}

// want checks that the job reads all files without an error and with the right content.
func (j *job) want() reader.Result {
	t := j.node.c.t
	t.Helper()
	r, err := j.wait()
	if err != nil || len(r.Wrong) > 0 || r.Files != int64(len(j.node.c.content.files)) {
		t.Errorf("%s: a job read %d of %d files: %v %q", j.node.Name, r.Files, len(j.node.c.content.files), err, r.Wrong)
	}
	return r
}

// Without peers, N nodes read the source N times. This test also shows that everything is counted.
func TestClusterWithoutPeers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster of daemons")
	}
	t.Parallel()
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, shape{nodes: n})
			c.mount()
			c.wantSource("epoch 1", c.use(func() { c.epoch(1) }), float64(n), float64(n))
			c.wantSource("epoch 2", c.use(func() { c.epoch(2) }), 0, 0)
			c.umount()
		})
	}
}
