package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/automount"
	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/metrics"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/cmd/internal/page"
	"github.com/milkweedfs/milkweed/cmd/internal/rates"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/limit"
	"github.com/milkweedfs/milkweed/drivers/manifest"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/drivers/posix"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/fs/fusectl"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/placement"
	"github.com/milkweedfs/milkweed/tiers"
)

// A daemon is one mount with its source, tiers, metadata and placement. serve opens them from
// the bottom up, and closes them from the top down.
type daemon struct {
	cfg      *config.Config // at the mount; reloading has what has changed since
	log      *slog.Logger
	messages *daemonLog // where log writes
	since    time.Time
	crashes  int64  // of earlier daemons of this mount
	dataset  string // config.DatasetID of the source; computing it calls the source's file system

	pin    pin
	source source
	listed *manifest.Manifest // of the source; nil: there is none, or one for each generation

	manifests *manifest.Driver // has those of the generations; nil: they have none

	tiers      openTiers
	peers      *peering
	service    check.Service // how the kernel reads files
	levels     *tiers.Hierarchy
	names      *metadata.Container
	saved      snapshotKeeper
	handler    *placement.Handler
	survey     *placement.Survey // of handler
	mount      *fs.Mount
	connection *fusectl.Connection // of the mount; nil: not known
	at         mounts.Mount        // the mount; with mount --fuse-fd only its Dev, which is 0 if it is not known
	how        mounting
	control    *control.Server
	memory     memoryPlan
	threads    *tiers.Threads // nil: they are not limited

	reloading

	dropping dropping

	// start calls f on a goroutine that stopWork waits for. The context is done when the work is to
	// end.
	start    func(f func(context.Context))
	stopWork func()

	shutdown  context.CancelFunc // starts the shutdown
	aborted   chan struct{}      // closed if the mount is to end although it is in use
	abortOnce sync.Once          // closes aborted
	draining  atomic.Bool        // the mount is unmounted here, and may be in use elsewhere
}

var _ control.Daemon = (*daemon)(nil)

// mounting is how a daemon mounts.
type mounting struct {
	noExec             bool // programs on the mount cannot be executed
	device             int  // serve this descriptor of /dev/fuse, which another process has mounted; 0: mount
	defaultPermissions bool // that process has mounted it with default_permissions
	lock               mountLock
}

// adopts reports whether another process has mounted the file system.
func (d *daemon) adopts() bool { return d.how.device != 0 }

// scanTimeout bounds how long a mount waits for the scan of its tiers. After the wait, a job
// that starts at once usually finds them ready. Large tiers are scanned while the mount is used.
const scanTimeout = 300 * time.Millisecond

// gcPercent is the GOGC of the daemon. Most of the heap is metadata, which is never garbage. The
// default of 100 would double the memory of the daemon, with little to collect.
const gcPercent = 25

// minThreads is the least GOMAXPROCS of the daemon, unless a control group limits its CPU time.
// Requests share the CPUs with background work that makes many short system calls. A goroutine whose
// call has returned waits in a queue of Go's scheduler if as many threads as GOMAXPROCS are busy, for
// up to 10 ms. With more threads than CPUs, the scheduler of the kernel divides the CPUs, in shorter
// slices.
const minThreads = 8

// threads returns the GOMAXPROCS of a daemon for which the runtime chose n, on a machine with a number
// of CPUs. If n is less than that, it is the limit of a control group: more threads would use up its
// time early in each period, and then all would stall.
func threads(n, cpus int) int {
	if n < cpus {
		return n
	}
	return max(n, minThreads)
}

// serve mounts the dataset of cfg, calls ready, and serves the mount until it is unmounted. When
// ctx is done, serve unmounts it. If the mount is in use elsewhere then, serve goes on serving it.
func serve(
	ctx context.Context, cfg *config.Config, again rereading, how mounting, log *daemonLog, crashes int64, ready func(),
) (err error) {
	signal := ctx
	ctx, shutdown := context.WithCancel(signal)
	defer shutdown()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if n := runtime.GOMAXPROCS(0); os.Getenv("GOMAXPROCS") == "" && threads(n, runtime.NumCPU()) > n {
		runtime.GOMAXPROCS(threads(n, runtime.NumCPU()))
	}
	d := &daemon{
		cfg: cfg, log: log.Logger, messages: log, since: time.Now(), crashes: crashes, how: how, peers: &peering{}, shutdown: shutdown, aborted: make(chan struct{}),
	}
	d.rereading, d.rescheduled = again, make(chan struct{}, 1)
	if d.memory, err = boundMemory(cfg, config.MemoryLimit(), d.log); err != nil {
		return err
	}
	d.threads = reserveThreads(cfg.Placement.Workers, d.log)
	d.effective.Store(cfg)
	listen := control.Listen
	switch {
	case d.adopts():
		listen = control.ListenNamed
	case cfg.Mount.AllowOther:
		listen = control.ListenForAll
	}
	listener, err := listen(ctx, cfg.Mount.Point)
	if err != nil {
		return err
	}
	listener.Log = d.log
	defer listener.Close()
	defer func() { err = errors.Join(err, atMost(endTime, d.close)) }()

	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	d.start = func(f func(context.Context)) {
		running.Go(func() { panics.Repeat(background, func() { f(background) }) })
	}
	d.stopWork = sync.OnceFunc(func() {
		stop()
		if !waitAtMost(&running, endTime) {
			log.Warn("background work", "err", errLeftBehind)
		}
	})
	defer d.stopWork()
	d.control = &control.Server{Daemon: d, Metrics: metrics.Handler(d.Status), Log: d.log}
	d.starts("opening the source")
	d.receiveGuests(listener)
	defer d.serveControl(context.WithoutCancel(ctx), listener)()
	if err := d.open(ctx); err != nil {
		if ctx.Err() != nil && signal.Err() == nil {
			return &exit.Error{Code: exit.NotMounted, Err: fmt.Errorf("%s was unmounted before its daemon was ready", text(cfg.Mount.Point))}
		}
		return err
	}
	d.start(d.levels.Run)
	d.start(d.handler.Run)
	d.awaitScan(ctx)
	if err := d.peers.start(d.handler, d.log); err != nil {
		return err
	}

	d.starts("") // the kernel shows the mount before mountFS returns
	if err := d.mountFS(listener.Told); err != nil {
		return err
	}
	log.Info("mounted", "source", cfg.Source.Name(), "point", cfg.Mount.Point)
	d.control.Started()
	d.start(d.scheduleScrubs)
	d.start(d.awaitHangups)
	d.start(d.saveOften)
	d.start(d.watch)
	d.start(d.watchReplies)
	if d.cfg.Mount.Plan != "" {
		d.start(d.readPlan)
	}
	if err := d.serveMetrics(ctx); err != nil {
		d.unmount()
		return err
	}
	if w := d.cfg.Mount.Consistency; w > 0 && w < d.cfg.Mount.AttrTimeout {
		d.start(func(ctx context.Context) { d.names.Sweep(ctx, w) })
	}
	if d.how.lock.file != nil {
		d.start(d.unmountUnlocked)
	}
	ready()

	if err := d.awaitUnmount(ctx); err != nil {
		log.Error("the daemon ends", "err", err)
		d.release()
		return &exit.Error{Code: exit.Failure, Err: err, Remedy: "Unmount it, or mount again with --clear-stale. A supervisor mounts again by itself."}
	}
	log.Info("unmounted", "point", cfg.Mount.Point)
	d.release()
	d.drain(signal, listener)
	return nil
}

// mountFS mounts the file system, which shows the path of the control socket and the index of this node.
func (d *daemon) mountFS(socket func(uid uint32) string) (err error) {
	d.log.Info("serving the kernel", "mode", d.service.Mode, "reason", d.service.Reason)
	c := fs.Config{
		Point:              d.cfg.Mount.Point,
		Device:             d.how.device,
		DefaultPermissions: d.how.defaultPermissions,
		Source:             d.cfg.Source.Given(),
		AllowOther:         d.cfg.Mount.AllowOther,
		Xattrs:             d.cfg.Mount.Xattrs && d.cfg.Source.URL == "" && d.cfg.Source.Manifest == "", // a bucket and a manifest have none
		Socket:             socket,
		Node:               d.peers.index(),
		NegativeTTL:        d.cfg.Mount.AttrTimeout,
		NoExec:             d.how.noExec,
		MaxRequest:         d.memory.request,
		MaxBackground:      d.memory.reads,
		Mode:               modes[d.service.Mode],
		StackDepth:         d.tiers.stackDepth(),
	}
	err = automount.Reach(func() (err error) {
		d.mount, err = fs.New(d.names, d.handler, c, d.log)
		return err
	})
	if err != nil {
		return &exit.Error{Code: exit.Fuse, Err: err, Remedy: "`milkweed check` shows what this machine lacks."}
	}
	if d.adopts() {
		dev := fs.DeviceNumber(d.how.device)
		connection, err := fusectl.Open(dev)
		if errors.Is(fs.CheckDevice(d.how.device), fs.ErrNotMounted) { // the number may be that of another file system by now
			connection.Close()
			connection = nil
		}
		d.mounted(mounts.Mount{Dev: dev}, connection, err)
		return nil
	}
	table, err := mounts.Read(mounts.Self)
	m, ok := table.At(d.cfg.Mount.Point)
	if err == nil && !ok {
		err = errors.New("it is not in the table of mounts")
	}
	if err != nil {
		d.unmount()
		return fmt.Errorf("mount %s: %w", d.cfg.Mount.Point, err)
	}
	if err := fusectl.SetReadAhead(m.Dev, d.memory.request); err != nil {
		d.log.Debug("the read-ahead of the kernel is unchanged", "err", err)
	}
	connection, err := mounts.Connection(m.Dev, m.Point)
	d.mounted(m, connection, err)
	return nil
}

// mounted takes over a file system that has been mounted at m, with its connection, or the reason why
// there is none. It keeps the source from being read through the mount, if that hides its path.
func (d *daemon) mounted(m mounts.Mount, connection *fusectl.Connection, err error) {
	d.at, d.connection = m, connection
	if err != nil {
		d.log.Info("only the end of this process can end the mount where others use it", "err", err)
	}
	if dir, ok := d.source.(*posix.Dir); ok {
		dir.Avoid(d.at.Dev)
	}
}

// open opens the source and the tiers, and creates the metadata and the placement.
func (d *daemon) open(ctx context.Context) error {
	var err error
	if d.source, d.pin, err = openPinned(ctx, d.cfg, d.log); err != nil {
		return check.SourceError(d.cfg.Source, err)
	}
	d.dataset = config.DatasetID(d.cfg.Source.Name())
	waits := func(cause error) { d.starts(fmt.Sprintf("waiting for the other nodes: %v", cause)) }
	if d.cfg.Peers.Roster != "" {
		d.starts("looking up the other nodes")
	}
	if d.peers, err = openPeers(ctx, d.cfg.Peers, d.dataset, d.about, waits, d.log); err != nil {
		return err
	}
	d.starts("opening the source")
	driver, err := d.withManifest(ctx, d.limited())
	if err != nil {
		return err
	}
	if d.levels, err = tiers.New(driver, d.tierConfigs(), tiers.Options{Peers: d.peers.tiers(), Threads: d.threads}, d.log); err != nil {
		return err
	}
	d.starts("opening the tiers")
	if err := d.openTiers(ctx); err != nil {
		return err
	}
	d.starts("reading the source")
	var passthrough []error
	for i := range d.cfg.Tiers {
		passthrough = append(passthrough, d.tiers.get(i).passthrough)
	}
	if d.service, err = d.decide(ctx, passthrough); err != nil {
		return err
	}
	if detail, remedy := d.service.Links.Advice(); detail != "" {
		d.log.Warn("symbolic links lead out of the mount", "problem", detail, "remedy", remedy)
	}
	d.openSnapshot()
	var pieceSize int64
	if d.levels.Peers() != nil && d.cfg.Source.Manifest == "" { // it has no hashes of pieces
		pieceSize = placement.PieceSize
	}
	d.names, err = metadata.New(ctx, d.levels, metadata.Options{
		PieceSize:   pieceSize,
		Generation:  d.pin.generation,
		TTL:         d.cfg.Mount.AttrTimeout,
		Snapshot:    d.saved.opened,
		SnapshotTTL: d.cfg.Mount.Consistency,
		RacyWindow:  d.service.RacyWindow(d.cfg),
	}, d.log)
	if err != nil {
		return d.sourceError(err)
	}
	d.handler = placement.New(d.levels, d.names, placement.Config{
		Workers:     d.cfg.Placement.Workers,
		IdleHandles: descriptors() / 2,
		ReadAhead:   d.memory.ahead,
		Passthrough: d.service.Mode == config.Passthrough,
		RacyWindow:  d.service.RacyWindow(d.cfg),
	}, d.log)
	d.survey = placement.NewSurvey(d.handler)
	return nil
}

// decide chooses how the kernel reads files, by a sample of those that the mount shows. passthrough has
// the result of the probe of each tier.
func (d *daemon) decide(ctx context.Context, passthrough []error) (check.Service, error) {
	var sampled interface {
		drivers.Driver
		drivers.Sampler
	} = d.source
	cfg := *d.cfg
	if d.pin.generation != "" {
		cfg.Source = d.pin.shown()
		shown, err := openSource(ctx, cfg.Source, d.log)
		if err != nil {
			return check.Service{}, d.sourceError(err)
		}
		defer shown.Close()
		sampled = shown
	}
	if d.listed != nil {
		sampled = manifest.New(sampled, d.listed)
	}
	return check.Decide(ctx, &cfg, sampled, passthrough), nil
}

// modes maps the modes of the configuration to those of package fs.
var modes = map[config.Mode]fs.Mode{
	config.Cached: fs.Cached, config.Passthrough: fs.Passthrough, config.Stateless: fs.Stateless,
}

// limited returns the source behind a rate limiter, which may get its limits later.
func (d *daemon) limited() drivers.Driver {
	c := d.cfg.Source
	d.limiter = limit.New(d.source, limit.Config{BytesPerSecond: c.Bandwidth, OpsPerSecond: c.Operations, Transparent: true})
	return d.limiter
}

// descriptors returns the number of files that this process may have open.
func descriptors() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 1024
	}
	return int(min(l.Cur, 1<<20))
}

// awaitScan waits for the scan of the tiers, for scanTimeout at most.
func (d *daemon) awaitScan(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, scanTimeout)
	defer cancel()
	d.levels.WaitScanned(ctx)
}

// serveMetrics serves the metrics and the web page on the address metrics.listen, if it is set.
func (d *daemon) serveMetrics(ctx context.Context) error {
	address := d.cfg.Metrics.Listen
	if address == "" {
		return nil
	}
	l, err := metrics.Listen(ctx, address)
	if err != nil {
		return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("metrics.listen: %w", err), Remedy: "Choose another port, or remove metrics.listen."}
	}
	history := rates.NewHistory(d.Status)
	d.start(history.Run)
	web := page.Handler(address, d.Status, history.Since)
	d.start(func(ctx context.Context) {
		if err := metrics.Serve(ctx, l, metrics.Handler(d.Status), web, d.log); err != nil {
			d.log.Error("metrics", "err", err)
		}
	})
	return nil
}

// starts says what the mount waits for.
func (d *daemon) starts(cause string) { d.control.Starting(text(d.cfg.Mount.Point), cause) }

// serveControl serves the control socket, until stop is called.
func (d *daemon) serveControl(ctx context.Context, l net.Listener) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	serving.Go(func() {
		defer panics.Contain()
		if err := d.control.Serve(ctx, l); err != nil {
			d.log.Error("control socket", "err", err)
		}
	})
	return func() {
		cancel()
		waitAtMost(&serving, endTime)
	}
}

// close closes the metadata, the tiers and the source.
func (d *daemon) close() error {
	if d.mount != nil {
		select {
		case <-d.mount.Ended():
		default: // the kernel sends requests until the process ends
			return nil
		}
	}
	d.peers.close()
	var errs []error
	if d.names != nil {
		d.names.Close()
		d.saved.close()
	}
	errs = append(errs, d.tiers.close())
	if d.source != nil {
		errs = append(errs, d.source.Close())
	}
	return errors.Join(errs...)
}
