package readahead

import (
	"iter"

	"github.com/milkweedfs/milkweed/drivers/sequential"
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
// which several readers may share. It expires the positions of readers that stopped.
//
// The zero value has seen no reads. Concurrent calls need a lock.
type sequentialDetector struct {
	tracker   sequential.Tracker[readerState]
	requested int64 // bytes, by all readers so far
}

// observe records a read of n bytes at offset off. It returns the state of the
// reader and whether that reader is sequential. A read that begins within one chunk
// of a position belongs to the same reader, because one of several concurrent reads
// can overtake another.
func (d *sequentialDetector) observe(off, n int64) (state *readerState, isSequential bool) {
	d.tracker.Max, d.tracker.Behind, d.tracker.Ahead = maxPositions, chunkSize, chunkSize
	s, _ := d.tracker.Access(off, off+n)
	d.requested += n
	s.Data.last = d.requested
	return &s.Data, s.Exact >= sequentialHits
}

// active iterates over the readers that have not expired: the end of the position
// of each, and its state.
func (d *sequentialDetector) active() iter.Seq2[int64, *readerState] {
	return func(yield func(int64, *readerState) bool) {
		for _, s := range d.tracker.Streams() {
			if d.requested-s.Data.last < positionExpiry && !yield(s.Next, &s.Data) {
				return
			}
		}
	}
}
