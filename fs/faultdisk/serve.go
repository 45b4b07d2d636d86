package faultdisk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// ImageName is the name of the image in the folder where it is mounted.
const ImageName = "disk.img"

// serve mounts a folder with the image as its only file.
func serve(image *Image, point string) (*fuse.Server, error) {
	root := &folder{image: image}
	return fs.Mount(point, root, &fs.Options{MountOptions: fuse.MountOptions{
		FsName:        "faultdisk",
		Name:          "faultdisk",
		DirectMount:   os.Geteuid() == 0,
		MaxWrite:      256 << 10, // a splice of 1 MiB and a header does not fit into a pipe
		MaxBackground: 64,
	}})
}

// A folder is the root of the mount.
type folder struct {
	fs.Inode
	image *Image
}

var _ = (fs.NodeOnAdder)((*folder)(nil))

// OnAdd implements fs.NodeOnAdder.
func (f *folder) OnAdd(ctx context.Context) {
	f.AddChild(ImageName, f.NewPersistentInode(ctx, &file{image: f.image}, fs.StableAttr{Mode: syscall.S_IFREG}), true)
}

// A file is the node of the image. The kernel caches none of its pages: a bit that is
// flipped in the image, and a unit that is lost, are seen by the next read.
type file struct {
	fs.Inode
	image *Image
}

var (
	_ = (fs.NodeGetattrer)((*file)(nil))
	_ = (fs.NodeSetattrer)((*file)(nil))
	_ = (fs.NodeOpener)((*file)(nil))
	_ = (fs.NodeReader)((*file)(nil))
	_ = (fs.NodeWriter)((*file)(nil))
	_ = (fs.NodeFsyncer)((*file)(nil))
)

// Getattr implements fs.NodeGetattrer.
func (f *file) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = syscall.S_IFREG | 0o600
	out.Size = uint64(f.image.Size())
	out.SetTimeout(3600e9)
	return 0
}

// Setattr implements fs.NodeSetattrer. It changes nothing.
func (f *file) Setattr(ctx context.Context, h fs.FileHandle, _ *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return f.Getattr(ctx, h, out)
}

// Open implements fs.NodeOpener.
func (f *file) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

// Read implements fs.NodeReader.
func (f *file) Read(_ context.Context, _ fs.FileHandle, p []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	n, err := f.image.ReadAt(p, off)
	return fuse.ReadResultData(p[:n]), fs.ToErrno(err)
}

// Write implements fs.NodeWriter.
func (f *file) Write(_ context.Context, _ fs.FileHandle, p []byte, off int64) (uint32, syscall.Errno) {
	n, err := f.image.WriteAt(p, off)
	return uint32(n), fs.ToErrno(err)
}

// Fsync implements fs.NodeFsyncer.
func (f *file) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	return fs.ToErrno(f.image.Flush())
}

// A request of a Disk to its process. One field is set; if none is, the request asks for
// the Stats only.
type request struct {
	Faults *Faults   `json:"faults,omitempty"`
	Off    *powerOff `json:"off,omitempty"`
	On     bool      `json:"on,omitempty"`
	Flip   *flip     `json:"flip,omitempty"`
	Forget bool      `json:"forget,omitempty"`
}

type powerOff struct {
	Keep float64 `json:"keep"`
	Seed uint64  `json:"seed"`
}

type flip struct {
	Offset int64 `json:"offset"`
	Bit    int   `json:"bit"`
}

// A reply to a request.
type reply struct {
	Error string `json:"error,omitempty"`
	Stats Stats  `json:"stats"`
}

// Run is the main function of the process of a Disk. It serves the image that is stored
// in the file base, of size bytes, at the folder point, and does what the requests on in
// say. It ends, and unmounts, when in ends, which is also the case when the parent dies.
func Run(base string, size int64, point string, in io.Reader, out io.Writer) error {
	f, err := os.OpenFile(base, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	image, err := NewImage(f, size)
	if err != nil {
		return err
	}
	server, err := serve(image, point)
	if err != nil {
		return fmt.Errorf("mount %s: %w", point, err)
	}
	requests, replies := json.NewDecoder(in), json.NewEncoder(out)
	for err == nil {
		var r request
		if err = requests.Decode(&r); err == nil {
			err = replies.Encode(image.handle(r))
		}
	}
	image.PowerOff(0, 0) // requests that hang end
	if errors.Is(unix.Unmount(point, unix.MNT_DETACH), unix.EPERM) {
		server.Unmount()
	}
	if err == io.EOF {
		return nil
	}
	return err
}

// handle does what a request says.
func (i *Image) handle(r request) reply {
	var err error
	switch {
	case r.Faults != nil:
		i.SetFaults(*r.Faults)
	case r.Off != nil:
		err = i.PowerOff(r.Off.Keep, r.Off.Seed)
	case r.On:
		i.PowerOn()
	case r.Flip != nil:
		err = i.Flip(r.Flip.Offset, r.Flip.Bit)
	case r.Forget:
		err = i.Forget()
	}
	a := reply{Stats: i.Stats()}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}
