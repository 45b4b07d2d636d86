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
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A store is a server that has one object, "dir/object", and answers as S3 does
// except where a test says otherwise.
type store struct {
	*httptest.Server
	t      testing.TB
	data   []byte
	etag   atomic.Pointer[string]
	before atomic.Pointer[http.HandlerFunc] // answers a request for content, unless it does nothing
	gets   atomic.Int64
	after  time.Duration // before each answer
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

// answer has requests for content be answered by f. What f does not answer is.
func (s *store) answer(f http.HandlerFunc) { s.before.Store(&f) }

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		s.t.Errorf("a request of the method %s: a source is only read", r.Method)
	}
	etag := `"` + *s.etag.Load() + `"`
	if r.URL.Query().Has("list-type") {
		w.Header().Set("Content-Type", "application/xml")
		fmt.Fprintf(w, `<ListBucketResult><Contents><Key>dir/object</Key><LastModified>2024-05-01T12:00:00.000Z</LastModified><ETag>%s</ETag><Size>%d</Size></Contents></ListBucketResult>`, etag, len(s.data))
		return
	}
	s.gets.Add(1)
	time.Sleep(s.after)
	if f := s.before.Load(); f != nil {
		a := &answered{ResponseWriter: w}
		if (*f)(a, r); a.done {
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

// answered notices whether something was answered.
type answered struct {
	http.ResponseWriter
	done bool
}

func (a *answered) WriteHeader(code int)        { a.done = true; a.ResponseWriter.WriteHeader(code) }
func (a *answered) Write(p []byte) (int, error) { a.done = true; return a.ResponseWriter.Write(p) }
func (a *answered) Flush()                      { http.NewResponseController(a.ResponseWriter).Flush() }
func (a *answered) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// fail answers as S3 does when it cannot.
func fail(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>%s</Message><RequestId>1</RequestId></Error>`, code, message)
}

// cut ends the connection in the middle of an answer.
func cut(w http.ResponseWriter) {
	w.(*answered).done = true
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
}

// open opens the bucket of a store, and makes it impatient, but for answers: a
// busy machine can be as slow as any store.
func (s *store) open(t testing.TB, query string) *Bucket {
	t.Helper()
	impatient(t, patience{first: time.Millisecond, most: 5 * time.Millisecond, limit: time.Second})
	b := openURL(t, "s3://bucket?endpoint="+s.URL+query)
	b.stall = time.Minute
	return b
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

// What a store answers, and goes on answering, and what a program is told.
func TestErrors(t *testing.T) {
	status := func(code int, name string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { fail(w, code, name, "the store says why") }
	}
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		want   error
		text   string
		gets   int64 // requests; 0: more than two
	}{
		{"403", status(403, "AccessDenied"), syscall.EACCES, "HTTP 403: AccessDenied: the store says why", 1},
		{"403 of an archived object", status(403, "InvalidObjectState"), syscall.EACCES, "InvalidObjectState", 1},
		{"expired credentials", status(400, "ExpiredToken"), syscall.EACCES, "HTTP 400: ExpiredToken: the store says why", 2},
		{"401", status(401, "Unauthorized"), syscall.EACCES, "HTTP 401", 2},
		{"404", status(404, "NoSuchKey"), drivers.ErrChanged, "HTTP 404: NoSuchKey: the store says why", 1},
		{"412", status(412, "PreconditionFailed"), drivers.ErrChanged, "HTTP 412", 1},
		{"416", status(416, "InvalidRange"), drivers.ErrChanged, "HTTP 416", 1},
		{"429", status(429, "TooManyRequests"), syscall.EIO, "HTTP 429", 0},
		{"500", status(500, "InternalError"), syscall.EIO, "HTTP 500: InternalError: the store says why", 0},
		{"503", status(503, "SlowDown"), syscall.EIO, "HTTP 503: SlowDown: the store says why", 0},
		{"400", status(400, "InvalidArgument"), syscall.EIO, "HTTP 400: InvalidArgument: the store says why", 1},
		{"another region", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Amz-Bucket-Region", "eu-west-7")
			fail(w, 301, "PermanentRedirect", "the store says where")
		}, syscall.ENXIO, "add region=eu-west-7 to the URL", 1},
		{"reset", func(w http.ResponseWriter, r *http.Request) { cut(w) }, syscall.EIO, "", 0},
		{"nothing", func(w http.ResponseWriter, r *http.Request) { w.(*answered).done = true; <-r.Context().Done() }, syscall.ETIMEDOUT, "no answer in time", 0},
		{"another version", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"another"`)
			w.WriteHeader(206)
		}, drivers.ErrChanged, "it is another now, and was first", 1},
		{"another size", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", "bytes 0-99999/100001")
			w.WriteHeader(206)
		}, drivers.ErrChanged, "has 100001 bytes now, and had 100000", 1},
		{"another range", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", "bytes 5-100004/100000")
			w.WriteHeader(206)
		}, syscall.EIO, "answered with the range", 0},
		{"too short", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", "bytes 0-99999/100000")
			w.Header().Set("Content-Length", "5")
			w.WriteHeader(206)
			w.Write([]byte("12345"))
		}, syscall.EIO, "answered with 5", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore(t, 100_000)
			b := s.open(t, "")
			o := b.object(t)
			s.answer(tt.answer)
			if tt.name == "nothing" {
				b.stall = 50 * time.Millisecond
			}
			s.gets.Store(0)
			_, err := readAll(o)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got error %v, want %v with %q", err, tt.want, tt.text)
			}
			if e, ok := errors.AsType[*fs.PathError](err); !ok || e.Path != "dir/object" {
				t.Errorf("%v does not say of which file it is", err)
			}
			if got := s.gets.Load(); got != tt.gets && (tt.gets > 0 || got <= 2) {
				t.Errorf("%d requests were sent, want %d", got, tt.gets)
			}
			if strings.Contains(err.Error(), "Signature=") || strings.Contains(err.Error(), "secret") {
				t.Errorf("a secret is shown: %v", err)
			}
			s.answer(func(http.ResponseWriter, *http.Request) {})
			b.stall = time.Minute
			if got, err := readAll(o); err != nil || !bytes.Equal(got, s.data) {
				t.Errorf("when the store is well again: %v, or other bytes", err)
			}
		})
	}
}

// What passes is not seen, and not a byte is wrong.
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
	partly := func(w http.ResponseWriter, r *http.Request, length int) {
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
		{"reset", func(w http.ResponseWriter, r *http.Request) { cut(w) }},
		{"truncated", func(w http.ResponseWriter, r *http.Request) { partly(w, r, 70_001) }},
		{"stalled in the middle", func(w http.ResponseWriter, r *http.Request) {
			partly(w, r, 70_001)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}},
		{"reset in the middle", func(w http.ResponseWriter, r *http.Request) { partly(w, r, 70_001); cut(w) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := s.open(t, "")
			reading.limit = time.Minute
			if strings.HasPrefix(tt.name, "stalled") {
				b.stall = 200 * time.Millisecond
			}
			o := b.object(t)
			s.answer(every(2, tt.f))
			for range 3 {
				if got, err := readAll(o); err != nil || !bytes.Equal(got, s.data) {
					t.Fatalf("%d bytes, %v, or other bytes", len(got), err)
				}
			}
			// The Go library itself sends again what a connection that was idle
			// did not take.
			if st := b.Stats(); st.Retries == 0 && tt.name != "reset" || st.Bytes != 3*size || st.Others != 0 || (tt.name == "503") != (st.Throttled > 0) {
				t.Errorf("counted %+v", st)
			}
		})
	}
}

// An eager is a vendor whose answers end together with the last bytes of them,
// and not after those.
type eager struct{ vendor }

func (e eager) read(ctx context.Context, key, version string, off, n int64) (io.ReadCloser, error) {
	r, err := e.vendor.read(ctx, key, version, off, n)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	if err == nil {
		err = io.EOF
	}
	return &eagerBody{r, data, err}, nil
}

type eagerBody struct {
	io.Closer
	data []byte
	end  error
}

func (b *eagerBody) Read(p []byte) (int, error) {
	n := copy(p, b.data)
	if b.data = b.data[n:]; len(b.data) > 0 {
		return n, nil
	}
	return n, b.end
}

// An error that comes together with bytes is dealt with as one after them.
func TestErrorsTogetherWithBytes(t *testing.T) {
	const size, most = 100_000, 10_000
	s := newStore(t, size)
	b := s.open(t, "")
	b.vendor = eager{b.vendor}
	o := b.object(t)
	s.answer(func(w http.ResponseWriter, r *http.Request) {
		var from int
		fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
		w.Header().Set("ETag", `"first"`)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, size-1, size))
		w.Header().Set("Content-Length", strconv.Itoa(size-from))
		w.WriteHeader(206)
		w.Write(s.data[from:min(from+most, size)])
	})
	if got, err := readAll(o); err != nil || !bytes.Equal(got, s.data) {
		t.Errorf("%d bytes, %v, or other bytes", len(got), err)
	}
	if st := b.Stats(); st.Gets != size/most || st.Retries != st.Gets-1 {
		t.Errorf("counted %+v", st)
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
	var retries int64
	e := effort{patience: patience{first: 1, most: 1, limit: time.Hour}, retries: &retries}
	start := time.Now()
	if err := e.again(context.Background(), nil, &storeError{again: true, after: 50 * time.Millisecond}); err != nil || time.Since(start) < 50*time.Millisecond {
		t.Errorf("asked again after %v, %v", time.Since(start), err)
	}
	slow := &storeError{errno: syscall.EIO, again: true, after: 2 * time.Hour}
	if err := e.again(context.Background(), nil, slow); err != error(slow) {
		t.Errorf("waits longer than the limit: %v", err)
	}
	if retries != 1 {
		t.Errorf("%d retries are counted", retries)
	}
}

// A stream that was begun with one version never ends with another.
func TestNeverAMixtureInOneStream(t *testing.T) {
	s := newStore(t, 1<<20)
	b := s.open(t, "")
	o := b.object(t)
	s.answer(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"first"`)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", 1<<20-1, 1<<20))
		w.Header().Set("Content-Length", strconv.Itoa(1<<20))
		w.WriteHeader(206)
		w.Write(s.data[:1000])
		s.overwrite("second")
		s.answer(func(http.ResponseWriter, *http.Request) {})
	})
	got, err := readAll(o)
	if !errors.Is(err, drivers.ErrChanged) || !bytes.Equal(got, s.data[:len(got)]) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// Credentials that a file has new are found when those that were read have
// expired.
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
	s.answer(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Authorization"), "Credential=new/") {
			fail(w, 400, "ExpiredToken", "The provided token has expired.")
		}
	})
	if _, err := readAll(o); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("with expired credentials: %v", err)
	}
	write("new")
	if got, err := readAll(o); err != nil || !bytes.Equal(got, s.data) {
		t.Errorf("with new credentials: %v", err)
	}
	if id, err := b.Identity(context.Background()); err != nil || !strings.Contains(id, "new") || strings.Contains(id, "secret ") {
		t.Errorf("identity %q, %v", id, err)
	}
}

// A request that is answered slowly is overtaken by another.
func TestHedge(t *testing.T) {
	s := newStore(t, 1000)
	b := s.open(t, "&hedge=20ms")
	o := b.object(t)
	var asked atomic.Int64
	lost := make(chan struct{})
	s.answer(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			w.(*answered).done = true
			<-r.Context().Done()
			close(lost)
		}
	})
	if got, err := readAll(o); err != nil || !bytes.Equal(got, s.data) {
		t.Errorf("%v, or other bytes", err)
	}
	<-lost // or this hangs: the slow request is ended
	if st := b.Stats(); st.Hedges != 1 || st.Retries != 0 {
		t.Errorf("counted %+v", st)
	}
	s.answer(func(w http.ResponseWriter, r *http.Request) { fail(w, 403, "AccessDenied", "x") })
	if _, err := readAll(o); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("when the first answer is an error: %v", err)
	}
}

func TestOpenErrors(t *testing.T) {
	old := opening
	opening = patience{first: time.Millisecond, most: time.Millisecond, limit: 5 * time.Millisecond}
	t.Cleanup(func() { opening = old })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	nobody := "http://" + l.Addr().String()
	noHost := strings.Repeat("x", 64) + ".invalid" // no name has such a part, so no server is asked
	lists := func(f http.HandlerFunc) string {
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
		{"nobody there", "s3://b?endpoint=" + nobody, "refused", syscall.ECONNREFUSED},
		{"no such host", "s3://b?endpoint=http://" + noHost, noHost, syscall.EHOSTUNREACH},
		{"certificate", "s3://b?endpoint=" + secure.URL, "certificate", syscall.EPROTO},
		{"no TLS", "s3://b?endpoint=" + strings.Replace(lists(nil), "http:", "https:", 1), "server gave HTTP response", syscall.EPROTO},
		{"no bucket", "s3://b?endpoint=" + lists(func(w http.ResponseWriter, r *http.Request) {
			fail(w, 404, "NoSuchBucket", "The specified bucket does not exist")
		}), "NoSuchBucket: The specified bucket does not exist", fs.ErrNotExist},
		{"forbidden", "s3://b?endpoint=" + lists(func(w http.ResponseWriter, r *http.Request) { fail(w, 403, "AccessDenied", "Not you") }), "AccessDenied: Not you", fs.ErrPermission},
		{"nothing there", "s3://b/p?endpoint=" + lists(func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "<ListBucketResult><Name>b</Name></ListBucketResult>")
		}), "no key that begins with p/", fs.ErrNotExist},
		{"no S3", "s3://b?endpoint=" + lists(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "<html>Hello") }), "", syscall.EIO},
		{"region", "s3://b", "add region= to the URL", syscall.EINVAL},
		{"account", "azblob://b", "add account= to the URL", syscall.EINVAL},
		{"token in the clear", "gs://b?endpoint=http://example.org", "add anonymous=true", syscall.EINVAL},
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

// The query of a URL can be a signature.
func TestMessagesShowNoQuery(t *testing.T) {
	err := &url.Error{Op: "Get", URL: "https://x.example/y?sig=SECRET", Err: errors.New("redirect to https://x.example/z?sp=r&sig=SECRET failed")}
	for _, err := range []error{err, fmt.Errorf("asking: %w", err), errors.New("GET https://x.example/y?a=b&sig=SECRET: no")} {
		if got := message(&trace{}, "", "", err); strings.Contains(got, "SECRET") || strings.Contains(got, "\n") {
			t.Errorf("%q shows a secret", got)
		}
	}
	if got := message(&trace{}, "", strings.Repeat("é", 1000), errors.New("x")); len(got) > longest+3 {
		t.Errorf("a message has %d bytes", len(got))
	}
}

// What is read in order comes in long requests, and whoever jumps about is not
// sent what nobody has asked for.
func TestReadAhead(t *testing.T) {
	const size = 40<<20 + 12345
	s := newStore(t, size)
	b := s.open(t, "")
	t.Run("in order", func(t *testing.T) {
		o := b.object(t)
		s.gets.Store(0)
		before := b.Stats().Bytes
		p := make([]byte, 128<<10)
		for off := int64(0); off < size; off += int64(len(p)) {
			n, err := o.ReadAt(context.Background(), p, off)
			if err != nil && err != io.EOF || !bytes.Equal(p[:n], s.data[off:off+int64(n)]) || n < len(p) && off+int64(n) != size {
				t.Fatalf("at %d: %d, %v, or other bytes", off, n, err)
			}
		}
		if got := s.gets.Load(); got > 10 {
			t.Errorf("%d requests for %d bytes", got, size)
		}
		if got := b.Stats().Bytes - before; got != size {
			t.Errorf("%d bytes came for %d", got, size)
		}
	})
	t.Run("here and there", func(t *testing.T) {
		o := b.object(t)
		before := b.Stats().Bytes
		r := rand.New(rand.NewPCG(1, 2))
		p := make([]byte, 4096)
		for range 200 {
			off := 4096 * r.Int64N(size/4096)
			n, err := o.ReadAt(context.Background(), p, off)
			if err != nil && err != io.EOF || !bytes.Equal(p[:n], s.data[off:off+int64(n)]) {
				t.Fatalf("at %d: %d, %v, or other bytes", off, n, err)
			}
		}
		if got := b.Stats().Bytes - before; got > 20<<20 {
			t.Errorf("%d bytes came for %d", got, 200*len(p))
		}
	})
	t.Run("by many", func(t *testing.T) {
		o := b.object(t)
		var readers sync.WaitGroup
		for i := range 8 {
			readers.Go(func() {
				r := rand.New(rand.NewPCG(3, uint64(i)))
				p := make([]byte, 300_000)
				off := r.Int64N(size)
				for range 150 {
					if r.IntN(20) == 0 {
						off = r.Int64N(size)
					}
					n, err := o.ReadAt(context.Background(), p[:1+r.IntN(len(p))], off)
					if err != nil && err != io.EOF || !bytes.Equal(p[:n], s.data[off:off+int64(n)]) {
						t.Errorf("at %d: %d, %v, or other bytes", off, n, err)
						return
					}
					if off += int64(n); off >= size {
						off = 0
					}
				}
			})
		}
		readers.Wait()
	})
	t.Run("errors", func(t *testing.T) {
		o := b.object(t)
		s.answer(func(w http.ResponseWriter, r *http.Request) { fail(w, 403, "AccessDenied", "x") })
		p := make([]byte, 4096)
		if _, err := o.ReadAt(context.Background(), p, 0); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("got %v", err)
		}
		s.answer(func(http.ResponseWriter, *http.Request) {})
		if _, err := o.ReadAt(context.Background(), p, 0); err != nil || !bytes.Equal(p, s.data[:4096]) {
			t.Errorf("after an error: %v", err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := o.ReadAt(ctx, p, 30<<20); !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that is done: %v", err)
		}
	})
	// All memory is given back: whoever is last can have it.
	b.streams.Wait()
	o := b.object(t)
	if _, err := o.ReadAt(context.Background(), make([]byte, 10), 0); err != nil {
		t.Error(err)
	}
	o.Close()
	b.streams.Wait()
}

// When all objects are closed no memory is held for reading ahead.
func TestReadAheadGivesBack(t *testing.T) {
	s := newStore(t, 20<<20)
	b := s.open(t, "")
	for range 30 {
		o, err := b.Open(context.Background(), "dir/object")
		if err != nil {
			t.Fatal(err)
		}
		p := make([]byte, 1<<20)
		for off := range int64(5) {
			if _, err := o.ReadAt(context.Background(), p, off<<20); err != nil {
				t.Fatal(err)
			}
		}
		o.Close()
	}
	b.streams.Wait()
	if !b.chunks.TryAcquire(maxChunks) {
		t.Error("memory is held that nobody reads")
	}
}
