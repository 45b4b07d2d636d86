package fs

import "github.com/milkweedfs/milkweed/metadata"

// DropPages makes the kernel drop its pages of a file, which it may have read from a copy that
// was corrupt. It waits for reads of the file that are in progress. It must not be called by the
// goroutine that answers a request.
func (m *Mount) DropPages(e *metadata.Entry) {
	m.server.InodeNotify(e.ID(), 0, 0) // ENOENT if the kernel does not know the file
}
