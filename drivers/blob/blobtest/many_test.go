package blobtest

import (
	"bytes"
	"io"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// Amazon's library lists and reads the objects of Many, and cannot change them.
func TestMany(t *testing.T) {
	s := Many(t, 2500)
	p := NewProxy(t, s.URL, Plan{})
	s = s.At(t, p.URL)
	keys := s.Keys(t, ManyBucket)
	if len(keys) != 2500 || !slices.IsSorted(keys) || keys[2499] != "keys/000002499" {
		t.Errorf("got %d keys, want 2500, or wrong keys", len(keys))
	}
	if got := p.Stats().Lists; got != 3 {
		t.Errorf("got %d listing requests, want 3", got)
	}
	if err := s.store.put(t.Context(), ManyBucket, "key", nil); err == nil {
		t.Error("put succeeds")
	}
	client, bucket := s.store.(*s3Store).client, ManyBucket
	object, err := client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: &keys[7]})
	if err != nil {
		t.Fatal(err)
	}
	defer object.Body.Close()
	if got, err := io.ReadAll(object.Body); err != nil || !bytes.Equal(got, []byte(keys[7])) {
		t.Errorf("got %q, error %v", got, err)
	}
	for _, test := range []struct {
		prefix, delimiter string
		keys, prefixes    int
	}{
		{"", "/", 0, 1}, {"keys/", "/", 1000, 0}, {"keys/00000249", "/", 10, 0}, {"other/", "/", 0, 0}, {"keys/000000003", "", 1, 0},
	} {
		page, err := client.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: &bucket, Prefix: &test.prefix, Delimiter: &test.delimiter})
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Contents) != test.keys || len(page.CommonPrefixes) != test.prefixes {
			t.Errorf("prefix %q: got %d keys, %d prefixes; want %d, %d", test.prefix, len(page.Contents), len(page.CommonPrefixes), test.keys, test.prefixes)
		} else if test.keys > 0 && *page.Contents[0].ETag != `"`+manyObjects(0).etag(slices.Index(keys, *page.Contents[0].Key))+`"` {
			t.Errorf("prefix %q: got ETag %s", test.prefix, *page.Contents[0].ETag)
		}
	}
}
