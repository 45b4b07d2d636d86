package placement

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"sync/atomic"
	"syscall"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
)

// With a manifest, the SHA-256 of each file is known before it is read (drivers.Pinner). The blocks of a
// fill are hashed as they arrive, each before a reader gets it if all those before it were hashed. So of
// a file of one block, no reader gets a wrong byte; of a larger one, a reader may have got some before the
// file is known to be another. Its copy is not committed, and the source does not open that version again.
// A file that the source does not have, or has with another size, is not opened at all.

// A pinned is the hash of a fill.
type pinned struct {
	want [sha256.Size]byte

	hashing panics.Mutex // held while blocks are hashed; guards the following
	hash    hash.Hash    // of the blocks before next
	next    int
	err     error // of compare

	mu      panics.Mutex // guards the following
	written map[int]bool // blocks that are in the copy and not hashed
}

// newPinned returns the hash of a fill, or nil if its content is not known.
func newPinned(f *fill) *pinned {
	want, ok := f.handler.levels.Source().Digest(f.entry.Info())
	if !ok || f.entry.IsPiece() {
		return nil
	}
	return &pinned{want: want, hash: sha256.New(), written: make(map[int]bool)}
}

// arrived hashes a block if all blocks before it were hashed, and reports whether it did. After the last
// one it returns an error if the file is not the one that it must be.
func (p *pinned) arrived(f *fill, block int, content []byte) (hashed bool, err error) {
	if !p.hashing.TryLock() {
		return false, nil
	}
	defer p.hashing.Unlock()
	if block != p.next {
		return false, nil
	}
	p.hash.Write(content)
	p.next++
	return true, p.compare(f)
}

// hashedAtOnce is the number of blocks that a fetch hashes after its own, so that those that have arrived
// early are hashed soon, and no reader waits long for that.
const hashedAtOnce = 2

// wrote hashes a block that is in the copy, unless that was done when it arrived, and those that follow it,
// as far as all blocks before were hashed. What is left, finish hashes.
func (p *pinned) wrote(f *fill, block int, hashed bool) error {
	if !hashed {
		p.mu.Lock()
		p.written[block] = true
		p.mu.Unlock()
	}
	if !p.hashing.TryLock() { // another goroutine hashes blocks of the file
		return nil
	}
	defer p.hashing.Unlock()
	return p.hashWritten(f, hashedAtOnce)
}

// finish hashes the rest of the complete copy. It returns an error if the file is not the one that it must be.
func (p *pinned) finish(f *fill) error {
	p.hashing.Lock()
	defer p.hashing.Unlock()
	return p.hashWritten(f, blocks(f.size))
}

// hashWritten hashes up to n blocks that are in the copy, as far as all before them were hashed, and then
// compares; p.hashing must be held.
func (p *pinned) hashWritten(f *fill, n int) error {
	for ; n > 0 && p.takeNext(); n-- {
		off := int64(p.next) * blockSize
		if _, err := io.Copy(p.hash, io.NewSectionReader(f.copy, off, min(blockSize, f.size-off))); err != nil {
			return err
		}
		p.next++
	}
	return p.compare(f)
}

// takeNext reports whether the next block is in the copy; p.hashing must be held.
func (p *pinned) takeNext() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	has := p.written[p.next]
	delete(p.written, p.next)
	return has
}

// compare compares the hash, when it is complete; p.hashing must be held.
func (p *pinned) compare(f *fill) error {
	if p.err != nil || p.next < blocks(f.size) || [sha256.Size]byte(p.hash.Sum(nil)) == p.want {
		return p.err
	}
	if f.foreign {
		p.err = fmt.Errorf("%s: the SHA-256 of what another node has sent is not that in the manifest: %w", f.name, syscall.EIO)
		return p.err
	}
	p.err = fmt.Errorf("%s: the SHA-256 is another one: %w", f.name, drivers.ErrMismatch)
	f.handler.mismatched(f.entry, p.err)
	f.handler.levels.Source().Reject(f.name, f.entry.Info())
	f.handler.names.Doubt(f.entry)
	return p.err
}

// loggedMismatches bounds the files that mismatched logs: if the wrong dataset is at the source, it is called
// for all.
const loggedMismatches = 100

// mismatched counts and logs a file of which the source does not have the version in the manifest, once.
func (h *Handler) mismatched(e *metadata.Entry, err error) {
	if !e.File().Mismatch() {
		return
	}
	switch n := atomic.AddInt64(&h.counters.Mismatched, 1); {
	case n <= loggedMismatches:
		h.log.Warn("file not as in the manifest", "path", e.Path(), "err", err)
	case n == loggedMismatches+1:
		h.log.Warn("more files are not as in the manifest; they are counted and not logged")
	}
}
