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
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// Objects can be put, removed and listed on a server of each kind.
func TestServers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers of every kind")
	}
	Each(t, func(t *testing.T, s *Server) {
		s.MakeBucket(t, "bucket")
		s.MakeBucket(t, "other")
		if got := s.Keys(t, "bucket"); len(got) != 0 {
			t.Errorf("a new bucket has the keys %q", got)
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

// Signatures stay valid through a Proxy, and connections are reused.
func TestServersThroughProxy(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers of every kind")
	}
	Each(t, func(t *testing.T, s *Server) {
		p := NewProxy(t, s.URL, Plan{})
		proxied := s.At(t, p.URL)
		proxied.MakeBucket(t, "bucket")
		proxied.Put(t, "bucket", "a key/+%", payload(1000))
		proxied.Put(t, "bucket", "gone", nil)
		proxied.Remove(t, "bucket", "gone")
		for _, s := range []*Server{s, proxied} {
			if got := s.Keys(t, "bucket"); !slices.Equal(got, []string{"a key/+%"}) {
				t.Errorf("Keys at %s: got %q", s.URL, got)
			}
		}
		if got := p.Stats(); got.Lists != 1 || got.Others < 4 || got.Broken != 0 || got.Conns > 2 {
			t.Errorf("Stats: got %+v", got)
		}
	})
}

// The objects of Fill have the same content and ETag as those of Put.
func TestFill(t *testing.T) {
	s := Start(t, S3)
	s.MakeBucket(t, "bucket")
	s.Put(t, "bucket", "put/object", payload(1000))
	s.Fill(t, "bucket", maps.All(map[string][]byte{"a/b/filled": payload(1000), "empty": nil}))
	if got := s.Keys(t, "bucket"); !slices.Equal(got, []string{"a/b/filled", "empty", "put/object"}) {
		t.Errorf("Keys: got %q", got)
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
			t.Errorf("%s: got %d bytes, error %v, or wrong data", key, len(body), err)
		}
		etags = append(etags, *object.ETag)
	}
	if etags[0] != etags[1] {
		t.Errorf("got different ETags of the same content: %q", etags)
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
	t.Setenv("AWS_SESSION_TOKEN", "other")
	s := Server{Kind: S3}
	s.Setenv(t)
	if got := os.Getenv("AWS_SECRET_ACCESS_KEY"); got != s3Secret {
		t.Errorf("AWS_SECRET_ACCESS_KEY: got %q", got)
	}
	if got := os.Getenv("AWS_SESSION_TOKEN"); got != "" {
		t.Errorf("AWS_SESSION_TOKEN: got %q, want none", got)
	}
}

// Amazon's library parses the error response of a fault.
func TestErrorXML(t *testing.T) {
	var got struct{ Code, Message string }
	if err := xml.Unmarshal(errorXML("SlowDown"), &got); err != nil || got.Code != "SlowDown" || got.Message != Message {
		t.Errorf("got %+v, error %v", got, err)
	}
	s := Start(t, S3)
	s.MakeBucket(t, "bucket")
	p := NewProxy(t, s.URL, Plan{Faults: always(Forbidden)})
	err := s.At(t, p.URL).store.put(t.Context(), "bucket", "key", nil)
	if err == nil || !strings.Contains(err.Error(), "AccessDenied: "+Message) {
		t.Errorf("got error %v", err)
	}
}

// waitReady does not wait for a program that has exited.
func TestServerExitsEarly(t *testing.T) {
	p := run(t, exec.Command("/bin/sh", "-c", "echo failed >&2; exit 3"))
	if p.waitReady("127.0.0.1:1") {
		t.Error("the process is ready")
	}
	if got := p.out.String(); got != "failed\nexit status 3\n" {
		t.Errorf("got output %q", got)
	}
}

// The servers are killed when the process that started them is killed. The test runs
// itself as that process.
func TestServersEndWithTheTest(t *testing.T) {
	if os.Getenv("BLOBTEST_CHILD") != "" {
		p := run(t, exec.Command("/bin/sleep", "1000"))
		fmt.Printf("pid=%d\n", p.cmd.Process.Pid)
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		select {} // until the signal arrives
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestServersEndWithTheTest$")
	cmd.Env = append(os.Environ(), "BLOBTEST_CHILD=1")
	// Not cmd.Output, which would wait for the grandchild if it were still alive.
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout = out
	if err := cmd.Run(); err == nil {
		t.Fatal("the child was not killed")
	}
	output, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscanf(string(output), "pid=%d", &pid); err != nil {
		t.Fatalf("the child printed %q: %v", output, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	for alive(pid) {
		if !sleep(ctx, 10*time.Millisecond) {
			t.Fatalf("process %d is still alive", pid)
		}
	}
}

// alive reports whether a process exists and is not a zombie. The process that reaps
// an orphan may be slow.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}
