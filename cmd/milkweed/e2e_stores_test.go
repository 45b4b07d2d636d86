package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/blob"
	"github.com/milkweedfs/milkweed/drivers/blob/blobtest"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A stored is a site whose source is in a bucket of a real server, behind a proxy. The directory
// s.source has the expected files.
type stored struct {
	*site
	server *blobtest.Server
	proxy  *blobtest.Proxy
}

// eachStore runs a test with each kind of server.
func eachStore(t *testing.T, test func(t *testing.T, s *stored)) {
	parallel(t)
	blobtest.Each(t, func(t *testing.T, server *blobtest.Server) {
		s := &stored{site: newSite(t), server: server, proxy: blobtest.NewProxy(t, server.URL, blobtest.Plan{})}
		s.env = append(s.env, server.Env()...)
		server.MakeBucket(t, storedBucket)
		test(t, s)
	})
}

const storedBucket = "datasets"

// upload puts the files of the source into the bucket.
func (s *stored) upload() {
	s.t.Helper()
	s.server.PutMany(s.t, storedBucket, func(yield func(string, []byte) bool) {
		s.check(filepath.WalkDir(s.source, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			if err == nil && !yield("set/"+strings.TrimPrefix(path, s.source+"/"), data) {
				return fs.SkipAll
			}
			return err
		}))
	})
}

// change writes a file of the source, and of the bucket.
func (s *stored) change(name string, data []byte) {
	s.t.Helper()
	s.check(os.WriteFile(filepath.Join(s.source, name), data, 0o644))
	s.server.Put(s.t, storedBucket, "set/"+name, data)
}

// mount mounts the bucket, through the proxy, with one tier.
func (s *stored) mount(words ...string) {
	s.t.Helper()
	url := s.server.BucketURL(storedBucket, "set", s.proxy.URL)
	s.milkweed(append([]string{"mount", "--tier", "tier1:" + s.tier(1) + ":1GiB", url, s.point}, words...)...)
}

// requests returns the requests in the status. They must be those that the proxy has received.
func (s *stored) requests(before blobtest.ProxyStats) blob.Stats {
	s.t.Helper()
	sent, received := s.status().Source.Requests, s.proxy.Stats()
	if sent == nil || sent.Lists != received.Lists-before.Lists || sent.Gets != received.Gets-before.Gets || received.Heads != before.Heads || received.Others != before.Others {
		s.t.Fatalf("requests in the status: %+v; the proxy received %+v, before the mount %+v", sent, received, before)
	}
	return *sent
}

// A training script computes the same losses on a bucket as on the directory that was uploaded.
// Each object takes one request.
func TestStoresTrain(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers of several object stores")
	}
	drivertest.Need(t, "root", "/dev/fuse", python, "python3-torch", "python3-torchvision", "python3-sklearn")
	digits := newSite(t)
	digits.script("../../examples/pytorch/make_digits.py", digits.source)
	digits.sh(`cd "$1"/train && rm */0[6-9]*.png */1*.png`, digits.source) // 600 are left
	files := int64(len(digits.files(digits.source)))
	direct := digits.train(digits.source)
	eachStore(t, func(t *testing.T, s *stored) {
		s.source = digits.source
		s.upload()
		before := s.proxy.Stats()
		s.mount()
		if s.train(s.point) != direct {
			t.Error("the losses differ while the data are placed")
		}
		s.epoch(1)
		s.settled()
		if r := s.requests(before); r.Gets != files || r.Retries != 0 {
			t.Errorf("%d files took %+v", files, r)
		}
		s.umount()
		before = s.proxy.Stats()
		s.mount()
		if s.train(s.point) != direct {
			t.Error("the losses differ when the data are placed")
		}
		s.epoch(2)
		if r := s.requests(before); r.Gets != 0 {
			t.Errorf("placed data took %+v", r)
		}
		s.umount()
		s.wantNothing()
	})
}

// A large object is fetched in as few requests as its size allows, even if many processes read it
// at once in different orders. A warm-up of a directory fetches only that directory.
func TestStoresLargeObjects(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers of several object stores")
	}
	eachStore(t, func(t *testing.T, s *stored) {
		const size = 21<<20 + 7
		s.write("large/a.tfrecord", size)
		s.write("large/b.tfrecord", size)
		s.write("small/c", 1000)
		s.upload()
		before := s.proxy.Stats()
		s.mount()
		s.milkweed("warmup", s.point+"/large")
		if r := s.requests(before); r.Gets != 2*3 || r.Bytes != 2*size {
			t.Errorf("a warm-up took %+v", r)
		}
		s.umount()
		s.emptyTiers()
		before = s.proxy.Stats()
		s.mount()
		s.epoch(1)
		s.settled()
		if r := s.requests(before); r.Bytes != 2*size+1000 {
			t.Errorf("an epoch took %+v", r)
		}
		s.umount()
		s.wantNothing()
	})
}

// An epoch with faults in 2% or 20% of the requests completes, and every byte is right.
func TestStoresFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers of several object stores")
	}
	eachStore(t, func(t *testing.T, s *stored) {
		varied(s.site)
		s.write("large.tfrecord", 30<<20+5)
		s.upload()
		for i, chance := range []float64{.02, .2} {
			part := chance / 8
			s.proxy.SetPlan(blobtest.Plan{Seed: uint64(i), Faults: map[blobtest.Fault]float64{
				blobtest.Reset: part, blobtest.ResetBody: part, blobtest.Truncated: part, blobtest.Unavailable: part,
				blobtest.TooMany: part, blobtest.ShortLength: part, blobtest.Late: part, blobtest.Slow: part,
			}, Lateness: 200 * time.Millisecond, SlowRate: 4 << 20})
			s.mount()
			s.epoch(1)
			s.settled()
			if got, want := s.status().Placement.Placed, int64(len(s.files(s.source))); got != want {
				t.Errorf("%d files were placed, want %d", got, want)
			}
			s.epoch(2)
			s.umount()
			s.wantNothing()
			s.emptyTiers()
		}
		if len(s.proxy.Stats().Faults) < 6 {
			t.Errorf("the proxy injected only the faults %v", s.proxy.Stats().Faults)
		}
	})
}

// An object that is overwritten by one of the same size, within the same second, is another
// version: both for a mount that lists it again and for a copy of an earlier mount.
func TestStoresOverwrite(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers of several object stores")
	}
	eachStore(t, func(t *testing.T, s *stored) {
		old, other := bytes.Repeat([]byte("a"), 50_000), bytes.Repeat([]byte("b"), 50_000)
		cat := func() string { return s.must("cat", s.point+"/f") }
		for range 3 { // at different times within a second
			s.change("f", old)
			s.mount("--attr-timeout", "1s")
			if cat() != string(old) {
				t.Error("wrong bytes")
			}
			s.settled()
			s.change("f", other)
			s.eventually("the other version is read", func() bool {
				got := cat()
				if got != string(old) && got != string(other) {
					t.Fatal("a mixture")
				}
				return got == string(other)
			})
			s.settled()
			s.umount()
			s.change("f", old) // of the same size as the copy
			s.mount()
			if cat() != string(old) {
				t.Error("a copy of another version was used")
			}
			s.umount()
		}
		s.wantNothing()
	})
}

// If the store denies a request, the read of the job fails, and the log has the message of the
// store. Placed files are still read. When the store permits the request, reads succeed again.
func TestStoresRefuse(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers of several object stores")
	}
	eachStore(t, func(t *testing.T, s *stored) {
		placed, missing, gone := s.write("placed", 30_000), s.write("missing", 30_000), "gone"
		s.write(gone, 30_000)
		s.upload()
		s.mount("-o", "log_level=debug,log_file="+s.dir+"/log")
		s.must("ls", s.point)
		s.milkweed("warmup", s.point+"/placed")
		s.server.Remove(t, storedBucket, "set/"+gone)

		s.proxy.SetPlan(blobtest.Plan{Faults: map[blobtest.Fault]float64{blobtest.Forbidden: 1}})
		if out := s.run("cat", s.point+"/missing"); out.code == 0 || !strings.Contains(out.stderr, "Permission denied") {
			t.Errorf("a file that the store denies: %+v", out)
		}
		if got := s.must("cat", s.point+"/placed"); got != string(placed) {
			t.Error("a placed file has other bytes")
		}
		log, err := os.ReadFile(s.dir + "/log")
		s.check(err)
		if !strings.Contains(string(log), "HTTP 403") || strings.Count(string(log), "level=WARN") == 0 {
			t.Errorf("the log lacks the message of the store:\n%s", log)
		}

		s.proxy.SetPlan(blobtest.Plan{})
		s.eventually("the file can be read again", func() bool { return s.run("cat", s.point+"/missing").stdout == string(missing) })
		if out := s.run("cat", s.point+"/"+gone); out.code == 0 || !strings.Contains(out.stderr, "Stale file handle") && !strings.Contains(out.stderr, "No such file") {
			t.Errorf("a file that was removed: %+v", out)
		}
		s.eventually("the name is gone", func() bool {
			return strings.Contains(s.run("cat", s.point+"/"+gone).stderr, "No such file")
		})
		if got := s.must("ls", s.point); got != "missing\nplaced\n" {
			t.Errorf("the directory has %q", got)
		}
		s.umount()
		s.wantNothing()
	})
}

// Files for which no tier has room are read from the store in each epoch.
func TestStoresWithoutRoom(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers of several object stores")
	}
	eachStore(t, func(t *testing.T, s *stored) {
		varied(s.site)
		s.write("large.tfrecord", 30<<20+5)
		s.upload()
		url := s.server.BucketURL(storedBucket, "set", s.proxy.URL)
		s.milkweed("mount", "--tier", "tier1:"+s.tier(1)+":1MiB", url, s.point)
		for i := range 2 {
			before := s.proxy.Stats()
			s.epoch(i)
			s.must("cmp", s.source+"/large.tfrecord", s.point+"/large.tfrecord")
			if got := s.proxy.Stats().Gets - before.Gets; got > 1000 {
				t.Errorf("an epoch took %d requests", got)
			}
		}
		s.umount()
		s.wantNothing()
	})
}
