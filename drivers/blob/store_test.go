package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A store is an S3 server with one object, "dir/object". Tests can replace its
// responses.
type store struct {
	*httptest.Server
	t       testing.TB
	data    []byte
	etag    atomic.Pointer[string]
	getHook atomic.Pointer[http.HandlerFunc] // called first for each request for content
	gets    atomic.Int64
}

func newStore(t testing.TB, size int) *store {
	s := &store{t: t, data: make([]byte, size)}
	r := rand.NewChaCha8([32]byte{1})
	r.Read(s.data)
	s.overwrite("first")
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Server.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	return s
}

func (s *store) overwrite(etag string) { s.etag.Store(&etag) }

// onGet calls f for each request for content. If f writes no response, the store
// does.
func (s *store) onGet(f http.HandlerFunc) { s.getHook.Store(&f) }

// reset removes the function of onGet.
func (s *store) reset() { s.getHook.Store(nil) }

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		s.t.Errorf("method %s: the driver must only read", r.Method)
	}
	etag := `"` + *s.etag.Load() + `"`
	if r.URL.Query().Has("list-type") {
		w.Header().Set("Content-Type", "application/xml")
		fmt.Fprintf(w, `<ListBucketResult><Contents><Key>dir/object</Key><LastModified>2024-05-01T12:00:00.000Z</LastModified><ETag>%s</ETag><Size>%d</Size></Contents></ListBucketResult>`, etag, len(s.data))
		return
	}
	s.gets.Add(1)
	if f := s.getHook.Load(); f != nil {
		recorder := &responseRecorder{ResponseWriter: w}
		if (*f)(recorder, r); recorder.done {
			return
		}
	}
	if m := r.Header.Get("If-Match"); m != etag {
		fail(w, 412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
		return
	}
	w.Header().Set("ETag", etag)
	w.Header().Set("Last-Modified", "Wed, 01 May 2024 12:00:00 GMT")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(s.data))
}

// A responseRecorder records whether a response was written.
type responseRecorder struct {
	http.ResponseWriter
	done bool
}

func (r *responseRecorder) WriteHeader(code int) { r.done = true; r.ResponseWriter.WriteHeader(code) }

func (r *responseRecorder) Write(p []byte) (int, error) {
	r.done = true
	return r.ResponseWriter.Write(p)
}

func (r *responseRecorder) Flush() { http.NewResponseController(r.ResponseWriter).Flush() }

func (r *responseRecorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// hang blocks until the client has cancelled the request. It writes no response.
func hang(w http.ResponseWriter, r *http.Request) {
	w.(*responseRecorder).done = true
	<-r.Context().Done()
}

// fail writes an error response of S3.
func fail(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>%s</Message><RequestId>1</RequestId></Error>`, code, message)
}

// resetConn resets the connection, possibly in the middle of a response.
func resetConn(w http.ResponseWriter) {
	w.(*responseRecorder).done = true
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
}

// open opens the bucket of a store, with short backoffs and a long time-out for
// stalled requests: on a busy machine responses are slow.
func (s *store) open(t testing.TB, query string) *Bucket {
	t.Helper()
	setReadRetries(t, retryPolicy{firstBackoff: time.Millisecond, maxBackoff: 5 * time.Millisecond, timeout: time.Second})
	setPauses(t, time.Millisecond, 0)
	b := openURL(t, "s3://bucket?endpoint="+s.URL+query)
	b.stallTimeout = time.Minute
	return b
}

// setPauses replaces the pauses between renewals, and the time for which the refusal of an object is
// remembered, until the test ends.
func setPauses(t testing.TB, renewal, object time.Duration) {
	old := [...]time.Duration{firstRenewal, lastRenewal, archivedTTL, deniedTTL}
	firstRenewal, lastRenewal, archivedTTL, deniedTTL = renewal, renewal, object, object
	t.Cleanup(func() { firstRenewal, lastRenewal, archivedTTL, deniedTTL = old[0], old[1], old[2], old[3] })
}

// eventuallyReads reads all of o until that succeeds.
func eventuallyReads(t testing.TB, o drivers.Object) (got []byte) {
	t.Helper()
	drivertest.Eventually(t, "the object can be read", func() bool {
		var err error
		got, err = readAll(o)
		return err == nil
	})
	return got
}

// openURL opens a bucket, and closes it when the test ends.
func openURL(t testing.TB, url string) *Bucket {
	t.Helper()
	l, err := Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(context.Background(), l, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// object opens the object of a store.
func (b *Bucket) object(t testing.TB) drivers.Object {
	t.Helper()
	o, err := b.Open(context.Background(), "dir/object")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	return o
}

// readAll reads all of o in one stream.
func readAll(o drivers.Object) ([]byte, error) {
	s, err := o.(drivers.Streamer).Stream(context.Background(), 0, o.Info().Size)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return io.ReadAll(s)
}

// Each permanent response of a store has the documented errno, message and number of
// requests. When the store works again, reads succeed.
func TestErrors(t *testing.T) {
	status := func(code int, name string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { fail(w, code, name, "store's message") }
	}
	for _, tt := range []struct {
		name string
		get  http.HandlerFunc
		want error
		text string
		gets int64 // requests; 0: more than two
	}{
		{"403", status(403, "AccessDenied"), syscall.EACCES, "HTTP 403: AccessDenied: store's message", 1},
		{"403 of an archived object", status(403, "InvalidObjectState"), syscall.EACCES, "InvalidObjectState", 1},
		{"expired credentials", status(400, "ExpiredToken"), syscall.EACCES, "HTTP 400: ExpiredToken: store's message", 2},
		{"401", status(401, "Unauthorized"), syscall.EACCES, "HTTP 401", 2},
		{"404", status(404, "NoSuchKey"), drivers.ErrChanged, "HTTP 404: NoSuchKey: store's message", 1},
		{"412", status(412, "PreconditionFailed"), drivers.ErrChanged, "HTTP 412", 2}, // the second one without a condition
		{"416", status(416, "InvalidRange"), drivers.ErrChanged, "HTTP 416", 1},
		{"429", status(429, "TooManyRequests"), syscall.EIO, "HTTP 429", 0},
		{"500", status(500, "InternalError"), syscall.EIO, "HTTP 500: InternalError: store's message", 0},
		{"503", status(503, "SlowDown"), syscall.EIO, "HTTP 503: SlowDown: store's message", 0},
		{"400", status(400, "InvalidArgument"), syscall.EIO, "HTTP 400: InvalidArgument: store's message", 1},
		{"another region", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Amz-Bucket-Region", "eu-west-7")
			fail(w, 301, "PermanentRedirect", "message")
		}, syscall.ENXIO, "add region=eu-west-7 to the URL", 1},
		{"reset", func(w http.ResponseWriter, r *http.Request) { resetConn(w) }, syscall.EIO, "", 0},
		{"stalled", hang, syscall.ETIMEDOUT, "no response in time", 0},
		{"another version", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"another"`)
			w.WriteHeader(206)
		}, drivers.ErrChanged, "its version is another, want first", 2}, // as above
		{"another size", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", "bytes 0-99999/100001")
			w.WriteHeader(206)
		}, drivers.ErrChanged, "its size is 100001 bytes, want 100000", 1},
		{"another range", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", "bytes 5-100004/100000")
			w.WriteHeader(206)
		}, syscall.EIO, "received the range", 0},
		{"too short", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", "bytes 0-99999/100000")
			w.Header().Set("Content-Length", "5")
			w.WriteHeader(206)
			w.Write([]byte("12345"))
		}, syscall.EIO, "received 5", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore(t, 100_000)
			b := s.open(t, "")
			o := b.object(t)
			s.onGet(tt.get)
			if tt.name == "stalled" {
				b.stallTimeout = 50 * time.Millisecond
			}
			s.gets.Store(0)
			_, err := readAll(o)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got error %v, want %v with %q", err, tt.want, tt.text)
			}
			if e, ok := errors.AsType[*fs.PathError](err); !ok || e.Path != "dir/object" {
				t.Errorf("%v is not a fs.PathError of dir/object", err)
			}
			if got := s.gets.Load(); got != tt.gets && (tt.gets > 0 || got <= 2) {
				t.Errorf("got %d requests, want %d", got, tt.gets)
			}
			if strings.Contains(err.Error(), "Signature=") || strings.Contains(err.Error(), "secret") {
				t.Errorf("the error contains a secret: %v", err)
			}
			s.reset()
			b.stallTimeout = time.Minute
			if !bytes.Equal(eventuallyReads(t, o), s.data) {
				t.Error("when the store works again: wrong data")
			}
		})
	}
}

// Readers do not see transient failures: every read succeeds with the right data.
func TestRetries(t *testing.T) {
	const size = 3<<20 + 17
	var n atomic.Int64
	every := func(k int64, f http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if n.Add(1)%k == 0 {
				f(w, r)
			}
		}
	}
	s := newStore(t, size)
	partial := func(w http.ResponseWriter, r *http.Request, length int) {
		var from, to int
		fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to)
		w.Header().Set("ETag", `"first"`)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, size))
		w.Header().Set("Content-Length", strconv.Itoa(to-from+1))
		w.WriteHeader(206)
		w.Write(s.data[from:min(from+length, to+1)])
	}
	for _, tt := range []struct {
		name string
		f    http.HandlerFunc
	}{
		{"503", func(w http.ResponseWriter, r *http.Request) { fail(w, 503, "SlowDown", "x") }},
		{"reset", func(w http.ResponseWriter, r *http.Request) { resetConn(w) }},
		{"truncated", func(w http.ResponseWriter, r *http.Request) { partial(w, r, 70_001) }},
		{"stalled in the middle", func(w http.ResponseWriter, r *http.Request) {
			partial(w, r, 70_001)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}},
		{"reset in the middle", func(w http.ResponseWriter, r *http.Request) { partial(w, r, 70_001); resetConn(w) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := s.open(t, "")
			readRetries.timeout = time.Minute
			if strings.HasPrefix(tt.name, "stalled") {
				b.stallTimeout = 200 * time.Millisecond
			}
			o := b.object(t)
			s.onGet(every(2, tt.f))
			for range 3 {
				if got, err := readAll(o); err != nil || !bytes.Equal(got, s.data) {
					t.Fatalf("got %d bytes, error %v, or wrong data", len(got), err)
				}
			}
			// After a reset of an idle connection net/http itself repeats the request.
			if st := b.Stats(); st.Retries == 0 && tt.name != "reset" || st.Bytes != 3*size || st.Others != 0 || (tt.name == "503") != (st.Throttled > 0) {
				t.Errorf("Stats: got %+v", st)
			}
		})
	}
}

// An eofVendor is a vendor whose bodies return the last bytes and the error, such as
// io.EOF, in one Read.
type eofVendor struct{ vendor }

func (v eofVendor) read(ctx context.Context, key, version string, off, n int64) (io.ReadCloser, error) {
	r, err := v.vendor.read(ctx, key, version, off, n)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	if err == nil {
		err = io.EOF
	}
	return &eofBody{r, data, err}, nil
}

type eofBody struct {
	io.Closer
	data []byte
	err  error
}

func (b *eofBody) Read(p []byte) (int, error) {
	n := copy(p, b.data)
	if b.data = b.data[n:]; len(b.data) > 0 {
		return n, nil
	}
	return n, b.err
}

// A Read that returns data and an error is handled like one that returns the data,
// followed by one that returns the error.
func TestErrorWithData(t *testing.T) {
	const size, maxBody = 100_000, 10_000
	s := newStore(t, size)
	b := s.open(t, "")
	b.vendor = eofVendor{b.vendor}
	o := b.object(t)
	s.onGet(func(w http.ResponseWriter, r *http.Request) {
		var from int
		fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
		w.Header().Set("ETag", `"first"`)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, size-1, size))
		w.Header().Set("Content-Length", strconv.Itoa(size-from))
		w.WriteHeader(206)
		w.Write(s.data[from:min(from+maxBody, size)])
	})
	if got, err := readAll(o); err != nil || !bytes.Equal(got, s.data) {
		t.Errorf("got %d bytes, error %v, or wrong data", len(got), err)
	}
	if st := b.Stats(); st.Gets != size/maxBody || st.Retries != st.Gets-1 {
		t.Errorf("Stats: got %+v", st)
	}
}

func TestRetryAfter(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": 0, "3": 3 * time.Second, "0.5": 500 * time.Millisecond, "-1": 0, "soon": 0,
		time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat): 0,
	} {
		if got := retryAfter(http.Header{"Retry-After": {value}}); got != want {
			t.Errorf("Retry-After %q: got %v, want %v", value, got, want)
		}
	}
	if got := retryAfter(http.Header{"Retry-After": {time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)}}); got < 50*time.Minute {
		t.Errorf("Retry-After in an hour: got %v", got)
	}
	b := new(Bucket)
	retry := b.retrier(retryPolicy{firstBackoff: 1, maxBackoff: 1, timeout: time.Hour})
	start := time.Now()
	if err := retry.wait(context.Background(), &storeError{retryable: true, retryAfter: 50 * time.Millisecond}); err != nil || time.Since(start) < 50*time.Millisecond {
		t.Errorf("retried after %v, error %v", time.Since(start), err)
	}
	slow := &storeError{errno: syscall.EIO, retryable: true, retryAfter: 2 * time.Hour}
	if err := retry.wait(context.Background(), slow); err != error(slow) {
		t.Errorf("a Retry-After beyond the time-out: got error %v, want %v", err, slow)
	}
	if b.counters.Retries != 1 {
		t.Errorf("counted %d retries, want 1", b.counters.Retries)
	}
}

// A stream that starts with one version never returns data of another version.
func TestNeverAMixtureInOneStream(t *testing.T) {
	s := newStore(t, 1<<20)
	b := s.open(t, "")
	o := b.object(t)
	s.onGet(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"first"`)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", 1<<20-1, 1<<20))
		w.Header().Set("Content-Length", strconv.Itoa(1<<20))
		w.WriteHeader(206)
		w.Write(s.data[:1000])
		s.overwrite("second")
		s.reset()
	})
	got, err := readAll(o)
	if !errors.Is(err, drivers.ErrChanged) || !bytes.Equal(got, s.data[:len(got)]) {
		t.Errorf("got %d bytes, error %v", len(got), err)
	}
}

// When credentials have expired, the driver reads the file with the credentials
// again.
func TestCredentialsAreRenewed(t *testing.T) {
	s := newStore(t, 1000)
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	file := filepath.Join(t.TempDir(), "credentials")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	write := func(id string) {
		if err := os.WriteFile(file, []byte("[default]\naws_access_key_id = "+id+"\naws_secret_access_key = secret\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("old")
	b := s.open(t, "")
	o := b.object(t)
	if _, err := readAll(o); err != nil {
		t.Fatal(err)
	}
	s.onGet(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Authorization"), "Credential=new/") {
			fail(w, 400, "ExpiredToken", "The provided token has expired.")
		}
	})
	if _, err := readAll(o); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("with expired credentials: %v", err)
	}
	write("new")
	if !bytes.Equal(eventuallyReads(t, o), s.data) {
		t.Error("with new credentials: wrong data")
	}
	if id, err := b.Identity(context.Background()); err != nil || !strings.Contains(id, "new") || strings.Contains(id, "secret ") {
		t.Errorf("Identity: got %q, error %v", id, err)
	}
}

// A slow request is hedged by a second one, and cancelled when that has a response.
func TestHedge(t *testing.T) {
	s := newStore(t, 1000)
	b := s.open(t, "&hedge=20ms")
	o := b.object(t)
	var gets atomic.Int64
	cancelled := make(chan struct{})
	s.onGet(func(w http.ResponseWriter, r *http.Request) {
		if gets.Add(1) == 1 {
			hang(w, r)
			close(cancelled)
		}
	})
	if got, err := readAll(o); err != nil || !bytes.Equal(got, s.data) {
		t.Errorf("got error %v, or wrong data", err)
	}
	<-cancelled
	if st := b.Stats(); st.Hedges != 1 || st.Retries != 0 {
		t.Errorf("Stats: got %+v", st)
	}
	s.onGet(func(w http.ResponseWriter, r *http.Request) { fail(w, 403, "AccessDenied", "x") })
	if _, err := readAll(o); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("the first response is an error: got error %v", err)
	}
}

func TestOpenErrors(t *testing.T) {
	old := openRetries
	openRetries = retryPolicy{firstBackoff: time.Millisecond, maxBackoff: time.Millisecond, timeout: 5 * time.Millisecond}
	t.Cleanup(func() { openRetries = old })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	noServer := "http://" + l.Addr().String()
	// A label has at most 63 bytes, so no name server is queried.
	noHost := strings.Repeat("x", 64) + ".invalid"
	serve := func(f http.HandlerFunc) string {
		s := httptest.NewServer(f)
		t.Cleanup(s.Close)
		return s.URL
	}
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	secure.Config.ErrorLog = nil
	t.Cleanup(secure.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	for _, tt := range []struct {
		name, url, text string
		want            error
	}{
		{"no server", "s3://b?endpoint=" + noServer, "refused", syscall.ECONNREFUSED},
		{"no such host", "s3://b?endpoint=http://" + noHost, noHost, syscall.EHOSTUNREACH},
		{"certificate", "s3://b?endpoint=" + secure.URL, "certificate", syscall.EPROTO},
		{"no TLS", "s3://b?endpoint=" + strings.Replace(serve(nil), "http:", "https:", 1), "server gave HTTP response", syscall.EPROTO},
		{"no bucket", "s3://b?endpoint=" + serve(func(w http.ResponseWriter, r *http.Request) {
			fail(w, 404, "NoSuchBucket", "The specified bucket does not exist")
		}), "NoSuchBucket: The specified bucket does not exist", fs.ErrNotExist},
		{"forbidden", "s3://b?endpoint=" + serve(func(w http.ResponseWriter, r *http.Request) { fail(w, 403, "AccessDenied", "message") }), "AccessDenied: message", fs.ErrPermission},
		{"no key below the prefix", "s3://b/p?endpoint=" + serve(func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "<ListBucketResult><Name>b</Name></ListBucketResult>")
		}), "no key that begins with p/", fs.ErrNotExist},
		{"not an S3 server", "s3://b?endpoint=" + serve(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "<html>Hello") }), "", syscall.EIO},
		{"region", "s3://b", "add region= to the URL", syscall.EINVAL},
		{"account", "azblob://b", "add account= to the URL", syscall.EINVAL},
		{"unencrypted token", "gs://b?endpoint=http://example.org", "add anonymous=true", syscall.EINVAL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := Parse(tt.url)
			if err != nil {
				t.Fatal(err)
			}
			_, err = Open(context.Background(), l, nil)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got error %v, want %v with %q", err, tt.want, tt.text)
			}
		})
	}
}

// Messages never contain the query of a URL, which can be a signature.
func TestMessagesShowNoQuery(t *testing.T) {
	err := &url.Error{Op: "Get", URL: "https://x.example/y?sig=SECRET", Err: errors.New("redirect to https://x.example/z?sp=r&sig=SECRET failed")}
	for _, err := range []error{err, fmt.Errorf("get: %w", err), errors.New("GET https://x.example/y?a=b&sig=SECRET: no")} {
		if got := message(&trace{}, "", "", err); strings.Contains(got, "SECRET") || strings.Contains(got, "\n") {
			t.Errorf("%q contains a secret", got)
		}
	}
	if got := message(&trace{}, "", strings.Repeat("é", 1000), errors.New("x")); len(got) > maxMessage+3 {
		t.Errorf("the message has %d bytes, want at most %d", len(got), maxMessage+3)
	}
}
