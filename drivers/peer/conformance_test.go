package peer

import (
	"context"
	"testing"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/posix"
)

// A remote is a driver whose files are read from a peer. Their names are those of a folder, which is
// also the source.
type remote struct {
	drivers.Driver
	node *Node
}

func (r remote) Open(ctx context.Context, name string) (drivers.Object, error) {
	info, err := r.Stat(ctx, name)
	if err != nil {
		return nil, err
	}
	return r.node.OpenVersion(ctx, name, info, func(ctx context.Context) (drivers.Object, error) {
		return folderFiles{r.Driver}.OpenShared(ctx, name, info, 0)
	})
}

// folderFiles serves the files of a driver.
type folderFiles struct{ drivers.Driver }

func (f folderFiles) OpenShared(ctx context.Context, name string, want drivers.Info, _ int) (drivers.Object, error) {
	o, err := f.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	if !o.Info().SameVersion(want) {
		o.Close()
		return nil, drivers.ErrChanged
	}
	return o, nil
}

// Files that are read from peers keep the contract of drivers.
func TestConformance(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Subject {
		root := t.TempDir()
		dir, err := posix.OpenDir(root)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dir.Close() })
		r := newRig(t, nil, nil, folderFiles{dir}, folderFiles{dir})
		subject := drivertest.Folder(t, remote{dir, r.nodes[0]}, root)
		subject.Overwrite = nil // blocks of the old version may be in the cache, as in a tier
		return subject
	})
}
