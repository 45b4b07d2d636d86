package blobtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// startGCS starts fake-gcs-server. Its public host has no port, so that it accepts
// requests through a Proxy too. One difference to Google's server: a page of a listing
// repeats those directories of earlier pages that sort after its first name.
func startGCS(t testing.TB) *Server {
	t.Helper()
	drivertest.Need(t, "fake-gcs-server")
	path := program(t, "fake-gcs-server")
	s := &Server{Kind: GCS}
	s.URL = "http://" + launch(t, func(host, port string) *exec.Cmd {
		return exec.Command(path, "-scheme", "http", "-host", host, "-port", port, "-public-host", host,
			"-backend", "memory", "-log-level", "error")
	})
	return s
}

// A gcsStore is the store of a server of Google Cloud Storage. It uses the JSON API.
type gcsStore struct {
	client   *http.Client
	endpoint string
}

func newGCSStore(t testing.TB, endpoint string) *gcsStore {
	return &gcsStore{httpClient(t), endpoint}
}

func (s *gcsStore) makeBucket(ctx context.Context, bucket string) error {
	body, err := json.Marshal(map[string]string{"name": bucket})
	if err != nil {
		return err
	}
	_, err = s.send(ctx, http.MethodPost, "/storage/v1/b?project=project", body)
	return err
}

func (s *gcsStore) put(ctx context.Context, bucket, key string, data []byte) error {
	query := url.Values{"uploadType": {"media"}, "name": {key}}
	_, err := s.send(ctx, http.MethodPost, "/upload/storage/v1/b/"+url.PathEscape(bucket)+"/o?"+query.Encode(), data)
	return err
}

func (s *gcsStore) remove(ctx context.Context, bucket, key string) error {
	_, err := s.send(ctx, http.MethodDelete, "/storage/v1/b/"+url.PathEscape(bucket)+"/o/"+url.PathEscape(key), nil)
	return err
}

func (s *gcsStore) keys(ctx context.Context, bucket string) ([]string, error) {
	var keys []string
	for token, more := "", true; more; {
		body, err := s.send(ctx, http.MethodGet, "/storage/v1/b/"+url.PathEscape(bucket)+"/o?pageToken="+url.QueryEscape(token), nil)
		if err != nil {
			return nil, err
		}
		var page struct {
			Items         []struct{ Name string }
			NextPageToken string
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return nil, err
		}
		for _, object := range page.Items {
			keys = append(keys, object.Name)
		}
		token, more = page.NextPageToken, page.NextPageToken != ""
	}
	return keys, nil
}

// send sends a request for a resource, which is a path and a query. It returns the body
// of the response.
func (s *gcsStore) send(ctx context.Context, method, resource string, data []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.endpoint+resource, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/octet-stream")
	resp, err := s.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return body, err
}
