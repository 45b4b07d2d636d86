// Package exit defines the exit codes of the commands of Milkweed, and an error type that
// carries one.
package exit

import "errors"

// A Code is the exit status of a command. Scripts depend on the codes: docs/operations.md and
// the manual pages list them.
type Code int

// The exit codes.
const (
	OK         Code = 0 // done
	Failure    Code = 1 // something unexpected
	Usage      Code = 2 // wrong flag, argument or configuration
	Source     Code = 3 // the source is missing or cannot be read, or so much of it is missing that no copy was removed
	MountPoint Code = 4 // the mount point is missing, not empty, in use or stale
	Tier       Code = 5 // a tier cannot be used
	Fuse       Code = 6 // FUSE is missing, or the system does not permit what was requested
	NotMounted Code = 7 // no Milkweed is mounted there, or it does not answer
	Incomplete Code = 8 // some files failed, copies were corrupt, keys were not reloaded, the work was interrupted, or doctor found a problem
	Peers      Code = 9 // the peers cannot be used: their roster, their secret, or the address
)

// An Error is an error for the user, with a remedy and the exit code.
type Error struct {
	Code   Code
	Err    error  // the problem, on one line
	Remedy string // a sentence: how to solve it; may be empty
}

func (e *Error) Error() string {
	if e.Remedy == "" {
		return e.Err.Error()
	}
	return e.Err.Error() + "\n  " + e.Remedy
}

func (e *Error) Unwrap() error { return e.Err }

// Of returns the exit code of a command that returned err.
func Of(err error) Code {
	if err == nil {
		return OK
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Failure
}
