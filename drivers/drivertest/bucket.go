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

// A Bucket is a Mem that is read as an object store is: names are listed, files
// are opened without a question, and content comes in long streams. It counts
// what would be requests. The fields are set before it is used; the methods may
// be called concurrently.
type Bucket struct {
	*Mem
	Latency time.Duration // before each request is answered
	Length  int64         // Stride of the profile
	Page    int           // names in a part of a listing; 0 is 1000

	lists, stats, gets atomic.Int64
}

// Subject is b with the hands to change it. What the Mem can do and an object
// store cannot is hidden.
func (b *Bucket) Subject() Subject {
	return Subject{
		Driver:    lister{b, b, b, b},
		Put:       func(name string, data []byte) { b.Put(name, data) },
		Remove:    b.Delete,
		Overwrite: func(name string, data []byte) { b.Put(name, data) },
	}
}

// A lister is a Driver with the capabilities of an object store and no others.
type lister struct {
	drivers.Driver
	drivers.Lister
	drivers.VersionOpener
	drivers.Profiler
}

// BucketRequests are the requests that a Bucket was sent.
type BucketRequests struct {
	Lists int64 // one for each part of a listing, and for each that was empty
	Stats int64 // Stat and Open
	Gets  int64 // ReadAt and Stream
}

// Requests returns what was asked so far.
func (b *Bucket) Requests() BucketRequests {
	return BucketRequests{Lists: b.lists.Load(), Stats: b.stats.Load(), Gets: b.gets.Load()}
}

// request counts a request and waits for the answer.
func (b *Bucket) request(ctx context.Context, counter *atomic.Int64) error {
	counter.Add(1)
	select {
	case <-time.After(b.Latency):
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// version gives files a Version.
func version(i drivers.Info) drivers.Info {
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
func (b *Bucket) List(ctx context.Context, dir string, part func([]drivers.Info) error) error {
	infos, err := b.Mem.ReadDir(ctx, dir)
	for i := range infos {
		infos[i] = version(infos[i])
	}
	page := b.Page
	if page == 0 {
		page = 1000
	}
	if err != nil || len(infos) == 0 {
		if asked := b.request(ctx, &b.lists); asked != nil {
			return asked
		}
		return err
	}
	for infos := range slices.Chunk(infos, page) {
		if err := b.request(ctx, &b.lists); err != nil {
			return err
		}
		if err := part(infos); err != nil {
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
	return version(i), err
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

// A bucketObject is read anew each time, if it is still the version that it was.
type bucketObject struct {
	bucket *Bucket
	name   string
	info   drivers.Info
}

var _ drivers.Streamer = (*bucketObject)(nil)

func (o *bucketObject) get(ctx context.Context) (drivers.Object, error) {
	if err := o.bucket.request(ctx, &o.bucket.gets); err != nil {
		return nil, err
	}
	obj, err := o.bucket.Mem.Open(ctx, o.name)
	if err != nil || !version(obj.Info()).SameVersion(o.info) {
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

// A bucketStream has all that was asked for, until its context is done.
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
