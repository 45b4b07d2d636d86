package placement

import (
	"bytes"
	"sync/atomic"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/drivers/sequential"
)

// blockSize is the unit in which files are copied, in bytes: that of checksums, so that a Writer
// gets whole blocks and need not read them back. It is large, so that a parallel
// file system receives few requests, and small enough that a reader of 4 KiB does not wait
// long.
const blockSize = drivers.ChecksumBlock

// The states of a block.
const (
	absent byte = iota
	inFlight
	present
)

// A blockMap records which blocks of a file have been copied. It decides which goroutine
// fetches which blocks, so that each block is fetched at most once; it moves no bytes
// itself. Its methods may be called concurrently.
//
// A goroutine takes blocks, fetches them, and lands each of them. Where the source serves
// long requests better than short ones, it takes several blocks in a row: from the one that
// is needed to the end of its range of the file, or to the first that is not absent. Ranges
// are as long as the source's stride, so that a sequential copy of a file costs as many
// requests as the file has ranges.
type blockMap struct {
	stride int // blocks of a range, at least 1

	complete atomic.Bool // all blocks are present

	mu      panics.Mutex    // guards the following
	states  []byte          // of the blocks
	flights map[int]*flight // of the blocks in flight
	first   *flight         // of block 0, in flight or landed; nil if it was never taken
	missing int             // number of blocks that are not present
	readers sequential.Tracker[struct{}]
	err     error // why no more blocks are fetched
}

// newBlockMap makes the map of a file of size bytes, of which all blocks are absent. One
// request to the source serves at most stride bytes.
func newBlockMap(size, stride int64) *blockMap {
	n := blocks(size)
	return &blockMap{
		stride:  max(1, blocks(stride)),
		states:  make([]byte, n),
		flights: make(map[int]*flight),
		missing: n,
		// Concurrent requests of one reader arrive a little out of order. As many readers
		// are distinguished as may wait before there is a crowd.
		readers: sequential.Tracker[struct{}]{Max: crowd, Behind: 2, Ahead: 1},
	}
}

// blocks returns the number of blocks that some bytes occupy.
func blocks(bytes int64) int { return int((bytes + blockSize - 1) / blockSize) }

// len returns the number of blocks of the file.
func (m *blockMap) len() int { return len(m.states) }

// follow records that a reader requests block b. It reports whether that continues what a
// reader requested before, or is the beginning of the file.
func (m *blockMap) follow(b int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, continues := m.readers.Access(int64(b), int64(b)+1)
	return continues || b == 0
}

// lookup returns the flight of block b, or nil if the block is present. If the block was
// absent, lookup takes it, and the blocks before block to that one request serves with it:
// the caller fetches the blocks of taken, of which b is the first. The error is the one with
// which the map was closed.
func (m *blockMap) lookup(b, to int) (fl *flight, taken []*flight, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.states[b] == present {
		return nil, nil, nil
	}
	if m.err != nil {
		return nil, nil, m.err
	}
	if fl := m.flights[b]; fl != nil {
		return fl, nil, nil
	}
	taken = m.take(b, to)
	return taken[0], taken, nil
}

// lookupFirst returns the flight of block 0, in flight or landed. If the block was never
// taken, lookupFirst takes it as lookup does. fl is nil if the map was closed before.
func (m *blockMap) lookupFirst(to int) (fl *flight, taken []*flight) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.first == nil && m.err == nil {
		taken = m.take(0, to)
	}
	return m.first, taken
}

// takeNext takes the next absent block after the latest request of any reader, and the blocks
// that one request serves with it. It returns nil if there is none.
func (m *blockMap) takeNext() []*flight {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return nil
	}
	from := 0
	if latest := m.readers.Latest(); latest != nil {
		from = int(latest.Next) % len(m.states)
	}
	b := bytes.IndexByte(m.states[from:], absent)
	if b >= 0 {
		b += from
	} else if b = bytes.IndexByte(m.states[:from], absent); b < 0 {
		return nil
	}
	return m.take(b, len(m.states))
}

// take begins the flight of block b, which is absent, and of the absent blocks that follow
// it in its range and before block to. m.mu must be held.
func (m *blockMap) take(b, to int) (taken []*flight) {
	for end := min((b/m.stride+1)*m.stride, to); b < end && m.states[b] == absent; b++ {
		fl := newFlight(b)
		m.states[b] = inFlight
		m.flights[b] = fl
		if b == 0 {
			m.first = fl
		}
		taken = append(taken, fl)
	}
	return taken
}

// land ends a flight. The block is present if err is nil, and absent again if not. It
// reports whether this was the last block and the map is not closed; it does so once.
func (m *blockMap) land(fl *flight, err error) (last bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.flights, fl.block)
	fl.end(err)
	if err != nil {
		m.states[fl.block] = absent
		return false
	}
	m.states[fl.block] = present
	m.missing--
	m.complete.Store(m.missing == 0)
	return m.missing == 0 && m.err == nil
}

// fail closes the map with an error, unless it is closed or all blocks are present. It
// reports whether it did.
func (m *blockMap) fail(err error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil || m.missing == 0 {
		return false
	}
	m.err = err
	return true
}

// isOpen reports whether fail would close the map.
func (m *blockMap) isOpen() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err == nil && m.missing > 0
}

// close closes the map with an error in any case.
func (m *blockMap) close(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

// failure returns the error with which the map was closed, or nil.
func (m *blockMap) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// taken returns the number of blocks that are present or in flight.
func (m *blockMap) taken() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.states) - m.missing + len(m.flights)
}

// copied returns the number of blocks that are present.
func (m *blockMap) copied() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.states) - m.missing
}
