package placement

import (
	"bytes"
	"sync/atomic"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/drivers/sequential"
)

// blockSize is the unit in which whole files are copied, in bytes. It is large, so that a parallel
// file system receives few requests, and small enough that a reader of 4 KiB does not wait
// long.
const blockSize = drivers.ChecksumBlock

// unitSize is the unit in which parts of a block are copied, in bytes: those that a reader needs, if the fill
// isPartial.
const unitSize = drivers.WriteUnit

// unitsOfBlock is the number of units in a block.
const unitsOfBlock = blockSize / unitSize

// The states of a unit.
const (
	absent byte = iota
	inFlight
	present
)

// A blockMap records which units of a file have been copied. It decides which goroutine
// fetches which units, so that each unit is fetched at most once; it moves no bytes
// itself. Its methods may be called concurrently.
//
// A goroutine takes blocks, or parts of them, fetches them, and lands each of them. Where the
// source serves long requests better than short ones, it takes several blocks in a row: from
// what is needed to the end of its range of the file, or to the first unit that is not absent.
// Ranges are as long as the source's stride, so that a sequential copy of a file costs as many
// requests as the file has ranges.
type blockMap struct {
	size   int64 // of the file
	stride int   // units of a range: whole blocks, at least 1

	complete atomic.Bool // all units are present

	mu      panics.Mutex                 // guards the following
	states  []byte                       // of the units
	flights map[int]*flight              // of the units in flight
	first   *flight                      // of unit 0, in flight or landed; nil if it was never taken
	missing int                          // number of units that are not present
	touched int                          // number of blocks of which units were taken
	low     int                          // no unit before this one is absent
	readers sequential.Tracker[struct{}] // of blocks
	err     error                        // why no more units are fetched
}

// newBlockMap makes the map of a file of size bytes, of which all blocks are absent. One
// request to the source serves at most stride bytes.
func newBlockMap(size, stride int64) *blockMap {
	n := units(size)
	return &blockMap{
		size:    size,
		stride:  max(1, blocks(stride)) * unitsOfBlock,
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

// units returns the number of units that some bytes occupy.
func units(bytes int64) int { return int((bytes + unitSize - 1) / unitSize) }

// len returns the number of units of the file.
func (m *blockMap) len() int { return len(m.states) }

// follow records that a reader requests block b. It reports whether that continues what a
// reader requested before, or is the beginning of the file.
func (m *blockMap) follow(b int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, continues := m.readers.Access(int64(b), int64(b)+1)
	return continues || b == 0
}

// lookup returns the flight of unit u, or nil if the unit is present. If the unit was
// absent, lookup takes it, and what one request serves with it of the units from from, which
// is in the same block, to to: the caller fetches taken, of which u is in the first. The error
// is the one with which the map was closed.
func (m *blockMap) lookup(u, from, to int) (fl *flight, taken []*flight, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.states[u] == present {
		return nil, nil, nil
	}
	if m.err != nil {
		return nil, nil, m.err
	}
	if fl := m.flights[u]; fl != nil {
		return fl, nil, nil
	}
	for u > from && m.states[u-1] == absent {
		u--
	}
	taken = m.take(u, to)
	return taken[0], taken, nil
}

// presentTo returns the end of the present units that begin with unit u, and are before unit to.
func (m *blockMap) presentTo(u, to int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	for u < to && m.states[u] == present {
		u++
	}
	return u
}

// takeFrom takes the first absent unit from unit u on and before unit to, and those that one
// request serves with it. It returns nil if there is none.
func (m *blockMap) takeFrom(u, to int) []*flight {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u = m.absentFrom(u, to); m.err != nil || u == to {
		return nil
	}
	return m.take(u, to)
}

// absentFrom returns the first absent unit from unit u on, or to if none before that is absent. m.mu
// must be held.
func (m *blockMap) absentFrom(u, to int) int {
	if i := bytes.IndexByte(m.states[u:to], absent); i >= 0 {
		return u + i
	}
	return to
}

// lookupFirst returns the flight of unit 0, in flight or landed. If the unit was never
// taken, lookupFirst takes it as lookup does. fl is nil if the map was closed before.
func (m *blockMap) lookupFirst(to int) (fl *flight, taken []*flight) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.first == nil && m.err == nil {
		taken = m.take(0, to)
	}
	return m.first, taken
}

// takeNext takes the next absent unit after the block of the latest request of any reader, and
// those that one request serves with it. It returns nil if there is none.
func (m *blockMap) takeNext() []*flight {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return nil
	}
	end := len(m.states)
	if m.low = m.absentFrom(m.low, end); m.low == end {
		return nil
	}
	from := m.low
	if latest := m.readers.Latest(); latest != nil {
		from = max(from, min(int(latest.Next)*unitsOfBlock, end))
	}
	if from = m.absentFrom(from, end); from == end {
		from = m.low
	}
	return m.take(from, end)
}

// take begins the flights of unit u, which is absent, and of the absent units that follow
// it in its range and before unit to: one for each block. m.mu must be held.
func (m *blockMap) take(u, to int) (taken []*flight) {
	to = min(to, (u/m.stride+1)*m.stride, len(m.states))
	for u < to && m.states[u] == absent {
		fl := newFlight(u)
		block := u / unitsOfBlock * unitsOfBlock
		end := min(block+unitsOfBlock, len(m.states))
		if bytes.Count(m.states[block:end], []byte{absent}) == end-block {
			m.touched++
		}
		for end = min(end, to); u < end && m.states[u] == absent; u++ {
			m.states[u] = inFlight
			m.flights[u] = fl
		}
		fl.to = u
		if fl.from == 0 {
			m.first = fl
		}
		taken = append(taken, fl)
	}
	return taken
}

// span returns the offset and the number of the bytes of the file that flights fetch, which follow
// each other.
func (m *blockMap) span(flights ...*flight) (off, n int64) {
	off = int64(flights[0].from) * unitSize
	return off, min(int64(flights[len(flights)-1].to)*unitSize, m.size) - off
}

// land ends a flight. Its units are present if err is nil, and absent again if not. It
// reports whether these were the last ones and the map is not closed; it does so once.
func (m *blockMap) land(fl *flight, err error) (last bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	state := present
	if err != nil {
		state = absent
		m.low = min(m.low, fl.from)
	}
	for u := fl.from; u < fl.to; u++ {
		delete(m.flights, u)
		m.states[u] = state
	}
	fl.end(err)
	if err != nil {
		return false
	}
	m.missing -= fl.to - fl.from
	m.complete.Store(m.missing == 0)
	return m.missing == 0 && m.err == nil
}

// fail closes the map with an error, unless it is closed or all units are present. It
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

// room returns the number of bytes of the blocks of which units are present or in flight. A unit may
// occupy as much: tmpfs in huge pages, or a file system with clusters, allocates more than is written.
func (m *blockMap) room() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return min(int64(m.touched)*blockSize, m.size)
}

// copied returns the number of bytes that are present.
func (m *blockMap) copied() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return min(int64(len(m.states)-m.missing)*unitSize, m.size)
}
