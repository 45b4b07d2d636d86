package tiers

import "github.com/milkweedfs/milkweed/drivers"

// occupied returns the bytes with which a committed copy counts. It has fewer blocks than its size needs if it has
// holes, or the file system compresses it or counts later. That does not let more copies in.
func occupied(copied drivers.Info) int64 {
	return max(Allocated(copied.Size), copied.Blocks*drivers.BlockBytes)
}

// rounded returns the bytes with which a committed copy of size bytes counts, unless it is odd. The tier must have
// been scanned.
func (s *space) rounded(size int64) int64 { return AllocatedIn(s.basis, size) }

// expected returns the bytes that a copy of size bytes is expected to occupy.
func (s *space) expected(size int64) int64 {
	return AllocatedIn(max(s.unit.Load(), allocationUnit), size)
}

// oddities are the committed copies that count with more or less than their rounded size, by inode number.
// The account remembers that, because their blocks may be others when they are removed.
type oddities map[uint64]oddity

type oddity struct {
	name  string // under which it was committed or found
	bytes int64  // of used, beyond the rounded size; negative: less
}

// add adds to what is odd about a copy.
func (o *oddities) add(inode uint64, name string, bytes int64) {
	bytes += o.take(inode)
	if bytes == 0 {
		return
	}
	if *o == nil {
		*o = make(oddities)
	}
	(*o)[inode] = oddity{name, bytes}
}

// take forgets what is odd about a copy, and returns it.
func (o oddities) take(inode uint64) int64 {
	bytes := o[inode].bytes
	delete(o, inode)
	return bytes
}

// takeNamed is take for a copy whose inode number is not known.
func (o oddities) takeNamed(name string) int64 {
	for inode, odd := range o {
		if odd.name == name {
			return o.take(inode)
		}
	}
	return 0
}

// settle makes a committed copy, which counts with its rounded size, count with what it occupies.
func (s *space) settle(name string, copied drivers.Info) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= s.oddities.take(copied.Inode) // of a copy that was lost, whose inode number this one has got
	odd := occupied(copied) - s.rounded(copied.Size)
	s.used += odd
	s.oddities.add(copied.Inode, name, odd)
}

// returns tells what the removal of a copy returns to the account: nothing if other names share its storage. The
// caller removes the copy after that, since another one may get its inode number then, and calls keep if that fails.
func (s *space) returns(name string, copied drivers.Info) (bytes int64, keep func()) {
	if copied.Names > 1 {
		return 0, func() {}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	odd := s.oddities.take(copied.Inode)
	return s.rounded(copied.Size) + odd, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.oddities.add(copied.Inode, name, odd)
	}
}

// lost takes a copy that is missing off the account.
func (s *space) lost(name string, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= s.rounded(size) + s.oddities.takeNamed(name)
	s.files--
}
