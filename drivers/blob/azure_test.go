package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// azurePage is a page of keys in the format of Azure, with one object of 1000 bytes.
const azurePage = "\ufeff" + `<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="c"><Blobs><Blob><Name>object</Name><Properties>` +
	`<Last-Modified>Wed, 01 May 2024 12:00:00 GMT</Last-Modified><Etag>first</Etag><Content-Length>1000</Content-Length></Properties></Blob></Blobs><NextMarker /></EnumerationResults>`

// A response that is not a page of keys, such as one from a proxy, is retried.
func TestAzureAnswersThatAreNoPage(t *testing.T) {
	t.Setenv("AZURE_STORAGE_KEY", "c2VjcmV0")
	for _, body := range []string{
		"", "<html></html>", "<EnumerationResults></EnumerationResults>", "<EnumerationResults><Blobs>",
		"<EnumerationResults><Other><Blobs /></Other></EnumerationResults>",
		"<EnumerationResults><Blobs><Blob><Name>object</Name></Blob></Blobs></EnumerationResults>",
	} {
		t.Run(body, func(t *testing.T) {
			var n atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if n.Add(1)%2 == 1 {
					io.WriteString(w, body)
					return
				}
				io.WriteString(w, azurePage)
			}))
			t.Cleanup(server.Close)
			setReadRetries(t, retryPolicy{firstBackoff: time.Millisecond, maxBackoff: time.Millisecond, timeout: time.Minute})
			b := openURL(t, "azblob://c?account=a&endpoint="+server.URL)
			infos, err := b.ReadDir(t.Context(), ".")
			if err != nil || len(infos) != 1 || infos[0].Name != "object" || infos[0].Size != 1000 {
				t.Errorf("got %+v, error %v", infos, err)
			}
			if got := b.Stats().Retries; got != 2 {
				t.Errorf("got %d retries, want 2", got)
			}
		})
	}
}

// A page without keys is accepted.
func TestAzureEmptyPage(t *testing.T) {
	t.Setenv("AZURE_STORAGE_KEY", "c2VjcmV0")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `<EnumerationResults><Prefix /><Blobs /><NextMarker /></EnumerationResults>`)
	}))
	t.Cleanup(server.Close)
	b := openURL(t, "azblob://c?account=a&endpoint="+server.URL)
	if infos, err := b.ReadDir(t.Context(), "."); err != nil || len(infos) != 0 || b.Stats().Retries != 0 {
		t.Errorf("got %+v, error %v, %d retries", infos, err, b.Stats().Retries)
	}
}

// Transient errors of Azure's token server are retried. A reader waits until its own
// context is done for a token that another reader has requested.
func TestAzureTokens(t *testing.T) {
	var (
		failures, hanging  atomic.Int64 // failures: responses with status 503 to send
		requested, release = make(chan struct{}), make(chan struct{})
	)
	identity := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if failures.Add(-1) >= 0 {
			w.Header().Set("x-ms-retry-after-ms", "1") // Azure's library retries, too
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if hanging.Add(-1) == 0 {
			close(requested)
			<-release
		}
		// The token is used once only, because it is about to expire.
		fmt.Fprintf(w, `{"access_token":"token","token_type":"Bearer","resource":"r","expires_on":"%d"}`, time.Now().Add(30*time.Second).Unix())
	}))
	t.Cleanup(identity.Close)
	for name, value := range map[string]string{
		"AZURE_STORAGE_KEY": "", "AZURE_STORAGE_SAS_TOKEN": "", "AZURE_TOKEN_CREDENTIALS": "ManagedIdentityCredential",
		"IDENTITY_ENDPOINT": identity.URL, "IDENTITY_HEADER": "x",
	} {
		t.Setenv(name, value)
	}
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer token" {
			t.Errorf("got Authorization %q", r.Header.Get("Authorization"))
		}
		if r.URL.Query().Get("comp") == "list" {
			io.WriteString(w, azurePage)
			return
		}
		w.Header().Set("ETag", `"first"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(make([]byte, 1000)))
	}))
	t.Cleanup(store.Close)
	b := openURL(t, "azblob://c?account=a&endpoint="+store.URL)
	o, err := b.Open(t.Context(), "object")
	if err != nil {
		t.Fatal(err)
	}
	setReadRetries(t, retryPolicy{firstBackoff: time.Millisecond, maxBackoff: 5 * time.Millisecond, timeout: time.Minute})
	failures.Store(12)
	if _, err := readAll(o); err != nil || b.Stats().Retries == 0 {
		t.Errorf("transient failure of the token server: got error %v after %d retries", err, b.Stats().Retries)
	}

	b.stallTimeout = 15 * time.Second // with the library alone, both readers would wait as long
	hanging.Store(1)
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, err := readAll(o); first <- err }()
	select {
	case <-requested:
	case err := <-first:
		t.Fatalf("no token was requested: got error %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	go func() { _, err := b.ReadDir(ctx, "."); second <- err }()
	select {
	case err := <-second:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("reader with a deadline: got error %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the reader with a deadline still waits")
	}
	close(release)
	if err := <-first; err != nil {
		t.Errorf("reader without a deadline: got error %v", err)
	}
}
