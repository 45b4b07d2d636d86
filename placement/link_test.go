package placement

import (
	"context"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A linkedBucket is a Bucket behind a link, which all answers share. It records the requests for
// content.
type linkedBucket struct {
	*drivertest.Bucket
	rate float64 // bytes per second of the link

	mu   sync.Mutex // guards the following
	idle time.Time  // when the link is idle again
	gets []get
	open int // requests that were sent, and have not ended
}

// A get is one request for content.
type get struct {
	name       string
	block      int // the first one
	at         time.Time
	background bool
	beside     int // other requests in flight when it was sent
}

// linkPiece is how many bytes of one answer the link transfers before it continues with another one.
const linkPiece = 64 << 10

// newLinkedRig makes a rig with one tier and a linkedBucket with ranges of 8 MiB.
func newLinkedRig(t testing.TB, latency time.Duration, rate float64, workers int) (*rig, *linkedBucket) {
	t.Helper()
	b := &linkedBucket{Bucket: &drivertest.Bucket{Latency: latency, Length: 8 << 20}, rate: rate}
	return newRig(t, rigOptions{quotas: []int64{1 << 40}, workers: workers, bucket: b.Bucket, over: b}), b
}

// transfer returns when the link has transferred some bytes.
func (b *linkedBucket) transfer(n int) {
	b.mu.Lock()
	if now := time.Now(); b.idle.Before(now) {
		b.idle = now
	}
	b.idle = b.idle.Add(time.Duration(float64(n) / b.rate * 1e9))
	wait := time.Until(b.idle)
	b.mu.Unlock()
	time.Sleep(wait)
}

func (b *linkedBucket) OpenVersion(ctx context.Context, name string, info drivers.Info) (drivers.Object, error) {
	o, err := b.Bucket.OpenVersion(ctx, name, info)
	return &linkedObject{o, b, name}, err
}

type linkedObject struct {
	drivers.Object
	bucket *linkedBucket
	name   string
}

func (o *linkedObject) Stream(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	b := o.bucket
	b.mu.Lock()
	b.gets = append(b.gets, get{o.name, int(off / blockSize), time.Now(), drivers.IsBackground(ctx), b.open})
	b.open++
	b.mu.Unlock()
	s, err := o.Object.(drivers.Streamer).Stream(ctx, off, n)
	if err != nil {
		b.end()
		return nil, err
	}
	return &linkedStream{s, b}, nil
}

// requests returns the requests so far, in their order.
func (b *linkedBucket) requests() []get {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.gets)
}

// end counts the end of a request.
func (b *linkedBucket) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open--
}

type linkedStream struct {
	io.ReadCloser
	bucket *linkedBucket
}

func (s *linkedStream) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p[:min(len(p), linkPiece)])
	s.bucket.transfer(n)
	return n, err
}

func (s *linkedStream) Close() error {
	s.bucket.end()
	return s.ReadCloser.Close()
}
