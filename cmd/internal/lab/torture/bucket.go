package torture

import (
	"cmp"
	"encoding/xml"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// bucketName is the name of the only bucket of a server.
const bucketName = "torture"

// repeatedETag is the ETag of all objects, as some gateways send it.
const repeatedETag = `"00000000000000000000000000000000-1"`

// bucketUnfit are the events that an object store does not have.
var bucketUnfit = []string{"folder renamed", "folder exchanged", "access withdrawn", "same mtime", "coarse mtime"}

// A bucketServer is an S3 server with the files of a folder as objects. They have one ETag, and times of whole
// seconds: two versions of an object differ in these times.
type bucketServer struct {
	files      fs.FS
	gets, sent atomic.Int64 // requests for content, and its bytes
	open       atomic.Int64 // connections
}

// serveBucket starts a server of the bucket on this machine, which ends with this process. It returns its URL.
func serveBucket(folder string) (b *bucketServer, url string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	b = &bucketServer{files: os.DirFS(folder)}
	server := &http.Server{Handler: b, ConnState: func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			b.open.Add(1)
		case http.StateClosed:
			b.open.Add(-1)
		}
	}}
	go server.Serve(l)
	return b, "http://" + l.Addr().String(), nil
}

// ServeHTTP implements http.Handler.
func (b *bucketServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	var err error
	switch {
	case bucket != bucketName || r.Method != http.MethodGet && r.Method != http.MethodHead:
		err = fs.ErrNotExist
	case r.URL.Query().Has("list-type"):
		err = b.list(w, r)
	default:
		err = b.get(w, r, key)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		fail(w, http.StatusNotFound, "NoSuchKey", err)
	case err != nil:
		fail(w, http.StatusInternalServerError, "InternalError", err)
	}
}

func fail(w http.ResponseWriter, code int, name string, err error) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(code)
	xml.NewEncoder(w).Encode(struct {
		XMLName       xml.Name `xml:"Error"`
		Code, Message string
	}{Code: name, Message: err.Error()})
}

func (b *bucketServer) get(w http.ResponseWriter, r *http.Request, key string) error {
	f, err := b.files.Open(key)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.IsDir() {
		return fs.ErrNotExist
	}
	w.Header().Set("ETag", repeatedETag)
	w.Header().Set("Content-Type", "binary/octet-stream")
	if r.Method == http.MethodGet {
		b.gets.Add(1)
		w = countedResponse{w, &b.sent}
	}
	http.ServeContent(w, r, "", info.ModTime(), f.(*os.File))
	return nil
}

// A countedResponse counts the bytes that are written.
type countedResponse struct {
	http.ResponseWriter
	bytes *atomic.Int64
}

// Write implements http.ResponseWriter.
func (c countedResponse) Write(p []byte) (int, error) {
	c.bytes.Add(int64(len(p))) // before the client can have them
	return c.ResponseWriter.Write(p)
}

// A listing is a response to ListObjectsV2.
type listing struct {
	XMLName               xml.Name `xml:"ListBucketResult"`
	Name                  string
	IsTruncated           bool
	NextContinuationToken string `xml:",omitempty"`
	Contents              []object
	CommonPrefixes        []prefix
}

type object struct {
	Key          string
	LastModified string
	ETag         string
	Size         int64
}

type prefix struct{ Prefix string }

// list handles ListObjectsV2. A continuation token is the last key of the page before.
func (b *bucketServer) list(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	objects, err := b.objects(query.Get("prefix"))
	if err != nil {
		return err
	}
	limit := 1000
	if n, err := strconv.Atoi(query.Get("max-keys")); err == nil {
		limit = min(limit, n)
	}
	after := max(query.Get("start-after"), query.Get("continuation-token"))
	l := listing{Name: bucketName}
	last := ""
	for _, o := range objects {
		key := o.Key
		if query.Get("delimiter") == "/" {
			if folder, _, ok := strings.Cut(strings.TrimPrefix(key, query.Get("prefix")), "/"); ok {
				key = query.Get("prefix") + folder + "/"
			}
		}
		if key <= after || key == last {
			continue
		}
		if len(l.Contents)+len(l.CommonPrefixes) == limit {
			l.IsTruncated, l.NextContinuationToken = true, last
			break
		}
		if last = key; key == o.Key {
			l.Contents = append(l.Contents, o)
		} else {
			l.CommonPrefixes = append(l.CommonPrefixes, prefix{key})
		}
	}
	w.Header().Set("Content-Type", "application/xml")
	return xml.NewEncoder(w).Encode(l)
}

// objects returns the objects whose keys begin with a prefix, in the order of the keys.
func (b *bucketServer) objects(prefix string) (objects []object, err error) {
	dir, _ := path.Split(prefix)
	err = fs.WalkDir(b.files, path.Clean(dir), func(key string, d fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil && !d.IsDir() && strings.HasPrefix(key, prefix) {
			if info, err = d.Info(); err == nil {
				objects = append(objects, object{key, info.ModTime().UTC().Format(time.RFC3339), repeatedETag, info.Size()})
			}
		}
		if errors.Is(err, fs.ErrNotExist) { // a folder that no object is in, or a file that was taken away
			return nil
		}
		return err
	})
	slices.SortFunc(objects, func(x, y object) int { return cmp.Compare(x.Key, y.Key) })
	return objects, err
}
