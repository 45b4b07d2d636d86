package check

import (
	"path/filepath"

	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
)

// mounts returns the mount table, or an empty one if it cannot be read.
func (h host) mounts() mounts.Table {
	t, _ := mounts.Read(filepath.Join(h.root, mounts.Self))
	return t
}
