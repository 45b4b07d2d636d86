package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
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

// An azureStore is a container of Azure, with empty objects that stand for directories. Its pages have all keys.
type azureStore struct {
	blobs map[string]string // "dir" is such an object, and so is "hns" in a hierarchical namespace
}

func (s *azureStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	fmt.Fprint(w, "<EnumerationResults><Blobs>")
	prefixes := make(map[string]bool)
	for _, key := range slices.Sorted(maps.Keys(s.blobs)) {
		rest, ok := strings.CutPrefix(key, query.Get("prefix"))
		dir, _, below := strings.Cut(rest, "/")
		switch {
		case !ok:
		case below && query.Get("delimiter") == "/":
			prefixes[query.Get("prefix")+dir+"/"] = true
		default:
			data, more := s.blobs[key], "</Properties>"
			switch {
			case data == "hns":
				data, more = "", "<ResourceType>directory</ResourceType></Properties>"
			case strings.HasPrefix(data, "dir") && query.Get("include") == "metadata":
				data, more = data[3:], "</Properties><Metadata><Hdi_isfolder>true</Hdi_isfolder></Metadata>"
			}
			fmt.Fprintf(w, "<Blob><Name>%s</Name><Properties><Last-Modified>Wed, 01 May 2024 12:00:00 GMT</Last-Modified><Etag>0x8D</Etag><Content-Length>%d</Content-Length>%s</Blob>", key, len(data), more)
		}
	}
	for prefix := range prefixes {
		fmt.Fprintf(w, "<BlobPrefix><Name>%s</Name></BlobPrefix>", prefix)
	}
	fmt.Fprint(w, "</Blobs><NextMarker /></EnumerationResults>")
}

// An empty object that Hadoop has made in place of a directory is a directory, whether it has keys below it or not.
func TestAzureStubs(t *testing.T) {
	t.Setenv("AZURE_STORAGE_KEY", "c2VjcmV0")
	s := &azureStore{blobs: map[string]string{
		"set": "dir", "set/empty": "dir", "set/full": "dir", "set/full/x": "1", "set/full-1": "2", "set/full/deep": "hns", "set/file": "", "set/content": "dir and content",
	}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	b := openURL(t, "azblob://c/set?account=a&endpoint="+server.URL)
	want := []string{"content", "empty/", "file", "full-1", "full/", "full/deep/", "full/x"}
	wantTree(t, b, want)
	for _, name := range []string{"none", "file/none", "empty/none"} {
		if _, err := b.ReadDir(t.Context(), name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: got error %v", name, err)
		}
	}
	if _, err := b.Open(t.Context(), "empty"); !errors.Is(err, syscall.EISDIR) {
		t.Errorf("open of a directory: got error %v", err)
	}
	if n := b.Stats().Hidden; n != 0 {
		t.Errorf("%d keys are hidden", n)
	}
	sample, err := b.Sample(t.Context(), 10)
	for name := range sample.Files {
		if !slices.Contains(want, name) || strings.HasSuffix(name, "deep") || name == "empty" {
			t.Errorf("the sample has %s", name)
		}
	}
	if err != nil || len(sample.Files) != 4 {
		t.Errorf("the sample is %v, error %v", sample, err)
	}
}

// A key without an account is not ignored.
func TestAzureKeyWithoutAccount(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); !strings.HasPrefix(got, "SharedKey vision:") {
			t.Errorf("got Authorization %q", got)
		}
		io.WriteString(w, azurePage)
	}))
	t.Cleanup(server.Close)
	t.Setenv("AZURE_STORAGE_KEY", "c2VjcmV0")
	t.Setenv("AZURE_STORAGE_SAS_TOKEN", "sp=r&sig=secret") // of lower rank
	t.Setenv("AZURE_STORAGE_ACCOUNT", "")
	l, err := Parse("azblob://c?endpoint=" + server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), l, nil); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "AZURE_STORAGE_KEY is set") || !strings.Contains(err.Error(), "add account= to the URL") {
		t.Errorf("got error %v", err)
	}
	t.Setenv("AZURE_STORAGE_ACCOUNT", "vision")
	openURL(t, "azblob://c?endpoint="+server.URL)
}
