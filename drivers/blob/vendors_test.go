package blob

import (
	"bytes"
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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A cloud is a server that has one object, "object", and answers as Google Cloud
// Storage does except where a test says otherwise.
type cloud struct {
	*httptest.Server
	data  []byte
	gets  atomic.Int64
	get   func(n int64, w http.ResponseWriter, r *http.Request) bool // answers the nth request for content, if it says so
	token atomic.Pointer[string]                                     // that requests must have, if it is not nil
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
	if n := c.gets.Add(1); c.get == nil || !c.get(n, w, r) {
		c.answer(w, r, "1", len(c.data))
	}
}

// answer sends up to length bytes of what was asked for, as of a generation.
func (c *cloud) answer(w http.ResponseWriter, r *http.Request, generation string, length int) {
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
	impatient(t, patience{first: time.Millisecond, most: 5 * time.Millisecond, limit: 300 * time.Millisecond})
	b := openURL(t, "gs://bucket?endpoint="+c.URL+query)
	o, err := b.Open(t.Context(), "object")
	if err != nil {
		t.Fatal(err)
	}
	return b, o
}

// Google's library goes on by itself where an answer ended early; it may not,
// because it neither pauses nor looks at what it gets.
func TestCloudAnswersThatEndEarly(t *testing.T) {
	c := newCloud(t, 100_000)
	b, o := c.open(t, "&anonymous=true")
	c.get = func(_ int64, w http.ResponseWriter, r *http.Request) bool {
		c.answer(w, r, "1", 0)
		panic(http.ErrAbortHandler)
	}
	if _, err := readAll(o); !errors.Is(err, syscall.EIO) {
		t.Errorf("got error %v", err)
	}
	if sent, counted := c.gets.Load(), b.Stats(); counted.Gets != sent || counted.Retries != sent-1 || sent > 500 {
		t.Errorf("%d requests were sent, counted %+v", sent, counted)
	}

	c.gets.Store(0)
	c.get = func(n int64, w http.ResponseWriter, r *http.Request) bool {
		if n == 1 {
			c.answer(w, r, "1", 50_000)
			panic(http.ErrAbortHandler)
		}
		c.answer(w, r, "2", len(c.data)) // though the request says "1"
		return true
	}
	if got, err := readAll(o); !errors.Is(err, drivers.ErrChanged) {
		t.Errorf("overwritten in the middle: %d bytes, %v", len(got), err)
	}
}

// applicationDefault makes credentials for which tokens are asked for at a URL.
func applicationDefault(t *testing.T, tokens string) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "a@p.iam.gserviceaccount.com", "token_uri": tokens,
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

// A mount without credentials looks for none, nor does Google's library: here
// they are in a pipe, which cannot be opened for writing unless somebody reads it.
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
				t.Error("somebody looks for credentials")
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

// A token that is refused is asked for anew, once for all; one that cannot be had
// for a moment ends no job; and nobody waits for one longer than he wants to.
func TestCloudTokens(t *testing.T) {
	var (
		asked, failing atomic.Int64
		hanging        atomic.Bool
		release        = make(chan struct{})
	)
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := asked.Add(1)
		switch {
		case hanging.Load():
			<-release
		case failing.Add(-1) >= 0:
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
	if got := asked.Load(); got != 1 {
		t.Errorf("%d tokens were asked for at first", got)
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
	if got := asked.Load(); got != 2 {
		t.Errorf("32 readers who were refused at once had %d tokens asked for, want 1", got-1)
	}

	c.token.Store(nil)
	failing.Store(3)
	b.vendor.renew(time.Now())
	if _, err := readAll(o); err != nil {
		t.Errorf("no token for a moment: %v", err)
	}
	failing.Store(1 << 40)
	b.vendor.renew(time.Now())
	if _, err := readAll(o); !errors.Is(err, syscall.EIO) || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("no token at all: %v", err)
	}
	failing.Store(0)

	hanging.Store(true)
	b.vendor.renew(time.Now())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := b.ReadDir(ctx, "."); !errors.Is(err, context.DeadlineExceeded) { // or this hangs
		t.Errorf("a token that does not come: %v", err)
	}
	close(release)
}

// A request is signed for one place, and not for where that sends it.
func TestRedirectionIsNotFollowed(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("asked elsewhere, with %q", r.Header.Get("Authorization"))
	}))
	t.Cleanup(other.Close)
	applicationDefault(t, other.URL+"/none")
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	server := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusFound))
	t.Cleanup(server.Close)
	for _, url := range []string{"gs://b?anonymous=true&endpoint=", "s3://b?endpoint="} {
		l, err := Parse(url + server.URL)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), l, nil); err == nil {
			t.Errorf("%s is opened", url)
		}
	}
}

// Certificates that the environment names are trusted, and do not change the
// version of HTTP that is spoken.
func TestCertificatesOfTheEnvironment(t *testing.T) {
	s := newStore(t, 1000)
	server := httptest.NewUnstartedServer(s)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_CA_BUNDLE", file)
	s.Server.URL = server.URL
	if got, err := readAll(s.open(t, "").object(t)); err != nil || !bytes.Equal(got, s.data) {
		t.Errorf("%v, or other bytes", err)
	}
}

// Who gives credentials may be away for a moment, or not answer one request.
func TestCredentialsThatCome(t *testing.T) {
	var failing atomic.Int64
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if failing.Add(-1) >= 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, `{"AccessKeyId":"id","SecretAccessKey":"secret","Token":"t","Expiration":%q}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}))
	t.Cleanup(endpoint.Close)
	s := newStore(t, 1000)
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", endpoint.URL)
	b := s.open(t, "")
	b.stall = time.Minute
	o := b.object(t)
	impatient(t, patience{first: time.Millisecond, most: 5 * time.Millisecond, limit: time.Minute})
	failing.Store(5)
	b.vendor.renew(time.Now())
	if _, err := readAll(o); err != nil {
		t.Errorf("no credentials for a moment: %v", err)
	}
}

// The environment does not say which dataset a URL is.
func TestTheURLSaysWhere(t *testing.T) {
	t.Setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
	t.Setenv("AWS_REGION", "eu-west-1")
	t.Setenv("AZURE_STORAGE_ACCOUNT", "vision")
	for url, want := range map[string]string{"s3://b": "add endpoint= to the URL", "azblob://b": "names the storage account vision: add account= to the URL"} {
		l, err := Parse(url)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), l, nil); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", url, err, want)
		}
	}
}

// Listings that are not as the best of servers make them.
func TestOddListings(t *testing.T) {
	var pages atomic.Int64
	for _, tt := range []struct {
		name string
		page func() string
		want []string
	}{
		{"no times", func() string { return `<Contents><Key>a</Key><Size>1</Size></Contents>` }, []string{"a"}},
		{"not UTF-8", func() string {
			return `<EncodingType>url</EncodingType><Contents><Key>a%FFb</Key></Contents><Contents><Key>c</Key></Contents>`
		}, []string{"c"}},
		{"keys that the library changes", func() string {
			return `<Contents><Key>a</Key></Contents><Contents><Key>a__0x21__</Key></Contents><CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes>`
		}, []string{"a/", "a__0x21__"}},
		{"short pages", func() string {
			n := pages.Add(1)
			time.Sleep(20 * time.Millisecond)
			if n == 30 {
				return fmt.Sprintf(`<Contents><Key>%02d</Key></Contents>`, n)
			}
			return fmt.Sprintf(`<Contents><Key>%02d</Key></Contents><IsTruncated>true</IsTruncated><NextContinuationToken>%d</NextContinuationToken>`, n, n)
		}, numbers(30)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore(t, 1)
			b := s.open(t, "")
			s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.WriteString(w, "<ListBucketResult>"+tt.page()+"</ListBucketResult>")
			})
			infos, err := b.ReadDir(t.Context(), ".")
			var got []string
			for _, i := range infos {
				got = append(got, i.Name+strings.Repeat("/", int(i.Nlink)-1))
			}
			slices.Sort(got)
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("got %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func numbers(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%02d", i+1))
	}
	return all
}

// Several who read one object in order, each at a place of its own, are each read
// ahead for.
func TestReadAheadForSeveral(t *testing.T) {
	s := newStore(t, 64<<20)
	b := s.open(t, "")
	o := b.object(t)
	s.gets.Store(0)
	p := make([]byte, 128<<10)
	for i := range int64(8 << 20 / len(p)) {
		for reader := range int64(4) {
			off := reader*(16<<20) + i*int64(len(p))
			if _, err := o.ReadAt(t.Context(), p, off); err != nil || !bytes.Equal(p, s.data[off:off+int64(len(p))]) {
				t.Fatalf("at %d: %v, or other bytes", off, err)
			}
		}
	}
	if got := s.gets.Load(); got > 40 {
		t.Errorf("4 readers of 8 MiB took %d requests", got)
	}
}
