package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/milkweedfs/milkweed/cmd/internal/lab/kubetest"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

const (
	examples = "../../examples"
	csiName  = "csi.milkweedfs.github.io"
	python   = "/usr/bin/python3"
)

// manifest returns the object of a kind and name in a folder of examples/kubernetes.
func manifest(t *testing.T, folder, kind, name string) kubetest.Object {
	t.Helper()
	out, err := kubetest.Build(examples + "/kubernetes/" + folder)
	if err != nil {
		drivertest.Skipf(t, "%v", err)
	}
	objects, err := kubetest.Parse(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if o.Kind() == kind && o.Name() == name {
			return o
		}
	}
	t.Fatalf("%s has no %s %s", folder, kind, name)
	return nil
}

// A cluster is a node with the folders of its host and the image, and a dataset that all containers have at
// /source/digits.
type cluster struct {
	image  kubetest.Image
	host   string // its mounts are shared, as those of a host are
	source string
	losses string // of the job on the source; "": not known yet
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{image: kubetest.BuildImage(t)}
	var err error
	if c.host, err = os.MkdirTemp("", "node-"); err != nil { // short: it has sockets
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(c.host, 0); err != nil {
			t.Errorf("a mount is left in %s: %v", c.host, err)
			unix.Unmount(c.host, unix.MNT_DETACH)
		}
		if err := os.RemoveAll(c.host); err != nil {
			t.Error(err)
		}
	})
	c.source = c.host + "/source/digits"
	if err := errors.Join(os.Chmod(c.host, 0o755), unix.Mount(c.host, c.host, "", unix.MS_BIND, ""), unix.Mount("", c.host, "", unix.MS_SHARED, "")); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(python, "-B", examples+"/pytorch/make_digits.py", c.source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return c
}

// trains runs the container of a job of examples/kubernetes/train outside, with the volumes at root, and compares
// the losses of its steps with those of a job that reads the source.
func (c *cluster) trains(t *testing.T, job kubetest.Object, root string) {
	t.Helper()
	container := job.Get("spec", "template", "spec", "containers").([]any)[0].(map[string]any)
	var line []string
	for _, word := range container["command"].([]any) {
		line = append(line, fmt.Sprint(word))
	}
	if want := []string{"python3", "/scripts/train.py"}; !slices.Equal(line[:2], want) {
		t.Fatalf("the job runs %q, want %q", line, want)
	}
	run := func(data string) string {
		t.Helper()
		losses := filepath.Join(t.TempDir(), "losses")
		words := slices.Concat([]string{"-B", examples + "/pytorch/train.py", data}, line[3:], []string{"--losses", losses})
		if out, err := exec.Command(python, words...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", words, err, out)
		}
		text, err := os.ReadFile(losses)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if c.losses == "" {
		c.losses = run(c.source)
	}
	if got := run(root + line[2]); got != c.losses || strings.Count(got, "\n") < 50 {
		t.Errorf("losses on the volume\n%s\nlosses on the source\n%s", got, c.losses)
	}
}

// pod returns a container of an object in a folder of examples/kubernetes, and its command line.
func (c *cluster) pod(t *testing.T, o kubetest.Object, name string) (kubetest.Container, []string) {
	t.Helper()
	pod, line := kubetest.PodContainer(t, c.image, o, name, c.host)
	pod.Volumes["/source"] = c.host + "/source"
	return pod, line
}

// The pods of examples/kubernetes work in containers that have nothing but the image and the volumes of
// the manifests: the plugin and the mounter serve a volume, on which the job trains, the peers share one, and the
// FUSE container of Fluid mounts and unmounts a dataset. A node goes from CSI to peers and back.
func TestPodsOfTheExamples(t *testing.T) {
	if testing.Short() {
		t.Skip("builds an image and runs its containers")
	}
	c := newCluster(t)
	t.Run("csi", c.testCSI)
	t.Run("peers", c.testPeers)
	t.Run("csi again", c.testCSI)
	t.Run("fluid", c.testFluid)
}

func (c *cluster) testCSI(t *testing.T) {
	pod, line := c.pod(t, manifest(t, "csi", "DaemonSet", "milkweed-csi"), "plugin")
	plugin := pod.Start(t, line...)
	socket := c.host + "/run/milkweed-csi/mounter.sock"
	plugin.Await(t, func() bool { // the folder belongs to the mounter
		info, err := os.Stat(filepath.Dir(socket))
		return err == nil && info.Mode().Perm() == 0o700
	})
	pod, line = c.pod(t, manifest(t, "csi", "DaemonSet", "milkweed-mounter"), "mounter")
	mounter := pod.Start(t, append(line, "--source-dir", "/source")...)
	mounter.Await(t, func() bool { return exists(socket) })
	conn, err := grpc.NewClient("unix://"+c.host+"/var/lib/kubelet/plugins/"+csiName+"/csi.sock",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	pv := manifest(t, "train/csi", "PersistentVolume", "milkweed-digits")
	attributes := map[string]string{ephemeralKey: "false"}
	for key, value := range pv.Get("spec", "csi", "volumeAttributes").(map[string]any) {
		attributes[key] = fmt.Sprint(value)
	}
	attributes[sourceKey] = "/source/digits" // in place of the bucket
	target := "/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/milkweed-digits/mount"
	if err := os.MkdirAll(c.host+filepath.Dir(target), 0o755); err != nil {
		t.Fatal(err)
	}
	node := csi.NewNodeClient(conn)
	_, err = node.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: fmt.Sprint(pv.Get("spec", "csi", "volumeHandle")), TargetPath: target, Readonly: true, VolumeContext: attributes,
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY},
		},
	})
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, plugin.Log(), mounter.Log())
	}
	job := manifest(t, "train/csi", "Job", "train-digits")
	container, _ := c.pod(t, job, "train")
	container.Volumes["/data"] = c.host + target // the claim
	reader := holder(t, container)
	c.trains(t, job, reader.Path(""))
	reader.Kill(t)
	if out, err := mounter.Exec("/usr/bin/milkweed", "version").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, tier := range []string{"/emptydir/milkweed-mounter/memory", "/local/milkweed-csi"} {
		if used, _ := filepath.Glob(c.host + tier + "/*/milkweed.json"); len(used) != 1 {
			t.Errorf("the tier in %s has %q", tier, used)
		}
	}
	if _, err := node.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "milkweed-digits", TargetPath: target}); err != nil {
		t.Error(err)
	}
	mounter.Stop(t)
	plugin.Stop(t)
}

// A pod of the job that runs when the pod of peers is killed reads from the next one.
func (c *cluster) testPeers(t *testing.T) {
	peers, line := c.pod(t, manifest(t, "peers", "DaemonSet", "milkweed-imagenet"), "milkweed")
	for i, word := range line { // one node, without DNS and without a bucket
		switch {
		case word == "dns:milkweed-imagenet":
			line[i] = "127.0.0.1"
		case strings.HasPrefix(word, "s3://"):
			line[i] = "/source/digits"
		}
	}
	point := line[len(line)-1]
	if err := errors.Join(os.MkdirAll(c.host+point, 0o755), os.MkdirAll(c.host+"/local", 0o755)); err != nil {
		t.Fatal(err)
	}
	key, err := exec.Command(programs+"/milkweed", "peers", "keygen").Output()
	if err == nil {
		err = os.WriteFile(peers.Volumes["/etc/milkweed"]+"/key", key, 0o400)
	}
	if err != nil {
		t.Fatal(err)
	}
	isMounted := func() bool {
		m, err := mountAt(c.host + point)
		if err != nil {
			t.Fatal(err)
		}
		return m.Type == fsType
	}
	first := peers.Start(t, line...)
	first.Await(t, isMounted)

	job := manifest(t, "train/peers", "Job", "train-digits")
	container, _ := c.pod(t, job, "train")
	reader := holder(t, container)
	c.trains(t, job, reader.Path(""))

	if out, err := reader.Exec("/usr/bin/milkweed", "manifest", "/data/"+filepath.Base(point)).Output(); err != nil || !bytes.Contains(out, []byte("0000.png")) {
		t.Errorf("the user of the job lists the mount: %v\n%s", err, out)
	}

	// The kernel may have cached files, but not what statfs(2) returns.
	answers := func() error {
		return exec.Command("stat", "--file-system", reader.Path("/data/"+filepath.Base(point))).Run()
	}
	if err := answers(); err != nil {
		t.Error(err)
	}
	first.Kill(t)
	if answers() == nil {
		t.Error("a daemon that was killed answers")
	}
	second := peers.Start(t, line...)
	second.Await(t, func() bool { return answers() == nil })
	c.trains(t, job, reader.Path(""))
	reader.Kill(t)
	second.Stop(t)
}

// holder starts the container of a job, in which nothing happens: the image has no sleep(1).
func holder(t *testing.T, c kubetest.Container) *kubetest.Running {
	t.Helper()
	return c.Start(t, "/usr/bin/milkweed-k8s", "mounter", "--socket", "/dev/shm/mounter.sock")
}

func (c *cluster) testFluid(t *testing.T) {
	profile := manifest(t, "fluid", "ThinRuntimeProfile", "milkweed")
	lines := profile.Commands()
	if len(lines) != 2 {
		t.Fatalf("the profile has the commands %q, want that of the container and that of the hook", lines)
	}
	const target = "/runtime-mnt/thin/default/digits/thin-fuse"
	config := `{"mounts":[{"mountPoint":"local:///source/digits","name":"digits","path":"/"}],"targetPath":"` + target + `","accessModes":["ReadOnlyMany"]}`
	pod := kubetest.Container{Image: c.image, Privileged: true, Volumes: map[string]string{
		"/etc/fluid/config": c.host + "/config", filepath.Dir(target): c.host + "/target", "/memory": c.host + "/memory", "/local": c.host + "/fluid", "/source": c.host + "/source",
	}}
	for _, folder := range pod.Volumes {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(c.host+"/config/config.json", []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	p := pod.Start(t, lines[0]...)
	image := "/train/0/0000.png"
	want, err := os.ReadFile(c.source + image)
	if err != nil {
		t.Fatal(err)
	}
	p.Await(t, func() bool {
		got, err := exec.Command("cat", p.Path(target+image)).Output()
		return err == nil && bytes.Equal(got, want)
	})
	if out, err := p.Exec(lines[1]...).CombinedOutput(); err != nil {
		t.Errorf("the hook: %v\n%s", err, out)
	}
	p.Stop(t)
	if _, err := os.Stat(c.host + "/memory/milkweed"); errors.Is(err, os.ErrNotExist) {
		t.Error("the tier of the profile was not used")
	}
}
