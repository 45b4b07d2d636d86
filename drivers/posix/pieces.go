package posix

import (
	"sync"
	"sync/atomic"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// minPiece is the smallest piece in bytes. It is the size of a FUSE read request by
// default.
const minPiece = 128 << 10

// pieceSize returns the size of the pieces in which a file is read, given the type of its
// file system and its st_blksize. It returns 0 if reads are not split.
//
// A client of a remote file system that splits a large read into small requests sends them
// one after the other. Reading the pieces in parallel overlaps these round trips. A client
// made for large requests reports their size, a megabyte or more, as blockSize. For a disk
// the kernel reads ahead.
func pieceSize(fsType string, blockSize int64) int {
	switch fsType {
	case "fuse", "nfs", "smb", "ceph":
		return int(max(blockSize, minPiece))
	}
	return 0
}

// maxPieces bounds the pieces in flight in the process. Each takes a thread if the source hangs,
// and a Go program ends when it has 10,000. Further reads are not split.
const maxPieces = 2048

var piecesInFlight atomic.Int64

// readPieces reads p in concurrent calls of readAt, each for at most piece bytes. As
// readAt does, it returns the number of bytes that were read before the first error.
func readPieces(p []byte, off int64, piece int, readAt func(p []byte, off int64) (int, error)) (int, error) {
	type result struct {
		n   int
		err error
	}
	results := make([]result, (len(p)+piece-1)/piece)
	count := int64(len(results))
	defer piecesInFlight.Add(-count)
	if piecesInFlight.Add(count) > maxPieces {
		return readAt(p, off)
	}
	var wg sync.WaitGroup
	for i := range results {
		start := i * piece
		buf := p[start:min(start+piece, len(p))]
		wg.Go(func() {
			defer panics.Catch(&results[i].err)
			n, err := readAt(buf, off+int64(start))
			results[i] = result{n, err}
		})
	}
	wg.Wait()
	n := 0
	for _, r := range results {
		n += r.n
		if r.err != nil {
			return n, r.err
		}
	}
	return n, nil
}
