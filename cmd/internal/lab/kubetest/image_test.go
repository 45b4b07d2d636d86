package kubetest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// maxImage is the size of the image beside that of its base.
const maxImage = 45e6

// The image has the programs, the folders for their sockets, and nothing else. What it has suffices: it
// mounts a dataset in a container without a shell, /etc/passwd and fusermount3, with no capability but
// CAP_SYS_ADMIN and those with which the test changes the root and the user.
func TestImage(t *testing.T) {
	if testing.Short() {
		t.Skip("builds an image")
	}
	i := BuildImage(t)
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
		c := Container{Image: i, User: 65532, ReadOnly: true}
		out, err := c.Command(t, "/usr/bin/milkweed", "version").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "test") {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("mount", func(t *testing.T) {
		dir, mnt := t.TempDir(), t.TempDir()
		if err := errors.Join(os.WriteFile(dir+"/f", []byte("content"), 0o644), os.Mkdir(mnt+"/dataset", 0o755)); err != nil {
			t.Fatal(err)
		}
		c := Container{Image: i, Volumes: map[string]string{"/data": dir, "/mnt": mnt, "/tier": t.TempDir()}}
		p := c.Start(t, "/usr/bin/milkweed", "mount", "--foreground", "--tier", "ram:/tier/milkweed:64MiB", "/data", "/mnt/dataset")
		p.Await(t, func() bool {
			out, err := exec.Command("cat", p.Path("/mnt/dataset/f")).Output()
			return err == nil && string(out) == "content"
		})
		if out, err := p.Exec("/usr/bin/milkweed", "status", "/mnt/dataset").CombinedOutput(); err != nil {
			t.Errorf("status: %v\n%s", err, out)
		}
		p.Stop(t)
	})
	t.Run("without CAP_SYS_ADMIN", func(t *testing.T) {
		mnt := t.TempDir()
		if err := os.Mkdir(mnt+"/dataset", 0o755); err != nil {
			t.Fatal(err)
		}
		c := Container{Image: i, User: 65532, Volumes: map[string]string{"/data": t.TempDir(), "/mnt": mnt, "/tmp": open(t)}}
		out, err := c.Command(t, "/usr/bin/milkweed", "mount", "--foreground", "--tier", "ram:/tmp/tier:64MiB", "/data", "/mnt/dataset").CombinedOutput()
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
