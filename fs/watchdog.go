package fs

import (
	"bytes"
	"runtime/pprof"
	"time"
)

// Stuck describes the requests in flight that have waited for long.
type Stuck struct {
	Requests  int64         // requests in flight that are older than a limit
	Oldest    time.Duration // the age of the oldest request in flight
	Abandoned time.Duration // how long a request has gone on after its interruption, the longest
}

// Stuck describes the requests in flight. An interruption counts from the first call that sees it.
func (m *Mount) Stuck(limit time.Duration) (s Stuck) {
	now := time.Now()
	m.fs.inFlight.each(func(r *request) {
		age := now.Sub(r.began)
		s.Oldest = max(s.Oldest, age)
		if age > limit {
			s.Requests++
		}
		select {
		case <-r.cancel:
			r.interrupted.CompareAndSwap(nil, &now)
			s.Abandoned = max(s.Abandoned, now.Sub(*r.interrupted.Load()))
		default:
		}
	})
	return s
}

// maxStacks is the size of what Stacks returns, in bytes.
const maxStacks = 64 << 10

// Stacks returns the stacks of the goroutines that handle requests. Equal ones are counted.
func Stacks() string {
	var all, ours bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&all, 1)
	for stack := range bytes.SplitSeq(all.Bytes(), []byte("\n\n")) {
		if bytes.Contains(stack, []byte("/fs.(*fileSystem).")) && ours.Len()+len(stack) < maxStacks {
			ours.Write(stack)
			ours.WriteString("\n\n")
		}
	}
	return ours.String()
}
