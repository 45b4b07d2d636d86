// Package observe records what the readers of a mount do and what they wait for: the epochs of a job, the
// times by cause, and traces of single operations. Package placement calls it. No decision depends on it,
// except that a file which is opened again does not show which files a job reads (Opened).
package observe

import "sync/atomic"

// A Recorder records for the readers of one mount. Its methods may be called concurrently. A nil Recorder,
// which is that of readers on other nodes, records no waits and traces nothing: it has IsTracing, Latency,
// Source, Peers, Fill and Tier.
type Recorder struct {
	waits  waits
	epochs epochs
	traces traces
}

// New makes a recorder. totals returns the totals now. It is called under a lock of the recorder: it
// must not call Opened or Epochs.
func New(totals func() Totals) *Recorder {
	return &Recorder{epochs: epochs{totals: totals}}
}

// Opened records an open of the file with an ID. If it only continues to read the file, it does not
// count as another open. again reports that it does not show which files a job reads: it was opened
// before, and that was not a moment ago.
func (r *Recorder) Opened(id uint64, continues bool) (again bool) {
	return r.epochs.opened(id, continues)
}

// Epochs returns the last epochs, the oldest first, and the one that goes on. ended is the number of
// epochs that have ended, without the mixed ones.
func (r *Recorder) Epochs() (all []Epoch, ended int64) { return r.epochs.list() }

// Opens counts how often files were opened, and what was read of them.
type Opens struct {
	Files int64 // opens
	Bytes int64 // the sizes of the files
	Read  int64 // bytes that readers got from the daemon; 0 of opens that the kernel reads directly
}

// Add counts the open of a file of size bytes. It may be called concurrently.
func (o *Opens) Add(size int64) {
	atomic.AddInt64(&o.Files, 1)
	atomic.AddInt64(&o.Bytes, size)
}

// AddRead counts a read of n bytes. It may be called concurrently.
func (o *Opens) AddRead(n int64) { atomic.AddInt64(&o.Read, n) }

// Load returns the counters now.
func (o *Opens) Load() Opens {
	return Opens{atomic.LoadInt64(&o.Files), atomic.LoadInt64(&o.Bytes), atomic.LoadInt64(&o.Read)}
}

// minus returns the difference of two counts.
func (o Opens) minus(earlier Opens) Opens {
	return Opens{o.Files - earlier.Files, o.Bytes - earlier.Bytes, o.Read - earlier.Read}
}
