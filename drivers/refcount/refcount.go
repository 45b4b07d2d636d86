// Package refcount counts the users of a resource that the last of them closes.
package refcount

import "sync/atomic"

// A Count is a number of references. The zero value holds one reference, that of
// the owner. Methods may be called concurrently.
type Count struct {
	extra atomic.Int64 // references minus one; -1 after the last Release
}

// Acquire adds a reference and reports success. It fails after the last Release.
func (c *Count) Acquire() bool {
	for {
		n := c.extra.Load()
		if n < 0 {
			return false
		}
		if c.extra.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Last reports whether one reference is left.
func (c *Count) Last() bool { return c.extra.Load() == 0 }

// Release drops a reference and reports whether it was the last one. The caller
// to which it reports true closes the resource.
func (c *Count) Release() bool {
	n := c.extra.Add(-1)
	if n < -1 {
		panic("refcount: released too often")
	}
	return n == -1
}
