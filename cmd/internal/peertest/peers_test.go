package peertest

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/dataset"
	"github.com/milkweedfs/milkweed/cmd/internal/simpfs"
	"github.com/milkweedfs/milkweed/drivers/peer/roster"
	"github.com/milkweedfs/milkweed/placement"
)

// once is the most that several nodes may read of the source, as a multiple of the dataset.
const once = 1.02

// longEnv makes the tests longer: with any value, TestClusterLosesANode and TestClusterIsPartitioned do what
// docs/reliability.md describes, and not what `make check` has time for.
const longEnv = "MILKWEED_TEST_LONG"

func long() bool { return os.Getenv(longEnv) != "" }

// twin has the names, sizes and times of small, and other bytes.
var twin = sync.OnceValues(func() (content, error) {
	original, err := small()
	if err != nil {
		return content{}, err
	}
	c := content{filepath.Join(os.Getenv(folderEnv), "twin"), slices.Clone(original.files)}
	for i := range c.files {
		info, err := os.Stat(filepath.Join(original.folder, c.files[i].Name))
		if err != nil {
			return c, err
		}
		err = errors.Join(
			c.files[i].Write(c.folder, uint64(1000+i)),
			os.Chtimes(filepath.Join(c.folder, c.files[i].Name), info.ModTime(), info.ModTime()))
		if err != nil {
			return c, err
		}
	}
	return c, nil
})

// large has files of many blocks.
var large = sync.OnceValues(func() (content, error) { return tfrecords("large", 6, 16<<20) })

func tfrecords(name string, count int, size int64) (content, error) {
	var files []dataset.File
	for i := range count {
		files = append(files, dataset.File{Name: fmt.Sprintf("%d.tfrecord", i), Size: size + int64(i)})
	}
	return write(name, files)
}

// single has one file, of which each of two nodes owns a piece, and a short piece.
var single = sync.OnceValues(func() (content, error) {
	nodes, err := roster.Parse("node[1-2]", 0)
	if err != nil {
		return content{}, err
	}
	r, err := roster.New(nodes)
	if err != nil {
		return content{}, err
	}
	const size = 2*placement.PieceSize + 12_345
	for i := 0; ; i++ {
		name := fmt.Sprintf("%d.tfrecord", i)
		owners := make(map[int]bool)
		for piece := range 2 {
			owners[r.Owners(fmt.Sprintf("%s\x00%d.%d", name, piece, size), 1)[0]] = true
		}
		if len(owners) == 2 {
			return write("single", []dataset.File{{Name: name, Size: size}})
		}
	}
})

// peers returns the arguments of `milkweed mount` that make the nodes share their tiers.
func (c *cluster) peers() []string {
	c.t.Helper()
	var names []string
	for _, n := range c.nodes {
		names = append(names, n.Name)
	}
	return []string{"--peers", strings.Join(names, ","), "--peers-secret", c.secret("secret")}
}

// secret returns the path of a file with a secret, a different one for each name.
func (c *cluster) secret(name string) string {
	c.t.Helper()
	file := filepath.Join(c.dir, name)
	if _, err := os.Stat(file); err == nil {
		return file
	}
	p, err := programs()
	c.check(err)
	key, err := exec.Command(p.other, "peers", "keygen").Output()
	c.check(err)
	c.check(os.WriteFile(file, key, 0o600))
	return file
}

// listen listens on a TCP port of the node.
func (n *node) listen(address string) (l net.Listener, err error) {
	err = n.Do(func() error {
		l, err = net.Listen("tcp", address)
		return err
	})
	return l, err
}

// signal sends a signal to the daemon.
func (n *node) signal(s syscall.Signal) {
	n.c.t.Helper()
	for _, pid := range n.processes() {
		n.c.check(unix.Kill(pid, s))
	}
}

// kill kills the daemon and removes its mount.
func (n *node) kill() {
	n.c.t.Helper()
	n.signal(unix.SIGKILL)
	n.c.eventually("the daemon has ended", func() bool { return len(n.processes()) == 0 })
	n.c.check(unix.Unmount(n.point, unix.MNT_DETACH))
}

// counts returns what the node has read from other nodes and for them.
func (n *node) counts() control.Peers {
	n.c.t.Helper()
	s := n.status()
	if s.Peers == nil {
		n.c.t.Fatalf("%s has no peers", n.Name)
	}
	return *s.Peers
}

// All nodes read all files at the same time in different orders, and the source serves each byte
// once.
func TestClusterReadsTheSourceOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster of daemons")
	}
	t.Parallel()
	for _, test := range []struct {
		nodes   int
		name    string
		content func() (content, error)
	}{{2, "small", small}, {4, "small", small}, {8, "small", small}, {4, "large", large}} {
		t.Run(fmt.Sprintf("%d nodes, %s files", test.nodes, test.name), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, shape{nodes: test.nodes, content: test.content})
			c.mount(c.peers()...)
			c.wantSource("epoch 1", c.use(func() { c.epoch(1) }), 1, once)
			c.umount()
		})
	}
}

// One large file is owned in pieces: the source serves each byte once, and each node reads a part of it
// and serves that to the others. After a restart, the pieces are still there.
func TestClusterSharesOneFile(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster of daemons")
	}
	t.Parallel()
	c := newCluster(t, shape{nodes: 2, content: single, quota: 0.6})
	c.mount(c.peers()...)
	c.wantSource("epoch 1", c.use(func() { c.epoch(1) }), 1, once)
	for _, n := range c.nodes {
		if got := n.counts().ServedBytes; got < placement.PieceSize {
			t.Errorf("%s has served %d bytes, want %d at least", n.Name, got, placement.PieceSize)
		}
	}
	c.umount()
	c.mount(c.peers()...)
	c.wantSource("epoch 2, after a restart", c.use(func() { c.epoch(2) }), 0, 0)
	c.umount()
}

// withoutGossip is an argument of a mount that detects lost nodes by failed requests only.
const withoutGossip = "-opeers_gossip=false"

// If the tiers of each node have room for the dataset, every node holds all of it after some time.
// Then the nodes send nothing to each other.
func TestClusterBecomesLocal(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster of daemons")
	}
	t.Parallel()
	c := newCluster(t, shape{nodes: 4})
	c.mount(append(c.peers(), withoutGossip)...) // gossip would be traffic
	// The epochs are so short that the nodes learn in some later one what they have room for.
	epoch := 0
	c.wantSource("first epochs", c.use(func() {
		c.eventually("all nodes hold all files", func() bool {
			epoch++
			c.epoch(epoch)
			return !slices.ContainsFunc(c.nodes, func(n *node) bool { return n.status().Tiers[0].Files < int64(len(c.content.files)) })
		})
	}), 1, once)
	t.Logf("all nodes hold all files after %d epochs", epoch)
	traffic := func() (sum int64) {
		for _, n := range c.nodes {
			_, sent, err := n.Traffic()
			c.check(err)
			sum += sent
		}
		return sum
	}
	reads := func() (sum int64) {
		for _, n := range c.nodes {
			sum += n.counts().Reads
		}
		return sum
	}
	sent, requests := traffic(), reads()
	c.wantSource("another epoch", c.use(func() { c.epoch(epoch + 1) }), 0, 0)
	if n := reads() - requests; n != 0 {
		t.Errorf("%d reads from other nodes, want 0", n)
	}
	const few = 64 << 10 // the kernel closes connections and asks for addresses
	if n := traffic() - sent; n > few {
		t.Errorf("%d bytes between the nodes, want at most %d", n, few)
	}
	c.umount()
}

// If the dataset fits into the tiers of all nodes together, and not into those of one, the source is
// read in the first epoch only.
func TestClusterSharesItsRoom(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster of daemons")
	}
	t.Parallel()
	c := newCluster(t, shape{nodes: 4, quota: 1 / (0.9 * 4)})
	c.mount(c.peers()...)
	c.wantSource("epoch 1", c.use(func() { c.epoch(1) }), 1, once)
	c.wantSource("epochs 2 and 3", c.use(func() {
		c.epoch(2)
		c.epoch(3)
	}), 0, 0)
	c.umount()
}

// A small file of another node takes one request to that node.
func TestClusterRequestsFilesOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster of daemons")
	}
	t.Parallel()
	c := newCluster(t, shape{nodes: 2})
	user := c.nodes[1]
	user.quota = 1 // its own files go to the other node, too
	c.mount(c.peers()...)
	c.epoch(1)
	before := user.counts()
	c.wantSource("the files of the other node", c.use(func() { user.read() }), 0, 0)
	after := user.counts()
	if got, want := after.Reads-before.Reads, int64(len(c.content.files)); got != want {
		t.Errorf("%d requests for %d files", got, want)
	}
	if got, want := after.Bytes-before.Bytes, c.content.size(); got != want {
		t.Errorf("%d bytes for files of %d", got, want)
	}
	c.umount()
}

// longestStall is how long a read may take when a node is lost. The design needs less than 2 s, and
// the machines of tests are slow; without failover, a read takes longer than this.
const longestStall = 10 * time.Second

// A loss is a way in which a node becomes unreachable.
type loss struct {
	name   string
	lose   func(*node)
	goesOn bool        // its job reads from the source meanwhile
	undo   func(*node) // nil: its job ends with it
}

var losses = []loss{
	{"SIGKILL", (*node).kill, false, nil},
	{"link down", func(n *node) { n.c.check(n.Unplug()) }, true, func(n *node) { n.c.check(n.Plug()) }},
	{"SIGSTOP", func(n *node) { n.signal(unix.SIGSTOP) }, false, func(n *node) { n.signal(unix.SIGCONT) }},
}

// lossy is a cluster of which a node is lost. A source of 30 MB/s makes the first epoch last 1.7 s.
// Half of the dataset fits into a tier: the files that the node owns, and those that it makes in the
// place of a lost owner. With more room, nodes also have copies of other files; when the owner is
// lost, nobody finds these.
var lossy = shape{nodes: 4, quota: 0.5, source: simpfs.Speed{Latency: time.Millisecond, BytesPerSecond: 30e6}}

// A node is lost at some moment of the first epoch. No job on another node sees an error or a wrong
// byte, and nothing is read from the source again but what only the lost node held.
func TestClusterLosesANode(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster of daemons")
	}
	t.Parallel()
	count := len(losses)
	if long() {
		count = 20
	}
	for i := range count {
		l := losses[i%len(losses)]
		rng := rand.New(rand.NewPCG(13, uint64(i)))
		t.Run(fmt.Sprintf("%d %s", i, l.name), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, lossy)
			c.mount(c.peers()...)
			c.lose(c.nodes[rng.IntN(4)], rng.Float64(), l)
		})
	}
}

// lose loses a node when a part of the dataset was read from the source.
func (c *cluster) lose(lost *node, part float64, l loss) {
	c.t.Helper()
	start, err := c.pfs.Use()
	c.check(err)
	var jobs []*job
	var itsJob *job
	for _, n := range c.nodes {
		j := n.start(1, 1)
		if n == lost {
			itsJob = j
		} else {
			jobs = append(jobs, j)
		}
	}
	c.eventually("a part of the source was read", func() bool {
		u, err := c.pfs.Use()
		c.check(err)
		return float64(u.Sub(start).Bytes) >= part*float64(c.content.size())
	})
	before := lost.status().Source.Bytes
	others := c.namesWithout(lost) // before the loss: afterwards, the others fetch what they miss
	l.lose(lost)
	held := lost.held(others)
	var stall float64
	for _, j := range jobs {
		stall = max(stall, j.want().Stall)
	}
	for _, n := range c.nodes {
		if n != lost {
			stall = max(stall, n.start(2, 1).want().Stall)
		}
	}
	alone := int64(0) // bytes that the lost node has read since it was lost
	if l.goesOn {
		itsJob.want()
		c.settle() // the source has counted what the node has not
		alone = lost.status().Source.Bytes - before
	}
	end, err := c.pfs.Use()
	c.check(err)
	got, most := end.Sub(start).Bytes-alone, int64(once*float64(c.content.size()))+held
	c.t.Logf("%s lost after %.2f of the source: longest stall %.2f s; source bytes / dataset = %.4f, held only by the lost node: %.4f",
		lost.Name, part, stall, float64(got)/float64(c.content.size()), float64(held)/float64(c.content.size()))
	if got > most {
		c.t.Errorf("%d bytes were read from the source, want at most %d", got, most)
	}
	if stall > longestStall.Seconds() {
		c.t.Errorf("a read took %.2f s, want at most %v", stall, longestStall)
	}
	if l.undo != nil {
		l.undo(lost)
		if !l.goesOn {
			itsJob.want()
		}
		lost.start(2, 1).want()
	} else {
		itsJob.wait()
	}
}

// namesWithout returns the names of the copies, complete or not, that nodes other than lost have.
func (c *cluster) namesWithout(lost *node) map[string]bool {
	c.t.Helper()
	names := make(map[string]bool)
	for _, n := range c.nodes {
		if n != lost {
			n.copies(func(name string, _ int64) { names[name] = true })
		}
	}
	return names
}

// held returns the bytes of the copies, complete or not, that only this node has, given the names of
// those of the others.
func (n *node) held(others map[string]bool) (held int64) {
	n.c.t.Helper()
	n.copies(func(name string, size int64) {
		if !others[name] {
			held += size
		}
	})
	return held
}

// copies calls f with each file in the tier. Those of copies in flight have names of their own.
func (n *node) copies(f func(name string, size int64)) {
	n.c.t.Helper()
	n.c.check(filepath.WalkDir(n.tier, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if os.IsNotExist(err) {
				err = nil // committed or removed meanwhile
			}
			return err
		}
		if info, err := d.Info(); err == nil {
			_, name, _ := strings.Cut(path, n.tier+"/")
			f(name, info.Size())
		}
		return nil
	}))
}

// Nodes share their tiers, and survive the loss of one of them, if there is no gossip and if UDP
// packets are dropped.
func TestClusterWithoutGossip(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster of daemons")
	}
	t.Parallel()
	for name, mount := range map[string]func(*cluster){
		"gossip off": func(c *cluster) { c.mount(append(c.peers(), withoutGossip)...) },
		"UDP dropped": func(c *cluster) {
			for _, n := range c.nodes {
				c.check(n.DropUDP())
			}
			c.mount(c.peers()...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, lossy)
			mount(c)
			c.lose(c.nodes[1], 0.5, losses[0])
		})
	}
}

// In a partition, each side reads from the source what the other side has, and no job sees an error.
// Some time after it, nothing is read from the source any more.
func TestClusterIsPartitioned(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster of daemons")
	}
	t.Parallel()
	duration := 5 * time.Second
	if long() {
		duration = 30 * time.Second
	}
	c := newCluster(t, shape{nodes: 4, quota: 0.4})
	c.mount(c.peers()...)
	c.wantSource("epoch 1", c.use(func() { c.epoch(1) }), 1, once)
	c.check(c.network.Partition(c.network.Nodes[:2]...))
	end := time.Now().Add(duration)
	epoch := 2
	u := c.use(func() {
		for ; epoch == 2 || time.Now().Before(end); epoch++ {
			c.epoch(epoch)
		}
	})
	c.wantSource(fmt.Sprintf("%d epochs of the partition", epoch-2), u, 0.01, 2*float64(epoch-2))
	c.check(c.network.Heal())
	healed := time.Now()
	c.eventually("the source is not read", func() bool {
		epoch++
		return c.use(func() { c.epoch(epoch) }).Bytes == 0
	})
	t.Logf("the source is not read in an epoch that ends %v after the partition", time.Since(healed).Round(time.Second))
	c.umount()
}

// After a restart of one node or of all nodes, the source is not read.
func TestClusterRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster of daemons")
	}
	t.Parallel()
	c := newCluster(t, shape{nodes: 4, quota: 0.4})
	c.mount(c.peers()...)
	c.wantSource("epoch 1", c.use(func() { c.epoch(1) }), 1, once)
	c.umount()
	c.mount(c.peers()...)
	c.wantSource("epoch 2, all nodes restarted", c.use(func() { c.epoch(2) }), 0, 0)
	c.nodes[2].kill()
	c.check(c.nodes[2].mount(c.peers()...))
	c.wantSource("epoch 3, one node restarted", c.use(func() { c.epoch(3) }), 0, 0)
	c.umount()
}

// Two jobs with different datasets on the same nodes never mix them, although the names, sizes and
// times of the files are the same. This also holds if one job has an address of the other in its
// roster.
func TestClusterMixesNoJobs(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster of daemons")
	}
	t.Parallel()
	one := newCluster(t, shape{nodes: 3})
	one.mount(one.peers()...)
	two := newCluster(t, shape{content: twin, network: one.network})
	two.each(func(n *node) error {
		var roster []string
		for _, other := range two.nodes {
			port := ":7450"
			if n == two.nodes[0] && other == two.nodes[1] {
				port = ":7440" // of job one
			}
			roster = append(roster, other.Name+port)
		}
		return n.mount("-o", "peers_listen=:7450", "--peers", strings.Join(roster, ","), "--peers-secret", one.secret("secret"))
	})
	usedByTwo := two.use(func() {
		one.wantSource("job 1", one.use(func() {
			done := make(chan struct{})
			go func() {
				defer close(done)
				one.epoch(1)
			}()
			two.epoch(1)
			<-done
		}), 1, once)
	})
	two.wantSource("job 2", usedByTwo, 1, 1.5) // one node asks the wrong daemon for a third of the files
	one.umount()
	two.umount()
}

// A node with another secret or another roster is refused. It reads the source for itself, and the
// other nodes read it once between them.
func TestClusterRefuses(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster of daemons")
	}
	t.Parallel()
	for name, args := range map[string]func(*cluster) []string{
		"other secret": func(c *cluster) []string {
			return []string{"--peers", "node1,node2,node3", "--peers-secret", c.secret("other")}
		},
		"other roster": func(c *cluster) []string {
			return []string{"--peers", "node1,node2,node3,node4", "--peers-secret", c.secret("secret")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, shape{nodes: 3})
			stranger := c.nodes[2]
			usual, others := c.peers(), args(c)
			c.each(func(n *node) error {
				if n == stranger {
					return n.mount(others...)
				}
				return n.mount(usual...)
			})
			c.wantSource("epoch 1", c.use(func() { c.epoch(1) }), 1, 2*once)
			if got := stranger.counts(); got.Misses == 0 || got.Bytes != 0 {
				t.Errorf("the stranger: %+v, want misses and no bytes", got)
			}
			if got := c.nodes[0].counts(); got.Bytes == 0 {
				t.Errorf("%s has read nothing from another node: %+v", c.nodes[0].Name, got)
			}
			c.umount()
		})
	}
}

// A node that speaks another version of the protocol is bypassed.
func TestClusterOfTwoProtocols(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster of daemons")
	}
	t.Parallel()
	c := newCluster(t, shape{nodes: 3})
	stranger := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Milkweed-Protocol", "99")
		w.WriteHeader(http.StatusUpgradeRequired)
	})}
	listener, err := c.nodes[2].listen(":7440")
	c.check(err)
	go stranger.Serve(listener)
	defer stranger.Close()
	args := c.peers()
	c.nodes = c.nodes[:2]
	c.mount(args...)
	c.wantSource("epoch 1", c.use(func() { c.epoch(1) }), 1, once)
	if got := c.nodes[0].counts(); got.Misses == 0 {
		t.Errorf("%+v, want misses", got)
	}
	c.umount()
}
