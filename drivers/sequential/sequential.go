// Package sequential detects sequential access. It distinguishes concurrent
// readers of one object, which have no names, by the positions that they reached.
package sequential

import "slices"

// A Stream is one sequential sequence of accesses.
type Stream[T any] struct {
	Next  int64 // the position after the furthest access
	Hits  int   // accesses that continued the stream
	Exact int   // those of them that began at Next
	Data  T     // for the caller
}

// A Tracker assigns accesses to streams. The zero value tracks nothing; Max must be
// set. It is not safe for concurrent use.
type Tracker[T any] struct {
	Max    int   // streams to remember; the least recently used one is forgotten
	Behind int64 // an access may begin this far before Next: concurrent requests overtake each other
	Ahead  int64 // and this far after it

	streams []*Stream[T] // the least recently used first
}

// Access records an access to the positions from start up to, but not including,
// end. It returns the stream that the access continues, or a new one, and reports
// whether it continues one. A stream that begins at start exactly has precedence
// over one within the tolerance.
func (t *Tracker[T]) Access(start, end int64) (s *Stream[T], continues bool) {
	i := slices.IndexFunc(t.streams, func(s *Stream[T]) bool { return start == s.Next })
	if i < 0 {
		i = slices.IndexFunc(t.streams, func(s *Stream[T]) bool {
			return start >= s.Next-t.Behind && start <= s.Next+t.Ahead
		})
	}
	if i < 0 {
		if len(t.streams) == t.Max {
			t.streams = slices.Delete(t.streams, 0, 1)
		}
		s = &Stream[T]{Next: end}
		t.streams = append(t.streams, s)
		return s, false
	}
	s = t.streams[i]
	if start == s.Next {
		s.Exact++
	}
	t.streams = append(slices.Delete(t.streams, i, i+1), s)
	s.Next = max(s.Next, end)
	s.Hits++
	return s, true
}

// Latest returns the stream of the last access, or nil if there was none.
func (t *Tracker[T]) Latest() *Stream[T] {
	if len(t.streams) == 0 {
		return nil
	}
	return t.streams[len(t.streams)-1]
}

// Streams returns the streams, the least recently used first. The slice must not be
// changed and is valid until the next Access or Reset.
func (t *Tracker[T]) Streams() []*Stream[T] { return t.streams }

// Reset forgets all streams.
func (t *Tracker[T]) Reset() { t.streams = nil }
