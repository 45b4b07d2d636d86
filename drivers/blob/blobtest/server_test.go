package blobtest

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
)

func TestServers(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		s.MakeBucket(t, "bucket")
		s.MakeBucket(t, "other")
		if got := s.Keys(t, "bucket"); len(got) != 0 {
			t.Errorf("a new bucket has %q", got)
		}
		objects := make(map[string][]byte)
		for i := range 50 {
			objects[fmt.Sprintf("many/%02d", i)] = payload(i)
		}
		s.PutMany(t, "bucket", maps.All(objects))
		s.Put(t, "bucket", "dir/sub dir/é+%2F.bin", payload(100_000))
		s.Put(t, "bucket", "gone", payload(1))
		s.Remove(t, "bucket", "gone")
		objects["dir/sub dir/é+%2F.bin"] = nil
		got := s.Keys(t, "bucket")
		slices.Sort(got)
		if want := slices.Sorted(maps.Keys(objects)); !slices.Equal(got, want) {
			t.Errorf("Keys: got %q, want %q", got, want)
		}
	})
}

// Signatures hold on the way through a Proxy, and a connection is used again, or
// each small object would cost a new one.
func TestServersThroughProxy(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		p := NewProxy(t, s.URL, Plan{})
		behind := s.At(t, p.URL)
		behind.MakeBucket(t, "bucket")
		behind.Put(t, "bucket", "a key/+%", payload(1000))
		behind.Put(t, "bucket", "gone", nil)
		behind.Remove(t, "bucket", "gone")
		for _, s := range []*Server{s, behind} {
			if got := s.Keys(t, "bucket"); !slices.Equal(got, []string{"a key/+%"}) {
				t.Errorf("Keys at %s: %q", s.URL, got)
			}
		}
		if got := p.Stats(); got.Lists != 1 || got.Others < 4 || got.Broken != 0 || got.Conns > 2 {
			t.Errorf("Stats: %+v", got)
		}
	})
}

func TestFill(t *testing.T) {
	s := Start(t, S3)
	s.MakeBucket(t, "bucket")
	s.Put(t, "bucket", "put/object", payload(1000))
	s.Fill(t, "bucket", maps.All(map[string][]byte{"a/b/filled": payload(1000), "empty": nil}))
	if got := s.Keys(t, "bucket"); !slices.Equal(got, []string{"a/b/filled", "empty", "put/object"}) {
		t.Errorf("Keys: %q", got)
	}
	client := s.store.(*s3Store).client
	var etags []string
	for _, key := range []string{"put/object", "a/b/filled"} {
		bucket := "bucket"
		object, err := client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: &key})
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(object.Body)
		if err := errors.Join(err, object.Body.Close()); err != nil || !bytes.Equal(body, payload(1000)) {
			t.Errorf("%s: %d bytes, %v", key, len(body), err)
		}
		etags = append(etags, *object.ETag)
	}
	if etags[0] != etags[1] {
		t.Errorf("ETags of the same content: %q", etags)
	}
}

func TestBucketURL(t *testing.T) {
	for _, test := range []struct {
		kind             Kind
		prefix, endpoint string
		want             string
	}{
		{S3, "", "", "s3://bucket/?endpoint=http%3A%2F%2Fhost%3A1&region=us-east-1"},
		{S3, "a b/c", "https://proxy:2", "s3://bucket/a%20b/c?endpoint=https%3A%2F%2Fproxy%3A2&region=us-east-1"},
		{GCS, "a", "", "gs://bucket/a?anonymous=true&endpoint=http%3A%2F%2Fhost%3A1"},
		{Azure, "a", "", "azblob://bucket/a?account=devstoreaccount1&endpoint=http%3A%2F%2Fhost%3A1%2Fdevstoreaccount1"},
	} {
		s := Server{Kind: test.kind, URL: "http://host:1"}
		if got := s.BucketURL("bucket", test.prefix, test.endpoint); got != test.want {
			t.Errorf("got %s, want %s", got, test.want)
		}
	}
}

func TestSetenv(t *testing.T) {
	t.Setenv("AWS_SESSION_TOKEN", "of somebody else")
	s := Server{Kind: S3}
	s.Setenv(t)
	if got := os.Getenv("AWS_SECRET_ACCESS_KEY"); got != s3Secret {
		t.Errorf("the secret is %q", got)
	}
	if got := os.Getenv("AWS_SESSION_TOKEN"); got != "" {
		t.Errorf("the token is still %q", got)
	}
}

// The error of a fault is what the vendor's own library understands.
func TestErrorXML(t *testing.T) {
	var got struct{ Code, Message string }
	if err := xml.Unmarshal(errorXML("SlowDown"), &got); err != nil || got.Code != "SlowDown" || got.Message != Message {
		t.Errorf("%+v, %v", got, err)
	}
	s := Start(t, S3)
	s.MakeBucket(t, "bucket")
	p := NewProxy(t, s.URL, Plan{Faults: always(Forbidden)})
	err := s.At(t, p.URL).store.put(t.Context(), "bucket", "key", nil)
	if err == nil || !strings.Contains(err.Error(), "AccessDenied: "+Message) {
		t.Errorf("got %v", err)
	}
}

func TestFind(t *testing.T) {
	folder, path := t.TempDir(), t.TempDir()
	t.Setenv("PATH", path)
	if got, err := find(folder, "server"); err == nil || !strings.Contains(err.Error(), "run make deps") {
		t.Errorf("found %q, %v", got, err)
	}
	for _, want := range []string{filepath.Join(path, "server"), filepath.Join(folder, "bin", "server")} {
		if err := os.MkdirAll(filepath.Dir(want), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(want, nil, 0o700); err != nil {
			t.Fatal(err)
		}
		if got, err := find(folder, "server"); got != want || err != nil {
			t.Errorf("found %q, %v; want %q", got, err, want)
		}
	}
}

// A program that exits at once is told of, and not waited for.
func TestServerDies(t *testing.T) {
	p := run(t, exec.Command("/bin/sh", "-c", "echo oh dear >&2; exit 3"))
	if p.answers("127.0.0.1:1") {
		t.Error("it answers")
	}
	if got := p.out.String(); got != "oh dear\nexit status 3\n" {
		t.Errorf("its output is %q", got)
	}
}

// The servers end with the process that started them, however that ends. The
// test is its own such process.
func TestServersEndWithTheTest(t *testing.T) {
	if os.Getenv("BLOBTEST_CHILD") != "" {
		p := run(t, exec.Command("/bin/sleep", "1000"))
		fmt.Printf("pid=%d\n", p.cmd.Process.Pid)
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		select {} // until the signal is there
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestServersEndWithTheTest$")
	cmd.Env = append(os.Environ(), "BLOBTEST_CHILD=1")
	// Not Output, which would wait for the grandchild, if it lived.
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout = out
	if err := cmd.Run(); err == nil {
		t.Fatal("the child was not killed")
	}
	said, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscanf(string(said), "pid=%d", &pid); err != nil {
		t.Fatalf("the child says %q: %v", said, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTime)
	defer cancel()
	for lives(pid) {
		if !sleep(ctx, 10*time.Millisecond) {
			t.Fatalf("process %d lives on", pid)
		}
	}
}

// lives reports whether a process is there and is no zombie: who waits for an
// orphan may be slow.
func lives(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}
