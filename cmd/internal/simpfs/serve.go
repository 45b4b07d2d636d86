package simpfs

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/child"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/limit"
	"github.com/milkweedfs/milkweed/drivers/posix"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// A request is a request for a Use.
type request struct{}

// cacheTTL is the TTL of names and attributes in the kernel: about that of the
// client of a PFS.
const cacheTTL = time.Second

// Serve is the main function of the process of a PFS. It mounts a folder, and
// answers each request on in with a Use on out. It unmounts when in ends, which
// is also the case when the parent dies, or when ctx is done.
func Serve(ctx context.Context, folder, point string, speed Speed, in io.Reader, out io.Writer) error {
	limited, mount, err := mount(ctx, folder, point, speed)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	// When ctx is done, this goroutine still reads from in; it ends with the process.
	go func() {
		served <- child.Serve(in, out, func(_ request, reply func(any) error) error {
			return reply(useOf(limited.Stats()))
		})
	}()
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	if mount.Unmount() != nil { // the mount is in use
		if err := mount.Detach(); err != nil {
			return err
		}
	}
	mount.Wait()
	return err
}

func mount(ctx context.Context, folder, point string, speed Speed) (*limit.Driver, *fs.Mount, error) {
	log := slog.New(slog.DiscardHandler)
	dir, err := posix.OpenDir(folder)
	if err != nil {
		return nil, nil, err
	}
	limited := limit.New(dir, limit.Config{Latency: speed.Latency, BytesPerSecond: speed.BytesPerSecond})
	levels, err := tiers.New(limited, nil, tiers.Options{}, log)
	if err != nil {
		return nil, nil, err
	}
	names, err := metadata.New(ctx, levels, metadata.Options{TTL: cacheTTL}, log)
	if err != nil {
		return nil, nil, err
	}
	m, err := fs.New(names, untiered{levels.Source()}, fs.Config{
		Point: point, Source: "milkweed-demo", NegativeTTL: cacheTTL, InvalidateOnOpen: true,
	}, log)
	return limited, m, err
}

// untiered opens each file at the source.
type untiered struct{ source *tiers.Source }

var _ fs.Opener = untiered{}

// Open implements fs.Opener.
func (u untiered) Open(ctx context.Context, e *metadata.Entry) (drivers.Object, error) {
	return u.source.Open(ctx, e.Path())
}

func useOf(s limit.Stats) Use {
	return Use{
		Operations: s.Opens + s.ReadDirs + s.Stats + s.Reads + s.Readlinks + s.Xattrs + s.Statfs,
		Opens:      s.Opens,
		Reads:      s.Reads,
		Bytes:      s.BytesRead,
	}
}
