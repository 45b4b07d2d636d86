// Package pfs simulates a parallel file system (PFS). It serves a folder by FUSE as the client of
// a PFS does: each operation takes a time, all readers share a bandwidth, and operations are
// counted by kind.
//
// The client has no more in its memory than the kernel caches: names and attributes for a TTL,
// and the pages of a file until it is opened again. A program that reads a file causes one LOOKUP
// for each component of the path that the kernel has not cached, one OPEN, and READs.
package pfs

import (
	"context"
	"io"
	"log"
	"os"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/limit"
)

// Config describes a PFS and its client.
type Config struct {
	Latency        time.Duration // of each operation; concurrent operations wait at the same time
	BytesPerSecond int64         // of all reads together; 0: unlimited

	// TTL is how long the kernel caches a name. With 0 it looks up each component of a path at
	// each use, as a client with close-to-open consistency does. Attributes are cached for
	// attrTTL at least.
	TTL time.Duration

	// Direct keeps the kernel from caching pages, so that each read of a file causes READs. With
	// caches, several clients on one machine would share the pages, as clients on several machines
	// do not.
	Direct bool

	// Ahead is by how much the clock of the servers is ahead of that of this machine. The change and
	// modification times are later by it than those of the folder.
	Ahead time.Duration
}

// attrTTL is the least TTL of attributes. It is not 0, so that a program that opens a file and calls
// fstat(2) causes no GETATTR.
const attrTTL = time.Second

// Use counts operations by kind. An operation is counted when it begins. Those that a client does
// not wait for, such as RELEASE, are neither delayed nor counted.
type Use struct {
	Operations int64 `json:"operations"` // of all kinds
	Lookups    int64 `json:"lookups"`
	Getattrs   int64 `json:"getattrs"`
	Opens      int64 `json:"opens"` // of files
	Reads      int64 `json:"reads"`
	Lists      int64 `json:"lists"` // directories listed; the number of READDIRs of each does not count
	Others     int64 `json:"others"`
	Bytes      int64 `json:"bytes"` // bytes read
}

// Sub returns the difference of two counts.
func (u Use) Sub(before Use) Use {
	return Use{
		Operations: u.Operations - before.Operations,
		Lookups:    u.Lookups - before.Lookups,
		Getattrs:   u.Getattrs - before.Getattrs,
		Opens:      u.Opens - before.Opens,
		Reads:      u.Reads - before.Reads,
		Lists:      u.Lists - before.Lists,
		Others:     u.Others - before.Others,
		Bytes:      u.Bytes - before.Bytes,
	}
}

// A PFS is a mounted PFS. The process that serves it must not use it.
type PFS struct {
	server *fuse.Server
	fs     *fileSystem
}

// DemoSource is the source of the PFS of `milkweed demo` and `milkweed bench` in the mount table.
// Its type there is that of Milkweed, so that what is left of them is found by it.
const DemoSource = "milkweed-demo"

// Mount mounts folder at point, an existing directory, and serves it until it is unmounted. The
// mount is read-only. source and fsType are what mount(8) shows.
func Mount(folder, point, source, fsType string, config Config) (*PFS, error) {
	root, err := fs.NewLoopbackRoot(folder)
	if err != nil {
		return nil, err
	}
	attrs := max(config.TTL, attrTTL)
	f := &fileSystem{
		RawFileSystem: fs.NewNodeFS(root, &fs.Options{EntryTimeout: &config.TTL, NegativeTimeout: &config.TTL, AttrTimeout: &attrs}),
		latency:       config.Latency,
		direct:        config.Direct,
		ahead:         uint64(config.Ahead / time.Second),
		bandwidth:     limit.NewRate(config.BytesPerSecond),
	}
	server, err := fuse.NewServer(f, point, &fuse.MountOptions{
		FsName:               source,
		Name:                 fsType,
		Options:              []string{"ro", "nosuid", "nodev"},
		DirectMount:          os.Geteuid() == 0,
		MaxWrite:             maxRequest, // of reads, too
		MaxReadAhead:         maxRequest,
		MaxBackground:        maxBackground,
		CongestionThreshold:  maxBackground,
		DisableReadDirPlus:   true, // a PFS has the attributes of each file on another server
		DisabledCapabilities: fuse.CAP_PASSTHROUGH,
		Logger:               log.New(io.Discard, "", 0),
	})
	if err != nil {
		return nil, err
	}
	go server.Serve()
	if err := server.WaitMount(); err != nil {
		return nil, err
	}
	return &PFS{server, f}, nil
}

const (
	maxRequest    = 1 << 20 // bytes that one READ requests
	maxBackground = 1024    // read-ahead requests in flight: more than the readers cause
)

// Use returns the counts since the mount.
func (p *PFS) Use() Use { return drivers.Snapshot(&p.fs.use) }

// Unmount unmounts the PFS. It fails while files are open.
func (p *PFS) Unmount() error { return p.server.Unmount() }

// Wait returns when the PFS was unmounted, and the last file on it was closed.
func (p *PFS) Wait() { p.server.Wait() }

// A fileSystem delays and counts the requests of another one.
type fileSystem struct {
	fuse.RawFileSystem
	latency   time.Duration
	direct    bool
	ahead     uint64 // seconds
	bandwidth *limit.Rate
	use       Use // updated atomically
}

// begin counts an operation and delays it.
func (f *fileSystem) begin(kind *int64) {
	atomic.AddInt64(&f.use.Operations, 1)
	atomic.AddInt64(kind, 1)
	time.Sleep(f.latency)
}

func (f *fileSystem) Lookup(cancel <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	f.begin(&f.use.Lookups)
	status := f.RawFileSystem.Lookup(cancel, in, name, out)
	f.shift(&out.Attr)
	return status
}

func (f *fileSystem) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	f.begin(&f.use.Getattrs)
	status := f.RawFileSystem.GetAttr(cancel, in, out)
	f.shift(&out.Attr)
	return status
}

// shift sets times as the clock of the servers does.
func (f *fileSystem) shift(a *fuse.Attr) {
	a.Mtime += f.ahead
	a.Ctime += f.ahead
}

func (f *fileSystem) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	f.begin(&f.use.Opens)
	status := f.RawFileSystem.Open(cancel, in, out)
	if f.direct {
		out.OpenFlags |= fuse.FOPEN_DIRECT_IO
	}
	return status
}

// Read waits for the bytes that the file has, before it returns them.
func (f *fileSystem) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	f.begin(&f.use.Reads)
	result, status := f.RawFileSystem.Read(cancel, in, buf)
	if !status.Ok() {
		return nil, status
	}
	data, status := result.Bytes(buf)
	result.Done()
	if !status.Ok() {
		return nil, status
	}
	atomic.AddInt64(&f.use.Bytes, int64(len(data)))
	f.bandwidth.Wait(context.Background(), int64(len(data)))
	return fuse.ReadResultData(data), fuse.OK
}

// OpenDir delays the listing. The READDIRs that follow are free, as if the reply had all names.
func (f *fileSystem) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	f.begin(&f.use.Lists)
	return f.RawFileSystem.OpenDir(cancel, in, out)
}

func (f *fileSystem) Readlink(cancel <-chan struct{}, in *fuse.InHeader) ([]byte, fuse.Status) {
	f.begin(&f.use.Others)
	return f.RawFileSystem.Readlink(cancel, in)
}

func (f *fileSystem) StatFs(cancel <-chan struct{}, in *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	f.begin(&f.use.Others)
	return f.RawFileSystem.StatFs(cancel, in, out)
}

// Access and the extended attributes are not part of the simulation. The kernel requests what is
// answered with ENOSYS only once.
func (f *fileSystem) Access(<-chan struct{}, *fuse.AccessIn) fuse.Status { return fuse.ENOSYS }

func (f *fileSystem) GetXAttr(<-chan struct{}, *fuse.InHeader, string, []byte) (uint32, fuse.Status) {
	return 0, fuse.ENOSYS
}

func (f *fileSystem) ListXAttr(<-chan struct{}, *fuse.InHeader, []byte) (uint32, fuse.Status) {
	return 0, fuse.ENOSYS
}

// Flush ends the FLUSH of each close(2).
func (f *fileSystem) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.ENOSYS }
