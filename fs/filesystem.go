// Package fs is the FUSE front end of Milkweed: a read-only file system whose names
// and attributes come from a metadata container, and whose files are opened by an
// Opener. Where the content of a file is stored is the concern of the Opener.
//
// The package uses the raw interface of go-fuse. A node ID is the ID of a
// metadata.Entry, so that a file that the kernel has cached costs one Entry of 162
// bytes; in the node tree of go-fuse it would cost about 900 bytes. An Entry is one
// version of a file. The page cache of the kernel belongs to a node, and therefore
// never mixes two versions.
package fs

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/metadata"
)

// An Opener opens regular files.
type Opener interface {
	// Open opens a file for one handle of the kernel. The caller closes the Object.
	// The Object may have the capabilities drivers.BackingFiler and drivers.Splicer.
	// If the error matches drivers.ErrChanged, the kernel looks the name up again.
	Open(ctx context.Context, e *metadata.Entry) (drivers.Object, error)
}

// A Reader reads files that were not opened. The Opener of a stateless mount must also be a
// Reader, because the kernel sends neither OPEN nor RELEASE there.
type Reader interface {
	// ReadAt reads from e, as drivers.Object.ReadAt does.
	ReadAt(ctx context.Context, e *metadata.Entry, p []byte, off int64) (int, error)

	// SpliceDescriptor returns the splice descriptor of e, as
	// drivers.Splicer.SpliceDescriptor does.
	SpliceDescriptor(e *metadata.Entry) (fd uintptr, release func(n int), err error)
}

// A fileSystem replies to the requests of the kernel. The embedded RawFileSystem
// replies ENOSYS to all requests that have no method here. After that the kernel handles
// poll, locks and the birth time of statx by itself, without further requests. Requests for
// changes never arrive, because the mount is read-only.
type fileSystem struct {
	fuse.RawFileSystem
	names            *metadata.Container
	opener           Opener
	reader           Reader // the opener, in a stateless mount; otherwise nil
	mode             Mode
	negativeTTL      time.Duration
	invalidateOnOpen bool
	node             string // the value of NodeXattr; "": there is none
	xattrs           bool   // extended attributes are shown
	acls             bool   // the kernel applies the ACLs of the source
	log              *slog.Logger

	socket func(uid uint32) string // Config.Socket

	// generation differs from mount to mount. Without it, a handle of name_to_handle_at(2) would
	// open the file that has the same node ID in a later mount.
	generation uint64

	inFlight      handles[*request] // without those that need no context, such as FORGET
	maxBackground int               // see background.go

	conn   connection
	epochs atomic.Bool // the kernel counts epochs, of a mount with generations; see generation.go

	reading atomic.Int64 // READs that are not answered, except spliced ones

	files   handles[openFile]
	nodes   *openNodes // nil unless the mode is Passthrough
	dirs    handles[*openDir]
	buffers bufferPool
}

var _ fuse.RawFileSystem = (*fileSystem)(nil)

// String returns the name that go-fuse uses in its log.
func (f *fileSystem) String() string { return "milkweed" }

// Init is called before the first request.
func (f *fileSystem) Init(server *fuse.Server) {
	if f.mode == Passthrough {
		f.nodes = &openNodes{server: server, log: f.log}
	}
}

// OnUnmount closes the handles that are still open. go-fuse calls it after the
// connection has ended and the last request was answered. The connection may end before
// the kernel has sent a RELEASE for each file that is open or was just closed.
func (f *fileSystem) OnUnmount() {
	for _, h := range f.files.removeAll() {
		f.close(h)
	}
	f.dirs.removeAll()
}
