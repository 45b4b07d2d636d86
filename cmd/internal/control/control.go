// Package control is how a running Milkweed is asked and told things: HTTP on a
// unix socket that belongs to one mount. The daemon serves it; the subcommands,
// and whoever has a curl, are its clients:
//
//	GET  /v1/status            a Status
//	GET  /v1/where?path=NAME   a Location; NAME is percent-encoded bytes
//	POST /v1/warmup            a WarmupRequest; answers with a line of JSON for
//	                           each WarmupEvent, the last of which ends it
//	POST /v1/shutdown          begins an orderly end, and answers at once
//	GET  /metrics              the same in the format of Prometheus
//
// An answer that is not 2xx has a Failure as its body. The socket is 0600 in a
// folder that is 0700, so that only its owner and root may ask.
package control

import (
	"context"
	"errors"
	"io/fs"
	"unicode/utf8"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// A Daemon is what a Server speaks for. All methods may be called concurrently.
type Daemon interface {
	// Status tells what is so now. It is quick, and asks no tier and no
	// source anything.
	Status(ctx context.Context) Status

	// Where tells where one file is. The name is below the mount point, in
	// the form of drivers.ValidName. The error for a name that is not there
	// matches fs.ErrNotExist.
	Where(ctx context.Context, name string) (Location, error)

	// Warmup places the files below the names, in the form of
	// drivers.ValidName, and returns when they are placed or cannot be. It
	// calls progress now and then, never concurrently, and once more with
	// what is exact before it returns. Files that fail are in the Progress;
	// the error is for what ends the whole: ctx, or a name that is not there.
	Warmup(ctx context.Context, names []string, progress func(Progress)) error

	// Shutdown begins an orderly end and does not wait for it.
	Shutdown()
}

// A Progress tells how far a warm-up is. When it has ended, FilesTotal is the
// sum of FilesDone, FilesSkipped and FilesFailed, and so it is with the bytes.
type Progress struct {
	Scanning     bool        `json:"scanning"`         // the totals still grow
	FilesTotal   int64       `json:"files_total"`      // files found so far
	FilesDone    int64       `json:"files_done"`       // of them, files that a tier holds
	FilesSkipped int64       `json:"files_skipped"`    // of them, files that no tier has room for
	FilesFailed  int64       `json:"files_failed"`     // of them, files that could not be copied
	BytesTotal   int64       `json:"bytes_total"`      // the sizes of the files found so far
	BytesDone    int64       `json:"bytes_done"`       // of them, bytes that a tier holds
	BytesSkipped int64       `json:"bytes_skipped"`    // of them, the sizes of the files skipped
	BytesFailed  int64       `json:"bytes_failed"`     // of them, the sizes of the files failed
	Errors       []FileError `json:"errors,omitempty"` // the first few of the files failed
}

// A FileError is why one file could not be copied.
type FileError struct {
	Path  string `json:"path"`  // below the mount point
	Error string `json:"error"` // what went wrong
}

// A WarmupRequest is the body of POST /v1/warmup. Names are bytes, base64 in
// the JSON, because a name need not be UTF-8.
type WarmupRequest struct {
	Names [][]byte `json:"names"`
}

// A WarmupEvent is one line of the answer to POST /v1/warmup.
type WarmupEvent struct {
	Progress Progress `json:"progress"`
	End      bool     `json:"end,omitempty"`     // this is the last line
	Failure  *Failure `json:"failure,omitempty"` // in the last line: what ended the warm-up early
}

// A Failure is an error that travels from one process to another.
type Failure struct {
	Code     exit.Code `json:"code"`                // what a command exits with for it
	Message  string    `json:"message"`             // what is wrong, on one line
	Remedy   string    `json:"remedy,omitempty"`    // the next step
	NotExist bool      `json:"not_exist,omitempty"` // it matches fs.ErrNotExist
}

// Fail returns err as it travels.
func Fail(err error) Failure {
	f := Failure{Code: exit.Of(err), Message: err.Error(), NotExist: errors.Is(err, fs.ErrNotExist)}
	// A remedy can be split off where it ends the text: not when another error
	// has wrapped this one and said more.
	if e, ok := errors.AsType[*exit.Error](err); ok && e.Error() == f.Message {
		f.Message, f.Remedy = e.Err.Error(), e.Remedy
	}
	return f
}

// Err returns the error that arrived: an *exit.Error.
func (f Failure) Err() error {
	code := f.Code
	if code == exit.OK {
		code = exit.Failure
	}
	return &exit.Error{Code: code, Err: remoteError{f}, Remedy: f.Remedy}
}

// A remoteError is an error of another process.
type remoteError struct{ f Failure }

func (e remoteError) Error() string {
	if e.f.Message == "" {
		return "no reason given"
	}
	return e.f.Message
}

func (e remoteError) Is(target error) bool { return target == fs.ErrNotExist && e.f.NotExist }

// printable returns s, which may be any bytes, and those bytes where JSON
// cannot hold them as a string.
func printable(s string) (text string, bytes []byte) {
	if utf8.ValidString(s) {
		return s, nil
	}
	return s, []byte(s) // encoding/json writes U+FFFD for what is not UTF-8
}

// exact undoes printable.
func exact(text string, bytes []byte) string {
	if bytes != nil {
		return string(bytes)
	}
	return text
}
