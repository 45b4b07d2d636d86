package drivertest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

var (
	_ drivers.Lister        = (*Bucket)(nil)
	_ drivers.VersionOpener = (*Bucket)(nil)
	_ drivers.Profiler      = (*Bucket)(nil)
)

// A Bucket is a Mem that behaves like an object store: names are found by listing, files are
// opened without a request, and content is read in long streams. It counts the operations
// that would be requests. The fields are set before its first use. The methods may be called
// concurrently.
type Bucket struct {
	*Mem
	Latency time.Duration // of each request
	Length  int64         // Profile.Stride
	Page    int           // names in a page of a listing; 0: 1000

	lists, stats, gets atomic.Int64
}

// Subject returns a Subject with the driver b. It hides the capabilities of the Mem that an
// object store does not have.
func (b *Bucket) Subject() Subject {
	return Subject{
		Driver:    objectStore{b, b, b, b},
		Put:       func(name string, data []byte) { b.Put(name, data) },
		Remove:    b.Delete,
		Overwrite: func(name string, data []byte) { b.Put(name, data) },
	}
}

// An objectStore is a Driver with the capabilities of an object store and no others.
type objectStore struct {
	drivers.Driver
	drivers.Lister
	drivers.VersionOpener
	drivers.Profiler
}

// BucketRequests counts the requests to a Bucket.
type BucketRequests struct {
	Lists int64 // pages of listings; an empty listing counts as one
	Stats int64 // Stat and Open
	Gets  int64 // ReadAt and Stream
}

// Requests returns the requests until now.
func (b *Bucket) Requests() BucketRequests {
	return BucketRequests{Lists: b.lists.Load(), Stats: b.stats.Load(), Gets: b.gets.Load()}
}

// request counts a request and waits for b.Latency.
func (b *Bucket) request(ctx context.Context, counter *atomic.Int64) error {
	counter.Add(1)
	if b.Latency == 0 { // an expired timer crashes Go 1.26 in a synctest bubble with -race
		return ctx.Err()
	}
	select {
	case <-time.After(b.Latency):
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// withVersion sets the Version of files.
func withVersion(i drivers.Info) drivers.Info {
	if i.IsRegular() {
		i.Version = fmt.Sprintf("%x", i.Mtime.UnixNano())
	}
	return i
}

// Profile implements drivers.Profiler.
func (b *Bucket) Profile() drivers.Profile {
	return drivers.Profile{Latency: drivers.LatencyRequest, Stride: b.Length}
}

// List implements drivers.Lister.
func (b *Bucket) List(ctx context.Context, dir string, page func([]drivers.Info) error) error {
	infos, err := b.Mem.ReadDir(ctx, dir)
	for i := range infos {
		infos[i] = withVersion(infos[i])
	}
	size := b.Page
	if size == 0 {
		size = 1000
	}
	if err != nil || len(infos) == 0 {
		if err := b.request(ctx, &b.lists); err != nil {
			return err
		}
		return err
	}
	for infos := range slices.Chunk(infos, size) {
		if err := b.request(ctx, &b.lists); err != nil {
			return err
		}
		if err := page(infos); err != nil {
			return err
		}
	}
	return nil
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

// Stat implements drivers.Driver.
func (b *Bucket) Stat(ctx context.Context, name string) (drivers.Info, error) {
	if err := b.request(ctx, &b.stats); err != nil {
		return drivers.Info{}, err
	}
	i, err := b.Mem.Stat(ctx, name)
	return withVersion(i), err
}

// Open implements drivers.Driver.
func (b *Bucket) Open(ctx context.Context, name string) (drivers.Object, error) {
	i, err := b.Stat(ctx, name)
	if err != nil {
		return nil, err
	}
	if _, err := b.Mem.Open(ctx, name); err != nil {
		return nil, err
	}
	return b.OpenVersion(ctx, name, i)
}

// OpenVersion implements drivers.VersionOpener.
func (b *Bucket) OpenVersion(_ context.Context, name string, info drivers.Info) (drivers.Object, error) {
	return &bucketObject{b, name, info}, nil
}

// A bucketObject opens the file for each read, and fails if its version has changed.
type bucketObject struct {
	bucket *Bucket
	name   string
	info   drivers.Info
}

var _ drivers.Streamer = (*bucketObject)(nil)

// get makes a request and returns an Object of the Mem.
func (o *bucketObject) get(ctx context.Context) (drivers.Object, error) {
	if err := o.bucket.request(ctx, &o.bucket.gets); err != nil {
		return nil, err
	}
	obj, err := o.bucket.Mem.Open(ctx, o.name)
	if err != nil || !withVersion(obj.Info()).SameVersion(o.info) {
		return nil, fmt.Errorf("%s: %w", o.name, drivers.ErrChanged)
	}
	return obj, nil
}

func (o *bucketObject) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	obj, err := o.get(ctx)
	if err != nil {
		return 0, err
	}
	return obj.ReadAt(ctx, p, off)
}

func (o *bucketObject) Info() drivers.Info { return o.info }
func (o *bucketObject) Close() error       { return nil }

func (o *bucketObject) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	p := make([]byte, n)
	if _, err := o.ReadAt(ctx, p, off); err != nil {
		return nil, err
	}
	return &bucketStream{ctx, bytes.NewReader(p)}, nil
}

// A bucketStream holds the requested bytes. It returns them until its context is done.
type bucketStream struct {
	ctx  context.Context
	data *bytes.Reader
}

func (r *bucketStream) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.data.Read(p)
}

func (r *bucketStream) Close() error { return nil }
