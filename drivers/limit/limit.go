// Package limit is a driver that adds latency, bounds bandwidth and operations per second,
// and counts. It simulates a shared parallel file system, and it bounds the load that one
// mount puts on a real one.
package limit

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

var (
	_ drivers.Driver        = (*Driver)(nil)
	_ drivers.Readlinker    = (*Driver)(nil)
	_ drivers.Xattrer       = (*Driver)(nil)
	_ drivers.ACLer         = (*Driver)(nil)
	_ drivers.HoleFinder    = (*Driver)(nil)
	_ drivers.Statfser      = (*Driver)(nil)
	_ drivers.Lister        = (*Driver)(nil)
	_ drivers.Namer         = (*Driver)(nil)
	_ drivers.VersionOpener = (*Driver)(nil)
	_ drivers.Profiler      = (*Driver)(nil)
	_ drivers.Sampler       = (*Driver)(nil)
	_ drivers.Comparer      = (*Driver)(nil)
	_ drivers.Permitter     = (*Driver)(nil)
	_ drivers.Pinner        = (*Driver)(nil)
	_ drivers.Streamer      = (*object)(nil)
	_ drivers.Verifier      = (*object)(nil)
	_ drivers.BackingFiler  = (*object)(nil)
	_ drivers.Splicer       = (*object)(nil)
)

// Config is a set of limits. With the zero value a Driver only counts.
type Config struct {
	Latency        time.Duration // added to each operation; concurrent operations wait at the same time
	BytesPerSecond int64         // of all reads together; 0: unlimited
	OpsPerSecond   int64         // operations of all kinds that begin in one second; 0: unlimited

	// Transparent means that a Driver without limits, and without Latency, is as the inner one: its
	// profile is the same, and its Objects have the same backing files. Reads by the kernel are then
	// not counted.
	Transparent bool
}

// A Driver passes requests on to another driver, at the speed of a Config. It implements every
// capability for reading, so that drivers.As never returns a capability of the wrapped driver. Its
// Objects have neither backing file nor splice descriptor, because reads by the kernel are neither
// limited nor counted; see Config.Transparent for the exception.
//
// All methods may be called concurrently. A method that waits returns when its
// context is done, without a request to the storage. Requests of drivers.Background
// wait for demand reads, for at most maxYield.
type Driver struct {
	inner       drivers.Driver
	latency     time.Duration
	transparent bool // Config.Transparent, without Latency
	bytes       limiter
	ops         limiter
	pool        *drivers.StatPool
	stats       Stats // updated atomically
}

// New returns inner with limits. inner serves as a source: a Driver has no methods that
// write.
func New(inner drivers.Driver, config Config) *Driver {
	d := &Driver{
		inner:       inner,
		latency:     config.Latency,
		transparent: config.Transparent && config.Latency == 0,
		pool:        drivers.NewStatPool(),
	}
	d.SetRates(config.BytesPerSecond, config.OpsPerSecond)
	return d
}

// SetRates changes the limits, as in Config, while the Driver is used. Requests that wait then wait
// at the new rates. Files whose backing file the kernel has keep it until they are closed.
func (d *Driver) SetRates(bytesPerSecond, opsPerSecond int64) {
	d.bytes.set(bytesPerSecond)
	d.ops.set(opsPerSecond)
}

// isTransparent reports whether the Driver is as the inner one now.
func (d *Driver) isTransparent() bool {
	return d.transparent && d.bytes.perSecond.Load() <= 0 && d.ops.perSecond.Load() <= 0
}

// Stats are the counters of a Driver. An operation is counted when it begins.
type Stats struct {
	Opens     int64 // Open; OpenVersion makes no request and is not counted
	ReadDirs  int64 // ReadDir, Names, and pages of List
	Stats     int64 // Stat, and names of StatNames
	Reads     int64 // ReadAt and Stream of an Object
	BytesRead int64 // bytes that these reads returned
	Readlinks int64 // Readlink
	Xattrs    int64 // Listxattr, Getxattr and ACL
	Statfs    int64 // Statfs
}

// Stats returns the current counters.
func (d *Driver) Stats() Stats { return drivers.Snapshot(&d.stats) }

// begin counts an operation and waits until the limits admit it.
func (d *Driver) begin(ctx context.Context, counter *int64) error {
	atomic.AddInt64(counter, 1)
	if err := d.ops.wait(ctx, 1); err != nil {
		return err
	}
	return sleep(ctx, d.latency)
}

// sleep returns after d, or earlier with the error of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Open implements drivers.Driver.
func (d *Driver) Open(ctx context.Context, name string) (drivers.Object, error) {
	if err := d.begin(ctx, &d.stats.Opens); err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	o, err := d.inner.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return &object{d, name, o}, nil
}

// ReadDir implements drivers.Driver. It is one operation for any number of names.
func (d *Driver) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	if err := d.begin(ctx, &d.stats.ReadDirs); err != nil {
		return nil, fmt.Errorf("readdir %s: %w", dir, err)
	}
	return d.inner.ReadDir(ctx, dir)
}

// Names implements drivers.Namer.
func (d *Driver) Names(ctx context.Context, dir string) ([]drivers.Info, error) {
	n, ok := drivers.As[drivers.Namer](d.inner)
	if !ok {
		return nil, fmt.Errorf("readdir %s: %w", dir, syscall.ENOTSUP)
	}
	if err := d.begin(ctx, &d.stats.ReadDirs); err != nil {
		return nil, fmt.Errorf("readdir %s: %w", dir, err)
	}
	return n.Names(ctx, dir)
}

// StatNames implements drivers.Namer. Each name is one operation.
func (d *Driver) StatNames(ctx context.Context, dir string, names []string) ([]drivers.Info, error) {
	return d.pool.Stats(ctx, names, func(name string) (drivers.Info, error) {
		info, err := d.Stat(ctx, path.Join(dir, name))
		info.Name = name
		return info, err
	}, func() {}), nil
}

// Inner returns the wrapped driver, for drivers.As.
func (d *Driver) Inner() drivers.Driver { return d.inner }

// Profile implements drivers.Profiler. A limited operation blocks, also in memory, and operations
// are worth saving.
func (d *Driver) Profile() drivers.Profile {
	p := drivers.ProfileOf(d.inner)
	if d.isTransparent() {
		return p
	}
	if p.Latency == drivers.LatencyMemory {
		p.Latency = drivers.LatencyFile
	}
	p.Local = false
	return p
}

// Permits implements drivers.Permitter.
func (d *Driver) Permits(info drivers.Info, noACL bool) (permitted, known bool) {
	if p, ok := drivers.As[drivers.Permitter](d.inner); ok {
		return p.Permits(info, noACL)
	}
	return true, true
}

// User implements drivers.Permitter.
func (d *Driver) User() string {
	if p, ok := drivers.As[drivers.Permitter](d.inner); ok {
		return p.User()
	}
	return ""
}

// Access implements drivers.Permitter. It counts as an open.
func (d *Driver) Access(ctx context.Context, name string) error {
	if err := d.begin(ctx, &d.stats.Opens); err != nil {
		return fmt.Errorf("access %s: %w", name, err)
	}
	if p, ok := drivers.As[drivers.Permitter](d.inner); ok {
		return p.Access(ctx, name)
	}
	return nil
}

// HaveSameContent implements drivers.Comparer. It counts as a Stat of each file.
func (d *Driver) HaveSameContent(ctx context.Context, names [2]string, infos [2]drivers.Info) bool {
	c, ok := drivers.As[drivers.Comparer](d.inner)
	if !ok {
		return false
	}
	for range names {
		if d.begin(ctx, &d.stats.Stats) != nil {
			return false
		}
	}
	return c.HaveSameContent(ctx, names, infos)
}

// Digest implements drivers.Pinner. It is no operation.
func (d *Driver) Digest(info drivers.Info) (sum [sha256.Size]byte, ok bool) {
	p, ok := drivers.As[drivers.Pinner](d.inner)
	if !ok {
		return sum, false
	}
	return p.Digest(info)
}

// Reject implements drivers.Pinner. It is no operation.
func (d *Driver) Reject(name string, info drivers.Info) {
	if p, ok := drivers.As[drivers.Pinner](d.inner); ok {
		p.Reject(name, info)
	}
}

// Sample implements drivers.Sampler. It counts as one ReadDir.
func (d *Driver) Sample(ctx context.Context, n int) (drivers.Sample, error) {
	s, ok := drivers.As[drivers.Sampler](d.inner)
	if !ok {
		return drivers.Sample{}, fmt.Errorf("sample: %w", syscall.ENOTSUP)
	}
	if err := d.begin(ctx, &d.stats.ReadDirs); err != nil {
		return drivers.Sample{}, fmt.Errorf("sample: %w", err)
	}
	return s.Sample(ctx, n)
}

// List implements drivers.Lister. Each page counts as one operation, and so does an
// empty listing. The first operation waits before the request to the storage, and
// each further one before its page is passed on.
func (d *Driver) List(ctx context.Context, dir string, page func([]drivers.Info) error) error {
	l, ok := drivers.As[drivers.Lister](d.inner)
	if !ok {
		return fmt.Errorf("list %s: %w", dir, syscall.ENOTSUP)
	}
	begin := func() error {
		if err := d.begin(ctx, &d.stats.ReadDirs); err != nil {
			return fmt.Errorf("list %s: %w", dir, err)
		}
		return nil
	}
	if err := begin(); err != nil {
		return err
	}
	first := true
	return l.List(ctx, dir, func(infos []drivers.Info) error {
		if !first {
			if err := begin(); err != nil {
				return err
			}
		}
		first = false
		return page(infos)
	})
}

// OpenVersion implements drivers.VersionOpener. It counts as no operation.
func (d *Driver) OpenVersion(ctx context.Context, name string, info drivers.Info) (drivers.Object, error) {
	v, ok := drivers.As[drivers.VersionOpener](d.inner)
	if !ok {
		return nil, fmt.Errorf("open %s: %w", name, syscall.ENOTSUP)
	}
	o, err := v.OpenVersion(ctx, name, info)
	if err != nil {
		return nil, err
	}
	return &object{d, name, o}, nil
}

// Stat implements drivers.Driver.
func (d *Driver) Stat(ctx context.Context, name string) (drivers.Info, error) {
	if err := d.begin(ctx, &d.stats.Stats); err != nil {
		return drivers.Info{}, fmt.Errorf("stat %s: %w", name, err)
	}
	return d.inner.Stat(ctx, name)
}

// Readlink implements drivers.Readlinker.
func (d *Driver) Readlink(ctx context.Context, name string) (string, error) {
	if err := d.begin(ctx, &d.stats.Readlinks); err != nil {
		return "", fmt.Errorf("readlink %s: %w", name, err)
	}
	if r, ok := drivers.As[drivers.Readlinker](d.inner); ok {
		return r.Readlink(ctx, name)
	}
	return "", fmt.Errorf("readlink %s: %w", name, syscall.ENOTSUP)
}

// Listxattr implements drivers.Xattrer.
func (d *Driver) Listxattr(ctx context.Context, name string) ([]string, error) {
	if err := d.begin(ctx, &d.stats.Xattrs); err != nil {
		return nil, fmt.Errorf("listxattr %s: %w", name, err)
	}
	if x, ok := drivers.As[drivers.Xattrer](d.inner); ok {
		return x.Listxattr(ctx, name)
	}
	return nil, fmt.Errorf("listxattr %s: %w", name, syscall.ENOTSUP)
}

// Getxattr implements drivers.Xattrer.
func (d *Driver) Getxattr(ctx context.Context, name, attr string) ([]byte, error) {
	if err := d.begin(ctx, &d.stats.Xattrs); err != nil {
		return nil, fmt.Errorf("getxattr %s: %w", name, err)
	}
	if x, ok := drivers.As[drivers.Xattrer](d.inner); ok {
		return x.Getxattr(ctx, name, attr)
	}
	return nil, fmt.Errorf("getxattr %s: %w", name, syscall.ENOTSUP)
}

// ACL implements drivers.ACLer.
func (d *Driver) ACL(ctx context.Context, name string) ([]byte, drivers.Info, error) {
	if err := d.begin(ctx, &d.stats.Xattrs); err != nil {
		return nil, drivers.Info{}, fmt.Errorf("getxattr %s: %w", name, err)
	}
	if a, ok := drivers.As[drivers.ACLer](d.inner); ok {
		return a.ACL(ctx, name)
	}
	return nil, drivers.Info{}, fmt.Errorf("getxattr %s: %w", name, syscall.ENOTSUP)
}

// Holes implements drivers.HoleFinder. It counts as an open.
func (d *Driver) Holes(ctx context.Context, name string) ([]drivers.Hole, drivers.Info, error) {
	if err := d.begin(ctx, &d.stats.Opens); err != nil {
		return nil, drivers.Info{}, fmt.Errorf("holes %s: %w", name, err)
	}
	if h, ok := drivers.As[drivers.HoleFinder](d.inner); ok {
		return h.Holes(ctx, name)
	}
	return nil, drivers.Info{}, fmt.Errorf("holes %s: %w", name, syscall.ENOTSUP)
}

// Statfs implements drivers.Statfser.
func (d *Driver) Statfs(ctx context.Context) (drivers.Statfs, error) {
	if err := d.begin(ctx, &d.stats.Statfs); err != nil {
		return drivers.Statfs{}, fmt.Errorf("statfs: %w", err)
	}
	if s, ok := drivers.As[drivers.Statfser](d.inner); ok {
		return s.Statfs(ctx)
	}
	return drivers.Statfs{}, fmt.Errorf("statfs: %w", syscall.ENOTSUP)
}

// An object is an Object of the inner driver with the limits of the outer one.
type object struct {
	driver *Driver
	name   string
	inner  drivers.Object
}

func (o *object) Info() drivers.Info { return o.inner.Info() }

func (o *object) Close() error { return o.inner.Close() }

// Inner returns the wrapped Object, for drivers.As.
func (o *object) Inner() drivers.Object { return o.inner }

// Verify implements drivers.Verifier. It is part of an open and costs nothing.
func (o *object) Verify(ctx context.Context) error {
	if v, ok := drivers.As[drivers.Verifier](o.inner); ok {
		return v.Verify(ctx)
	}
	return errors.ErrUnsupported
}

// BackingFile implements drivers.BackingFiler: there is none, unless the driver is transparent.
func (o *object) BackingFile(register func(fd uintptr) error) (release func(), err error) {
	if b, ok := drivers.As[drivers.BackingFiler](o.inner); ok && o.driver.isTransparent() {
		return b.BackingFile(register)
	}
	return nil, errors.ErrUnsupported
}

// SpliceDescriptor implements drivers.Splicer: there is none.
func (o *object) SpliceDescriptor() (fd uintptr, release func(n int), err error) {
	return 0, nil, errors.ErrUnsupported
}

// ReadAt implements drivers.Object. It waits for its bytes, except those beyond the end of
// the file, before it reads.
func (o *object) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	d := o.driver
	if err := d.begin(ctx, &d.stats.Reads); err != nil {
		return 0, fmt.Errorf("read %s: %w", o.name, err)
	}
	if err := d.bytes.wait(ctx, min(int64(len(p)), max(0, o.inner.Info().Size-off))); err != nil {
		return 0, fmt.Errorf("read %s: %w", o.name, err)
	}
	n, err := o.inner.ReadAt(ctx, p, off)
	atomic.AddInt64(&d.stats.BytesRead, int64(n))
	return n, err
}

// Stream implements drivers.Streamer. It is one operation. Its bytes are charged as they are
// read.
func (o *object) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	s, ok := drivers.As[drivers.Streamer](o.inner)
	if !ok {
		return nil, fmt.Errorf("stream %s: %w", o.name, syscall.ENOTSUP)
	}
	d := o.driver
	if err := d.begin(ctx, &d.stats.Reads); err != nil {
		return nil, fmt.Errorf("stream %s: %w", o.name, err)
	}
	inner, err := s.Stream(ctx, off, n)
	if err != nil {
		return nil, err
	}
	return &stream{inner, o, ctx}, nil
}

// A stream is a stream of the inner Object with the limits of the driver.
type stream struct {
	io.ReadCloser
	object *object
	ctx    context.Context
}

// Read charges the bytes that it returns after they have arrived, since their number is not
// known before. The next Read waits until they are paid for, which slows the storage down.
func (s *stream) Read(p []byte) (int, error) {
	d := s.object.driver
	n, err := s.ReadCloser.Read(p)
	if n == 0 {
		return 0, err
	}
	atomic.AddInt64(&d.stats.BytesRead, int64(n))
	if err := d.bytes.wait(s.ctx, int64(n)); err != nil {
		return 0, fmt.Errorf("read %s: %w", s.object.name, err)
	}
	return n, err
}
