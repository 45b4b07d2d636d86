package drivertest

import (
	"context"
	"crypto/sha256"
	"path"
	"syscall"

	"github.com/milkweedfs/milkweed/drivers"
)

// Open implements drivers.Driver.
func (f *Faults) Open(ctx context.Context, name string) (drivers.Object, error) {
	if _, err := f.inject(ctx, OpOpen, name); err != nil {
		return nil, err
	}
	o, err := f.inner.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return &object{f, name, o}, nil
}

// Inner returns the wrapped driver, for drivers.As.
func (f *Faults) Inner() drivers.Driver { return f.inner }

// Profile implements drivers.Profiler. With faults, even operations in memory may block.
func (f *Faults) Profile() drivers.Profile {
	p := drivers.ProfileOf(f.inner)
	if p.Latency == drivers.LatencyMemory {
		p.Latency = drivers.LatencyFile
	}
	return p
}

// Permits implements drivers.Permitter.
func (f *Faults) Permits(info drivers.Info, noACL bool) (permitted, known bool) {
	if p, ok := drivers.As[drivers.Permitter](f.inner); ok {
		return p.Permits(info, noACL)
	}
	return true, true
}

// User implements drivers.Permitter.
func (f *Faults) User() string {
	if p, ok := drivers.As[drivers.Permitter](f.inner); ok {
		return p.User()
	}
	return ""
}

// Access implements drivers.Permitter. It is an OpOpen.
func (f *Faults) Access(ctx context.Context, name string) error {
	if _, err := f.inject(ctx, OpOpen, name); err != nil {
		return err
	}
	if p, ok := drivers.As[drivers.Permitter](f.inner); ok {
		return p.Access(ctx, name)
	}
	return nil
}

// HaveSameContent implements drivers.Comparer. It is a Stat of each file.
func (f *Faults) HaveSameContent(ctx context.Context, names [2]string, infos [2]drivers.Info) bool {
	c, ok := drivers.As[drivers.Comparer](f.inner)
	if !ok {
		return false
	}
	for _, name := range names {
		if _, err := f.inject(ctx, OpStat, name); err != nil {
			return false
		}
	}
	return c.HaveSameContent(ctx, names, infos)
}

// Digest implements drivers.Pinner.
func (f *Faults) Digest(info drivers.Info) (sum [sha256.Size]byte, ok bool) {
	p, ok := drivers.As[drivers.Pinner](f.inner)
	if !ok {
		return sum, false
	}
	return p.Digest(info)
}

// Reject implements drivers.Pinner.
func (f *Faults) Reject(name string, info drivers.Info) {
	if p, ok := drivers.As[drivers.Pinner](f.inner); ok {
		p.Reject(name, info)
	}
}

// Sample implements drivers.Sampler. It is an OpReadDir of the root.
func (f *Faults) Sample(ctx context.Context, n int) (drivers.Sample, error) {
	if _, err := f.inject(ctx, OpReadDir, "."); err != nil {
		return drivers.Sample{}, err
	}
	if s, ok := drivers.As[drivers.Sampler](f.inner); ok {
		return s.Sample(ctx, n)
	}
	return drivers.Sample{}, syscall.ENOTSUP
}

// List implements drivers.Lister. Faults are injected before the first page.
func (f *Faults) List(ctx context.Context, dir string, page func([]drivers.Info) error) error {
	if _, err := f.inject(ctx, OpReadDir, dir); err != nil {
		return err
	}
	if l, ok := drivers.As[drivers.Lister](f.inner); ok {
		return l.List(ctx, dir, page)
	}
	return syscall.ENOTSUP
}

// OpenVersion implements drivers.VersionOpener.
func (f *Faults) OpenVersion(ctx context.Context, name string, info drivers.Info) (drivers.Object, error) {
	if _, err := f.inject(ctx, OpOpen, name); err != nil {
		return nil, err
	}
	v, ok := drivers.As[drivers.VersionOpener](f.inner)
	if !ok {
		return nil, syscall.ENOTSUP
	}
	o, err := v.OpenVersion(ctx, name, info)
	if err != nil {
		return nil, err
	}
	return &object{f, name, o}, nil
}

// ReadDir implements drivers.Driver.
func (f *Faults) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	if _, err := f.inject(ctx, OpReadDir, dir); err != nil {
		return nil, err
	}
	infos, err := f.inner.ReadDir(ctx, dir)
	for i, info := range infos {
		if _, err := f.inject(ctx, OpEntry, path.Join(dir, info.Name)); err != nil {
			infos[i] = drivers.Info{Name: info.Name, Mode: info.Type(), Err: err}
		}
	}
	return infos, err
}

// Names implements drivers.Namer. It is an OpReadDir.
func (f *Faults) Names(ctx context.Context, dir string) ([]drivers.Info, error) {
	if _, err := f.inject(ctx, OpReadDir, dir); err != nil {
		return nil, err
	}
	if n, ok := drivers.As[drivers.Namer](f.inner); ok {
		return n.Names(ctx, dir)
	}
	return nil, syscall.ENOTSUP
}

// StatNames implements drivers.Namer. It is an OpEntry for each name.
func (f *Faults) StatNames(ctx context.Context, dir string, names []string) ([]drivers.Info, error) {
	return f.stats.Stats(ctx, names, func(name string) (drivers.Info, error) {
		name = path.Join(dir, name)
		if _, err := f.inject(ctx, OpEntry, name); err != nil {
			return drivers.Info{}, err
		}
		return f.inner.Stat(ctx, name)
	}, func() {}), nil
}

// Stat implements drivers.Driver.
func (f *Faults) Stat(ctx context.Context, name string) (drivers.Info, error) {
	if _, err := f.inject(ctx, OpStat, name); err != nil {
		return drivers.Info{}, err
	}
	return f.inner.Stat(ctx, name)
}

// Readlink implements drivers.Readlinker.
func (f *Faults) Readlink(ctx context.Context, name string) (string, error) {
	if _, err := f.inject(ctx, OpReadlink, name); err != nil {
		return "", err
	}
	if d, ok := drivers.As[drivers.Readlinker](f.inner); ok {
		return d.Readlink(ctx, name)
	}
	return "", syscall.ENOTSUP
}

// Listxattr implements drivers.Xattrer.
func (f *Faults) Listxattr(ctx context.Context, name string) ([]string, error) {
	if _, err := f.inject(ctx, OpXattr, name); err != nil {
		return nil, err
	}
	if d, ok := drivers.As[drivers.Xattrer](f.inner); ok {
		return d.Listxattr(ctx, name)
	}
	return nil, nil
}

// Getxattr implements drivers.Xattrer.
func (f *Faults) Getxattr(ctx context.Context, name, attr string) ([]byte, error) {
	if _, err := f.inject(ctx, OpXattr, name); err != nil {
		return nil, err
	}
	if d, ok := drivers.As[drivers.Xattrer](f.inner); ok {
		return d.Getxattr(ctx, name, attr)
	}
	return nil, syscall.ENODATA
}

// ACL implements drivers.ACLer.
func (f *Faults) ACL(ctx context.Context, name string) ([]byte, drivers.Info, error) {
	if _, err := f.inject(ctx, OpACL, name); err != nil {
		return nil, drivers.Info{}, err
	}
	if d, ok := drivers.As[drivers.ACLer](f.inner); ok {
		return d.ACL(ctx, name)
	}
	return nil, drivers.Info{}, syscall.ENOTSUP
}

// Holes implements drivers.HoleFinder.
func (f *Faults) Holes(ctx context.Context, name string) ([]drivers.Hole, drivers.Info, error) {
	if _, err := f.inject(ctx, OpHoles, name); err != nil {
		return nil, drivers.Info{}, err
	}
	if d, ok := drivers.As[drivers.HoleFinder](f.inner); ok {
		return d.Holes(ctx, name)
	}
	return nil, drivers.Info{}, syscall.ENOTSUP
}

// Statfs implements drivers.Statfser.
func (f *Faults) Statfs(ctx context.Context) (drivers.Statfs, error) {
	if _, err := f.inject(ctx, OpStatfs, "."); err != nil {
		return drivers.Statfs{}, err
	}
	if d, ok := drivers.As[drivers.Statfser](f.inner); ok {
		return d.Statfs(ctx)
	}
	return drivers.Statfs{}, syscall.ENOTSUP
}

// Probe implements drivers.Prober.
func (f *Faults) Probe(ctx context.Context) error {
	if _, err := f.inject(ctx, OpProbe, "."); err != nil {
		return err
	}
	if d, ok := drivers.As[drivers.Prober](f.inner); ok {
		return d.Probe(ctx)
	}
	return nil
}

// CheckPath implements drivers.PathChecker. It is an OpStat of the root.
func (f *Faults) CheckPath(ctx context.Context) error {
	if _, err := f.inject(ctx, OpStat, "."); err != nil {
		return err
	}
	if d, ok := drivers.As[drivers.PathChecker](f.inner); ok {
		return d.CheckPath(ctx)
	}
	return nil
}

// ProbeCopy implements drivers.CopyProber.
func (f *Faults) ProbeCopy(ctx context.Context, name string) (inFlight int, err error) {
	if _, err := f.inject(ctx, OpRead, name); err != nil {
		return 0, err
	}
	if d, ok := drivers.As[drivers.CopyProber](f.inner); ok {
		return d.ProbeCopy(ctx, name)
	}
	return 0, syscall.ENOTSUP
}

// Sweep implements drivers.Sweeper.
func (f *Faults) Sweep(ctx context.Context, dir string) ([]drivers.Info, error) {
	if _, err := f.inject(ctx, OpReadDir, dir); err != nil {
		return nil, err
	}
	if s, ok := drivers.As[drivers.Sweeper](f.inner); ok {
		return s.Sweep(ctx, dir)
	}
	return nil, syscall.ENOTSUP
}

// Copies implements drivers.Sweeper.
func (f *Faults) Copies(ctx context.Context, dir string) ([]drivers.Info, error) {
	if _, err := f.inject(ctx, OpReadDir, dir); err != nil {
		return nil, err
	}
	if s, ok := drivers.As[drivers.Sweeper](f.inner); ok {
		return s.Copies(ctx, dir)
	}
	return nil, syscall.ENOTSUP
}

// Link implements drivers.Linker.
func (f *Faults) Link(ctx context.Context, from, to string, info drivers.Info) error {
	if _, err := f.inject(ctx, OpLink, to); err != nil {
		return err
	}
	if s, ok := drivers.As[drivers.Linker](f.inner); ok {
		return s.Link(ctx, from, to, info)
	}
	return syscall.ENOTSUP
}

// Restamp implements drivers.Restamper.
func (f *Faults) Restamp(ctx context.Context, name string, info drivers.Info) error {
	if _, err := f.inject(ctx, OpRestamp, name); err != nil {
		return err
	}
	if s, ok := drivers.As[drivers.Restamper](f.inner); ok {
		return s.Restamp(ctx, name, info)
	}
	return syscall.ENOTSUP
}

// Sync implements drivers.Syncer.
func (f *Faults) Sync(ctx context.Context) error {
	if _, err := f.inject(ctx, OpSync, "."); err != nil {
		return err
	}
	if s, ok := drivers.As[drivers.Syncer](f.inner); ok {
		return s.Sync(ctx)
	}
	return syscall.ENOTSUP
}

// Create implements drivers.Store.
func (f *Faults) Create(ctx context.Context, name string, info drivers.Info) (drivers.Writer, error) {
	if _, err := f.inject(ctx, OpCreate, name); err != nil {
		return nil, err
	}
	d, ok := drivers.As[drivers.Store](f.inner)
	if !ok {
		return nil, syscall.ENOTSUP
	}
	w, err := d.Create(ctx, name, info)
	if err != nil {
		return nil, err
	}
	return &writer{f, name, w}, nil
}

// Remove implements drivers.Store.
func (f *Faults) Remove(ctx context.Context, name string) error {
	if _, err := f.inject(ctx, OpRemove, name); err != nil {
		return err
	}
	if d, ok := drivers.As[drivers.Store](f.inner); ok {
		return d.Remove(ctx, name)
	}
	return syscall.ENOTSUP
}
