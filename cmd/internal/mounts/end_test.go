package mounts

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// A silentServer answers no request for attributes before release is closed.
type silentServer struct {
	fuse.RawFileSystem
	asked, release chan struct{}
}

func (s *silentServer) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	s.asked <- struct{}{}
	<-s.release
	return fuse.EIO
}

// End unmounts what is below a folder, and ends a process that waits for a FUSE server there.
func TestEnd(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	dir, outside := t.TempDir(), t.TempDir()
	for _, point := range []string{dir, outside} {
		if err := unix.Mount("test", point, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(point, unix.MNT_DETACH) })
	}
	point := filepath.Join(dir, "a b")
	if err := os.Mkdir(point, 0o755); err != nil {
		t.Fatal(err)
	}
	silent := &silentServer{fuse.NewDefaultRawFileSystem(), make(chan struct{}), make(chan struct{})}
	server, err := fuse.NewServer(silent, point, &fuse.MountOptions{DirectMountStrict: true})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { server.Serve(); close(served) }()
	if err := server.WaitMount(); err != nil {
		t.Fatal(err)
	}

	reader := exec.Command("stat", point)
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	<-silent.asked
	if err := End(dir); err != nil {
		t.Error(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- reader.Wait() }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("stat has succeeded")
		}
	case <-time.After(20 * time.Second):
		t.Error("a process still waits for the server")
	}
	close(silent.release)
	<-served

	table, err := Read(Self)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := table.At(point); ok {
		t.Errorf("%s is mounted", point)
	}
	for _, point := range []string{dir, outside} {
		if _, ok := table.At(point); !ok {
			t.Errorf("%s is not mounted", point)
		}
	}
}
