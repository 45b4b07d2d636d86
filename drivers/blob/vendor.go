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
)

// A vendor is one kind of store. It sends one request for each call, to which the caller
// adds retries (retry.go) and time-outs (watchdog.go).
//
// The methods may be called concurrently.
type vendor interface {
	// list requests one page of up to maxKeys keys that begin with prefix, in any
	// order. If delimiter is not "", the keys that contain it after the prefix are
	// replaced by the directory that they are in. The token is that of the page
	// before, "" for the first page.
	list(ctx context.Context, prefix, delimiter, token string, maxKeys int) (page, error)

	// read requests n bytes, at least one, of one version of an object, from offset off. It
	// fails if the object no longer has that version; "" is any version. The caller closes the
	// reader.
	read(ctx context.Context, key, version string, off, n int64) (io.ReadCloser, error)

	// revision returns what the header of a response says of the version of the object.
	revision(h http.Header) revision

	// failure returns the error code and the message of the store, "" if err has
	// none.
	failure(err error) (code, text string)

	// refreshCredentials discards the credentials, so that the next request looks
	// them up again. A request that began at began was refused; credentials that
	// were looked up later are kept.
	refreshCredentials(began time.Time)

	// identity describes how requests are signed, without secrets.
	identity(ctx context.Context) (string, error)
}

// An item is one entry of a listing.
type item struct {
	key     string // of a directory: the common prefix of its keys
	dir     bool
	stub    bool // an empty object in place of a directory, which may have keys below it
	size    int64
	mtime   time.Time
	version string

	archived bool // it must be restored before it can be read, unless it was restored before
}

// credentialsTimeout bounds a lookup of credentials. It is shorter than
// stallTimeout, so that a reader gets the reason of a failed lookup. It is longer
// than openStallTimeout: Open reports only that the credentials were not there in
// time.
const credentialsTimeout = 20 * time.Second

// connect returns the vendor of a location. All vendors are listed here.
func connect(ctx context.Context, l Location, t *transport, log *slog.Logger) (vendor, error) {
	switch l.Scheme {
	case "s3":
		return connectS3(ctx, l, t, log)
	case "gs":
		return connectGCS(l, t)
	case "azblob":
		return connectAzure(l, t)
	}
	return nil, fmt.Errorf("unknown scheme %s://", l.Scheme)
}

// byteRange returns the value of a Range header for n bytes from offset off.
func byteRange(off, n int64) string { return fmt.Sprintf("bytes=%d-%d", off, off+n-1) }

// etagVersion returns an ETag as a version. It removes the quotes, which some
// responses omit. Most ETags are checksums in hexadecimal; their version is a NUL
// and the bytes of the checksum, to save memory in namespaces with millions of
// files. A weak ETag keeps its prefix W/.
func etagVersion(etag string) string {
	unquoted := strings.TrimSuffix(strings.TrimPrefix(etag, `"`), `"`)
	if sum, err := hex.DecodeString(unquoted); err == nil && len(sum) >= 16 && hex.EncodeToString(sum) == unquoted {
		return "\x00" + string(sum)
	}
	return unquoted
}

// unquotedETag returns the ETag of a version, without quotes.
func unquotedETag(version string) string {
	if sum, ok := strings.CutPrefix(version, "\x00"); ok {
		return hex.EncodeToString([]byte(sum))
	}
	return version
}

// ifMatch returns the value of an If-Match header for a version. It returns "" for
// a weak ETag, which If-Match does not support.
func ifMatch(version string) string {
	if version == "" || strings.HasPrefix(version, "W/") {
		return ""
	}
	return `"` + unquotedETag(version) + `"`
}
