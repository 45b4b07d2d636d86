package torture

import (
	"context"
	"math"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/tiers"
)

// statusAttempts is how often a status is taken until no copy is made or removed meanwhile.
const statusAttempts = 10

// compareStatus compares what the status says of the tiers with their folders and file systems, and what it
// says of a bucket with what the server has counted. No fault has changed a tier in this cycle behind the
// daemon's back.
func (s *suite) compareStatus(ctx context.Context) {
	for range statusAttempts {
		before, err := s.daemon.status(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.oracle.untrue("no status: %v", err)
			return
		}
		var found []usage
		for _, t := range []string{s.daemon.memory, s.daemon.disk} {
			found = append(found, s.usageOf(t))
		}
		gets := s.requests()
		after, err := s.daemon.status(ctx)
		if err != nil || !idle(before, after) {
			continue
		}
		s.summary.Events["status compared"]++
		for i, t := range after.Tiers {
			if f := found[i]; t.UsedBytes < f.bytes || t.UsedBytes > f.bytes+f.foreignBytes || t.Files < f.files || t.Files > f.files+f.foreignFiles {
				s.oracle.untrue("tier %s: the status has %d bytes in %d files, the folder %+v", t.Name, t.UsedBytes, t.Files, f)
			}
			if t.UsedBytes > t.QuotaBytes {
				s.oracle.untrue("tier %s: the status has %d bytes of a quota of %d", t.Name, t.UsedBytes, t.QuotaBytes)
			}
			// The daemon rounds the size of each copy up to 4 KiB, and the file system to its block size.
			if t.UsedBytes-4096*t.Files > found[i].device {
				s.oracle.untrue("tier %s: the status has %d bytes, its file system %d", t.Name, t.UsedBytes, found[i].device)
			}
		}
		s.compareBucket(after, gets)
		return
	}
}

// idle reports whether all tiers were scanned, and no copy was made between two statuses.
func idle(before, after control.Status) bool {
	for i, t := range after.Tiers {
		b := before.Tiers[i]
		if t.Health == control.Scanning || t.Health == control.Down || t.UsedBytes != b.UsedBytes || t.Files != b.Files || t.QuotaBytes == 0 {
			return false
		}
	}
	return before.Fills.InFlight+after.Fills.InFlight == 0 && before.Placement.Placed == after.Placement.Placed
}

// deviceUse returns the bytes that the file system of a tier has in use. Some of btrfs has small files with
// its metadata.
func deviceUse(tier string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(tier, &st) != nil || st.Type == unix.BTRFS_SUPER_MAGIC {
		return math.MaxInt64
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize
}

// requests returns how many requests for content the bucket has got from this daemon.
func (s *suite) requests() int64 {
	if s.bucket == nil {
		return 0
	}
	return s.bucket.gets.Load() - s.gets
}

// compareBucket compares the requests that the daemon has counted with those of the server: it counts a
// request before it sends it, and bytes when it has received them. The server had gets before the status.
func (s *suite) compareBucket(status control.Status, gets int64) {
	requests := status.Source.Requests
	if s.bucket == nil || requests == nil {
		return
	}
	sent := s.bucket.sent.Load() - s.sent
	if requests.Gets < gets || requests.Bytes > sent || requests.Bytes < status.Source.Bytes {
		s.oracle.untrue("the status has %d bytes of the source, and %d requests with %d bytes; the server has %d with %d",
			status.Source.Bytes, requests.Gets, requests.Bytes, gets, sent)
	}
}

// A usage is what the files in a tier occupy.
type usage struct {
	device                     int64 // of the whole file system
	bytes, files               int64
	foreignBytes, foreignFiles int64 // of those that the daemon may take for files of others, which it does not count
}

func (s *suite) usageOf(tier string) (u usage) {
	u.device = deviceUse(tier)
	for _, path := range s.listCopies(tier) {
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil {
			continue
		}
		occupied := max(tiers.Allocated(st.Size), st.Blocks*drivers.BlockBytes)
		if s.foreign[path] == st.Ino {
			u.foreignBytes += occupied
			u.foreignFiles++
		} else {
			u.bytes += occupied
			u.files++
		}
	}
	return u
}

// setForeign notes files in a tier that the suite, or a power cut, has changed.
func (s *suite) setForeign(paths ...string) {
	for _, path := range paths {
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil {
			s.foreign[path] = st.Ino
		}
	}
}
