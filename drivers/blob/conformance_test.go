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

// maxKey is how long a key may be, in bytes, for every vendor.
const maxKey = 1024

// Each test of the contract has a bucket of its own, of which it sees what is
// below a prefix.
func TestConformance(t *testing.T) {
	blobtest.Each(t, func(t *testing.T, server *blobtest.Server) {
		server.Setenv(t)
		buckets := 0
		drivertest.Run(t, func(t *testing.T) drivertest.Subject {
			bucket := fmt.Sprintf("bucket-%d", buckets)
			buckets++
			server.MakeBucket(t, bucket)
			server.Put(t, bucket, "prefixed", []byte("not below the prefix"))
			server.Put(t, bucket, prefix, nil) // what makes an empty folder, which the driver can open
			return subject(t, server, bucket)
		})
	})
}

// prefix is what all keys of a subject begin with.
const prefix = "prefix/"

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
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	put := func(name string, data []byte) { server.Put(t, bucket, prefix+name, data) }
	return drivertest.Subject{
		Driver:    b,
		Put:       put,
		Overwrite: put, // there are no old versions: what was is gone
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

// allowed reports whether a vendor lets a key have a name in it. Those names that
// it does not are no loss: no file can have them.
func allowed(kind blobtest.Kind, name string) bool {
	if !utf8.ValidString(name) || len(prefix+name) > maxKey {
		return false
	}
	return kind != blobtest.Azure || !strings.Contains(name, `\`) // Azure's for /
}
