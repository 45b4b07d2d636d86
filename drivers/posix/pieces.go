package posix

import (
	"sync"

	"github.com/milkweedfs/milkweed/drivers"
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

// maxHelpers bounds the goroutines of the process that help others with a read or a listing. Each takes a
// thread if the source hangs, and a Go program ends when it has 10,000.
const maxHelpers = 2048

// helpers admits helpers. A read or a listing for which there are none is made by one goroutine.
var helpers = drivers.NewCallLimit(maxHelpers)

// LimitThreads must be called before the first Dir is opened, where the threads of the process are limited.
// Reads and listings are then made by several threads each only as far as more, which makes threads for up
// to n calls and returns for how many, has made some.
func LimitThreads(more func(n int) int) { helpers.Lower(0, more) }

// readPieces reads p in concurrent calls of readAt, each for at most piece bytes. As
// readAt does, it returns the number of bytes that were read before the first error.
func readPieces(p []byte, off int64, piece int, readAt func(p []byte, off int64) (int, error)) (int, error) {
	type result struct {
		n   int
		err error
	}
	results := make([]result, (len(p)+piece-1)/piece)
	if !helpers.TryAcquire(len(results) - 1) {
		return readAt(p, off)
	}
	defer helpers.Release(len(results) - 1)
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
