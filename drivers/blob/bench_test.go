package blob

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/blob/blobtest"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// BenchmarkAgainstSDK compares the driver and Amazon's library, in turn in one run,
// with a server without latency.
func BenchmarkAgainstSDK(b *testing.B) {
	var (
		lists   = drivertest.Size(50, 1) // listings of each side in an iteration
		sizes   = drivertest.Size([]int64{10_000, 110_000, 1 << 20, 8 << 20}, []int64{110_000})
		fetched = drivertest.Size[int64](100<<20, 2<<20) // bytes of each side in an iteration; a GET costs 1 MiB more
	)
	page := listPage(1000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("list-type") {
			w.Write(page)
			return
		}
		w.Header().Set("ETag", `"etag"`)
		w.Header().Set("Last-Modified", "Wed, 01 May 2024 12:00:00 GMT")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}))
	b.Cleanup(server.Close)
	b.Setenv("AWS_ACCESS_KEY_ID", "id")
	b.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	bucket := openURL(b, "s3://bucket?endpoint="+server.URL)
	transport := &http.Transport{MaxIdleConnsPerHost: maxIdleConns}
	b.Cleanup(transport.CloseIdleConnections)
	sdk := s3.New(s3.Options{Region: "us-east-1", BaseEndpoint: &server.URL, UsePathStyle: true, HTTPClient: &http.Client{Transport: transport},
		Credentials: credentials.NewStaticCredentialsProvider("id", "secret", "")})

	b.Run("list", func(b *testing.B) {
		against(b, lists, func() error {
			return bucket.List(context.Background(), "keys", func([]drivers.Info) error { return nil })
		}, func() error {
			_, err := sdk.ListObjectsV2(context.Background(), &s3.ListObjectsV2Input{Bucket: aws.String("bucket"), Prefix: aws.String("keys/"), Delimiter: aws.String("/")})
			return err
		})
	})
	buf := make([]byte, len(content))
	for _, size := range sizes {
		o, err := bucket.OpenVersion(context.Background(), "object", bucket.file(item{key: "object", size: int64(len(content)), version: "etag"}))
		if err != nil {
			b.Fatal(err)
		}
		span := fmt.Sprintf("bytes=0-%d", size-1)
		b.Run(fmt.Sprintf("get-%d", size), func(b *testing.B) {
			against(b, int(fetched/(size+1<<20)), func() error {
				s, err := o.(drivers.Streamer).Stream(context.Background(), 0, size)
				if err != nil {
					return err
				}
				return readFull(s, buf[:size])
			}, func() error {
				out, err := sdk.GetObject(context.Background(), &s3.GetObjectInput{Bucket: aws.String("bucket"), Key: aws.String("object"), Range: &span})
				if err != nil {
					return err
				}
				return readFull(out.Body, buf[:size])
			})
		})
	}
}

// readFull fills p from r and closes r.
func readFull(r io.ReadCloser, p []byte) error {
	defer r.Close()
	_, err := io.ReadFull(r, p)
	return err
}

var content = make([]byte, 8<<20)

// listPage returns a page of n keys in the format of S3.
func listPage(n int) []byte {
	var b strings.Builder
	b.WriteString(`<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">`)
	for i := range n {
		fmt.Fprintf(&b, `<Contents><Key>keys/%012d</Key><LastModified>2024-05-01T12:00:00.000Z</LastModified><ETag>&quot;%032x&quot;</ETag><Size>110000</Size><StorageClass>STANDARD</StorageClass></Contents>`, i, i)
	}
	b.WriteString(`</ListBucketResult>`)
	return []byte(b.String())
}

// against runs two functions in turn, times times each: that of the driver, and that of
// the vendor's library. It reports medians and their ratio.
func against(b *testing.B, times int, sides ...func() error) {
	b.Helper()
	took := make([][]float64, len(sides))
	for b.Loop() {
		for i, f := range sides {
			start := time.Now()
			for range times {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
			took[i] = append(took[i], time.Since(start).Seconds()/float64(times)*1e6)
		}
	}
	medians := make([]float64, len(sides))
	for i := range took {
		slices.Sort(took[i])
		medians[i] = took[i][len(took[i])/2]
	}
	b.ReportMetric(medians[0], "milkweed-us")
	b.ReportMetric(medians[0]/medians[1], "milkweed/sdk")
	b.ReportMetric(medians[1], "sdk-us")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkRanges measures the throughput of concurrent reads of ranges, by length and
// number, from a store with a latency of 20 ms and 60 MB/s per connection.
func BenchmarkRanges(b *testing.B) {
	var (
		size    = drivertest.Size(256<<20, 16<<20)
		lengths = drivertest.Size([]int64{1 << 20, 4 << 20, 8 << 20, 16 << 20, 32 << 20}, []int64{4 << 20})
		numbers = drivertest.Size([]int{4, 8, 16}, []int{4})
	)
	s := newStore(b, size)
	proxy := blobtest.NewProxy(b, s.URL, blobtest.Plan{Latency: 20 * time.Millisecond, ConnRate: 60e6})
	bucket := openURL(b, "s3://bucket?endpoint="+proxy.URL)
	o := bucket.object(b)
	for _, length := range lengths {
		for _, number := range numbers {
			b.Run(fmt.Sprintf("MiB=%d/at-once=%d", length>>20, number), func(b *testing.B) {
				b.SetBytes(int64(size))
				for b.Loop() {
					var (
						streams sync.WaitGroup
						next    atomic.Int64
					)
					for range number {
						streams.Go(func() {
							buf := make([]byte, 1<<20)
							for off := next.Add(length) - length; off < int64(size); off = next.Add(length) - length {
								s, err := o.(drivers.Streamer).Stream(context.Background(), off, min(length, int64(size)-off))
								if err != nil {
									b.Error(err)
									return
								}
								if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{s}, buf); err != nil {
									b.Error(err)
								}
								s.Close()
							}
						})
					}
					streams.Wait()
				}
			})
		}
	}
}
