package tiers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A Tier is one level of copies: a store with a quota and a state of health.
// Its methods may be called concurrently, and each returns within the tier's
// time-out, with an error if the store did not.
type Tier struct {
	name  string
	path  string
	level Level
	store drivers.Store
	limit Quota
	opts  Options
	log   *slog.Logger

	prompt bool // the store never hangs

	space   space
	health  health
	probing atomic.Bool
	counted chan struct{} // closed when what the tier holds is known
	tried   chan struct{} // closed when it has been counted, or could not be

	underWay atomic.Int64 // operations, with those that were given up and have not returned

	counters TierCounters // updated atomically
	latency  Histogram
}

func newTier(l Level, c Config, opts Options, log *slog.Logger) *Tier {
	return &Tier{
		name: c.Name, path: c.Path, level: l, store: c.Store, limit: c.Quota, opts: opts, log: log,
		prompt:  drivers.ProfileOf(c.Store).Latency == drivers.LatencyMemory,
		health:  health{log: log, wake: make(chan struct{}, 1)},
		counted: make(chan struct{}),
		tried:   make(chan struct{}),
	}
}

// Name returns the name that operators gave the tier.
func (t *Tier) Name() string { return t.name }

// Path returns where the tier is, for people.
func (t *Tier) Path() string { return t.path }

// Level returns the tier's level.
func (t *Tier) Level() Level { return t.level }

// run watches the tier's health, and counts the copies, again and again until
// it succeeds.
func (t *Tier) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { t.watch(ctx) })
	tried := sync.OnceFunc(func() { close(t.tried) })
	for pause := t.opts.Probe; ; pause = min(2*pause, maxProbe) {
		err := t.count(ctx)
		tried()
		if err == nil || ctx.Err() != nil {
			return
		}
		t.log.Warn("count copies", "err", err)
		t.health.note(listing, err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// count finds out what the tier holds, and from that its quota. It takes time
// in proportion to the number of copies, so nobody waits for it, and there is
// no time-out: until it is done the tier is read but takes no new copies.
func (t *Tier) count(ctx context.Context) error {
	var bytes, files int64
	dirs := []string{"."}
	for len(dirs) > 0 {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		dir := dirs[len(dirs)-1]
		dirs = dirs[:len(dirs)-1]
		infos, err := await(ctx, 0, func() ([]drivers.Info, error) { return t.store.ReadDir(ctx, dir) }, nil)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, info := range infos {
			switch {
			case info.IsDir():
				dirs = append(dirs, path.Join(dir, info.Name))
			case info.IsRegular():
				bytes += allocated(info.Size)
				files++
			}
		}
	}
	quota := t.limit.Bytes
	if quota == 0 {
		available, err := t.available(ctx)
		if err != nil {
			return err
		}
		quota = int64(float64(available+bytes) * t.limit.Percent / 100)
	}
	t.space.mu.Lock()
	t.space.quota = quota
	t.space.used += bytes
	t.space.files += files
	t.space.mu.Unlock()
	close(t.counted)
	return nil
}

// unlimited is what a store has available that does not know how large it is.
const unlimited = 1 << 62

// available returns the bytes that the device has for us.
func (t *Tier) available(ctx context.Context) (int64, error) {
	s, ok := drivers.As[drivers.Statfser](t.store)
	if !ok {
		return unlimited, nil
	}
	st, err := hurry(ctx, t, func() (drivers.Statfs, error) { return s.Statfs(ctx) }, nil)
	return st.Available, err
}

// Scanned reports whether the tier has been scanned.
func (t *Tier) Scanned() bool {
	select {
	case <-t.counted:
		return true
	default:
		return false
	}
}

// Fits reports whether a copy of size bytes is within what the quota leaves.
// It asks the device nothing; Reserve may still refuse.
func (t *Tier) Fits(size int64) bool {
	return t.Scanned() && t.space.fits(allocated(size))
}

// Room returns the tier's quota in bytes, 0 until it is known, and how much of it
// is taken: by copies, and by those in flight.
func (t *Tier) Room() (quota, taken int64) {
	t.space.mu.Lock()
	defer t.space.mu.Unlock()
	return t.space.quota, max(t.space.used, 0) + t.space.reserved
}

// Footprint returns how much of a quota copies of some files take at most, which
// have so many bytes together.
func Footprint(files int, bytes int64) int64 { return bytes + int64(files)*(allocationUnit-1) }

// Reserve takes room for a copy of size bytes, and reports false if the tier
// cannot take it now: for want of quota, of room on its device, or of health.
func (t *Tier) Reserve(ctx context.Context, size int64) (*Reservation, bool) {
	bytes := allocated(size)
	if !t.Scanned() || !t.health.writable() || !t.space.fits(bytes) {
		return nil, false
	}
	available, err := t.available(ctx)
	if err != nil {
		t.note(writing, err)
		return nil, false
	}
	if !t.space.reserve(bytes, available, time.Now()) {
		return nil, false
	}
	return &Reservation{space: &t.space, bytes: bytes}, true
}

// Lost says that a copy of size bytes is no longer there.
func (t *Tier) Lost(size int64) {
	if t.Scanned() {
		t.space.add(-allocated(size), -1)
	}
}

// note records how an operation ended and returns its error with the tier's
// name.
func (t *Tier) note(k kind, err error) error {
	t.health.note(k, err)
	if err == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errDown) {
		atomic.AddInt64(&t.counters.Errors, 1)
	}
	return fmt.Errorf("tier %s: %w", t.name, err)
}

// hurry is await with the tier's time-out. A tier that never hangs has none: to
// hand an operation from one goroutine to another and back costs as much as a
// read of memory.
func hurry[T any](ctx context.Context, t *Tier, f func() (T, error), late func(T)) (T, error) {
	if t.prompt {
		return f()
	}
	t.underWay.Add(1)
	return await(ctx, t.opts.Timeout, func() (T, error) {
		defer t.underWay.Add(-1)
		return f()
	}, late)
}

// do does one operation of a tier unless it is down.
func do[T any](ctx context.Context, t *Tier, k kind, f func() (T, error), late func(T)) (T, error) {
	if !t.health.readable() {
		var none T
		return none, t.note(k, errDown)
	}
	v, err := hurry(ctx, t, f, late)
	if err != nil && ctx.Err() != nil && !errors.Is(err, errTimeout) {
		return v, err // the caller went away
	}
	return v, t.note(k, err)
}

// ReadDir lists a directory of the tier's copies.
func (t *Tier) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	return do(ctx, t, listing, func() ([]drivers.Info, error) { return t.store.ReadDir(ctx, dir) }, nil)
}

// Stat describes a copy.
func (t *Tier) Stat(ctx context.Context, name string) (drivers.Info, error) {
	return do(ctx, t, opening, func() (drivers.Info, error) { return t.store.Stat(ctx, name) }, nil)
}

// Open opens the copy of name if it is of the version want. A copy of another
// version is an error that matches drivers.ErrChanged.
func (t *Tier) Open(ctx context.Context, name string, want drivers.Info) (drivers.Object, error) {
	obj, err := do(ctx, t, opening, func() (drivers.Object, error) {
		obj, err := t.store.Open(ctx, name)
		if err != nil {
			return nil, err
		}
		if !obj.Info().SameVersion(want) {
			obj.Close()
			return nil, fmt.Errorf("open %q: %w", name, drivers.ErrChanged)
		}
		return obj, nil
	}, func(o drivers.Object) { o.Close() })
	if err != nil {
		return nil, err
	}
	return &object{tier: t, obj: obj}, nil
}

// Create begins a copy. If the device is full, copies as large as this one
// are not tried for a while.
func (t *Tier) Create(ctx context.Context, name string, info drivers.Info) (drivers.Writer, error) {
	w, err := do(ctx, t, writing, func() (drivers.Writer, error) {
		return t.store.Create(ctx, name, info)
	}, func(w drivers.Writer) { w.Abort(); w.Close() })
	if err != nil {
		t.noteFull(err, info.Size)
		return nil, err
	}
	return &writer{tier: t, w: w, name: name, size: info.Size}, nil
}

// noteFull takes notice if err is that of a full device.
func (t *Tier) noteFull(err error, size int64) {
	if isFull(err) {
		t.space.full(allocated(size), time.Now())
	}
}

// Remove removes the copy of name, if there is one, and takes it off the
// account. The tier must have been counted.
func (t *Tier) Remove(ctx context.Context, name string) error {
	_, err := do(ctx, t, writing, func() (struct{}, error) {
		return struct{}{}, t.change(ctx, name, func() error {
			err := t.store.Remove(ctx, name)
			if errors.Is(err, fs.ErrNotExist) {
				err = nil // that is as good
			}
			return err
		})
	}, nil)
	return err
}

// change calls f, which commits or removes the copy of name, and takes the
// copy that was there until then off the account. Of two who change one name
// at once, the second fails: neither would know what it takes the place of.
func (t *Tier) change(ctx context.Context, name string, f func() error) error {
	if !t.space.begin(name) {
		return fmt.Errorf("%q: %w", name, errBusy)
	}
	defer t.space.end(name)
	old, err := t.store.Stat(ctx, name)
	there := err == nil && old.IsRegular()
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	if there {
		t.space.add(-allocated(old.Size), -1)
	}
	return nil
}

// Stats returns what the tier has done and what it holds.
func (t *Tier) Stats() TierStats {
	s := TierStats{
		TierCounters: drivers.Snapshot(&t.counters),
		Level:        t.level, Name: t.name, Path: t.path,
		Scanned: t.Scanned(), Latency: t.latency.Load(),
	}
	s.Health, s.Cause = t.health.get()
	t.space.mu.Lock()
	defer t.space.mu.Unlock()
	s.Quota, s.Filling = t.space.quota, t.space.reserved
	s.Used, s.Files = max(t.space.used, 0), max(t.space.files, 0)
	return s
}

// use is do on something that is open: what closes it is put off until f has
// returned, also when f was abandoned.
func use(t *Tier, k kind, u *usage, c io.Closer, f func() (int, error), late func(int)) (int, error) {
	if !t.health.readable() {
		return 0, t.note(k, errDown)
	}
	u.enter()
	n, err := hurry(context.Background(), t, func() (int, error) {
		defer u.leave(c)
		return f()
	}, late)
	return n, t.note(k, err)
}

// shut closes what is open, within the time-out, and without waiting at all
// where the tier is down.
func (t *Tier) shut(k kind, u *usage, c io.Closer) error {
	if !u.close() {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if !t.health.readable() {
		cancel()
	}
	_, err := hurry(ctx, t, func() (struct{}, error) { return struct{}{}, c.Close() }, nil)
	if err != nil && ctx.Err() == nil {
		err = t.note(k, err)
	}
	return err
}

// read does one read of something that is open, and counts it.
func (t *Tier) read(p []byte, u *usage, c io.Closer, readAt func() (int, error)) (int, error) {
	start := time.Now()
	n, err := use(t, reading, u, c, func() (int, error) {
		n, err := readAt()
		if err == io.EOF {
			err = nil
		}
		return n, err
	}, nil)
	if err != nil {
		return 0, err
	}
	t.answered(n, start)
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// answered counts a read of n bytes.
func (t *Tier) answered(n int, start time.Time) {
	atomic.AddInt64(&t.counters.Reads, 1)
	atomic.AddInt64(&t.counters.Bytes, int64(n))
	t.latency.Observe(time.Since(start))
}

// An object is an open copy.
type object struct {
	tier  *Tier
	obj   drivers.Object
	usage usage
}

// ReadAt does not watch its ctx: the tier's time-out is short enough.
func (o *object) ReadAt(_ context.Context, p []byte, off int64) (int, error) {
	return o.tier.read(p, &o.usage, o.obj, func() (int, error) {
		return o.obj.ReadAt(context.Background(), p, off)
	})
}

// Inner returns the copy as its store opened it, for drivers.As.
func (o *object) Inner() drivers.Object { return o.obj }

// SpliceDescriptor implements drivers.Splicer for a tier that never blocks. The
// copy is not closed before release.
func (o *object) SpliceDescriptor() (fd uintptr, release func(n int), err error) {
	s, ok := drivers.As[drivers.Splicer](o.obj)
	if !ok || !o.tier.prompt {
		return 0, nil, errors.ErrUnsupported
	}
	start := time.Now()
	o.usage.enter()
	fd, done, err := s.SpliceDescriptor()
	if err != nil {
		o.usage.leave(o.obj)
		return 0, nil, o.tier.note(reading, err)
	}
	return fd, func(n int) {
		done(n)
		o.tier.answered(n, start)
		o.usage.leave(o.obj)
	}, nil
}

// BackingFile implements drivers.BackingFiler unless the tier is down. Reads of the
// kernel have no time-out and are not counted. The copy is not closed before release.
func (o *object) BackingFile(register func(fd uintptr) error) (release func(), err error) {
	if !o.tier.health.readable() {
		return nil, errors.ErrUnsupported
	}
	return backingFile(o.obj, &o.usage, register)
}

func (o *object) Info() drivers.Info { return o.obj.Info() }

func (o *object) Close() error { return o.tier.shut(opening, &o.usage, o.obj) }

// A writer is a copy in the making.
type writer struct {
	tier  *Tier
	w     drivers.Writer
	name  string
	size  int64
	usage usage
	hung  atomic.Bool // Commit was given up, and may still be under way
}

func (w *writer) ReadAt(p []byte, off int64) (int, error) {
	return w.tier.read(p, &w.usage, w.w, func() (int, error) { return w.w.ReadAt(p, off) })
}

// write does one operation that changes the tier.
func (w *writer) write(k kind, f func() (int, error), late func(int)) (int, error) {
	n, err := use(w.tier, k, &w.usage, w.w, f, late)
	w.tier.noteFull(err, w.size)
	return n, err
}

func (w *writer) WriteAt(p []byte, off int64) (int, error) {
	return w.write(writing, func() (int, error) { return w.w.WriteAt(p, off) }, nil)
}

// Commit commits the copy. One that was given up as hung and succeeds after
// all is on the account too, though nobody knows of the copy.
func (w *writer) Commit() error {
	_, err := w.write(committing, func() (int, error) {
		return 0, w.tier.change(context.Background(), w.name, w.w.Commit)
	}, func(int) { w.tier.space.add(allocated(w.size), 1) })
	w.hung.Store(errors.Is(err, drivers.ErrAbandoned))
	return err
}

// Abort throws the copy away. Where it cannot do so now, Close will.
func (w *writer) Abort() {
	if !w.hung.Load() {
		w.write(writing, func() (int, error) { w.w.Abort(); return 0, nil }, nil)
	}
}

func (w *writer) Close() error { return w.tier.shut(writing, &w.usage, w.w) }
