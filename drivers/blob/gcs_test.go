package blob

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A cloud is a server of Google Cloud Storage with one object, "object". Tests can
// replace its responses.
type cloud struct {
	*httptest.Server
	data  []byte
	gets  atomic.Int64
	token atomic.Pointer[string] // required in requests; nil: none is

	// onGet, if not nil, is called for the nth request for content. It reports
	// whether it has written a response.
	onGet func(n int64, w http.ResponseWriter, r *http.Request) bool
}

func newCloud(t *testing.T, size int) *cloud {
	c := &cloud{data: random(size, 1)}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Server.Close)
	return c
}

func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if want := c.token.Load(); want != nil && r.Header.Get("Authorization") != "Bearer "+*want {
		w.WriteHeader(http.StatusUnauthorized)
		io.WriteString(w, `{"error":{"code":401,"message":"Invalid Credentials"}}`)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/storage/v1/b/") {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"items":[{"name":"object","size":"%d","generation":"1","timeCreated":"2024-05-01T12:00:00Z"}]}`, len(c.data))
		return
	}
	if n := c.gets.Add(1); c.onGet == nil || !c.onGet(n, w, r) {
		c.serveContent(w, r, "1", len(c.data))
	}
}

// serveContent responds with a generation and the first length bytes of the requested
// range. The header announces the whole range.
func (c *cloud) serveContent(w http.ResponseWriter, r *http.Request, generation string, length int) {
	from, to := 0, len(c.data)-1
	fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to)
	w.Header().Set("X-Goog-Generation", generation)
	w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(c.data)))
	w.Header().Set("Content-Length", fmt.Sprint(to-from+1))
	w.WriteHeader(http.StatusPartialContent)
	w.Write(c.data[from:min(from+length, to+1)])
	w.(http.Flusher).Flush()
}

func (c *cloud) open(t *testing.T, query string) (*Bucket, drivers.Object) {
	t.Helper()
	setReadRetries(t, retryPolicy{firstBackoff: time.Millisecond, maxBackoff: 5 * time.Millisecond, timeout: time.Minute})
	b := openURL(t, "gs://bucket?endpoint="+c.URL+query)
	o, err := b.Open(t.Context(), "object")
	if err != nil {
		t.Fatal(err)
	}
	return b, o
}

// When a response ends early, the driver requests the rest, after a pause, and checks
// the generation of the second response.
func TestCloudTruncatedResponses(t *testing.T) {
	c := newCloud(t, 100_000)
	b, o := c.open(t, "&anonymous=true")
	readRetries.timeout = 300 * time.Millisecond
	c.onGet = func(_ int64, w http.ResponseWriter, r *http.Request) bool {
		c.serveContent(w, r, "1", 0)
		panic(http.ErrAbortHandler)
	}
	if _, err := readAll(o); !errors.Is(err, syscall.EIO) {
		t.Errorf("got error %v", err)
	}
	if sent, counted := c.gets.Load(), b.Stats(); counted.Gets != sent || counted.Retries != sent-1 || sent > 500 {
		t.Errorf("the server received %d requests, Stats: %+v", sent, counted)
	}

	c.gets.Store(0)
	c.onGet = func(n int64, w http.ResponseWriter, r *http.Request) bool {
		if n == 1 {
			c.serveContent(w, r, "1", 50_000)
			panic(http.ErrAbortHandler)
		}
		c.serveContent(w, r, "2", len(c.data)) // although the request is for generation 1
		return true
	}
	if got, err := readAll(o); !errors.Is(err, drivers.ErrChanged) {
		t.Errorf("overwritten between two requests: got %d bytes, error %v", len(got), err)
	}
}

// Requests name the object by its escaped key, and its generation, and accept it as it
// is stored. Errors are read from JSON, XML and anything else.
func TestCloudRequests(t *testing.T) {
	setPauses(t, time.Millisecond, 0)
	c := newCloud(t, 1000)
	b, _ := c.open(t, "&anonymous=true")
	const key = "a b/ü+%2F?#"
	o, err := b.OpenVersion(t.Context(), key, b.file(item{key: key, size: 1000, version: "1"}))
	if err != nil {
		t.Fatal(err)
	}
	c.onGet = func(_ int64, w http.ResponseWriter, r *http.Request) bool {
		if got, want := r.RequestURI, "/bucket/a%20b%2F%C3%BC+%252F%3F%23"; got != want {
			t.Errorf("requested %s, want %s", got, want)
		}
		for name, want := range map[string]string{"Accept-Encoding": "gzip", "X-Goog-If-Generation-Match": "1", "Range": "bytes=0-999"} {
			if got := r.Header.Get(name); got != want {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
		return false
	}
	if _, err := readAll(o); err != nil {
		t.Error(err)
	}
	for body, want := range map[string]string{
		`{"error":{"message":"no","errors":[{"reason":"forbidden"}]}}`:                       "HTTP 403: forbidden: no",
		`<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>no</Message></Error>`: "HTTP 403: AccessDenied: no",
		"plain": "HTTP 403: plain", "": "HTTP 403",
	} {
		c.onGet = func(_ int64, w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusForbidden)
			io.WriteString(w, body)
			return true
		}
		if _, err := readAll(o); !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want %q", body, err, want)
		}
	}
}

// applicationDefault creates Application Default Credentials, for which the server at
// tokenURL issues tokens.
func applicationDefault(t *testing.T, tokenURL string) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "a@p.iam.gserviceaccount.com", "token_uri": tokenURL,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "credentials.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
}

// With anonymous=true the driver looks for no credentials.
// Here the credentials are a FIFO, which can be opened for writing without blocking
// only while a reader has it open.
func TestCloudAnonymous(t *testing.T) {
	credentials := filepath.Join(t.TempDir(), "credentials.json")
	if err := syscall.Mkfifo(credentials, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", credentials)
	ctx, cancel := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() {
		for ctx.Err() == nil {
			if w, err := os.OpenFile(credentials, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
				t.Error("the credentials were opened")
				w.Close()
			}
			time.Sleep(time.Millisecond)
		}
	})
	defer watch.Wait()
	defer cancel()
	_, o := newCloud(t, 1000).open(t, "&anonymous=true")
	if _, err := readAll(o); err != nil {
		t.Error(err)
	}
}

// Readers with a refused token share one request for a new one. Transient errors of
// the token server are retried. A reader waits for a token until its context is done.
func TestCloudTokens(t *testing.T) {
	var (
		requests, failures atomic.Int64 // failures: responses with status 503 to send
		hanging            atomic.Bool
		release            = make(chan struct{})
	)
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := requests.Add(1)
		switch {
		case hanging.Load():
			<-release
		case failures.Add(-1) >= 0:
			w.WriteHeader(http.StatusServiceUnavailable)
			io.WriteString(w, "SECRET")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"token-%d","token_type":"Bearer","expires_in":3600}`, n)
	}))
	t.Cleanup(tokens.Close)
	applicationDefault(t, tokens.URL)
	c := newCloud(t, 1000)
	b, o := c.open(t, "")
	if got := requests.Load(); got != 1 {
		t.Errorf("got %d token requests at first, want 1", got)
	}

	second := "token-2"
	c.token.Store(&second)
	var readers sync.WaitGroup
	for range 32 {
		readers.Go(func() {
			if _, err := readAll(o); err != nil {
				t.Error(err)
			}
		})
	}
	readers.Wait()
	if got := requests.Load(); got != 2 {
		t.Errorf("32 concurrent readers with a refused token sent %d token requests, want 1", got-1)
	}

	c.token.Store(nil)
	failures.Store(3)
	b.vendor.refreshCredentials(time.Now())
	if _, err := readAll(o); err != nil {
		t.Errorf("transient failure of the token server: got error %v", err)
	}
	failures.Store(1 << 40)
	readRetries.timeout = 300 * time.Millisecond
	b.vendor.refreshCredentials(time.Now())
	if _, err := readAll(o); !errors.Is(err, syscall.EIO) || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("permanent failure of the token server: got error %v", err)
	}
	failures.Store(0)

	hanging.Store(true)
	b.vendor.refreshCredentials(time.Now())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := b.ReadDir(ctx, "."); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no token, with a deadline: got error %v", err)
	}
	b.stallTimeout = 50 * time.Millisecond
	if _, err := readAll(o); !errors.Is(err, syscall.ETIMEDOUT) || !strings.Contains(err.Error(), "no credentials in time") {
		t.Errorf("no token within the stall time-out: got error %v", err)
	}
	close(release)
}

// Without credentials, nothing is sent.
func TestCloudCredentialsThatAreGone(t *testing.T) {
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"access_token":"token","token_type":"Bearer","expires_in":3600}`)
	}))
	t.Cleanup(tokens.Close)
	applicationDefault(t, tokens.URL)
	b, o := newCloud(t, 1000).open(t, "")
	if err := os.Remove(os.Getenv("GOOGLE_APPLICATION_CREDENTIALS")); err != nil {
		t.Fatal(err)
	}
	b.vendor.refreshCredentials(time.Now())
	before := b.Stats()
	if _, err := readAll(o); !errors.Is(err, syscall.EACCES) {
		t.Errorf("got error %v, want EACCES", err)
	}
	if after := b.Stats(); after.Retries != 0 || after.Lists != before.Lists || after.Gets != before.Gets {
		t.Errorf("got %+v, before it %+v", after, before)
	}
}
