package simpfs

import (
	"context"
	"io"
	"strings"

	"github.com/milkweedfs/milkweed/cmd/internal/child"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/fs/pfs"
)

// A request is a request for a Use.
type request struct{}

// Serve is the main function of the process of a PFS. It mounts a folder, and
// answers each request on in with a Use on out. It unmounts when in ends, which
// is also the case when the parent dies, or when ctx is done.
func Serve(ctx context.Context, folder, point string, speed Speed, in io.Reader, out io.Writer) error {
	mount, err := pfs.Mount(folder, point, pfs.DemoSource, strings.TrimPrefix(fs.Type, "fuse."), speed)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	// When ctx is done, this goroutine still reads from in; it ends with the process.
	go func() {
		served <- child.Serve(in, out, func(_ request, reply func(any) error) error {
			return reply(mount.Use())
		})
	}()
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	if mount.Unmount() != nil { // the mount is in use
		if err := fs.Unmount(context.Background(), point, true); err != nil {
			return err
		}
	}
	mount.Wait()
	return err
}
