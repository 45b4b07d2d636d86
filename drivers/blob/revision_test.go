package blob

import (
	"bytes"
	"crypto/md5"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// An oddStore is an S3 server whose objects have any ETags and times. The fields of an object may be
// changed with put while requests are served. Its pages have all keys.
type oddStore struct {
	*httptest.Server
	encode       func(key string) string // keys are said to be encoded, and are encoded so; nil: they are not
	listsMarkers bool                    // a key that ends in "/" is listed as a key, not as a directory

	ignoresDelimiter bool

	mu           sync.Mutex // guards the following
	objects      map[string]oddObject
	heads, lists int
}

// An oddObject is an object of an oddStore. "" and the zero time are not sent.
type oddObject struct {
	data              string
	listETag, getETag string // with their quotes
	listTime, getTime time.Time
	checksum          string
	ignoresIfMatch    bool
}

func newOddStore(t *testing.T) *oddStore {
	s := &oddStore{objects: make(map[string]oddObject)}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Server.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	setReadRetries(t, retryPolicy{firstBackoff: time.Millisecond, maxBackoff: 5 * time.Millisecond, timeout: 10 * time.Second})
	return s
}

func (s *oddStore) put(key string, o oddObject) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[key] = o
}

func (s *oddStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.URL.Query().Has("list-type") {
		s.lists++
		s.list(w, r.URL.Query().Get("prefix"), r.URL.Query().Get("delimiter"))
		return
	}
	key := strings.TrimPrefix(r.URL.Path, "/bucket/")
	o, ok := s.objects[key]
	if !ok {
		fail(w, 404, "NoSuchKey", "no such key")
		return
	}
	if r.Method == http.MethodHead {
		s.heads++
	}
	if m := r.Header.Get("If-Match"); m != "" && m != o.getETag && !o.ignoresIfMatch {
		fail(w, 412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
		return
	}
	if o.getETag != "" {
		w.Header().Set("ETag", o.getETag)
	}
	if o.checksum != "" && r.Header.Get("x-amz-checksum-mode") == "ENABLED" {
		w.Header().Set("x-amz-checksum-crc64nvme", o.checksum)
	}
	if !o.getTime.IsZero() {
		w.Header().Set("Last-Modified", o.getTime.UTC().Format(http.TimeFormat))
	}
	r.Header.Del("If-Match")
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(o.data))
}

func (s *oddStore) list(w http.ResponseWriter, prefix, delimiter string) {
	type contents struct {
		Key          string
		LastModified string `xml:",omitempty"`
		ETag         string `xml:",omitempty"`
		Size         int
	}
	var result struct {
		XMLName        xml.Name `xml:"ListBucketResult"`
		Name           string
		EncodingType   string `xml:",omitempty"`
		Contents       []contents
		CommonPrefixes []struct{ Prefix string }
	}
	result.Name = "bucket"
	encode := func(key string) string { return key }
	if s.encode != nil {
		result.EncodingType, encode = "url", s.encode
	}
	last := ""
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		o := s.objects[key]
		rest, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		if dir, rest, below := strings.Cut(rest, delimiter); delimiter != "" && !s.ignoresDelimiter && below && !(s.listsMarkers && rest == "") {
			if dir = prefix + dir + delimiter; dir != last {
				result.CommonPrefixes = append(result.CommonPrefixes, struct{ Prefix string }{encode(dir)})
			}
			last = dir
			continue
		}
		c := contents{Key: encode(key), ETag: o.listETag, Size: len(o.data)}
		if !o.listTime.IsZero() {
			c.LastModified = o.listTime.UTC().Format("2006-01-02T15:04:05.000Z")
		}
		result.Contents = append(result.Contents, c)
	}
	w.Header().Set("Content-Type", "application/xml")
	xml.NewEncoder(w).Encode(result)
}

// Whether an object was written just now is decided by the clock of the store.
func TestWrittenLongAgoByTheClockOfTheStore(t *testing.T) {
	s := newOddStore(t)
	at := time.Now().Add(30 * time.Minute)
	s.put("object", oddObject{data: "data", listETag: `"of listings"`, getETag: `"of responses"`, listTime: at, getTime: at})
	b, infos := s.open(t)
	b.net.clock.set(time.Hour)
	o, err := b.OpenVersion(t.Context(), "object", infos["object"])
	if err != nil {
		t.Fatal(err)
	}
	if got, err := readAll(o); err != nil || string(got) != "data" {
		t.Errorf("read %q, error %v", got, err)
	}
}

// open opens the bucket, and returns it with the Infos of its objects.
func (s *oddStore) open(t *testing.T) (*Bucket, map[string]drivers.Info) {
	t.Helper()
	b := openURL(t, "s3://bucket?endpoint="+s.URL)
	return b, infosOf(t, b)
}

func infosOf(t *testing.T, b *Bucket) map[string]drivers.Info {
	t.Helper()
	infos, err := b.ReadDir(t.Context(), ".")
	if err != nil {
		t.Fatal(err)
	}
	byName := make(map[string]drivers.Info)
	for _, i := range infos {
		byName[i.Name] = i
	}
	return byName
}

// readOf reads an object as it was listed.
func readOf(t *testing.T, b *Bucket, name string, info drivers.Info) (string, error) {
	t.Helper()
	o, err := b.OpenVersion(t.Context(), name, info)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	data, err := readAll(o)
	return string(data), err
}

func md5ETag(data string) string { return fmt.Sprintf(`"%x"`, md5.Sum([]byte(data))) }

var (
	longAgo = time.Date(2024, 5, 1, 12, 0, 0, 600e6, time.UTC)
	zeros   = `"` + strings.Repeat("0", 32) + `-1"`
)

// uniform returns an object with one ETag and one time.
func uniform(data, etag string, at time.Time) oddObject {
	return oddObject{data: data, listETag: etag, getETag: etag, listTime: at, getTime: at}
}

// Equal ETags show that two objects are equal only if the store has shown that they are MD5 sums, or with
// equal checksums.
func TestHaveSameContent(t *testing.T) {
	parts := `"` + strings.Repeat("ab", 16) + `-2"`
	summed := func(data, etag, checksum string) oddObject {
		o := uniform(data, etag, longAgo)
		o.checksum = checksum
		return o
	}
	for _, test := range []struct {
		name         string
		first        oddObject // is read before the comparison
		a, b         oddObject
		before, want bool
		heads        int
	}{
		{"MD5", uniform("x", md5ETag("x"), longAgo), uniform("data", md5ETag("data"), longAgo), uniform("data", md5ETag("data"), longAgo.Add(time.Hour)), false, true, 1},
		{"encrypted", uniform("x", md5ETag("y"), longAgo), uniform("data", md5ETag("data"), longAgo), uniform("data", md5ETag("data"), longAgo), false, false, 2},
		{"encrypted, with checksums", uniform("x", md5ETag("y"), longAgo), summed("data", md5ETag("e"), "c"), summed("data", md5ETag("e"), "c"), true, true, 4},
		{"parts, no checksums", uniform("x", md5ETag("x"), longAgo), uniform("1234", parts, longAgo), uniform("5678", parts, longAgo), false, false, 2},
		{"parts", uniform("x", md5ETag("x"), longAgo), summed("1234", parts, "c"), summed("1234", parts, "c"), true, true, 4},
		{"parts, other checksums", uniform("x", md5ETag("x"), longAgo), summed("1234", parts, "c"), summed("5678", parts, "d"), false, false, 4},
		{"other sizes", uniform("x", md5ETag("x"), longAgo), uniform("1", md5ETag("1"), longAgo), uniform("22", md5ETag("22"), longAgo), false, false, 0},
		{"weak", uniform("x", md5ETag("x"), longAgo), uniform("1", "W/"+md5ETag("1"), longAgo), uniform("1", "W/"+md5ETag("1"), longAgo), false, false, 0},
		{"opaque", uniform("x", md5ETag("x"), longAgo), uniform("1", `"tag"`, longAgo), uniform("1", `"tag"`, longAgo), false, false, 0},
		{"none", uniform("x", md5ETag("x"), longAgo), uniform("1", "", longAgo), uniform("1", "", longAgo), false, false, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newOddStore(t)
			s.put("a", test.a)
			s.put("b", test.b)
			s.put("first", test.first)
			b, infos := s.open(t)
			same := func() bool {
				return b.HaveSameContent(t.Context(), [2]string{"a", "b"}, [2]drivers.Info{infos["a"], infos["b"]})
			}
			if got := same(); got != test.before {
				t.Errorf("before an object was read: got %v", got)
			}
			if _, err := readOf(t, b, "first", infos["first"]); err != nil {
				t.Error(err)
			}
			if got := same(); got != test.want {
				t.Errorf("got %v", got)
			}
			if s.heads != test.heads {
				t.Errorf("%d requests, want %d", s.heads, test.heads)
			}
			if got := b.Stats().Oddities; len(got) > 0 {
				t.Errorf("oddities: %q", got)
			}
		})
	}
}

// The ETags and generations of other vendors do not compare objects.
func TestOtherVendorsCompareNothing(t *testing.T) {
	for version, v := range map[string]vendor{etagVersion(md5ETag("data")): &azure{}, "1700000000000000": &googleCloud{}} {
		info := drivers.Info{Mode: fileMode, Size: 4, Version: version}
		b := &Bucket{vendor: v}
		if b.HaveSameContent(t.Context(), [2]string{"a", "b"}, [2]drivers.Info{info, info}) {
			t.Errorf("%T: two objects are equal", v)
		}
	}
}

// A store that has one ETag for all objects is noticed by their sizes. No two objects are equal there, not
// even with equal checksums. Times tell the versions of an object apart.
func TestOneETagForAllObjects(t *testing.T) {
	for _, etag := range []string{zeros, md5ETag("")} {
		s := newOddStore(t)
		v1, v2 := uniform("version 1", etag, longAgo), uniform("version 2", etag, longAgo.Add(time.Second))
		v1.checksum, v2.checksum = "c", "c"
		s.put("a", v1)
		s.put("b", v2)
		b, infos := s.open(t)
		if got := b.Stats().Oddities; len(got) > 0 {
			t.Errorf("%s: oddities of two objects of the same size: %q", etag, got)
		}
		s.put("longer", uniform("a longer one", etag, longAgo))
		infosOf(t, b)
		if got := b.Stats().Oddities; len(got) != 1 || !strings.Contains(got[0], "same ETag, "+strings.Trim(etag, `"`)) {
			t.Errorf("%s: oddities %q", etag, got)
		}
		if b.HaveSameContent(t.Context(), [2]string{"a", "b"}, [2]drivers.Info{infos["a"], infos["b"]}) {
			t.Errorf("%s: two objects are equal", etag)
		}
		if got, err := readOf(t, b, "a", infos["a"]); got != "version 1" || err != nil {
			t.Errorf("%s: read %q, error %v", etag, got, err)
		}
		s.put("a", v2)
		if got, err := readOf(t, b, "a", infos["a"]); !errors.Is(err, drivers.ErrChanged) {
			t.Errorf("%s: after it was overwritten: read %q, error %v", etag, got, err)
		}
		if got, err := readOf(t, b, "a", infosOf(t, b)["a"]); got != "version 2" || err != nil {
			t.Errorf("%s: the new version: read %q, error %v", etag, got, err)
		}
	}
}

// A store whose responses have another ETag or another time than its listings is read, if the other of
// the two is the same. Responses are then compared with each other: a file is never a mixture.
func TestRevisionsInResponses(t *testing.T) {
	later := longAgo.Add(time.Hour)
	for _, test := range []struct {
		name   string
		object oddObject
		reads  bool
		oddity string
		lists  int64 // requests to read two objects twice, beside that for the names
		gets   int64
	}{
		{"equal", oddObject{listETag: `"a"`, getETag: `"a"`, listTime: longAgo, getTime: longAgo}, true, "", 0, 4},
		{"no quotes in listings", oddObject{listETag: `a`, getETag: `"a"`, listTime: longAgo, getTime: longAgo}, true, "", 0, 4},
		{"no ETags", oddObject{listTime: longAgo, getTime: longAgo}, true, "", 0, 4},
		{"no ETags in listings", oddObject{getETag: `"a"`, listTime: longAgo, getTime: longAgo}, true, "", 0, 4},
		{"no times in responses", oddObject{listETag: `"a"`, getETag: `"a"`, listTime: longAgo}, true, "", 0, 4},
		{"no times in listings", oddObject{listETag: `"a"`, getETag: `"a"`, getTime: longAgo}, true, "", 0, 4},
		{"weak", oddObject{listETag: `W/"a"`, getETag: `W/"a"`, listTime: longAgo, getTime: longAgo}, true, "", 0, 4},
		{"weak in listings", oddObject{listETag: `W/"a"`, getETag: `"a"`, listTime: longAgo, getTime: longAgo}, true, "", 0, 4},
		{"weak in responses", oddObject{listETag: md5ETag("a"), getETag: "W/" + md5ETag("a"), listTime: longAgo, getTime: longAgo, ignoresIfMatch: true}, true, "", 0, 4},
		{"other ETags", oddObject{listETag: `"a"`, getETag: `"b"`, listTime: longAgo, getTime: longAgo}, true, "the ETags in responses are not those in listings", 1, 6},
		{"other ETags, without conditions", oddObject{listETag: `"a"`, getETag: `"b"`, listTime: longAgo, getTime: longAgo, ignoresIfMatch: true}, true, "the ETags in responses are not those in listings", 1, 6},
		{"other times", oddObject{listETag: `"a"`, getETag: `"a"`, listTime: longAgo, getTime: later}, true, "the times in responses are not those in listings", 1, 6},
		{"both", oddObject{listETag: `"a"`, getETag: `"b"`, listTime: longAgo, getTime: later}, false, "", 4, 8},
		{"other ETags, just written", oddObject{listETag: `"a"`, getETag: `"b"`, listTime: time.Now(), getTime: time.Now()}, false, "", 0, 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newOddStore(t)
			object := test.object
			for _, key := range []string{"f", "g"} {
				object.data = strings.Repeat("1"+key, 1000)
				s.put(key, object)
			}
			b, infos := s.open(t)
			before := b.Stats()
			for range 2 {
				for _, key := range []string{"f", "g"} {
					got, err := readOf(t, b, key, infos[key])
					if test.reads && (err != nil || got != strings.Repeat("1"+key, 1000)) || !test.reads && !errors.Is(err, drivers.ErrChanged) {
						t.Errorf("%s: read %d bytes, error %v", key, len(got), err)
					}
				}
			}
			after := b.Stats()
			if lists, gets := after.Lists-before.Lists, after.Gets-before.Gets; lists != test.lists || gets != test.gets {
				t.Errorf("%d requests for listings and %d for content, want %d and %d", lists, gets, test.lists, test.gets)
			}
			if got := strings.Join(after.Oddities, "; "); (got != "") != (test.oddity != "") || !strings.Contains(got, test.oddity) {
				t.Errorf("oddities %q, want %q", got, test.oddity)
			}
			if !test.reads {
				return
			}
			// It is overwritten while it is read, and the listing is still the old one.
			changed := object
			changed.data = strings.Repeat("2f", 1000)
			changed.getTime = changed.getTime.Add(time.Second)
			if object.getETag != "" {
				changed.getETag = `"new"`
			}
			if object.getTime.IsZero() {
				changed.getTime = time.Time{}
			}
			o, err := b.OpenVersion(t.Context(), "f", infos["f"])
			if err != nil {
				t.Fatal(err)
			}
			defer o.Close()
			p := make([]byte, 1000)
			if _, err := o.ReadAt(t.Context(), p, 0); err != nil || !bytes.HasPrefix([]byte(strings.Repeat("1f", 1000)), p) {
				t.Errorf("before the change: %v", err)
			}
			s.put("f", changed)
			if _, err := o.ReadAt(t.Context(), p, 1000); !errors.Is(err, drivers.ErrChanged) {
				t.Errorf("after the change: error %v", err)
			}
		})
	}
}
