package placement

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// The pace of an exchanger.
const (
	moverFiles    = 32                     // files that are placed, or whose attributes are requested, at a time
	minMoverPause = 250 * time.Millisecond // after a pass that leaves files
	maxMoverPause = time.Minute
	minGrace      = 5 * time.Second // of turn.grace
	maxGrace      = 30 * time.Second
	maxMisses     = 4 // files in a row that a node does not have yet, after which it has a pause
	minAskPause   = 250 * time.Millisecond
	maxAskPause   = 10 * time.Second
	askTimeout    = 5 * time.Second
	roomTimeout   = 2 * time.Second // of the check at the start: attributes may take longer
	turnTimeout   = time.Minute
)

// turnOf computes the turn of an epoch. It returns nil if ctx is done before.
func (x *exchanger) turnOf(ctx context.Context, epoch int, grace time.Duration) *turn {
	t := &turn{began: time.Now(), grace: grace}
	e := x.plan.Start()
	for ; e.Number() < epoch; e.Advance() {
		if ctx.Err() != nil {
			return nil
		}
		if e.Number() == epoch-1 {
			t.before = e.Clone()
		}
	}
	t.now = e
	t.next = e.Clone()
	t.next.Advance()
	return t
}

// following returns the turn after t.
func (t *turn) following() *turn {
	n := &turn{before: t.now, now: t.next, next: t.next.Clone(), began: time.Now(), grace: min(max(time.Since(t.began)/4, minGrace), maxGrace)}
	n.next.Advance()
	return n
}

// held returns the files that a node holds in this epoch, and those that it gets for the next one.
func (t *turn) held(node int) (share, incoming []uint32) {
	for _, file := range t.next.Share(node) {
		if t.now.Holder(int(file)) != node {
			incoming = append(incoming, file)
		}
	}
	return t.now.Share(node), incoming
}

// run moves files until the exchange ends.
func (x *exchanger) run() {
	defer close(x.done)
	panics.Repeat(x.ctx, func() {
		if !x.isMeasured() {
			x.install(x.measure(x.ctx, x.turn.Load(), turnTimeout))
		}
		x.survey(nil)
		for x.ctx.Err() == nil {
			x.runTurn()
		}
	})
}

// runTurn moves files until the readers begin another epoch, and then begins the turn of that.
func (x *exchanger) runTurn() {
	t := x.turn.Load()
	ctx, cancel := context.WithCancel(drivers.Background(x.ctx))
	defer cancel()
	var movers sync.WaitGroup
	defer movers.Wait()
	defer cancel()
	for _, move := range [...]func(context.Context, *turn){x.keep, x.receive, x.give} {
		movers.Go(func() {
			defer panics.Contain()
			move(ctx, t)
		})
	}
	for ctx.Err() == nil {
		x.mu.Lock()
		wanted := x.wanted
		x.mu.Unlock()
		if wanted != t.now.Number() {
			cancel()
			movers.Wait()
			x.turnTo(wanted)
			return
		}
		select {
		case <-x.moved:
		case <-ctx.Done():
		}
	}
}

// turnTo begins the turn of an epoch. Until the room of the new turn is known, the old one goes on.
func (x *exchanger) turnTo(epoch int) {
	var (
		old       = x.turn.Load()
		following = epoch == old.now.Number()+1
		t         *turn
	)
	if following {
		t = old.following()
	} else {
		t = x.turnOf(x.ctx, epoch, maxGrace)
	}
	if t == nil {
		return
	}
	a := x.measure(x.ctx, t, turnTimeout)
	x.dropping.Lock() // drop decides by the turn
	x.mu.Lock()
	x.turn.Store(t)
	if following {
		x.given.addAll(x.outgoing(old, t))
	}
	for _, s := range [...]*fileSet{&x.given, &x.kept} {
		for file := range s.sizes {
			if x.standing(t, file).held() {
				s.remove(file)
			}
		}
	}
	x.mu.Unlock()
	x.dropping.Unlock()
	x.install(a)
	x.handler.recount()
	if !following {
		x.survey(old)
	}
}

// outgoing returns the files that this node has copies of and does not hold any more. Copies that are
// complete later are found by Handler.placed.
func (x *exchanger) outgoing(old, t *turn) (given fileSet) {
	for _, file := range old.now.Share(x.cfg.Node) {
		if x.standing(t, int(file)).held() {
			continue
		}
		if e := x.cached(int(file)); e != nil && x.handler.hasCopies(e) {
			given.add(int(file), x.handler.levels.Allocated(e.Size()))
		}
	}
	return given
}

// survey finds the copies of files that this node does not hold: those that it held in earlier epochs
// or in the turn before, which may be nil, were given away. The others are from other jobs.
func (x *exchanger) survey(before *turn) {
	h, t := x.handler, x.turn.Load()
	h.levels.WaitScanned(x.ctx)
	once := x.heldBefore(t.now.Number())
	x.mu.Lock()
	x.given, x.kept = fileSet{}, fileSet{}
	x.mu.Unlock()
	for _, tier := range h.levels.Tiers() {
		err := tier.Copies(x.ctx, ".", func(copies []tiers.CopyInfo) error {
			var given, kept fileSet
			for _, c := range copies {
				file, ok := x.cfg.find(h.names.FileOf(c.Name))
				if !ok || x.standing(t, file).held() {
					continue
				}
				s := &kept
				if once[file/8]&(1<<(file%8)) != 0 || before != nil && x.standing(before, file).held() {
					s = &given
				}
				s.add(file, s.sizes[file]+c.Room)
			}
			x.mu.Lock()
			defer x.mu.Unlock()
			x.given.addAll(given)
			x.kept.addAll(kept)
			return x.ctx.Err()
		})
		if err != nil && x.ctx.Err() == nil {
			h.log.Warn("copies not listed", "tier", tier.Name(), "err", err)
		}
	}
}

// heldBefore returns a bit for each file: whether this node has held it before an epoch.
func (x *exchanger) heldBefore(epoch int) []byte {
	held := make([]byte, x.cfg.Files.Len()/8+1)
	if epoch == 0 {
		return held
	}
	for e := x.plan.Start(); e.Number() < epoch && x.ctx.Err() == nil; e.Advance() {
		for _, file := range e.Share(x.cfg.Node) {
			held[file/8] |= 1 << (file % 8)
		}
	}
	return held
}

// cached returns the entry of a file, or nil if it is not loaded.
func (x *exchanger) cached(file int) *metadata.Entry {
	e := x.handler.names.CachedCopy(x.handler.names.CopyName(x.cfg.path(file)))
	if e == nil || !e.IsRegular() || e.Unknown() || e.Stale() {
		return nil
	}
	return e
}

// entry returns the entry of a file. It is nil if the file does not exist.
func (x *exchanger) entry(ctx context.Context, file int) (*metadata.Entry, error) {
	if e := x.cached(file); e != nil {
		return e, nil
	}
	e, err := x.handler.names.Resolve(ctx, x.cfg.path(file))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !e.IsRegular():
		return nil, nil
	}
	return e, nil
}

// each calls f for each item, a number of them at a time, until ctx is done.
func each[T any](ctx context.Context, atOnce int, items []T, f func(T)) {
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(atOnce, len(items)) {
		workers.Go(func() {
			defer panics.Contain()
			for ctx.Err() == nil {
				i := next.Add(1) - 1
				if i >= int64(len(items)) {
					return
				}
				f(items[i])
			}
		})
	}
	workers.Wait()
}

// measure makes the account of a turn, for at most some time. The caller calls install.
func (x *exchanger) measure(ctx context.Context, t *turn, atMost time.Duration) (a account) {
	ctx, cancel := context.WithTimeout(drivers.Background(ctx), atMost)
	defer cancel()
	x.mu.Lock()
	x.admitted = make(map[int]bool)
	x.mu.Unlock()
	var mu sync.Mutex // guards a
	count := func(files []uint32, all, copied *Amount) {
		each(ctx, moverFiles, files, func(number uint32) {
			file := int(number)
			e, err := x.entry(ctx, file)
			if err != nil || e == nil {
				return
			}
			claimed := e.Claimed() // before isComplete: a fill that ends publishes the copy first
			complete := x.handler.isComplete(e)
			lacks := !complete && !claimed
			mu.Lock()
			defer mu.Unlock()
			all.add(e.Size())
			a.need += x.handler.levels.Allocated(e.Size())
			if complete {
				copied.add(e.Size())
			}
			if lacks {
				a.lacking.add(file, x.handler.levels.Allocated(e.Size()))
			}
		})
	}
	share, incoming := t.held(x.cfg.Node)
	count(share, &a.share, new(Amount))
	count(incoming, &a.incoming, &a.arrived)
	a.complete = ctx.Err() == nil
	return a
}

// isMeasured reports whether the account is complete.
func (x *exchanger) isMeasured() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.account.complete
}

// install makes a the account of the present turn.
func (x *exchanger) install(a account) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for file := range x.admitted {
		a.lacking.remove(file)
	}
	x.admitted = nil
	x.account, x.arrived, x.most = a, a.arrived, max(x.most, a.need)
	if quota, _ := x.handler.room(); a.need > quota {
		x.handler.log.Warn("the tiers have no room for the files of two epochs", "epoch", x.turn.Load().now.Number(), "bytes", a.need, "quotas", quota)
	}
}

// keep places the files that this node holds and has no copy of, until none is left.
func (x *exchanger) keep(ctx context.Context, t *turn) {
	share, _ := t.held(x.cfg.Node)
	left := slices.Clone(share)
	for {
		// The plan of the owner, who has begun the exchange, knows the order in which the job needs the files.
		may := func(*metadata.Entry) bool { return !x.handler.plans.of(nil).active.Load() }
		left = x.place(ctx, left, may, func(*metadata.Entry, error) {})
		x.mu.Lock()
		x.missing = int64(len(left))
		x.mu.Unlock()
		if len(left) == 0 && ctx.Err() == nil {
			t.received.Store(true)
		}
		if len(left) == 0 || sleep(ctx, moverPause(t)) != nil {
			return
		}
	}
}

// receive places the files that this node gets for the next epoch, until none is left.
func (x *exchanger) receive(ctx context.Context, t *turn) {
	_, left := t.held(x.cfg.Node)
	for {
		misses := make([]atomic.Int64, x.cfg.Nodes)
		left = x.place(ctx, left, func(e *metadata.Entry) bool {
			s := x.handler.standing(e)
			return s.giver < 0 || misses[s.giver].Load() < maxMisses
		}, func(e *metadata.Entry, err error) {
			s := x.handler.standing(e)
			switch {
			case s.giver < 0:
			case err == nil:
				misses[s.giver].Store(0)
			case errors.Is(err, errNotYet):
				misses[s.giver].Add(1)
			}
			if err == nil {
				atomic.AddInt64(&x.handler.exchanged.Received, 1)
				atomic.AddInt64(&x.handler.exchanged.ReceivedBytes, e.Size())
				x.mu.Lock()
				defer x.mu.Unlock()
				x.arrived.add(e.Size())
			}
		})
		x.countArrived(left)
		if len(left) == 0 || sleep(ctx, moverPause(t)) != nil {
			return
		}
	}
}

// countArrived records which files of the next epoch have not arrived.
func (x *exchanger) countArrived(left []uint32) {
	var missing Amount
	for _, file := range left {
		if e := x.cached(int(file)); e != nil {
			missing.add(e.Size())
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.arrived = Amount{x.account.incoming.Files - missing.Files, x.account.incoming.Bytes - missing.Bytes}
}

// moverPause returns the pause after a pass of a turn: half of the time since it began.
func moverPause(t *turn) time.Duration {
	return min(max(time.Since(t.began)/2, minMoverPause), maxMoverPause)
}

// place places files for which may returns true, and returns those of which there is no copy then, also
// those that no tier had room for: room returns when the last user of a dropped copy has left. Files that
// do not exist do not count. tried is called for each file that was placed or failed.
func (x *exchanger) place(ctx context.Context, files []uint32, may func(*metadata.Entry) bool, tried func(*metadata.Entry, error)) (left []uint32) {
	var mu sync.Mutex
	each(ctx, moverFiles, files, func(file uint32) {
		e, err := x.entry(ctx, int(file))
		if err == nil && (e == nil || x.handler.isComplete(e)) {
			return
		}
		outcome := Failed
		if err == nil && may(e) {
			outcome, err = x.handler.Place(ctx, e)
			if outcome == Placed || outcome == Failed {
				tried(e, err)
			}
		}
		if outcome != Placed {
			mu.Lock()
			defer mu.Unlock()
			left = append(left, file)
		}
	})
	return left
}

// give drops the files that were given away, when all readers have begun the epoch and the new holders
// have received their shares. It goes on while the turn does, for copies that are complete late.
func (x *exchanger) give(ctx context.Context, t *turn) {
	if x.handler.peers == nil { // nobody confirms: the files stay until the room is needed
		return
	}
	for pause := minAskPause; ; pause = min(2*pause, maxAskPause) {
		if x.isOver(t.now.Number()) {
			x.dropGiven(ctx, t)
		}
		if sleep(ctx, pause) != nil {
			return
		}
	}
}

// dropGiven asks the new holders of the files that were given away, and drops the files of those that
// have received their shares.
func (x *exchanger) dropGiven(ctx context.Context, t *turn) {
	holders := make(map[int][]int)
	x.mu.Lock()
	for file := range x.given.sizes {
		n := t.now.Holder(file)
		holders[n] = append(holders[n], file)
	}
	x.mu.Unlock()
	each(ctx, moverFiles, slices.Collect(maps.Keys(holders)), func(node int) {
		bounded, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		s, err := x.handler.peers.ExchangeOf(bounded, node)
		if err != nil || s.ID != x.cfg.ID || !s.Received || s.Epoch < int64(t.now.Number()) {
			return
		}
		for _, file := range holders[node] {
			if ctx.Err() != nil {
				return
			}
			func() {
				x.dropping.Lock() // else makeRoom finds no file left, and the room of this one not yet free
				defer x.dropping.Unlock()
				x.drop(file, &x.handler.exchanged.Dropped)
			}()
		}
	})
}

// drop drops the copies of a file that this node does not hold, and counts that. What a tier fails to
// remove is found again by the next survey. The caller holds x.dropping.
func (x *exchanger) drop(file int, counter *int64) {
	defer func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.given.remove(file)
		x.kept.remove(file)
	}()
	ctx, cancel := context.WithTimeout(x.ctx, askTimeout)
	defer cancel()
	e, err := x.entry(ctx, file)
	if err != nil || e == nil || x.standing(x.turn.Load(), file).held() {
		return
	}
	dropped := false
	units := []*metadata.Entry{e}
	if x.handler.names.HasPieces(e) {
		pieces, _ := x.handler.names.Pieces(ctx, e)
		units = append(units, pieces...)
	}
	for _, u := range units {
		ok, err := x.handler.Retract(u)
		if err != nil {
			x.handler.log.Warn("copy not dropped", "path", u.Path(), "err", err)
		}
		dropped = dropped || ok
		x.handler.files.forgetRecent(u) // the room of a copy is returned when the last user has left
	}
	if dropped {
		atomic.AddInt64(counter, 1)
	}
}

// isComplete reports whether the tiers have all of a file.
func (h *Handler) isComplete(e *metadata.Entry) bool {
	if e.Size() == 0 || e.Level() != tiers.AtSource {
		return true
	}
	pieces := h.names.CachedPieces(e)
	return len(pieces) > 0 && !slices.ContainsFunc(pieces, isAtSource)
}

// hasCopies reports whether the tiers have a file, or a piece of it.
func (h *Handler) hasCopies(e *metadata.Entry) bool {
	return e.Level() != tiers.AtSource || slices.ContainsFunc(h.names.CachedPieces(e), func(p *metadata.Entry) bool { return !isAtSource(p) })
}

func isAtSource(e *metadata.Entry) bool { return e.Level() == tiers.AtSource }
