package posix

import "github.com/milkweedfs/milkweed/drivers"

// sumStep is the number of bytes that one checksum of runningSums covers: what a read of a copy in
// flight reads at least.
const sumStep = 64 << 10

// runningSums has the checksums of a file that is being written: those of its blocks, and, for each
// step, that of its block up to the end of the step. With it, a step is compared without the
// rest of its block. A step may be added while others are compared.
type runningSums []uint32

// stepsOfBlock is the number of steps in a block.
const stepsOfBlock = drivers.ChecksumBlock / sumStep

func newRunningSums(size int64) runningSums { return make(runningSums, (size+sumStep-1)/sumStep) }

// add adds p, which begins with a block and has whole blocks, or the rest of the file.
func (s runningSums) add(p []byte, off int64) {
	for i := off / sumStep; len(p) > 0; i++ {
		n := min(sumStep, len(p))
		s[i] = drivers.Checksum(s.before(i), p[:n])
		p = p[n:]
	}
}

// before returns the checksum of the block of step i up to that step.
func (s runningSums) before(i int64) uint32 {
	if i%stepsOfBlock == 0 {
		return 0
	}
	return s[i-1]
}

// match reports whether p, one step of the file, is what was added.
func (s runningSums) match(p []byte, off int64) bool {
	i := off / sumStep
	return drivers.Checksum(s.before(i), p) == s[i]
}

// blocks returns the checksums of the blocks.
func (s runningSums) blocks() []uint32 {
	sums := make([]uint32, 0, (len(s)+stepsOfBlock-1)/stepsOfBlock)
	for end := stepsOfBlock; len(s) > 0; s = s[min(end, len(s)):] {
		sums = append(sums, s[min(end, len(s))-1])
	}
	return sums
}
