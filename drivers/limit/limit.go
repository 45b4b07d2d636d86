// Package limit makes storage as slow as it is told, and counts what is asked
// of it: a stand-in for a parallel file system that many share, and a bound on
// what one job may ask of a real one.
package limit

import (
	"context"
	"fmt"
	"sync"
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
)

// Config is how slow storage is. The zero value is as fast as the storage
// itself, and only counts.
type Config struct {
	Latency        time.Duration // what each operation takes at least; concurrent ones take it together
	BytesPerSecond int64         // what all reads together get; 0 is no bound
	OpsPerSecond   int64         // how many operations of all kinds begin in a second; 0 is no bound
}

// A Driver is a driver that does as another one does, at the speed of a Config.
// It has the methods of each further interface for reading that a driver can
// have: where the inner driver lacks it there are no attributes, and the other
// methods fail with syscall.ENOTSUP. Its Objects are no drivers.Fder: a kernel
// that reads by itself is neither slowed nor counted.
//
// All methods may be called concurrently. One that waits returns when its
// context is done.
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
	Opens     int64 // Open
	ReadDirs  int64 // ReadDir
	Stats     int64 // Stat
	Reads     int64 // ReadAt of an Object
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
	return sleepUntil(ctx, d.ops.take(1).Add(d.latency))
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

// ReadAt pays for the bytes that were there, after it has them. When the
// context is done before they are paid for, they are not given out; the
// bandwidth is spent all the same, as it is on a network.
func (o *object) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	d := o.driver
	if err := d.begin(ctx, &d.stats.reads); err != nil {
		return 0, fmt.Errorf("read %s: %w", o.name, err)
	}
	n, err := o.inner.ReadAt(ctx, p, off)
	d.stats.bytesRead.Add(int64(n))
	if werr := sleepUntil(ctx, d.bytes.take(n)); werr != nil {
		return 0, fmt.Errorf("read %s: %w", o.name, werr)
	}
	return n, err
}

// A pacer gives out units at a rate. It keeps a clock that says when all that
// was taken so far is paid for. Whoever takes more moves the clock on and
// waits for it, so that the rate is exact for any number of callers, in the
// order in which they came.
type pacer struct {
	perSecond int64 // 0 is no bound

	mu   sync.Mutex // guards the following
	paid time.Time
}

// slack is how far the clock may lag behind the time: who wakes up late, as
// all do by about a millisecond, makes up for it with the next units.
const slack = 10 * time.Millisecond

// take returns when n more units are paid for.
func (p *pacer) take(n int) time.Time {
	now := time.Now()
	if p.perSecond <= 0 {
		return now
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if earliest := now.Add(-slack); p.paid.Before(earliest) {
		p.paid = earliest
	}
	p.paid = p.paid.Add(time.Duration(float64(n) / float64(p.perSecond) * float64(time.Second)))
	return p.paid
}

// sleepUntil waits for t, or returns the error of ctx if that is done before.
func sleepUntil(ctx context.Context, t time.Time) error {
	wait := time.Until(t)
	if wait <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
