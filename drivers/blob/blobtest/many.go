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

// The contents of a server that Many has started.
const (
	ManyBucket = "many"  // the only bucket
	ManyPrefix = "keys/" // prefix of all keys
)

// maxPage is the largest number of keys in a response of Amazon's.
const maxPage = 1000

// Many starts an S3 server with n objects below ManyPrefix. It generates each object
// on request, so that listing a million keys takes only the time to send the
// responses. (versitygw and fake-gcs-server scan all keys for each page of a listing.)
// The server accepts any signature, and is read-only. It is closed when the test ends.
func Many(t testing.TB, n int) *Server {
	t.Helper()
	server := httptest.NewServer(manyObjects(n))
	t.Cleanup(server.Close)
	return (&Server{Kind: S3, URL: server.URL}).At(t, server.URL)
}

// manyObjects is the number of objects in the bucket. Object i has the i-th key in key
// order.
type manyObjects int

func (m manyObjects) key(i int) string { return fmt.Sprintf("%s%09d", ManyPrefix, i) }

// content returns the content of an object, which is its key.
func (m manyObjects) content(i int) string { return m.key(i) }

func (m manyObjects) etag(i int) string { return fmt.Sprintf("%x", md5.Sum([]byte(m.content(i)))) }

// manyTime is the modification time of all objects.
var manyTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// ServeHTTP implements http.Handler.
func (m manyObjects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case bucket != ManyBucket:
		http.Error(w, "no such bucket", http.StatusNotFound)
	case KindOf(r) == List:
		m.list(w, r)
	case KindOf(r) == Get || KindOf(r) == Head && key != "":
		m.get(w, r, key)
	default:
		http.Error(w, "the bucket is read-only", http.StatusNotImplemented)
	}
}

func (m manyObjects) get(w http.ResponseWriter, r *http.Request, key string) {
	i, err := strconv.Atoi(strings.TrimPrefix(key, ManyPrefix))
	if err != nil || i < 0 || i >= int(m) || m.key(i) != key {
		w.WriteHeader(http.StatusNotFound)
		w.Write(errorXML("NoSuchKey"))
		return
	}
	w.Header().Set("Etag", strconv.Quote(m.etag(i)))
	http.ServeContent(w, r, "", manyTime, strings.NewReader(m.content(i)))
}

// list handles ListObjectsV2. A continuation token is the index of the next object.
func (m manyObjects) list(w http.ResponseWriter, r *http.Request) {
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
	page := maxPage
	if maxKeys, err := strconv.Atoi(query.Get("max-keys")); err == nil {
		page = min(page, maxKeys)
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
