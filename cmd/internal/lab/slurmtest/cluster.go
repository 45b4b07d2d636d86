// Package slurmtest makes clusters with stubs of Slurm on one machine, for tests. The stubs behave
// as the manual of Slurm says: the options of the commands, the environment of each script, what a
// failure of a script does to the node and the job, and which processes are killed and when.
//
// Each node has its own mounts, network, host name and processes, and a writable copy of the root
// of the machine, which is not changed. All nodes share /etc/slurm, /etc/milkweed, /home and
// /lustre.
//
// It needs root and the programs ip, nsenter, tc and unshare. What it made ends with the test, except
// for the programs of package lab, which TestMain removes.
package slurmtest

import (
	"bufio"
	_ "embed"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/lab"
	"github.com/milkweedfs/milkweed/cmd/internal/lab/netlab"
)

// Options are the properties of a cluster.
type Options struct {
	Nodes    int               // compute nodes: node1, node2 and so on
	Programs map[string]string // more programs in /usr/bin of all nodes: paths by name
	Checkout string            // a folder whose examples and docs are in /usr/share/doc/milkweed; may be ""
	Conf     string            // lines for slurm.conf
}

// A Cluster has a login node and compute nodes. Its methods may be called concurrently.
type Cluster struct {
	Folder string // on the machine; Folder+"/shared" has the shared folders, such as shared/lustre

	t     testing.TB
	login *host
	nodes []*host
	*controller
}

// Users are the accounts of a cluster besides those of the machine.
var Users = map[string]uint32{"alice": 2001, "bob": 2002}

//go:embed node.sh
var nodeScript string

// shared are the folders that all nodes share.
var shared = []string{"etc/slurm", "etc/milkweed", "home", "lustre", "var/spool/slurm"}

// New makes a cluster, which ends with the test.
func New(t testing.TB, o Options) *Cluster {
	t.Helper()
	folder, err := os.MkdirTemp("", "slurm-") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{Folder: folder, t: t}
	t.Cleanup(c.close)
	for _, name := range append([]string{"../bin", "../nodes"}, shared...) {
		c.check(os.MkdirAll(filepath.Join(folder, "shared", name), 0o755))
	}
	c.check(os.Chmod(folder, 0o755))
	for name, uid := range Users {
		home := filepath.Join(folder, "shared/home", name)
		c.check(os.Mkdir(home, 0o755))
		c.check(os.Chown(home, int(uid), int(uid)))
	}
	c.check(os.Mkdir(folder+"/shared/home/user", 0o755))

	stub, err := lab.Program("cmd/internal/lab/slurmtest/stub", false)
	c.check(err)
	c.check(exec.Command("cp", stub, folder+"/bin/slurm-stub").Run())
	for _, name := range append(commands, "slurmd", "slurmstepd") {
		c.check(os.Symlink("slurm-stub", filepath.Join(folder, "bin", name)))
	}
	for name, path := range o.Programs {
		path, err := filepath.Abs(path)
		c.check(err)
		c.check(os.Symlink(path, filepath.Join(folder, "bin", name)))
	}

	network, err := netlab.New(o.Nodes, 0)
	c.check(err)
	t.Cleanup(func() { c.check(network.Close()) })
	hosts := "127.0.0.1 localhost\n"
	names := make([]string, o.Nodes)
	for i, n := range network.Nodes {
		hosts += n.Address + " " + n.Name + "\n"
		names[i] = n.Name
	}
	c.check(os.WriteFile(folder+"/hosts", []byte(hosts), 0o644))
	conf := fmt.Sprintf("ClusterName=test\nSlurmctldHost=login\nNodeName=%s\nPartitionName=main Nodes=ALL Default=YES\n%s\n", strings.Join(names, ","), o.Conf)
	c.check(os.WriteFile(folder+"/shared/etc/slurm/slurm.conf", []byte(conf), 0o644))

	c.login = c.start("login", o.Checkout, nil)
	for _, n := range network.Nodes {
		c.nodes = append(c.nodes, c.start(n.Name, o.Checkout, n))
	}
	c.controller = newController(c.nodes, folder+"/shared")
	c.check(c.reconfigure())
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: folder + "/shared" + socket, Net: "unix"})
	c.check(err)
	c.check(os.Chmod(folder+"/shared"+socket, 0o777))
	t.Cleanup(func() { l.Close(); c.stop() })
	go c.serve(l)
	return c
}

// A host is a machine of the cluster.
type host struct {
	name   string
	holder *exec.Cmd // of the namespaces; its child is process 1 of the host
	stdin  io.Closer // process 1 ends when it is closed
}

// start makes a host, which is a node of a network if node is not nil.
func (c *Cluster) start(name, checkout string, node *netlab.Node) *host {
	c.t.Helper()
	c.check(os.Mkdir(filepath.Join(c.Folder, "nodes", name), 0o755))
	if checkout != "" {
		var err error
		checkout, err = filepath.Abs(checkout)
		c.check(err)
	}
	args := []string{"--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"}
	if node == nil {
		args = append(args, "--uts", "--net")
	}
	args = append(args, "bash", "-c", nodeScript, "node.sh", c.Folder, name, checkout, strings.Join(shared, " "))
	h := &host{name: name, holder: exec.Command("unshare", args...)}
	h.holder.Stderr = os.Stderr
	stdin, err := h.holder.StdinPipe()
	c.check(err)
	h.stdin = stdin
	stdout, err := h.holder.StdoutPipe()
	c.check(err)
	if node == nil {
		err = h.holder.Start()
	} else {
		err = node.Do(h.holder.Start)
	}
	c.check(err)
	c.t.Cleanup(h.crash)
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		c.t.Fatalf("%s: %q, %v", name, line, err)
	}
	return h
}

// crash ends a host, with all its processes and mounts.
func (h *host) crash() {
	h.stdin.Close()
	h.holder.Wait()
}

// command returns a command that runs on the host as root, with an environment of its own.
func (h *host) command(words ...string) *exec.Cmd {
	ns := fmt.Sprintf("/proc/%d/ns/", h.holder.Process.Pid)
	args := []string{"--mount=" + ns + "mnt", "--uts=" + ns + "uts", "--net=" + ns + "net", "--pid=" + ns + "pid_for_children", "--wdns=/home/user", "--"}
	cmd := exec.Command("nsenter", append(args, words...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/home/user", "USER=root", "LANG=C.UTF-8"}
	return cmd
}

// Command returns a command that runs on the login node as root, in /home/user.
func (c *Cluster) Command(words ...string) *exec.Cmd { return c.login.command(words...) }

// OnNode returns a command that runs on a node as root, outside of all jobs. Nodes count from 1.
func (c *Cluster) OnNode(i int, words ...string) *exec.Cmd { return c.nodes[i-1].command(words...) }

func (c *Cluster) check(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *Cluster) close() {
	if c.t.Failed() && c.controller != nil {
		c.t.Logf("log of slurmctld and slurmd:\n%s", c.Log())
	}
	if err := os.RemoveAll(c.Folder); err != nil {
		c.t.Error(err)
	}
}

// as returns a command that runs on the host as a user.
func (h *host) as(uid uint32, words ...string) *exec.Cmd {
	id := fmt.Sprint(uid)
	return h.command(append([]string{"setpriv", "--reuid=" + id, "--regid=" + id, "--clear-groups", "--"}, words...)...)
}

// As returns a command that runs on the login node as one of Users, in the home folder of the user.
func (c *Cluster) As(user string, words ...string) *exec.Cmd {
	home := "/home/" + user
	cmd := c.login.as(Users[user], append([]string{"env", "--chdir=" + home, "HOME=" + home, "USER=" + user}, words...)...)
	return cmd
}
