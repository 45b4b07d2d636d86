package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
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
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// logTo makes the bucket log to a buffer, which is returned.
func (b *Bucket) logTo() *drivertest.Buffer {
	out := new(drivertest.Buffer)
	b.log = slog.New(slog.NewTextHandler(out, nil))
	return out
}

// An archived object takes one request, however often and in however many parts it is read. Its opens
// fail, too. After a Stat, or the time of the refusal, it is requested once more.
func TestArchivedObject(t *testing.T) {
	for _, query := range []string{"", "&hedge=1h"} {
		s := newStore(t, 1<<20)
		b := s.open(t, query)
		setPauses(t, time.Millisecond, time.Hour)
		log := b.logTo()
		b.refused.archives.Store(true) // as after a listing
		s.onGet(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(10 * time.Millisecond) // so that others could be sent meanwhile
			fail(w, 403, "InvalidObjectState", "The operation is not valid for the object's storage class")
		})
		s.gets.Store(0)
		info, err := b.Stat(t.Context(), "dir/object")
		if err != nil {
			t.Fatal(err)
		}
		o, err := b.OpenVersion(t.Context(), "dir/object", info)
		if err != nil {
			t.Fatal(err)
		}
		var readers sync.WaitGroup
		for i := range 8 {
			readers.Go(func() {
				for range 3 {
					if _, err := o.ReadAt(t.Context(), make([]byte, 1000), int64(i)*100_000); !errors.Is(err, syscall.EACCES) || !errors.Is(err, drivers.ErrReported) {
						t.Errorf("read: got error %v", err)
					}
				}
			})
		}
		readers.Wait()
		for range 3 {
			if _, err := b.OpenVersion(t.Context(), "dir/object", info); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("open: got error %v", err)
			}
		}
		if _, err := b.Open(t.Context(), "dir/object"); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("open of a name: got error %v", err)
		}
		if n := s.gets.Load(); n != 1 {
			t.Errorf("%q: %d requests, want 1", query, n)
		}
		if st := b.Stats(); st.Archived != 1 || st.Denied != 0 || st.Refused != "" {
			t.Errorf("Stats: got %+v", st)
		}
		if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "restore-object") || !strings.Contains(got, "path=dir/object") {
			t.Errorf("logged %q", got)
		}

		if err := b.Refused("dir/object", info.Version); !errors.Is(err, fs.ErrPermission) || !strings.Contains(Remedy(err), "restore-object") {
			t.Errorf("Refused: %v", err)
		}
		if err := b.Refused("dir/object", "another"); err != nil {
			t.Errorf("Refused, of another version: %v", err)
		}
		for i, name := range []string{"dir", "di", ".", "dir/object", "dir/object/below"} {
			b.Retry([]string{"other", name})
			requests := []int64{2, 2, 3, 4, 4}[i]
			if _, err := b.OpenVersion(t.Context(), "dir/object", info); !errors.Is(err, fs.ErrPermission) || s.gets.Load() != requests {
				t.Errorf("open after a Retry of %s: got error %v after %d requests, want %d", name, err, s.gets.Load(), requests)
			}
		}
		s.reset()
		if _, err := readAll(o); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("read before the next request: got error %v", err)
		}
		b.Retry([]string{"dir/object"})
		if err := b.Refused("dir/object", ""); err != nil {
			t.Errorf("Refused, after a Retry: %v", err)
		}
		again := b.object(t)
		if got, err := readAll(again); err != nil || !bytes.Equal(got, s.data) {
			t.Errorf("restored: got error %v, or wrong data", err)
		}
		if st := b.Stats(); st.Archived != 0 || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("restored: got %+v, log %q", st, log)
		}
	}
}

// If the next request for an archived object fails for another reason, that is not taken for a refusal.
func TestRestoredObject(t *testing.T) {
	for _, status := range []int{http.StatusServiceUnavailable, http.StatusNotFound} {
		s := newStore(t, 1000)
		b := s.open(t, "")
		setPauses(t, time.Millisecond, time.Hour)
		o := b.object(t)
		s.onGet(func(w http.ResponseWriter, r *http.Request) { fail(w, 403, "InvalidObjectState", "x") })
		if _, err := readAll(o); !errors.Is(err, syscall.EACCES) {
			t.Fatalf("got error %v", err)
		}
		var gets atomic.Int64
		s.onGet(func(w http.ResponseWriter, r *http.Request) {
			if gets.Add(1) == 1 {
				fail(w, status, "another", "x")
			}
		})
		b.Retry([]string{"dir/object"})
		for range 2 {
			if o, err := b.OpenVersion(t.Context(), "dir/object", o.Info()); err != nil {
				t.Errorf("%d: open: %v", status, err)
			} else if got, err := readAll(o); err != nil || !bytes.Equal(got, s.data) {
				t.Errorf("%d: got error %v, or wrong data", status, err)
			}
		}
		if st := b.Stats(); st.Archived != 0 {
			t.Errorf("%d: got %+v", status, st)
		}
	}
}

// In a bucket with archived objects, only the first request for an object is sent alone.
func TestOnlyTheFirstRequestIsAlone(t *testing.T) {
	const readers = 8
	s := newStore(t, 1<<20)
	b := s.open(t, "")
	b.refused.archives.Store(true)
	var gets, waiting atomic.Int64
	all := make(chan struct{})
	s.onGet(func(w http.ResponseWriter, r *http.Request) {
		if gets.Add(1) == 1 {
			fail(w, 404, "NoSuchKey", "x")
			return
		}
		if waiting.Add(1) == readers-1 {
			close(all)
		}
		<-all
	})
	o := b.object(t)
	var wg sync.WaitGroup
	for i := range readers {
		wg.Go(func() { o.ReadAt(t.Context(), make([]byte, 1000), int64(i)*100_000) })
	}
	wg.Wait()
	if got := waiting.Load(); got != readers-1 {
		t.Errorf("%d requests were in flight at once, want %d", got, readers-1)
	}
}

// Objects that the store denies are remembered for a shorter time, and a new version of a refused object is
// requested at once.
func TestDeniedObject(t *testing.T) {
	s := newStore(t, 1000)
	b := s.open(t, "")
	setPauses(t, time.Millisecond, time.Hour)
	o := b.object(t)
	s.onGet(func(w http.ResponseWriter, r *http.Request) { fail(w, 403, "AccessDenied", "x") })
	s.gets.Store(0)
	for range 5 {
		if _, err := readAll(o); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("got error %v", err)
		}
	}
	if st := b.Stats(); st.Denied != 1 || st.Archived != 0 || s.gets.Load() != 1 {
		t.Errorf("got %+v after %d requests", st, s.gets.Load())
	}
	s.reset()
	s.overwrite("second")
	infos, err := b.ReadDir(t.Context(), "dir")
	if err != nil {
		t.Fatal(err)
	}
	o, err = b.OpenVersion(t.Context(), "dir/object", infos[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readAll(o); err != nil || b.Stats().Denied != 0 {
		t.Errorf("a new version: got error %v, %+v", err, b.Stats())
	}
}

// The archive tiers of Azure, and listings with archived objects.
func TestArchiveTiers(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AZURE_STORAGE_KEY", "c2VjcmV0")
	const when = "<Last-Modified>Wed, 01 May 2024 12:00:00 GMT</Last-Modified>"
	for _, c := range []struct {
		url, listing, code string
		status             int
		archives           bool
	}{
		{"azblob://b?account=a&endpoint=", "<EnumerationResults><Blobs><Blob><Name>f</Name><Properties>" + when + "<Content-Length>9</Content-Length><AccessTier>Archive</AccessTier></Properties></Blob></Blobs></EnumerationResults>", "BlobArchived", 409, true},
		{"azblob://b?account=a&endpoint=", "<EnumerationResults><Blobs><Blob><Name>f</Name><Properties>" + when + "<Content-Length>9</Content-Length><AccessTier>Hot</AccessTier></Properties></Blob></Blobs></EnumerationResults>", "BlobBeingRehydrated", 409, false},
		{"s3://b?endpoint=", "<ListBucketResult><Contents><Key>f</Key><Size>9</Size><StorageClass>DEEP_ARCHIVE</StorageClass></Contents></ListBucketResult>", "InvalidObjectState", 403, true},
		{"s3://b?endpoint=", "<ListBucketResult><Contents><Key>f</Key><Size>9</Size><StorageClass>GLACIER_IR</StorageClass></Contents></ListBucketResult>", "InvalidObjectState", 403, false},
	} {
		var gets atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if query := r.URL.Query(); query.Has("list-type") || query.Get("comp") == "list" {
				w.Header().Set("Content-Type", "application/xml")
				fmt.Fprint(w, c.listing)
				return
			}
			gets.Add(1)
			w.Header().Set("x-ms-error-code", c.code)
			fail(w, c.status, c.code, "x")
		}))
		t.Cleanup(server.Close)
		b := openURL(t, c.url+server.URL)
		if got := b.refused.archives.Load(); got != c.archives {
			t.Errorf("%s: the listing shows archives: got %v, want %v", c.code, got, c.archives)
		}
		o, err := b.Open(t.Context(), "f")
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := readAll(o); !errors.Is(err, syscall.EACCES) {
				t.Errorf("%s: got error %v", c.code, err)
			}
		}
		if gets.Load() != 1 || b.Stats().Archived != 1 {
			t.Errorf("%s: %d requests, %+v", c.code, gets.Load(), b.Stats())
		}
	}
}

// A shop is a store with credentials in a file, which expire.
type shop struct {
	*store
	file string
	good atomic.Pointer[string] // the access key that is accepted
	bad  atomic.Int64           // requests with another one
	most atomic.Int64           // of them at the same time
	now  atomic.Int64
	hook atomic.Pointer[http.HandlerFunc] // if not nil, it answers all requests
}

func newShop(t *testing.T) (*shop, *Bucket) {
	s := &shop{store: newStore(t, 100_000), file: filepath.Join(t.TempDir(), "credentials")}
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", s.file)
	s.write("old")
	s.accept("old")
	s.Config.Handler = s
	b := s.open(t, "")
	return s, b
}

func (s *shop) accept(id string) { s.good.Store(&id) }

func (s *shop) write(id string) {
	if err := os.WriteFile(s.file, []byte("[default]\naws_access_key_id = "+id+"\naws_secret_access_key = secret\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if hook := s.hook.Load(); hook != nil {
		(*hook)(w, r)
		return
	}
	if strings.Contains(r.Header.Get("Authorization"), "Credential="+*s.good.Load()+"/") {
		s.store.ServeHTTP(w, r)
		return
	}
	s.bad.Add(1)
	if n := s.now.Add(1); n > s.most.Load() {
		s.most.Store(n)
	}
	time.Sleep(5 * time.Millisecond)
	s.now.Add(-1)
	fail(w, 400, "ExpiredToken", "The provided token has expired.")
}

// While the store refuses the credentials, one request at a time is sent, readers get EACCES, opens fail, and
// one line is logged. When the credentials are good again, everything works again.
func TestRefusedCredentials(t *testing.T) {
	s, b := newShop(t)
	setPauses(t, 20*time.Millisecond, time.Hour)
	log := b.logTo()
	o := b.object(t)
	s.accept("new")
	if _, err := readAll(o); !errors.Is(err, syscall.EACCES) || !errors.Is(err, drivers.ErrReported) || !strings.Contains(err.Error(), "ExpiredToken") {
		t.Fatalf("got error %v", err)
	}
	s.most.Store(0)
	before, start := s.bad.Load(), time.Now()
	var calls atomic.Int64
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			for time.Since(start) < 300*time.Millisecond {
				_, read := readAll(o)
				_, open := b.OpenVersion(t.Context(), "dir/object", o.Info())
				_, list := b.ReadDir(t.Context(), ".")
				_, stat := b.Stat(t.Context(), "dir/object")
				for _, err := range []error{read, open, list, stat} {
					calls.Add(1)
					if !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), "ExpiredToken") {
						t.Errorf("got error %v", err)
					}
				}
			}
		})
	}
	readers.Wait()
	if bad := s.bad.Load() - before; bad > 100 || bad*10 > calls.Load() || s.most.Load() > 1 {
		t.Errorf("%d calls caused %d requests, %d at a time", calls.Load(), bad, s.most.Load())
	}
	st := b.Stats()
	if !strings.Contains(st.Refused, "ExpiredToken") || !strings.Contains(st.Refused, `access key old, from the profile "default" in `+s.file) || st.RefusedSeconds <= 0 || !strings.Contains(st.RefusedRemedy, "Renew") {
		t.Errorf("Stats: got %+v", st)
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "ExpiredToken") || !strings.Contains(got, "remedy=") {
		t.Errorf("logged %q", got)
	}

	s.write("new")
	if !bytes.Equal(eventuallyReads(t, o), s.data) {
		t.Error("with new credentials: wrong data")
	}
	for _, dir := range []string{".", "dir"} {
		if _, err := b.ReadDir(t.Context(), dir); err != nil {
			t.Error(err)
		}
	}
	if st := b.Stats(); st.Refused != "" || st.RefusedSeconds != 0 || strings.Count(log.String(), "\n") != 2 {
		t.Errorf("with new credentials: got %+v, log %q", st, log)
	}
}

// If the credentials were renewed before they expired, no reader sees an error, and the requests that were
// refused cause one lookup of the credentials and one request.
func TestRenewedCredentialsCauseNoError(t *testing.T) {
	s, b := newShop(t)
	log := b.logTo()
	o := b.object(t)
	s.write("new")
	s.accept("new")
	var readers sync.WaitGroup
	for range 16 {
		readers.Go(func() {
			for range 5 {
				if got, err := readAll(o); err != nil || !bytes.Equal(got, s.data) {
					t.Errorf("got error %v, or wrong data", err)
				}
			}
		})
	}
	readers.Wait()
	if bad := s.bad.Load(); bad == 0 || bad > 16 {
		t.Errorf("%d refused requests of 16 readers", bad)
	}
	if got := log.String(); got != "" {
		t.Errorf("logged %q", got)
	}
}

// In a bucket with archived objects, the readers of one object have one refused request, as all others.
func TestRefusedCredentialsOfManyReaders(t *testing.T) {
	s, b := newShop(t)
	setPauses(t, time.Hour, time.Hour)
	b.refused.archives.Store(true)
	o := b.object(t)
	s.accept("new")
	var readers sync.WaitGroup
	for i := range 16 {
		readers.Go(func() {
			if _, err := o.ReadAt(t.Context(), make([]byte, 1000), int64(i)*1000); !errors.Is(err, syscall.EACCES) {
				t.Errorf("got error %v", err)
			}
		})
	}
	readers.Wait()
	if got := s.bad.Load(); got != 2 {
		t.Errorf("%d refused requests, want one of a reader and one with renewed credentials", got)
	}
}

// A store that refuses one request, and then is overloaded, may accept the credentials: requests go on.
func TestRefusedOnceAndOverloaded(t *testing.T) {
	s, b := newShop(t)
	log := b.logTo()
	o := b.object(t)
	answer := func(refused func(r *http.Request) bool) {
		hook := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case refused(r):
				fail(w, 401, "Unauthorized", "x")
			case r.URL.Query().Has("list-type"):
				w.Header().Set("Retry-After", "30")
				fail(w, 503, "SlowDown", "x")
			default:
				s.store.ServeHTTP(w, r)
			}
		})
		s.hook.Store(&hook)
	}
	var gets atomic.Int64
	answer(func(r *http.Request) bool { return !r.URL.Query().Has("list-type") && gets.Add(1) == 1 })
	if got, err := readAll(o); err != nil || !bytes.Equal(got, s.data) || gets.Load() != 2 {
		t.Errorf("got error %v after %d requests, or wrong data", err, gets.Load())
	}
	answer(func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/another") })
	another, err := b.OpenVersion(t.Context(), "dir/another", o.Info())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readAll(another); !errors.Is(err, syscall.EACCES) {
		t.Errorf("an object that is refused: got error %v", err)
	}
	if got, err := readAll(o); err != nil || !bytes.Equal(got, s.data) {
		t.Errorf("the other: got error %v, or wrong data", err)
	}
	if st := b.Stats(); st.Refused != "" || log.String() != "" {
		t.Errorf("got %+v, log %q", st, log)
	}
}

// Some stores, and proxies in front of them, refuse the signatures of requests for some keys. The others are
// read and listed meanwhile.
func TestSignaturesOfSomeKeys(t *testing.T) {
	s, b := newShop(t)
	setPauses(t, time.Millisecond, time.Hour)
	log := b.logTo()
	o := b.object(t)
	refuse := func(refused func(r *http.Request) bool) {
		hook := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if refused(r) {
				s.bad.Add(1)
				fail(w, 403, "SignatureDoesNotMatch", "x")
				return
			}
			s.store.ServeHTTP(w, r)
		})
		s.hook.Store(&hook)
	}
	refuse(func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/object") })
	for range 5 {
		if _, err := readAll(o); !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), "SignatureDoesNotMatch") {
			t.Errorf("an object with such a key: got error %v", err)
		}
		if _, err := b.ReadDir(t.Context(), "dir"); err != nil {
			t.Errorf("the directory of such a key: %v", err)
		}
	}
	if st := b.Stats(); st.Refused != "" || st.Denied != 1 || s.bad.Load() != 2 {
		t.Errorf("after %d refused requests: %+v", s.bad.Load(), st)
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "path=dir/object") {
		t.Errorf("logged %q", got)
	}

	refuse(func(r *http.Request) bool { return r.URL.Query().Get("prefix") == "dir/" })
	b.Retry([]string{"dir/object"})
	for range 5 {
		if _, err := b.ReadDir(t.Context(), "dir"); !errors.Is(err, syscall.EACCES) {
			t.Errorf("such a directory: got error %v", err)
		}
		if got, err := readAll(b.object(t)); err != nil || !bytes.Equal(got, s.data) {
			t.Errorf("an object in it: got error %v, or wrong data", err)
		}
	}
	if st := b.Stats(); st.Refused != "" || st.Denied != 0 {
		t.Errorf("got %+v", st)
	}
}

// A store that does not answer is not taken for one that accepts the credentials, and Close ends the requests.
func TestRefusedAndUnreachable(t *testing.T) {
	s, b := newShop(t)
	o := b.object(t)
	s.accept("new")
	if _, err := readAll(o); !errors.Is(err, syscall.EACCES) {
		t.Fatalf("got error %v", err)
	}
	var requests atomic.Int64
	overloaded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		fail(w, 503, "SlowDown", "x")
	})
	s.hook.Store(&overloaded)
	for requests.Load() < 5 {
		time.Sleep(time.Millisecond)
	}
	if _, err := readAll(o); !errors.Is(err, syscall.EACCES) {
		t.Errorf("while the store is overloaded: got error %v", err)
	}
	b.Close()
	n := b.Stats().Lists // the server may begin to handle one later that was sent before
	time.Sleep(20 * time.Millisecond)
	if got := b.Stats().Lists; got != n {
		t.Errorf("%d requests after Close", got-n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := o.ReadAt(ctx, make([]byte, 10), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v", err)
	}
}
