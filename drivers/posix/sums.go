package posix

import (
	"sync"

	"github.com/milkweedfs/milkweed/drivers"
)

// sumStep is the number of bytes that one checksum of stepSums covers: what a read of a copy in
// flight reads at least. It is a part of drivers.WriteUnit.
const sumStep = 64 << 10

// stepsOfBlock is the number of steps in a block.
const stepsOfBlock = drivers.ChecksumBlock / sumStep

// stepSums has the checksum of each step of a file that is being written. A step may be added while
// others are added or compared.
type stepSums []uint32

func newStepSums(size int64) stepSums { return make(stepSums, (size+sumStep-1)/sumStep) }

// add adds p, which begins with a step and has whole steps, or the rest of the file.
func (s stepSums) add(p []byte, off int64) {
	for i := off / sumStep; len(p) > 0; i++ {
		n := min(sumStep, len(p))
		s[i] = drivers.Checksum(0, p[:n])
		p = p[n:]
	}
}

// match reports whether p, one step of the file, is what was added.
func (s stepSums) match(p []byte, off int64) bool { return drivers.Checksum(0, p) == s[off/sumStep] }

// blocks returns the checksums of the blocks of the file, which has size bytes.
func (s stepSums) blocks(size int64) []uint32 {
	sums := make([]uint32, 0, (len(s)+stepsOfBlock-1)/stepsOfBlock)
	for i, sum := range s {
		if i%stepsOfBlock == 0 {
			sums = append(sums, sum)
			continue
		}
		last := &sums[len(sums)-1]
		*last = appended(*last, sum, min(sumStep, size-int64(i)*sumStep))
	}
	return sums
}

// appended returns the checksum of some content followed by n bytes, at most sumStep, from the checksums of
// both. A CRC-32C is affine in the checksum before it and in the content: for content p of n bytes,
//
//	Checksum(sum, p) = Checksum(sum, zeros) xor Checksum(0, zeros) xor Checksum(0, p)
//
// where zeros are n zero bytes.
func appended(sum, of uint32, n int64) uint32 {
	if n < sumStep {
		zeros := make([]byte, n)
		return drivers.Checksum(sum, zeros) ^ drivers.Checksum(0, zeros) ^ of
	}
	for i, shifted := range afterStep() {
		if sum>>i&1 == 1 {
			of ^= shifted
		}
	}
	return of
}

// afterStep returns, for each bit of a checksum, what that adds to the checksum after a step.
var afterStep = sync.OnceValue(func() (bits [32]uint32) {
	zeros := make([]byte, sumStep)
	for i := range bits {
		bits[i] = drivers.Checksum(1<<i, zeros) ^ drivers.Checksum(0, zeros)
	}
	return bits
})
