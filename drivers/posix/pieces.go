package posix

import "sync"

// minPiece is the least that is worth a request of its own, in bytes. It is
// what FUSE asks for at a time unless it is told otherwise.
const minPiece = 128 << 10

// pieceOf returns how large the pieces are in which to read a file on a kind of
// file system that tells blockSize for it, or 0 for all at once. A client of a
// remote file system that asks for little at a time does so for one piece after
// the other, and waits for each. Those made for large reads tell their size, a
// megabyte or more; a disk reads ahead.
func pieceOf(fsType string, blockSize int64) int {
	switch fsType {
	case "fuse", "nfs", "smb", "ceph":
		return int(max(blockSize, minPiece))
	}
	return 0
}

// readPieces reads p in pieces at the same time. Like readAt it returns how much
// of p was read before the first error.
func readPieces(p []byte, off int64, piece int, readAt func(p []byte, off int64) (int, error)) (int, error) {
	type result struct {
		n   int
		err error
	}
	results := make([]result, (len(p)+piece-1)/piece)
	var wg sync.WaitGroup
	for i := range results {
		from := i * piece
		part := p[from:min(from+piece, len(p))]
		wg.Go(func() {
			n, err := readAt(part, off+int64(from))
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
