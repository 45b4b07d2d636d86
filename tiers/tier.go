package tiers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// A Tier is one level of copies: a store with a quota and a state of health. Its methods
// may be called concurrently. On a disk each returns within the tier's time-out, with an
// error if the store did not answer in time.
type Tier struct {
	name   string
	path   string
	level  Level
	store  drivers.Store
	window Quota
	opts   Options
	log    *slog.Logger
	memory atomic.Bool // the store never blocks and needs no time-outs
	source *Source     // below all tiers

	scarcity *scarcity
	space    space
	sharing  panics.Mutex // held while a copy that shares its storage is removed
	health   health
	speed    speed
	lending  lending
	recent   recentCopies
	probing  atomic.Bool
	scanned  chan struct{}      // closed after the first successful scan
	tried    chan struct{}      // closed after the first scan
	inFlight atomic.Int64       // operations, with abandoned ones that have not returned
	calls    *drivers.CallLimit // of the operations with a time-out

	counters TierCounters // updated atomically
	latency  Histogram

	sizing sync.Mutex // held while the quota is determined, which may call the device; guards the following
	limit  Quota
}

func newTier(l Level, c Config, source *Source, opts Options, log *slog.Logger) *Tier {
	t := &Tier{
		name: c.Name, path: c.Path, level: l, store: c.Store, limit: c.Quota, window: c.Window, opts: opts, log: log,
		source: source, scarcity: source.scarcity,
		health:  health{log: log, wake: make(chan struct{}, 1)},
		speed:   newSpeed(),
		lending: lending{wake: make(chan struct{}, 1)},
		scanned: make(chan struct{}),
		tried:   make(chan struct{}),
		calls:   drivers.NewCallLimit(maxTierCalls),
	}
	if c.Store == nil {
		t.store = newLateStore(t, c.Open)
	} else {
		t.memory.Store(inMemory(c.Store))
	}
	return t
}

// Name returns the name that the configuration gives the tier.
func (t *Tier) Name() string { return t.name }

// Path returns the folder of the tier, for display.
func (t *Tier) Path() string { return t.path }

// Level returns the tier's level.
func (t *Tier) Level() Level { return t.level }

// run watches the tier's health, and scans the tier, when it is open, until a scan succeeds.
func (t *Tier) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { panics.Repeat(ctx, func() { t.watch(ctx) }) })
	if t.awaitOpen(ctx) != nil {
		return
	}
	wg.Go(func() { panics.Repeat(ctx, func() { t.probeLent(ctx) }) })
	wg.Go(func() { panics.Repeat(ctx, func() { t.sync(ctx) }) })
	tried := sync.OnceFunc(func() { close(t.tried) })
	for pause := t.opts.Probe; ; pause = min(2*pause, maxProbe) {
		err := t.scan(ctx)
		failed := err != nil && ctx.Err() == nil
		if failed {
			t.log.Warn("scan of the tier failed", "err", err)
			t.health.note(listing, err) // before WaitScanned returns
		}
		tried()
		if !failed {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// scan adds up the copies in the tier and determines the quota. A scan takes time in
// proportion to the number of copies and has no time-out. Meanwhile the tier is read, but
// accepts no copies.
func (t *Tier) scan(ctx context.Context) error {
	t.device(ctx) // notes the unit; if the device does not answer, sizes are rounded to 4 KiB
	t.space.basis = max(t.space.unit.Load(), allocationUnit)
	var bytes, files int64
	var odd oddities
	shared := make(map[uint64]bool) // inode numbers of copies with several names
	dirs := []string{"."}
	for len(dirs) > 0 {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		dir := dirs[len(dirs)-1]
		dirs = dirs[:len(dirs)-1]
		infos, err := await(ctx, 0, func() ([]drivers.Info, error) { return t.sweep(ctx, dir) }, nil, nil)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, info := range infos {
			switch {
			case info.IsDir():
				dirs = append(dirs, path.Join(dir, info.Name))
			case info.IsRegular():
				files++
				if info.Names > 1 && shared[info.Inode] {
					continue
				}
				bytes += occupied(info)
				odd.add(info.Inode, path.Join(dir, info.Name), occupied(info)-t.space.rounded(info.Size))
				if info.Names > 1 {
					shared[info.Inode] = true
				}
			}
		}
	}
	t.sizing.Lock()
	defer t.sizing.Unlock()
	quota, err := t.bytesOf(ctx, t.limit, bytes)
	if err != nil {
		return err
	}
	t.space.mu.Lock()
	t.space.quota = quota
	t.space.window = t.windowOf(quota)
	t.space.used += bytes
	t.space.files += files
	t.space.oddities = odd
	t.space.mu.Unlock()
	close(t.scanned)
	if t.window.Bytes > quota {
		t.log.Warn("the window takes the whole quota: no copy on this tier stays", "window", t.window.Bytes, "quota", quota)
	}
	return nil
}

// bytesOf returns a quota in bytes, in a tier whose copies take used.
func (t *Tier) bytesOf(ctx context.Context, q Quota, used int64) (int64, error) {
	if q.Bytes > 0 {
		return q.Bytes, nil
	}
	device, err := t.device(ctx)
	if err == nil && device.Available == unlimited {
		err = errNoSize
	}
	return int64(float64(device.Available+used) * q.Percent / 100), err
}

// Resize changes the quota, of which a percentage is determined anew. If copies take more than the new
// quota, they stay, and there are no new ones until they take less. Before the scan has ended, the quota
// has no effect yet. After an error, which is that of the device, the quota is unchanged.
func (t *Tier) Resize(ctx context.Context, q Quota) error {
	t.sizing.Lock()
	defer t.sizing.Unlock()
	if !t.Scanned() {
		t.limit = q
		return nil
	}
	t.space.mu.Lock()
	used := max(t.space.used, 0)
	t.space.mu.Unlock()
	quota, err := t.bytesOf(ctx, q, used)
	if err != nil {
		return fmt.Errorf("tier %s: %w", t.name, err)
	}
	t.limit = q
	t.space.resize(quota, t.windowOf(quota))
	return nil
}

// syncInterval is the time between two syncs of a store. After a power failure, the copies that
// were committed since the last sync may be missing.
const syncInterval = 30 * time.Second

// sync syncs the store every syncInterval until ctx is done.
func (t *Tier) sync(ctx context.Context) {
	s, ok := drivers.As[drivers.Syncer](t.store)
	if !ok {
		return
	}
	tick := time.NewTicker(syncInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if t.health.readable() {
				_, err := boundedBy(ctx, t, commitTimeouts*t.opts.Timeout, func() (struct{}, error) { return struct{}{}, s.Sync(ctx) }, nil, nil)
				t.note(writing, err)
			}
		}
	}
}

// sweep lists a directory of copies for the scan. It first removes what is left of damaged ones,
// which would occupy the disk and not count.
func (t *Tier) sweep(ctx context.Context, dir string) ([]drivers.Info, error) {
	if s, ok := drivers.As[drivers.Sweeper](t.store); ok {
		return s.Sweep(ctx, dir)
	}
	return t.store.ReadDir(ctx, dir)
}

// errNoSize is the error of a tier with a quota in percent on a file system that does not report
// its size, as some network file systems.
var errNoSize = errors.New("its file system reports no size, of which the quota could be a percentage")

// unlimited is the available size of a store that does not report its size.
const unlimited = 1 << 62

// device returns the room on the device. If the store does not report that, it is unlimited.
func (t *Tier) device(ctx context.Context) (drivers.Statfs, error) {
	s, ok := drivers.As[drivers.Statfser](t.store)
	if !ok {
		return drivers.Statfs{Available: unlimited}, nil
	}
	st, err := bounded(ctx, t, func() (drivers.Statfs, error) { return s.Statfs(ctx) }, nil)
	if err == nil {
		t.space.unit.Store(st.Unit)
		if st.Total == 0 {
			st.Available = unlimited
		}
	}
	return st, err
}

// Scanned reports whether the tier has been scanned and accepts copies.
func (t *Tier) Scanned() bool {
	select {
	case <-t.scanned:
		return true
	default:
		return false
	}
}

// Scanning reports whether the first scan has not ended, and the tier is not down.
func (t *Tier) Scanning() bool {
	select {
	case <-t.tried:
		return false
	default:
		return t.health.readable()
	}
}

// Accepts reports whether the tier has been scanned, and is healthy enough to be filled.
func (t *Tier) Accepts() bool { return t.Scanned() && t.health.writable() }

// Fits reports whether the quota has room for a copy of size bytes, and the device did not lack it a
// short time ago. It does not examine the device, so that Reserve may still fail.
func (t *Tier) Fits(size int64) bool {
	return t.Scanned() && t.space.fits(t.Allocated(size), false)
}

// FitsWindow is Fits for a copy in the window.
func (t *Tier) FitsWindow(size int64) bool {
	return t.Scanned() && t.space.fits(t.Allocated(size), true)
}

// Room returns the tier's quota in bytes without the window, 0 until the tier has been scanned, and
// the bytes of it that copies take, with those in flight.
func (t *Tier) Room() (quota, taken int64) {
	t.space.mu.Lock()
	defer t.space.mu.Unlock()
	s := &t.space
	return s.quota - s.window, max(s.used, 0) + s.reserved - s.windowed
}

// windowOf returns the size of the window in a quota.
func (t *Tier) windowOf(quota int64) int64 {
	if t.window.Bytes > 0 {
		return min(t.window.Bytes, quota)
	}
	return int64(float64(quota) * t.window.Percent / 100)
}

// Window returns the bytes of the tier's quota that are for the window, 0 until the tier has been
// scanned, and how many of them are taken.
func (t *Tier) Window() (size, taken int64) {
	t.space.mu.Lock()
	defer t.space.mu.Unlock()
	return t.space.window, t.space.windowed
}

// Allocated returns the bytes that a copy of size bytes is expected to occupy in the tier.
func (t *Tier) Allocated(size int64) int64 { return t.space.expected(size) }

// Reserve takes room for a copy of size bytes. It reports false if the quota or the device
// has no room, or if the tier is not healthy enough to be filled.
func (t *Tier) Reserve(ctx context.Context, size int64) (*Reservation, bool) {
	return t.reserve(ctx, size, false)
}

// ReserveWindow is Reserve for a copy in the window: it is readable while it is being written, is
// never committed, and is aborted when it is not needed any more.
func (t *Tier) ReserveWindow(ctx context.Context, size int64) (*Reservation, bool) {
	return t.reserve(ctx, size, true)
}

func (t *Tier) reserve(ctx context.Context, size int64, windowed bool) (*Reservation, bool) {
	bytes, ok := t.take(ctx, size, 0, windowed)
	if !ok {
		return nil, false
	}
	return &Reservation{tier: t, bytes: bytes, size: size, windowed: windowed, retry: t.Lacks(size) != nil}, true
}

// take takes the room for a copy of size bytes beside that of held bytes which the copy has, and reports
// success. It returns the bytes that it has taken.
func (t *Tier) take(ctx context.Context, size, held int64, windowed bool) (bytes int64, ok bool) {
	if !t.Accepts() || !t.space.fits(max(t.Allocated(size)-held, 0), windowed) {
		return 0, false
	}
	device, err := t.device(ctx)
	if err != nil {
		t.note(writing, err)
		return 0, false
	}
	bytes = max(t.Allocated(size)-held, 0) // the unit may be known only now
	if lack := lackOf(device, bytes); lack != nil {
		t.noteShortage(lack, bytes, true)
		return 0, false
	}
	return bytes, t.space.reserve(bytes, device.Available, windowed, time.Now())
}

// Lost takes the copy of name, of size bytes, off the account, because it was found to be
// missing. Discard has already done so for a copy that it has removed.
func (t *Tier) Lost(name string, size int64) {
	if t.Scanned() && !t.space.isDiscarded(name) {
		t.space.lost(name, size)
	}
}

// note records the result of an operation and returns its error with the tier's name.
func (t *Tier) note(k kind, err error) error {
	t.health.note(k, err)
	if err == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errDown) && !errors.Is(err, drivers.ErrCorrupt) {
		atomic.AddInt64(&t.counters.Errors, 1)
	}
	return fmt.Errorf("tier %s: %w", t.name, err)
}

// bounded calls f with the tier's time-out. A tier in memory needs none, and the hand-over
// to another goroutine and back would cost as much as a read from memory.
func bounded[T any](ctx context.Context, t *Tier, f func() (T, error), late func(T)) (T, error) {
	return boundedBy(ctx, t, t.opts.Timeout, f, late, nil)
}

// boundedBy is bounded with another time-out. If f is not admitted in time, it is not called; drop, which may
// be nil, is called later.
func boundedBy[T any](ctx context.Context, t *Tier, timeout time.Duration, f func() (T, error), late func(T), drop func()) (T, error) {
	if t.memory.Load() {
		return caught(f)
	}
	if err := t.admit(ctx, timeout); err != nil {
		if drop != nil {
			go func() {
				defer panics.Contain()
				t.calls.Acquire(context.Background()) // no error: the context is never done
				defer t.endCall()
				drop()
			}()
		}
		var none T
		return none, err
	}
	t.inFlight.Add(1)
	return await(ctx, timeout, func() (T, error) {
		defer t.inFlight.Add(-1)
		return f()
	}, late, t.endCall)
}

// do performs one operation unless the tier is down, and records its result. It repeats the
// operation while no descriptor is left.
func do[T any](ctx context.Context, t *Tier, k kind, f func() (T, error), late func(T)) (T, error) {
	if !t.health.readable() {
		var none T
		return none, t.note(k, errDown)
	}
	v, err := repeat(ctx, t.scarcity, func() (T, error) { return bounded(ctx, t, f, late) })
	if err != nil && ctx.Err() != nil && !errors.Is(err, errTimeout) {
		return v, err // the caller was cancelled
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

// Open opens the copy of name if it has the content of want. If it is of another version, the
// error matches drivers.ErrChanged. If it is damaged, the error matches drivers.ErrCorrupt.
func (t *Tier) Open(ctx context.Context, name string, want drivers.Info) (drivers.Object, error) {
	return t.open(ctx, name, func(copied drivers.Info) bool {
		if !want.SameContent(copied) {
			return false
		}
		if !want.Ctime.IsZero() && !want.Ctime.Equal(copied.Ctime) {
			t.restamp(ctx, name, want)
		}
		return true
	})
}

// restamp stores the present attributes of the source file with the copy of name. Otherwise a
// change of the mode would also explain all later change times.
func (t *Tier) restamp(ctx context.Context, name string, info drivers.Info) {
	if r, ok := drivers.As[drivers.Restamper](t.store); ok && info.Version == "" {
		t.note(writing, r.Restamp(ctx, name, info))
	}
}

// open opens the copy of name if accept returns true for its Info.
func (t *Tier) open(ctx context.Context, name string, accept func(drivers.Info) bool) (drivers.Object, error) {
	o, err := do(ctx, t, opening, func() (*object, error) {
		held := t.space.acquire(name)
		obj, err := t.store.Open(ctx, name)
		if err == nil && !accept(obj.Info()) {
			obj.Close()
			err = fmt.Errorf("open %q: %w", name, drivers.ErrChanged)
		}
		if err != nil {
			t.space.release(name, held)
			return nil, err
		}
		t.recent.add(name)
		return &object{copyFile{tier: t, name: name, file: obj, held: held}, obj}, nil
	}, func(o *object) { o.release() })
	if err != nil {
		return nil, err
	}
	return o, nil
}

// Create begins a copy. If the device is full, the tier rejects copies of that size for a
// while. When ctx is done, a commit of the copy in progress is abandoned.
func (t *Tier) Create(ctx context.Context, name string, info drivers.Info) (drivers.Writer, error) {
	w, err := do(ctx, t, writing, func() (drivers.Writer, error) {
		return t.store.Create(ctx, name, info)
	}, func(w drivers.Writer) { w.Abort(); w.Close() })
	if err != nil {
		t.noteRefused(err, info.Size)
		return nil, err
	}
	return &writer{copyFile: copyFile{tier: t, name: name, file: w}, ctx: ctx, w: w, size: info.Size}, nil
}

// Remove removes the copy of name, if there is one. Open handles of the copy stay readable.
// Its room is returned when the last of them, the last splice descriptor and the last
// backing file are released, because a removed file occupies its disk until then. The tier
// must have been scanned: before, its account may not include the copy.
func (t *Tier) Remove(ctx context.Context, name string) error {
	if !t.Scanned() {
		return fmt.Errorf("tier %s: remove %q: %w", t.name, name, errNotScanned)
	}
	_, err := do(ctx, t, writing, func() (struct{}, error) {
		return struct{}{}, t.change(ctx, name, func(missing bool) error {
			if missing { // the name may be that of a file that Milkweed did not create
				return nil
			}
			err := t.store.Remove(ctx, name)
			if errors.Is(err, fs.ErrNotExist) {
				err = nil // the result is the same
			}
			return err
		}, nil)
	}, nil)
	return err
}

// change calls f, which commits or removes the copy of name and learns whether there is none, takes
// the copy that was there before off the account, and calls done, which may be nil. Of two concurrent changes of
// one name the second fails, because the copy that it would replace is not determined.
func (t *Tier) change(ctx context.Context, name string, f func(missing bool) error, done func()) error {
	if !t.space.begin(name) {
		return fmt.Errorf("%q: %w", name, errBusy)
	}
	defer t.space.end(name)
	old, err := t.store.Stat(ctx, name)
	damaged := errors.Is(err, drivers.ErrCorrupt)
	exists := (err == nil || damaged) && old.IsRegular()
	if err != nil && !damaged && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return err
	}
	if exists && old.Names > 1 {
		t.sharing.Lock()
		defer t.sharing.Unlock()
		old = t.statShared(ctx, name, old)
	}
	bytes, keep := int64(0), func() {}
	if exists {
		bytes, keep = t.space.returns(name, old)
	}
	if err := f(errors.Is(err, fs.ErrNotExist)); err != nil {
		keep()
		return err
	}
	if exists {
		t.space.removed(name, bytes)
	}
	if done != nil {
		done()
	}
	return nil
}

// statShared describes a copy that was found to share its storage. t.sharing is held, so that of two
// names that are removed at the same time, the second finds that it is the last.
func (t *Tier) statShared(ctx context.Context, name string, found drivers.Info) drivers.Info {
	if now, err := t.store.Stat(ctx, name); err == nil && now.Inode == found.Inode {
		return now
	}
	return found
}

// Link makes a copy under the name to, which shares the storage of the copy of from and takes no room.
// It replaces an earlier copy. info describes the source file of to, whose content is the same. Of
// concurrent changes of one name, one succeeds. The error matches errors.ErrUnsupported if the store
// is no drivers.Linker.
func (t *Tier) Link(ctx context.Context, from, to string, info drivers.Info) error {
	l, ok := drivers.As[drivers.Linker](t.store)
	if !ok {
		return fmt.Errorf("tier %s: link: %w", t.name, errors.ErrUnsupported)
	}
	if !t.Scanned() {
		return fmt.Errorf("tier %s: link %q: %w", t.name, from, errNotScanned)
	}
	_, err := do(ctx, t, writing, func() (struct{}, error) {
		if !t.space.begin(from) { // it is being removed or replaced
			return struct{}{}, fmt.Errorf("%q: %w", from, errBusy)
		}
		defer t.space.end(from)
		return struct{}{}, t.change(ctx, to, func(bool) error { return l.Link(ctx, from, to, info) }, func() { t.space.linked(to) })
	}, nil)
	return err
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
	s.Quota, s.Filling = t.space.quota, t.space.reserved-t.space.windowed
	s.Window = t.space.windowed
	s.Used, s.Files = max(t.space.used, 0), max(t.space.files, 0)
	s.Short = t.space.short.describe()
	return s
}
