package blob

import (
	"syscall"
	"testing"

	"github.com/milkweedfs/milkweed/drivers"
)

// Only the sums of S3 prove that two objects have the same content.
func TestHaveSameContent(t *testing.T) {
	const sum = "d41d8cd98f00b204e9800998ecf8427e"
	file := func(etag string, size int64) drivers.Info {
		return drivers.Info{Mode: syscall.S_IFREG, Size: size, Version: etagVersion(etag)}
	}
	for _, test := range []struct {
		scheme string
		a, b   drivers.Info
		want   bool
	}{
		{"s3", file(`"`+sum+`"`, 5), file(sum, 5), true},
		{"s3", file(sum+"-3", 5), file(sum+"-3", 5), true},
		{"s3", file(sum, 5), file(sum, 6), false},
		{"s3", file(sum, 5), file(sum+"-1", 5), false},
		{"s3", file("", 5), file("", 5), false},
		{"s3", file("W/"+sum, 5), file("W/"+sum, 5), false},
		{"s3", file("0x8D4BCC2E4835CD0", 5), file("0x8D4BCC2E4835CD0", 5), false},
		{"azblob", file(sum, 5), file(sum, 5), false},
		{"gs", file("1700000000000000", 5), file("1700000000000000", 5), false},
	} {
		b := &Bucket{location: Location{Scheme: test.scheme}}
		if got := b.HaveSameContent(t.Context(), [2]string{"a", "b"}, [2]drivers.Info{test.a, test.b}); got != test.want {
			t.Errorf("%s: %q and %q: got %v", test.scheme, test.a.Version, test.b.Version, got)
		}
	}
}
