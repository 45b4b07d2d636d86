package drivertest

import (
	"context"
	"path"

	"github.com/milkweedfs/milkweed/drivers"
)

// A Namer is a Mem that is a drivers.Namer, as a folder is.
type Namer struct {
	*Mem
	stats *drivers.StatPool
}

var _ drivers.Namer = Namer{}

// NewNamer returns m as a Namer.
func NewNamer(m *Mem) Namer { return Namer{m, drivers.NewStatPool()} }

// Names implements drivers.Namer.
func (n Namer) Names(ctx context.Context, dir string) ([]drivers.Info, error) {
	infos, err := n.ReadDir(ctx, dir)
	for i, info := range infos {
		infos[i] = drivers.Info{Name: info.Name, Mode: info.Type(), Err: drivers.ErrNoAttributes}
	}
	return infos, err
}

// StatNames implements drivers.Namer.
func (n Namer) StatNames(ctx context.Context, dir string, names []string) ([]drivers.Info, error) {
	return n.stats.Stats(ctx, names, func(name string) (drivers.Info, error) {
		return n.Stat(ctx, path.Join(dir, name))
	}, func() {}), nil
}
