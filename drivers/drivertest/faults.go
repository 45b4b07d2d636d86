package drivertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

var (
	_ drivers.Store         = (*Faults)(nil)
	_ drivers.Readlinker    = (*Faults)(nil)
	_ drivers.Xattrer       = (*Faults)(nil)
	_ drivers.Statfser      = (*Faults)(nil)
	_ drivers.Prober        = (*Faults)(nil)
	_ drivers.Profiler      = (*Faults)(nil)
	_ drivers.Sampler       = (*Faults)(nil)
	_ drivers.Lister        = (*Faults)(nil)
	_ drivers.VersionOpener = (*Faults)(nil)
	_ drivers.Streamer      = (*object)(nil)
	_ drivers.Verifier      = (*object)(nil)
	_ drivers.BackingFiler  = (*object)(nil)
	_ drivers.Splicer       = (*object)(nil)
)

// An Op is a kind of operation on a driver, and on what it gives out.
type Op string

// The operations of Drivers, Objects, Stores and Writers.
const (
	OpOpen     Op = "open"    // Open and OpenVersion
	OpReadDir  Op = "readdir" // ReadDir, List and Sample
	OpStat     Op = "stat"
	OpReadlink Op = "readlink"
	OpXattr    Op = "xattr"    // Listxattr and Getxattr
	OpStatfs   Op = "statfs"   // of the name "."
	OpProbe    Op = "probe"    // of the name "."
	OpRead     Op = "read"     // Object.ReadAt and Streamer.Stream
	OpStream   Op = "stream"   // a Read from what Stream returned
	OpVerify   Op = "verify"   // Verifier.Verify
	OpClose    Op = "close"    // Object.Close; an error is returned after it
	OpCreate   Op = "create"   //
	OpRemove   Op = "remove"   //
	OpWrite    Op = "write"    // Writer.WriteAt
	OpReadBack Op = "readback" // Writer.ReadAt
	OpCommit   Op = "commit"   //
	OpAbort    Op = "abort"    // an error is ignored
)

// A Rule is a fault, and when it happens. It applies to an operation that all
// of its conditions hold for.
type Rule struct {
	// Conditions.

	Op    Op                     // the operation; "" is every one
	Name  string                 // pattern of path.Match for the whole name; "" is every name
	Match func(name string) bool // asked in addition, unless nil; it is called under a lock

	After int     // this many operations are spared first
	Times int     // and then at most so many are hit; 0 is all
	P     float64 // probability that an operation is hit; 0 is 1

	// What happens, in this order.

	Hang  bool          // wait for Release or Clear, whatever happens to the context, unless it is a stream's
	Delay time.Duration // wait this long, or until the context is done
	Err   error         // return this instead of doing anything
	Short bool          // a read, or a stream, returns half of what it was asked for, and io.ErrUnexpectedEOF
}

// Faults is a driver that passes operations on to another one, injects the
// faults of its Rules, and counts. It implements every capability, so that
// drivers.As finds no way around it.
//
// An Object has the backing file and the splice descriptor of the inner one
// while no Rule could apply to its reads, since the kernel's reads meet no Rule.
//
// All methods may be called concurrently, also while operations run.
type Faults struct {
	inner drivers.Driver

	mu     sync.Mutex // guards the following
	rules  []*rule
	rand   *rand.Rand
	counts map[Op]int64
	bytes  map[Op]int64
	freed  chan struct{} // closed by Release
	hung   int
}

// A rule is a Rule in use.
type rule struct {
	Rule
	seen, hit int
}

// NewFaults wraps inner, without a fault so far. What has a probability falls
// out the same way each time for the same order of operations.
func NewFaults(inner drivers.Driver) *Faults {
	return &Faults{
		inner:  inner,
		rand:   rand.New(rand.NewPCG(1, 2)),
		counts: make(map[Op]int64),
		bytes:  make(map[Op]int64),
		freed:  make(chan struct{}),
	}
}

// Add puts r before the rules that are there: for each operation, the first
// one that applies is the only one. It returns what takes r away again.
func (f *Faults) Add(r Rule) (remove func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	added := &rule{Rule: r}
	f.rules = slices.Insert(f.rules, 0, added)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.rules = slices.DeleteFunc(f.rules, func(r *rule) bool { return r == added })
	}
}

// Seed starts another series of chances.
func (f *Faults) Seed(seed uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rand = rand.New(rand.NewPCG(seed, 2))
}

// Release lets go what hangs now. What meets the rule later hangs again.
func (f *Faults) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.freed)
	f.freed = make(chan struct{})
}

// Clear takes away all rules, and lets go what hangs.
func (f *Faults) Clear() {
	f.mu.Lock()
	f.rules = nil
	f.mu.Unlock()
	f.Release()
}

// Hung is how many operations hang now.
func (f *Faults) Hung() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hung
}

// Count is how many operations of a kind were begun, with those that failed.
func (f *Faults) Count(op Op) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[op]
}

// Bytes is how many bytes OpRead, OpWrite or OpReadBack moved. Those of a stream
// are moved by OpRead. A read through a descriptor is not seen.
func (f *Faults) Bytes(op Op) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytes[op]
}

// Reset sets all counts to zero.
func (f *Faults) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.counts)
	clear(f.bytes)
}

// could reports whether an operation on name could ever meet r.
func (r *rule) could(op Op, name string) bool {
	if r.Op != "" && r.Op != op || r.Match != nil && !r.Match(name) {
		return false
	}
	if r.Name == "" || r.Name == name {
		return true
	}
	ok, err := path.Match(r.Name, name)
	return ok && err == nil
}

// meet counts an operation and returns the rule that it meets, if any, and
// what Release will close.
func (f *Faults) meet(op Op, name string) (Rule, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[op]++
	for _, r := range f.rules {
		if !r.could(op, name) || r.Times > 0 && r.hit >= r.Times {
			continue
		}
		r.seen++
		if r.seen <= r.After || r.P > 0 && f.rand.Float64() >= r.P {
			continue
		}
		r.hit++
		if r.Hang {
			f.hung++
		}
		return r.Rule, f.freed
	}
	return Rule{}, nil
}

// fault does what a rule says of an operation, but for Short, which it reports.
func (f *Faults) fault(ctx context.Context, op Op, name string) (short bool, err error) {
	return f.faultUntil(ctx, nil, op, name)
}

// faultUntil is fault, except that an operation that hangs is also let go when
// until is closed, and then fails.
func (f *Faults) faultUntil(ctx context.Context, until <-chan struct{}, op Op, name string) (short bool, err error) {
	r, freed := f.meet(op, name)
	if r.Hang {
		select {
		case <-freed:
		case <-until:
			err = fmt.Errorf("%s %s: %w", op, name, ctx.Err())
		}
		f.mu.Lock()
		f.hung--
		f.mu.Unlock()
		if err != nil {
			return false, err
		}
	}
	if r.Delay > 0 {
		select {
		case <-time.After(r.Delay):
		case <-ctx.Done():
			return false, fmt.Errorf("%s %s: %w", op, name, ctx.Err())
		}
	}
	if r.Err != nil {
		return false, fmt.Errorf("%s %s: fault: %w", op, name, r.Err)
	}
	return r.Short, nil
}

func (f *Faults) moved(op Op, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes[op] += int64(n)
}

// bare reports whether no rule can be met by the operations on an open file.
func (f *Faults) bare(name string, ops ...Op) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, op := range ops {
		if slices.ContainsFunc(f.rules, func(r *rule) bool { return r.could(op, name) }) {
			return false
		}
	}
	return true
}

// Open implements drivers.Driver.
func (f *Faults) Open(ctx context.Context, name string) (drivers.Object, error) {
	if _, err := f.fault(ctx, OpOpen, name); err != nil {
		return nil, err
	}
	o, err := f.inner.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return f.wrap(name, o), nil
}

// wrap returns an Object of the inner driver with faults.
func (f *Faults) wrap(name string, o drivers.Object) drivers.Object {
	return &object{f, name, o}
}

// Inner returns the wrapped driver, for drivers.As.
func (f *Faults) Inner() drivers.Driver { return f.inner }

// Profile implements drivers.Profiler. An operation may hang, also in memory.
func (f *Faults) Profile() drivers.Profile {
	p := drivers.ProfileOf(f.inner)
	if p.Latency == drivers.LatencyMemory {
		p.Latency = drivers.LatencyFile
	}
	return p
}

// Sample implements drivers.Sampler. A fault is one of OpReadDir on the root.
func (f *Faults) Sample(ctx context.Context, n int) (map[string]drivers.Info, error) {
	if _, err := f.fault(ctx, OpReadDir, "."); err != nil {
		return nil, err
	}
	if s, ok := drivers.As[drivers.Sampler](f.inner); ok {
		return s.Sample(ctx, n)
	}
	return nil, syscall.ENOTSUP
}

// List implements drivers.Lister. A fault comes before the first page.
func (f *Faults) List(ctx context.Context, dir string, page func([]drivers.Info) error) error {
	if _, err := f.fault(ctx, OpReadDir, dir); err != nil {
		return err
	}
	if l, ok := drivers.As[drivers.Lister](f.inner); ok {
		return l.List(ctx, dir, page)
	}
	return syscall.ENOTSUP
}

// OpenVersion implements drivers.VersionOpener.
func (f *Faults) OpenVersion(ctx context.Context, name string, info drivers.Info) (drivers.Object, error) {
	if _, err := f.fault(ctx, OpOpen, name); err != nil {
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
	return f.wrap(name, o), nil
}

// ReadDir implements drivers.Driver.
func (f *Faults) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	if _, err := f.fault(ctx, OpReadDir, dir); err != nil {
		return nil, err
	}
	return f.inner.ReadDir(ctx, dir)
}

// Stat implements drivers.Driver.
func (f *Faults) Stat(ctx context.Context, name string) (drivers.Info, error) {
	if _, err := f.fault(ctx, OpStat, name); err != nil {
		return drivers.Info{}, err
	}
	return f.inner.Stat(ctx, name)
}

// Readlink implements drivers.Readlinker.
func (f *Faults) Readlink(ctx context.Context, name string) (string, error) {
	if _, err := f.fault(ctx, OpReadlink, name); err != nil {
		return "", err
	}
	if d, ok := drivers.As[drivers.Readlinker](f.inner); ok {
		return d.Readlink(ctx, name)
	}
	return "", syscall.ENOTSUP
}

// Listxattr implements drivers.Xattrer.
func (f *Faults) Listxattr(ctx context.Context, name string) ([]string, error) {
	if _, err := f.fault(ctx, OpXattr, name); err != nil {
		return nil, err
	}
	if d, ok := drivers.As[drivers.Xattrer](f.inner); ok {
		return d.Listxattr(ctx, name)
	}
	return nil, nil
}

// Getxattr implements drivers.Xattrer.
func (f *Faults) Getxattr(ctx context.Context, name, attr string) ([]byte, error) {
	if _, err := f.fault(ctx, OpXattr, name); err != nil {
		return nil, err
	}
	if d, ok := drivers.As[drivers.Xattrer](f.inner); ok {
		return d.Getxattr(ctx, name, attr)
	}
	return nil, syscall.ENODATA
}

// Statfs implements drivers.Statfser.
func (f *Faults) Statfs(ctx context.Context) (drivers.Statfs, error) {
	if _, err := f.fault(ctx, OpStatfs, "."); err != nil {
		return drivers.Statfs{}, err
	}
	if d, ok := drivers.As[drivers.Statfser](f.inner); ok {
		return d.Statfs(ctx)
	}
	return drivers.Statfs{}, syscall.ENOTSUP
}

// Probe implements drivers.Prober.
func (f *Faults) Probe(ctx context.Context) error {
	if _, err := f.fault(ctx, OpProbe, "."); err != nil {
		return err
	}
	if d, ok := drivers.As[drivers.Prober](f.inner); ok {
		return d.Probe(ctx)
	}
	return nil
}

// Create implements drivers.Store.
func (f *Faults) Create(ctx context.Context, name string, info drivers.Info) (drivers.Writer, error) {
	if _, err := f.fault(ctx, OpCreate, name); err != nil {
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
	if _, err := f.fault(ctx, OpRemove, name); err != nil {
		return err
	}
	if d, ok := drivers.As[drivers.Store](f.inner); ok {
		return d.Remove(ctx, name)
	}
	return syscall.ENOTSUP
}

// An object is an Object of the inner driver, with faults.
type object struct {
	faults *Faults
	name   string
	inner  drivers.Object
}

func (o *object) Info() drivers.Info { return o.inner.Info() }

func (o *object) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	short, err := o.faults.fault(ctx, OpRead, o.name)
	if err != nil {
		return 0, err
	}
	if short {
		p = p[:len(p)/2]
	}
	n, err := o.inner.ReadAt(ctx, p, off)
	o.faults.moved(OpRead, n)
	if short && err == nil {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Inner returns the wrapped Object, for drivers.As.
func (o *object) Inner() drivers.Object { return o.inner }

// BackingFile implements drivers.BackingFiler.
func (o *object) BackingFile(register func(fd uintptr) error) (release func(), err error) {
	b, ok := drivers.As[drivers.BackingFiler](o.inner)
	if !ok || !o.faults.bare(o.name, OpRead) {
		return nil, errors.ErrUnsupported
	}
	return b.BackingFile(register)
}

// SpliceDescriptor implements drivers.Splicer.
func (o *object) SpliceDescriptor() (fd uintptr, release func(n int), err error) {
	s, ok := drivers.As[drivers.Splicer](o.inner)
	if !ok || !o.faults.bare(o.name, OpRead) {
		return 0, nil, errors.ErrUnsupported
	}
	return s.SpliceDescriptor()
}

// Stream implements drivers.Streamer.
func (o *object) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	short, err := o.faults.faultUntil(ctx, ctx.Done(), OpRead, o.name)
	if err != nil {
		return nil, err
	}
	s, ok := drivers.As[drivers.Streamer](o.inner)
	if !ok {
		return nil, syscall.ENOTSUP
	}
	inner, err := s.Stream(ctx, off, n)
	if err != nil {
		return nil, err
	}
	return &stream{ReadCloser: inner, object: o, ctx: ctx, short: short, left: n / 2}, nil
}

// A stream is one of the inner Object, with faults.
type stream struct {
	io.ReadCloser
	object *object
	ctx    context.Context
	short  bool  // it breaks off early
	left   int64 // after so many more bytes
}

func (s *stream) Read(p []byte) (int, error) {
	f := s.object.faults
	short, err := f.faultUntil(s.ctx, s.ctx.Done(), OpStream, s.object.name)
	if err != nil {
		return 0, err
	}
	if short {
		p = p[:len(p)/2]
	}
	if s.short {
		p = p[:min(int64(len(p)), s.left)]
	}
	n, err := s.ReadCloser.Read(p)
	f.moved(OpRead, n)
	s.left -= int64(n)
	if err == nil && (short || s.short && s.left == 0) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Verify implements drivers.Verifier.
func (o *object) Verify(ctx context.Context) error {
	if _, err := o.faults.fault(ctx, OpVerify, o.name); err != nil {
		return err
	}
	if v, ok := drivers.As[drivers.Verifier](o.inner); ok {
		return v.Verify(ctx)
	}
	return errors.ErrUnsupported
}

func (o *object) Close() error {
	_, fault := o.faults.fault(context.Background(), OpClose, o.name)
	if err := o.inner.Close(); err != nil {
		return err
	}
	return fault
}

// A writer is a Writer of the inner driver, with faults.
type writer struct {
	faults *Faults
	name   string
	inner  drivers.Writer
}

func (w *writer) WriteAt(p []byte, off int64) (int, error) {
	if _, err := w.faults.fault(context.Background(), OpWrite, w.name); err != nil {
		return 0, err
	}
	n, err := w.inner.WriteAt(p, off)
	w.faults.moved(OpWrite, n)
	return n, err
}

func (w *writer) ReadAt(p []byte, off int64) (int, error) {
	short, err := w.faults.fault(context.Background(), OpReadBack, w.name)
	if err != nil {
		return 0, err
	}
	if short {
		p = p[:len(p)/2]
	}
	n, err := w.inner.ReadAt(p, off)
	w.faults.moved(OpReadBack, n)
	if short && err == nil {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (w *writer) Commit() error {
	if _, err := w.faults.fault(context.Background(), OpCommit, w.name); err != nil {
		return err
	}
	return w.inner.Commit()
}

func (w *writer) Abort() {
	w.faults.fault(context.Background(), OpAbort, w.name)
	w.inner.Abort()
}

func (w *writer) Close() error { return w.inner.Close() }
