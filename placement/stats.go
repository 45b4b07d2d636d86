package placement

import (
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// Counters count what a handler has done since the daemon started. They only grow. The
// tags are those of tiers.TierCounters.
type Counters struct {
	Placed      int64 `json:"placed" metric:"placements_total" labels:"result=placed" help:"Copies committed." family:"Files to place, by result."`
	PlacedBytes int64 `json:"placed_bytes" metric:"placed_bytes_total" help:"Sizes of the copies committed."`
	Prefetched  int64 `json:"prefetched" metric:"prefetched_files_total" help:"Copies committed that were started before the first open of the file."`
	Skipped     int64 `json:"skipped" metric:"placements_total" labels:"result=skipped" help:"Files for which no tier had room."`
	Failed      int64 `json:"failed" metric:"placements_total" labels:"result=failed" help:"Copies that failed."`
	Mismatched  int64 `json:"mismatched" metric:"mismatched_files_total" help:"Files that the source does not have as in the manifest: they are missing, or have another size or another SHA-256."`
}

// Fills describe the copies in flight at one moment.
type Fills struct {
	InFlight        int64   `json:"in_flight" metric:"fills_in_flight" help:"Copies in flight."`
	InFlightBytes   int64   `json:"in_flight_bytes" metric:"fills_in_flight_bytes" help:"Sizes of the files whose copies are in flight."`
	Lazy            int64   `json:"lazy" metric:"lazy_fills" help:"Files above 8 MiB of which only what readers ask for is fetched. They are not among the copies in flight."`
	LazyBytes       int64   `json:"lazy_bytes" metric:"lazy_fills_bytes" help:"Bytes that were fetched of these files."`
	Queued          int64   `json:"queued" metric:"fills_queued" help:"Copies with blocks that wait for a background worker."`
	Stalled         int64   `json:"stalled" metric:"fills_stalled" help:"Requests of copies without an answer of the source for a second or, if no reader waits, for five."`
	Background      int64   `json:"background" metric:"background_blocks" help:"Blocks that background requests have in flight at the source. A block is a request of up to 1 MiB, or each MiB of a longer one."`
	BackgroundLimit int64   `json:"background_limit" metric:"background_blocks_limit" help:"The most blocks that background requests may have in flight now. It follows from source_slowdown."`
	SourceSlowdown  float64 `json:"source_slowdown" metric:"source_slowdown_ratio" help:"Latency of recent requests for content, divided by that of the same kind of requests while the source was not busy."`
	Unchecked       int64   `json:"unchecked" metric:"copies_unchecked" help:"Copies of more than 1 MiB that wait to be compared with their checksums. The kernel does not read them directly yet."`
}

// Stats describes a handler at one moment.
type Stats struct {
	Counters
	Fills

	IdleHandles int64         // files of the source in the idle-handle cache
	RacyFiles   int64         // files that were opened while they were racy, and are not settled yet
	RacySeen    int64         // versions of files that were racy when they were to be copied, since the start
	ClockAhead  time.Duration // by how much the change time of a file was in the future when it was opened, at most
	Opens       []Opens       // opens by level; Opens[0] at the source
	Passthrough []Opens       // those of them that the kernel reads without the daemon
	FillOpens   Opens         // opens of files whose copies were in flight
	PeerOpens   Opens         // opens of files that were read from other nodes without a copy
	Usage       Usage
	Waits       tiers.Latency // how long readers waited for blocks in flight
	Waited      Waits         // how long readers waited for anything
	Epochs      []Epoch       // the last ones, the oldest first, and the one that goes on
	EpochsEnded int64         // epochs that have ended, without those that were mixed
}

// Opens counts how often files were opened, and what was read of them.
type Opens struct {
	Files int64 // opens
	Bytes int64 // the sizes of the files
	Read  int64 // bytes that readers got; reads in passthrough and from the page cache are missing
}

// add counts the open of a file of size bytes.
func (o *Opens) add(size int64) {
	atomic.AddInt64(&o.Files, 1)
	atomic.AddInt64(&o.Bytes, size)
}

// Stats returns the counters and the present state.
func (h *Handler) Stats() Stats {
	n := len(h.levels.Tiers()) + 1
	queued, stalled, waits := h.queue.len(), h.gate.stalled(), h.gate.waits.Load()
	if p := h.peers; p != nil {
		queued, stalled, waits = queued+p.queue.len(), stalled+p.gate.stalled(), waits.Plus(p.gate.waits.Load())
	}
	opens, passthrough := drivers.Snapshot(&h.usage.opens), drivers.Snapshot(&h.usage.passthrough)
	s := Stats{
		Fills: Fills{
			Queued:          queued,
			Stalled:         stalled,
			Background:      int64(h.gate.background()),
			BackgroundLimit: int64(h.gate.control.Limit()),
			SourceSlowdown:  h.gate.control.Slowdown(),
		},
		IdleHandles: h.files.idle.len(),
		ClockAhead:  h.racy.clockAhead(),
		Opens:       opens[:n],
		Passthrough: passthrough[:n],
		FillOpens:   drivers.Snapshot(&h.usage.fills),
		PeerOpens:   h.peerOpens(),
		Usage:       drivers.Snapshot(&h.usage.counts),
		Waits:       waits,
		Waited:      h.waited(),
	}
	s.Epochs, s.EpochsEnded = h.epochs.list()
	// In the order in which a file passes these states, so that it is found in one of them.
	s.RacyFiles, s.RacySeen = h.racy.len(), h.racy.total()
	s.InFlight, s.InFlightBytes = h.copying()
	s.Lazy, s.LazyBytes = h.lazyStats()
	s.Unchecked = h.checks.pending.Load()
	s.Counters = drivers.Snapshot(&h.counters)
	return s
}

// copying returns the number of copies that have begun and not ended, and the sizes of their files. Lazy
// fills are not among them.
func (h *Handler) copying() (files, bytes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.fills {
		if !f.held && !f.isLazy() {
			files++
			bytes += f.size
		}
	}
	return files, bytes
}

// A Filling describes a copy in flight.
type Filling struct {
	Copied int64 // bytes
	Lazy   bool  // only what readers ask for is copied
}

// Filling describes the copy of e that is in flight, and reports whether there is one.
func (h *Handler) Filling(e *metadata.Entry) (Filling, bool) {
	h.mu.Lock()
	f := h.fills[e]
	held := f != nil && f.held
	h.mu.Unlock()
	if f == nil || held {
		return Filling{}, false
	}
	return Filling{Copied: f.blocks.copied(), Lazy: f.isLazy()}, true
}
