package kubetest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// An Image is an image of examples/container/Dockerfile on an empty base.
type Image struct {
	root   string // its files
	config struct {
		Entrypoint []string
		User       string
		WorkingDir string
		Labels     map[string]string
	}
}

// BuildImage builds the image by buildah, without a network. It skips the test without root or without
// buildah. The files exist until the end of the test.
func BuildImage(t *testing.T) Image {
	t.Helper()
	drivertest.Need(t, "root", "buildah")
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, runtime.GOARCH), os.DirFS(Programs(t))); err != nil {
		t.Fatal(err)
	}
	store := t.TempDir()
	buildah := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("buildah", append([]string{"--root", store + "/root", "--runroot", store + "/run", "--storage-driver", "vfs"}, args...)...)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("buildah %q: %v\n%s", args, err, errs.String())
		}
		return strings.TrimSpace(string(out))
	}
	buildah("build", "--isolation", "chroot", "--platform", "linux/"+runtime.GOARCH, "--build-arg", "BASE=scratch", "--build-arg", "VERSION=1.2.3",
		"--tag", "milkweed:test", "--file", filepath.Join(root(t), "examples/container/Dockerfile"), dir)
	container := buildah("from", "--pull-never", "localhost/milkweed:test")
	i := Image{root: buildah("mount", container)}
	t.Cleanup(func() { buildah("umount", container) })
	var inspected struct {
		OCIv1 struct{ Config json.RawMessage }
	}
	if err := json.Unmarshal([]byte(buildah("inspect", "--type", "image", "localhost/milkweed:test")), &inspected); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(inspected.OCIv1.Config, &i.config); err != nil {
		t.Fatal(err)
	}
	return i
}

// A Container runs programs of an image.
type Container struct {
	Image      Image
	User       int
	Privileged bool // has all capabilities, if the user is root; otherwise only CAP_SYS_ADMIN
	ReadOnly   bool // whether the image is read-only
	Env        []string
	Volumes    map[string]string // by path in the container: the folder

	// Propagation has the propagation of mounts in volumes, by path in the container: "rshared" for
	// Bidirectional, "rslave" for HostToContainer, and "rprivate" for those that are missing. Unless it is
	// empty, all mounts of the test must be private, except those of such volumes, which are shared.
	Propagation map[string]string
}

// runContainer is what a container engine does: namespaces, /proc, /dev/fuse for root, volumes,
// capabilities. Its arguments are the folder of the image, the user, "ro" or "rw", the capabilities as
// setpriv has them, and for each volume its folder, its path in the container and its propagation; after "--"
// comes the command. The folder is covered by a tmpfs with a copy of the image, so that the image stays as it is.
const runContainer = `set -e
image=$1 user=$2 access=$3 capabilities=$4; shift 4
new=$(mktemp -d)
mount -t tmpfs none "$new"
cp -a "$image/." "$new"
mkdir -p "$new/proc" "$new/dev"
mount -t proc proc "$new/proc"
touch "$new/dev/null"
mount --bind /dev/null "$new/dev/null"
if [ "$user" = 0 ]; then
	touch "$new/dev/fuse"
	mount --bind /dev/fuse "$new/dev/fuse"
fi
while [ "$1" != -- ]; do
	mkdir -p "$new$2"
	mount --rbind "$1" "$new$2"
	mount "--make-$3" "$new$2"
	shift 3
done
shift
[ "$access" = rw ] || mount -o remount,ro "$new"
exec setpriv --bounding-set="$capabilities" --no-new-privs chroot --userspec="$user:$user" "$new" "$@"
`

// Command returns the command that runs a program in the container.
func (c Container) Command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	access := "rw"
	if c.ReadOnly {
		access = "ro"
	}
	capabilities := "-all,+sys_admin,+sys_chroot,+setuid,+setgid" // the last three for chroot(1)
	if c.Privileged {
		capabilities = "+all"
	}
	others := "private"
	if len(c.Propagation) > 0 {
		others = "unchanged"
	}
	words := []string{"--mount", "--propagation", others, "--pid", "--fork", "--kill-child", "sh", "-c", runContainer, "sh", c.Image.root, strconv.Itoa(c.User), access, capabilities}
	for path, folder := range c.Volumes {
		words = append(words, folder, path, cmp.Or(c.Propagation[path], "rprivate"))
	}
	cmd := exec.Command("unshare", slices.Concat(words, []string{"--"}, args)...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir()}, c.Env...)
	return cmd
}

// A Running is a container that runs.
type Running struct {
	pid   int      // of the command
	user  int      // of the container
	env   []string // of the container
	log   *os.File
	ended chan error
}

// Start starts a program in the container, and kills it at the end of the test.
func (c Container) Start(t *testing.T, args ...string) *Running {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := c.Command(t, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &Running{user: c.User, env: cmd.Env, log: log, ended: make(chan error, 1)}
	done := make(chan struct{})
	go func() { p.ended <- cmd.Wait(); close(done) }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-done
		log.Close()
	})
	p.Await(t, func() bool {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
		p.pid, _ = strconv.Atoi(strings.TrimSpace(string(children)))
		name, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.pid))
		return strings.Contains(name, "/usr/bin/milkweed")
	})
	return p
}

// Path returns a path of the container for processes outside.
func (p *Running) Path(path string) string { return fmt.Sprintf("/proc/%d/root%s", p.pid, path) }

// Exec returns a command that runs in the container as its user, as kubectl exec does.
func (p *Running) Exec(args ...string) *exec.Cmd {
	user := strconv.Itoa(p.user)
	cmd := exec.Command("nsenter", append([]string{"--target", strconv.Itoa(p.pid), "--mount", "--pid", "--root", "--wdns=/", "--setuid", user, "--setgid", user}, args...)...)
	cmd.Env = p.env
	return cmd
}

// Log returns what the container printed.
func (p *Running) Log() string {
	text, err := os.ReadFile(p.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Wait waits for the end of the container, and returns an error unless its exit code is 0.
func (p *Running) Wait() error { return <-p.ended }

// Await waits until ok returns true, and fails the test if the container ends before, or if it takes a minute.
func (p *Running) Await(t *testing.T, ok func() bool) {
	t.Helper()
	late := time.After(time.Minute)
	for !ok() {
		select {
		case err := <-p.ended:
			t.Fatalf("the container ended: %v\n%s", err, p.Log())
		case <-late:
			t.Fatalf("the container has not done it in a minute:\n%s", p.Log())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Stop ends the container by SIGTERM, and fails the test unless its exit code is 0.
func (p *Running) Stop(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(p.pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("%v\n%s", err, p.Log())
	}
}

// Kill ends the container by SIGKILL.
func (p *Running) Kill(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.Wait()
}

// PodContainer returns a container of the pods of an object, and its command line. node is a folder that
// has the files of the node, in which the folders of hostPath volumes are; those of emptyDir volumes are
// made in it.
func PodContainer(t *testing.T, image Image, o Object, name, node string) (Container, []string) {
	t.Helper()
	spec := o.podSpec()
	i := slices.Index(o.Containers(), name)
	if i < 0 {
		t.Fatalf("%v has no container %s", o.ID(), name)
	}
	given := spec.list("containers")[i]
	c := Container{Image: image, Volumes: make(map[string]string), Propagation: make(map[string]string)}
	for _, context := range []Object{spec, given} { // that of the container overrides
		if user, ok := context.Get("securityContext", "runAsUser").(int); ok {
			c.User = user
		}
	}
	c.Privileged, _ = given.Get("securityContext", "privileged").(bool)
	c.ReadOnly, _ = given.Get("securityContext", "readOnlyRootFilesystem").(bool)
	line := strings.Join(slices.Concat(given.words("command"), given.words("args")), "\x00")
	for _, e := range given.list("env") {
		value := e.text("value")
		if e.text("valueFrom", "fieldRef", "fieldPath") == "spec.nodeName" {
			value = "node1"
		}
		c.Env = append(c.Env, e.text("name")+"="+value)
		line = strings.ReplaceAll(line, "$("+e.text("name")+")", value)
	}
	for _, v := range spec.list("volumes") {
		folder := filepath.Join(node, "emptydir", o.Name(), v.text("name"))
		mode := os.FileMode(0o777)
		if path := v.text("hostPath", "path"); path != "" {
			folder, mode = filepath.Join(node, path), 0o755
		}
		if err := os.MkdirAll(folder, mode); err != nil {
			t.Fatal(err)
		}
		if mode == 0o777 { // whatever the umask is
			if err := os.Chmod(folder, mode); err != nil {
				t.Fatal(err)
			}
		}
		for _, m := range given.list("volumeMounts") {
			if m.text("name") == v.text("name") {
				c.Volumes[m.text("mountPath")] = folder
				switch m.text("mountPropagation") {
				case "Bidirectional":
					c.Propagation[m.text("mountPath")] = "rshared"
				case "HostToContainer":
					c.Propagation[m.text("mountPath")] = "rslave"
				}
			}
		}
	}
	return c, strings.Split(line, "\x00")
}
