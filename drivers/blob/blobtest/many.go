package blobtest

import (
	"crypto/md5"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"
)

// What the server of Many has.
const (
	ManyBucket = "many" // the only bucket
	ManyPrefix = "keys/"
)

// manyPage is how many keys Amazon puts into an answer at most.
const manyPage = 1000

// Many starts an S3 server that has n objects below ManyPrefix, and makes each up
// when it is asked for: listing a million takes it no longer than sending the
// answers. (Of the real ones, versitygw and fake-gcs-server look at all keys for
// each page of a listing.) It takes any signature, and cannot be written to.
func Many(t testing.TB, n int) *Server {
	t.Helper()
	server := httptest.NewServer(many(n))
	t.Cleanup(server.Close)
	return (&Server{Kind: S3, URL: server.URL}).At(t, server.URL)
}

// many is a bucket of so many objects, whose keys are in order.
type many int

func (m many) key(i int) string { return fmt.Sprintf("%s%09d", ManyPrefix, i) }

// content is that of an object: its key.
func (m many) content(i int) string { return m.key(i) }

func (m many) etag(i int) string { return fmt.Sprintf("%x", md5.Sum([]byte(m.content(i)))) }

// manyTime is when all the objects were made.
var manyTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// ServeHTTP implements http.Handler.
func (m many) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case bucket != ManyBucket:
		http.Error(w, "no such bucket", http.StatusNotFound)
	case KindOf(r) == List:
		m.list(w, r)
	case KindOf(r) == Get || KindOf(r) == Head && key != "":
		m.get(w, r, key)
	default:
		http.Error(w, "the bucket cannot be changed", http.StatusNotImplemented)
	}
}

func (m many) get(w http.ResponseWriter, r *http.Request, key string) {
	i, err := strconv.Atoi(strings.TrimPrefix(key, ManyPrefix))
	if err != nil || i < 0 || i >= int(m) || m.key(i) != key {
		w.WriteHeader(http.StatusNotFound)
		w.Write(errorXML("NoSuchKey"))
		return
	}
	w.Header().Set("Etag", strconv.Quote(m.etag(i)))
	http.ServeContent(w, r, "", manyTime, strings.NewReader(m.content(i)))
}

// list answers ListObjectsV2. A token is the index of the next object.
func (m many) list(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	prefix := query.Get("prefix")
	begin := sort.Search(int(m), func(i int) bool { return m.key(i) >= prefix })
	end := sort.Search(int(m), func(i int) bool { return m.key(i) > prefix && !strings.HasPrefix(m.key(i), prefix) })
	if next, err := strconv.Atoi(query.Get("continuation-token")); err == nil {
		begin = max(begin, next)
	}
	w.Header().Set("Content-Type", "application/xml")
	fmt.Fprintf(w, "<ListBucketResult><Name>%s</Name>", ManyBucket)
	defer fmt.Fprint(w, "</ListBucketResult>")
	if query.Get("delimiter") == "/" && !strings.HasPrefix(prefix, ManyPrefix) {
		if begin < end {
			fmt.Fprintf(w, "<CommonPrefixes><Prefix>%s</Prefix></CommonPrefixes>", ManyPrefix)
		}
		return
	}
	page := manyPage
	if most, err := strconv.Atoi(query.Get("max-keys")); err == nil {
		page = min(page, most)
	}
	if last := begin + page; last < end {
		end = last
		fmt.Fprintf(w, "<IsTruncated>true</IsTruncated><NextContinuationToken>%d</NextContinuationToken>", end)
	}
	for i := begin; i < end; i++ {
		fmt.Fprintf(w, "<Contents><Key>%s</Key><LastModified>%s</LastModified><ETag>&quot;%s&quot;</ETag><Size>%d</Size></Contents>",
			m.key(i), manyTime.Format(time.RFC3339), m.etag(i), len(m.content(i)))
	}
}
