package tiers

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/drivers/refcount"
)

// A Source is the lowest level: it has every file. It has no method that writes. It counts
// operations. An operation returns when its context is done, even if the storage does not
// answer.
type Source struct {
	driver   drivers.Driver
	calls    *drivers.CallLimit // of the operations
	closing  *drivers.CallLimit // of the files that are being closed
	scarcity *scarcity

	namesInMemory bool // by the profile

	closer   closer
	counters SourceCounters // updated atomically
	inMemory int64          // operations that take no request; updated atomically
	latency  Histogram
	base     baseline
	pace     pace
}

var _ drivers.Driver = (*Source)(nil)

func makeSource(driver drivers.Driver, s *scarcity) *Source {
	return &Source{driver: driver, calls: drivers.NewCallLimit(maxSourceCalls), closing: drivers.NewCallLimit(maxSourceCalls), scarcity: s, namesInMemory: drivers.ProfileOf(driver).NamesInMemory}
}

// call counts one operation and performs it. It repeats the operation while no descriptor is left.
func call[T any](ctx context.Context, s *Source, counter *int64, f func() (T, error), late func(T)) (T, error) {
	return repeat(ctx, s.scarcity, func() (T, error) { return once(ctx, s, counter, f, late) })
}

// ofNames returns the counter of an operation on names, which takes no request if the names are in memory.
func (s *Source) ofNames(counter *int64) *int64 {
	if s.namesInMemory {
		return &s.inMemory
	}
	return counter
}

// once counts one operation and performs it.
func once[T any](ctx context.Context, s *Source, counter *int64, f func() (T, error), late func(T)) (T, error) {
	atomic.AddInt64(counter, 1)
	v, err := perform(ctx, s, f, late)
	s.failed(ctx, err)
	return v, err
}

// perform calls f, as await does, when it is admitted.
func perform[T any](ctx context.Context, s *Source, f func() (T, error), late func(T)) (T, error) {
	if s.calls.Acquire(ctx) != nil {
		var none T
		return none, context.Cause(ctx)
	}
	return await(ctx, 0, f, late, func() { s.calls.Release(1) })
}

// failed counts err unless the caller was cancelled, the name or attribute is missing, or the source
// lacks the feature.
func (s *Source) failed(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENODATA) && !errors.Is(err, syscall.ENOTSUP) {
		atomic.AddInt64(&s.counters.Errors, 1)
	}
}

// Open opens a file of the source.
func (s *Source) Open(ctx context.Context, name string) (drivers.Object, error) {
	start := time.Now()
	obj, err := call(ctx, s, &s.counters.Opens, func() (drivers.Object, error) {
		return s.driver.Open(ctx, name)
	}, func(o drivers.Object) { o.Close() })
	if err != nil {
		return nil, err
	}
	s.base.add(time.Since(start))
	return &sourceObject{source: s, obj: obj}, nil
}

// OpenVersion opens the version of a file that info describes. If the source has
// another version, or none, the error matches drivers.ErrChanged or fs.ErrNotExist.
// A drivers.VersionOpener makes no request for that: there the first read fails instead.
func (s *Source) OpenVersion(ctx context.Context, name string, info drivers.Info) (_ drivers.Object, err error) {
	defer panics.Catch(&err)
	if v, ok := drivers.As[drivers.VersionOpener](s.driver); ok {
		atomic.AddInt64(&s.counters.Opens, 1)
		obj, err := v.OpenVersion(ctx, name, info)
		if err != nil {
			s.failed(ctx, err)
			return nil, err
		}
		return &sourceObject{source: s, obj: obj}, nil
	}
	obj, err := s.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	if !obj.Info().SameVersion(info) {
		obj.Close()
		return nil, fmt.Errorf("%s: %w", name, drivers.ErrChanged)
	}
	return obj, nil
}

// Profile describes the performance of the source.
func (s *Source) Profile() drivers.Profile { return drivers.ProfileOf(s.driver) }

// IsLister reports whether the source is a drivers.Lister, so that names are found by
// listing their directory. drivers.As does not look into a Source, which has a method List in
// any case.
func (s *Source) IsLister() bool {
	_, ok := drivers.As[drivers.Lister](s.driver)
	return ok
}

// List lists a directory of a source that is a drivers.Lister.
func (s *Source) List(ctx context.Context, dir string, page func([]drivers.Info) error) (err error) {
	defer panics.Catch(&err)
	l, ok := drivers.As[drivers.Lister](s.driver)
	if !ok {
		return fmt.Errorf("list %s: %w", dir, errors.ErrUnsupported)
	}
	atomic.AddInt64(&s.counters.ReadDirs, 1)
	err = l.List(ctx, dir, page)
	s.failed(ctx, err)
	return err
}

// IsEmpty reports whether a directory has no names. It lists as little of it as it can.
func (s *Source) IsEmpty(ctx context.Context, dir string) (bool, error) {
	var infos []drivers.Info
	var err error
	switch {
	case s.IsLister():
		err = s.List(ctx, dir, func(page []drivers.Info) error {
			infos = page
			if len(page) > 0 {
				return errEnough
			}
			return nil
		})
		if errors.Is(err, errEnough) {
			err = nil
		}
	case s.IsNamer():
		infos, err = s.Names(ctx, dir)
	default:
		infos, err = s.ReadDir(ctx, dir)
	}
	return len(infos) == 0, err
}

// errEnough ends a listing of which the rest is not needed.
var errEnough = errors.New("enough")

// Stat describes a name of the source.
func (s *Source) Stat(ctx context.Context, name string) (drivers.Info, error) {
	return call(ctx, s, s.ofNames(&s.counters.Stats), func() (drivers.Info, error) { return s.driver.Stat(ctx, name) }, nil)
}

// ReadDir lists a directory of the source.
func (s *Source) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	return call(ctx, s, s.ofNames(&s.counters.ReadDirs), func() ([]drivers.Info, error) { return s.driver.ReadDir(ctx, dir) }, nil)
}

// IsNamer reports whether the source is a drivers.Namer.
func (s *Source) IsNamer() bool {
	_, ok := drivers.As[drivers.Namer](s.driver)
	return ok
}

// Names lists a directory of a source that is a drivers.Namer, without attributes.
func (s *Source) Names(ctx context.Context, dir string) ([]drivers.Info, error) {
	n, ok := drivers.As[drivers.Namer](s.driver)
	if !ok {
		return nil, fmt.Errorf("list %s: %w", dir, errors.ErrUnsupported)
	}
	return call(ctx, s, s.ofNames(&s.counters.ReadDirs), func() ([]drivers.Info, error) { return n.Names(ctx, dir) }, nil)
}

// StatNames describes names in a directory of a source that is a drivers.Namer. It counts one Stat
// for each.
func (s *Source) StatNames(ctx context.Context, dir string, names []string) ([]drivers.Info, error) {
	n, ok := drivers.As[drivers.Namer](s.driver)
	if !ok {
		return nil, fmt.Errorf("stat %s: %w", dir, errors.ErrUnsupported)
	}
	atomic.AddInt64(&s.counters.Stats, int64(len(names)-1)) // call counts one
	infos, err := call(ctx, s, s.ofNames(&s.counters.Stats), func() ([]drivers.Info, error) { return n.StatNames(ctx, dir, names) }, nil)
	for _, info := range infos {
		s.failed(ctx, info.Err)
	}
	return infos, err
}

// Readlink returns the target of a symbolic link of the source.
func (s *Source) Readlink(ctx context.Context, name string) (string, error) {
	l, ok := drivers.As[drivers.Readlinker](s.driver)
	if !ok {
		return "", syscall.EINVAL
	}
	return call(ctx, s, s.ofNames(&s.counters.Readlinks), func() (string, error) { return l.Readlink(ctx, name) }, nil)
}

// Listxattr lists the user attributes of a name of the source.
func (s *Source) Listxattr(ctx context.Context, name string) ([]string, error) {
	x, ok := drivers.As[drivers.Xattrer](s.driver)
	if !ok {
		return nil, syscall.ENOTSUP
	}
	return call(ctx, s, &s.counters.Xattrs, func() ([]string, error) { return x.Listxattr(ctx, name) }, nil)
}

// Getxattr returns a user attribute of a name of the source.
func (s *Source) Getxattr(ctx context.Context, name, attr string) ([]byte, error) {
	x, ok := drivers.As[drivers.Xattrer](s.driver)
	if !ok {
		return nil, syscall.ENOTSUP
	}
	return call(ctx, s, &s.counters.Xattrs, func() ([]byte, error) { return x.Getxattr(ctx, name, attr) }, nil)
}

// ACL returns the access ACL of a name of the source, as drivers.ACLer does, and describes it.
func (s *Source) ACL(ctx context.Context, name string) ([]byte, drivers.Info, error) {
	a, ok := drivers.As[drivers.ACLer](s.driver)
	if !ok {
		return nil, drivers.Info{}, syscall.ENOTSUP
	}
	type reply struct {
		acl  []byte
		info drivers.Info
	}
	r, err := call(ctx, s, &s.counters.ACLs, func() (r reply, err error) {
		r.acl, r.info, err = a.ACL(ctx, name)
		return r, err
	}, nil)
	return r.acl, r.info, err
}

// FindsHoles reports whether the source is a drivers.HoleFinder.
func (s *Source) FindsHoles() bool {
	_, ok := drivers.As[drivers.HoleFinder](s.driver)
	return ok
}

// HaveSameContent reports whether two files at different names are known to have the same content. It
// counts as a Stat of each. See drivers.Comparer.
func (s *Source) HaveSameContent(ctx context.Context, names [2]string, infos [2]drivers.Info) bool {
	c, ok := drivers.As[drivers.Comparer](s.driver)
	if !ok {
		return false
	}
	atomic.AddInt64(&s.counters.Stats, 1) // call counts one
	same, err := call(ctx, s, &s.counters.Stats, func() (bool, error) { return c.HaveSameContent(ctx, names, infos), nil }, nil)
	return err == nil && same
}

// DeniesFiles reports whether the source may deny this process files that it lists. See
// drivers.Permitter.
func (s *Source) DeniesFiles() bool {
	_, ok := drivers.As[drivers.Permitter](s.driver)
	return ok
}

// Permits reports whether the user of this process may use a file. See drivers.Permitter.
func (s *Source) Permits(info drivers.Info, noACL bool) (permitted, known bool) {
	p, ok := drivers.As[drivers.Permitter](s.driver)
	if !ok {
		return true, true
	}
	return p.Permits(info, noACL)
}

// User identifies the user of this process, as far as that decides on access. See drivers.Permitter.
func (s *Source) User() string {
	p, ok := drivers.As[drivers.Permitter](s.driver)
	if !ok {
		return ""
	}
	return p.User()
}

// Access requests whether the user of this process may open a file. It counts as an open. See
// drivers.Permitter.
func (s *Source) Access(ctx context.Context, name string) error {
	p, ok := drivers.As[drivers.Permitter](s.driver)
	if !ok {
		return nil
	}
	_, err := call(ctx, s, &s.counters.Opens, func() (struct{}, error) { return struct{}{}, p.Access(ctx, name) }, nil)
	return err
}

// Digest returns the SHA-256 that the content of a file must have, and reports whether it is known. See
// drivers.Pinner.
func (s *Source) Digest(info drivers.Info) (sum [sha256.Size]byte, ok bool) {
	p, ok := drivers.As[drivers.Pinner](s.driver)
	if !ok {
		return sum, false
	}
	return p.Digest(info)
}

// Reject tells that the content of a file that was read is not that of its Digest. See drivers.Pinner.
func (s *Source) Reject(name string, info drivers.Info) {
	if p, ok := drivers.As[drivers.Pinner](s.driver); ok {
		p.Reject(name, info)
	}
}

// Holes returns the holes of a regular file of a source that is a drivers.HoleFinder, and
// describes the file.
func (s *Source) Holes(ctx context.Context, name string) ([]drivers.Hole, drivers.Info, error) {
	h, ok := drivers.As[drivers.HoleFinder](s.driver)
	if !ok {
		return nil, drivers.Info{}, fmt.Errorf("holes %s: %w", name, errors.ErrUnsupported)
	}
	type reply struct {
		holes []drivers.Hole
		info  drivers.Info
	}
	r, err := call(ctx, s, &s.counters.Holes, func() (r reply, err error) {
		r.holes, r.info, err = h.Holes(ctx, name)
		return r, err
	}, nil)
	return r.holes, r.info, err
}

// Statfs returns the size of the source.
func (s *Source) Statfs(ctx context.Context) (drivers.Statfs, error) {
	f, ok := drivers.As[drivers.Statfser](s.driver)
	if !ok {
		return drivers.Statfs{}, syscall.ENOSYS
	}
	return perform(ctx, s, func() (drivers.Statfs, error) { return f.Statfs(ctx) }, nil)
}

// Stats returns the counters of the source.
func (s *Source) Stats() SourceStats {
	return SourceStats{SourceCounters: drivers.Snapshot(&s.counters), Latency: s.latency.Load()}
}

// A sourceObject is an open file of the source. Operations hold references, so that the
// file is closed when the last of them has returned, abandoned ones included.
type sourceObject struct {
	source *Source
	obj    drivers.Object
	refs   refcount.Count
	closed atomic.Bool
}

var (
	_ drivers.Object       = (*sourceObject)(nil)
	_ drivers.Streamer     = (*sourceObject)(nil)
	_ drivers.Verifier     = (*sourceObject)(nil)
	_ drivers.BackingFiler = (*sourceObject)(nil)
	_ drivers.Splicer      = (*sourceObject)(nil)
)

// release drops a reference. The last one closes the file.
func (o *sourceObject) release() error {
	if !o.refs.Release() {
		return nil
	}
	return o.source.closer.close(func() error {
		o.source.closing.Acquire(context.Background()) // no error: the context is never done
		defer o.source.closing.Release(1)
		return o.obj.Close()
	})
}

// Close implements drivers.Object. It returns after at most closeTimeout.
func (o *sourceObject) Close() error {
	if o.closed.Swap(true) {
		return nil
	}
	return o.release()
}

// ReadAt implements drivers.Object.
func (o *sourceObject) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if !o.refs.Acquire() {
		return 0, os.ErrClosed
	}
	defer o.release()
	s := o.source
	start := time.Now()
	s.pace.begin(start)
	n, err := once(ctx, s, &s.counters.Reads, func() (int, error) {
		if !o.refs.Acquire() { // abandoned, and closed since
			return 0, os.ErrClosed
		}
		defer o.release()
		n, err := o.obj.ReadAt(ctx, p, off)
		atomic.AddInt64(&s.counters.Bytes, int64(n))
		return withoutEOF(n, err)
	}, nil)
	s.observe(ctx, start, err)
	if err == nil && n <= smallRead {
		s.base.add(time.Since(start))
	}
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

// observe records a read, or the first one of a stream, that has just ended.
func (s *Source) observe(ctx context.Context, start time.Time, err error) {
	now := time.Now()
	s.latency.Observe(now.Sub(start))
	s.pace.end(ctx, now, now.Sub(start), err)
}

// Inner returns the file as the driver opened it, for drivers.As.
func (o *sourceObject) Inner() drivers.Object { return o.obj }

// Stream implements drivers.Streamer. It counts as one read.
func (o *sourceObject) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	s, ok := drivers.As[drivers.Streamer](o.obj)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	if !o.refs.Acquire() {
		return nil, os.ErrClosed
	}
	atomic.AddInt64(&o.source.counters.Reads, 1)
	start := time.Now()
	o.source.pace.begin(start)
	stream, err := s.Stream(ctx, off, n)
	if err != nil {
		o.release()
		o.source.pace.end(ctx, time.Now(), 0, err)
		o.source.failed(ctx, err)
		return nil, err
	}
	return &sourceStream{ReadCloser: stream, object: o, ctx: ctx, start: start}, nil
}

// Verify implements drivers.Verifier. It returns when ctx is done, even if the source
// does not answer.
func (o *sourceObject) Verify(ctx context.Context) error {
	v, ok := drivers.As[drivers.Verifier](o.obj)
	if !ok {
		return errors.ErrUnsupported
	}
	if !o.refs.Acquire() {
		return os.ErrClosed
	}
	defer o.release()
	_, err := perform(ctx, o.source, func() (struct{}, error) {
		if !o.refs.Acquire() { // abandoned, and closed since
			return struct{}{}, os.ErrClosed
		}
		defer o.release()
		return struct{}{}, v.Verify(ctx)
	}, nil)
	return err
}

// BackingFile implements drivers.BackingFiler. The file is not closed before release.
func (o *sourceObject) BackingFile(register func(fd uintptr) error) (release func(), err error) {
	return backingFile(o.obj, &o.refs, register, func() { o.release() })
}

// SpliceDescriptor implements drivers.Splicer: reads from a source may block.
func (o *sourceObject) SpliceDescriptor() (fd uintptr, release func(n int), err error) {
	return 0, nil, errors.ErrUnsupported
}

// Info implements drivers.Object.
func (o *sourceObject) Info() drivers.Info { return o.obj.Info() }

// A sourceStream is a stream of a sourceObject.
type sourceStream struct {
	io.ReadCloser
	object *sourceObject
	ctx    context.Context
	start  time.Time // of the request
	begun  bool      // a byte has arrived
}

func (r *sourceStream) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	s := r.object.source
	atomic.AddInt64(&s.counters.Bytes, int64(n))
	_, failure := withoutEOF(n, err)
	if !r.begun {
		r.begun = true
		s.observe(r.ctx, r.start, failure)
		if failure == nil {
			s.base.add(time.Since(r.start))
		}
	}
	s.failed(r.ctx, failure)
	return n, err
}

func (r *sourceStream) Close() error {
	if !r.begun {
		r.object.source.pace.end(r.ctx, time.Now(), 0, context.Canceled)
	}
	defer r.object.release()
	return r.ReadCloser.Close()
}
