package placement

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/placement/exchange"
	"github.com/milkweedfs/milkweed/tiers"
)

// Partial local shuffling: each node of a job trains on a share of the files, and a fraction of the
// share moves to other nodes between two epochs. The plan says which node holds which file in which
// epoch (package exchange). The exchanger of a node moves the files (mover.go):
//
//   - In each epoch, it copies the files that this node holds in the next one from the nodes that
//     hold them now. These requests pass the gate of the peers, and never cause a request to the source.
//   - What this node should hold and does not is copied from the node that held it before, if that
//     still has a copy, and else from the source.
//   - A file that was given away is dropped when the readers of this node have begun the next epoch
//     and its new holder has received its share, or when the room is needed.
//
// While there is an exchange, the plan takes the place of the choices for its files (peers.go): a node
// that does not hold a file gets no copy of it, and reads it from its holder. All other files are as
// before. Nodes need not be in the same epoch, and each of them may fail: then files are read from
// the source.
type exchanger struct {
	handler *Handler
	cfg     ExchangeConfig
	plan    *exchange.Plan
	ctx     context.Context // done when the exchange ends
	end     context.CancelFunc
	done    chan struct{} // closed when run has returned
	moved   chan struct{} // of capacity 1: wanted has changed
	turn    atomic.Pointer[turn]

	dropping panics.Mutex // held while files are dropped, and while a turn begins

	mu       panics.Mutex // guards the following
	wanted   int          // the latest epoch that a reader has begun
	readers  []int        // the epochs that the readers have begun; -1: none
	given    fileSet      // files that were given away, and have copies
	kept     fileSet      // other files that this node does not hold, with copies of earlier jobs
	account  account      // of this epoch
	admitted map[int]bool // files that have got a fill while another account is made; else nil
	most     int64        // the largest account.need so far
	missing  int64        // files that this node holds, and of which it had no copy when it last looked
	arrived  Amount       // files of the next epoch that have copies
}

// An account says what the files of an epoch and the next one take.
type account struct {
	complete bool // the sizes of all files are known
	share    Amount
	incoming Amount  // files that the node gets for the next epoch
	arrived  Amount  // of which it has copies
	need     int64   // bytes of the copies of both
	lacking  fileSet // those of them with neither a copy nor a fill
}

// A turn is what an exchanger knows of one epoch.
type turn struct {
	before, now, next *exchange.Epoch // before is nil in epoch 0
	began             time.Time
	grace             time.Duration // until files that were given away are dropped for others that arrive
	received          atomic.Bool   // this node has a copy of each file that it holds now
}

// A fileSet is a set of files with the sizes of their copies.
type fileSet struct {
	bytes int64
	sizes map[int]int64
}

func (s *fileSet) add(file int, size int64) {
	if s.sizes == nil {
		s.sizes = make(map[int]int64)
	}
	s.remove(file)
	s.sizes[file] = size
	s.bytes += size
}

// addAll adds files, or copies of files that are there, such as further pieces.
func (s *fileSet) addAll(more fileSet) {
	for file, size := range more.sizes {
		s.add(file, s.sizes[file]+size)
	}
}

func (s *fileSet) remove(file int) {
	s.bytes -= s.sizes[file]
	delete(s.sizes, file)
}

// any returns any file.
func (s *fileSet) any() (file int, ok bool) {
	for file := range s.sizes {
		return file, true
	}
	return 0, false
}

// An ExchangeConfig describes an exchange. All nodes have the same, except for Node.
type ExchangeConfig struct {
	ID       string // of the arguments of the plan: nodes with the same ID have the same plan
	Files    *exchange.List
	Dir      string  // the directory of the source that the names in Files are relative to; "" is its root
	Sizes    []int64 // by number in Files; nil: the shares are balanced by number
	Seed     uint64
	Fraction float64 // of the share of a node that moves before an epoch
	Nodes    int
	Node     int // the number of this one
}

// Errors of an exchange.
var (
	ErrExchange     = errors.New("the exchange is refused")
	ErrNoExchange   = errors.New("there is no such exchange")
	ErrExchangeRoom = errors.New("the tiers have no room for the exchange")
)

// maxReaders bounds the readers of a node.
const maxReaders = 4096

// StartExchange starts the exchange of files, and ends another one. reader, one of several of this node,
// begins an epoch. If an exchange of the same ID is running, that is all. The files need not exist.
//
// The error matches ErrExchange if the arguments do not suit this node, and ErrExchangeRoom if the
// quotas have no room for what the node holds in this epoch and the next one. Then there is no exchange.
func (h *Handler) StartExchange(ctx context.Context, cfg ExchangeConfig, epoch, reader, readers int) error {
	if err := h.BeginEpoch(cfg.ID, epoch, reader, readers); !errors.Is(err, ErrNoExchange) {
		return err
	}
	if err := checkReader(epoch, reader, readers); err != nil {
		return err
	}
	if cfg.Node < 0 || cfg.Node >= cfg.Nodes {
		return fmt.Errorf("%w: node %d of %d", ErrExchange, cfg.Node, cfg.Nodes)
	}
	if h.peers != nil {
		if nodes, self := h.peers.Nodes(); nodes != cfg.Nodes || self != cfg.Node {
			return fmt.Errorf("%w: it is for node %d of %d, and the roster has this one as node %d of %d", ErrExchange, cfg.Node, cfg.Nodes, self, nodes)
		}
	}
	plan, err := exchange.New(exchange.Config{Files: cfg.Files.Len(), Nodes: cfg.Nodes, Seed: cfg.Seed, Fraction: cfg.Fraction, Sizes: cfg.Sizes})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrExchange, err)
	}
	x := &exchanger{handler: h, cfg: cfg, plan: plan, done: make(chan struct{}), moved: make(chan struct{}, 1), wanted: epoch}
	x.begin(epoch, reader, readers)
	x.ctx, x.end = context.WithCancel(h.ctx)
	t := x.turnOf(ctx, epoch, maxGrace)
	if t == nil {
		x.end()
		return context.Cause(ctx)
	}
	x.turn.Store(t)
	h.exchanges.Lock()
	defer h.exchanges.Unlock()
	if h.ctx.Err() != nil { // checked under the lock, since Run ends the exchange that it sees then
		return errStopped
	}
	if old := h.exchange.Load(); old != nil && old.cfg.ID == cfg.ID { // another reader was faster
		x.end()
		return h.BeginEpoch(cfg.ID, epoch, reader, readers)
	}
	if err := x.checkRoom(ctx); err != nil {
		x.end()
		return err
	}
	h.stopExchange()
	h.exchange.Store(x)
	h.recount()
	go func() {
		defer panics.Contain()
		x.run()
	}()
	h.log.Info("exchanging files", "id", cfg.ID, "files", cfg.Files.Len(), "node", cfg.Node, "nodes", cfg.Nodes, "fraction", cfg.Fraction, "epoch", epoch)
	return nil
}

// BeginEpoch records that a reader of this node begins an epoch of the exchange with an ID. Readers are
// numbered from 0 on. The error matches ErrNoExchange if there is no exchange of this ID, and
// ErrExchange if the numbers are wrong.
func (h *Handler) BeginEpoch(id string, epoch, reader, readers int) error {
	x := h.exchange.Load()
	if x == nil || x.cfg.ID != id {
		return fmt.Errorf("%w: %q", ErrNoExchange, id)
	}
	if err := checkReader(epoch, reader, readers); err != nil {
		return err
	}
	x.begin(epoch, reader, readers)
	return nil
}

func checkReader(epoch, reader, readers int) error {
	if epoch < 0 || epoch > maxExchangeEpoch || reader < 0 || reader >= readers || readers > maxReaders {
		return fmt.Errorf("%w: epoch %d of reader %d of %d", ErrExchange, epoch, reader, readers)
	}
	return nil
}

// maxExchangeEpoch bounds the number of an epoch: the plan of an epoch is computed from that of the one
// before.
const maxExchangeEpoch = 100_000

// begin is BeginEpoch.
func (x *exchanger) begin(epoch, reader, readers int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.readers) != readers {
		x.readers = slices.Repeat([]int{-1}, readers)
	}
	if epoch < x.readers[reader] { // the job has started again, from an earlier epoch
		for i := range x.readers {
			x.readers[i] = min(x.readers[i], epoch)
		}
		x.wanted = epoch
	}
	x.readers[reader] = epoch
	x.wanted = max(x.wanted, epoch)
	select {
	case x.moved <- struct{}{}:
	default:
	}
}

// isOver reports whether all readers have begun an epoch.
func (x *exchanger) isOver(before int) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Min(x.readers) >= before
}

// StopExchange ends the exchange, if there is one. Copies stay where they are.
func (h *Handler) StopExchange() {
	h.exchanges.Lock()
	defer h.exchanges.Unlock()
	h.stopExchange()
}

// stopExchange is StopExchange; h.exchanges must be held.
func (h *Handler) stopExchange() {
	if x := h.exchange.Swap(nil); x != nil {
		x.end()
		<-x.done
	}
	h.recount()
}

// recount makes the next census rank all files again.
func (h *Handler) recount() {
	if h.peers != nil {
		h.peers.rerank.Store(true)
		h.peers.spare.want()
	}
}

// A standing is what the exchange says of a file.
type standing struct {
	listed bool // the file is exchanged
	file   int  // its number
	now    bool // this node holds it in this epoch
	next   bool // the same, in the next epoch
	holder int  // the node that holds it in this epoch
	giver  int  // the node that holds it before this one does; -1: none, or this one
}

// held reports whether this node is to have a copy.
func (s standing) held() bool { return s.now || s.next }

// standing returns what the exchange, if there is one, says of a file or piece.
func (h *Handler) standing(e *metadata.Entry) standing {
	x := h.exchange.Load()
	if x == nil {
		return standing{}
	}
	file, ok := x.cfg.find(e.Path())
	if !ok {
		return standing{}
	}
	return x.standing(x.turn.Load(), file)
}

// path returns the path of a file of the list.
func (c *ExchangeConfig) path(file int) string { return path.Join(c.Dir, c.Files.Name(file)) }

// find returns the number in the list of the file with a path, and reports whether it has one.
func (c *ExchangeConfig) find(name string) (file int, ok bool) {
	if c.Dir != "" {
		if name, ok = strings.CutPrefix(name, c.Dir+"/"); !ok {
			return 0, false
		}
	}
	return c.Files.Find(name)
}

// standing returns the standing of a file in a turn.
func (x *exchanger) standing(t *turn, file int) standing {
	self := x.cfg.Node
	s := standing{listed: true, file: file, holder: t.now.Holder(file), next: t.next.Holder(file) == self, giver: -1}
	s.now = s.holder == self
	switch {
	case s.now && t.before != nil:
		s.giver = t.before.Holder(file)
	case !s.now && s.next:
		s.giver = s.holder
	}
	if s.giver == self {
		s.giver = -1
	}
	return s
}

// errNotYet: the node that holds a file until the next epoch has not given it yet.
var errNotYet = errors.New("the node that holds the file does not have it yet")

// openExchanged opens a file that is exchanged at the peers.
func (h *Handler) openExchanged(ctx context.Context, e *metadata.Entry, s standing) (drivers.Object, error) {
	switch {
	case !s.held():
		return h.peers.OpenAt(ctx, []int{s.holder}, true, e.Unit(), e.Info(), func(ctx context.Context) (drivers.Object, error) {
			return openForReader(ctx, h, e)
		})
	case s.giver < 0:
		return openForReader(ctx, h, e)
	}
	return h.openAtGiver(ctx, e, s.giver, !s.now && !drivers.IsBackground(ctx)) // the giver is the holder
}

// openAtGiver opens a file at the node that holds it before this one does. If fill is true, that node may
// read it from the source.
func (h *Handler) openAtGiver(ctx context.Context, e *metadata.Entry, giver int, fill bool) (drivers.Object, error) {
	return h.peers.OpenAt(ctx, []int{giver}, fill, e.Unit(), e.Info(), func(ctx context.Context) (drivers.Object, error) {
		return h.withoutGiver(ctx, e, fill)
	})
}

// withoutGiver opens a file that the node before this one does not have any more, or not yet. asked says
// that it might have read the file from the source. The source is not read in the background for the next
// epoch. For this one, another fill takes over, which waits for its turn at the source.
func (h *Handler) withoutGiver(ctx context.Context, e *metadata.Entry, asked bool) (drivers.Object, error) {
	s := h.standing(e)
	f, _ := ctx.Value(fillKey{}).(*fill)
	background := f != nil && drivers.IsBackground(ctx)
	switch isNext := s.listed && !s.now; {
	case isNext && background:
		return nil, errNotYet
	case isNext && s.giver >= 0 && !asked: // a reader waits for a fill that has begun in the background
		return h.openAtGiver(ctx, e, s.giver, true)
	case background:
		if err := h.yield(f, 0); err != nil {
			return nil, err
		}
	}
	return openForReader(ctx, h, e)
}

// errLater: the room for a file of the next epoch is taken by files that were given away, until their
// new holders have received their shares.
var errLater = errors.New("files that were given away take the room")

// admit drops files that were given away, so that a copy of f does not exceed the room that the plan needs
// at most. The error is errLater if f is not needed in this epoch, and the epoch has just begun. After
// nil, the caller calls dismiss if there will be no copy.
func (h *Handler) admit(f *fill) (err error) {
	x := h.exchange.Load()
	if x == nil {
		return nil
	}
	s, t := h.standing(f.entry), x.turn.Load()
	if !s.held() {
		return nil
	}
	patient := !f.forOpen && !s.now && time.Since(t.began) < t.grace
	x.makeRoom(func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		a := &x.account
		if len(x.given.sizes) > 0 && a.complete && a.need-a.lacking.bytes+h.levels.Allocated(f.size)+x.given.bytes > x.most {
			if patient {
				err = errLater
			}
			return patient
		}
		a.lacking.remove(s.file)
		if x.admitted != nil {
			x.admitted[s.file] = true
		}
		return true
	})
	return err
}

// dismiss ends the effect of admit.
func (h *Handler) dismiss(e *metadata.Entry) {
	x, s := h.exchange.Load(), h.standing(e)
	if x == nil || !s.held() {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.account.lacking.add(s.file, h.levels.Allocated(e.Size()))
	delete(x.admitted, s.file)
}

// placed records that there is a copy of e. If the turn has ended in which this node held the file, it is
// one of those that were given away.
func (h *Handler) placed(e *metadata.Entry) {
	x := h.exchange.Load()
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if s := h.standing(e); s.listed && !s.held() {
		x.given.add(s.file, h.levels.Allocated(e.File().Size()))
	}
}

// mayMakeRoom reports whether the exchange may drop other copies for one of e.
func (h *Handler) mayMakeRoom(e *metadata.Entry) bool {
	x := h.exchange.Load()
	if x == nil || !h.standing(e).held() {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.given.sizes)+len(x.kept.sizes) > 0
}

// reserveInExchange reserves room for a copy of e. If no tier has room, it drops copies of files that
// this node does not hold.
func (h *Handler) reserveInExchange(e *metadata.Entry) (t *tiers.Tier, room *tiers.Reservation) {
	if x := h.exchange.Load(); x != nil && h.standing(e).held() {
		x.makeRoom(func() bool {
			t, room = h.reserve(e.Size(), h.levels.Tiers())
			return t != nil
		})
	}
	return t, room
}

// makeRoom drops files that this node does not hold until enough reports true, or until there are none.
// The room of each is returned before enough is called, unless the file is open.
func (x *exchanger) makeRoom(enough func() bool) {
	x.dropping.Lock()
	defer x.dropping.Unlock()
	for !enough() {
		x.mu.Lock()
		from := &x.given
		file, ok := from.any()
		if !ok {
			from = &x.kept
			file, ok = from.any()
		}
		x.mu.Unlock()
		if !ok {
			return
		}
		x.drop(file, &x.handler.exchanged.DroppedForRoom)
	}
}

// ExchangeState returns how far this node is in the exchange, or nil if there is none.
func (h *Handler) ExchangeState() *drivers.ExchangeState {
	x := h.exchange.Load()
	if x == nil {
		return nil
	}
	t := x.turn.Load()
	return &drivers.ExchangeState{ID: x.cfg.ID, Epoch: int64(t.now.Number()), Received: t.received.Load()}
}

// ExchangeCounters count what the exchanges of a handler have done. The tags are those of
// tiers.TierCounters.
type ExchangeCounters struct {
	Received       int64 `json:"received" metric:"exchange_received_files_total" help:"Files that were copied for the next epoch of an exchange."`
	ReceivedBytes  int64 `json:"received_bytes" metric:"exchange_received_bytes_total" help:"Sizes of the files that were copied for the next epoch of an exchange."`
	Dropped        int64 `json:"dropped" metric:"exchange_dropped_files_total" labels:"reason=given" help:"Files that were given away, and whose copies were dropped because the new holder had received its share." family:"Files whose copies an exchange has dropped, by reason: their new holder had received its share, or the room was needed."`
	DroppedForRoom int64 `json:"dropped_for_room" metric:"exchange_dropped_files_total" labels:"reason=room" help:"Files that this node did not hold, and whose copies were dropped because the room was needed."`
}

// ExchangeStats describe the exchange at one moment. Files are those of this node.
type ExchangeStats struct {
	ExchangeCounters

	ID            string  `json:"id" help:"Identifies the arguments of the exchange. Nodes with the same ID have the same plan. Empty: there is no exchange, and the following fields are 0."`
	Files         int64   `json:"files" metric:"exchange_files" help:"Files that are exchanged, of all nodes."`
	Nodes         int64   `json:"node_count" help:"Number of nodes."`
	Node          int64   `json:"node" help:"Number of this node, from 0."`
	Seed          uint64  `json:"seed" help:"Seed of the plan."`
	Fraction      float64 `json:"fraction" help:"Fraction of each share that moves before an epoch."`
	Epoch         int64   `json:"epoch" metric:"exchange_epoch" help:"The latest epoch of the exchange that a reader of this node has begun."`
	Readers       []int64 `json:"readers" help:"The epochs that the readers of this node have begun. -1: none."`
	Complete      bool    `json:"complete" metric:"exchange_complete" help:"Whether this node has a copy of each file that it holds in this epoch."`
	ShareFiles    int64   `json:"share_files" metric:"exchange_share_files" help:"Files that this node holds in this epoch of the exchange."`
	ShareBytes    int64   `json:"share_bytes" metric:"exchange_share_bytes" help:"Sizes of the files that this node holds in this epoch of the exchange."`
	Missing       int64   `json:"missing_files" metric:"exchange_missing_files" help:"Files that this node holds in this epoch of the exchange, and of which it had no copy when it last looked."`
	IncomingFiles int64   `json:"incoming_files" metric:"exchange_incoming_files" help:"Files that this node gets for the next epoch of the exchange."`
	IncomingBytes int64   `json:"incoming_bytes" metric:"exchange_incoming_bytes" help:"Sizes of the files that this node gets for the next epoch of the exchange."`
	ArrivedFiles  int64   `json:"arrived_files" metric:"exchange_arrived_files" help:"Files of the next epoch of the exchange that have arrived."`
	ArrivedBytes  int64   `json:"arrived_bytes" metric:"exchange_arrived_bytes" help:"Sizes of the files of the next epoch of the exchange that have arrived."`
	GivenFiles    int64   `json:"given_files" metric:"exchange_given_files" help:"Files that were given away, and whose copies are kept until their new holder has received its share."`
	GivenBytes    int64   `json:"given_bytes" metric:"exchange_given_bytes" help:"Room that the copies of files which were given away take."`
	Room          int64   `json:"room_bytes" metric:"exchange_room_bytes" help:"Room that the files of this epoch and the next one take."`
	MostRoom      int64   `json:"room_max_bytes" help:"The most of room_bytes in any epoch so far."`
}

// ExchangeStats returns the state of the exchange.
func (h *Handler) ExchangeStats() ExchangeStats {
	s := ExchangeStats{ExchangeCounters: drivers.Snapshot(&h.exchanged), Readers: []int64{}}
	x := h.exchange.Load()
	if x == nil {
		return s
	}
	t := x.turn.Load()
	x.mu.Lock()
	defer x.mu.Unlock()
	s.ID, s.Files, s.Seed, s.Fraction = x.cfg.ID, int64(x.cfg.Files.Len()), x.cfg.Seed, x.cfg.Fraction
	s.Nodes, s.Node, s.Epoch, s.Complete = int64(x.cfg.Nodes), int64(x.cfg.Node), int64(t.now.Number()), t.received.Load()
	s.ShareFiles, s.ShareBytes, s.Missing = x.account.share.Files, x.account.share.Bytes, x.missing
	s.IncomingFiles, s.IncomingBytes = x.account.incoming.Files, x.account.incoming.Bytes
	s.ArrivedFiles, s.ArrivedBytes = x.arrived.Files, x.arrived.Bytes
	s.GivenFiles, s.GivenBytes = int64(len(x.given.sizes)), x.given.bytes
	s.Room, s.MostRoom = x.account.need, x.most
	for _, epoch := range x.readers {
		s.Readers = append(s.Readers, int64(epoch))
	}
	return s
}

// checkRoom returns an error if the quotas of the tiers have no room for what the node holds in this
// epoch and the next one.
func (x *exchanger) checkRoom(ctx context.Context) error {
	a := x.measure(ctx, x.turn.Load(), roomTimeout)
	x.install(a)
	quota, _ := x.handler.room()
	if need := a.need; need > quota {
		return fmt.Errorf("%w: this node holds %d bytes in epochs %d and %d, and the quotas are %d", ErrExchangeRoom, need, x.wanted, x.wanted+1, quota)
	}
	return nil
}
