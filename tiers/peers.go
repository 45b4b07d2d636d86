package tiers

import (
	"context"

	"github.com/milkweedfs/milkweed/drivers"
)

// Peers are the other nodes of a job, which share their tiers. Names and attributes always come
// from the source, and only content comes from peers. The methods may be called concurrently.
//
// Each file, or each piece of a large file, has an owner among the nodes, which reads it from the
// source for all of them, and further choices in case the owner is down or has no room. Its name is
// that of drivers.CutUnit.
type Peers interface {
	// Rank returns the place of this node among the choices for a file or piece: 0 for its owner, 1 for the
	// second choice, and -1 if it is none. It makes no request, and never changes.
	Rank(unit string) int

	// OpenVersion opens the version of a file or piece that info describes, at the choices that come before
	// this node or, if this node is the owner, at those after it. It neither makes a request nor
	// calls source before the first read. The Object turns to the next choice when one fails or has
	// no room, and in the end to what source opens, once. Its errors are those of source.
	OpenVersion(ctx context.Context, unit string, info drivers.Info,
		source func(context.Context) (drivers.Object, error)) (drivers.Object, error)

	// Nodes returns the number of nodes, and the index of this one in the order of their names, which
	// is -1 if it is none of them. It makes no request, and never changes.
	Nodes() (count, self int)

	// OpenAt is OpenVersion with other choices: the nodes with these indexes, in this order, except
	// this one. If fill is true, each is asked as the owner is, and may fill the file from the source.
	// Otherwise it sends only what it has a copy of.
	OpenAt(ctx context.Context, nodes []int, fill bool, unit string, info drivers.Info,
		source func(context.Context) (drivers.Object, error)) (drivers.Object, error)

	// ExchangeOf asks another node for the state of its exchange, for a second at most. The zero value
	// is that of a node without an exchange. ExchangeOf fails at once if reads skip the node now.
	ExchangeOf(ctx context.Context, node int) (drivers.ExchangeState, error)
}
