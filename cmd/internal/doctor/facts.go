package doctor

import (
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
)

// Facts describe a running mount. Facts that could not be had are missing, and Missing says why.
type Facts struct {
	Version  string            // of this program
	Status   control.Status    // of the daemon
	Settings map[string]string // the configuration of the mount, by key
	Process  Process
	Tiers    []Storage // of Status.Tiers, in their order
	Source   Source
	Linked   string               // if Status.GenerationGone: the generation that the link of the source names, or ""
	Peers    []control.PeerAnswer // what the other nodes have answered

	ReadAhead      int64  // bytes that the kernel reads ahead on the mount; 0 if not known
	ReadAheadFile  string // the file that sets it, in KiB
	Unsynchronized bool   // the kernel says that the clock of this machine is not synchronized

	Missing []Missing
}

// A Missing fact could not be had.
type Missing struct {
	Subject string // as that of a Finding
	Err     error
}

// A Process is the daemon as its kernel sees it. It is the zero value if it is not known.
type Process struct {
	Known       bool
	Open        int    // descriptors that are open
	Soft, Hard  uint64 // limits of open descriptors
	Threads     int64  // that it may still make; math.MaxInt64: no limit
	ThreadLimit string // the limit of threads
	Limits      []check.Limit
	Memory      int64 // bytes that the control groups permit; math.MaxInt64: no limit
	MemoryLeft  int64 // bytes of these that are left
}

// A Storage is the file system of a tier.
type Storage struct {
	Known     bool
	Device    uint64 // equal for tiers on one file system
	Size      int64  // bytes; 0 if it does not report any
	Available int64  // bytes that this user may still use
	Err       error  // why it is not known; it matches ErrNoAnswer if the file system hangs
}

// A Source is what a few operations on the source of the mount have shown. This process makes
// them itself, without the rate limits and the caches of the daemon. It makes none on a bucket.
type Source struct {
	Files  int           // that were opened and read
	Open   time.Duration // the median time to open one
	Read   time.Duration // the median time of its first read, of at most 4 KiB
	Ahead  time.Duration // by how much a change time was in the future, at most
	Future string        // the file that has this change time
	Image  string        // why its files may change without another size or time; "": they do not
	Links  check.Links   // that lead out of the mount
	Gone   bool          // its path does not exist where the daemon runs
	Empty  bool          // its path leads to an empty directory
	Err    error         // why there is nothing; it matches ErrNoAnswer if the source hangs
}

// slowest returns the time that an operation takes.
func (s Source) slowest() time.Duration { return max(s.Open, s.Read) }

// opens returns the number of opens and the sizes of the opened files, of all levels together.
func (f *Facts) opens() (n, bytes int64) {
	for level, modes := range f.Status.Opens {
		for mode, opens := range modes {
			n += opens
			bytes += f.Status.OpenedBytes[level][mode]
		}
	}
	return n, bytes
}

// lastEpoch returns the last epoch that has ended, and whether another one was before it. Mixed
// ones do not count. It is nil if there is none.
func (f *Facts) lastEpoch() (e *control.Epoch, later bool) {
	for i := range f.Status.Epochs {
		if now := &f.Status.Epochs[i]; now.Ended && !now.Mixed {
			e = now
		}
	}
	return e, e != nil && f.Status.EpochsEnded > 1
}

// misses returns the opens of an epoch that no copy and no other node served, and all opens. Opens of
// copies in flight do not count while there are lazy ones, which may have had what was read.
func (f *Facts) misses(e *control.Epoch) (missed, all int64) {
	for _, o := range e.Opens {
		all += o.Opens
		if o.Level == control.SourceLevel || o.Level == control.FillLevel && f.Status.Fills.Lazy == 0 {
			missed += o.Opens
		}
	}
	return missed, all
}
