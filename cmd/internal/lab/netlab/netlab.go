// Package netlab makes networks of nodes on one machine, for tests. Each node is a network namespace
// with a link to a bridge, which is in a namespace of its own, too. The links have a rate, and they
// can be cut. The network of the machine is not touched.
//
// It needs root and the programs ip and tc. Only the file descriptors of a Network and the
// processes of its nodes keep the namespaces: when they end, the kernel removes everything.
package netlab

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Network is several nodes, and a bridge that connects them. One goroutine at a time may use it.
type Network struct {
	Nodes []*Node

	bridges namespace // has the bridges, and the other ends of the links
}

// A Node is a host of a network. Its methods may be called concurrently.
type Node struct {
	Name    string // node1, node2 and so on; it is the host name
	Address string // an IPv4 address

	network *Network
	port    string // the name of its link at the bridge
	space   namespace
}

// MaxNodes is the highest number of nodes of a network.
const MaxNodes = 64

// New makes a network of n nodes. Each link transfers rate bytes per second in each direction, or
// has no limit if rate is 0. Networks do not see each other and have the same names and addresses.
// The caller must call Close.
func New(n int, rate int64) (*Network, error) {
	if n > MaxNodes {
		return nil, fmt.Errorf("%d nodes; at most %d are possible", n, MaxNodes)
	}
	net := &Network{}
	if err := net.make(n, rate); err != nil {
		return nil, errors.Join(fmt.Errorf("network of %d nodes: %w", n, err), net.Close())
	}
	return net, nil
}

// Device names.
const (
	link   = "eth0"   // of a node
	joined = "bridge" // connects the nodes
	apart  = "island" // connects those of a partition
)

func (n *Network) make(count int, rate int64) (err error) {
	if n.bridges, err = newNamespace("bridge"); err != nil {
		return err
	}
	var links, rates []string
	for _, bridge := range []string{joined, apart} {
		links = append(links, "link add "+bridge+" type bridge", "link set "+bridge+" up")
	}
	for i := range count {
		node := &Node{Name: name(i), Address: address(i), network: n, port: fmt.Sprint("port", i+1)}
		if node.space, err = newNamespace(node.Name); err != nil {
			return err
		}
		n.Nodes = append(n.Nodes, node)
		links = append(links,
			fmt.Sprintf("link add %s type veth peer name %s netns %s", node.port, link, node.space.path()),
			fmt.Sprintf("link set %s master %s up", node.port, joined))
		rates = append(rates, limit(node.port, rate)...)
	}
	if err := n.bridges.ip(links...); err != nil {
		return err
	}
	if err := n.bridges.tc(rates...); err != nil {
		return err
	}
	for _, node := range n.Nodes {
		err := errors.Join(
			node.space.ip("addr add "+node.Address+"/24 dev "+link, "link set "+link+" up", "link set lo up"),
			node.space.tc(limit(link, rate)...))
		if err != nil {
			return err
		}
	}
	return n.await(n.Nodes...)
}

// linkTimeout bounds the time that the kernel takes to use a link after a change.
const linkTimeout = 10 * time.Second

// await waits until the kernel uses the links of the nodes, which takes up to a second.
func (n *Network) await(nodes ...*Node) error {
	for deadline := time.Now().Add(linkTimeout); ; time.Sleep(10 * time.Millisecond) {
		ports, err := n.bridges.devices()
		if err != nil {
			return err
		}
		late := ""
		for _, node := range nodes {
			links, err := node.space.devices()
			if err != nil {
				return err
			}
			if links[link].State != "UP" || ports[node.port].Info.Port.State != "forwarding" {
				late = node.Name
			}
		}
		if late == "" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the link of %s is not used after %v", late, linkTimeout)
		}
	}
}

func name(i int) string    { return fmt.Sprint("node", i+1) }
func address(i int) string { return fmt.Sprint("10.77.0.", i+1) }

// limit returns the commands that limit what a device sends. The bucket holds what is sent in 10 ms,
// since the timer of the kernel may tick in as many.
func limit(device string, rate int64) []string {
	if rate == 0 {
		return nil
	}
	bucket := max(rate/100, 128<<10)
	return []string{fmt.Sprintf("qdisc add dev %s root tbf rate %dbps burst %d limit %d", device, rate, bucket, 4*bucket)}
}

// Close closes the namespaces. The kernel removes a namespace when its last process has ended.
func (n *Network) Close() error {
	errs := []error{n.bridges.close()}
	for _, node := range n.Nodes {
		errs = append(errs, node.space.close())
	}
	return errors.Join(errs...)
}

// Hosts makes the names of the nodes known in the mount namespace of this process, which must not
// be that of the machine. It writes a file in folder and mounts it as /etc/hosts.
func Hosts(folder string) error {
	var b bytes.Buffer
	fmt.Fprintln(&b, "127.0.0.1 localhost")
	for i := range MaxNodes {
		fmt.Fprintln(&b, address(i), name(i))
	}
	file := folder + "/hosts"
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		return err
	}
	if err := unix.Mount(file, "/etc/hosts", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at /etc/hosts: %w", file, err)
	}
	return nil
}

// Partition separates these nodes from the others. They still reach each other. Links of both sides
// stay up, so that packets get lost and no sender is told.
func (n *Network) Partition(nodes ...*Node) error {
	var lines []string
	for _, node := range nodes {
		lines = append(lines, "link set "+node.port+" master "+apart)
	}
	if err := n.bridges.ip(lines...); err != nil {
		return err
	}
	return n.await(nodes...)
}

// Heal connects all nodes again. None may be unplugged.
func (n *Network) Heal() error {
	var lines []string
	for _, node := range n.Nodes {
		lines = append(lines, "link set "+node.port+" master "+joined)
	}
	if err := n.bridges.ip(lines...); err != nil {
		return err
	}
	return n.await(n.Nodes...)
}

// Do calls f on a thread in the namespaces of the node: a process that f starts is one of the node,
// and so is a socket that f opens itself. The thread ends with f. Therefore f must not use
// Pdeathsig, which is sent when a thread ends, and must not end its goroutine, as t.Fatal does.
func (n *Node) Do(f func() error) error { return n.space.do(f) }

// Unplug takes the carrier from both ends of the link of the node.
func (n *Node) Unplug() error { return n.network.bridges.ip("link set " + n.port + " down") }

// Plug undoes Unplug.
func (n *Node) Plug() error {
	if err := n.network.bridges.ip("link set " + n.port + " up"); err != nil {
		return err
	}
	return n.network.await(n)
}

// DropUDP drops the UDP packets that arrive at the node from now on. Their senders are not told.
func (n *Node) DropUDP() error {
	// The rules are used in the order of their numbers. The local table, which delivers packets to
	// this host, is number 0 by default.
	return n.space.ip("rule add pref 2 lookup local", "rule add pref 1 iif "+link+" ipproto udp blackhole", "rule del pref 0")
}

// Traffic returns the bytes that the node has received and sent over its link.
func (n *Node) Traffic() (received, sent int64, err error) {
	err = n.Do(func() error {
		data, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(data)) {
			name, counts, _ := strings.Cut(strings.TrimSpace(line), ":")
			if fields := strings.Fields(counts); name == link && len(fields) > 8 {
				received, err = strconv.ParseInt(fields[0], 10, 64)
				if err == nil {
					sent, err = strconv.ParseInt(fields[8], 10, 64)
				}
				return err
			}
		}
		return fmt.Errorf("%s has no device %s", n.Name, link)
	})
	return received, sent, err
}

// A namespace is a network namespace and a UTS namespace. Its file descriptors keep it.
type namespace struct{ net, uts int }

// newNamespace makes a namespace with a host name.
func newNamespace(name string) (s namespace, err error) {
	s = namespace{-1, -1}
	err = apartFromOthers(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWUTS); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Sethostname([]byte(name)); err != nil {
			return err
		}
		if s.net, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		s.uts, err = unix.Open("/proc/thread-self/ns/uts", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	return s, err
}

// apartFromOthers calls f on a thread that ends with f, since its namespaces are changed.
func apartFromOthers(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // without an unlock, the end of the goroutine ends the thread
		done <- f()
	}()
	return <-done
}

func (s namespace) do(f func() error) error {
	return apartFromOthers(func() error {
		if err := unix.Setns(s.net, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("setns: %w", err)
		}
		if err := unix.Setns(s.uts, unix.CLONE_NEWUTS); err != nil {
			return fmt.Errorf("setns: %w", err)
		}
		return f()
	})
}

// path is a name of the network namespace for other programs.
func (s namespace) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.net) }

func (s namespace) close() error {
	if s.net <= 0 { // it was not made
		return nil
	}
	return errors.Join(unix.Close(s.net), unix.Close(s.uts))
}

// A device is what ip(8) prints about a network device.
type device struct {
	Name  string `json:"ifname"`
	State string `json:"operstate"`
	Info  struct {
		Port struct {
			State string `json:"state"`
		} `json:"info_slave_data"` // of a bridge
	} `json:"linkinfo"`
}

// devices returns the devices by name.
func (s namespace) devices() (map[string]device, error) {
	var list []device
	err := s.do(func() error {
		out, err := exec.Command("ip", "-details", "-json", "link", "show").Output()
		if err != nil {
			return fmt.Errorf("ip: %w", err)
		}
		return json.Unmarshal(out, &list)
	})
	devices := make(map[string]device)
	for _, d := range list {
		devices[d.Name] = d
	}
	return devices, err
}

// ip and tc run commands of these programs.
func (s namespace) ip(lines ...string) error { return s.batch("ip", lines) }
func (s namespace) tc(lines ...string) error { return s.batch("tc", lines) }

func (s namespace) batch(program string, lines []string) error {
	if len(lines) == 0 {
		return nil
	}
	return s.do(func() error {
		cmd := exec.Command(program, "-batch", "-")
		cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s%s", program, err, out, strings.Join(lines, "\n"))
		}
		return nil
	})
}
