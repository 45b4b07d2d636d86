// Package limit makes storage as slow as it is told, and counts what is asked
// of it: a stand-in for a parallel file system that many share, and a bound on
// what one job may ask of a real one.
package limit

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

var (
	_ drivers.Driver     = (*Driver)(nil)
	_ drivers.Readlinker = (*Driver)(nil)
	_ drivers.Xattrer    = (*Driver)(nil)
	_ drivers.Statfser   = (*Driver)(nil)
	_ drivers.Lister     = (*Driver)(nil)
	_ drivers.Streamer   = (*object)(nil)
)

// Config is how slow storage is. The zero value is as fast as the storage
// itself, and only counts.
type Config struct {
	Latency        time.Duration // what each operation takes at least; concurrent ones take it together
	BytesPerSecond int64         // what all reads together ask for; 0 is no bound
	OpsPerSecond   int64         // how many operations of all kinds begin in a second; 0 is no bound
}

// A Driver is a driver that does as another one does, at the speed of a Config.
// It has the methods of each further interface for reading that a driver can
// have, but for drivers.Sampler, which is asked before there is a limit: where
// the inner driver lacks it there are no attributes, it does not List, its Objects
// have no Stride, and the other methods fail with syscall.ENOTSUP. Its Objects are
// no drivers.Fder: a kernel that reads by itself is neither slowed nor counted.
//
// All methods may be called concurrently. One that waits returns when its
// context is done, and has then asked nothing of the storage. Those whose
// context says drivers.Background let the others go first, for no longer than
// patience.
type Driver struct {
	inner   drivers.Driver
	latency time.Duration
	bytes   pacer
	ops     pacer
	stats   counters
}

// New limits inner.
func New(inner drivers.Driver, config Config) *Driver {
	return &Driver{
		inner:   inner,
		latency: config.Latency,
		bytes:   pacer{perSecond: config.BytesPerSecond},
		ops:     pacer{perSecond: config.OpsPerSecond},
	}
}

// Stats is what was asked of a Driver. Operations are counted when they begin.
type Stats struct {
	Opens     int64 // Open; OpenListed asks the storage nothing, and is not counted
	ReadDirs  int64 // ReadDir, and parts of List
	Stats     int64 // Stat
	Reads     int64 // ReadAt and Stream of an Object
	BytesRead int64 // that these returned
	Readlinks int64 // Readlink
	Xattrs    int64 // Listxattr and Getxattr
	Statfs    int64 // Statfs
}

// counters is Stats while it is counted.
type counters struct {
	opens, readDirs, stats, reads, bytesRead, readlinks, xattrs, statfs atomic.Int64
}

// Stats returns what was asked so far. Each counter is exact; together they
// may be of slightly different moments.
func (d *Driver) Stats() Stats {
	return Stats{
		Opens:     d.stats.opens.Load(),
		ReadDirs:  d.stats.readDirs.Load(),
		Stats:     d.stats.stats.Load(),
		Reads:     d.stats.reads.Load(),
		BytesRead: d.stats.bytesRead.Load(),
		Readlinks: d.stats.readlinks.Load(),
		Xattrs:    d.stats.xattrs.Load(),
		Statfs:    d.stats.statfs.Load(),
	}
}

// begin counts an operation and waits until it may be passed on.
func (d *Driver) begin(ctx context.Context, counter *atomic.Int64) error {
	counter.Add(1)
	if err := d.ops.wait(ctx, 1); err != nil {
		return err
	}
	return sleep(ctx, d.latency)
}

// sleep returns after d, or the error of ctx if that is done before.
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
	if err := d.begin(ctx, &d.stats.opens); err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	o, err := d.inner.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return &object{d, name, o}, nil
}

// ReadDir implements drivers.Driver. It counts as one operation, however many
// elements there are.
func (d *Driver) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	if err := d.begin(ctx, &d.stats.readDirs); err != nil {
		return nil, fmt.Errorf("readdir %s: %w", dir, err)
	}
	return d.inner.ReadDir(ctx, dir)
}

// Lists implements drivers.Lister: the inner driver decides.
func (d *Driver) Lists() bool {
	l, ok := d.inner.(drivers.Lister)
	return ok && l.Lists()
}

// List implements drivers.Lister. Each part counts as one operation, and so does
// a listing without any. The first is waited for before the storage is asked, and
// each further one before the part is passed on.
func (d *Driver) List(ctx context.Context, dir string, part func([]drivers.Info) error) error {
	l, ok := d.inner.(drivers.Lister)
	if !ok {
		return fmt.Errorf("list %s: %w", dir, syscall.ENOTSUP)
	}
	begin := func() error {
		if err := d.begin(ctx, &d.stats.readDirs); err != nil {
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
		return part(infos)
	})
}

// OpenListed implements drivers.Lister. It costs nothing.
func (d *Driver) OpenListed(ctx context.Context, name string, info drivers.Info) (drivers.Object, error) {
	l, ok := d.inner.(drivers.Lister)
	if !ok {
		return nil, fmt.Errorf("open %s: %w", name, syscall.ENOTSUP)
	}
	o, err := l.OpenListed(ctx, name, info)
	if err != nil {
		return nil, err
	}
	return &object{d, name, o}, nil
}

// Stat implements drivers.Driver.
func (d *Driver) Stat(ctx context.Context, name string) (drivers.Info, error) {
	if err := d.begin(ctx, &d.stats.stats); err != nil {
		return drivers.Info{}, fmt.Errorf("stat %s: %w", name, err)
	}
	return d.inner.Stat(ctx, name)
}

// Readlink implements drivers.Readlinker.
func (d *Driver) Readlink(ctx context.Context, name string) (string, error) {
	if err := d.begin(ctx, &d.stats.readlinks); err != nil {
		return "", fmt.Errorf("readlink %s: %w", name, err)
	}
	if r, ok := d.inner.(drivers.Readlinker); ok {
		return r.Readlink(ctx, name)
	}
	return "", fmt.Errorf("readlink %s: %w", name, syscall.ENOTSUP)
}

// Listxattr implements drivers.Xattrer.
func (d *Driver) Listxattr(ctx context.Context, name string) ([]string, error) {
	if err := d.begin(ctx, &d.stats.xattrs); err != nil {
		return nil, fmt.Errorf("listxattr %s: %w", name, err)
	}
	if x, ok := d.inner.(drivers.Xattrer); ok {
		return x.Listxattr(ctx, name)
	}
	return nil, nil
}

// Getxattr implements drivers.Xattrer.
func (d *Driver) Getxattr(ctx context.Context, name, attr string) ([]byte, error) {
	if err := d.begin(ctx, &d.stats.xattrs); err != nil {
		return nil, fmt.Errorf("getxattr %s: %w", name, err)
	}
	if x, ok := d.inner.(drivers.Xattrer); ok {
		return x.Getxattr(ctx, name, attr)
	}
	return nil, fmt.Errorf("getxattr %s: %w", name, syscall.ENODATA)
}

// Statfs implements drivers.Statfser.
func (d *Driver) Statfs(ctx context.Context) (drivers.Statfs, error) {
	if err := d.begin(ctx, &d.stats.statfs); err != nil {
		return drivers.Statfs{}, fmt.Errorf("statfs: %w", err)
	}
	if s, ok := d.inner.(drivers.Statfser); ok {
		return s.Statfs(ctx)
	}
	return drivers.Statfs{}, fmt.Errorf("statfs: %w", syscall.ENOTSUP)
}

// An object is an Object of the inner driver, at the speed of the outer one.
type object struct {
	driver *Driver
	name   string
	inner  drivers.Object
}

func (o *object) Info() drivers.Info { return o.inner.Info() }

func (o *object) Close() error { return o.inner.Close() }

// Verify implements drivers.Verifier as far as the inner Object does. It is part
// of opening a file that is open already, and costs nothing.
func (o *object) Verify() error {
	if v, ok := o.inner.(drivers.Verifier); ok {
		return v.Verify()
	}
	return nil
}

// ReadAt pays for the bytes that it asks for, as far as the file has them,
// before it asks.
func (o *object) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	d := o.driver
	if err := d.begin(ctx, &d.stats.reads); err != nil {
		return 0, fmt.Errorf("read %s: %w", o.name, err)
	}
	if err := d.bytes.wait(ctx, min(int64(len(p)), max(0, o.inner.Info().Size-off))); err != nil {
		return 0, fmt.Errorf("read %s: %w", o.name, err)
	}
	n, err := o.inner.ReadAt(ctx, p, off)
	d.stats.bytesRead.Add(int64(n))
	return n, err
}

// Stride implements drivers.Streamer; it is 0 where the inner Object is none.
func (o *object) Stride() int64 {
	if s, ok := o.inner.(drivers.Streamer); ok {
		return s.Stride()
	}
	return 0
}

// Stream implements drivers.Streamer. To begin it is one operation; its bytes are
// paid for as they are read.
func (o *object) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	s, ok := o.inner.(drivers.Streamer)
	if !ok {
		return nil, fmt.Errorf("stream %s: %w", o.name, syscall.ENOTSUP)
	}
	d := o.driver
	if err := d.begin(ctx, &d.stats.reads); err != nil {
		return nil, fmt.Errorf("stream %s: %w", o.name, err)
	}
	inner, err := s.Stream(ctx, off, n)
	if err != nil {
		return nil, err
	}
	return &stream{inner, o, ctx}, nil
}

// A stream is one of the inner Object, at the speed of the driver.
type stream struct {
	io.ReadCloser
	object *object
	ctx    context.Context
}

// Read pays for the bytes that it returns, when they have come: how many those
// are is not known before. Meanwhile no more are taken from the storage, which
// is what slows it down.
func (s *stream) Read(p []byte) (int, error) {
	d := s.object.driver
	n, err := s.ReadCloser.Read(p)
	if n == 0 {
		return 0, err
	}
	d.stats.bytesRead.Add(int64(n))
	if paid := d.bytes.wait(s.ctx, int64(n)); paid != nil {
		return 0, fmt.Errorf("read %s: %w", s.object.name, paid)
	}
	return n, err
}
