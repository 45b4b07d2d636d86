// Package control is the control interface of a daemon: HTTP on a Unix socket, one for each
// mount. The daemon serves it. The subcommands are clients, and so is curl:
//
//	GET  /v1/ready             responds with status 200 when the daemon has a mount
//	GET  /v1/status            responds with a Status
//	GET  /v1/config            responds with an array of config.Setting
//	POST /v1/reload            reads the configuration again; responds with a Reloaded; with
//	                           ?dry-run=true nothing changes
//	GET  /v1/where?path=NAME   responds with a Location; NAME is percent-encoded bytes
//	GET  /v1/trace             responds with a stream of TraceLines of the opens and reads whose path
//	                           matches path= (TraceFilter.Matches) and that took slow= or longer
//	POST /v1/estimate          takes a NamesRequest; responds with a stream of WarmupEvents about
//	                           what a warm-up would do
//	POST /v1/warmup            takes a NamesRequest; responds with a stream of WarmupEvents,
//	                           one line of JSON each; the last has End set
//	POST /v1/refresh           takes a NamesRequest; responds with a stream of RefreshEvents
//	POST /v1/evict             takes a NamesRequest; responds with a stream of Events of
//	                           placement.DropReport
//	POST /v1/scrub             takes a ScrubRequest; responds with a stream of ScrubEvents, as
//	                           warmup does, or with status 202 if Background is set
//	POST /v1/plan              takes paths, each ended by a NUL, relative to the mount point or
//	                           below it: the files that a job will open, in that order. They are
//	                           the entries from= (by default 0), and so on, of epoch= of
//	                           stream=, and replace those that were sent before from there on;
//	                           lead= is how many files the loader requests before the job uses
//	                           them. Responds with a placement.PlanResult
//	GET  /v1/plan              responds with a Plan
//	DELETE /v1/plan            drops stream=, or the whole plan without it
//	GET  /v1/peers             responds with a PeerReport, after it asked each node
//	POST /v1/shutdown          starts the shutdown of the daemon, and responds at once; with
//	                           ?abort=true also while the mount is in use
//	GET  /metrics              responds with the metrics, for Prometheus
//	GET  /debug/pprof/         responds with profiles of the daemon, as net/http/pprof does
//
// The body of a response with a status other than 2xx is a Failure. Before the daemon has a mount, that of all
// requests but those for a shutdown and for profiles has the status 503 and says what the mount waits for.
//
// The extended attribute user.milkweed.socket of the root of the mount is the path of the socket, which is in a
// directory that only its owner and root can list and change. The mode of the socket is 0600, or 0666 for a mount that
// other users may read: they may make the requests of a Guest, on connections that they make within a minute after
// they have read that attribute. All other requests of other users are refused.
package control

import (
	"context"
	"errors"
	"io/fs"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/placement"
)

// A Daemon answers the requests to a Server. Its methods may be called concurrently.
type Daemon interface {
	Guest

	// Settings returns the configuration that is in effect.
	Settings() []config.Setting

	// Reload reads the configuration again, and applies what a mount can take over while it is used.
	// With dryRun it changes nothing. If the configuration is invalid, that is the error, and nothing
	// changes.
	Reload(ctx context.Context, dryRun bool) (Reloaded, error)

	// Trace calls show with the opens and reads that the filter selects, as placement.Handler.Trace
	// has them, until ctx is done or show returns an error. It calls show first with the mode, when
	// the trace has begun. If too many traces are in progress, the error is an *exit.Error.
	Trace(ctx context.Context, filter TraceFilter, show func(TraceLine) error) error

	// Estimate finds what Warmup would do, as placement.Handler.Estimate does, and copies nothing. Its
	// calls and its error are those of Warmup.
	Estimate(ctx context.Context, names []string, progress func(Progress)) error

	// Warmup places the files below the names, which have the form of drivers.ValidName. It
	// returns when each file is placed, skipped or failed. It calls progress from time to
	// time, never concurrently, and once with the exact result before it returns. The
	// Progress has the files that failed. Warmup returns an error only if ctx ends it, or if
	// a name does not exist.
	Warmup(ctx context.Context, names []string, progress func(Progress)) error

	// Refresh compares what is cached below the names, which have the form of
	// drivers.ValidName, with the source. It returns when every later open sees the state of
	// the source. It calls progress from time to time, never concurrently, and once with the
	// exact result before it returns. The Refreshed has the names that failed. Refresh returns
	// an error only if ctx ends it, if the source is gone, or if a name does not exist.
	//
	// With opts.Prune, it then calls placement.Handler.Prune, whose errors it returns, too.
	Refresh(ctx context.Context, names []string, opts RefreshOptions, progress func(Refreshed)) error

	// Evict removes the copies of the files at and below the names, which have the form of
	// drivers.ValidName, as placement.Handler.Drop does. It calls progress from time to time, never
	// concurrently, and once with the result before it returns. It is an error if there is no copy
	// and a name does not exist.
	Evict(ctx context.Context, names []string, progress func(placement.DropReport)) error

	// Generations returns the generations that the source and the tiers have.
	Generations(ctx context.Context) (Generations, error)

	// Switch makes another generation the current one. It calls progress from time to time, never
	// concurrently, and with Done set before it returns nil. If ctx is done before the switch, there
	// is none.
	Switch(ctx context.Context, req SwitchRequest, progress func(Switched)) error

	// Prepare fills the tiers with the files of a generation, as placement.Handler.Prepare does. It
	// calls progress from time to time, never concurrently, and once with the result before it returns.
	Prepare(ctx context.Context, req PrepareRequest, progress func(Prepared)) error

	// DropGeneration removes the copies of a generation that is not the current one, as
	// placement.Handler.Drop does.
	DropGeneration(ctx context.Context, generation string, progress func(placement.DropReport)) error

	// Scrub verifies copies, as placement.Handler.Scrub does. It calls progress from time to
	// time, never concurrently, and once with the result before it returns. If another scrub
	// is in progress, the error is an *exit.Error.
	Scrub(ctx context.Context, req ScrubRequest, progress func(placement.ScrubReport)) error

	// StartScrub starts a scrub that goes on when StartScrub has returned. The error is as
	// for Scrub.
	StartScrub(req ScrubRequest) error

	// Nodes returns the number of nodes that share their tiers, and the number of this one, which is
	// -1 if it is not in the roster. Without peers, it is node 0 of 1.
	Nodes() (nodes, self int)

	// StartExchange is placement.Handler.StartExchange.
	StartExchange(ctx context.Context, cfg placement.ExchangeConfig, epoch, reader, readers int) error

	// BeginEpoch is placement.Handler.BeginEpoch.
	BeginEpoch(id string, epoch, reader, readers int) error

	// Exchange returns the state of the exchange.
	Exchange() placement.ExchangeStats

	// StopExchange ends the exchange, if there is one.
	StopExchange()

	// Peers asks each node of the roster about itself. Nodes that do not answer have a Problem.
	// Without peers, the report has no nodes.
	Peers(ctx context.Context) (PeerReport, error)

	// Shutdown starts the shutdown of the daemon, and does not wait for its end. With abort, it
	// ends the mount in all mount namespaces: requests in flight and later ones fail.
	Shutdown(abort bool)
}

// Progress is the state of a warm-up. At its end, FilesTotal is the sum of FilesDone,
// FilesSkipped, FilesElsewhere and FilesFailed, and BytesTotal is the sum of the corresponding sizes.
type Progress struct {
	Scanning       bool        `json:"scanning"`                  // directories are still being listed, and the totals grow
	FilesTotal     int64       `json:"files_total"`               // files found so far
	FilesDone      int64       `json:"files_done"`                // of them, files with a copy in a tier
	FilesSkipped   int64       `json:"files_skipped"`             // of them, files for which no tier has room
	FilesElsewhere int64       `json:"files_elsewhere,omitempty"` // of them, files that other nodes hold, and for which this one has no room to spare
	FilesFailed    int64       `json:"files_failed"`              // of them, files that could not be copied
	BytesTotal     int64       `json:"bytes_total"`               // sizes of the files found so far
	BytesDone      int64       `json:"bytes_done"`                // of them, sizes of the files done
	BytesSkipped   int64       `json:"bytes_skipped"`             // of them, sizes of the files skipped
	BytesElsewhere int64       `json:"bytes_elsewhere,omitempty"` // of them, sizes of the files elsewhere
	BytesFailed    int64       `json:"bytes_failed"`              // of them, sizes of the files failed
	Errors         []FileError `json:"errors,omitempty"`          // of the first files that failed

	FilesMismatched int64 `json:"files_mismatched,omitempty"` // of FilesFailed, files that the source does not have as in the manifest

	NeededBytes  int64 `json:"needed_bytes,omitempty"`         // of an estimate: what the copies that are missing take in the tiers
	RoomBytes    int64 `json:"room_bytes,omitempty"`           // of an estimate: what the tiers have for them
	FilesNoInode int64 `json:"files_without_inodes,omitempty"` // of an estimate: of FilesSkipped, files for which a tier has bytes and no inode
}

// A FileError describes a file that could not be copied, or a name that could not be compared.
type FileError struct {
	Path  string `json:"path"`  // relative to the mount point
	Error string `json:"error"` // the reason
}

// A NamesRequest is the body of POST /v1/warmup. Names are base64 in the JSON, because the name of a
// file need not be UTF-8.
type NamesRequest struct {
	Names [][]byte `json:"names"`
}

// makeNames returns the request that has names.
func makeNames(names []string) NamesRequest {
	req := NamesRequest{Names: make([][]byte, len(names))}
	for i, name := range names {
		req.Names[i] = []byte(name)
	}
	return req
}

// An Event is one line of the response to a request that takes long.
type Event[P any] struct {
	Progress P        `json:"progress"`
	End      bool     `json:"end,omitempty"`     // this is the last line
	Failure  *Failure `json:"failure,omitempty"` // in the last line, if an error ended the work
}

// A WarmupEvent is one line of the response to POST /v1/warmup.
type WarmupEvent = Event[Progress]

// A Failure is the JSON of an error.
type Failure struct {
	Code     exit.Code `json:"code"`                // the exit code of a command that fails with it
	Message  string    `json:"message"`             // one line
	Remedy   string    `json:"remedy,omitempty"`    // a sentence: how to repair it
	NotExist bool      `json:"not_exist,omitempty"` // the error matches fs.ErrNotExist
	Denied   bool      `json:"denied,omitempty"`    // the error matches fs.ErrPermission
	Starting bool      `json:"starting,omitempty"`  // the error matches ErrStarting
}

// Fail returns the Failure for err.
func Fail(err error) Failure {
	f := Failure{Code: exit.Of(err), Message: err.Error(), NotExist: errors.Is(err, fs.ErrNotExist), Denied: errors.Is(err, fs.ErrPermission), Starting: errors.Is(err, ErrStarting)}
	// The remedy is the end of the text, and can be split off, unless another error has
	// wrapped this one and added text.
	if e, ok := errors.AsType[*exit.Error](err); ok && e.Error() == f.Message {
		f.Message, f.Remedy = e.Err.Error(), e.Remedy
	}
	return f
}

// Err returns f as an *exit.Error.
func (f Failure) Err() error {
	code := f.Code
	if code == exit.OK {
		code = exit.Failure
	}
	return &exit.Error{Code: code, Err: remoteError{f}, Remedy: f.Remedy}
}

// A remoteError is an error that occurred in another process.
type remoteError struct{ f Failure }

func (e remoteError) Error() string {
	if e.f.Message == "" {
		return "no reason given"
	}
	return e.f.Message
}

func (e remoteError) Is(target error) bool {
	return target == fs.ErrNotExist && e.f.NotExist || target == fs.ErrPermission && e.f.Denied || target == ErrStarting && e.f.Starting
}
