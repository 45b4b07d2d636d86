package blob

import (
	"iter"
	"slices"
)

const (
	maxPositions   = 16 // readers that a sequentialDetector remembers
	sequentialHits = 2  // continued reads after which a reader counts as sequential

	// positionExpiry is how many bytes other readers may request before a reader
	// counts as gone. When maxPositions readers take turns in steps of up to one
	// chunk, at most half of that passes between two reads of the same reader.
	positionExpiry = 2 * maxPositions * chunkSize
)

// A sequentialDetector distinguishes sequential from random access to one object,
// which several readers may share. A read does not identify its reader. The detector
// therefore remembers one position for each reader, and attributes a read to the
// position that it continues.
//
// The zero value has seen no reads. Concurrent calls need a lock.
type sequentialDetector struct {
	positions []position // the most recently used last
	requested int64      // bytes, by all readers so far
}

// A position is where one reader is in an object.
type position struct {
	end   int64 // highest offset that the reader has requested
	hits  int   // reads that began exactly at end
	last  int64 // sequentialDetector.requested after the reader's last read
	state readerState
}

// observe records a read of n bytes at offset off. It returns the state of the
// reader, which is valid until the next call, and whether that reader is
// sequential. A read that begins within one chunk of a position belongs to the
// same reader, because one of several concurrent reads can overtake another.
func (d *sequentialDetector) observe(off, n int64) (state *readerState, sequential bool) {
	i, hit := d.find(off)
	var p position
	switch {
	case i >= 0:
		p = d.positions[i]
		d.positions = slices.Delete(d.positions, i, i+1)
	case len(d.positions) == maxPositions:
		d.positions = slices.Delete(d.positions, 0, 1)
	}
	if hit {
		p.hits++
	}
	p.end = max(p.end, off+n)
	d.requested += n
	p.last = d.requested
	d.positions = append(d.positions, p)
	return &d.positions[len(d.positions)-1].state, p.hits >= sequentialHits
}

// find returns the index of the position that a read at off continues, or -1,
// and whether the read begins exactly at its end.
func (d *sequentialDetector) find(off int64) (i int, hit bool) {
	i = slices.IndexFunc(d.positions, func(p position) bool { return off == p.end })
	if i >= 0 {
		return i, true
	}
	near := func(p position) bool { return max(off-p.end, p.end-off) <= chunkSize }
	return slices.IndexFunc(d.positions, near), false
}

// active iterates over the readers that have not expired: the end of the
// position of each, and its state.
func (d *sequentialDetector) active() iter.Seq2[int64, *readerState] {
	return func(yield func(int64, *readerState) bool) {
		for i := range d.positions {
			p := &d.positions[i]
			if d.requested-p.last < positionExpiry && !yield(p.end, &p.state) {
				return
			}
		}
	}
}
