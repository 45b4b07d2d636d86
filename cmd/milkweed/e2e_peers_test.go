package main

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/peer"
	"github.com/milkweedfs/milkweed/drivers/peer/gossip"
)

// newPeerSites makes a site for each of n nodes of this machine, which share a source of files, and
// returns them with their addresses.
func newPeerSites(t *testing.T, n int) (nodes []*site, addresses []string) {
	t.Helper()
	for i := range n {
		s := newSite(t)
		if i > 0 {
			s.source = nodes[0].source
		}
		nodes = append(nodes, s)
	}
	host := loopback()
	for len(addresses) < n { // gossip needs the port after that of a node
		l, err := net.Listen("tcp", host)
		nodes[0].check(err)
		defer l.Close()
		next, err := gossip.NextPort(l.Addr().String())
		nodes[0].check(err)
		if after, err := net.Listen("tcp", next); err == nil {
			defer after.Close()
			addresses = append(addresses, l.Addr().String())
		}
	}
	for i := range 60 {
		nodes[0].write(fmt.Sprintf("class%d/%02d.jpg", i%3, i), 1000+i*5000)
	}
	nodes[0].write("large.tfrecord", 9<<20)
	return nodes, addresses
}

// mountPeer mounts the source on node i of a roster.
func mountPeer(nodes []*site, addresses []string, i int) result {
	s := nodes[i]
	words := s.mountWords("64MiB")
	return s.try(append([]string{"mount", "--peers", strings.Join(addresses, ","), "-o", "peers_listen=" + addresses[i]}, words[1:]...)...)
}

func eachSite(nodes []*site, f func(s *site)) {
	var running sync.WaitGroup
	for _, s := range nodes {
		running.Go(func() { f(s) })
	}
	running.Wait()
}

// Three nodes that read all files at the same time read each byte of the source once between them,
// unless one of them took so long to answer that another turned to the source, and after one of them
// was killed, the others read all files without an error.
func TestPeers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts several nodes")
	}
	drivertest.Need(t, "getfattr")
	nodes, addresses := newPeerSites(t, 3)
	for i := range nodes {
		if r := mountPeer(nodes, addresses, i); r.code != exit.OK {
			t.Fatalf("node %d: %+v", i, r)
		}
	}
	byName := slices.Sorted(slices.Values(addresses))
	for i, s := range nodes {
		got := s.must("getfattr", "--only-values", "-n", "user.milkweed.node", s.point)
		if want := fmt.Sprintf("%d/3", slices.Index(byName, addresses[i])); got != want {
			t.Errorf("node %d has the index %q, want %q", i, got, want)
		}
	}
	dataset := total(nodes[0].files(nodes[0].source))
	eachSite(nodes, func(s *site) { s.epoch(1) })
	var sum, late int64
	for i, s := range nodes {
		status := s.settled()
		sum += status.Source.Bytes
		for _, n := range status.Peers.Nodes {
			late += n.Misses.Stuck + n.Misses.Unreachable
		}
		if p := status.Peers; p == nil || p.Reads == 0 || p.ServedReads == 0 || p.Up != 2 || p.Self != addresses[i] {
			t.Errorf("node %d: %+v", i, p)
		}
	}
	if sum < dataset || sum > dataset && late == 0 {
		t.Errorf("bytes that the nodes have read from the source: %d, want those of the dataset, %d", sum, dataset)
	}
	out := nodes[0].milkweed("peers", nodes[0].point)
	for i, a := range addresses {
		state := "up"
		if i == 0 {
			state = "this node"
		}
		if !strings.Contains(out, a+"  "+state+"\n") {
			t.Errorf("%s is not %s in\n%s", a, state, out)
		}
	}

	checked := nodes[0].must(nodes[0].program, "check", "--peers", strings.Join(addresses, ","), "-o", "peers_listen="+addresses[0],
		"--tier", "new:"+nodes[0].dir+"/new:64MiB", nodes[0].source)
	if !strings.Contains(checked, "2 of 2 others that were asked are mounted and agree") {
		t.Errorf("check:\n%s", checked)
	}

	lost := nodes[2].status().PID
	if err := unix.Kill(lost, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	nodes[2].eventually("the daemon has ended", func() bool { return unix.Kill(lost, 0) == unix.ESRCH })
	nodes[2].unmountAll()
	for i := range 20 { // files that no node holds
		nodes[0].write(fmt.Sprintf("class%d/new%02d.jpg", i%3, i), 1000+i*5000)
	}
	eachSite(nodes[:2], func(s *site) {
		s.milkweed("refresh", s.point)
		s.epoch(2)
	})
	out = nodes[0].milkweed("peers", nodes[0].point)
	if !strings.Contains(out, "no mount serves its port") {
		t.Errorf("no node is down in\n%s", out)
	}
	for _, s := range nodes[:2] {
		s.umount()
	}
}

// A mount that cannot have its peers is refused, with what to do about it.
func TestPeersRefused(t *testing.T) {
	s := newSite(t)
	s.write("f", 1000)
	taken, err := net.Listen("tcp", "127.0.0.1:0") // an address that the machine knows as its own
	s.check(err)
	defer taken.Close()
	address := taken.Addr().String()
	open := s.dir + "/open.key"
	s.check(os.WriteFile(open, []byte(peer.NewSecret()), 0o644))
	for _, c := range []struct {
		name  string
		words []string
		says  string
	}{
		{"port in use", []string{"--peers", address}, "-o peers_listen="},
		{"not in the roster", []string{"--peers", "192.0.2.1"}, "Set peers.name"},
		{"not Slurm", []string{"--peers", "slurm"}, "SLURM_JOB_NODELIST"},
		{"names that do not come", []string{"--peers", "dns:localhost", "-o", "peers_min=3,peers_wait=1s"}, "peers.min"},
		{"secret for all", []string{"--peers", address, "--peers-secret", open}, "umask 077"},
		{"no secret", []string{"--peers", "0.0.0.0:7440", "-o", "peers_name=0.0.0.0"}, "milkweed peers keygen"},
	} {
		t.Run(c.name, func(t *testing.T) {
			words := s.mountWords("64MiB")
			r := s.try(append(append([]string{"mount"}, c.words...), words[1:]...)...)
			if r.code != exit.Peers || !strings.Contains(r.stderr, c.says) {
				t.Errorf("%+v; want exit code %d and %q", r, exit.Peers, c.says)
			}
			if left := s.mounts(); len(left) > 0 {
				t.Errorf("mounted: %q", left)
			}
		})
	}
}
