package blob

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// memory is a vendor whose store is in memory and accepts any key. It maps keys to
// sizes. Its pages have half of the keys that were requested, at least one.
type memory map[string]int64

func (m memory) list(_ context.Context, prefix, delimiter, token string, maxKeys int) (page, error) {
	var p page
	for _, key := range slices.Sorted(maps.Keys(m)) {
		rest, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		found := item{key: key, size: m[key]}
		if dir, _, below := strings.Cut(rest, delimiter); below && delimiter != "" {
			found = item{key: prefix + dir + delimiter, dir: true}
		}
		if found.key <= token {
			continue
		}
		if n := len(p.items); n > 0 && n >= maxKeys/2 {
			p.next = p.items[n-1].key
			break
		}
		token = found.key
		p.items = append(p.items, found)
	}
	return p, nil
}

// An unsorted is a memory that lists keys in another order, and full pages.
type unsorted struct {
	memory
	compare    func(a, b string) int
	unreadable bool
}

func (u unsorted) read(ctx context.Context, key, version string, off, n int64) (io.ReadCloser, error) {
	if u.unreadable {
		return nil, errors.New("a transient error")
	}
	return u.memory.read(ctx, key, version, off, n)
}

// otherOrders are orders in which some stores list keys. None is like another one.
var otherOrders = map[string]func(a, b string) int{
	"by hash": func(a, b string) int {
		return cmp.Or(cmp.Compare(crc32.ChecksumIEEE([]byte(a)), crc32.ChecksumIEEE([]byte(b))), strings.Compare(a, b))
	},
	"by folder":         func(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) },
	"directories first": func(a, b string) int { return cmp.Or(isFileKey(a)-isFileKey(b), strings.Compare(a, b)) },
	"files first":       func(a, b string) int { return cmp.Or(isFileKey(b)-isFileKey(a), strings.Compare(a, b)) },
	"backwards":         func(a, b string) int { return strings.Compare(b, a) },
}

// isFileKey returns 1 unless a key ends in "/".
func isFileKey(key string) int {
	if strings.HasSuffix(key, "/") {
		return 0
	}
	return 1
}

func (u unsorted) list(_ context.Context, prefix, delimiter, token string, maxKeys int) (page, error) {
	var all []item
	dirs := make(map[string]bool)
	for key := range u.memory {
		rest, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		found := item{key: key, size: u.memory[key]}
		if dir, _, below := strings.Cut(rest, delimiter); below && delimiter != "" {
			found = item{key: prefix + dir + delimiter, dir: true}
		}
		if !dirs[found.key] {
			all = append(all, found)
		}
		dirs[found.key] = true
	}
	slices.SortFunc(all, func(a, b item) int { return u.compare(a.key, b.key) })
	from, _ := strconv.Atoi(token)
	p := page{items: all[from:min(from+maxKeys, len(all))]}
	if to := from + maxKeys; to < len(all) {
		p.next = strconv.Itoa(to)
	}
	return p, nil
}

func (m memory) read(_ context.Context, key, _ string, _, n int64) (io.ReadCloser, error) {
	if _, ok := m[key]; !ok {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(strings.NewReader(strings.Repeat("x", int(n)))), nil
}
func (m memory) revision(http.Header) revision            { return revision{} }
func (m memory) failure(error) (string, string)           { return "", "" }
func (m memory) refreshCredentials(time.Time)             {}
func (m memory) identity(context.Context) (string, error) { return "", nil }

// inMemory returns a bucket in memory with keys. Their objects have one byte; those of
// keys that end in "/" are empty.
func inMemory(t testing.TB, prefix string, keys ...string) *Bucket {
	store := make(memory)
	for _, key := range keys {
		store[key] = 1
		if strings.HasSuffix(key, "/") {
			store[key] = 0
		}
	}
	b := &Bucket{
		location: Location{Prefix: prefix}, vendor: store, net: newTransport(new(Counters)), stallTimeout: stallTimeout,
		log: slog.New(slog.DiscardHandler),
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// tree returns all names below dir, sorted. Names of directories end in "/".
func tree(t *testing.T, b *Bucket, dir string) []string {
	t.Helper()
	infos, err := b.ReadDir(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range infos {
		name := strings.TrimPrefix(dir+"/"+i.Name, "./")
		if i.IsDir() {
			names = append(names, name+"/")
			names = append(names, tree(t, b, name)...)
		} else {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// wantTree checks that a bucket has these names, as tree returns them, in its listings and by themselves.
func wantTree(t *testing.T, b *Bucket, want []string) {
	t.Helper()
	if got := tree(t, b, "."); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, name := range want {
		name, isDir := strings.CutSuffix(name, "/")
		if info, err := b.Stat(t.Context(), name); err != nil || info.IsDir() != isDir {
			t.Errorf("%s: got %+v, error %v", name, info, err)
		}
	}
}

func TestHiddenKeys(t *testing.T) {
	long := strings.Repeat("n", 256)
	for _, tt := range []struct {
		name   string
		keys   []string
		want   []string
		hidden int64
	}{
		{"plain", []string{"a", "d/b", "d/e/c"}, []string{"a", "d/", "d/b", "d/e/", "d/e/c"}, 0},
		{"empty element", []string{"a//b", "a/c"}, []string{"a/", "a/c"}, 1},
		{"leading slash", []string{"/a", "b"}, []string{"b"}, 1},
		{"dot", []string{"./a", "d/./b", "d/c"}, []string{"d/", "d/c"}, 2},
		{"dot dot", []string{"../a", "d/../b", "d/c", "..", "."}, []string{"d/", "d/c"}, 4},
		{"names with leading dots", []string{"...", ".a", "..b/c"}, []string{"...", "..b/", "..b/c", ".a"}, 0},
		{"NUL", []string{"a\x00b", "c"}, []string{"c"}, 1},
		{"256 bytes", []string{long, long + "/a", long[:255]}, []string{long[:255]}, 2},
		{"directory marker", []string{"d/", "d/a", "e/"}, []string{"d/", "d/a", "e/"}, 0},
		{"key that is also a directory", []string{"d", "d/a"}, []string{"d/", "d/a"}, 1},
		{"key beside a directory marker", []string{"d", "d/"}, []string{"d/"}, 1},
		{"keys between a key and its directory", []string{"d", "d!", "d-1", "d.jpg", "d/a", "d0"}, []string{"d!", "d-1", "d.jpg", "d/", "d/a", "d0"}, 1},
		{"chain of prefixes", []string{"a", "a!", "a!!", "a!!/x", "a!/x", "a/x"}, []string{"a!!/", "a!!/x", "a!/", "a!/x", "a/", "a/x"}, 3},
		{"special characters", []string{"new\nline", "tab\t", "sp ace", "%41", "a+b", "日本語", "__0x41__", "back\\slash", "q?#"},
			[]string{"%41", "__0x41__", "a+b", "back\\slash", "new\nline", "q?#", "sp ace", "tab\t", "日本語"}, 0},
	} {
		for _, prefix := range []string{"", "some/where/"} {
			t.Run(tt.name+" below "+prefix, func(t *testing.T) {
				var keys []string
				for _, k := range tt.keys {
					keys = append(keys, prefix+k)
				}
				b := inMemory(t, prefix, append(keys, "elsewhere")...)
				got := slices.DeleteFunc(tree(t, b, "."), func(name string) bool { return name == "elsewhere" })
				if want := slices.Sorted(slices.Values(tt.want)); !slices.Equal(got, want) {
					t.Errorf("got %q, want %q", got, want)
				}
				if got := b.Stats().Hidden; got != tt.hidden {
					t.Errorf("got %d hidden keys, want %d", got, tt.hidden)
				}
				tree(t, b, ".")
				if got := b.Stats().Hidden; got != tt.hidden {
					t.Errorf("after a second listing: got %d hidden keys, want %d", got, tt.hidden)
				}
				for _, name := range got {
					checkStat(t, b, name)
				}
			})
		}
	}
}

// checkStat checks that Stat returns a name of tree with the same type.
func checkStat(t *testing.T, b *Bucket, name string) {
	t.Helper()
	dir := strings.HasSuffix(name, "/")
	i, err := b.Stat(context.Background(), strings.TrimSuffix(name, "/"))
	if err != nil || i.IsDir() != dir {
		t.Errorf("Stat of %q: %+v, %v", name, i, err)
	}
}

// A listing does not depend on the size of its pages.
// A store that does not list in key order has all of its names, in listings and one by one, and is named.
func TestUnsortedListing(t *testing.T) {
	keys := []string{"dir", "dir/", "dir/x", "empty/", "a", "a!", "a!/x", "img1", "img10", "img1/0"}
	for i := range 2500 {
		keys = append(keys, fmt.Sprintf("img%04d.jpg", i), fmt.Sprintf("d%d/f", i%7))
	}
	sorted := inMemory(t, "", keys...)
	want := tree(t, sorted, ".")
	for _, first := range []string{"listing", "names"} {
		t.Run(first+" first", func(t *testing.T) {
			b := inMemory(t, "", keys...)
			b.vendor = unsorted{memory: b.vendor.(memory), compare: otherOrders["by hash"]}
			p, err := b.page(t.Context(), "", "", "", pageSize, openRetries) // as Open does
			if err != nil || len(p.items) == 0 {
				t.Fatal(err)
			}
			list := func() {
				if got := tree(t, b, "."); !slices.Equal(got, want) {
					t.Errorf("%d names, want %d", len(got), len(want))
				}
			}
			if first == "listing" {
				list()
			}
			for _, name := range append(want, "img", "none", "img10/", "d", "d1/g") {
				name = strings.TrimSuffix(name, "/")
				got, err := b.Stat(t.Context(), name)
				has, wantErr := sorted.Stat(t.Context(), name)
				if errors.Is(err, fs.ErrNotExist) != errors.Is(wantErr, fs.ErrNotExist) || got.Mode != has.Mode || got.Size != has.Size {
					t.Fatalf("%s: %+v, %v; want %+v, %v", name, got, err, has, wantErr)
				}
			}
			list()
			if notes := b.Stats().Oddities; len(notes) != 1 || !strings.Contains(notes[0], "not in key order") {
				t.Errorf("the store is described by %q", notes)
			}
		})
	}
	if notes := sorted.Stats().Oddities; len(notes) > 0 {
		t.Errorf("a store with listings in order is described by %q", notes)
	}
}

// otherStore is a store of S3 that is not Amazon's.
var otherStore = Location{Scheme: "s3", Endpoint: "https://s3.example.org"}

// A store that answers requests for objects that it does not list, since listings come late or a cache answers, has
// no such names, and does not count as one that does not list in key order.
func TestReadableAndNotListed(t *testing.T) {
	b := inMemory(t, "", "img10", "img11", "img12", "img1/x")
	b.location = otherStore
	b.vendor = unlisted{b.vendor.(memory)}
	if info, err := b.Stat(t.Context(), "img1"); err != nil || !info.IsDir() {
		t.Errorf("a directory: got %+v, error %v", info, err)
	}
	if info, err := b.Stat(t.Context(), "img"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %+v, error %v", info, err)
	}
	if notes := b.Stats().Oddities; len(notes) > 0 {
		t.Errorf("the store is described by %q", notes)
	}
}

// unlisted is a memory that has all objects.
type unlisted struct{ memory }

func (u unlisted) read(context.Context, string, string, int64, int64) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("")), nil
}

// A store in key order takes no more requests for a name than its first keys need, and Amazon's no request for content.
func TestRequestsForAName(t *testing.T) {
	for url, others := range map[string]int64{"": 1, "https://s3.eu-west-1.amazonaws.com": 0, "https://s3.amazonaws.com.cn": 0, "https://amazonaws.com.example.org": 1} {
		s := newDirectoryBucket(t, map[string]string{"img1": "", "img10": "", "img11": "", "img12": ""})
		s.anyPrefix = true
		b := openURL(t, "s3://bucket?endpoint="+s.URL)
		if url != "" {
			b.location.Endpoint = url
		}
		for name, lists := range map[string]int64{"img12": 1, "img1": 1 + others, "img": 1 + others} {
			l, g := s.lists.Load(), s.gets.Load()
			_, err := b.Stat(t.Context(), name)
			if l, g = s.lists.Load()-l, s.gets.Load()-g; l != lists || g > others || (err == nil) != (name != "img") {
				t.Errorf("%s at %q: %d listing requests and %d others, error %v", name, url, l, g, err)
			}
		}
	}
}

// The first name that is looked up in a store that does not list in key order is found, and no name that the store
// does not have. Listings have each name once.
func TestFirstNameOfUnsortedListing(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	elem := func() string { return "i" + []string{"", "-", "0", "1", "~"}[r.IntN(5)] + strconv.Itoa(r.IntN(15)) }
	var keys []string
	for range 700 {
		key := elem()
		for r.IntN(2) == 0 {
			key += "/" + elem()
		}
		keys = append(keys, key)
	}
	sorted := inMemory(t, "", keys...)
	names := tree(t, sorted, ".")
	if !slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, "/") && slices.Contains(keys, n[:len(n)-1]) }) {
		t.Error("no name is that of a file and of a directory")
	}
	for order, compare := range otherOrders {
		t.Run(order, func(t *testing.T) {
			open := func() *Bucket {
				b := inMemory(t, "", keys...)
				b.location = otherStore
				b.vendor = unsorted{b.vendor.(memory), compare, r.IntN(2) == 0}
				return b
			}
			if got := tree(t, open(), "."); !slices.Equal(got, names) {
				t.Errorf("listings have %d names, want %d", len(got), len(names))
			}
			for _, name := range append(names, "i", "i0", "i-", "none", "i1/none") {
				name = strings.TrimSuffix(name, "/")
				got, err := open().Stat(t.Context(), name)
				has, wantErr := sorted.Stat(t.Context(), name)
				if errors.Is(err, fs.ErrNotExist) != errors.Is(wantErr, fs.ErrNotExist) || got.Mode != has.Mode {
					t.Errorf("%s: got %+v, error %v; want %+v, error %v", name, got, err, has, wantErr)
				}
				file, found, err := open().findListed(t.Context(), name)
				if err != nil || has.IsRegular() && !found || found && file.key != name {
					t.Errorf("%s is listed as %+v: %v, error %v", name, file, found, err)
				}
			}
		})
	}
}

func TestPagesOfAListing(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var keys []string
		for range 1 + r.IntN(30) {
			key := make([]byte, 1+r.IntN(4))
			for i := range key {
				key[i] = "ab-./"[r.IntN(5)]
			}
			keys = append(keys, string(key))
		}
		b := inMemory(t, "", keys...)
		whole := b.scan(t, pageSize)
		for _, size := range []int{1, 2, 3} {
			if got := b.scan(t, size); !slices.Equal(got, whole) {
				t.Fatalf("keys %q: pages of %d list %q, one page %q", keys, size, got, whole)
			}
		}
	}
}

// scan lists the root in pages of size keys.
func (b *Bucket) scan(t *testing.T, size int) []string {
	l := listing{bucket: b}
	var names []string
	for token, more := "", true; more; {
		p, err := b.page(context.Background(), "", "/", token, size, readRetries)
		if err != nil {
			t.Fatal(err)
		}
		infos := l.infos(p.items)
		if token, more = p.next, p.next != ""; !more {
			infos = l.finish(infos)
		}
		for _, i := range infos {
			names = append(names, fmt.Sprint(i.Name, i.IsDir()))
		}
	}
	slices.Sort(names)
	return append(names, fmt.Sprint(l.hidden))
}

func TestMissingDirectory(t *testing.T) {
	b := inMemory(t, "p/", "p/a")
	for _, name := range []string{"missing", "a/b", "a"} {
		if err := b.List(context.Background(), name, func([]drivers.Info) error { return nil }); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("List of %s: got error %v", name, err)
		}
	}
	if _, err := b.ReadDir(context.Background(), "../x"); err == nil {
		t.Error("ReadDir of ../x succeeds")
	}
}

// A response that is not a listing is retried, and is never an empty directory: a load
// balancer may have sent it in place of the store. So is a part of a listing without the token of
// the next part.
func TestNoListing(t *testing.T) {
	for _, body := range []string{
		"", "<html></html>", "<Error><Code>InternalError</Code></Error>",
		"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
		"<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>dir/other</Key></Contents></ListBucketResult>",
	} {
		t.Run(body, func(t *testing.T) {
			s := newStore(t, 1)
			b := s.open(t, "")
			var invalidLeft atomic.Int64 // invalid responses to send
			s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if invalidLeft.Add(-1) >= 0 {
					io.WriteString(w, body)
					return
				}
				s.ServeHTTP(w, r)
			})
			invalidLeft.Store(1)
			if infos, err := b.ReadDir(t.Context(), "dir"); err != nil || len(infos) != 1 {
				t.Errorf("ReadDir: got %v, error %v", infos, err)
			}
			invalidLeft.Store(1)
			if _, err := b.Stat(t.Context(), "dir/object"); err != nil {
				t.Error(err)
			}
			if got := b.Stats().Retries; got != 2 {
				t.Errorf("counted %d retries, want 2", got)
			}
			readRetries.timeout = 10 * time.Millisecond
			invalidLeft.Store(1 << 40)
			if infos, err := b.ReadDir(t.Context(), "."); !errors.Is(err, syscall.EIO) {
				t.Errorf("ReadDir: got %v, error %v", infos, err)
			}
		})
	}
}

// Servers differ in the elements of an empty listing. Each is accepted.
func TestEmptyListing(t *testing.T) {
	for _, element := range []string{
		"<Name>bucket</Name>", "<IsTruncated>false</IsTruncated>", "<KeyCount>0</KeyCount>", "<MaxKeys>1000</MaxKeys>", "<EncodingType>url</EncodingType>",
	} {
		s := newStore(t, 1)
		b := s.open(t, "")
		s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "<ListBucketResult>"+element+"</ListBucketResult>")
		})
		if infos, err := b.ReadDir(t.Context(), "."); err != nil || len(infos) != 0 {
			t.Errorf("%s: ReadDir: got %v, error %v", element, infos, err)
		}
		if _, err := b.Stat(t.Context(), "dir/object"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: Stat: got error %v", element, err)
		}
	}
}

// Two versions of the same size within one second have different modification times,
// which is all that a copy in a tier records of a version.
func TestStampTellsVersions(t *testing.T) {
	b := inMemory(t, "", "a")
	seen := make(map[int64]string)
	for i := range 1000 {
		info := b.file(item{key: "a", size: 1, mtime: time.Unix(1_700_000_000, 999), version: fmt.Sprint("version-", i)})
		mtime := info.Mtime.UnixNano()
		if other, ok := seen[mtime]; ok {
			t.Errorf("version-%d has the time of %s", i, other)
		}
		seen[mtime] = info.Version
		if info.Mtime.Unix() != 1_700_000_000 {
			t.Fatalf("got time %v, want the seconds of the object", info.Mtime)
		}
	}
}

// The If-Match header of a version is the ETag that the version was made of.
func TestETagVersions(t *testing.T) {
	for etag, size := range map[string]int{
		`"d41d8cd98f00b204e9800998ecf8427e"`: 17, `"d41d8cd98f00b204e9800998ecf8427e-12"`: 35, `"D41D8CD98F00B204E9800998ECF8427E"`: 32,
		`"0x8DCAB1C2D3E4F50"`: 17, `"abc"`: 3, `"d41d8cd98f00b204e9800998ecf8427"`: 31, `"abcd"`: 4,
	} {
		version := etagVersion(etag)
		if got := ifMatch(version); got != etag || len(version) != size {
			t.Errorf("%s: the version has %d bytes and If-Match %s; want %d bytes", etag, len(version), got, size)
		}
		if etagVersion(strings.Trim(etag, `"`)) != version {
			t.Errorf("%s and the same without quotes are different versions", etag)
		}
	}
	for _, etag := range []string{"", `W/"abc"`} {
		if got := ifMatch(etagVersion(etag)); got != "" {
			t.Errorf("%s: got If-Match %s, want none", etag, got)
		}
	}
}

// A store may list the marker of a directory, or the keys in it, instead of the directory or in addition to it.
func TestMarkersInListings(t *testing.T) {
	keys := map[string]string{"empty/": "", "full/": "", "full/x": "1", "full/deep/": "", "full-1": "2", "odd/": "not empty", "full": "a file", "both": "a file", "both/x": "3", "both-1": "4"}
	want := []string{"both-1", "both/", "both/x", "empty/", "full-1", "full/", "full/deep/", "full/x", "odd/"}
	for _, delimiter := range []bool{true, false} {
		s := newOddStore(t)
		s.listsMarkers = true
		if !delimiter {
			s.ignoresDelimiter = true
		}
		for key, data := range keys {
			s.put(key, oddObject{data: data, listETag: `"e"`, listTime: time.Unix(1, 0)})
		}
		b := openURL(t, "s3://bucket?endpoint="+s.URL)
		wantTree(t, b, want)
		if n := b.Stats().Hidden; n != 3 { // the files "full" and "both", and "odd/"
			t.Errorf("%d keys are hidden, want 3", n)
		}
	}
}

// Listings that tell versions apart only by fractions of a second do: an object without an ETag that is overwritten by
// one of equal size, within a second, has another version, and its content is read.
func TestVersionsWithinASecond(t *testing.T) {
	s := newOddStore(t)
	at := time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)
	for _, getETag := range []string{"", `"of a response"`} {
		var last drivers.Info
		b := openURL(t, "s3://bucket?endpoint="+s.URL)
		for i, data := range []string{"first", "other", "third"} {
			written := at.Add(time.Duration(i*300) * time.Millisecond)
			etag := getETag
			if etag != "" {
				etag = fmt.Sprintf("%q", data)
			}
			s.put("object", oddObject{data: data, listTime: written, getTime: written, getETag: etag})
			info, err := b.Stat(t.Context(), "object")
			if err != nil {
				t.Fatal(err)
			}
			if !info.Mtime.Equal(written) || info.SameVersion(last) || infosOf(t, b)["object"] != info {
				t.Errorf("version %d is %+v, the one before %+v", i, info, last)
			}
			o, err := b.OpenVersion(t.Context(), "object", info)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := readAll(o); err != nil || string(got) != data {
				t.Errorf("version %d: read %q, error %v", i, got, err)
			}
			last = info
		}
	}
}
