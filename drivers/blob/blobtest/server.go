// Package blobtest is what tests of object stores are run against: real
// servers on this machine, for each protocol one, and a Proxy that stands
// between them and whoever asks, and makes a network of it: slow, and with
// faults.
package blobtest

import (
	"context"
	"iter"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// A Kind is the protocol of a server: the scheme of its URLs.
type Kind string

// The kinds of servers.
const (
	S3    Kind = "s3"     // versitygw, over a folder
	GCS   Kind = "gs"     // fake-gcs-server, in memory
	Azure Kind = "azblob" // Azurite, in memory
)

// Kinds are all of them.
var Kinds = []Kind{S3, GCS, Azure}

// A Server is a server of an object store on this machine, which is empty at
// first and ends with the test. Its methods may be called concurrently; those
// that are given a test fail it, from its own goroutine, when they cannot do
// what they are told.
type Server struct {
	Kind Kind
	URL  string // where it answers, such as http://127.0.0.1:1234

	root  string // S3: the folder with a folder for each bucket, where Fill may write
	store store
}

// A store is what a Server is changed by, in its own protocol.
type store interface {
	makeBucket(ctx context.Context, bucket string) error
	put(ctx context.Context, bucket, key string, data []byte) error
	remove(ctx context.Context, bucket, key string) error
	keys(ctx context.Context, bucket string) ([]string, error)
}

// Start starts a server of a kind. Its program must be there: `make deps` makes
// it so.
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
		t.Fatalf("there is no server of the kind %q", kind)
	}
	return s.At(t, s.URL)
}

// At is the same server, reached at another URL, as at that of a Proxy before it.
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

// Each runs a test for a server of each kind.
func Each(t *testing.T, test func(t *testing.T, s *Server)) {
	for _, kind := range Kinds {
		t.Run(string(kind), func(t *testing.T) { test(t, Start(t, kind)) })
	}
}

// BucketURL is what a user writes to have a bucket mounted, or what begins with
// prefix in it. The server is reached at endpoint, as at the URL of a Proxy
// before it; "" is the server itself.
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

// Env is the environment that a program finds its credentials in, and nothing
// else that would take their place.
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
	return nil // the URL says that requests are not signed
}

// Setenv makes Env the environment of the test.
func (s *Server) Setenv(t testing.TB) {
	for _, pair := range s.Env() {
		name, value, _ := strings.Cut(pair, "=")
		t.Setenv(name, value)
	}
}

// MakeBucket makes an empty bucket.
func (s *Server) MakeBucket(t testing.TB, bucket string) {
	t.Helper()
	if err := s.store.makeBucket(t.Context(), bucket); err != nil {
		t.Fatalf("make bucket %s: %v", bucket, err)
	}
}

// Put makes an object, in place of any other of that key. The key is taken as
// it is; what the server does not allow in a key fails the test.
func (s *Server) Put(t testing.TB, bucket, key string, data []byte) {
	t.Helper()
	if err := s.store.put(t.Context(), bucket, key, data); err != nil {
		t.Fatalf("put %q into %s: %v", key, bucket, err)
	}
}

// putters is how many objects PutMany puts at once.
const putters = 16

// PutMany makes many objects. It asks for the next one, on one goroutine, when it
// is ready to send it; data is not changed until PutMany returns.
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
	for range putters {
		wg.Go(func() {
			for o := range queue {
				if err := s.store.put(ctx, bucket, o.key, o.data); err != nil {
					cancel(err) // the first one counts
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
		t.Fatalf("put many into %s: %v", bucket, context.Cause(ctx))
	}
}

// Fill is PutMany for very many objects: where it can, it goes behind the back
// of the server. The objects are as if they had been put.
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

// Keys are the keys of all objects in a bucket, as the server lists them.
func (s *Server) Keys(t testing.TB, bucket string) []string {
	t.Helper()
	keys, err := s.store.keys(t.Context(), bucket)
	if err != nil {
		t.Fatalf("list %s: %v", bucket, err)
	}
	return keys
}
