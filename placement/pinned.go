package placement

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"sync/atomic"
	"syscall"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// With a manifest, the SHA-256 of each file is known before it is read (drivers.Pinner). The blocks of a
// fill are hashed as they arrive, each before a reader gets it if all those before it were hashed. So of
// a file of one block, no reader gets a wrong byte; of a larger one, a reader may have got some before the
// file is known to be another. Its copy is not committed, and the source does not open that version again.

// A pinned is the hash of a fill.
type pinned struct {
	want [sha256.Size]byte

	mu      panics.Mutex // guards the following
	hash    hash.Hash    // of the blocks before next
	next    int
	written map[int]bool // blocks after next that are in the copy
}

// newPinned returns the hash of a fill, or nil if its content is not known.
func newPinned(f *fill) *pinned {
	want, ok := f.handler.levels.Source().Digest(f.entry.Info())
	if !ok || f.entry.IsPiece() {
		return nil
	}
	return &pinned{want: want, hash: sha256.New(), written: make(map[int]bool)}
}

// arrived hashes a block if all blocks before it were hashed. After the last one it returns an error if the
// file is not the one that it must be.
func (p *pinned) arrived(f *fill, block int, content []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if block != p.next {
		return nil
	}
	p.hash.Write(content)
	p.next++
	return p.compare(f)
}

// wrote hashes a block that is in the copy, and those that follow it, if all blocks before were hashed.
func (p *pinned) wrote(f *fill, block int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if block >= p.next {
		p.written[block] = true
	}
	if !p.written[p.next] {
		return nil
	}
	for ; p.written[p.next]; p.next++ {
		delete(p.written, p.next)
		off := int64(p.next) * blockSize
		if _, err := io.Copy(p.hash, io.NewSectionReader(f.copy, off, min(blockSize, f.size-off))); err != nil {
			return err
		}
	}
	return p.compare(f)
}

// compare compares the hash, when it is complete; p.mu must be held.
func (p *pinned) compare(f *fill) error {
	if p.next < f.blocks.len() || [sha256.Size]byte(p.hash.Sum(nil)) == p.want {
		return nil
	}
	if !f.foreign { // else another node has sent it
		atomic.AddInt64(&f.handler.counters.Mismatched, 1)
		f.handler.levels.Source().Reject(f.name, f.entry.Info())
		f.handler.names.Doubt(f.entry)
	}
	return fmt.Errorf("%s: the SHA-256 is not that in the manifest: %w", f.name, syscall.EIO)
}
