package placement

import (
	"bytes"
	"context"
	"errors"
	"flag"
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
	"github.com/milkweedfs/milkweed/drivers/limit"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

func TestMain(m *testing.M) {
	// Most parallel tests wait. With the race detector, several clusters need so much processor time that
	// their nodes take each other to be down. The command line may override this.
	parallel := "4"
	if drivertest.Race() {
		parallel = "1"
	}
	flag.Set("test.parallel", parallel)
	goleak.VerifyTestMain(m)
}

// bubble runs a test with a simulated clock, which advances when every goroutine is blocked.
// Waits of hours therefore take no time, and work that does not wait takes none on the clock.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// A rig is a handler with its source, tiers and metadata container, in memory.
type rig struct {
	t       testing.TB
	mem     *drivertest.Mem    // the source
	bucket  *drivertest.Bucket // around mem, if the source is an object store
	source  *recorder
	from    *drivertest.Faults // around the source
	stores  []*recorder
	to      []*drivertest.Faults // around the tiers
	levels  *tiers.Hierarchy
	names   *metadata.Container
	handler *Handler

	ctx     context.Context // of the goroutines in running
	stop    context.CancelFunc
	running sync.WaitGroup
	closed  sync.Once // names
}

type rigOptions struct {
	quotas  []int64 // of the tiers
	workers int
	ttl     time.Duration // of names
	tier    tiers.Options
	idle    bool               // the handler does not run: it has no workers
	handles int                // Config.IdleHandles
	over    drivers.Driver     // the source, instead of mem
	bucket  *drivertest.Bucket // the source, instead of mem; newRig sets its Mem
	racy    time.Duration      // Config.RacyWindow
	remote  bool               // the source lists names without attributes
	limits  limit.Config       // of such a source

	passthrough bool  // Config.Passthrough
	ahead       int64 // Config.ReadAhead
	window      int64 // tiers.Config.Window of the first tier

	onDisk []drivers.Store // the tiers, instead of stores in memory

	pieceSize int64 // metadata.Options.PieceSize

	log io.Writer // of warnings; nil: they are discarded
}

// newRig makes a rig and runs it until the test ends. The test fails if anything is open
// then.
func newRig(t testing.TB, opts rigOptions) *rig {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	if opts.log != nil {
		log = slog.New(slog.NewTextHandler(opts.log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	if os.Getenv("MILKWEED_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	r := &rig{t: t, mem: drivertest.NewMem(0)}
	if opts.bucket != nil {
		r.bucket = opts.bucket
		r.bucket.Mem = r.mem
	}
	r.source = newRecorder(t, r.mem)
	r.from = drivertest.NewFaults(r.source)
	if opts.bucket != nil {
		r.from = drivertest.NewFaults(&recordedBucket{r.bucket, r.source})
	}
	if opts.remote {
		r.from = drivertest.NewFaults(server{limit.New(recordedNamer{r.source, drivertest.NewNamer(r.mem)}, opts.limits)})
	}
	if opts.over != nil {
		r.from = drivertest.NewFaults(opts.over)
	}
	var configs []tiers.Config
	for i, q := range opts.quotas {
		store := newRecorder(t, drivertest.NewMem(0))
		faults := drivertest.NewFaults(store)
		if opts.onDisk != nil {
			faults = drivertest.NewFaults(opts.onDisk[i])
		}
		r.stores, r.to = append(r.stores, store), append(r.to, faults)
		configs = append(configs, tiers.Config{Name: "tier" + strconv.Itoa(i+1), Store: faults, Quota: tiers.Quota{Bytes: q}})
		configs[0].Window = tiers.Quota{Bytes: opts.window}
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
	r.names, err = metadata.New(ctx, r.levels, metadata.Options{TTL: opts.ttl, PieceSize: opts.pieceSize}, log)
	r.check(err)
	r.handler = New(r.levels, r.names, Config{Workers: opts.workers, IdleHandles: opts.handles, RacyWindow: opts.racy, Passthrough: opts.passthrough, ReadAhead: opts.ahead}, log)
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

// end stops the rig, and checks that nothing is left open or in flight.
func (r *rig) end() {
	r.t.Helper()
	r.stop()
	for _, f := range append(slices.Clone(r.to), r.from) {
		f.Clear()
	}
	r.running.Wait()
	r.closed.Do(r.names.Close)
	if got := r.handler.Stats(); got.InFlight != 0 || got.Queued != 0 {
		r.t.Errorf("after the end: got %d fills in flight, %d queued; want none", got.InFlight, got.Queued)
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

// eventually waits until f returns true.
func (r *rig) eventually(what string, f func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Errorf("not within 20 s: %s", what)
			return
		}
	}
}

// settled waits until no copy is in flight, and no file is about to be copied in the background.
func (r *rig) settled() {
	r.t.Helper()
	r.eventually("copies end", func() bool {
		st := r.handler.Stats()
		return st.InFlight == 0 && st.Background == 0
	})
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

// wantWhole makes the handler copy the large files in the directory of a file as a whole from their open
// on. It does so after a reader has wanted one of them.
func (r *rig) wantWhole(name string) {
	r.t.Helper()
	r.handler.large.learn(r.entry(name), true, true)
}

// open opens a file; the test closes it.
func (r *rig) open(name string) drivers.Object {
	r.t.Helper()
	obj, err := r.handler.Open(context.Background(), r.entry(name))
	r.check(err)
	return obj
}

// touch begins to open a file, and cancels the open if it waits for the first block. It must
// be called in a bubble.
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

// read reads a whole file, in pieces of the size that the kernel requests.
func (r *rig) read(name string) ([]byte, error) { return r.readWith(context.Background(), name) }

// readWith is read with the context of the open.
func (r *rig) readWith(ctx context.Context, name string) ([]byte, error) {
	obj, err := r.handler.Open(ctx, r.entry(name))
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

// A recorder is a store that records which files are open, and which reads were made in which
// order. It fails the test when a file is used after it was closed.
type recorder struct {
	*drivertest.Mem
	t testing.TB

	mu     sync.Mutex // guards the following
	open   int
	reads  []span
	demand int // ReadAts that are not in the background
}

// A span is the range of one read.
type span struct {
	name string
	off  int64
	n    int
}

func newRecorder(t testing.TB, m *drivertest.Mem) *recorder { return &recorder{Mem: m, t: t} }

// add changes the number of open files.
func (l *recorder) add(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open += n
}

// opened returns the number of open files and streams.
func (l *recorder) opened() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// spans returns the reads so far, in their order.
func (l *recorder) spans() []span {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.reads)
}

func (l *recorder) Open(ctx context.Context, name string) (drivers.Object, error) {
	obj, err := l.Mem.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return &recordedObject{Object: obj, record: l.record(name)}, nil
}

func (l *recorder) Create(ctx context.Context, name string, info drivers.Info) (drivers.Writer, error) {
	w, err := l.Mem.Create(ctx, name, info)
	if err != nil {
		return nil, err
	}
	return &recordedWriter{Writer: w, record: l.record(name)}, nil
}

// A record is one file or stream that is or was open.
type record struct {
	recorder *recorder
	name     string

	mu     sync.RWMutex // held for reading by operations
	closed bool
}

func (l *recorder) record(name string) *record {
	l.add(1)
	return &record{recorder: l, name: name}
}

// use begins an operation, which the caller ends by calling end.
func (p *record) use(what string) (end func()) {
	p.mu.RLock()
	if p.closed {
		p.recorder.t.Errorf("%s of %s after close", what, p.name)
	}
	return p.mu.RUnlock
}

func (p *record) close() {
	if !p.mu.TryLock() {
		p.recorder.t.Errorf("close of %s during an operation", p.name)
		return
	}
	defer p.mu.Unlock()
	if p.closed {
		p.recorder.t.Errorf("second close of %s", p.name)
		return
	}
	p.closed = true
	p.recorder.add(-1)
}

type recordedObject struct {
	drivers.Object
	*record
}

// A recordedBucket is a Bucket whose objects and streams are recorded.
type recordedBucket struct {
	*drivertest.Bucket
	recorder *recorder
}

func (b *recordedBucket) OpenVersion(ctx context.Context, name string, info drivers.Info) (drivers.Object, error) {
	obj, err := b.Bucket.OpenVersion(ctx, name, info)
	if err != nil {
		return nil, err
	}
	return &recordedObject{Object: obj, record: b.recorder.record(name)}, nil
}

// A server does not know which requests are background work.
type server struct{ *limit.Driver }

// An anonymous is a context without values.
type anonymous struct{ context.Context }

func (anonymous) Value(any) any { return nil }

func (s server) Open(ctx context.Context, name string) (drivers.Object, error) {
	obj, err := s.Driver.Open(anonymous{ctx}, name)
	if err != nil {
		return nil, err
	}
	return serverObject{obj}, nil
}

type serverObject struct{ drivers.Object }

func (o serverObject) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	return o.Object.ReadAt(anonymous{ctx}, p, off)
}

// A recordedNamer is a remote file system whose files are recorded.
type recordedNamer struct {
	*recorder
	names drivertest.Namer
}

func (n recordedNamer) Names(ctx context.Context, dir string) ([]drivers.Info, error) {
	return n.names.Names(ctx, dir)
}

func (n recordedNamer) StatNames(ctx context.Context, dir string, names []string) ([]drivers.Info, error) {
	return n.names.StatNames(ctx, dir, names)
}

// note records a read.
func (l *recorder) note(name string, off, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads = append(l.reads, span{name, off, int(n)})
}

func (o *recordedObject) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	defer o.use("stream")()
	o.recorder.note(o.name, off, n)
	s, err := o.Object.(drivers.Streamer).Stream(ctx, off, n)
	if err != nil {
		return nil, err
	}
	return &recordedStream{ReadCloser: s, of: o.record, record: o.recorder.record("stream of " + o.name)}, nil
}

// A recordedStream is recorded apart from its object, and fails the test when the object is
// closed while the stream is read.
type recordedStream struct {
	io.ReadCloser
	*record
	of *record
}

func (s *recordedStream) Read(p []byte) (int, error) {
	defer s.of.use("read from a stream")()
	defer s.use("read")()
	return s.ReadCloser.Read(p)
}

func (s *recordedStream) Close() error {
	s.close()
	return s.ReadCloser.Close()
}

func (o *recordedObject) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	defer o.use("read")()
	o.recorder.note(o.name, off, int64(len(p)))
	if !drivers.IsBackground(ctx) {
		o.recorder.mu.Lock()
		o.recorder.demand++
		o.recorder.mu.Unlock()
	}
	return o.Object.ReadAt(ctx, p, off)
}

func (o *recordedObject) Close() error {
	o.close()
	return o.Object.Close()
}

// A recordedWriter also fails the test when Commit and Abort run at the same time.
type recordedWriter struct {
	drivers.Writer
	*record
	ending sync.Mutex
}

func (w *recordedWriter) WriteAt(p []byte, off int64) (int, error) {
	defer w.use("write")()
	return w.Writer.WriteAt(p, off)
}

func (w *recordedWriter) ReadAt(p []byte, off int64) (int, error) {
	defer w.use("read back")()
	return w.Writer.ReadAt(p, off)
}

func (w *recordedWriter) end(what string) func() {
	leave := w.use(what)
	if !w.ending.TryLock() {
		w.recorder.t.Errorf("%s of %s during another commit or abort", what, w.name)
		return leave
	}
	return func() { w.ending.Unlock(); leave() }
}

func (w *recordedWriter) Commit() error {
	defer w.end("commit")()
	return w.Writer.Commit()
}

func (w *recordedWriter) Abort() {
	defer w.end("abort")()
	w.Writer.Abort()
}

func (w *recordedWriter) Close() error {
	w.close()
	return w.Writer.Close()
}
