package blob

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A directoryBucket is an S3 server whose listings are not in key order. Prefixes in listing requests
// must be empty or end in "/".
type directoryBucket struct {
	*httptest.Server
	keys        map[string]string
	lists, gets atomic.Int64
	refused     atomic.Int64 // listing requests
	status      int          // of a refusal
	code        string
	encoded     bool // keys are said to be encoded
	anyPrefix   bool // listings are in key order, and no prefix is refused
}

func newDirectoryBucket(t *testing.T, keys map[string]string) *directoryBucket {
	b := &directoryBucket{keys: keys, status: http.StatusBadRequest, code: "InvalidRequest"}
	b.Server = httptest.NewServer(b)
	t.Cleanup(b.Server.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	return b
}

func (b *directoryBucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if !query.Has("list-type") {
		b.gets.Add(1)
		data, ok := b.keys[strings.TrimPrefix(r.URL.Path, "/bucket/")]
		if !ok {
			fail(w, 404, "NoSuchKey", "x")
			return
		}
		w.Header().Set("ETag", etagOf(data))
		http.ServeContent(w, r, "", modified, bytes.NewReader([]byte(data)))
		return
	}
	b.lists.Add(1)
	prefix := query.Get("prefix")
	if prefix != "" && !strings.HasSuffix(prefix, "/") && !b.anyPrefix {
		b.refused.Add(1)
		fail(w, b.status, b.code, "This bucket does not support prefixes that do not end in a delimiter")
		return
	}
	var items []string
	seen := make(map[string]bool)
	for key, data := range b.keys {
		rest, ok := strings.CutPrefix(key, prefix)
		if dir, _, below := strings.Cut(rest, "/"); below && query.Get("delimiter") == "/" {
			key = prefix + dir + "/"
			data = fmt.Sprintf("<CommonPrefixes><Prefix>%s</Prefix></CommonPrefixes>", key)
		} else {
			data = fmt.Sprintf("<Contents><Key>%s</Key><LastModified>%s</LastModified><ETag>%s</ETag><Size>%d</Size></Contents>",
				key, modified.Format(time.RFC3339), etagOf(data), len(data))
		}
		if ok && !seen[key] {
			items = append(items, data)
		}
		seen[key] = seen[key] || ok
	}
	if b.anyPrefix {
		slices.SortFunc(items, func(a, b string) int { return strings.Compare(keyOf(a), keyOf(b)) })
	} else {
		slices.SortFunc(items, func(a, b string) int { return strings.Compare(reversed(a), reversed(b)) })
	}
	from, _ := strconv.Atoi(query.Get("continuation-token"))
	most, _ := strconv.Atoi(query.Get("max-keys"))
	to := min(from+most, len(items))
	fmt.Fprintf(w, "<ListBucketResult><Name>bucket</Name>%s", strings.Join(items[from:to], ""))
	if b.encoded {
		fmt.Fprint(w, "<EncodingType>url</EncodingType>")
	}
	if to < len(items) {
		fmt.Fprintf(w, "<IsTruncated>true</IsTruncated><NextContinuationToken>%d</NextContinuationToken>", to)
	}
	fmt.Fprint(w, "</ListBucketResult>")
}

// keyOf returns the key in an element of a listing.
func keyOf(element string) string {
	_, key, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(element, "<Contents>"), "<CommonPrefixes>"), ">")
	key, _, _ = strings.Cut(key, "<")
	return key
}

var modified = time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)

func etagOf(data string) string { return fmt.Sprintf(`"%x-1"`, data[:min(10, len(data))]) }

func reversed(s string) string {
	p := []byte(s)
	slices.Reverse(p)
	return string(p)
}

// A store that lists whole directories only, such as a directory bucket, has all of its names, in listings
// and one by one, and is named. A name in a large directory takes two requests.
func TestPrefixesEndInSlash(t *testing.T) {
	keys := map[string]string{"set/dir/x": "1", "set/empty": "", "set/a": "22", "set/a!": "333", "set/dir2/sub/y": "4444", "other": "5"}
	for i := range 1500 {
		keys[fmt.Sprintf("set/many/%04d.jpg", i)] = fmt.Sprint(i)
	}
	for _, refusal := range []struct {
		status int
		code   string
	}{{400, "InvalidRequest"}, {400, "InvalidArgument"}, {501, "NotImplemented"}, {405, "MethodNotAllowed"}} {
		t.Run(refusal.code, func(t *testing.T) {
			s := newDirectoryBucket(t, keys)
			s.status, s.code = refusal.status, refusal.code
			b := openURL(t, "s3://bucket/set?endpoint="+s.URL)
			listed := make(map[string]drivers.Info)
			for _, dir := range []string{".", "dir", "dir2", "dir2/sub", "many"} {
				infos, err := b.ReadDir(t.Context(), dir)
				if err != nil {
					t.Fatal(err)
				}
				for _, info := range infos {
					listed[strings.TrimPrefix(dir+"/"+info.Name, "./")] = info
				}
			}
			if len(listed) != 1500+9 {
				t.Errorf("listings have %d names", len(listed))
			}
			for _, name := range []string{"dir", "dir/x", "empty", "a", "a!", "dir2", "dir2/sub", "dir2/sub/y", "many", "many/0000.jpg", "many/1499.jpg"} {
				got, err := b.Stat(t.Context(), name)
				if want := listed[name]; err != nil || got != want {
					t.Errorf("stat %s: got %+v, error %v; want %+v", name, got, err, want)
				}
			}
			for _, name := range []string{"none", "di", "dir/none", "many/1.jpg", "a/b"} {
				if _, err := b.Stat(t.Context(), name); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("stat %s: got error %v", name, err)
				}
			}
			lists, gets := s.lists.Load(), s.gets.Load()
			if _, err := b.Stat(t.Context(), "many/0700.jpg"); err != nil || s.lists.Load() != lists+1 || s.gets.Load() != gets+1 {
				t.Errorf("one name took %d listing requests and %d others, error %v", s.lists.Load()-lists, s.gets.Load()-gets, err)
			}
			if n := s.refused.Load(); n != 1 {
				t.Errorf("the store has refused %d requests, want 1", n)
			}
			o, err := b.Open(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			if data, err := readAll(o); err != nil || string(data) != "22" {
				t.Errorf("read %q, error %v", data, err)
			}
			if notes := b.Stats().Oddities; !slices.ContainsFunc(notes, func(s string) bool { return strings.Contains(s, `prefixes that end in "/"`) }) {
				t.Errorf("the store is described by %q", notes)
			}
		})
	}
}

// A name whose response has no size has that of its listing.
func TestResponseWithoutSize(t *testing.T) {
	s := newDirectoryBucket(t, map[string]string{"a": "22"})
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("list-type") {
			s.ServeHTTP(w, r)
			return
		}
		w.Header().Set("ETag", etagOf("22"))
		w.Header().Set("Last-Modified", modified.Format(http.TimeFormat))
		w.(http.Flusher).Flush()
		io.WriteString(w, "22")
	})
	b := openURL(t, "s3://bucket?endpoint="+s.URL)
	if info, err := b.Stat(t.Context(), "a"); err != nil || info.Size != 2 {
		t.Errorf("got %d bytes, error %v", info.Size, err)
	}
}

// A store that refuses a listing for another reason is not taken for one that lists whole directories only.
func TestRefusedListing(t *testing.T) {
	s := newStore(t, 1000)
	b := s.open(t, "")
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fail(w, 400, "InvalidRequest", "for any prefix") })
	if _, err := b.Stat(t.Context(), "dir/object"); !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "for any prefix") {
		t.Errorf("got error %v", err)
	}
	s.Config.Handler = s
	if info, err := b.Stat(t.Context(), "dir/object"); err != nil || info.Size != 1000 {
		t.Errorf("when the store works again: got %+v, error %v", info, err)
	}
	if notes := b.Stats().Oddities; len(notes) > 0 {
		t.Errorf("the store is described by %q", notes)
	}
}
