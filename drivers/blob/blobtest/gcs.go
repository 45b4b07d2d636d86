package blobtest

import (
	"context"
	"errors"
	"os/exec"
	"testing"

	"cloud.google.com/go/storage"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"
)

// startGCS starts fake-gcs-server. Its public host has no port, so that it accepts
// requests through a Proxy too. One difference to Google's server: a page of a listing
// repeats those directories of earlier pages that sort after its first name.
func startGCS(t testing.TB) *Server {
	t.Helper()
	path := program(t, "fake-gcs-server")
	s := &Server{Kind: GCS}
	s.URL = "http://" + launch(t, func(host, port string) *exec.Cmd {
		return exec.Command(path, "-scheme", "http", "-host", host, "-port", port, "-public-host", host,
			"-backend", "memory", "-log-level", "error")
	})
	return s
}

// A gcsStore is the store of a server of Google Cloud Storage.
type gcsStore struct{ client *storage.Client }

func newGCSStore(t testing.TB, endpoint string) *gcsStore {
	t.Helper()
	client, err := storage.NewClient(t.Context(), option.WithHTTPClient(httpClient(t)), option.WithoutAuthentication(),
		option.WithEndpoint(endpoint+"/storage/v1/"))
	if err != nil {
		t.Fatalf("make a client of %s: %v", endpoint, err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("close the client of %s: %v", endpoint, err)
		}
	})
	return &gcsStore{client}
}

func (s *gcsStore) makeBucket(ctx context.Context, bucket string) error {
	return s.client.Bucket(bucket).Create(ctx, "project", nil)
}

func (s *gcsStore) put(ctx context.Context, bucket, key string, data []byte) error {
	w := s.client.Bucket(bucket).Object(key).NewWriter(ctx)
	w.ChunkSize = 0 // send one request
	_, err := w.Write(data)
	return errors.Join(err, w.Close())
}

func (s *gcsStore) remove(ctx context.Context, bucket, key string) error {
	return s.client.Bucket(bucket).Object(key).Delete(ctx)
}

func (s *gcsStore) keys(ctx context.Context, bucket string) ([]string, error) {
	var keys []string
	objects := s.client.Bucket(bucket).Objects(ctx, nil)
	for {
		object, err := objects.Next()
		if err == iterator.Done {
			return keys, nil
		}
		if err != nil {
			return nil, err
		}
		keys = append(keys, object.Name)
	}
}
