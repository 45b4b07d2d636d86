package placement

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// A PlanPart says to which entries of a plan a list of paths belongs.
type PlanPart struct {
	Stream string // at most 128 bytes; "" is the default stream
	Epoch  int64
	From   int64 // number of the first path in the epoch
	Lead   int64 // files that the loader requests before the job uses them; 0: unknown
}

// Errors of Plan.
var (
	ErrPlanPart = errors.New("not a part of a plan")
	ErrPlanFull = errors.New("the plan is full")
)

// A PlanResult says what Plan has done with the paths of a part.
type PlanResult struct {
	Accepted int64    `json:"accepted"`         // paths that are entries of the plan now
	Rejected int64    `json:"rejected"`         // others
	Errors   []string `json:"errors,omitempty"` // the reasons for the first ones
}

// Add adds the result for other paths.
func (r *PlanResult) Add(other PlanResult) {
	r.Accepted += other.Accepted
	r.Rejected += other.Rejected
	r.Errors = append(r.Errors, other.Errors[:min(len(other.Errors), planReasons-len(r.Errors))]...)
}

// reject counts a path that is refused.
func (r *PlanResult) reject(reason error) {
	r.Rejected++
	if len(r.Errors) < planReasons {
		r.Errors = append(r.Errors, reason.Error())
	}
}

// Plan tells the handler in which order a reader of a user will open files. The user is the owner of the mount
// if by is nil. Only files that another user may read are looked up and copied for that user, and only opens of
// that user follow the plan. Paths are relative to the root.
// The entries of the stream and epoch from part.From on are replaced. A path that is refused keeps
// its number. The job need not follow the plan, and the files need not exist. Earlier entries of a
// stream are forgotten when the job has opened later ones, and a stream when its last entry was
// opened or after an hour without use.
//
// The error matches ErrPlanPart or ErrPlanFull, and means that no path was accepted.
func (h *Handler) Plan(by *metadata.User, part PlanPart, paths []string) (PlanResult, error) {
	r, err := h.plans.add(by, part, paths)
	if err == nil {
		h.queue.feedPlanned()
	}
	return r, err
}

// DropPlan forgets a stream of a user, or of the owner if by is nil, and reports whether there was one.
func (h *Handler) DropPlan(by *metadata.User, stream string) bool { return h.plans.drop(by, stream) }

// DropPlans forgets all streams of a user, or of all users if by is nil.
func (h *Handler) DropPlans(by *metadata.User) { h.plans.dropAll(by) }

// drop forgets a stream, and reports whether there was one.
func (p *plan) drop(stream string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.streams[stream]
	if s != nil {
		p.remove(s)
	}
	return s != nil
}

// dropAll forgets all streams.
func (p *plan) dropAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sorted() {
		p.remove(s)
	}
}

// add is Plan for the plan itself.
func (p *plan) add(part PlanPart, paths []string) (r PlanResult, err error) {
	switch {
	case len(part.Stream) > maxStreamName:
		return r, fmt.Errorf("%w: the name of the stream is longer than %d bytes", ErrPlanPart, maxStreamName)
	case part.Epoch < 0 || part.From < 0 || part.From > 1<<48:
		return r, fmt.Errorf("%w: epoch %d, from %d", ErrPlanPart, part.Epoch, part.From)
	case part.Lead < 0 || part.Lead > maxPlanLead:
		return r, fmt.Errorf("%w: the lead %d is not between 0 and %d", ErrPlanPart, part.Lead, maxPlanLead)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s, e, err := p.open(part)
	if err != nil {
		return r, err
	}
	p.free(e.truncate(part.From))
	from := place{part.Epoch, part.From}
	if s.at.compare(from) > 0 { // the job has started again
		s.at = from
		s.run++
		for n := len(s.epochs) - 1; s.epochs[n] != e; n-- {
			p.free(s.epochs[n].truncate(0))
			s.epochs = s.epochs[:n]
		}
	}
	if s.next.compare(from) > 0 {
		s.next = from
	}
	for n, path := range paths {
		if p.planned == p.limit.entries || p.memory > p.limit.memory {
			r.Rejected += int64(len(paths) - n - 1)
			r.reject(fmt.Errorf("%w: it has %d entries, which take %d KiB", ErrPlanFull, p.planned, p.memory>>10))
			break
		}
		name, err := ListedName(path)
		var hash uint32
		if err != nil {
			r.reject(err)
		} else {
			r.Accepted++
			hash = p.hash(name)
		}
		p.memory += e.add(part.From+int64(n), name, hash, &p.pack)
		p.planned++
	}
	s.longest = max(s.longest, e.end())
	p.counters.Rejected += r.Rejected
	return r, nil
}

// open returns the stream and the epoch of a part, and makes them if they are missing. p.mu must
// be held.
func (p *plan) open(part PlanPart) (*planStream, *planEpoch, error) {
	s := p.streams[part.Stream]
	if s == nil {
		if len(p.streams) == p.limit.streams {
			return nil, nil, fmt.Errorf("%w: it has %d streams", ErrPlanFull, p.limit.streams)
		}
		from := place{part.Epoch, part.From}
		s = &planStream{plan: p, name: part.Stream, lead: planLead, at: from, next: from}
	}
	e := s.epoch(part.Epoch)
	if e == nil {
		if len(s.epochs) == maxPlanEpochs {
			return nil, nil, fmt.Errorf("%w: the stream has %d epochs", ErrPlanFull, maxPlanEpochs)
		}
		e = &planEpoch{number: part.Epoch}
		n := 0
		for n < len(s.epochs) && s.epochs[n].number < e.number {
			n++
		}
		s.epochs = append(s.epochs[:n], append([]*planEpoch{e}, s.epochs[n:]...)...)
	}
	if part.Lead > 0 {
		s.lead = part.Lead
	}
	s.used = time.Now()
	p.streams[part.Stream] = s
	p.active.Store(true)
	return s, e, nil
}

// ListedName returns a path of a plan, or of another list of files, in the form of drivers.ValidName, or the
// reason why it is refused. "./a//b/" is the name a/b.
func ListedName(given string) (string, error) {
	switch {
	case given == "":
		return "", errors.New("an empty path")
	case len(given) > maxPlannedPath:
		return "", fmt.Errorf("a path of %d bytes, of at most %d", len(given), maxPlannedPath)
	}
	for elem := range strings.SplitSeq(given, "/") {
		if elem == ".." {
			return "", fmt.Errorf("%q: .. is not accepted", given)
		}
	}
	name := path.Clean(given)
	if name == "." || !drivers.ValidName(name) {
		return "", fmt.Errorf("%q is not the name of a file in the mount", given)
	}
	return name, nil
}

// planned passes an open to the plans, and reports whether one has predicted it.
func (h *Handler) planned(ctx context.Context, e *metadata.Entry) (predicted bool) {
	for _, p := range h.plans.all() {
		if !p.active.Load() || !p.concerns(ctx) {
			continue
		}
		hit, more := p.opened(e.Path(), e.Size())
		predicted = predicted || hit
		if more {
			h.queue.feedPlanned()
		}
		h.window.moved()
	}
	return predicted
}

// nextPlanned returns a prediction for the next entry of a plan that may have to be copied, or nil.
func (h *Handler) nextPlanned() prediction {
	for h.ctx.Err() == nil && slices.ContainsFunc(h.levels.Tiers(), (*tiers.Tier).Accepts) { // otherwise later
		path, u, ok := h.plans.next()
		switch {
		case !ok:
			return nil
		case path == "":
			continue
		}
		p := u.stream.plan
		if u.ofOwner() { // another user may not be permitted to read it
			if e := h.names.CachedCopy(h.names.CopyName(path)); e != nil && h.hasCopy(e, u) {
				h.saw(u, e)
				continue
			}
		}
		p.spend(budget{entries: 1})
		return func() *fill { return h.beginPlanned(path, u) }
	}
	return nil
}

// hasCopy reports whether a file of the plan has a copy, or one of the whole file is being made. If that
// is in the window, it is kept for u. A file with pieces has one if there is none that this node may copy.
func (h *Handler) hasCopy(e *metadata.Entry, u use) bool {
	if h.names.HasPieces(e) {
		return e.Level() != tiers.AtSource || !h.mayPrefetch(e)
	}
	return e.Level() != tiers.AtSource || u.ofOwner() && h.window.again(e, u) || e.Claimed() && !h.isLazy(e)
}

// beginPlanned looks up a file of the plan, so that a lookup of the job is answered from memory, and
// claims it. It returns its fill, which the caller begins, or nil.
func (h *Handler) beginPlanned(path string, u use) *fill {
	ctx, cancel := context.WithTimeout(drivers.Background(h.ctx), predictTimeout)
	defer cancel()
	p := u.stream.plan
	e, err := h.resolveFor(ctx, p.user.Load(), path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.miss(path)
		return nil
	case err != nil && ctx.Err() != nil && h.ctx.Err() == nil:
		p.hang(path)
		return nil
	case err != nil || !e.IsRegular():
		return nil
	}
	h.wantWhole(e, (*fill).fetchRest)
	if u.ofOwner() && !h.names.HasPieces(e) && !h.hasCopy(e, u) && h.mayCopy(e, h.rank(e), forBackground) != nil {
		f, held := h.withoutRoom(e, u)
		if !held { // otherwise it is looked up again
			h.saw(u, e)
		}
		return f
	}
	h.saw(u, e)
	if h.hasCopy(e, u) {
		return nil
	}
	f := h.prefetch(e, nil)
	if f != nil {
		p.spend(budget{bytes: e.Size()})
	}
	return f
}

// resolveFor returns the entry of a path that a user may read, or that the daemon may read if u is nil.
func (h *Handler) resolveFor(ctx context.Context, u *metadata.User, path string) (*metadata.Entry, error) {
	if u == nil {
		return h.names.Resolve(ctx, path)
	}
	return h.names.ResolveAs(ctx, *u, path)
}

// saw records a planned file: the plan does not return this use again.
func (h *Handler) saw(u use, e *metadata.Entry) {
	h.window.settled(u)
	quota, _ := h.room()
	u.saw(e.Size(), quota, h.ownedBytes(e))
}

// maxMissing bounds plan.missing.
const maxMissing = 1 << 16

// miss records that a name does not exist: it is not looked up again for this plan.
func (p *plan) miss(path string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counters.Missing++
	if len(p.missing) == maxMissing {
		clear(p.missing)
	}
	p.missing[p.hash(path)] = struct{}{}
}

// hang records that the source did not answer a request for a name. Other files of its directory
// would keep workers for predictTimeout each, and a call of the source until it answers.
func (p *plan) hang(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hung[path.Dir(name)] = time.Now()
}

// isHung reports whether a file is in a directory that hangs. p.mu must be held.
func (p *plan) isHung(name string) bool {
	if len(p.hung) == 0 {
		return false
	}
	_, hung := p.hung[path.Dir(name)]
	return hung
}

// spend accounts for lookups and copies.
func (p *plan) spend(b budget) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spent.entries += b.entries
	p.spent.bytes += b.bytes
}

// PlanCounters count what happened to the plans of a mount since the daemon started. The tags are
// those of tiers.TierCounters.
type PlanCounters struct {
	Opens    int64 `json:"opens" metric:"plan_opens_total" help:"Opens of files while there was a plan, once for each plan that they concern."`
	Correct  int64 `json:"correct" metric:"plan_correct_total" help:"Those of them that the plan predicted, within the lead of the loader."`
	Missing  int64 `json:"missing" metric:"plan_missing_total" help:"Planned names that do not exist."`
	Rejected int64 `json:"rejected" metric:"plan_rejected_total" help:"Paths that were not accepted: they are not in the mount, or the plan was full."`
}

// add adds the counters of another plan.
func (c *PlanCounters) add(other PlanCounters) {
	c.Opens += other.Opens
	c.Correct += other.Correct
	c.Missing += other.Missing
	c.Rejected += other.Rejected
}

// PlanStats describe the plans of a mount at one moment.
type PlanStats struct {
	PlanCounters
	StreamCount int64 `json:"stream_count" metric:"plan_streams" help:"Streams of the plan."`
	Entries     int64 `json:"entries" metric:"plan_entries" help:"Entries of the plan that the job has not passed."`
	Memory      int64 `json:"memory_bytes" metric:"plan_memory_bytes" help:"Memory that these entries take."`
	Lead        int64 `json:"lead_files" metric:"plan_lead_files" help:"Entries between the positions of the job and those of the copies, in all streams."`
	LeadBytes   int64 `json:"lead_bytes" metric:"plan_lead_bytes" help:"Their sizes, estimated from the mean size of the entries before them."`
	Suspended   bool  `json:"suspended" metric:"plan_suspended" help:"Whether nothing is copied by any plan, because less than an eighth of the recent opens that concern it were in it."`
}

// add adds the state of another plan, without Suspended.
func (st *PlanStats) add(other PlanStats) {
	st.PlanCounters.add(other.PlanCounters)
	st.StreamCount += other.StreamCount
	st.Entries += other.Entries
	st.Memory += other.Memory
	st.Lead += other.Lead
	st.LeadBytes += other.LeadBytes
}

// A PlanStream describes one stream at one moment.
type PlanStream struct {
	Name      string  `json:"name"`
	User      *uint32 `json:"user,omitempty"` // who has handed it over; nil: the owner of the mount
	Epoch     int64   `json:"epoch"`          // of the position
	Entries   int64   `json:"entries"`        // number after the last entry of this epoch
	Position  int64   `json:"position"`       // number after the furthest entry that the job has opened
	Loader    int64   `json:"loader_lead"`    // files that the loader requests before the job uses them
	Later     int64   `json:"later_entries"`  // entries of later epochs
	Lead      int64   `json:"lead_files"`     // entries from the position on that were looked up, and copied where possible
	LeadBytes int64   `json:"lead_bytes"`     // their sizes, estimated from the mean size of the entries before them
	Passed    int64   `json:"passed"`         // entries that the position has passed
	Correct   int64   `json:"correct"`        // opens that the stream predicted, within the lead of the loader
	Suspended bool    `json:"suspended"`      // nothing is copied by the plan of the user: less than an eighth of the recent opens were in it
}

// PlanStats returns the state of the plan of a user, or of all plans if by is nil.
func (h *Handler) PlanStats(by *metadata.User) PlanStats { return h.plans.stats(by) }

// PlanStreams returns the state of each stream of a user, or of all users if by is nil.
func (h *Handler) PlanStreams(by *metadata.User) []PlanStream { return h.plans.describe(by) }

// stats returns the state of p.
func (p *plan) stats() PlanStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := PlanStats{
		PlanCounters: p.counters,
		StreamCount:  int64(len(p.streams)), Entries: int64(p.planned), Memory: int64(p.memory), Suspended: p.suspended,
	}
	for _, s := range p.streams {
		d := s.describe()
		st.Lead += d.Lead
		st.LeadBytes += d.LeadBytes
	}
	return st
}

// describe returns the state of each stream, by name.
func (p *plan) describe() (all []PlanStream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sorted() {
		d := s.describe()
		d.Suspended = p.suspended
		if u := p.user.Load(); u != nil {
			d.User = &u.UID
		}
		all = append(all, d)
	}
	return all
}

// describe returns the state of s. plan.mu must be held.
func (s *planStream) describe() PlanStream {
	d := PlanStream{
		Name: s.name, Epoch: s.at.epoch, Position: s.at.i, Loader: s.lead,
		Lead: s.distance(s.at, s.next), Passed: s.passed, Correct: s.correct,
	}
	if s.found.entries > 0 {
		d.LeadBytes = d.Lead * (s.found.bytes / s.found.entries)
	}
	for _, e := range s.epochs {
		switch {
		case e.number == s.at.epoch:
			d.Entries = e.end()
		case e.number > s.at.epoch:
			d.Later += e.end() - e.start()
		}
	}
	return d
}
