package scale

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/peer/roster"
	"github.com/milkweedfs/milkweed/tiers"
)

// peers is the model of the client of drivers/peer: it asks the owner of a file, then the second
// choice, then the source, and skips nodes that do not answer.
type peers struct {
	cluster *cluster
	host    *host
	roster  *roster.Roster // of the group of the node
	self    int            // index in the roster
	first   int            // the node with index 0 in the roster
	health  []health       // by index in the roster
	pings   sync.WaitGroup
}

var _ tiers.Peers = (*peers)(nil)

func (p *peers) Rank(name string) int {
	if rank := p.roster.Rank(name, p.self); rank < choices {
		return rank
	}
	return -1
}

func (p *peers) OpenVersion(_ context.Context, name string, info drivers.Info, source func(context.Context) (drivers.Object, error)) (drivers.Object, error) {
	return p.openAt(p.roster.Owners(name, choices), func(place int) int { return place }, name, info, source)
}

func (p *peers) Nodes() (count, self int) { return p.roster.Len(), p.self }

func (p *peers) OpenAt(_ context.Context, nodes []int, fill bool, name string, info drivers.Info, source func(context.Context) (drivers.Object, error)) (drivers.Object, error) {
	rank := -1
	if fill {
		rank = 0
	}
	return p.openAt(nodes, func(int) int { return rank }, name, info, source)
}

// openAt opens a file at nodes. rank returns the rank of the node at a place among them.
func (p *peers) openAt(nodes []int, rank func(place int) int, name string, info drivers.Info, source func(context.Context) (drivers.Object, error)) (drivers.Object, error) {
	o := &remote{peers: p, name: name, info: info, open: source}
	for place, i := range nodes {
		if i != p.self {
			o.owners = append(o.owners, &owner{index: i, rank: rank(place)})
		}
	}
	return o, nil
}

// ExchangeOf returns the zero value: there is no exchange in the model.
func (p *peers) ExchangeOf(context.Context, int) (drivers.ExchangeState, error) {
	return drivers.ExchangeState{}, nil
}

// usable reports whether reads use a node now. If a ping is due, it sends one in the background.
func (p *peers) usable(i int) bool {
	ok, ping := p.health[i].use()
	if ping {
		p.pings.Go(func() {
			to := p.cluster.nodes[p.first+i].base()
			if to.isDown() {
				time.Sleep(connectTimeout)
			}
			p.health[i].pinged(!to.isDown())
		})
	}
	return ok
}

// A remote is a file that is read from other nodes.
type remote struct {
	peers  *peers
	name   string
	info   drivers.Info
	owners []*owner
	open   func(context.Context) (drivers.Object, error)

	mu     sync.Mutex // guards the following
	source drivers.Object
}

// An owner is a node that may have a file.
type owner struct {
	index, rank int
	refused     atomic.Int64 // when the node lacked the file, in nanoseconds since 1970
}

func (o *remote) Info() drivers.Info { return o.info }

func (o *remote) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.source != nil {
		return o.source.Close()
	}
	return nil
}

func (o *remote) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	n := max(0, min(int64(len(p)), o.info.Size-off))
	for _, w := range o.owners {
		if time.Since(time.Unix(0, w.refused.Load())) < refusalTTL || !o.peers.usable(w.index) {
			continue
		}
		to := o.peers.cluster.nodes[o.peers.first+w.index]
		err := o.peers.cluster.request(ctx, o.peers.host, to.base(), n, func(ctx context.Context) error {
			return to.serve(ctx, o.name, o.info, w.rank, p[:n], off)
		})
		switch {
		case err == nil:
			return length(p, n)
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		case errors.Is(err, errLost):
			o.peers.health[w.index].fail()
		default:
			w.refused.Store(time.Now().UnixNano())
		}
	}
	s, err := o.atSource(ctx)
	if err != nil {
		return 0, err
	}
	return s.ReadAt(ctx, p, off)
}

// atSource opens the file at the source, once.
func (o *remote) atSource(ctx context.Context) (drivers.Object, error) {
	o.mu.Lock()
	s := o.source
	o.mu.Unlock()
	if s != nil {
		return s, nil
	}
	s, err := o.open(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		err = drivers.ErrChanged
	}
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.source == nil {
		o.source = s
	} else {
		s.Close()
	}
	return o.source, nil
}
