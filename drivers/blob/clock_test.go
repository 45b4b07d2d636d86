package blob

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
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

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/milkweedfs/milkweed/drivers"
)

// A signedStore is a store that verifies signatures, by its own clock.
type signedStore struct {
	*store
	ahead   atomic.Int64 // of this machine's clock, in ns
	limit   time.Duration
	late    string       // the code of a refusal by time
	refused atomic.Int64 // by time
	before  atomic.Pointer[func(http.Header)]
}

func newSignedStore(t *testing.T) *signedStore {
	s := &signedStore{store: newStore(t, 1000), limit: 15 * time.Minute, late: "RequestTimeTooSkewed"}
	s.Config.Handler = s
	return s
}

func (s *signedStore) now() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }

func (s *signedStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Date", s.now().UTC().Format(http.TimeFormat))
	if change := s.before.Load(); change != nil {
		(*change)(r.Header)
	}
	switch {
	case !isSigned(s.t, r, "secret"):
		fail(w, 403, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided.")
	case s.isLate(r):
		s.refused.Add(1)
		fail(w, 403, s.late, "The difference between the request time and the current time is too large.")
	default:
		s.store.ServeHTTP(w, r)
	}
}

// isLate reports whether a request was signed for another time.
func (s *signedStore) isLate(r *http.Request) bool { return signedAt(r).Sub(s.now()).Abs() > s.limit }

// signedAt returns the time for which a request was signed.
func signedAt(r *http.Request) time.Time {
	at, _ := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	return at
}

// isSigned reports whether a request has the signature of a secret key, by the headers that it says are signed.
func isSigned(t testing.TB, r *http.Request, secret string) bool {
	_, list, _ := strings.Cut(r.Header.Get("Authorization"), "SignedHeaders=")
	list, _, _ = strings.Cut(list, ",")
	again, err := http.NewRequest(r.Method, "http://"+r.Host+r.URL.RequestURI(), nil)
	if err != nil {
		t.Error(err)
		return false
	}
	for name := range strings.SplitSeq(list, ";") {
		if values := r.Header.Values(name); len(values) > 0 {
			again.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	err = v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }).SignHTTP(context.Background(),
		aws.Credentials{AccessKeyID: "id", SecretAccessKey: secret}, again, r.Header.Get("X-Amz-Content-Sha256"), "s3", "us-east-1", signedAt(r))
	if err != nil {
		t.Error(err)
	}
	return again.Header.Get("Authorization") == r.Header.Get("Authorization")
}

// A proxy may replace or remove the headers for encodings and statistics before the store verifies the signature, but
// no other one.
func TestProxyChangesHeaders(t *testing.T) {
	for name, change := range map[string]func(http.Header){
		"replaced": func(h http.Header) { h.Set("Accept-Encoding", "gzip, br") },
		"removed": func(h http.Header) {
			for _, name := range []string{"Accept-Encoding", "Amz-Sdk-Invocation-Id", "Amz-Sdk-Request", "User-Agent"} {
				if h.Get(name) == "" {
					t.Errorf("the client does not send %s", name)
				}
				h.Del(name)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSignedStore(t)
			s.before.Store(&change)
			if data, err := readAll(s.open(t, "").object(t)); err != nil || !bytes.Equal(data, s.data) {
				t.Errorf("got %d bytes, error %v", len(data), err)
			}
		})
	}
	for _, name := range []string{"Range", "If-Match", "X-Amz-Content-Sha256"} {
		t.Run(name, func(t *testing.T) {
			s := newSignedStore(t)
			o := s.open(t, "").object(t)
			change := func(h http.Header) {
				if h.Get(name) != "" {
					h.Set(name, "changed")
				}
			}
			s.before.Store(&change)
			if _, err := readAll(o); !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), "SignatureDoesNotMatch") {
				t.Errorf("got error %v", err)
			}
		})
	}
}

// Requests are signed with the time of the store if a clock is wrong or becomes wrong. That takes two refused
// requests each time, and no reader sees an error.
func TestWrongClock(t *testing.T) {
	for _, code := range []string{"RequestTimeTooSkewed", "AccessDenied", "SignatureDoesNotMatch"} { // these occur
		t.Run(code, func(t *testing.T) {
			s := newSignedStore(t)
			s.late = code
			s.ahead.Store(int64(time.Hour))
			b := s.open(t, "")
			o := b.object(t)
			for i, step := range []struct {
				ahead time.Duration
				clock string
			}{
				{time.Hour, "1h0m0s behind that of the store"},
				{-26 * time.Hour, "26h0m0s ahead of that of the store"},
				{20 * time.Minute, "20m0s behind that of the store"},
				{0, ""},
			} {
				s.ahead.Store(int64(step.ahead))
				refused := s.refused.Load()
				var readers sync.WaitGroup
				for range 16 {
					readers.Go(func() {
						if data, err := readAll(o); err != nil || !bytes.Equal(data, s.data) {
							t.Errorf("%v: read %d bytes, error %v", step.ahead, len(data), err)
						}
					})
				}
				readers.Wait()
				if n := s.refused.Load() - refused; i > 0 && (n < 1 || n > 17) {
					t.Errorf("%v: the store has refused %d of 17 requests", step.ahead, n)
				}
				if got := b.Stats().Clock(); !strings.Contains(got, step.clock) || (got == "") != (step.clock == "") {
					t.Errorf("%v: got %q, want %q", step.ahead, got, step.clock)
				}
				if _, err := readAll(o); err != nil || s.refused.Load()-refused > 17 {
					t.Errorf("%v: later, %d requests were refused, error %v", step.ahead, s.refused.Load()-refused, err)
				}
			}
			if notes := b.Stats().Oddities; len(notes) > 0 {
				t.Errorf("the store is described by %q", notes)
			}
		})
	}
}

// The mount of a store takes three more requests if a clock is wrong. If that is not all that is wrong, the
// message is for the rest.
func TestOpenWithWrongClock(t *testing.T) {
	s := newSignedStore(t)
	s.ahead.Store(-int64(time.Hour))
	if b := s.open(t, ""); b.Stats().Lists != 4 || s.refused.Load() != 2 {
		t.Errorf("opened with %d requests, %d of them refused", b.Stats().Lists, s.refused.Load())
	}
	t.Setenv("AWS_SECRET_ACCESS_KEY", "wrong")
	refuse(t, "s3://bucket?endpoint="+s.URL, "secret key is not the one")
}

// A Date that is not that of the store, such as one of a proxy, changes nothing: an object to which access is denied
// is denied, the others are read, and no request is sent again and again.
func TestWrongDate(t *testing.T) {
	for _, late := range []string{"RequestTimeTooSkewed", "AccessDenied", "SignatureDoesNotMatch", "RequestExpired", "InvalidRequest"} {
		t.Run(late, func(t *testing.T) {
			s := newSignedStore(t)
			s.late = late
			b, denied, o := s.openDenied(t)
			var lists atomic.Int64
			s.inFront(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if r.URL.Query().Has("list-type") && lists.Add(1) == 1 {
					fail(dated{w, time.Now().Add(time.Hour)}, 503, "SlowDown", "of the first request with another time")
					return
				}
				next.ServeHTTP(dated{w, time.Now().Add(time.Hour)}, r)
			})
			before := b.Stats()
			var readers sync.WaitGroup
			for range 4 {
				readers.Go(func() {
					for range 10 {
						if data, err := readAll(o); err != nil || !bytes.Equal(data, s.data) {
							t.Errorf("another object: read %d bytes, error %v", len(data), err)
						}
					}
				})
			}
			for range 10 {
				if _, err := readAll(denied); !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), "Access Denied") {
					t.Errorf("got error %v", err)
				}
			}
			readers.Wait()
			if after := b.Stats(); after.Gets-before.Gets > 44 || after.Lists-before.Lists > 5 || after.Clock() != "" {
				t.Errorf("got %+v, before it %+v", after, before)
			}
		})
	}
}

// Dates that alternate, as those of two servers with wrong clocks, cause no endless requests.
func TestWrongDates(t *testing.T) {
	for name, limit := range map[string]time.Duration{"tolerated": 24 * time.Hour, "refused": 15 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			s := newSignedStore(t)
			s.limit = limit
			b, denied, _ := s.openDenied(t)
			var n atomic.Int64
			s.inFront(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				next.ServeHTTP(dated{w, time.Now().Add(time.Duration(n.Add(1)%2*2-1) * time.Hour)}, r)
			})
			before := b.Stats()
			for range 5 {
				if _, err := readAll(denied); !errors.Is(err, syscall.EACCES) {
					t.Errorf("got error %v", err)
				}
			}
			if after := b.Stats(); after.Gets-before.Gets > 15 || after.Lists-before.Lists > 40 {
				t.Errorf("got %+v, before it %+v", after, before)
			}
		})
	}
}

// inFront makes answer handle the requests, in front of the handler that it is given.
func (s *signedStore) inFront(answer func(w http.ResponseWriter, r *http.Request, next http.Handler)) {
	next := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, r, next) })
}

// openDenied opens the store, the object "dir/denied", to which access is denied, and another one.
func (s *signedStore) openDenied(t *testing.T) (b *Bucket, denied, other drivers.Object) {
	setPauses(t, time.Millisecond, time.Minute)
	b = openURL(t, "s3://bucket?endpoint="+s.URL)
	other = b.object(t)
	s.onGet(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "denied") {
			fail(w, 403, "AccessDenied", "Access Denied")
		}
	})
	denied, err := b.OpenVersion(t.Context(), "dir/denied", other.Info())
	if err != nil {
		t.Fatal(err)
	}
	return b, denied, other
}

// When a machine resumes after a time, with a wrong clock and credentials that were replaced, no reader sees an error,
// whichever of them the store looks at first, and also if it is overloaded.
func TestClockAndCredentials(t *testing.T) {
	for _, late := range []string{"RequestTimeTooSkewed", "AccessDenied", "SignatureDoesNotMatch"} {
		for _, old := range []string{"ExpiredToken", "AccessDenied", "SignatureDoesNotMatch"} {
			for _, keyFirst := range []bool{true, false} {
				t.Run(fmt.Sprint(late, " ", old, " ", keyFirst), func(t *testing.T) { testClockAndCredentials(t, late, old, keyFirst) })
			}
		}
	}
}

// testClockAndCredentials has the codes for a late request and for the old key.
func testClockAndCredentials(t *testing.T, late, old string, keyFirst bool) {
	s := newSignedStore(t)
	file := filepath.Join(t.TempDir(), "credentials")
	write := func(key string) {
		if err := os.WriteFile(file, []byte("[default]\naws_access_key_id = "+key+"\naws_secret_access_key = secret\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	write("old")
	var resumed atomic.Bool
	var overloaded atomic.Int64
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", s.now().UTC().Format(http.TimeFormat))
		isOld := resumed.Load() && strings.Contains(r.Header.Get("Authorization"), "Credential=old/")
		switch isLate := s.isLate(r); {
		case isOld && (keyFirst || !isLate):
			fail(w, 403, old, "of the key")
		case isLate:
			fail(w, 403, late, "of the time")
		case r.URL.Query().Has("list-type") && overloaded.Add(-1) >= 0:
			fail(w, 503, "SlowDown", "Reduce your request rate.")
		default:
			s.store.ServeHTTP(w, r)
		}
	})
	o := s.open(t, "").object(t)
	overloaded.Store(2)
	write("new")
	s.ahead.Store(int64(3 * time.Hour))
	resumed.Store(true)
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			if data, err := readAll(o); err != nil || !bytes.Equal(data, s.data) {
				t.Errorf("read %d bytes, error %v", len(data), err)
			}
		})
	}
	readers.Wait()
}

// A clock that is right again is noticed also where the store would still accept the other time.
func TestClockIsRightAgain(t *testing.T) {
	s := newSignedStore(t)
	s.limit = 6 * time.Minute
	s.ahead.Store(int64(8 * time.Minute))
	b := s.open(t, "")
	if got := b.Stats().Clock(); !strings.Contains(got, "8m0s behind") {
		t.Errorf("the clock is described by %q", got)
	}
	s.ahead.Store(int64(3 * time.Minute))
	if _, err := readAll(b.object(t)); err != nil || b.Stats().Clock() != "" || s.refused.Load() != 2 {
		t.Errorf("the clock is described by %q after %d refusals, error %v", b.Stats().Clock(), s.refused.Load(), err)
	}
}

// dated is a response with another Date.
type dated struct {
	http.ResponseWriter
	date time.Time
}

func (d dated) WriteHeader(status int) {
	d.Header().Set("Date", d.date.UTC().Format(http.TimeFormat))
	d.ResponseWriter.WriteHeader(status)
}

// A request to Azure with a shared key is signed with the time of the store, too.
func TestWrongClockAzure(t *testing.T) {
	t.Setenv("AZURE_STORAGE_KEY", base64.StdEncoding.EncodeToString([]byte("secret")))
	var refused atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := time.Now().Add(time.Hour)
		w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
		at, err := http.ParseTime(r.Header.Get("x-ms-date"))
		if err != nil {
			t.Error(err)
		}
		if at.Sub(now).Abs() > 15*time.Minute {
			refused.Add(1)
			w.Header().Set("x-ms-error-code", "AuthenticationFailed")
			w.WriteHeader(403)
			return
		}
		toSign := fmt.Sprintf("GET%s\nx-ms-date:%s\nx-ms-version:%s\n/a/c\ncomp:list\ndelimiter:/\ninclude:metadata\nmaxresults:1000\nprefix:\nrestype:container",
			strings.Repeat("\n", 11), r.Header.Get("x-ms-date"), r.Header.Get("x-ms-version"))
		sum := hmac.New(sha256.New, []byte("secret"))
		io.WriteString(sum, toSign)
		if want := "SharedKey a:" + base64.StdEncoding.EncodeToString(sum.Sum(nil)); r.URL.Query().Get("delimiter") == "/" && r.Header.Get("Authorization") != want {
			t.Errorf("the signature is not for the date %s", r.Header.Get("x-ms-date"))
		}
		io.WriteString(w, azurePage)
	}))
	t.Cleanup(server.Close)
	b := openURL(t, "azblob://c?account=a&endpoint="+server.URL)
	if infos, err := b.ReadDir(t.Context(), "."); err != nil || len(infos) != 1 || refused.Load() != 2 {
		t.Errorf("got %+v, error %v, %d refusals", infos, err, refused.Load())
	}
	if got := b.Stats().Clock(); !strings.Contains(got, "1h0m0s behind") {
		t.Errorf("the clock is described by %q", got)
	}
}

// Requests whose signature has no time are not tried with another one.
func TestWrongDateWithoutTime(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", time.Now().Add(3*time.Hour).UTC().Format(http.TimeFormat))
		if r.URL.Query().Get("comp") == "list" {
			io.WriteString(w, azurePage)
			return
		}
		w.Header().Set("x-ms-error-code", "AuthorizationPermissionMismatch")
		w.WriteHeader(403)
	}))
	t.Cleanup(server.Close)
	t.Setenv("AZURE_STORAGE_KEY", "")
	t.Setenv("AZURE_STORAGE_SAS_TOKEN", "sp=r&sig=secret")
	for _, query := range []string{"", "&anonymous=true"} {
		b := openURL(t, "azblob://c?account=a&endpoint="+server.URL+query)
		o, err := b.Open(t.Context(), "object")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readAll(o); !errors.Is(err, syscall.EACCES) || b.Stats().Clock() != "" || b.Stats().Lists != 2 || b.Stats().Gets != 1 {
			t.Errorf("%s: got error %v after %+v", query, err, b.Stats())
		}
	}
}

// A token that a server refuses because of a wrong clock is a fault of the clock.
func TestTokenForWrongClock(t *testing.T) {
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusBadRequest)
		io.WriteString(w, `{"error":"invalid_grant","error_description":"Invalid JWT: Token must be a short-lived token and in a reasonable timeframe."}`)
	}))
	t.Cleanup(tokens.Close)
	applicationDefault(t, tokens.URL)
	refuse(t, "gs://b?endpoint="+tokens.URL, "Set the clock of this machine: it is 1h0m0s ahead")
}
