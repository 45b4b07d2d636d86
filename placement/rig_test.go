package placement

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bubble runs a test on a clock of its own, which moves on when there is
// nothing left to do: what takes hours takes no time, and what takes no time
// takes none.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// A rig is everything from a source to a handler, in memory.
type rig struct {
	t       testing.TB
	mem     *drivertest.Mem    // the source
	bucket  *drivertest.Bucket // around it, if it is read as an object store
	source  *ledger
	from    *drivertest.Faults // around the source
	stores  []*ledger
	to      []*drivertest.Faults // around the tiers
	levels  *tiers.Hierarchy
	names   *metadata.Container
	handler *Handler

	ctx     context.Context // of what runs
	stop    context.CancelFunc
	running sync.WaitGroup
	closed  sync.Once // names
}

type rigOptions struct {
	quotas  []int64 // of the tiers
	workers int
	ttl     time.Duration // of names
	tier    tiers.Options
	idle    bool               // the handler does not run
	handles int                // Config.IdleHandles
	over    drivers.Driver     // the source, in place of one in memory
	bucket  *drivertest.Bucket // the source, likewise; it is given its Mem
}

// newRig makes a rig and runs it until the test ends. Nothing may be left open
// then.
func newRig(t testing.TB, opts rigOptions) *rig {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("MILKWEED_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	r := &rig{t: t, mem: drivertest.NewMem(0)}
	if opts.bucket != nil {
		r.bucket = opts.bucket
		r.bucket.Mem = r.mem
	}
	r.source = newLedger(t, r.mem)
	r.from = drivertest.NewFaults(r.source)
	if opts.bucket != nil {
		r.from = drivertest.NewFaults(&ledgerBucket{r.bucket, r.source})
	}
	if opts.over != nil {
		r.from = drivertest.NewFaults(opts.over)
	}
	var configs []tiers.Config
	for i, q := range opts.quotas {
		store := newLedger(t, drivertest.NewMem(0))
		faults := drivertest.NewFaults(store)
		r.stores, r.to = append(r.stores, store), append(r.to, faults)
		configs = append(configs, tiers.Config{Name: "tier" + strconv.Itoa(i+1), Store: faults, Quota: tiers.Quota{Bytes: q}})
	}
	var err error
	r.levels, err = tiers.New(r.from, configs, opts.tier, log)
	r.check(err)
	if opts.ttl == 0 {
		opts.ttl = time.Hour
	}
	if opts.workers == 0 {
		opts.workers = 4
	}
	ctx, stop := context.WithCancel(context.Background())
	r.ctx, r.stop = ctx, stop
	r.names, err = metadata.New(ctx, r.levels, metadata.Options{TTL: opts.ttl}, log)
	r.check(err)
	r.handler = New(r.levels, r.names, Config{Workers: opts.workers, IdleHandles: opts.handles}, log)
	r.running.Go(func() { r.levels.Run(ctx) })
	if !opts.idle {
		r.running.Go(func() { r.handler.Run(ctx) })
	}
	for _, tier := range r.levels.Tiers() {
		for !tier.Scanned() {
			time.Sleep(time.Millisecond)
		}
	}
	t.Cleanup(r.end)
	return r
}

// end stops everything, and sees to it that nothing is left.
func (r *rig) end() {
	r.t.Helper()
	r.stop()
	for _, f := range append(slices.Clone(r.to), r.from) {
		f.Clear()
	}
	r.running.Wait()
	r.closed.Do(func() { r.check(r.names.Close()) })
	if got := r.handler.Stats(); got.InFlight != 0 || got.Queued != 0 {
		r.t.Errorf("after the end: %d fills in flight, %d queued; want none", got.InFlight, got.Queued)
	}
	for i, l := range append(slices.Clone(r.stores), r.source) {
		r.eventually(fmt.Sprintf("everything of store %d is closed", i+1), func() bool { return l.opened() == 0 })
	}
}

func (r *rig) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// eventually waits until f is true.
func (r *rig) eventually(what string, f func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Errorf("not within 20 s: %s", what)
			return
		}
	}
}

// settled waits until no copy is under way.
func (r *rig) settled() {
	r.t.Helper()
	r.eventually("copies end", func() bool { return r.handler.Stats().InFlight == 0 })
}

// put makes a file of random bytes at the source.
func (r *rig) put(name string, size int) []byte {
	data := random(uint64(len(name))<<32+uint64(size), size)
	r.mem.Put(name, data)
	return data
}

func random(seed uint64, size int) []byte {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	data := make([]byte, size)
	rand.NewChaCha8(key).Read(data)
	return data
}

func (r *rig) entry(name string) *metadata.Entry {
	r.t.Helper()
	e, err := r.names.Resolve(context.Background(), name)
	r.check(err)
	return e
}

// open opens a file; the test closes it.
func (r *rig) open(name string) drivers.Object {
	r.t.Helper()
	obj, err := r.handler.Open(context.Background(), r.entry(name))
	r.check(err)
	return obj
}

// touch opens a file and does not wait for its first block; somebody else, or
// nobody, will. It is called in a bubble.
func (r *rig) touch(name string) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.ctx)
	e := r.entry(name)
	var opener sync.WaitGroup
	opener.Go(func() {
		obj, err := r.handler.Open(ctx, e)
		if err == nil {
			obj.Close()
		} else if !errors.Is(err, context.Canceled) {
			r.t.Errorf("open %s: %v", name, err)
		}
	})
	synctest.Wait()
	cancel()
	opener.Wait()
}

// read reads a whole file, in pieces as the kernel would.
func (r *rig) read(name string) ([]byte, error) {
	obj, err := r.handler.Open(context.Background(), r.entry(name))
	if err != nil {
		return nil, err
	}
	defer obj.Close()
	data := make([]byte, obj.Info().Size)
	for off := int64(0); off < int64(len(data)); off += 128 << 10 {
		if err := readAt(context.Background(), obj, data[off:min(off+128<<10, int64(len(data)))], off); err != nil {
			return nil, err
		}
	}
	return data, nil
}

// wantFile reads a whole file and compares it.
func (r *rig) wantFile(name string, want []byte) {
	r.t.Helper()
	got, err := r.read(name)
	if err != nil {
		r.t.Errorf("read %s: %v", name, err)
	} else if !bytes.Equal(got, want) {
		r.t.Errorf("read %s: wrong bytes", name)
	}
}

// wantAt reads a part of an open file and compares it.
func (r *rig) wantAt(obj drivers.Object, off, n int, want []byte) {
	r.t.Helper()
	got := make([]byte, n)
	if err := readAt(context.Background(), obj, got, int64(off)); err != nil {
		r.t.Errorf("read at %d: %v", off, err)
	} else if !bytes.Equal(got, want[off:off+n]) {
		r.t.Errorf("read at %d: wrong bytes", off)
	}
}

// readAt fills p. It repeats a read whose error matches drivers.ErrRetry, each time with a new
// buffer.
func readAt(ctx context.Context, obj drivers.Object, p []byte, off int64) error {
	for {
		buf := make([]byte, len(p))
		n, err := obj.ReadAt(ctx, buf, off)
		switch {
		case errors.Is(err, drivers.ErrRetry):
			continue
		case err != nil && err != io.EOF:
			return err
		case n < len(p):
			return io.ErrUnexpectedEOF
		}
		copy(p, buf)
		return nil
	}
}

// A ledger is a store that knows what is open, and what was read in which
// order. It fails the test when something is used after it was closed.
type ledger struct {
	*drivertest.Mem
	t testing.TB

	mu    sync.Mutex // guards the following
	open  int
	reads []span
}

// A span is what one read asked for.
type span struct {
	name string
	off  int64
	n    int
}

func newLedger(t testing.TB, m *drivertest.Mem) *ledger { return &ledger{Mem: m, t: t} }

// add changes the number of what is open.
func (l *ledger) add(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open += n
}

func (l *ledger) opened() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// spans returns what was read so far.
func (l *ledger) spans() []span {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.reads)
}

func (l *ledger) Open(ctx context.Context, name string) (drivers.Object, error) {
	obj, err := l.Mem.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return &ledgerObject{Object: obj, page: l.page(name)}, nil
}

func (l *ledger) Create(ctx context.Context, name string, info drivers.Info) (drivers.Writer, error) {
	w, err := l.Mem.Create(ctx, name, info)
	if err != nil {
		return nil, err
	}
	return &ledgerWriter{Writer: w, page: l.page(name)}, nil
}

// A page is one thing that is or was open.
type page struct {
	ledger *ledger
	name   string

	mu     sync.RWMutex // held for reading by operations
	closed bool
}

func (l *ledger) page(name string) *page {
	l.add(1)
	return &page{ledger: l, name: name}
}

// use begins an operation; the caller ends it by what is returned.
func (p *page) use(what string) (end func()) {
	p.mu.RLock()
	if p.closed {
		p.ledger.t.Errorf("%s of %s after close", what, p.name)
	}
	return p.mu.RUnlock
}

func (p *page) close() {
	if !p.mu.TryLock() {
		p.ledger.t.Errorf("close of %s while it is used", p.name)
		return
	}
	defer p.mu.Unlock()
	if p.closed {
		p.ledger.t.Errorf("second close of %s", p.name)
		return
	}
	p.closed = true
	p.ledger.add(-1)
}

type ledgerObject struct {
	drivers.Object
	*page
}

// A ledgerBucket is a Bucket with a ledger of its objects and streams.
type ledgerBucket struct {
	*drivertest.Bucket
	ledger *ledger
}

func (b *ledgerBucket) OpenVersion(ctx context.Context, name string, info drivers.Info) (drivers.Object, error) {
	obj, err := b.Bucket.OpenVersion(ctx, name, info)
	if err != nil {
		return nil, err
	}
	return &ledgerObject{Object: obj, page: b.ledger.page(name)}, nil
}

// note takes down what was asked for.
func (l *ledger) note(name string, off, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads = append(l.reads, span{name, off, int(n)})
}

func (o *ledgerObject) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	defer o.use("stream")()
	o.ledger.note(o.name, off, n)
	s, err := o.Object.(drivers.Streamer).Stream(ctx, off, n)
	if err != nil {
		return nil, err
	}
	return &ledgerStream{ReadCloser: s, of: o.page, page: o.ledger.page("a stream of " + o.name)}, nil
}

// A ledgerStream is open for itself, and finds out when its object is closed
// while it is read.
type ledgerStream struct {
	io.ReadCloser
	*page
	of *page
}

func (s *ledgerStream) Read(p []byte) (int, error) {
	defer s.of.use("read from a stream")()
	defer s.use("read")()
	return s.ReadCloser.Read(p)
}

func (s *ledgerStream) Close() error {
	s.close()
	return s.ReadCloser.Close()
}

func (o *ledgerObject) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	defer o.use("read")()
	o.ledger.note(o.name, off, int64(len(p)))
	return o.Object.ReadAt(ctx, p, off)
}

func (o *ledgerObject) Close() error {
	o.close()
	return o.Object.Close()
}

// A ledgerWriter also finds out when commit and abort run at once.
type ledgerWriter struct {
	drivers.Writer
	*page
	ending sync.Mutex
}

func (w *ledgerWriter) WriteAt(p []byte, off int64) (int, error) {
	defer w.use("write")()
	return w.Writer.WriteAt(p, off)
}

func (w *ledgerWriter) ReadAt(p []byte, off int64) (int, error) {
	defer w.use("read back")()
	return w.Writer.ReadAt(p, off)
}

func (w *ledgerWriter) end(what string) func() {
	leave := w.use(what)
	if !w.ending.TryLock() {
		w.ledger.t.Errorf("%s of %s while it is ended otherwise", what, w.name)
		return leave
	}
	return func() { w.ending.Unlock(); leave() }
}

func (w *ledgerWriter) Commit() error {
	defer w.end("commit")()
	return w.Writer.Commit()
}

func (w *ledgerWriter) Abort() {
	defer w.end("abort")()
	w.Writer.Abort()
}

func (w *ledgerWriter) Close() error {
	w.close()
	return w.Writer.Close()
}
