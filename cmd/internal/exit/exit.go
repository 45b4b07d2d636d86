// Package exit is how a command of Milkweed ends: the documented exit codes,
// and the error that carries one from where a thing was found to main.
package exit

import "errors"

// A Code is the exit status of a command. The README and the manual pages list
// them; scripts depend on them.
type Code int

// The exit codes.
const (
	OK         Code = 0 // done
	Failure    Code = 1 // something unexpected
	Usage      Code = 2 // wrong flag, argument or configuration
	Source     Code = 3 // the source is missing or cannot be read
	MountPoint Code = 4 // the mount point is missing, not empty, in use or stale
	Tier       Code = 5 // a tier cannot be used
	Fuse       Code = 6 // FUSE is not there, or does not permit what was asked
	NotMounted Code = 7 // no Milkweed is mounted there, or it does not answer
	Incomplete Code = 8 // the work was done in part: some files failed
)

// An Error is an error for the user: what is wrong, named; what to do about
// it; and the code to exit with.
type Error struct {
	Code   Code
	Err    error  // what is wrong, on one line
	Remedy string // the next step, a sentence; may be empty
}

func (e *Error) Error() string {
	if e.Remedy == "" {
		return e.Err.Error()
	}
	return e.Err.Error() + "\n  " + e.Remedy
}

func (e *Error) Unwrap() error { return e.Err }

// Of returns the code that a command which ended with err exits with.
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
