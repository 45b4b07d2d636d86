package blobtest

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// The credentials and the region of versitygw.
const (
	s3Access = "milkweed"
	s3Secret = "milkweed-secret"
	s3Region = "us-east-1"
)

// etagAttribute is the extended attribute in which versitygw stores the ETag of an
// object.
const etagAttribute = "user.etag"

// startS3 starts versitygw. It stores the metadata of objects in extended attributes,
// or in another directory if temporary files do not support these.
func startS3(t testing.TB) *Server {
	t.Helper()
	drivertest.Need(t, "versitygw")
	path := program(t, "versitygw")
	root, args := t.TempDir(), []string{}
	s := &Server{Kind: S3, root: root}
	if err := syscall.Setxattr(root, etagAttribute, nil, 0); errors.Is(err, syscall.ENOTSUP) {
		args, s.root = []string{"--sidecar", t.TempDir()}, ""
	} else if err != nil {
		t.Fatalf("set an extended attribute of %s: %v", root, err)
	}
	s.URL = "http://" + launch(t, func(host, port string) *exec.Cmd {
		cmd := exec.Command(path, "--port", host+":"+port, "--region", s3Region, "--quiet", "--keep-alive", "posix")
		cmd.Args = append(append(cmd.Args, args...), root)
		cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+s3Access, "ROOT_SECRET_KEY="+s3Secret)
		return cmd
	})
	return s
}

// httpClient returns a client whose connections are closed when the test ends.
func httpClient(t testing.TB) *http.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: putWorkers}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// write creates an object in the directory of versitygw, without a request. The object
// is the same as one that was put.
func (s *Server) write(bucket, key string, data []byte) error {
	path := filepath.Join(s.root, bucket, filepath.FromSlash(key))
	err := os.WriteFile(path, data, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		return err
	}
	if err := syscall.Setxattr(path, etagAttribute, fmt.Appendf(nil, "\"%x\"", md5.Sum(data)), 0); err != nil {
		return fmt.Errorf("set the ETag: %w", err)
	}
	return nil
}

// An s3Store is the store of an S3 server.
type s3Store struct{ client *s3.Client }

func newS3Store(t testing.TB, endpoint string) *s3Store {
	return &s3Store{s3.New(s3.Options{
		BaseEndpoint: &endpoint,
		UsePathStyle: true,
		Region:       s3Region,
		HTTPClient:   httpClient(t),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: s3Access, SecretAccessKey: s3Secret}, nil
		}),
	})}
}

func (s *s3Store) makeBucket(ctx context.Context, bucket string) error {
	_, err := s.client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &bucket})
	return err
}

func (s *s3Store) put(ctx context.Context, bucket, key string, data []byte) error {
	_, err := s.client.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: bytes.NewReader(data)})
	return err
}

func (s *s3Store) remove(ctx context.Context, bucket, key string) error {
	_, err := s.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &bucket, Key: &key})
	return err
}

func (s *s3Store) keys(ctx context.Context, bucket string) ([]string, error) {
	var keys []string
	pages := s3.NewListObjectsV2Paginator(s.client, &s3.ListObjectsV2Input{Bucket: &bucket})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, object := range page.Contents {
			keys = append(keys, *object.Key)
		}
	}
	return keys, nil
}
