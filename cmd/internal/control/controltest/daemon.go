// Package controltest provides a control.Daemon without a file system, for tests of the server
// and of the subcommands.
package controltest

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/blob"
	"github.com/milkweedfs/milkweed/drivers/peer"
	"github.com/milkweedfs/milkweed/placement"
	"github.com/milkweedfs/milkweed/tiers"
)

// A Daemon answers requests with the values of its fields.
type Daemon struct {
	Bucket     bool                        // whether the source of Status is a bucket
	MountPoint string                      // of Status
	Peered     bool                        // whether Status and Peers have nodes
	Config     []config.Setting            // the result of Settings
	Locations  map[string]control.Location // results of Where, by name
	Steps      []control.Progress          // the progress that Warmup and Estimate report
	StepEvery  time.Duration               // the duration of each of Steps
	WarmupErr  error                       // the result of Warmup and Estimate
	Refreshes  []control.Refreshed         // the progress that Refresh reports
	RefreshErr error                       // the result of Refresh

	EvictErr error                   // the result of Evict
	Lines    []control.TraceLine     // what Trace shows before it waits for the end of its context
	TraceErr error                   // the result of Trace, which then shows nothing
	Scrubs   []placement.ScrubReport // the reports of Scrub
	ScrubErr error                   // the result of Scrub and StartScrub

	GenerationsOf control.Generations // the result of Generations
	GenerationErr error               // the result of Generations, Switch, Prepare and DropGeneration

	PlanErr error        // the result of Plan
	Planned Planned      // what Plan and DropPlan were called with
	State   control.Plan // the result of Plans

	ExchangeErr   error                   // the result of StartExchange
	ExchangeState placement.ExchangeStats // the result of Exchange
	Exchanged     Exchanged               // what StartExchange, BeginEpoch and StopExchange were called with

	Warmed        atomic.Pointer[[]string]               // the names of the last call of Warmup
	Refreshed     atomic.Pointer[[]string]               // the names of the last call of Refresh
	RefreshedWith atomic.Pointer[control.RefreshOptions] // its options
	Evicted       atomic.Pointer[[]string]               // the names of the last call of Evict
	Scrubbed      atomic.Pointer[control.ScrubRequest]   // the last call of Scrub or StartScrub
	SwitchedTo    atomic.Pointer[control.SwitchRequest]  // the last call of Switch
	PreparedWith  atomic.Pointer[control.PrepareRequest] // the last call of Prepare
	Dropped       atomic.Pointer[string]                 // the generation of the last call of DropGeneration
	Shutdowns     atomic.Int64                           // calls of Shutdown
}

var _ control.Daemon = (*Daemon)(nil)

// Status implements control.Daemon.
func (d *Daemon) Status(context.Context) control.Status {
	const mib = 1 << 20
	s := control.Status{
		Version:       control.StatusVersion,
		Milkweed:      "1.2.3",
		GoVersion:     "go1.99",
		PID:           os.Getpid(),
		MountPoint:    d.MountPoint,
		DatasetID:     "imagenet-0123456789ab",
		Mode:          "passthrough",
		ModeReason:    "files are 10 MiB on average",
		Since:         time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		UptimeSeconds: 3723.5,
		Ready:         true,
		Names:         control.Names{Entries: 1010, Coverage: placement.Coverage{Files: 1000, Bytes: 100 * mib, CopiedFiles: 90, CopiedBytes: 9 * mib, UnlistedDirs: 2}},
		Warnings: []control.Warning{
			{Time: time.Date(2026, 1, 2, 3, 10, 0, 0, time.UTC), Level: "WARN", Message: "tier is not healthy", Tier: "ssd", Count: 2},
		},
		Source: control.Source{
			Path: "/lustre/imagenet",
			SourceCounters: tiers.SourceCounters{
				SourceOperations: tiers.SourceOperations{Opens: 100, Reads: 400, Stats: 20, ReadDirs: 3},
				Bytes:            300 * mib,
			},
			IdleHandles:       3,
			PassthroughReason: "the source has a cap",
		},
		Waits: []control.Wait{
			{Level: "source", Cause: control.Latency, Waits: 2000, Seconds: 61.5},
			{Level: "fill", Cause: control.FillCause, Waits: 7, Seconds: 0.0321},
			{Level: "ssd", Cause: control.TierCause, Waits: 1000, Seconds: 2.125},
		},
		EpochsEnded: 6,
		Epochs: []control.Epoch{
			{Began: time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC), Seconds: 12, Ended: true, Files: 900},
			{Began: time.Date(2026, 1, 2, 3, 6, 0, 0, time.UTC), Seconds: 13, Ended: true, Files: 900},
			{Began: time.Date(2026, 1, 2, 3, 7, 0, 0, time.UTC), Seconds: 14, Ended: true, Files: 700, Mixed: true},
			{
				Began: time.Date(2026, 1, 2, 3, 8, 0, 0, time.UTC), Seconds: 125.1, Ended: true, Files: 1000,
				Opens: []control.EpochOpens{{Level: "fill", Opens: 200, Bytes: 20 * mib, Read: 2 * mib}, {Level: "source"}, {Level: "ram", Opens: 800, Bytes: 80 * mib, Read: 5 * mib, Passthrough: 70 * mib}},
				Waits: []control.EpochWait{{Level: "source", Cause: control.Bandwidth, Waits: 200, Seconds: 1.5}},
			},
			{Began: time.Date(2026, 1, 2, 3, 11, 0, 0, time.UTC), Seconds: 1, Files: 20},
		},
		Tiers: []control.Tier{
			{
				Level: 1, Name: "ram", Path: "/dev/shm/milkweed", QuotaBytes: 400 * mib, UsedBytes: 100 * mib, Files: 90,
				TierCounters: tiers.TierCounters{Reads: 1000, Bytes: 900 * mib},
				Health:       control.Healthy, Passthrough: true,
			},
			{
				Level: 2, Name: "ssd", Path: "/local/milkweed", QuotaBytes: 800 * mib,
				TierCounters: tiers.TierCounters{Errors: 3},
				Health:       control.Down, Reason: "no space left on device", PassthroughReason: "it is stacked",
			},
		},
		Fills:     placement.Fills{InFlight: 2, InFlightBytes: 8 * mib, Queued: 7, Background: 3, BackgroundLimit: 12, SourceSlowdown: 1.25},
		Placement: placement.Counters{Placed: 90, PlacedBytes: 100 * mib, Prefetched: 30, Skipped: 4, Failed: 1},
		Plan: placement.PlanStats{
			PlanCounters: placement.PlanCounters{Opens: 200, Correct: 180},
			StreamCount:  2, Entries: 1800, Memory: 30000, Lead: 64, LeadBytes: 8 * mib,
		},
		Opens:       map[string]map[string]int64{"ram": {"cached": 100, "passthrough": 800}, "source": {"cached": 100}},
		OpenedBytes: map[string]map[string]int64{"ram": {"cached": 50 * mib, "passthrough": 7000 * mib}, "source": {"cached": 300 * mib}},
		ReadBytes:   map[string]int64{"ram": 30 * mib, "source": 3 * mib},
		OpenHandles: 5,
		Scrub: placement.ScrubStats{
			ScrubCounters: placement.ScrubCounters{Scrubs: 1, Right: 89, Corrupt: 1, Bytes: 100 * mib, Refetched: 1},
			LastEnd:       1767322800,
			Last: &placement.ScrubReport{
				Path: ".", Started: time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC), Seconds: 12, Ended: true,
				CopiesFound: 90, BytesFound: 100 * mib, CopiesRight: 89, BytesRead: 100 * mib, CopiesCorrupt: 1, Refetched: 1,
				Skipped: []placement.ScrubSkip{{Tier: "ssd", Reason: "tier is down"}},
			},
		},
		ReadLatency: map[string]control.Histogram{
			"ram": {LeSeconds: []float64{0.001, 0.01}, Counts: []uint64{990, 1000}, SumSeconds: 0.5, Count: 1000},
		},
	}
	if d.Bucket {
		s.Source.Path = "s3://bucket/imagenet"
		s.Source.PassthroughReason = "the source is a bucket, which the kernel cannot read"
		s.Source.Requests = &blob.Stats{
			Counters: blob.Counters{Lists: 12, Gets: 3400, Others: 1, Retries: 5, Hedges: 6, Throttled: 2, Bytes: 320 * mib},
			Hidden:   7,
		}
	}
	if d.Peered {
		s.Peers = peers()
	}
	return s
}

// peers returns the nodes of a job.
func peers() *control.Peers {
	const mib = 1 << 20
	p := &control.Peers{Roster: control.Roster{Hash: "00112233445566778899aabbccddeeff", Nodes: 3, Group: 1, Groups: 1}, Self: "node1", Serving: true}
	p.Nodes = []control.Peer{
		{Name: "node2", Address: "10.0.0.2:7440", Up: true, Counters: peer.Counters{Reads: 50, Bytes: 40 * mib, ServedReads: 30, ServedBytes: 20 * mib, Joined: 2}},
		{Name: "node3", Address: "10.0.0.3:7440", Counters: peer.Counters{Reads: 7, Bytes: 6 * mib, Failovers: 1, Misses: peer.Misses{Full: 4, Unreachable: 1}}},
	}
	for _, n := range p.Nodes {
		p.Add(n)
	}
	return p
}

// Peers implements control.Daemon.
func (d *Daemon) Peers(context.Context) (control.PeerReport, error) {
	const mib = 1 << 20
	if !d.Peered {
		return control.PeerReport{}, nil
	}
	p := peers()
	return control.PeerReport{Roster: p.Roster, Self: p.Self, Nodes: []control.PeerAnswer{
		{
			Peer: control.Peer{Name: "node1", Address: "10.0.0.1:7440", Up: true}, Self: true, Milkweed: "1.2.3",
			UsedBytes: 100 * mib, QuotaBytes: 1200 * mib, Files: 90, PeerBytes: 46 * mib, SourceBytes: 300 * mib,
			Exchange: &drivers.ExchangeState{ID: "id", Epoch: 5, Received: true},
		},
		{Peer: p.Nodes[0], Milkweed: "1.2.3", UsedBytes: 90 * mib, QuotaBytes: 1200 * mib, Files: 80, ClockAhead: 0.25, PeerBytes: 20 * mib, SourceBytes: 200 * mib, Exchange: &drivers.ExchangeState{ID: "id", Epoch: 4}},
		{Peer: p.Nodes[1], Problem: "connection refused"},
	}}, nil
}

// Settings implements control.Daemon.
func (d *Daemon) Settings() []config.Setting { return d.Config }

// Reload implements control.Daemon. Nothing has changed.
func (d *Daemon) Reload(context.Context, bool) (control.Reloaded, error) {
	return control.Reloaded{Changed: []config.Change{}, Refused: []control.Refusal{}}, nil
}

// Where implements control.Daemon.
func (d *Daemon) Where(_ context.Context, name string) (control.Location, error) {
	if loc, ok := d.Locations[name]; ok {
		return loc, nil
	}
	return control.Location{}, &fs.PathError{Op: "where", Path: name, Err: fs.ErrNotExist}
}

// Trace implements control.Daemon.
func (d *Daemon) Trace(ctx context.Context, _ control.TraceFilter, show func(control.TraceLine) error) error {
	if d.TraceErr != nil {
		return d.TraceErr
	}
	for _, l := range d.Lines {
		if err := show(l); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// Estimate implements control.Daemon.
func (d *Daemon) Estimate(ctx context.Context, names []string, progress func(control.Progress)) error {
	return d.report(ctx, progress)
}

// Warmup implements control.Daemon.
func (d *Daemon) Warmup(ctx context.Context, names []string, progress func(control.Progress)) error {
	names = slices.Clone(names)
	d.Warmed.Store(&names)
	return d.report(ctx, progress)
}

// report reports Steps.
func (d *Daemon) report(ctx context.Context, progress func(control.Progress)) error {
	for _, p := range d.Steps {
		progress(p)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d.StepEvery):
		}
	}
	return d.WarmupErr
}

// Refresh implements control.Daemon.
func (d *Daemon) Refresh(ctx context.Context, names []string, opts control.RefreshOptions, progress func(control.Refreshed)) error {
	names = slices.Clone(names)
	d.Refreshed.Store(&names)
	d.RefreshedWith.Store(&opts)
	for _, p := range d.Refreshes {
		progress(p)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d.StepEvery):
		}
	}
	return d.RefreshErr
}

// Scrub implements control.Daemon.
func (d *Daemon) Scrub(ctx context.Context, req control.ScrubRequest, progress func(placement.ScrubReport)) error {
	d.Scrubbed.Store(&req)
	for _, r := range d.Scrubs {
		progress(r)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d.StepEvery):
		}
	}
	return d.ScrubErr
}

// Generations implements control.Daemon.
func (d *Daemon) Generations(context.Context) (control.Generations, error) {
	return d.GenerationsOf, d.GenerationErr
}

// Switch implements control.Daemon. With WhenIdle it waits until ctx is done.
func (d *Daemon) Switch(ctx context.Context, req control.SwitchRequest, progress func(control.Switched)) error {
	d.SwitchedTo.Store(&req)
	s := control.Switched{From: "v3", To: req.Generation}
	if d.GenerationErr != nil {
		return d.GenerationErr
	}
	if req.WhenIdle {
		s.Users = []procs.Process{{PID: 1234, Name: "python3"}}
		progress(s)
		<-ctx.Done()
		return context.Cause(ctx)
	}
	s.Done = true
	progress(s)
	return nil
}

// Prepare implements control.Daemon.
func (d *Daemon) Prepare(_ context.Context, req control.PrepareRequest, progress func(control.Prepared)) error {
	d.PreparedWith.Store(&req)
	progress(control.Prepared{Generation: req.Generation, Found: control.Amount{Files: 2, Bytes: 200}, Shared: control.Amount{Files: 1, Bytes: 100}, Copied: control.Amount{Files: 1, Bytes: 100}, NeedBytes: 4096, RoomBytes: 8192})
	return d.GenerationErr
}

// Evict implements control.Daemon.
func (d *Daemon) Evict(_ context.Context, names []string, progress func(placement.DropReport)) error {
	d.Evicted.Store(&names)
	progress(placement.DropReport{Copies: 3, Bytes: 12288})
	return d.EvictErr
}

// DropGeneration implements control.Daemon.
func (d *Daemon) DropGeneration(_ context.Context, generation string, progress func(placement.DropReport)) error {
	d.Dropped.Store(&generation)
	progress(placement.DropReport{Copies: 3, Bytes: 12288})
	return d.GenerationErr
}

// StartScrub implements control.Daemon.
func (d *Daemon) StartScrub(req control.ScrubRequest) error {
	d.Scrubbed.Store(&req)
	return d.ScrubErr
}

// Planned are the calls that change the plan.
type Planned struct {
	mu    sync.Mutex // guards the following
	parts []placement.PlanPart
	paths []string
	drops []string
}

// Calls returns the parts and paths of all calls of Plan, and the streams that were dropped, of
// which "*" stands for all.
func (p *Planned) Calls() (parts []placement.PlanPart, paths, drops []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.parts), slices.Clone(p.paths), slices.Clone(p.drops)
}

// Plan implements control.Daemon. It refuses the path "bad".
func (d *Daemon) Plan(part placement.PlanPart, paths []string) (r placement.PlanResult, err error) {
	d.Planned.mu.Lock()
	defer d.Planned.mu.Unlock()
	d.Planned.parts, d.Planned.paths = append(d.Planned.parts, part), append(d.Planned.paths, paths...)
	for _, p := range paths {
		if p == "bad" {
			r.Rejected++
			r.Errors = append(r.Errors, "bad path")
		} else {
			r.Accepted++
		}
	}
	return r, d.PlanErr
}

// Plans implements control.Daemon.
func (d *Daemon) Plans() control.Plan { return d.State }

// DropPlan implements control.Daemon.
func (d *Daemon) DropPlan(stream string) {
	d.Planned.mu.Lock()
	defer d.Planned.mu.Unlock()
	d.Planned.drops = append(d.Planned.drops, stream)
}

// DropPlans implements control.Daemon.
func (d *Daemon) DropPlans() { d.DropPlan("*") }

// Exchanged are the calls that change the exchange.
type Exchanged struct {
	mu      sync.Mutex // guards the following
	configs []placement.ExchangeConfig
	epochs  []string
}

// Calls returns the arguments of StartExchange, and those of all calls as text.
func (x *Exchanged) Calls() (configs []placement.ExchangeConfig, calls []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.configs), slices.Clone(x.epochs)
}

func (x *Exchanged) add(format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.epochs = append(x.epochs, fmt.Sprintf(format, args...))
}

// Nodes implements control.Daemon.
func (d *Daemon) Nodes() (nodes, self int) { return 4, 2 }

// StartExchange implements control.Daemon.
func (d *Daemon) StartExchange(_ context.Context, cfg placement.ExchangeConfig, epoch, reader, readers int) error {
	d.Exchanged.add("start %d %d/%d", epoch, reader, readers)
	d.Exchanged.mu.Lock()
	defer d.Exchanged.mu.Unlock()
	d.Exchanged.configs = append(d.Exchanged.configs, cfg)
	return d.ExchangeErr
}

// BeginEpoch implements control.Daemon. The ID of the exchange is "id".
func (d *Daemon) BeginEpoch(id string, epoch, reader, readers int) error {
	d.Exchanged.add("begin %d %d/%d", epoch, reader, readers)
	if id != "id" {
		return placement.ErrNoExchange
	}
	return nil
}

// Exchange implements control.Daemon.
func (d *Daemon) Exchange() placement.ExchangeStats { return d.ExchangeState }

// StopExchange implements control.Daemon.
func (d *Daemon) StopExchange() { d.Exchanged.add("stop") }

// Shutdown implements control.Daemon.
func (d *Daemon) Shutdown(bool) { d.Shutdowns.Add(1) }

// Folder makes a directory for the sockets of this test.
func Folder(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "mw") // t.TempDir makes paths too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Setenv(control.FolderEnv, dir)
}

// Serve serves d at its mount point until the test ends or stop is called. stop returns when
// the server has ended.
func Serve(t *testing.T, d *Daemon) (stop func()) {
	t.Helper()
	l, err := control.Listen(t.Context(), d.MountPoint)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- (&control.Server{Daemon: d}).Serve(ctx, l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the server: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}
