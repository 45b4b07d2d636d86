package metadata

import (
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// fileTimes are the modification time and the change time of a file or directory.
type fileTimes struct {
	mtime, ctime   int64 // seconds
	mtimeN, ctimeN uint32
}

// timesOf returns the times in info.
func timesOf(info drivers.Info) fileTimes {
	return fileTimes{
		info.Mtime.Unix(), info.Ctime.Unix(),
		uint32(info.Mtime.Nanosecond()), uint32(info.Ctime.Nanosecond()),
	}
}

// times returns the times in the attributes of e; e.attributes must be held.
func (e *Entry) times() fileTimes { return fileTimes{e.mtime, e.ctime, e.mtimeN, e.ctimeN} }

// newest returns the later of the two times.
func (t fileTimes) newest() time.Time {
	mtime, ctime := time.Unix(t.mtime, int64(t.mtimeN)), time.Unix(t.ctime, int64(t.ctimeN))
	if mtime.After(ctime) {
		return mtime
	}
	return ctime
}

// A stamp is what the times of a directory were before its cached names were validated. If the
// source still has these times later, no name was added, removed or renamed in the meantime. The
// change time reveals a change also if a program has set the modification time back.
type stamp struct {
	fileTimes
	seen int64 // when the times were read, or the names validated, in nanoseconds since 1970 by the local clock
}

// makeStamp returns the stamp of a directory whose times were just read.
func makeStamp(t fileTimes) stamp { return stamp{t, time.Now().UnixNano()} }

// stamp returns the stamp for a validation of the names in e that begins now.
func (e *Entry) stamp() stamp {
	mu := e.attributes()
	mu.RLock()
	defer mu.RUnlock()
	return makeStamp(e.times())
}

// proves reports whether no name has changed since s was made, if the source now has the times t.
// Times younger than window prove nothing: the next change may leave them as they are.
func (s stamp) proves(t fileTimes, window time.Duration) bool {
	return s.fileTimes == t && s.newest().Add(window).Before(time.Unix(0, s.seen))
}
