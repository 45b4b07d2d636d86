package blob

import (
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// The names of objects are right however a store encodes its keys, whatever it says about that, and whichever keys
// come first. That takes few requests, once, and the store is named.
func TestEncodedKeys(t *testing.T) {
	keys := []string{
		"100%.txt", "100%25.txt", "a+b", "a b", "a%20b", "a%2Bb", "a%2bb", "%41", "A", "%", "+", "+ +", "é", "<&>\"", "a?b#c=d",
		"dir+1/f", "dir 1/g", "dir%2F1/h", "plain.jpg", "dir/a+b", "dir/+/x%y",
		"rate-5%25", "rate-5%", "rate-5%2525", "of%/f", "of%25/g",
	}
	rounds := 60
	if testing.Short() {
		rounds = 12
	}
	quoteAll := func(key string) string { return strings.ReplaceAll(url.QueryEscape(key), "%2F", "/") } // as Amazon
	for _, store := range []struct {
		name   string
		encode func(string) string
		odd    bool
	}{
		{"as Amazon", quoteAll, false},
		{"slashes too", url.QueryEscape, false},
		{"spaces as %20", func(key string) string { return strings.ReplaceAll(quoteAll(key), "+", "%20") }, false},
		{"not plus", func(key string) string { return (&url.URL{Path: "/" + key}).EscapedPath()[1:] }, true},
		{"nothing", func(key string) string { return key }, true},
		{"nothing, as the listing tells", nil, false},
	} {
		t.Run(store.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			for round := range rounds {
				s := newOddStore(t)
				s.encode = store.encode
				some := keys
				if round > 0 {
					r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
					some = keys[:1+r.IntN(4)]
				}
				for _, key := range some {
					s.put(key, oddObject{data: key, listETag: `"e-1"`, getETag: `"e-1"`})
				}
				want := make(map[string]bool)
				for _, key := range some {
					want[key] = true
					for i := range key {
						if key[i] == '/' {
							want[key[:i+1]] = true
						}
					}
				}
				b := openURL(t, "s3://bucket?endpoint="+s.URL)
				got := tree(t, b, ".")
				if !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
					t.Errorf("got %q, want %q", got, slices.Sorted(maps.Keys(want)))
				}
				for _, name := range some {
					o, err := openURL(t, "s3://bucket?endpoint="+s.URL).Open(t.Context(), name)
					if err != nil {
						t.Errorf("%q of %q: %v", name, some, err)
						continue
					}
					if data, err := readAll(o); err != nil || string(data) != name {
						t.Errorf("%q: got %q, error %v", name, data, err)
					}
				}
				odd := slices.ContainsFunc(b.Stats().Oddities, func(text string) bool { return strings.Contains(text, "encoded as in URLs") })
				if odd && !store.odd || round == 0 && odd != store.odd {
					t.Errorf("the store is described by %q", b.Stats().Oddities)
				}
			}
		})
	}
}

// How keys are encoded is found out once.
func TestEncodingIsFoundOnce(t *testing.T) {
	s := newOddStore(t)
	s.encode = url.QueryEscape
	for _, key := range []string{"a+b", "a b", "c%", "d/a+b", "d/c%"} {
		s.put(key, oddObject{data: key, listETag: `"e"`, listTime: time.Unix(1, 0)})
	}
	b := openURL(t, "s3://bucket?endpoint="+s.URL)
	if s.lists < 2 || s.lists > 4 {
		t.Errorf("the first page took %d requests", s.lists)
	}
	s.lists = 0
	if tree(t, b, "."); s.lists != 2 {
		t.Errorf("2 directories took %d requests", s.lists)
	}
}

// How Amazon encodes keys is known.
func TestEncodingOfAmazon(t *testing.T) {
	v, err := connectS3(t.Context(), Location{Scheme: "s3", Bucket: "bucket", Region: "eu-west-1", Anonymous: true}, newTransport(new(Counters)), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if p := (page{items: []item{{key: "a+b"}}}); v.(*amazon).decode(t.Context(), "", &p) != nil || p.items[0].key != "a b" || p.misencoded {
		t.Errorf("got %+v", p)
	}
}

// The prefix of the keys may show how they are encoded, without a request.
func TestEncodingIsThatOfThePrefix(t *testing.T) {
	s := newOddStore(t)
	s.encode = url.QueryEscape
	s.put("a 1/b+c", oddObject{listETag: `"e"`, listTime: time.Unix(1, 0)})
	b := openURL(t, "s3://bucket/a%201?endpoint="+s.URL)
	if got := tree(t, b, "."); !slices.Equal(got, []string{"b+c"}) {
		t.Errorf("got %q", got)
	}
	if s.lists != 2 {
		t.Errorf("a page and a directory took %d requests", s.lists)
	}
}

// Credentials that expire are not taken for a key that is not listed.
func TestEncodingWhileRefused(t *testing.T) {
	s := newOddStore(t)
	s.encode = func(key string) string { return (&url.URL{Path: "/" + key}).EscapedPath()[1:] }
	b := openURL(t, "s3://bucket?endpoint="+s.URL)
	setPauses(t, time.Millisecond, 0)
	s.put("a+b", oddObject{listETag: `"e"`, listTime: time.Unix(1, 0)})
	listed := s.Config.Handler
	var refused atomic.Int64
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("prefix") != "" && refused.Add(1) <= 5 {
			fail(w, 400, "ExpiredToken", "The provided token has expired.")
			return
		}
		listed.ServeHTTP(w, r)
	})
	drivertest.Eventually(t, "the listing succeeds", func() bool {
		infos, err := b.ReadDir(t.Context(), ".")
		switch {
		case err != nil && !errors.Is(err, syscall.EACCES):
			t.Errorf("got error %v", err)
		case err == nil && (len(infos) != 1 || infos[0].Name != "a+b"):
			t.Errorf("got %+v", infos)
		}
		return err == nil
	})
}

// A store that does not list the keys that it is asked for, such as one that lists whole directories only, takes few
// requests, and its keys are decoded as those of Amazon.
func TestEncodingIsNotFound(t *testing.T) {
	for status, code := range map[int]string{400: "InvalidRequest", 403: "AccessDenied"} {
		s := newDirectoryBucket(t, map[string]string{"a+1": "", "b+2": "", "c+3": "", "d+4": "", "e+5": ""})
		s.encoded, s.status, s.code = true, status, code
		b := openURL(t, "s3://bucket?endpoint="+s.URL)
		if got, want := tree(t, b, "."), []string{"a 1", "b 2", "c 3", "d 4", "e 5"}; !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", code, got, want)
		}
		if n := s.refused.Load(); n != 2*maxUnknownKeys {
			t.Errorf("%s: the store has refused %d requests", code, n)
		}
	}
}
