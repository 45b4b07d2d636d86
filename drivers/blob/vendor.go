package blob

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	cdk "gocloud.dev/blob"
)

// A vendor is what differs between the kinds of store. Listing and reading go
// by way of the portable library; what it has no word for (versions, keys as
// they are, its vendor's credentials) by way of the vendor's own types, which it
// gives out.
type vendor interface {
	// bucket is the bucket as the portable library has it.
	bucket() *cdk.Bucket

	// list prepares a request for keys that begin with prefix.
	list(prefix string) func(as func(any) bool) error

	// item returns a key of a listing.
	item(o *cdk.ListObject) item

	// read asks for n bytes of one version of an object, from offset off. It
	// fails if the object is of another version by now.
	read(ctx context.Context, key, version string, off, n int64) (io.ReadCloser, error)

	// version is that of the object that an answer brings, "" if it does not say.
	version(h http.Header) string

	// failure returns what the store itself says of an error, "" if it does not:
	// its name for it, and a text.
	failure(err error) (code, text string)

	// renew has credentials be looked for again, unless they were since a request
	// began that was refused: what it was signed with may be older. It reports
	// whether there are any: if not, the request will be refused again.
	renew(began time.Time) bool

	// identity says how requests are signed, without what is secret.
	identity(ctx context.Context) (string, error)
}

// An item is one key of a listing.
type item struct {
	key     string // of a directory, what all keys in it begin with
	dir     bool
	size    int64
	mtime   time.Time
	version string
}

// credentialsTimeout is how long it may take to get credentials: less than stall,
// so that who waits for them is told why there are none. Who opens a bucket waits
// less long, and is told only that they did not come.
const credentialsTimeout = 20 * time.Second

// connect returns the vendor of a location. This is where all are.
func connect(ctx context.Context, l Location, t *transport, log *slog.Logger) (vendor, error) {
	switch l.Scheme {
	case "s3":
		return connectS3(ctx, l, t, log)
	case "gs":
		return connectGCS(ctx, l, t)
	case "azblob":
		return connectAzure(l, t)
	}
	return nil, fmt.Errorf("no store has URLs that begin with %s://", l.Scheme)
}

// tag returns an ETag as a version: without the quotes that are not always there,
// and where it is a checksum in hexadecimal, which most are, as the bytes of the
// checksum after a NUL. A name space has millions of them. A weak one stays as it
// is.
func tag(etag string) string {
	unquoted := strings.TrimSuffix(strings.TrimPrefix(etag, `"`), `"`)
	if sum, err := hex.DecodeString(unquoted); err == nil && len(sum) >= 16 && hex.EncodeToString(sum) == unquoted {
		return "\x00" + string(sum)
	}
	return unquoted
}

// bare is the ETag that a version was made of, without quotes.
func bare(version string) string {
	if sum, ok := strings.CutPrefix(version, "\x00"); ok {
		return hex.EncodeToString([]byte(sum))
	}
	return version
}

// quoted returns a version as a request asks for it. It returns "" for a weak
// ETag, with which no request can ask.
func quoted(version string) string {
	if version == "" || strings.HasPrefix(version, "W/") {
		return ""
	}
	return `"` + bare(version) + `"`
}
