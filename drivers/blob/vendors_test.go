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

	"cloud.google.com/go/compute/metadata"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"golang.org/x/oauth2"

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
	impatient(t, patience{first: time.Millisecond, most: 5 * time.Millisecond, limit: time.Minute})
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
	reading.limit = 300 * time.Millisecond
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
	reading.limit = 300 * time.Millisecond
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
	b.stall = 50 * time.Millisecond
	if _, err := readAll(o); !errors.Is(err, syscall.ETIMEDOUT) || !strings.Contains(err.Error(), "no credentials in time") {
		t.Errorf("a token that does not come in time: %v", err)
	}
	close(release)
}

// Credentials that are not there any more are looked for once, and not waited for.
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
	b.vendor.renew(time.Now())
	if _, err := readAll(o); !errors.Is(err, syscall.EACCES) || b.Stats().Retries != 1 {
		t.Errorf("got error %v, after %d retries", err, b.Stats().Retries)
	}
}

// A sourceFunc gives tokens.
type sourceFunc func() (*oauth2.Token, error)

func (f sourceFunc) Token() (*oauth2.Token, error) { return f() }

// Who was refused waits for no token that was asked for before.
func TestTokensAskedForBefore(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	sources := []sourceFunc{
		func() (*oauth2.Token, error) { close(asked); <-release; return &oauth2.Token{AccessToken: "old"}, nil },
		func() (*oauth2.Token, error) { return &oauth2.Token{AccessToken: "new"}, nil },
	}
	var finds int
	tokens := &tokens{find: func() (oauth2.TokenSource, error) { finds++; return sources[finds-1], nil }}
	var first sync.WaitGroup
	defer first.Wait()
	defer close(release)
	first.Go(func() { tokens.token(context.Background()) })
	<-asked
	tokens.renew(time.Now())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if got, err := tokens.token(ctx); err != nil || got.AccessToken != "new" {
		t.Errorf("got %v, %v", got, err)
	}
}

// A credentialFunc is a credential of Azure's that gives no token.
type credentialFunc func() error

func (f credentialFunc) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{}, f()
}

// Whoever gives tokens may be away for a moment; what they are asked for with may
// be no good.
func TestNoToken(t *testing.T) {
	nobody := httptest.NewServer(nil)
	nobody.Close()
	says := func(err error) sourceFunc { return func() (*oauth2.Token, error) { return nil, err } }
	azureSays := func(status int) sourceFunc {
		return says(&azidentity.AuthenticationFailedError{RawResponse: &http.Response{StatusCode: status, Body: http.NoBody}})
	}
	tokens := &tokens{}
	unanswered := func(err error) error {
		if _, err := (&http.Client{Transport: &tokens.way}).Get(nobody.URL); err == nil {
			t.Error("nobody has answered")
		}
		return err
	}
	for _, tt := range []struct {
		name   string
		source oauth2.TokenSource
		want   error
		again  bool
	}{
		{"Google's machines: 503", says(&metadata.Error{Code: 503}), syscall.EIO, true},
		{"Google's machines: 403", says(&metadata.Error{Code: 403}), syscall.EACCES, false},
		{"Google's machines: 404", says(metadata.NotDefinedError("token")), syscall.EACCES, false},
		{"Google: not answered", sourceFunc(func() (*oauth2.Token, error) { return nil, unanswered(errors.New("only text")) }), syscall.ECONNREFUSED, true},
		{"no file", says(fmt.Errorf("credentials: %w", os.ErrNotExist)), syscall.EACCES, false},
		{"in no time", says(context.DeadlineExceeded), syscall.ETIMEDOUT, true},
		{"Azure: 429", azureSays(429), syscall.EIO, true},
		{"Azure: 503", azureSays(503), syscall.EIO, true},
		{"Azure: 400", azureSays(400), syscall.EACCES, false},
		{"Azure: not asked", azureSource{credentialFunc(func() error { return &azidentity.AuthenticationFailedError{} }), &tokens.way}, syscall.EACCES, false},
		{"Azure: not answered", azureSource{credentialFunc(func() error { return unanswered(&azidentity.AuthenticationFailedError{}) }), &tokens.way}, syscall.ECONNREFUSED, true},
		{"Azure: another's machine", azureSource{credentialFunc(func() error {
			return unanswered(azidentity.NewCredentialUnavailableError("no credentials"))
		}), &tokens.way}, syscall.EACCES, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tokens.find, tokens.found = nil, tt.source
			_, err := (&http.Client{Transport: &signer{tokens, nil}}).Get("http://store/")
			for _, v := range []vendor{&googleCloud{}, &azure{}} {
				if e := explain(v, &trace{}, err); !errors.Is(e, tt.want) || e.again != tt.again || e.renew == tt.again {
					t.Errorf("%T: got %+v, want %v, again %v", v, e, tt.want, tt.again)
				}
			}
		})
	}
}

// azurePage is a page of keys as Azure sends it, with one object of 1000 bytes.
const azurePage = "\ufeff" + `<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="c"><Blobs><Blob><Name>object</Name><Properties>` +
	`<Last-Modified>Wed, 01 May 2024 12:00:00 GMT</Last-Modified><Etag>first</Etag><Content-Length>1000</Content-Length></Properties></Blob></Blobs><NextMarker /></EnumerationResults>`

// An answer that is no page of keys, of a proxy for example, is not taken for one.
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
			impatient(t, patience{first: time.Millisecond, most: time.Millisecond, limit: time.Minute})
			b := openURL(t, "azblob://c?account=a&endpoint="+server.URL)
			infos, err := b.ReadDir(t.Context(), ".")
			if err != nil || len(infos) != 1 || infos[0].Name != "object" || infos[0].Size != 1000 {
				t.Errorf("got %+v, %v", infos, err)
			}
			if got := b.Stats().Retries; got != 2 {
				t.Errorf("%d requests were sent again, want 2", got)
			}
		})
	}
	if !isPage([]byte(`<EnumerationResults><Prefix /><Blobs /><NextMarker /></EnumerationResults>`)) {
		t.Error("a page without keys is none")
	}
}

// A token that cannot be had for a moment ends no job, and whoever goes away does
// not wait for one that another has asked for.
func TestAzureTokens(t *testing.T) {
	var (
		failing, hanging atomic.Int64
		asked, release   = make(chan struct{}), make(chan struct{})
	)
	identity := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if failing.Add(-1) >= 0 {
			w.Header().Set("x-ms-retry-after-ms", "1") // Azure's library asks again, too
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if hanging.Add(-1) == 0 {
			close(asked)
			<-release
		}
		// One that is used once: it is about to expire.
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
			t.Errorf("asked with %q", r.Header.Get("Authorization"))
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
	impatient(t, patience{first: time.Millisecond, most: 5 * time.Millisecond, limit: time.Minute})
	failing.Store(12)
	if _, err := readAll(o); err != nil || b.Stats().Retries == 0 {
		t.Errorf("no token for a moment: %v, after %d retries", err, b.Stats().Retries)
	}

	b.stall = 15 * time.Second // for which the library would have both wait
	hanging.Store(1)
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, err := readAll(o); first <- err }()
	select {
	case <-asked:
	case err := <-first:
		t.Fatalf("no token was asked for: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	go func() { _, err := b.ReadDir(ctx, "."); second <- err }()
	select {
	case err := <-second:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who went away: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("who went away waits")
	}
	close(release)
	if err := <-first; err != nil {
		t.Errorf("who stayed: %v", err)
	}
}

// A request that was refused is not sent again where it would be as it was.
func TestRefusedOnce(t *testing.T) {
	var n atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(server.Close)
	t.Setenv("AZURE_STORAGE_KEY", "c2VjcmV0")
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	for url, want := range map[string]int64{
		"azblob://b?account=a&endpoint=": 1, "azblob://b?account=a&anonymous=true&endpoint=": 1,
		"gs://b?anonymous=true&endpoint=": 1, "s3://b?anonymous=true&endpoint=": 1, "s3://b?endpoint=": 2,
	} {
		n.Store(0)
		l, err := Parse(url + server.URL)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), l, nil); !errors.Is(err, syscall.EACCES) || n.Load() != want {
			t.Errorf("%s: got error %v after %d requests, want %d", url, err, n.Load(), want)
		}
	}
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
	t.Setenv("AZURE_STORAGE_SAS_TOKEN", "sp=r&sig=secret")
	for _, url := range []string{"gs://b?anonymous=true&endpoint=", "s3://b?endpoint=", "azblob://b?account=a&endpoint="} {
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
			b.stall = 500 * time.Millisecond // less than the short pages take together
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
