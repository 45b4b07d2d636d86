package blob

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// Whatever a store answers, a listing has valid names in order, each once, and a read has the
// bytes of the answer or fails.
func FuzzAnswers(f *testing.F) {
	const (
		s3Page = `<ListBucketResult><Contents><Key>dir/object</Key><LastModified>2024-05-01T12:00:00.000Z</LastModified><ETag>"e"</ETag><Size>3</Size></Contents>` +
			`<CommonPrefixes><Prefix>other/</Prefix></CommonPrefixes></ListBucketResult>`
		gsPage = `{"kind":"storage#objects","prefixes":["other/"],"items":[{"name":"object","size":"3","updated":"2024-05-01T12:00:00Z","etag":"e","generation":"1"}]}`
		again  = `<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken></ListBucketResult>`
	)
	pages := []string{s3Page, gsPage, azurePage}
	var answer atomic.Pointer[func(w http.ResponseWriter)]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*answer.Load())(w) }))
	f.Cleanup(server.Close)
	f.Setenv("AWS_ACCESS_KEY_ID", "id")
	f.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	f.Setenv("AZURE_STORAGE_KEY", "c2VjcmV0")
	setReadRetries(f, retryPolicy{firstBackoff: time.Microsecond, maxBackoff: time.Microsecond, timeout: time.Millisecond})
	var buckets []*Bucket
	for i, url := range []string{"s3://b?endpoint=", "gs://b?anonymous=1&endpoint=", "azblob://c?account=a&endpoint="} {
		send := func(w http.ResponseWriter) { io.WriteString(w, pages[i]) }
		answer.Store(&send)
		buckets = append(buckets, openURL(f, url+server.URL))
	}
	for i, page := range pages {
		f.Add(uint8(i), 200, "e", []byte(page))
	}
	f.Add(uint8(0), 200, "", []byte(again))
	f.Add(uint8(0), 206, "e", []byte("abc"))
	f.Add(uint8(0), 503, "", []byte("<Error><Code>SlowDown</Code></Error>"))
	f.Fuzz(func(t *testing.T, store uint8, status int, etag string, body []byte) {
		if status < 200 || status > 599 {
			return
		}
		send := func(w http.ResponseWriter) {
			w.Header().Set("ETag", etag)
			w.Header().Set("Last-Modified", "Wed, 01 May 2024 12:00:00 GMT")
			w.WriteHeader(status)
			w.Write(body)
		}
		answer.Store(&send)
		b := buckets[int(store)%len(buckets)]
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond) // a listing may take maxPages requests
		defer cancel()
		infos, err := b.ReadDir(ctx, ".")
		checkListing(t, infos, err)
		for _, name := range []string{"object", "dir/object"} {
			info, err := b.Stat(ctx, name)
			if err == nil && (info.Size < 0 || !info.IsRegular() && !info.IsDir()) {
				t.Errorf("Stat(%q): %+v", name, info)
			}
			checkRead(ctx, t, b, name, body)
		}
	})
}

// checkListing checks the result of a ReadDir.
func checkListing(t *testing.T, infos []drivers.Info, err error) {
	t.Helper()
	if err != nil {
		return
	}
	seen := make(map[string]bool)
	for _, info := range infos {
		if !drivers.ValidName(info.Name) || seen[info.Name] || info.Size < 0 || !info.IsRegular() && !info.IsDir() {
			t.Errorf("listed %+v", info)
		}
		seen[info.Name] = true
	}
}

// checkRead reads a file from its beginning.
func checkRead(ctx context.Context, t *testing.T, b *Bucket, name string, body []byte) {
	t.Helper()
	o, err := b.Open(ctx, name)
	if err != nil {
		return
	}
	defer o.Close()
	p := make([]byte, min(o.Info().Size, 1<<16))
	if n, _ := o.ReadAt(ctx, p, 0); !bytes.HasPrefix(body, p[:n]) {
		t.Errorf("%s: read %q, which the store has not sent", name, p[:n])
	}
}
