// Package blob is the driver for datasets in a bucket of Amazon S3, of a server with
// the same protocol, of Google Cloud Storage, or of Azure Blob Storage.
//
// A bucket has no directories and no open files, and each request costs money and
// tens of milliseconds. The driver therefore
//
//   - lists names instead of looking them up (names.go, find.go), and detects a listing
//     that has no end (pages.go),
//   - opens a listed file without a request, and names its version in each request
//     for its content (object.go),
//   - sends no requests that the store has just refused (credentials.go, refused.go), and
//     says what to do about that (remedy.go),
//   - signs requests with the time of the store if a clock is wrong (clock.go),
//   - retries requests (retry.go), and bounds how long each may stall (watchdog.go),
//   - counts requests (transport.go),
//   - turns the errors of all stores into errors that programs understand, in one
//     place (errors.go).
//
// The kinds of store are vendors (vendor.go): s3.go with s3keys.go, gcs.go and azure.go.
package blob

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A Bucket is the part of a bucket below one prefix. Its methods may be called
// concurrently.
//
// An error of a method matches a syscall.Errno or drivers.ErrChanged, and contains
// the message of the store. Requests that fail with a transient error are retried
// for up to two minutes, or until the context is done.
type Bucket struct {
	location Location
	vendor   vendor
	net      *transport
	log      *slog.Logger
	uid, gid uint32
	opened   time.Time // when Open was called

	stallTimeout time.Duration // how long a request may wait for minProgress bytes

	counters Counters // updated atomically
	hidden   hiddenKeys
	odd      oddities

	credentials credentialState
	refused     refusedObjects
	connected   bool // Open has succeeded

	firstPage atomic.Pointer[page] // listed by Open; nil after Sample
}

var (
	_ drivers.Driver        = (*Bucket)(nil)
	_ drivers.Lister        = (*Bucket)(nil)
	_ drivers.VersionOpener = (*Bucket)(nil)
	_ drivers.Profiler      = (*Bucket)(nil)
	_ drivers.Sampler       = (*Bucket)(nil)
	_ drivers.Comparer      = (*Bucket)(nil)
)

// A request is cancelled and retried when callers have waited for stallTimeout for the
// header, or for minProgress bytes of the body. While the bucket is being opened the
// time-out is openStallTimeout, because a user waits at a terminal.
const (
	stallTimeout     = 30 * time.Second
	openStallTimeout = 10 * time.Second
)

// Open opens a bucket. It lists one page of keys to test the access. If log is nil
// nothing is logged. The error matches fs.ErrNotExist if the bucket does not exist
// or has no key below the prefix. The caller closes the Bucket.
func Open(ctx context.Context, l Location, log *slog.Logger) (*Bucket, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	b := &Bucket{
		location: l, log: log,
		uid: uint32(os.Geteuid()), gid: uint32(os.Getegid()), opened: time.Now().Round(0),
	}
	b.net = newTransport(&b.counters)
	b.net.clock.log = log
	err := b.connect(ctx)
	if err != nil {
		b.Close()
		return nil, fmt.Errorf("%s: %w", l, err)
	}
	return b, nil
}

// connect connects to the store and lists the first page of keys.
func (b *Bucket) connect(ctx context.Context) error {
	var err error
	if b.vendor, err = connect(ctx, b.location, b.net, b.log); err != nil {
		if _, ok := errors.AsType[*storeError](err); ok {
			return err
		}
		// The credentials are unusable.
		return b.explain(ctx, &storeError{errno: syscall.EACCES, text: message(&trace{}, "", "", err)})
	}
	b.stallTimeout = openStallTimeout
	p, err := b.page(ctx, b.location.Prefix, "", "", pageSize, openRetries)
	if e, ok := errors.AsType[*storeError](err); ok {
		return b.explain(ctx, e)
	} else if err != nil {
		return err
	}
	b.stallTimeout, b.connected = stallTimeout, true
	if len(p.items) == 0 && b.location.Prefix != "" {
		return &storeError{errno: syscall.ENOENT, text: "the bucket has no key that begins with " + b.location.Prefix}
	}
	b.firstPage.Store(&p)
	return nil
}

// Close closes the connections to the store. All Objects must have been closed.
func (b *Bucket) Close() error {
	b.credentials.close()
	b.net.inner.CloseIdleConnections()
	return nil
}

// Identity describes how requests are signed, without secrets.
func (b *Bucket) Identity(ctx context.Context) (string, error) { return b.vendor.identity(ctx) }

// Counters count the requests to the store since the bucket was opened. Stores charge for
// requests. Counters only grow. The tags json, metric, labels, help and family document a
// counter: its name in the JSON of the status, its name as a metric, and what it counts.
type Counters struct {
	Lists     int64 `json:"list" metric:"source_requests_total" labels:"kind=list" help:"Requests for a page of keys." family:"Requests to the object store, by kind."`
	Gets      int64 `json:"get" metric:"source_requests_total" labels:"kind=get" help:"Requests for content."`
	Others    int64 `json:"other" metric:"source_requests_total" labels:"kind=other" help:"Other requests to the object store. Requests for credentials go elsewhere and are not counted."`
	Retries   int64 `json:"retries" metric:"source_retries_total" help:"Requests that were retries after an error."`
	Hedges    int64 `json:"hedges" metric:"source_hedges_total" help:"Requests that were hedges: duplicates of a request without a timely answer."`
	Throttled int64 `json:"throttled" metric:"source_throttled_total" help:"Answers with status 429 or 503, which limit the request rate."`
	Bytes     int64 `json:"bytes_received" metric:"source_received_bytes_total" help:"Bytes of content received."`
}

// request returns the counter of requests of kind k.
func (c *Counters) request(k requestKind) *int64 {
	switch k {
	case list:
		return &c.Lists
	case get:
		return &c.Gets
	}
	return &c.Others
}

// Stats describes a Bucket at one moment.
type Stats struct {
	Counters

	Refused        string  `json:"refused,omitempty" help:"Why the store refuses the credentials. Absent if it accepts them."`
	RefusedRemedy  string  `json:"refused_remedy,omitempty" help:"What to do about it."`
	RefusedSeconds float64 `json:"refused_seconds,omitempty" metric:"source_refused_seconds" help:"For how long the store has refused the credentials. 0: it accepts them."`
	Archived       int64   `json:"archived_objects,omitempty" metric:"source_archived_objects" help:"Objects that were archived when they were last requested, and must be restored to be read."`
	Denied         int64   `json:"denied_objects,omitempty" metric:"source_denied_objects" help:"Objects to which the store denied access when they were last requested."`

	ClockOffsetSeconds float64 `json:"clock_offset_seconds,omitempty" metric:"source_clock_offset_seconds" help:"By how much the clock of the store is ahead of that of this machine. 0 if requests are signed with the time of this machine."`

	Oddities []string `json:"oddities,omitempty" help:"Where the store deviates from its protocol, a sentence each."`
	Hidden   int64    `json:"hidden_keys" metric:"source_hidden_keys" help:"Keys in the listed directories that no file system can show."`
}

// Stats returns the counters of b, what the store refuses, its oddities, and the number of keys that it hides.
func (b *Bucket) Stats() Stats {
	s := Stats{
		Counters: drivers.Snapshot(&b.counters), ClockOffsetSeconds: b.net.clock.offset().Seconds(),
		Oddities: b.odd.notes(), Hidden: b.hidden.load(),
	}
	s.Archived, s.Denied = b.refused.counts()
	if r := b.credentials.current.Load(); r != nil {
		if err := r.err.Load(); err != nil {
			s.Refused, s.RefusedRemedy, s.RefusedSeconds = err.text, err.remedy, time.Since(r.since).Seconds()
		}
	}
	return s
}

var (
	errName     = fmt.Errorf("%w: invalid name", syscall.EINVAL)
	errNotFound = &storeError{errno: syscall.ENOENT, text: "the bucket has neither this key nor keys below it"}
)

// Open implements drivers.Driver. It sends the requests of Stat.
func (b *Bucket) Open(ctx context.Context, name string) (drivers.Object, error) {
	info, err := b.stat(ctx, name)
	if err == nil && info.IsDir() {
		err = syscall.EISDIR
	}
	if err != nil {
		return nil, wrap(ctx, "open", name, err)
	}
	return b.OpenVersion(ctx, name, info)
}

// OpenVersion implements drivers.VersionOpener.
func (b *Bucket) OpenVersion(ctx context.Context, name string, info drivers.Info) (drivers.Object, error) {
	if !drivers.ValidName(name) || !info.IsRegular() {
		return nil, wrap(ctx, "open", name, errName)
	}
	o := &object{bucket: b, name: name, key: b.location.Prefix + name, info: info}
	if b.refused.archives.Load() {
		o.first = make(chan struct{}, 1)
	}
	if info.Size > 0 {
		if err := o.checkRefused(ctx); err != nil {
			return nil, wrap(ctx, "open", name, err)
		}
	}
	return o, nil
}

// Stat implements drivers.Driver. It sends the requests of find, but none for the root within
// rootTTL of opening the bucket.
func (b *Bucket) Stat(ctx context.Context, name string) (drivers.Info, error) {
	info, err := b.stat(ctx, name)
	return info, wrap(ctx, "stat", name, err)
}

func (b *Bucket) stat(ctx context.Context, name string) (drivers.Info, error) {
	switch {
	case !drivers.ValidName(name):
		return drivers.Info{}, errName
	case name == "." && time.Since(b.opened) < rootTTL:
		return b.directory("."), nil
	case name == ".":
		_, err := b.page(ctx, b.location.Prefix, "", "", 1, readRetries)
		return b.directory("."), err
	}
	key := b.location.Prefix + name
	file, isFile, isDir, err := b.find(ctx, key)
	if err != nil {
		return drivers.Info{}, err
	}
	base := baseOf(name)
	switch {
	case len(base) > 255:
		return drivers.Info{}, syscall.ENAMETOOLONG
	case isDir:
		return b.directory(base), nil
	case isFile:
		return b.file(file), nil
	}
	return drivers.Info{}, errNotFound
}

// rootTTL is how long the listing of Open counts as evidence that the root exists.
const rootTTL = 10 * time.Second

// Sample implements drivers.Sampler without a request: it returns files from the page
// of keys that Open has listed, which is the first in key order. Only the first call
// returns files.
func (b *Bucket) Sample(_ context.Context, n int) (drivers.Sample, error) {
	found := make(map[string]drivers.Info)
	var items []item
	if p := b.firstPage.Swap(nil); p != nil {
		items = p.items
	}
	for step := max(1, len(items)/max(1, n)); len(items) > 0 && len(found) < n; items = items[min(step, len(items)):] {
		i := items[0]
		name := strings.TrimPrefix(i.key, b.location.Prefix)
		if drivers.ValidName(name) && !i.stub {
			found[name] = b.file(i)
		}
	}
	return drivers.Sample{Files: found}, nil
}
