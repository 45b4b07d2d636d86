package blob_test

import (
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/milkweedfs/milkweed/drivers/blob"
	"github.com/milkweedfs/milkweed/drivers/blob/blobtest"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// maxKey is the length of the longest key that every vendor accepts, in bytes.
const maxKey = 1024

// The driver fulfils the contract. Each test of the contract uses the keys below a
// prefix in a bucket of its own.
func TestServersConform(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers of every kind")
	}
	blobtest.Each(t, func(t *testing.T, server *blobtest.Server) {
		server.Setenv(t)
		buckets := 0
		drivertest.Run(t, func(t *testing.T) drivertest.Subject {
			bucket := fmt.Sprintf("bucket-%d", buckets)
			buckets++
			server.MakeBucket(t, bucket)
			server.Put(t, bucket, "prefixed", []byte("not below the prefix"))
			server.Put(t, bucket, prefix, nil) // an empty directory, so that Open finds a key
			return subject(t, server, bucket)
		})
	})
}

// prefix is the prefix of all keys of a subject.
const prefix = "prefix/"

// subject returns a driver for a bucket, and functions that change the bucket.
func subject(t *testing.T, server *blobtest.Server, bucket string) drivertest.Subject {
	l, err := blob.Parse(server.BucketURL(bucket, prefix, ""))
	if err != nil {
		t.Fatal(err)
	}
	b, err := blob.Open(t.Context(), l, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, o := range b.Stats().Oddities {
			if strings.Contains(o, "key order") {
				t.Errorf("%s: %s", server.Kind, o)
			}
		}
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	put := func(name string, data []byte) { server.Put(t, bucket, prefix+name, data) }
	return drivertest.Subject{
		Driver:    b,
		Put:       put,
		Overwrite: put, // the bucket keeps no old versions
		Remove:    func(name string) { server.Remove(t, bucket, prefix+name) },
		PutMany: func(files map[string][]byte) {
			keys := make(map[string][]byte)
			for name, data := range files {
				keys[prefix+name] = data
			}
			server.PutMany(t, bucket, maps.All(keys))
		},
		Names: func(name string) bool { return allowed(server.Kind, name) },
	}
}

// allowed reports whether a vendor accepts a name in a key. No object can have the
// other names, so nothing is lost.
func allowed(kind blobtest.Kind, name string) bool {
	if !utf8.ValidString(name) || len(prefix+name) > maxKey {
		return false
	}
	return kind != blobtest.Azure || !strings.Contains(name, `\`) // Azure replaces it with /
}
