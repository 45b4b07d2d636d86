// Package blob reads datasets that are in a bucket: of Amazon S3 and servers
// like it, Google Cloud Storage, or Azure Blob Storage.
//
// A bucket has no directories, costs money for each request and tens of
// milliseconds too, and hands out no open files. So names are listed and not
// looked up (names.go), a file is opened without a question, its version is part
// of each request for its content (object.go), what fails for the moment is asked
// for again (retry.go), and each request is counted (transport.go). What stores
// answer becomes an error that programs know in one place (errors.go).
package blob

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	cdk "gocloud.dev/blob"

	"golang.org/x/sync/semaphore"

	"github.com/milkweedfs/milkweed/drivers"
)

// A Bucket is what is below one prefix of a bucket. Its methods may be called
// concurrently.
//
// Errors of operations on it match a syscall.Errno or drivers.ErrChanged, and say
// what the store said. What may be otherwise when asked again is asked again, for
// up to two minutes; a method returns before that only when its context is done.
type Bucket struct {
	location Location
	vendor   vendor
	net      *transport
	log      *slog.Logger
	stall    time.Duration // how long a request may have nothing come
	uid, gid uint32
	since    time.Time // when it was opened

	counters Counters // updated atomically
	hidden   hidden

	// Of what is read ahead.
	chunks  *semaphore.Weighted // how many there may be
	windows atomic.Int64        // objects that have some
	buffers sync.Pool           // of *[chunkSize]byte
	streams sync.WaitGroup      // that bring them

	first atomic.Pointer[page] // that by which it was opened, until Sample
}

var (
	_ drivers.Driver  = (*Bucket)(nil)
	_ drivers.Lister  = (*Bucket)(nil)
	_ drivers.Sampler = (*Bucket)(nil)
)

// How long nothing may come from a store before it is asked again; while it is
// opened somebody waits at a terminal.
const (
	stall        = 30 * time.Second
	openingStall = 10 * time.Second
)

// Open opens a bucket. It asks for one page of keys, to see that this works. A
// nil log is told nothing. The error matches fs.ErrNotExist if there is no such
// bucket, or nothing below the prefix.
func Open(ctx context.Context, l Location, log *slog.Logger) (*Bucket, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	b := &Bucket{
		location: l, log: log,
		uid: uint32(os.Geteuid()), gid: uint32(os.Getegid()), since: time.Now().Round(0),
		chunks:  semaphore.NewWeighted(maxChunks),
		buffers: sync.Pool{New: func() any { return new([chunkSize]byte) }},
	}
	b.net = newTransport(&b.counters)
	err := b.connect(ctx)
	if err != nil {
		b.Close()
		return nil, fmt.Errorf("%s: %w", l, err)
	}
	return b, nil
}

// connect finds the store, and looks whether there is anything.
func (b *Bucket) connect(ctx context.Context) error {
	var err error
	if b.vendor, err = connect(ctx, b.location, b.net, b.log); err != nil {
		if _, ok := errors.AsType[*storeError](err); ok {
			return err
		}
		return &storeError{errno: syscall.EACCES, text: message(&trace{}, "", "", err)} // credentials that cannot be used
	}
	b.stall = openingStall
	p, err := b.page(ctx, b.location.Prefix, "", cdk.FirstPageToken, pageSize, opening)
	if err != nil {
		return err
	}
	b.stall = stall
	if len(p.items) == 0 && b.location.Prefix != "" {
		return &storeError{errno: syscall.ENOENT, text: "the bucket is there, and has no key that begins with " + b.location.Prefix}
	}
	b.first.Store(&p)
	return nil
}

// Close lets go of the connections. All Objects must have been closed.
func (b *Bucket) Close() error {
	b.streams.Wait()
	defer b.net.inner.CloseIdleConnections()
	if b.vendor == nil {
		return nil
	}
	return b.vendor.bucket().Close()
}

// Identity says how requests are signed, without what is secret.
func (b *Bucket) Identity(ctx context.Context) (string, error) { return b.vendor.identity(ctx) }

// effort begins to ask for something.
func (b *Bucket) effort(p patience) effort { return effort{patience: p, retries: &b.counters.Retries} }

// Counters count the requests to the store since the bucket was opened. Stores charge for
// requests. Counters only grow. The tags json, metric, labels, help and family document a
// counter: its name in the JSON of the status, its name as a metric, and what it counts.
type Counters struct {
	Lists     int64 `json:"list" metric:"source_requests_total" labels:"kind=list" help:"Requests for a page of keys." family:"Requests to the object store, by kind."`
	Gets      int64 `json:"get" metric:"source_requests_total" labels:"kind=get" help:"Requests for content."`
	Others    int64 `json:"other" metric:"source_requests_total" labels:"kind=other" help:"Other requests to the object store. Requests for credentials go elsewhere and are not counted."`
	Retries   int64 `json:"retries" metric:"source_retries_total" help:"Requests that were retries after an error."`
	Hedges    int64 `json:"hedges" metric:"source_hedges_total" help:"Requests that were hedges: duplicates of a request without a timely answer."`
	Throttled int64 `json:"throttled" metric:"source_throttled_total" help:"Answers with status 429 or 503, which ask for fewer requests."`
	Bytes     int64 `json:"bytes_received" metric:"source_received_bytes_total" help:"Bytes of content received."`
}

// request returns the counter of requests of kind k.
func (c *Counters) request(k kind) *int64 {
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

	Hidden int64 `json:"hidden_keys" metric:"source_hidden_keys" help:"Keys in the listed directories that no file system can show."`
}

// Stats returns the counters of b, and the number of keys that it hides.
func (b *Bucket) Stats() Stats {
	return Stats{Counters: drivers.Snapshot(&b.counters), Hidden: b.hidden.load()}
}

var (
	errName   = fmt.Errorf("%w: not a name", syscall.EINVAL)
	errAbsent = &storeError{errno: syscall.ENOENT, text: "no key is there, or below it"}
)

// Open implements drivers.Driver. It costs the requests of Stat.
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
	return &object{bucket: b, name: name, key: b.location.Prefix + name, info: info}, nil
}

// ReadDir implements drivers.Driver.
func (b *Bucket) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	var all []drivers.Info
	err := b.List(ctx, dir, func(infos []drivers.Info) error {
		all = append(all, infos...)
		return nil
	})
	return all, err
}

// Stat implements drivers.Driver. It costs one or two requests for keys, but
// none for the root soon after Open.
func (b *Bucket) Stat(ctx context.Context, name string) (drivers.Info, error) {
	info, err := b.stat(ctx, name)
	return info, wrap(ctx, "stat", name, err)
}

func (b *Bucket) stat(ctx context.Context, name string) (drivers.Info, error) {
	switch {
	case !drivers.ValidName(name):
		return drivers.Info{}, errName
	case name == "." && time.Since(b.since) < fresh:
		return b.directory("."), nil
	case name == ".":
		_, err := b.page(ctx, b.location.Prefix, "", cdk.FirstPageToken, 1, reading)
		return b.directory("."), err
	}
	key := b.location.Prefix + name
	p, err := b.page(ctx, key, "/", cdk.FirstPageToken, 2, reading)
	if err != nil {
		return drivers.Info{}, err
	}
	file, isFile := find(p.items, key)
	_, isDir := find(p.items, key+"/")
	if last := len(p.items) - 1; !isDir && len(p.next) > 0 && last >= 0 && p.items[last].key < key+"/" {
		if p, err = b.page(ctx, key+"/", "/", cdk.FirstPageToken, 1, reading); err != nil {
			return drivers.Info{}, err
		}
		isDir = len(p.items) > 0
	}
	base := name[strings.LastIndexByte(name, '/')+1:]
	switch {
	case len(base) > 255:
		return drivers.Info{}, syscall.ENAMETOOLONG
	case isDir:
		return b.directory(base), nil
	case isFile:
		return b.file(file), nil
	}
	return drivers.Info{}, errAbsent
}

// fresh is for how long after Open it is known that the root is there.
const fresh = 10 * time.Second

// find returns the item of a key.
func find(items []item, key string) (item, bool) {
	for _, i := range items {
		if i.key == key {
			return i, true
		}
	}
	return item{}, false
}

// Sample implements drivers.Sampler, at no cost: it returns files of the page of
// keys by which the bucket was opened, which are the first in the order of keys.
// It returns them once.
func (b *Bucket) Sample(_ context.Context, n int) (map[string]drivers.Info, error) {
	found := make(map[string]drivers.Info)
	var items []item
	if p := b.first.Swap(nil); p != nil {
		items = p.items
	}
	for step := max(1, len(items)/max(1, n)); len(items) > 0 && len(found) < n; items = items[min(step, len(items)):] {
		i := items[0]
		name := strings.TrimPrefix(i.key, b.location.Prefix)
		if drivers.ValidName(name) {
			found[name] = b.file(i)
		}
	}
	return found, nil
}
