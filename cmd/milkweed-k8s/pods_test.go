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

// trains runs the job of examples/kubernetes/train with data in place of its volume, compares the losses
// of its steps with those of a job that reads the source, and both with nothing else.
func trains(t *testing.T, data, source string) {
	t.Helper()
	job := manifest(t, "train/csi", "Job", "train-digits")
	container := job.Get("spec", "template", "spec", "containers").([]any)[0].(map[string]any)
	run := func(data string) string {
		t.Helper()
		losses := filepath.Join(t.TempDir(), "losses")
		var line []string
		for _, word := range container["command"].([]any) {
			line = append(line, fmt.Sprint(word))
		}
		if want := []string{"python3", "/scripts/train.py", "/data"}; !slices.Equal(line[:3], want) {
			t.Fatalf("the job runs %q, want %q", line, want)
		}
		line = slices.Concat([]string{"-B", examples + "/pytorch/train.py", data}, line[3:], []string{"--losses", losses})
		if out, err := exec.Command(python, line...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", line, err, out)
		}
		text, err := os.ReadFile(losses)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if got, want := run(data), run(source); got != want || strings.Count(want, "\n") < 50 {
		t.Errorf("losses on the volume\n%s\nlosses on the source\n%s", got, want)
	}
}

// The pods of examples/kubernetes work in containers that have nothing but the image and the volumes of
// the manifests: the plugin and the mounter serve a volume, on which the job trains, and the FUSE
// container of Fluid mounts and unmounts a dataset.
func TestPodsOfTheExamples(t *testing.T) {
	if testing.Short() {
		t.Skip("builds an image and runs its containers")
	}
	image := kubetest.BuildImage(t)
	dir, err := os.MkdirTemp("", "node-") // short: it has sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	source := dir + "/source/digits"
	if out, err := exec.Command(python, "-B", examples+"/pytorch/make_digits.py", source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	t.Run("csi", func(t *testing.T) {
		c, line := kubetest.PodContainer(t, image, manifest(t, "csi", "DaemonSet", "milkweed-csi"), "plugin", dir)
		plugin := c.Start(t, line...)
		c, line = kubetest.PodContainer(t, image, manifest(t, "csi", "DaemonSet", "milkweed-mounter"), "mounter", dir)
		c.Volumes["/source"] = dir + "/source"
		socket := dir + "/run/milkweed-csi/mounter.sock"
		plugin.Await(t, func() bool { // the folder belongs to the mounter
			info, err := os.Stat(filepath.Dir(socket))
			return err == nil && info.Mode().Perm() == 0o700
		})
		mounter := c.Start(t, append(line, "--source-dir", "/source")...)
		mounter.Await(t, func() bool { return exists(socket) })
		conn, err := grpc.NewClient("unix://"+dir+"/var/lib/kubelet/plugins/"+csiName+"/csi.sock",
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
		if err := os.MkdirAll(dir+filepath.Dir(target), 0o755); err != nil {
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
		trains(t, plugin.Path(target), source)
		if out, err := mounter.Exec("/usr/bin/milkweed", "version").CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		if used, _ := filepath.Glob(dir + "/emptydir/milkweed-mounter/memory/*/milkweed.json"); len(used) != 1 {
			t.Errorf("the tier in memory has %q", used)
		}
		if used, _ := filepath.Glob(dir + "/local/milkweed/*/milkweed.json"); len(used) != 1 {
			t.Errorf("the tier on disk has %q", used)
		}
		if _, err := node.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "milkweed-digits", TargetPath: target}); err != nil {
			t.Error(err)
		}
		mounter.Stop(t)
		plugin.Stop(t)
	})

	t.Run("fluid", func(t *testing.T) {
		profile := manifest(t, "fluid", "ThinRuntimeProfile", "milkweed")
		lines := profile.Commands()
		if len(lines) != 2 {
			t.Fatalf("the profile has the commands %q, want that of the container and that of the hook", lines)
		}
		const target = "/runtime-mnt/thin/default/digits/thin-fuse"
		config := `{"mounts":[{"mountPoint":"local:///source/digits","name":"digits","path":"/"}],"targetPath":"` + target + `","accessModes":["ReadOnlyMany"]}`
		c := kubetest.Container{Image: image, Privileged: true, Volumes: map[string]string{
			"/etc/fluid/config": dir + "/config", filepath.Dir(target): dir + "/target", "/memory": dir + "/memory", "/local": dir + "/fluid", "/source": dir + "/source",
		}}
		for _, folder := range c.Volumes {
			if err := os.MkdirAll(folder, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(dir+"/config/config.json", []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
		p := c.Start(t, lines[0]...)
		image := "/train/0/0000.png"
		want, err := os.ReadFile(source + image)
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
		if _, err := os.Stat(dir + "/memory/milkweed"); errors.Is(err, os.ErrNotExist) {
			t.Error("the tier of the profile was not used")
		}
	})
}
