package fs

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// The reasons why a mount cannot use passthrough, to be tested with errors.Is.
var (
	ErrPrivilege = errors.New("passthrough needs CAP_SYS_ADMIN")
	ErrKernel    = errors.New("passthrough needs Linux 6.9 with CONFIG_FUSE_PASSTHROUGH")
	ErrStacked   = errors.New("the file is on too many stacked file systems")
)

// maxStackDepth allows backing files on a file system that is itself stacked, such as the
// overlayfs of a container. It is the limit of Linux.
const maxStackDepth = 2

// ProbePassthrough reports for each open regular file why it cannot be a backing file, or
// nil if it can. It registers the files with a FUSE connection that is mounted nowhere.
func ProbePassthrough(files []*os.File) []error {
	errs := make([]error, len(files))
	server, closeServer, err := unmountedServer()
	if err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	defer closeServer()
	for i, f := range files {
		errs[i] = probe(server, f)
	}
	return errs
}

func probe(server *fuse.Server, f *os.File) error {
	id, err := registerBacking(server, f.Fd())
	switch err {
	case nil:
		server.UnregisterBackingFd(id)
		return nil
	case syscall.EPERM:
		return ErrPrivilege
	case syscall.ENOTTY, syscall.EOPNOTSUPP:
		return ErrKernel
	case syscall.ELOOP:
		return ErrStacked
	}
	return fmt.Errorf("register a backing file: %w", err)
}

// unmountedServer serves a FUSE file system that is mounted nowhere. closeServer ends it.
func unmountedServer() (server *fuse.Server, closeServer func(), err error) {
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open /dev/fuse: %w", err)
	}
	root, err := openUnmounted(device)
	if err != nil {
		unix.Close(device)
		if err == unix.EPERM {
			err = ErrPrivilege
		}
		return nil, nil, err
	}
	server, err = fuse.NewServer(fuse.NewDefaultRawFileSystem(), fmt.Sprintf("/dev/fd/%d", device), &fuse.MountOptions{MaxStackDepth: maxStackDepth})
	if err != nil {
		unix.Close(root)
		return nil, nil, err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.Serve()
	}()
	return server, func() {
		unix.Close(root) // the last reference to the file system; the connection ends
		<-served
	}, nil
}

// openUnmounted creates a file system that is served at device, and returns a descriptor
// of its root directory.
func openUnmounted(device int) (root int, err error) {
	fsfd, err := unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fsfd)
	for _, o := range [][2]string{{"fd", fmt.Sprint(device)}, {"rootmode", "40000"}, {"user_id", "0"}, {"group_id", "0"}} {
		if err := unix.FsconfigSetString(fsfd, o[0], o[1]); err != nil {
			return -1, err
		}
	}
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return -1, err
	}
	return unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, 0)
}
