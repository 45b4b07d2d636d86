package blob

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// pageFormats are a page of a listing of each kind of store, with a key and the token of the next
// page, and without a key.
var pageFormats = []struct{ url, key, noKey string }{
	{
		"s3://b/p?endpoint=",
		`<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>%s</NextContinuationToken>` +
			`<Contents><Key>p/k</Key><LastModified>2024-05-01T12:00:00.000Z</LastModified><Size>3</Size></Contents></ListBucketResult>`,
		`<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>%s</NextContinuationToken></ListBucketResult>`,
	},
	{
		"gs://b/p?anonymous=1&endpoint=",
		`{"kind":"storage#objects","nextPageToken":"%s","items":[{"name":"p/k","size":"3","generation":"1"}]}`,
		`{"kind":"storage#objects","nextPageToken":"%s"}`,
	},
	{
		"azblob://b/p?account=a&endpoint=",
		`<EnumerationResults><Blobs><Blob><Name>p/k</Name><Properties><Last-Modified>Wed, 01 May 2024 12:00:00 GMT</Last-Modified>` +
			`<Content-Length>3</Content-Length></Properties></Blob></Blobs><NextMarker>%s</NextMarker></EnumerationResults>`,
		`<EnumerationResults><Blobs></Blobs><NextMarker>%s</NextMarker></EnumerationResults>`,
	},
}

// eachVendor opens a bucket of each kind of store, and then lets test set the responses.
func eachVendor(t *testing.T, test func(t *testing.T, b *Bucket, page, noKey string, respond func(http.HandlerFunc))) {
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AZURE_STORAGE_KEY", "c2VjcmV0")
	for _, f := range pageFormats {
		t.Run(f.url[:2], func(t *testing.T) {
			setReadRetries(t, retryPolicy{firstBackoff: time.Millisecond, maxBackoff: time.Millisecond, timeout: 10 * time.Millisecond})
			var handler atomic.Pointer[http.HandlerFunc]
			respond := func(h http.HandlerFunc) { handler.Store(&h) }
			last := strings.Replace(f.key, "<IsTruncated>true", "<IsTruncated>false", 1)
			respond(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, last, "") })
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*handler.Load())(w, r) }))
			t.Cleanup(server.Close)
			b := openURL(t, f.url+server.URL)
			b.stallTimeout = time.Minute
			test(t, b, f.key, f.noKey, respond)
		})
	}
}

// A listing whose tokens repeat, at any distance, or are new without end, fails with an error that
// names the bucket and the prefix.
func TestListingWithoutEnd(t *testing.T) {
	eachVendor(t, func(t *testing.T, b *Bucket, page, noKey string, respond func(http.HandlerFunc)) {
		for _, tt := range []struct {
			name   string
			page   string
			token  func(n int64) int64
			want   string
			atMost int64 // requests
		}{
			{"the same token", noKey, func(int64) int64 { return 7 }, "twice", 3},
			{"the same token and key", page, func(int64) int64 { return 7 }, "twice", 3},
			{"three tokens in turn", page, func(n int64) int64 { return 1 + n%3 }, "twice", 20},
			{"new tokens and no key", noKey, func(n int64) int64 { return n }, "2000 pages", maxPages},
		} {
			var requests atomic.Int64
			respond(func(w http.ResponseWriter, r *http.Request) {
				n := requests.Add(1)
				if n > maxPages+10 {
					panic(http.ErrAbortHandler)
				}
				fmt.Fprintf(w, tt.page, fmt.Sprint("token", tt.token(n)))
			})
			_, err := b.ReadDir(t.Context(), ".")
			if !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "://b/p") {
				t.Errorf("%s: got error %v", tt.name, err)
			}
			if got := requests.Load(); got > tt.atMost {
				t.Errorf("%s: %d requests, want at most %d", tt.name, got, tt.atMost)
			}
		}
	})
}

// Of the body of an error, and of a listing, a bounded part is read.
func TestBodyWithoutEnd(t *testing.T) {
	if testing.Short() || drivertest.Race() {
		t.Skip("reads bodies of hundreds of megabytes")
	}
	eachVendor(t, func(t *testing.T, b *Bucket, page, _ string, respond func(http.HandlerFunc)) {
		filler := strings.Repeat("<Contents><Key>p/k</Key></Contents>", 1<<15)
		for _, tt := range []struct {
			name   string
			status int
			begin  string
			atMost int64 // bytes of a response, of which the buffers of the kernel hold some
		}{
			{"error", 500, "<Error>", 16 << 20},
			{"refusal", 403, "<Error>", 16 << 20},
			{"listing", 200, "<ListBucketResult>", 48 << 20},
		} {
			var sent, most atomic.Int64
			respond(func(w http.ResponseWriter, r *http.Request) {
				sent.Store(0)
				w.WriteHeader(tt.status)
				io.WriteString(w, tt.begin)
				for sent.Load() < 128<<20 {
					if _, err := io.WriteString(w, filler); err != nil {
						break
					}
					if n := sent.Add(int64(len(filler))); n > most.Load() {
						most.Store(n)
					}
				}
			})
			if _, err := b.ReadDir(t.Context(), "."); err == nil {
				t.Errorf("%s: no error", tt.name)
			}
			if got := most.Load(); got > tt.atMost {
				t.Errorf("%s: %d bytes of a response were read, want at most %d", tt.name, got, tt.atMost)
			}
		}
	})
}

// A store that sends a byte now and then stalls, for listings and for content.
func TestTrickle(t *testing.T) {
	s := newStore(t, 100_000)
	b := s.open(t, "")
	o := b.object(t)
	b.stallTimeout = 100 * time.Millisecond
	trickle := func(w http.ResponseWriter, r *http.Request, body string) {
		for i := range body {
			io.WriteString(w, body[i:i+1])
			w.(http.Flusher).Flush()
			select {
			case <-time.After(5 * time.Millisecond):
			case <-r.Context().Done():
				return
			}
		}
	}
	s.onGet(func(w http.ResponseWriter, r *http.Request) {
		var from, to int
		fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to)
		w.Header().Set("ETag", `"first"`)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(s.data)))
		w.WriteHeader(206)
		trickle(w, r, string(s.data[from:to+1]))
	})
	if _, err := readAll(o); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("content: got error %v, want ETIMEDOUT", err)
	}
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		trickle(w, r, "<ListBucketResult>"+strings.Repeat(" ", 100_000))
	})
	if _, err := b.ReadDir(t.Context(), "."); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("listing: got error %v, want ETIMEDOUT", err)
	}
}

// A drip is a body that returns n bytes after each interval, until ctx is done.
type drip struct {
	watchdog *watchdog
	n        int
	interval time.Duration
}

func (d drip) Read(p []byte) (int, error) {
	select {
	case <-time.After(d.interval):
		return min(d.n, len(p)), nil
	case <-d.watchdog.ctx.Done():
		return 0, d.watchdog.ctx.Err()
	}
}

func (d drip) Close() error { return nil }

// The stall time-out counts the time that callers wait for minProgress bytes. A slow response
// that makes progress may take any time, and so may a caller.
func TestStallTimeout(t *testing.T) {
	for _, tt := range []struct {
		n        int
		interval time.Duration
		pause    time.Duration // of the caller between two reads
		want     error
	}{
		{1, time.Second, 0, errStalled},
		{30, time.Second, 0, errStalled},
		{40, time.Second, 0, nil},
		{minProgress, 29 * time.Second, 0, nil},
		{minProgress, 31 * time.Second, 0, errStalled},
		{40, time.Second, time.Minute, nil},
		{1, time.Second, time.Minute, errStalled},
	} {
		t.Run(fmt.Sprintf("%d bytes in %v with pauses of %v", tt.n, tt.interval, tt.pause), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, w, cancel := withWatchdog(t.Context(), stallTimeout)
				defer cancel()
				w.disarm(nil)
				b := &body{ReadCloser: drip{w, tt.n, tt.interval}, watchdog: w, cancel: cancel}
				var err error
				for range 100 {
					if _, err = b.Read(make([]byte, 1<<20)); err != nil {
						break
					}
					time.Sleep(tt.pause)
				}
				if !errors.Is(err, tt.want) {
					t.Errorf("got error %v, want %v", err, tt.want)
				}
			})
		})
	}
}

// A listing that makes progress may take longer than the stall time-out.
func TestSlowListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, w, cancel := withWatchdog(t.Context(), stallTimeout)
		defer cancel()
		b := &boundedBody{ReadCloser: drip{w, 40, time.Second}, left: 4000, end: io.EOF, watchdog: w}
		if data, err := io.ReadAll(b); err != nil || len(data) != 4000 {
			t.Errorf("got %d bytes and error %v", len(data), err)
		}
	})
}
