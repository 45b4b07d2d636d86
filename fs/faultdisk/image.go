package faultdisk

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Unit is the size of the smallest part of a write that a power cut loses, in bytes.
const Unit = 4096

// Faults describes how a disk fails. The zero value is a disk that works. The
// probabilities are between 0 and 1.
type Faults struct {
	ReadError  float64       `json:"read_error,omitempty"`  // probability that a read fails with EIO
	WriteError float64       `json:"write_error,omitempty"` // probability that a write fails with EIO
	FlushError float64       `json:"flush_error,omitempty"` // probability that a flush fails with EIO; nothing is flushed
	Tear       float64       `json:"tear,omitempty"`        // probability that a write of several units stores only the first ones and fails with EIO
	Full       bool          `json:"full,omitempty"`        // writes to units that were never written fail with ENOSPC, as in a thin pool that is full
	Delay      time.Duration `json:"delay,omitempty"`       // of each operation
	Hang       bool          `json:"hang,omitempty"`        // operations block until the next SetFaults or PowerOff
	Seed       uint64        `json:"seed,omitempty"`        // of the random choices
}

// Stats counts what an Image did.
type Stats struct {
	Reads     int64 `json:"reads"`
	Writes    int64 `json:"writes"`
	Flushes   int64 `json:"flushes"`
	Failed    int64 `json:"failed"`    // operations that failed on request
	Torn      int64 `json:"torn"`      // writes of which only a prefix was stored
	Lost      int64 `json:"lost"`      // units that power cuts lost
	Survived  int64 `json:"survived"`  // unflushed units that power cuts kept
	Unflushed int64 `json:"unflushed"` // units in the write cache now
}

// An Image is a disk. All methods may be called concurrently.
type Image struct {
	size int64

	mu       sync.Mutex // guards the following
	base     *os.File   // what has reached the medium
	written  []bool     // by unit: was ever written
	cache    map[int64]*[Unit]byte
	faults   Faults
	rng      *rand.Rand
	changed  chan struct{} // closed when faults or off change
	off      bool          // there is no power
	counters Stats
}

// NewImage returns a disk of size bytes, a multiple of Unit, that is stored in base. base
// must be empty or the file of an earlier Image; then all units count as written.
func NewImage(base *os.File, size int64) (*Image, error) {
	if size <= 0 || size%Unit != 0 {
		return nil, fmt.Errorf("image of %d bytes: not a multiple of %d", size, Unit)
	}
	info, err := base.Stat()
	if err != nil {
		return nil, err
	}
	if err := base.Truncate(size); err != nil {
		return nil, err
	}
	i := &Image{size: size, base: base, written: make([]bool, size/Unit), cache: make(map[int64]*[Unit]byte)}
	if info.Size() > 0 {
		for u := range i.written {
			i.written[u] = true
		}
	}
	i.setFaults(Faults{})
	return i, nil
}

// Size returns the size of the disk in bytes.
func (i *Image) Size() int64 { return i.size }

// Stats returns the counts so far.
func (i *Image) Stats() Stats {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := i.counters
	s.Unflushed = int64(len(i.cache))
	return s
}

// SetFaults replaces the faults. Operations that hang continue with the new ones.
func (i *Image) SetFaults(f Faults) {
	i.mu.Lock()
	defer i.mu.Unlock()
	close(i.changed)
	i.setFaults(f)
}

func (i *Image) setFaults(f Faults) {
	i.faults = f
	i.rng = rand.New(rand.NewPCG(f.Seed, 1))
	i.changed = make(chan struct{})
}

// begin waits as long as the disk hangs, and for its delay. It returns with i.mu locked,
// also with an error.
func (i *Image) begin() error {
	i.mu.Lock()
	for i.faults.Hang && !i.off {
		changed := i.changed
		i.mu.Unlock()
		<-changed
		i.mu.Lock()
	}
	if d := i.faults.Delay; d > 0 && !i.off {
		i.mu.Unlock()
		time.Sleep(d)
		i.mu.Lock()
	}
	if i.off {
		return unix.EIO
	}
	return nil
}

// strikes decides whether a fault of probability p happens. i.mu must be held.
func (i *Image) strikes(p float64) bool {
	if p == 0 || i.rng.Float64() >= p {
		return false
	}
	i.counters.Failed++
	return true
}

// ReadAt reads like io.ReaderAt. The error is a syscall.Errno.
func (i *Image) ReadAt(p []byte, off int64) (int, error) {
	err := i.begin()
	defer i.mu.Unlock()
	if err != nil {
		return 0, err
	}
	i.counters.Reads++
	if i.strikes(i.faults.ReadError) {
		return 0, unix.EIO
	}
	p = p[:max(0, min(int64(len(p)), i.size-off))]
	if _, err := i.base.ReadAt(p, off); err != nil {
		return 0, unix.EIO
	}
	for u := off / Unit; u*Unit < off+int64(len(p)); u++ {
		if data := i.cache[u]; data != nil {
			if at := u*Unit - off; at >= 0 {
				copy(p[at:], data[:])
			} else {
				copy(p, data[-at:])
			}
		}
	}
	return len(p), nil
}

// WriteAt writes to the cache, like io.WriterAt. The error is a syscall.Errno.
func (i *Image) WriteAt(p []byte, off int64) (int, error) {
	err := i.begin()
	defer i.mu.Unlock()
	if err != nil {
		return 0, err
	}
	i.counters.Writes++
	if off < 0 || off+int64(len(p)) > i.size {
		return 0, unix.ENOSPC
	}
	if i.faults.Full && !i.allWritten(off, int64(len(p))) {
		i.counters.Failed++
		return 0, unix.ENOSPC
	}
	if i.strikes(i.faults.WriteError) {
		return 0, unix.EIO
	}
	if units := int64(len(p)) / Unit; units > 1 && i.strikes(i.faults.Tear) {
		i.counters.Torn++
		i.store(p[:Unit*(1+i.rng.Int64N(units-1))], off)
		return 0, unix.EIO
	}
	if err := i.store(p, off); err != nil {
		return 0, unix.EIO
	}
	return len(p), nil
}

func (i *Image) allWritten(off, n int64) bool {
	return !slices.Contains(i.written[off/Unit:(off+n+Unit-1)/Unit], false)
}

// store writes p to the cache. i.mu must be held.
func (i *Image) store(p []byte, off int64) error {
	for len(p) > 0 {
		u, at := off/Unit, off%Unit
		data := i.cache[u]
		if data == nil {
			data = new([Unit]byte)
			if at != 0 || len(p) < Unit {
				if _, err := i.base.ReadAt(data[:], u*Unit); err != nil {
					return err
				}
			}
			i.cache[u] = data
		}
		i.written[u] = true
		n := copy(data[at:], p)
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// Flush writes the cache to the medium. The error is a syscall.Errno.
func (i *Image) Flush() error {
	err := i.begin()
	defer i.mu.Unlock()
	if err != nil {
		return err
	}
	i.counters.Flushes++
	if i.strikes(i.faults.FlushError) || i.settle() != nil {
		return unix.EIO
	}
	return nil
}

// settle moves the cache to the medium. i.mu must be held.
func (i *Image) settle() error {
	for u, data := range i.cache {
		if _, err := i.base.WriteAt(data[:], u*Unit); err != nil {
			return err
		}
		delete(i.cache, u)
	}
	return nil
}

// PowerOff cuts the power. Of the units that were not flushed, each survives with
// probability keep; the choice depends on seed. Until PowerOn, all operations fail with
// EIO.
func (i *Image) PowerOff(keep float64, seed uint64) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.off = true
	close(i.changed)
	i.changed = make(chan struct{})
	rng := rand.New(rand.NewPCG(seed, 2))
	units := make([]int64, 0, len(i.cache))
	for u := range i.cache {
		units = append(units, u)
	}
	slices.Sort(units)
	for _, u := range units {
		if rng.Float64() >= keep {
			delete(i.cache, u)
			i.counters.Lost++
		} else {
			i.counters.Survived++
		}
	}
	return i.settle()
}

// PowerOn ends a power cut and all other faults.
func (i *Image) PowerOn() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.off = false
	i.setFaults(Faults{})
}

// Flip inverts one bit of the stored image, as a medium does that decays: no operation of
// the file system reports it. bit is between 0 and 7.
func (i *Image) Flip(off int64, bit int) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if off < 0 || off >= i.size {
		return unix.EINVAL
	}
	if data := i.cache[off/Unit]; data != nil {
		data[off%Unit] ^= 1 << bit
		return nil
	}
	var b [1]byte
	if _, err := i.base.ReadAt(b[:], off); err != nil {
		return err
	}
	b[0] ^= 1 << bit
	_, err := i.base.WriteAt(b[:], off)
	return err
}

// Forget makes the disk empty and thin again: no unit counts as written. The caller
// formats it next.
func (i *Image) Forget() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	clear(i.cache)
	clear(i.written)
	if err := i.base.Truncate(0); err != nil {
		return err
	}
	return i.base.Truncate(i.size)
}
