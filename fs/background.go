package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// MaxBackground is the default of Config.MaxBackground.
//
// Nearly every READ of a page that is not in the page cache is a background request for the
// kernel, also if a process waits for it: it is readahead, of at least the page itself. Two
// numbers of the connection limit these for all files together, however many are without a reply.
//
//   - From congestion_threshold on, the kernel omits readahead of pages for which nobody waits yet.
//     It also takes a read(2) of a whole file as such, and then requests single pages: 27 requests
//     instead of 2 for 200 KB.
//   - From max_background on, every process that reads such a page waits, and cannot be
//     interrupted except by a fatal signal.
//
// While a part of the source hangs, each of its readers holds one or two of these requests, also
// after it was killed, since the kernel does not interrupt background requests. MaxBackground is
// therefore larger than the number of readers on a node, and mayDrop ends requests before there
// are as many. Each takes up to 1 MiB of the page cache, and a buffer of that size here.
const MaxBackground = 1024

// newRead returns the context of a READ. The caller calls end and then f.reading.Add(-1).
func (f *fileSystem) newRead(cancel <-chan struct{}, in *fuse.ReadIn) *request {
	f.reading.Add(1)
	r := f.newRequest(cancel)
	r.caller = callerOf(&in.InHeader)
	if in.Flags&syscall.O_DIRECT == 0 { // otherwise an error could reach the job
		thread, again := in.Pid, uint64(in.Size) > pageSize // in is not valid after the reply
		r.mayDrop = func() bool {
			return isGone(thread) || again && f.reading.Load() > int64(f.maxBackground/2)
		}
	}
	return r
}

// isGone reports whether there is no thread with this ID. The ID is 0 if the thread is in a PID
// namespace that this process cannot see.
func isGone(tid uint32) bool { return tid != 0 && unix.Kill(int(tid), 0) == unix.ESRCH }
