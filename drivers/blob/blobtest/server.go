// Package blobtest has servers for tests of object stores: one real server for each
// protocol, on this machine, and a Proxy that simulates a slow and faulty network
// between a client and a server.
package blobtest

import (
	"context"
	"iter"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// A Kind is the protocol of a server, and the scheme of its URLs.
type Kind string

// The kinds of servers.
const (
	S3    Kind = "s3"     // versitygw, with files in a directory
	GCS   Kind = "gs"     // fake-gcs-server, in memory
	Azure Kind = "azblob" // Azurite, in memory
)

// Kinds lists all kinds.
var Kinds = []Kind{S3, GCS, Azure}

// A Server is a server of an object store on this machine. It is empty at first and
// stops when the test ends. Its methods may be called concurrently. A method with a
// testing.TB calls Fatalf on an error, so it must run on the goroutine of that test.
type Server struct {
	Kind Kind
	URL  string // such as http://127.0.0.1:1234

	root  string // S3: the parent of the buckets' directories, for Fill; "" if Fill cannot use it
	store store
}

// A store sends requests that change or list a bucket, in the protocol of a Server.
type store interface {
	makeBucket(ctx context.Context, bucket string) error
	put(ctx context.Context, bucket, key string, data []byte) error
	remove(ctx context.Context, bucket, key string) error
	keys(ctx context.Context, bucket string) ([]string, error)
}

// Start starts a server of a kind. `make deps` installs the programs.
func Start(t testing.TB, kind Kind) *Server {
	t.Helper()
	var s *Server
	switch kind {
	case S3:
		s = startS3(t)
	case GCS:
		s = startGCS(t)
	case Azure:
		s = startAzure(t)
	default:
		t.Fatalf("unknown kind of server %q", kind)
	}
	return s.At(t, s.URL)
}

// At returns the same server at another URL, such as that of a Proxy.
func (s *Server) At(t testing.TB, endpoint string) *Server {
	t.Helper()
	other := &Server{Kind: s.Kind, URL: endpoint, root: s.root}
	switch s.Kind {
	case S3:
		other.store = newS3Store(t, endpoint)
	case GCS:
		other.store = newGCSStore(t, endpoint)
	case Azure:
		other.store = newAzureStore(t, endpoint)
	}
	return other
}

// Each runs a subtest for each kind, with a server of that kind.
func Each(t *testing.T, test func(t *testing.T, s *Server)) {
	for _, kind := range Kinds {
		t.Run(string(kind), func(t *testing.T) { test(t, Start(t, kind)) })
	}
}

// BucketURL returns the URL with which a user mounts a bucket, or its keys below prefix.
// The endpoint is the URL of the server, such as that of a Proxy; "" is s.URL.
func (s *Server) BucketURL(bucket, prefix, endpoint string) string {
	if endpoint == "" {
		endpoint = s.URL
	}
	query := url.Values{}
	switch s.Kind {
	case S3:
		query.Set("region", s3Region)
	case GCS:
		query.Set("anonymous", "true")
	case Azure:
		query.Set("account", azureAccount)
		endpoint += "/" + azureAccount
	}
	query.Set("endpoint", endpoint)
	u := url.URL{Scheme: string(s.Kind), Host: bucket, Path: "/" + prefix, RawQuery: query.Encode()}
	return u.String()
}

// Env returns the environment variables with the credentials for the server. It clears
// the variables that would take precedence.
func (s *Server) Env() []string {
	switch s.Kind {
	case S3:
		return []string{
			"AWS_ACCESS_KEY_ID=" + s3Access, "AWS_SECRET_ACCESS_KEY=" + s3Secret, "AWS_REGION=" + s3Region,
			"AWS_SESSION_TOKEN=", "AWS_PROFILE=", "AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null",
		}
	case Azure:
		return []string{
			"AZURE_STORAGE_ACCOUNT=" + azureAccount, "AZURE_STORAGE_KEY=" + azureKey,
			"AZURE_STORAGE_CONNECTION_STRING=", "AZURE_STORAGEBLOB_CONNECTIONSTRING=", "AZURE_STORAGE_SAS_TOKEN=",
		}
	}
	return nil // the URL has anonymous=true
}

// Setenv sets the variables of Env until the test ends.
func (s *Server) Setenv(t testing.TB) {
	for _, pair := range s.Env() {
		name, value, _ := strings.Cut(pair, "=")
		t.Setenv(name, value)
	}
}

// MakeBucket creates an empty bucket.
func (s *Server) MakeBucket(t testing.TB, bucket string) {
	t.Helper()
	if err := s.store.makeBucket(t.Context(), bucket); err != nil {
		t.Fatalf("create bucket %s: %v", bucket, err)
	}
}

// Put creates or replaces an object. The key is sent unchanged; the test fails if the
// server rejects it.
func (s *Server) Put(t testing.TB, bucket, key string, data []byte) {
	t.Helper()
	if err := s.store.put(t.Context(), bucket, key, data); err != nil {
		t.Fatalf("put %q into %s: %v", key, bucket, err)
	}
}

// putWorkers is the number of concurrent requests of PutMany.
const putWorkers = 16

// PutMany creates objects with concurrent requests. It iterates over objects on the
// caller's goroutine, one object ahead of the requests. The caller must not change the
// data before PutMany returns.
func (s *Server) PutMany(t testing.TB, bucket string, objects iter.Seq2[string, []byte]) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	type object struct {
		key  string
		data []byte
	}
	queue := make(chan object)
	var wg sync.WaitGroup
	for range putWorkers {
		wg.Go(func() {
			for o := range queue {
				if err := s.store.put(ctx, bucket, o.key, o.data); err != nil {
					cancel(err) // only the first error counts
				}
			}
		})
	}
	for key, data := range objects {
		if ctx.Err() != nil {
			break
		}
		queue <- object{key, data}
	}
	close(queue)
	wg.Wait()
	if ctx.Err() != nil {
		t.Fatalf("put objects into %s: %v", bucket, context.Cause(ctx))
	}
}

// Fill is PutMany for a large number of objects. If possible it writes them directly
// into the directory of the server. The objects are the same as with PutMany.
func (s *Server) Fill(t testing.TB, bucket string, objects iter.Seq2[string, []byte]) {
	t.Helper()
	if s.root == "" {
		s.PutMany(t, bucket, objects)
		return
	}
	for key, data := range objects {
		if err := s.write(bucket, key, data); err != nil {
			t.Fatalf("write %q into %s: %v", key, bucket, err)
		}
	}
}

// Remove removes an object.
func (s *Server) Remove(t testing.TB, bucket, key string) {
	t.Helper()
	if err := s.store.remove(t.Context(), bucket, key); err != nil {
		t.Fatalf("remove %q from %s: %v", key, bucket, err)
	}
}

// Keys returns the keys of all objects in a bucket, in the order of the server.
func (s *Server) Keys(t testing.TB, bucket string) []string {
	t.Helper()
	keys, err := s.store.keys(t.Context(), bucket)
	if err != nil {
		t.Fatalf("list %s: %v", bucket, err)
	}
	return keys
}
