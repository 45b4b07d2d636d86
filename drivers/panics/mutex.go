package panics

import "sync"

// A Mutex is a sync.Mutex for data that many operations share. If a function panics between Lock
// and a deferred Unlock, the data may be half changed. The lock then stays locked, and Broken is
// closed.
type Mutex struct{ sync.Mutex }

// Unlock unlocks m, unless the function that has deferred it panics.
func (m *Mutex) Unlock() {
	if v := recover(); v != nil {
		breakLock(v)
	}
	m.Mutex.Unlock()
}

// An RWMutex is a sync.RWMutex that is otherwise like Mutex. A panic of a function that only holds
// the lock for reading breaks nothing.
type RWMutex struct{ sync.RWMutex }

// Unlock unlocks m, unless the function that has deferred it panics.
func (m *RWMutex) Unlock() {
	if v := recover(); v != nil {
		breakLock(v)
	}
	m.RWMutex.Unlock()
}

var (
	broken    = make(chan struct{})
	breakOnce = sync.OnceFunc(func() { close(broken) })
)

// Broken returns a channel that is closed when a function has panicked while it held a Mutex or an
// RWMutex. The process should end then.
func Broken() <-chan struct{} { return broken }

// breakLock closes Broken and continues the panic with v.
func breakLock(v any) {
	breakOnce()
	panic(v)
}
