package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A pod reads all bytes of an inline volume and of a persistent one. Afterwards nothing is left.
func TestPublish(t *testing.T) {
	n := newNode(t)
	n.startPlugin()
	n.startMounter()
	n.check(n.publish(n.inline("pod1", map[string]string{sourceKey: n.source, optionsKey: "attr_timeout=10s,noexec"})))
	n.read("pod1")
	m, err := mountAt(n.target("pod1"))
	n.check(err)
	readAhead, err := os.ReadFile(fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(m.Dev), unix.Minor(m.Dev)))
	if err != nil || string(readAhead) != "1024\n" {
		t.Errorf("the kernel reads ahead %q KiB, %v", readAhead, err)
	}
	t.Run("user namespace", func(t *testing.T) {
		if _, err := drivertest.MountMapped(t, n.target("pod1"), 300_000); err != nil {
			t.Error(err)
		}
	})
	n.check(n.publish(n.persistent("pod2", map[string]string{sourceKey: n.source, configurationKey: "[mount]\nmode = \"cached\"\n[[tier]]\nname = \"other\"\npath = \"" + n.dir + "/home/tier\"\nquota = \"64MiB\"\n"})))
	n.read("pod2")
	if !exists(n.dir + "/home/tier") {
		t.Error("the tier of the configuration is not used")
	}
	if out, err := exec.Command("touch", n.target("pod2")+"/new").CombinedOutput(); err == nil {
		t.Errorf("the volume is writable: %s", out)
	}
	if got := len(n.daemons()); got != 2 {
		t.Errorf("%d daemons, want 2", got)
	}
	for _, pod := range []string{"pod1", "pod2"} {
		n.check(n.unpublish(pod))
		if exists(n.target(pod)) {
			t.Errorf("%s is left", n.target(pod))
		}
	}
	if left := n.daemons(); len(left) > 0 {
		t.Errorf("still running after the volumes were unpublished: %d", left)
	}
}

// Without the mounter, a volume is unavailable, and can be unpublished.
func TestNoMounter(t *testing.T) {
	n := newNode(t)
	n.startPlugin()
	err := n.publish(n.inline("pod1", map[string]string{sourceKey: n.source}))
	wantCode(t, err, codes.Unavailable, "Start the pod of milkweed-k8s mounter")
	if exists(n.target("pod1")) {
		t.Error("the target is left")
	}
	n.check(n.unpublish("pod1"))
}

// Volumes with the same attributes share a daemon, however many are published at once, and however
// often. It serves the last of them after the others are unpublished.
func TestShared(t *testing.T) {
	n := newNode(t)
	n.startPlugin()
	n.startMounter()
	pods := []string{"pod1", "pod2", "pod3", "pod4"}
	var publishing sync.WaitGroup
	for _, pod := range pods {
		r := n.inline(pod, map[string]string{sourceKey: n.source})
		for range 3 {
			publishing.Go(func() {
				if err := n.publish(r); err != nil {
					t.Errorf("%s: %v", pod, err)
				}
			})
		}
	}
	publishing.Wait()
	if got := len(n.daemons()); got != 1 {
		t.Errorf("%d daemons, want 1", got)
	}
	if got := n.mounts(); len(got) != len(pods) {
		t.Errorf("mounted: %q, want each target once", got)
	}
	table, err := mounts.Read(mounts.Self)
	n.check(err)
	groups := make(map[string]bool)
	for _, pod := range pods {
		m, _ := table.At(n.target(pod))
		groups[m.PeerGroup] = true
	}
	if groups[""] || len(groups) != len(pods) {
		t.Errorf("the peer groups are %v, want one for each pod", groups)
	}
	for i, pod := range pods {
		n.read(pod)
		n.check(n.unpublish(pod))
		if got, want := len(n.daemons()), min(1, len(pods)-1-i); got != want {
			t.Errorf("after %s was unpublished: %d daemons, want %d", pod, got, want)
		}
	}
}

// The plugin is restarted while volumes are published: it finds them in the table of mounts.
func TestRestart(t *testing.T) {
	n := newNode(t)
	n.startPlugin()
	n.startMounter()
	first := n.inline("pod1", map[string]string{sourceKey: n.source})
	n.check(n.publish(first))
	n.check(os.Symlink(n.kubelet, n.dir+"/link"))
	linked := n.inline("pod1", map[string]string{sourceKey: n.source})
	linked.TargetPath = strings.Replace(linked.TargetPath, n.kubelet, n.dir+"/link", 1)
	n.check(n.publish(linked)) // the same target
	if got := n.mounts(); len(got) != 1 {
		t.Errorf("mounted: %q", got)
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := n.plugin.end(s); s == syscall.SIGTERM && err != nil {
			t.Errorf("the plugin has ended with %v", err)
		}
		n.read("pod1")
		n.startPlugin()
		n.check(n.publish(first))
	}
	n.check(n.publish(n.inline("pod2", map[string]string{sourceKey: n.source})))
	n.read("pod2")
	if got := len(n.daemons()); got != 1 {
		t.Errorf("%d daemons, want 1", got)
	}
	n.check(n.unpublish("pod1"))
	n.check(n.unpublish("pod2"))
}

// After the end of a daemon, or of the mounter, containers that have their volume with mountPropagation:
// HostToContainer read again, also one that was started after the first such end. Daemons of other volumes
// go on.
func TestDeadDaemon(t *testing.T) {
	n := newNode(t)
	n.startPlugin()
	n.startMounter()
	other := n.dir + "/data/other"
	n.check(os.Mkdir(other, 0o755))
	n.check(os.WriteFile(other+"/b", []byte("b\n"), 0o644))
	sources := map[string]string{"pod1": n.source, "pod2": n.source, "pod3": other}
	containers := make(map[string][]*container)
	publish := func() {
		for _, pod := range slices.Sorted(maps.Keys(sources)) {
			n.check(n.publish(n.inline(pod, map[string]string{sourceKey: sources[pod]})))
		}
	}
	run := func() {
		for pod := range sources {
			containers[pod] = append(containers[pod], n.run(pod))
		}
	}
	n.check(os.Mkdir(n.source+"/folder", 0o755))
	publish()
	run()
	subPath := n.kubelet + "/pods/pod1/volume-subpaths" // of a container with a subPath, which kubelet binds
	n.check(os.Mkdir(subPath, 0o755))
	n.check(unix.Mount(n.target("pod1")+"/folder", subPath, "", unix.MS_BIND, ""))
	kill := func() {
		sibling := n.daemonOf(other)
		n.check(unix.Kill(n.daemonOf(n.source), unix.SIGKILL))
		if got := containers["pod3"][0].read(); got != "b" || n.daemonOf(other) != sibling {
			t.Errorf("after the end of another daemon: got %q", got)
		}
	}
	for _, end := range []func(){
		kill,
		func() {
			if err := n.mounter.end(syscall.SIGTERM); err != nil {
				t.Errorf("the mounter has ended with %v", err)
			}
			n.eventually("the daemons have ended", func() bool { return len(n.daemons()) == 0 })
			_, err := n.client.NodeGetVolumeStats(n.context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "csi-pod1", VolumePath: n.target("pod1")})
			wantCode(t, err, codes.Internal, "has died")
			n.startMounter()
		},
		func() {
			n.mounter.end(syscall.SIGKILL)
			n.startMounter()
		},
		func() { // a new plugin knows the volumes that kubelet has published again
			n.plugin.end(syscall.SIGKILL)
			n.mounter.end(syscall.SIGKILL)
			n.eventually("the daemons have ended", func() bool { return len(n.daemons()) == 0 })
			n.startPlugin()
			n.startMounter()
			publish()
		},
		kill,
	} {
		before := n.daemonOf(n.source)
		end()
		n.eventually("another daemon serves", func() bool { pid := n.daemonOf(n.source); return pid != 0 && pid != before })
		for pod, all := range containers {
			for _, c := range all {
				n.eventually(pod+" reads again", func() bool { return c.read() == "b" })
			}
		}
		if len(containers["pod1"]) == 1 {
			run() // as after the restart of a container
		}
	}
	for _, c := range containers["pod1"] {
		c.end()
	}
	n.check(unix.Unmount(subPath, 0))
	inUse, err := os.Open(n.target("pod2") + "/b")
	n.check(err)
	n.check(n.unpublish("pod1"))
	inUse.Close()
	if got := containers["pod2"][0].read(); got != "b" {
		t.Errorf("after another pod has ended, pod2 reads %q", got)
	}
	n.mounter.end(syscall.SIGKILL)
	n.eventually("the daemons have ended", func() bool { return len(n.daemons()) == 0 })
	for _, pod := range []string{"pod2", "pod3"} {
		for _, c := range containers[pod] {
			c.end()
		}
		n.check(n.unpublish(pod)) // dead mounts
	}
	n.startMounter()
	n.check(n.publish(n.inline("pod1", map[string]string{sourceKey: n.source}))) // removes what a killed daemon was copying
	n.check(n.unpublish("pod1"))
}

// Bind mounts of one volume, which earlier versions have made, and which are made before Linux 5.12, are
// mounted again at their targets. They do not become more and more, and can be unmounted one by one.
func TestDeadDaemonOfBindMounts(t *testing.T) {
	n := newNode(t)
	n.startPlugin()
	n.startMounter()
	pods := []string{"pod1", "pod2"}
	n.check(n.publish(n.inline("pod1", map[string]string{sourceKey: n.source})))
	n.check(os.MkdirAll(n.target("pod2"), 0o755))
	n.check(unix.Mount(n.target("pod1"), n.target("pod2"), "", unix.MS_BIND, ""))
	n.check(n.publish(n.inline("pod2", map[string]string{sourceKey: n.source})))

	// An attempt that fails leaves nothing mounted, and is repeated.
	n.check(os.Rename(n.source, n.source+"-away"))
	n.check(unix.Kill(n.daemonOf(n.source), unix.SIGKILL))
	n.eventually("an attempt has failed", func() bool {
		log, err := os.ReadFile(n.dir + "/plugin.log")
		n.check(err)
		return strings.Contains(string(log), "not mounted again yet") && len(n.mounts()) == 0
	})
	n.check(os.Rename(n.source+"-away", n.source))
	n.eventually("another daemon serves", func() bool { return n.daemonOf(n.source) != 0 && len(n.mounts()) > 0 })
	for _, pod := range pods {
		n.check(n.publish(n.inline(pod, map[string]string{sourceKey: n.source})))
		n.read(pod)
	}

	for round := range 2 {
		before := n.daemonOf(n.source)
		n.check(unix.Kill(before, unix.SIGKILL))
		n.eventually("another daemon serves", func() bool { pid := n.daemonOf(n.source); return pid != 0 && pid != before })
		for _, pod := range pods {
			n.check(n.publish(n.inline(pod, map[string]string{sourceKey: n.source})))
			n.read(pod)
		}
		if got, most := n.mounts(), len(pods)*(2+round); len(got) > most {
			t.Fatalf("%d mounts after the end of %d daemons, want at most %d", len(got), 1+round, most)
		}
	}
	inUse, err := os.Open(n.target("pod2") + "/b")
	n.check(err)
	n.check(n.unpublish("pod1"))
	inUse.Close()
	n.check(n.unpublish("pod2"))
}

// At most maxStacked mounts are at a target, however often the daemon dies.
func TestDeadMountsAreBounded(t *testing.T) {
	n := newNode(t)
	n.startPlugin()
	n.startMounter()
	r := n.inline("pod1", map[string]string{sourceKey: n.source})
	n.check(os.Mkdir(n.target("pod1"), 0o755))
	for range maxStacked {
		fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
		n.check(err)
		n.check(unix.Mount("dead", n.target("pod1"), fsType, 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)))
		n.check(unix.Close(fd))
	}
	n.check(n.publish(r))
	n.read("pod1")
	if got := len(n.mounts()); got != maxStacked {
		t.Errorf("%d mounts, want %d", got, maxStacked)
	}
	n.check(n.unpublish("pod1"))
}

// A daemon that is killed while it tells the kernel that a file has changed, and a read of the file is in
// progress, does not end by itself, and its mount hangs. The volume is mounted again, also if the mounter
// was killed, too, as the OOM killer may do with a container, or ends.
func TestVolumeDiesWhileItNotifies(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{"mounter serves": 0, "mounter is killed": syscall.SIGKILL, "mounter ends": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.startPlugin()
			n.startMounter()
			n.check(os.WriteFile(n.source+"/slow", make([]byte, 8<<20), 0o644))
			n.check(n.publish(n.inline("pod1", map[string]string{sourceKey: n.source, optionsKey: "mode=stateless,source_bandwidth=100kB,attr_timeout=100ms"})))
			pid := n.daemonOf(n.source)
			slow := n.target("pod1") + "/slow"
			connection, err := mounts.Connection(n.device("pod1"), n.target("pod1"))
			n.check(err)
			t.Cleanup(func() { connection.Abort(); connection.Close() }) // after a failure, the daemon could not end
			reader := exec.Command("cat", slow)
			n.check(reader.Start())
			read := make(chan error, 1)
			go func() { read <- reader.Wait() }()
			n.eventually("the file is being read", func() bool { return drivertest.WaitsIn(reader.Process.Pid, "folio") })
			n.check(os.Chmod(n.source+"/slow", 0o444))
			n.eventually("the daemon notifies the kernel", func() bool {
				os.Stat(slow)
				return drivertest.WaitsIn(pid, "folio_lock")
			})
			n.check(unix.Kill(pid, unix.SIGKILL))
			if signal != 0 {
				n.check(n.mounter.cmd.Process.Signal(signal))
			}
			n.eventually("the reader and the daemon have ended", func() bool { return len(read) > 0 && !slices.Contains(n.daemons(), pid) })
			if err := <-read; err == nil {
				t.Error("the read of a daemon that was killed has succeeded")
			}
			if signal != 0 {
				n.mounter.end(signal)
				n.startMounter()
			}
			n.eventually("pod1 reads again", func() bool {
				text, err := os.ReadFile(n.target("pod1") + "/b")
				return err == nil && string(text) == "b\n"
			})
			n.check(n.unpublish("pod1"))
		})
	}
}

// The kernel gives the device number of a file system that has ended to the next one. A volume that is
// published while the daemon of another one ends is not taken for that one: a pod reads its own dataset,
// and a file that is open stays readable.
func TestNumberOfAnotherVolume(t *testing.T) {
	n := newNode(t)
	n.startPlugin()
	n.startMounter()
	n.check(n.publish(n.inline("pod1", map[string]string{sourceKey: n.source})))
	number := n.device("pod1")
	pid := n.daemonOf(n.source)
	drivertest.Stop(t, pid) // its end takes long
	unpublished := make(chan error, 1)
	go func() { unpublished <- n.unpublish("pod1") }()
	n.eventually("pod1 is unmounted", func() bool { return len(n.mounts()) == 0 })

	other := ""
	for i := range 20 { // another program may take the number
		n.takeLower(number)
		pod := fmt.Sprint("other", i)
		source := n.dir + "/data/" + pod
		n.check(os.Mkdir(source, 0o755))
		n.check(os.WriteFile(source+"/b", []byte("other\n"), 0o644))
		n.check(os.WriteFile(source+"/large", make([]byte, 8<<20), 0o644))
		n.check(n.publish(n.inline(pod, map[string]string{sourceKey: source, optionsKey: "mode=cached"})))
		if n.device(pod) == number {
			other = pod
			break
		}
	}
	if other == "" {
		t.Fatalf("no later file system got the number %d", number)
	}
	serving := n.daemonOf(n.dir + "/data/" + other)
	open, err := os.Open(n.target(other) + "/large")
	n.check(err)
	defer open.Close()

	published := make(chan error, 1)
	go func() { published <- n.publish(n.inline("pod2", map[string]string{sourceKey: n.source})) }()
	select {
	case err := <-published:
		text, _ := os.ReadFile(n.target("pod2") + "/b")
		t.Fatalf("pod2 was published before its daemon has ended: %v; it reads %q", err, text)
	case <-time.After(time.Second):
	}
	n.check(unix.Kill(pid, unix.SIGCONT))
	n.check(<-unpublished)
	n.check(<-published)
	n.read("pod2")
	if _, err := open.ReadAt(make([]byte, 1<<20), 7<<20); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(n.target(other) + "/b"); err != nil || string(text) != "other\n" {
		t.Errorf("%s reads %q, %v", other, text, err)
	}
	if now := n.daemonOf(n.dir + "/data/" + other); now != serving {
		t.Errorf("the daemon of %s: got process %d, want %d", other, now, serving)
	}
	n.check(n.unpublish("pod2"))
	open.Close()
	for _, point := range n.mounts() {
		n.check(n.unpublish(filepath.Base(strings.TrimSuffix(point, "/volumes/kubernetes.io~csi/data/mount"))))
	}
}

// takeLower takes the device numbers below one that is free: a new file system gets the lowest.
func (n *node) takeLower(number uint64) {
	n.t.Helper()
	for range 1000 {
		dir := n.t.TempDir()
		n.check(unix.Mount("number", dir, "tmpfs", 0, ""))
		var st unix.Stat_t
		n.check(unix.Stat(dir, &st))
		if st.Dev >= number {
			n.check(unix.Unmount(dir, 0))
			return
		}
		n.t.Cleanup(func() { n.check(unix.Unmount(dir, unix.MNT_DETACH)) })
	}
}

// device returns the device number of the volume of a pod.
func (n *node) device(pod string) uint64 {
	n.t.Helper()
	table, err := mounts.Read(mounts.Self)
	n.check(err)
	m, ok := table.At(n.target(pod))
	if !ok {
		n.t.Fatalf("%s is not mounted", pod)
	}
	return m.Dev
}

// The statistics of a volume are those of the dataset.
func TestStats(t *testing.T) {
	n := newNode(t)
	n.startPlugin()
	n.startMounter()
	n.check(n.publish(n.inline("pod1", map[string]string{sourceKey: n.source})))
	r, err := n.client.NodeGetVolumeStats(n.context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "csi-pod1", VolumePath: n.target("pod1")})
	n.check(err)
	if len(r.Usage) != 2 || r.Usage[0].Total <= 0 || r.Usage[0].Used+r.Usage[0].Available > r.Usage[0].Total {
		t.Errorf("usage: %v", r.Usage)
	}
	_, err = n.client.NodeGetVolumeStats(n.context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "csi-pod1", VolumePath: n.dir})
	wantCode(t, err, codes.NotFound, "no volume is mounted")
	n.check(n.unpublish("pod1"))
}

// A request that cannot be served has an error that says why, and leaves nothing.
func TestRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("publishes many volumes")
	}
	n := newNode(t)
	n.startPlugin()
	n.startMounter()
	n.check(os.Mkdir(n.dir+"/private", 0o700))
	n.check(os.Symlink("/proc/self", n.source+"/proc"))
	with := func(attributes map[string]string, change func(*csi.NodePublishVolumeRequest)) *csi.NodePublishVolumeRequest {
		if attributes[sourceKey] == "" {
			attributes[sourceKey] = n.source
		}
		r := n.inline("pod1", attributes)
		if change != nil {
			change(r)
		}
		return r
	}
	writable := func(r *csi.NodePublishVolumeRequest) { r.VolumeContext[ephemeralKey] = "false" }
	for name, c := range map[string]struct {
		request *csi.NodePublishVolumeRequest
		code    codes.Code
		says    string
	}{
		"no source":          {with(map[string]string{}, func(r *csi.NodePublishVolumeRequest) { delete(r.VolumeContext, sourceKey) }), codes.InvalidArgument, `"source" is missing`},
		"unknown attribute":  {with(map[string]string{"sorce": "x"}, nil), codes.InvalidArgument, "the attributes are source, options and configuration"},
		"newline in source":  {with(map[string]string{sourceKey: n.source + "\n/etc"}, nil), codes.InvalidArgument, "control character"},
		"flag as source":     {with(map[string]string{sourceKey: "--config=/etc/passwd"}, nil), codes.InvalidArgument, "may not use this directory"},
		"credentials":        {with(map[string]string{sourceKey: "s3://id:password@bucket"}, nil), codes.InvalidArgument, "has credentials"},
		"foreign directory":  {with(map[string]string{sourceKey: n.dir + "/private"}, nil), codes.InvalidArgument, "--source-dir"},
		"way up":             {with(map[string]string{sourceKey: n.source + "/../../private"}, nil), codes.InvalidArgument, "--source-dir"},
		"link to elsewhere":  {with(map[string]string{sourceKey: n.source + "/proc"}, nil), codes.InvalidArgument, "--source-dir"},
		"missing directory":  {with(map[string]string{sourceKey: n.dir + "/data/none"}, nil), codes.FailedPrecondition, "no such file"},
		"missing bucket":     {with(map[string]string{sourceKey: "s3://bucket?endpoint=http://127.0.0.1:1&anonymous=true"}, nil), codes.FailedPrecondition, "s3://bucket"},
		"unknown URL":        {with(map[string]string{sourceKey: "ftp://host/x"}, nil), codes.InvalidArgument, "ftp"},
		"option config":      {with(map[string]string{optionsKey: "config=/etc/passwd"}, nil), codes.InvalidArgument, `option "config" is not allowed`},
		"option log_file":    {with(map[string]string{optionsKey: "workers=2,log_file=/etc/x"}, nil), codes.InvalidArgument, `option "log_file" is not allowed`},
		"option metrics":     {with(map[string]string{optionsKey: "metrics=0.0.0.0:1"}, nil), codes.InvalidArgument, `option "metrics" is not allowed`},
		"newline in options": {with(map[string]string{optionsKey: "workers=2\n-f"}, nil), codes.InvalidArgument, "control character"},
		"bad value":          {with(map[string]string{optionsKey: "workers=many"}, nil), codes.InvalidArgument, "workers"},
		"inline configuration": {with(map[string]string{configurationKey: "[log]\nfile = \"/etc/x\"\n"}, nil), codes.InvalidArgument,
			"for persistent volumes"},
		"bad configuration": {with(map[string]string{configurationKey: "[mount"}, func(r *csi.NodePublishVolumeRequest) {
			writable(r)
			r.Readonly = true
		}), codes.InvalidArgument, "configuration"},
		"unknown key": {with(map[string]string{configurationKey: "[mount]\nmodus = \"cached\"\n"}, func(r *csi.NodePublishVolumeRequest) {
			writable(r)
			r.Readonly = true
		}), codes.InvalidArgument, "modus"},
		"unknown secret": {with(map[string]string{}, func(r *csi.NodePublishVolumeRequest) { r.Secrets = map[string]string{"LD_PRELOAD": "/x.so"} }), codes.InvalidArgument,
			`"LD_PRELOAD" of the secret is not allowed`},
		"secret with a file": {with(map[string]string{}, func(r *csi.NodePublishVolumeRequest) { r.Secrets = map[string]string{"AWS_CONFIG_FILE": "/x"} }), codes.InvalidArgument,
			`"AWS_CONFIG_FILE" of the secret is not allowed`},
		"writable": {with(map[string]string{}, writable), codes.InvalidArgument, "ReadOnlyMany"},
		"block": {with(map[string]string{}, func(r *csi.NodePublishVolumeRequest) {
			r.VolumeCapability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		}), codes.InvalidArgument, "Block"},
		"relative target": {with(map[string]string{}, func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "mount" }), codes.InvalidArgument, "absolute"},
	} {
		t.Run(name, func(t *testing.T) {
			err := n.publish(c.request)
			wantCode(t, err, c.code, c.says)
			if err != nil && (strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "password@")) {
				t.Errorf("the error has several lines, or the password: %q", err)
			}
			if exists(n.target("pod1")) || len(n.mounts()) > 0 || len(n.daemons()) > 0 {
				t.Errorf("left: mounts %q, daemons %d", n.mounts(), n.daemons())
			}
		})
	}
}

// Volumes of one dataset with different options need different tiers.
func TestLockedTier(t *testing.T) {
	n := newNode(t)
	n.startPlugin()
	n.startMounter()
	n.check(n.publish(n.inline("pod1", map[string]string{sourceKey: n.source})))
	err := n.publish(n.inline("pod2", map[string]string{sourceKey: n.source, optionsKey: "workers=2"}))
	wantCode(t, err, codes.FailedPrecondition, "the same source with other options")
	n.read("pod1")
	n.check(n.unpublish("pod1"))
	n.check(n.unpublish("pod2"))
}

// If kubelet gives up before the mount is ready, nothing is left of it.
func TestGivenUp(t *testing.T) {
	n := newNode(t)
	n.startPlugin()
	never := n.dir + "/never"
	n.check(os.WriteFile(never, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o755))
	n.startMounter("--milkweed", never)
	children := func() string {
		pid := n.mounter.cmd.Process.Pid
		var all strings.Builder
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, file := range tasks {
			text, _ := os.ReadFile(file)
			all.Write(text)
		}
		return all.String()
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := n.client.NodePublishVolume(ctx, n.inline("pod1", map[string]string{sourceKey: n.source}))
		ended <- err
	}()
	n.eventually("the daemon is started", func() bool { return children() != "" })
	cancel()
	wantCode(t, <-ended, codes.Canceled, "")
	n.eventually("nothing is left", func() bool {
		return children() == "" && len(n.mounts()) == 0 && !exists(n.target("pod1"))
	})
	n.check(n.unpublish("pod1"))
}

// A volume that the plugin has not made is neither unmounted nor removed.
func TestForeign(t *testing.T) {
	n := newNode(t)
	n.startPlugin()
	n.startMounter()
	r := n.inline("pod1", map[string]string{sourceKey: n.source})
	target := n.target("pod1")
	n.check(os.Mkdir(target, 0o755))
	n.check(unix.Mount("none", target, "tmpfs", 0, ""))
	wantCode(t, n.publish(r), codes.FailedPrecondition, "another file system")
	wantCode(t, n.unpublish("pod1"), codes.FailedPrecondition, "another file system")
	n.check(unix.Unmount(target, 0))
	n.check(os.WriteFile(target+"/file", nil, 0o644))
	wantCode(t, n.unpublish("pod1"), codes.Internal, "not removed")
	if !exists(target + "/file") {
		t.Error("a file is removed")
	}
	n.check(os.Remove(target + "/file"))
	n.check(n.unpublish("pod1"))
	n.check(n.unpublish("pod1")) // it may be repeated
}

// A volume in use by a process is not unpublished.
func TestBusy(t *testing.T) {
	n := newNode(t)
	n.startPlugin()
	n.startMounter()
	n.check(n.publish(n.inline("pod1", map[string]string{sourceKey: n.source})))
	user := exec.Command("tail", "-f", n.target("pod1")+"/b")
	out, err := user.StdoutPipe()
	n.check(err)
	n.check(user.Start())
	_, err = out.Read(make([]byte, 1)) // it has opened the file
	n.check(err)
	wantCode(t, n.unpublish("pod1"), codes.FailedPrecondition, "in use")
	n.read("pod1")
	user.Process.Kill()
	user.Wait()
	n.check(n.unpublish("pod1"))
}

// A copy of the mount in another mount namespace does not keep its daemon after the volume is
// unpublished.
func TestElsewhere(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the end of a daemon")
	}
	n := newNode(t)
	n.startPlugin()
	n.startMounter()
	n.check(n.publish(n.inline("pod1", map[string]string{sourceKey: n.source})))
	holder := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", `cat "$1" >/dev/null; echo ready; exec cat`, "sh", n.target("pod1")+"/b")
	in, err := holder.StdinPipe()
	n.check(err)
	out, err := holder.StdoutPipe()
	n.check(err)
	n.check(holder.Start())
	_, err = out.Read(make([]byte, 1))
	n.check(err)
	n.check(n.unpublish("pod1"))
	if left := n.daemons(); len(left) > 0 {
		t.Errorf("still running: %d", left)
	}
	in.Close()
	holder.Wait()
}

// Only root and the user of the mounter may use its socket, and its daemons keep the secrets of a
// volume from processes of the same user.
func TestSocketOfTheMounter(t *testing.T) {
	n := newNode(t)
	n.startPlugin()
	n.startMounter("--tier", "ram:"+n.dir+"/home/ram:64MiB")
	r := n.inline("pod1", map[string]string{sourceKey: n.source})
	r.Secrets = map[string]string{"AWS_SECRET_ACCESS_KEY": "topsecret"}
	n.check(n.publish(r))
	pid := n.daemons()[0]
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil || !strings.Contains(string(environ), "AWS_SECRET_ACCESS_KEY=topsecret") {
		t.Errorf("the secret is not in the environment: %v", err)
	}
	for _, file := range []string{"environ", "mem", "fd"} {
		cmd := exec.Command("setpriv", fmt.Sprintf("--reuid=%d", mounterUser), fmt.Sprintf("--regid=%d", mounterUser), "--clear-groups", "--inh-caps=-all",
			"--", "ls", fmt.Sprintf("/proc/%d/fd/", pid))
		if file != "fd" {
			cmd.Args = append(cmd.Args[:len(cmd.Args)-2], "head", "-c1", fmt.Sprintf("/proc/%d/%s", pid, file))
		}
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "Permission denied") {
			t.Errorf("%s of a daemon is readable: %s", file, out)
		}
	}
	if logs, _ := os.ReadFile(n.dir + "/mounter.log"); strings.Contains(string(logs), "topsecret") {
		t.Error("the secret is in the log")
	}

	// The folder keeps other users out; with access, the check of the peer does.
	n.check(os.Chmod(filepath.Dir(n.socket()), 0o755))
	n.check(os.Chmod(n.socket(), 0o666))
	out, err := exec.Command("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "--", "/usr/bin/python3", "-c",
		"import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1]); s.send(b'{\"op\":\"find\"}'); print(len(s.recv(1000)))",
		n.socket()).CombinedOutput()
	if string(out) != "0\n" && !strings.Contains(string(out), "ConnectionResetError") && !strings.Contains(string(out), "BrokenPipeError") {
		t.Errorf("another user got %s, %v", out, err)
	}
	other := mounterClient{socket: n.socket(), uid: mounterUser + 1}
	if _, err := other.do(n.context(), request{Op: opFind}, nil); err == nil || !strings.Contains(err.Error(), "listens on") {
		t.Errorf("the mounter of another user is accepted: %v", err)
	}
	n.check(n.unpublish("pod1"))
}

// A plugin and a mounter that end leave no goroutine.
func TestNoGoroutineLeft(t *testing.T) {
	n := newNode(t)
	before := goleak.IgnoreCurrent()
	ctx, stop := context.WithCancel(t.Context())
	p := &plugin{node: "node1", mounter: mounterClient{socket: n.socket()}, log: newLog(io.Discard)}
	m := &mounter{program: programs + "/milkweed", tiers: []string{"ssd:" + n.tier + ":64MiB"}, sourceDirs: []string{n.dir}, log: newLog(io.Discard), stderr: io.Discard}
	ended := make(chan error, 2)
	go func() { ended <- p.run(ctx, "unix://"+n.dir+"/csi/csi.sock") }()
	go func() { ended <- m.run(ctx, n.socket()) }()
	n.eventually("both listen", func() bool {
		_, err := p.mounter.do(ctx, request{Op: opFind}, nil)
		conn, err2 := net.Dial("unix", n.dir+"/csi/csi.sock")
		if err2 == nil {
			conn.Close()
		}
		return err == nil && err2 == nil
	})
	for _, pod := range []string{"pod1", "pod2"} {
		if _, err := p.NodePublishVolume(ctx, n.inline(pod, map[string]string{sourceKey: n.source})); err != nil {
			t.Error(err)
		}
	}
	if _, err := p.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "csi-pod1", TargetPath: n.target("pod1")}); err != nil {
		t.Error(err)
	}
	stop()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if state, err := p.inspect(t.Context(), n.target("pod2")); state != dead {
		t.Errorf("after the end of the mounter, the mount is in state %d, %v", state, err)
	}
	n.check(unix.Unmount(n.target("pod2"), 0))
	goleak.VerifyNone(t, before)
}

// What the plugin knows of package fs, which it does not import, is right.
func TestType(t *testing.T) {
	n := newNode(t)
	n.visible = true
	n.startPlugin()
	n.startMounter()
	n.check(n.publish(n.inline("pod1", map[string]string{sourceKey: n.source, optionsKey: "noexec"})))
	text, err := os.ReadFile(mounts.Self)
	n.check(err)
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, n.target("pod1")) {
			continue
		}
		for _, word := range []string{" ro,nosuid,nodev,noexec", " fuse.milkweed " + n.source + " ", fmt.Sprintf("user_id=%d", mounterUser), "default_permissions,allow_other"} {
			if !strings.Contains(line, word) {
				t.Errorf("%q is not in %s", word, line)
			}
		}
	}
	n.check(n.unpublish("pod1"))
}
