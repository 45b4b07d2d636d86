// Package panics contains panics: it turns the panic of one operation into an error of that
// operation, logs it with its stack, and counts it. A panic that nothing contains ends the
// process, as always in Go.
//
// A lock of package sync that is released by defer is released by a panic too. Data that operations
// share is guarded by a Mutex or RWMutex of this package instead: a panic that may have left the data
// half changed ends the process.
package panics

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// count is the number of panics that were contained.
var count atomic.Int64

// Count returns the number of panics that were contained since the start of the process.
func Count() int64 { return count.Load() }

// An Error is the error of an operation that has panicked.
type Error struct{ Value any } // Value was passed to panic

func (e *Error) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Note logs a panic by slog.Default, and counts it. The caller has recovered v in the function that
// calls Note, so that the stack is that of the panic. Note returns the error of the operation.
func Note(v any) error {
	count.Add(1)
	slog.Error("panic", "value", fmt.Sprint(v), "stack", string(debug.Stack()))
	return &Error{v}
}

// Catch is deferred by an operation that returns an error. If the operation panics, Catch sets
// *err.
func Catch(err *error) {
	if v := recover(); v != nil {
		*err = Note(v)
	}
}

// Do calls f. If f panics, Do returns an error.
func Do(f func() error) (err error) {
	defer Catch(&err)
	return f()
}

// Contain is deferred by a goroutine for whose result no other one waits.
func Contain() {
	if v := recover(); v != nil {
		Note(v)
	}
}

// pause is the time between a panic and the next call of a function that Repeat calls.
const pause = time.Second

// Repeat calls f. If f panics, Repeat calls it again after a second, unless ctx is done.
func Repeat(ctx context.Context, f func()) {
	for Do(func() error { f(); return nil }) != nil {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}
