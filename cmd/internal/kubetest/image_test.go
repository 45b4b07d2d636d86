package kubetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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
)

// maxImage is the size of the image beside that of its base.
const maxImage = 45e6

// An image is an image of examples/container/Dockerfile on an empty base.
type image struct {
	root   string // its files
	config struct {
		Entrypoint []string
		User       string
		WorkingDir string
		Labels     map[string]string
	}
}

// buildImage builds the image by buildah, without a network.
func buildImage(t *testing.T) image {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("root is required")
	}
	if _, err := exec.LookPath("buildah"); err != nil {
		t.Skip("buildah is not installed: run .ci/deps.sh buildah")
	}
	dir := t.TempDir()
	if err := os.Rename(Programs(t), filepath.Join(dir, runtime.GOARCH)); err != nil {
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
	i := image{root: buildah("mount", container)}
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

// The image has the programs, the folders for their sockets, and nothing else. What it has suffices: it
// mounts a dataset in a container without a shell, /etc/passwd and fusermount3, with no capability but
// CAP_SYS_ADMIN and those with which the test changes the root and the user.
func TestImage(t *testing.T) {
	i := buildImage(t)
	t.Run("files", func(t *testing.T) {
		var got []string
		var size int64
		err := filepath.WalkDir(i.root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			owner := info.Sys().(*syscall.Stat_t)
			got = append(got, fmt.Sprintf("%v %d:%d %s", info.Mode(), owner.Uid, owner.Gid, strings.TrimPrefix(path, i.root)))
			if info.Mode().IsRegular() {
				size += info.Size()
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		want := []string{
			"drwxr-xr-x 0:0 /run", "drwxr-xr-x 0:0 /tmp", "drwxr-xr-x 0:0 /usr", "drwxr-xr-x 0:0 /usr/bin",
			"-rwxr-xr-x 0:0 /usr/bin/milkweed", "-rwxr-xr-x 0:0 /usr/bin/milkweed-k8s",
		}
		if got = got[1:]; !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		t.Logf("%d bytes", size)
		if size > maxImage {
			t.Errorf("%d bytes, want at most %d", size, int(maxImage))
		}
	})
	t.Run("configuration", func(t *testing.T) {
		if c := i.config; !slices.Equal(c.Entrypoint, []string{"/usr/bin/milkweed"}) || c.User != "" || c.WorkingDir != "/" {
			t.Errorf("got %+v", c)
		}
		for label, want := range map[string]string{"version": "1.2.3", "licenses": "ISC", "title": "milkweed"} {
			if got := i.config.Labels["org.opencontainers.image."+label]; got != want {
				t.Errorf("label %s is %q, want %q", label, got, want)
			}
		}
	})
	t.Run("any user", func(t *testing.T) {
		c := container{image: i, user: 65532, readOnly: true}
		out, err := c.command(t, "/usr/bin/milkweed", "version").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "test") {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("mount", func(t *testing.T) {
		dir, mnt := t.TempDir(), t.TempDir()
		if err := errors.Join(os.WriteFile(dir+"/f", []byte("content"), 0o644), os.Mkdir(mnt+"/dataset", 0o755)); err != nil {
			t.Fatal(err)
		}
		c := container{image: i, volumes: map[string]string{"/data": dir, "/mnt": mnt, "/tier": t.TempDir()}}
		p := c.start(t, "/usr/bin/milkweed", "mount", "--foreground", "--tier", "ram:/tier/milkweed:64MiB", "/data", "/mnt/dataset")
		p.await(t, func() bool {
			out, err := exec.Command("cat", p.path("/mnt/dataset/f")).Output()
			return err == nil && string(out) == "content"
		})
		if out, err := p.exec("/usr/bin/milkweed", "status", "/mnt/dataset").CombinedOutput(); err != nil {
			t.Errorf("status: %v\n%s", err, out)
		}
		p.stop(t)
	})
	t.Run("without CAP_SYS_ADMIN", func(t *testing.T) {
		mnt := t.TempDir()
		if err := os.Mkdir(mnt+"/dataset", 0o755); err != nil {
			t.Fatal(err)
		}
		c := container{image: i, user: 65532, volumes: map[string]string{"/data": t.TempDir(), "/mnt": mnt, "/tmp": open(t)}}
		out, err := c.command(t, "/usr/bin/milkweed", "mount", "--foreground", "--tier", "ram:/tmp/tier:64MiB", "/data", "/mnt/dataset").CombinedOutput()
		if e := (*exec.ExitError)(nil); !errors.As(err, &e) || e.ExitCode() != 6 {
			t.Errorf("%v, want exit code 6\n%s", err, out)
		}
	})
}

// open returns a folder in which all users may write.
func open(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A container runs programs of an image.
type container struct {
	image    image
	user     int
	readOnly bool
	env      []string
	volumes  map[string]string // by path in the container: the folder
}

// runContainer is what a container engine does: namespaces, /proc, /dev/fuse, volumes, capabilities. Its
// arguments are the folder of the image, the user, "ro" or "rw", and pairs of a folder and its path in
// the container; after "--" comes the command. The folder is covered by a tmpfs with a copy of the
// image, so that the image stays as it is.
const runContainer = `set -e
image=$1 user=$2 access=$3; shift 3
mount --make-rprivate /
new=$(mktemp -d)
mount -t tmpfs none "$new"
cp -a "$image/." "$new"
mkdir -p "$new/proc" "$new/dev"
mount -t proc proc "$new/proc"
touch "$new/dev/fuse" "$new/dev/null"
mount --bind /dev/fuse "$new/dev/fuse"
mount --bind /dev/null "$new/dev/null"
while [ "$1" != -- ]; do
	mkdir -p "$new$2"
	mount --bind "$1" "$new$2"
	shift 2
done
shift
[ "$access" = rw ] || mount -o remount,ro "$new"
exec setpriv --bounding-set=-all,+sys_admin,+sys_chroot,+setuid,+setgid --no-new-privs chroot --userspec="$user:$user" "$new" "$@"
`

// command returns the command that runs a program in the container.
func (c container) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	access := "rw"
	if c.readOnly {
		access = "ro"
	}
	words := []string{"--mount", "--pid", "--fork", "--kill-child", "sh", "-c", runContainer, "sh", c.image.root, strconv.Itoa(c.user), access}
	for path, folder := range c.volumes {
		words = append(words, folder, path)
	}
	cmd := exec.Command("unshare", slices.Concat(words, []string{"--"}, args)...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir()}, c.env...)
	return cmd
}

// A running is a container that runs.
type running struct {
	pid   int // of the command
	log   *os.File
	ended chan error
}

// start starts a program in the container, and kills it at the end of the test.
func (c container) start(t *testing.T, args ...string) *running {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := c.command(t, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &running{log: log, ended: make(chan error, 1)}
	done := make(chan struct{})
	go func() { p.ended <- cmd.Wait(); close(done) }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-done
		log.Close()
	})
	p.await(t, func() bool {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
		p.pid, _ = strconv.Atoi(strings.TrimSpace(string(children)))
		name, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.pid))
		return strings.Contains(name, "/usr/bin/milkweed")
	})
	return p
}

// path returns a path of the container for processes outside.
func (p *running) path(path string) string { return fmt.Sprintf("/proc/%d/root%s", p.pid, path) }

// exec returns a command that runs in the container, as kubectl exec does.
func (p *running) exec(args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--target", strconv.Itoa(p.pid), "--mount", "--pid", "--root", "--wdns=/"}, args...)...)
}

// await waits until ok returns true, and fails the test if the container ends before.
func (p *running) await(t *testing.T, ok func() bool) {
	t.Helper()
	for !ok() {
		select {
		case err := <-p.ended:
			text, _ := os.ReadFile(p.log.Name())
			t.Fatalf("the container ended: %v\n%s", err, text)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// stop ends the container by SIGTERM, and fails the test unless its exit code is 0.
func (p *running) stop(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(p.pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-p.ended; err != nil {
		text, _ := os.ReadFile(p.log.Name())
		t.Errorf("%v\n%s", err, text)
	}
}
