package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/milkweedfs/milkweed/cmd/internal/lab"
	"github.com/milkweedfs/milkweed/cmd/internal/lab/enclosure"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// programs is the folder of the programs of the tests, milkweed and milkweed-k8s.
var programs string

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 || slices.Contains(os.Args, "-test.fuzzworker") {
		os.Exit(m.Run()) // the tests that mount skip, and a fuzz target needs no programs
	}
	// A mount namespace of their own, so that no other process has copies of their mounts.
	code, err := enclosure.Run("milkweed-k8s-tests-", func(folder string) (int, error) {
		if err := os.Chmod(folder, 0o755); err != nil {
			return 1, err
		}
		for _, name := range []string{"milkweed", "milkweed-k8s"} {
			path, err := lab.Program("cmd/"+name, false)
			if err != nil {
				return 1, err
			}
			programs = filepath.Dir(path)
		}
		code := enclosure.Verify(m.Run())
		return code, lab.RemovePrograms()
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// mounterUser is the user of the mounter in tests.
const mounterUser = 65532

// A node is a node of a cluster with a plugin and a mounter, which are processes, and with a folder in
// which kubelet makes the volumes of pods.
type node struct {
	t       *testing.T
	dir     string // has the following
	kubelet string
	source  string
	tier    string

	visible bool // the mounter has the mounts in its mount namespace

	plugin, mounter *process
	client          csi.NodeClient
	identity        csi.IdentityClient
}

// A process is a command of milkweed-k8s.
type process struct {
	cmd   *exec.Cmd
	log   *os.File
	ended chan error
}

// newNode makes a node without processes. At the end of the test it ends its processes, and fails the
// test if they leave anything.
func newNode(t *testing.T) *node {
	t.Helper()
	drivertest.Need(t, "root", "/dev/fuse", "setpriv")
	dir, err := os.MkdirTemp("", "milkweed-k8s-")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, dir: dir, kubelet: dir + "/kubelet", source: dir + "/data/set", tier: dir + "/tier"}
	t.Cleanup(n.remove)
	n.check(os.Chmod(dir, 0o755))
	for _, folder := range []string{n.kubelet, n.source, dir + "/csi", dir + "/home"} {
		n.check(os.MkdirAll(folder, 0o755))
	}
	n.check(os.Chown(dir+"/home", mounterUser, mounterUser))
	n.check(unix.Mount(n.kubelet, n.kubelet, "", unix.MS_BIND, ""))
	n.check(unix.Mount("", n.kubelet, "", unix.MS_SHARED, ""))
	n.check(os.WriteFile(n.source+"/a", bytes.Repeat([]byte("milkweed"), 100_000), 0o644))
	n.check(os.WriteFile(n.source+"/b", []byte("b\n"), 0o644))
	return n
}

func (n *node) remove() {
	for _, p := range []*process{n.plugin, n.mounter} {
		if p != nil {
			p.end(syscall.SIGTERM)
		}
	}
	if n.t.Failed() {
		logs, _ := filepath.Glob(n.dir + "/*.log")
		for _, file := range logs {
			text, _ := os.ReadFile(file)
			n.t.Logf("%s:\n%s", filepath.Base(file), text)
		}
	}
	if left := n.mounts(); len(left) > 0 {
		n.t.Errorf("still mounted: %q", left)
		for _, point := range slices.Backward(left) {
			unix.Unmount(point, unix.MNT_DETACH)
		}
	}
	if left := n.daemons(); len(left) > 0 {
		n.t.Errorf("still running: %d", left)
		for _, pid := range left {
			unix.Kill(pid, unix.SIGKILL)
		}
	}
	if left, _ := filepath.Glob(n.tier + "/*/incoming/*"); len(left) > 0 {
		n.t.Errorf("left in incoming: %q", left)
	}
	if err := unix.Unmount(n.kubelet, 0); err != nil {
		n.t.Errorf("unmount %s: %v", n.kubelet, err)
		return
	}
	if err := os.RemoveAll(n.dir); err != nil {
		n.t.Error(err)
	}
}

func (n *node) check(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// mounts lists the mount points of the volumes of the node.
func (n *node) mounts() (points []string) {
	table, err := mounts.Read(mounts.Self)
	n.check(err)
	for _, m := range table {
		if strings.HasPrefix(m.Point, n.kubelet+"/") {
			points = append(points, m.Point)
		}
	}
	return points
}

// daemons lists the processes milkweed of the node: those with its folder in their arguments.
func (n *node) daemons() (pids []int) {
	entries, err := os.ReadDir("/proc")
	n.check(err)
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscan(e.Name(), &pid); err != nil {
			continue
		}
		words, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if bytes.HasPrefix(words, []byte(programs+"/milkweed\x00")) && bytes.Contains(words, []byte(n.dir+"/")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// daemonOf returns the process ID of the daemon of a source, or 0.
func (n *node) daemonOf(source string) int {
	for _, pid := range n.daemons() {
		words, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if bytes.Contains(words, []byte("\x00"+source+"\x00")) {
			return pid
		}
	}
	return 0
}

// A container is what the runtime makes of a container that has a volume with mountPropagation:
// HostToContainer: a mount namespace in which a slave of the mount is elsewhere.
type container struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// run starts a container with the volume of a pod.
func (n *node) run(pod string) *container {
	n.t.Helper()
	point, err := os.MkdirTemp(n.dir, "container-")
	n.check(err)
	c := &container{cmd: exec.Command("unshare", "--mount", "--propagation", "slave", "sh", "-c",
		`mount --rbind "$1" "$2"; while read -r line; do cat "$2/b" 2>&1 | head -n1; done`, "sh", n.target(pod), point)}
	c.in, err = c.cmd.StdinPipe()
	n.check(err)
	out, err := c.cmd.StdoutPipe()
	n.check(err)
	c.out = bufio.NewScanner(out)
	n.check(c.cmd.Start())
	n.t.Cleanup(c.end)
	if got := c.read(); got != "b" {
		n.t.Fatalf("the container reads %q", got)
	}
	return c
}

// read reads the file b of the volume, and returns its line, or an error.
func (c *container) read() string {
	if _, err := c.in.Write([]byte("\n")); err != nil {
		return err.Error()
	}
	c.out.Scan()
	return c.out.Text()
}

// end ends the container.
func (c *container) end() {
	c.in.Close()
	c.cmd.Wait()
}

// start starts a command of milkweed-k8s in a mount namespace of its own, as in a pod. If the user uid is 0,
// mounts in the folder of kubelet propagate in both directions, and the sysfs of its network namespace is
// read-only. Any other user has no capability, and sees no mounts.
func (n *node) start(name string, uid int, words ...string) *process {
	n.t.Helper()
	words = append([]string{programs + "/milkweed-k8s"}, words...)
	if uid == 0 {
		words = append([]string{"unshare", "--mount", "--net", "--propagation", "unchanged", "--",
			"sh", "-ec", `mount -t sysfs -o ro none /sys; exec "$@"`, "sh"}, words...)
	} else {
		id := fmt.Sprint(uid)
		var namespace []string
		if !n.visible {
			namespace = []string{"unshare", "--mount", "--propagation", "private", "--"}
		}
		words = append(append(namespace, "setpriv", "--reuid="+id, "--regid="+id, "--clear-groups",
			"--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--"), words...)
	}
	log, err := os.OpenFile(n.dir+"/"+name+".log", os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	n.check(err)
	p := &process{cmd: exec.Command(words[0], words[1:]...), log: log, ended: make(chan error, 1)}
	p.cmd.Stderr, p.cmd.Dir = log, "/"
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + n.dir + "/home", "TMPDIR=" + n.dir + "/home",
		"MILKWEED_RUNTIME_DIR=" + n.dir + "/home/run", lab.OpenTimeout}
	n.check(p.cmd.Start())
	go func() { p.ended <- p.cmd.Wait() }()
	return p
}

// end sends a signal to a process and waits for its end.
func (p *process) end(s syscall.Signal) error {
	p.cmd.Process.Signal(s)
	err := <-p.ended
	p.ended <- err
	p.log.Close()
	return err
}

func (n *node) socket() string { return n.dir + "/run/mounter.sock" }

func (n *node) startPlugin() {
	n.t.Helper()
	n.plugin = n.start("plugin", 0, "csi", "--node-name", "node1", "--endpoint", "unix://"+n.dir+"/csi/csi.sock",
		"--mounter-socket", n.socket(), "--mounter-uid", fmt.Sprint(mounterUser), "--mounter-dir", n.tier)
	conn, err := grpc.NewClient("unix://"+n.dir+"/csi/csi.sock", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	n.check(err)
	n.t.Cleanup(func() { conn.Close() })
	n.client, n.identity = csi.NewNodeClient(conn), csi.NewIdentityClient(conn)
	_, err = n.identity.Probe(n.context(), &csi.ProbeRequest{})
	n.check(err)
}

func (n *node) startMounter(words ...string) {
	n.t.Helper()
	n.mounter = n.start("mounter", mounterUser, append([]string{"mounter", "--socket", n.socket(), "--milkweed", programs + "/milkweed",
		"--tier", "ssd:" + n.tier + ":64MiB", "--source-dir", n.dir + "/data"}, words...)...)
	n.eventually("the mounter listens", func() bool {
		_, err := n.mounterClient().do(n.context(), request{Op: opFind, Key: "none"}, nil)
		return err == nil
	})
}

func (n *node) mounterClient() mounterClient {
	return mounterClient{socket: n.socket(), uid: mounterUser}
}

// context returns a context that is long enough for any request.
func (n *node) context() context.Context {
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	n.t.Cleanup(cancel)
	return ctx
}

// eventually waits until a condition holds.
func (n *node) eventually(what string, holds func() bool) {
	n.t.Helper()
	drivertest.Eventually(n.t, what, holds)
}

// target returns the path of a volume of a pod.
func (n *node) target(pod string) string {
	return n.kubelet + "/pods/" + pod + "/volumes/kubernetes.io~csi/data/mount"
}

// inline is the request of kubelet for an inline volume of a pod. As kubelet does, it makes the parent
// of the target, which users may enter here because the test reads the volume without a container.
func (n *node) inline(pod string, attributes map[string]string) *csi.NodePublishVolumeRequest {
	n.t.Helper()
	n.check(os.MkdirAll(filepath.Dir(n.target(pod)), 0o755))
	r := &csi.NodePublishVolumeRequest{
		VolumeId:   "csi-" + pod,
		TargetPath: n.target(pod),
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
		VolumeContext: map[string]string{
			ephemeralKey: "true", kubeletPrefix + "pod.name": pod, kubeletPrefix + "pod.namespace": "default",
		},
	}
	for key, value := range attributes {
		r.VolumeContext[key] = value
	}
	return r
}

// persistent is the request of kubelet for a persistent volume.
func (n *node) persistent(pod string, attributes map[string]string) *csi.NodePublishVolumeRequest {
	r := n.inline(pod, attributes)
	r.VolumeContext[ephemeralKey] = "false"
	r.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	return r
}

func (n *node) publish(r *csi.NodePublishVolumeRequest) error {
	_, err := n.client.NodePublishVolume(n.context(), r)
	return err
}

func (n *node) unpublish(pod string) error {
	_, err := n.client.NodeUnpublishVolume(n.context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "csi-" + pod, TargetPath: n.target(pod)})
	return err
}

// read compares a volume with the source. Child processes read it, as an ordinary user.
func (n *node) read(pod string) {
	n.t.Helper()
	out, err := exec.Command("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "--",
		"diff", "-r", n.source, n.target(pod)).CombinedOutput()
	if err != nil {
		n.t.Errorf("diff: %v\n%s", err, out)
	}
}

// wantCode fails the test if err has not the code, or if its text does not contain says.
func wantCode(t *testing.T, err error, code codes.Code, says string) {
	t.Helper()
	if status.Code(err) != code || err != nil && !strings.Contains(err.Error(), says) {
		t.Errorf("got %v, want the code %v and %q", err, code, says)
	}
}

// exists reports whether a path exists. It calls no mounted file system.
func exists(path string) bool {
	_, err := os.Readlink(path)
	return !errors.Is(err, os.ErrNotExist)
}
