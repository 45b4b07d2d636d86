package fs

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// A counted file system counts the requests for listings, and the opens that make the kernel
// drop its cache of a directory.
type counted struct {
	*fileSystem
	lists, drops atomic.Int64
}

func (c *counted) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	status := c.fileSystem.OpenDir(cancel, in, out)
	if out.OpenFlags&fuse.FOPEN_KEEP_CACHE == 0 {
		c.drops.Add(1)
	}
	return status
}

func (c *counted) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	c.lists.Add(1)
	return c.fileSystem.ReadDir(cancel, in, out)
}

func (c *counted) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	c.lists.Add(1)
	return c.fileSystem.ReadDirPlus(cancel, in, out)
}

// newCounted mounts a source with the files d/0000, d/0001 and so on.
func newCounted(t *testing.T, files int, timeout time.Duration) (c *counted, source *drivertest.Mem, point string) {
	t.Helper()
	drivertest.Need(t, "/dev/fuse")
	source = drivertest.NewMem(0)
	for i := range files {
		source.Put(fmt.Sprintf("d/%04d", i), []byte("x"))
	}
	log := slog.New(slog.DiscardHandler)
	levels, err := tiers.New(source, nil, tiers.Options{}, log)
	if err != nil {
		t.Fatal(err)
	}
	names, err := metadata.New(t.Context(), levels, metadata.Options{TTL: timeout}, log)
	if err != nil {
		t.Fatal(err)
	}
	c = &counted{fileSystem: &fileSystem{RawFileSystem: fuse.NewDefaultRawFileSystem(), names: names, negativeTTL: timeout, log: log}}
	point = t.TempDir()
	serve(t, c, point, fuse.MountOptions{})
	return c, source, point
}

// serve serves a file system at point until the test ends. If a program that looks at all mounts uses it
// then, it is detached.
func serve(t testing.TB, served fuse.RawFileSystem, point string, opts fuse.MountOptions) *fuse.Server {
	t.Helper()
	opts.FsName, opts.Name = "counted", "milkweed"
	opts.Logger = slog.NewLogLogger(slog.DiscardHandler, slog.LevelWarn)
	server, err := fuse.NewServer(served, point, &opts)
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(server.Serve)
	t.Cleanup(func() {
		if server.Unmount() != nil {
			if err := Unmount(context.Background(), point, true); err != nil {
				t.Errorf("unmount: %v", err)
				return
			}
		}
		running.Wait()
	})
	if err := server.WaitMount(); err != nil {
		t.Fatal(err)
	}
	return server
}

// requests runs a command and returns the number of requests for listings that it causes, and
// its output.
func (c *counted) requests(t *testing.T, name string, args ...string) (n int64, out string) {
	t.Helper()
	before := c.lists.Load()
	b, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, b)
	}
	return c.lists.Load() - before, string(b)
}

// cached runs a command whose listings the kernel must have cached, and returns its output. The
// kernel may reclaim the cached pages at any time, so that the command is repeated, but no open
// may make it drop them.
func (c *counted) cached(t *testing.T, name string, args ...string) (out string) {
	t.Helper()
	drops := c.drops.Load()
	for range 10 {
		var n int64
		n, out = c.requests(t, name, args...)
		if c.drops.Load() > drops {
			t.Errorf("%s %q: an open dropped the cache of the kernel", name, args)
			return out
		}
		if n == 0 {
			return out
		}
	}
	t.Errorf("%s %q: 10 runs have all caused requests", name, args)
	return out
}

// The kernel lists a directory from its cache until the directory has changed.
func TestDirectoryIsListedOnce(t *testing.T) {
	t.Parallel()
	const files = 500
	c, source, point := newCounted(t, files, time.Second)
	lines := func(out string) int { return strings.Count(out, "\n") }
	list := func(changed bool, want int) {
		t.Helper()
		args := []string{"-U", point + "/d"}
		if !changed {
			if got := lines(c.cached(t, "ls", args...)); got != want {
				t.Errorf("%d names, want %d", got, want)
			}
		} else if n, out := c.requests(t, "ls", args...); n == 0 || lines(out) != want {
			t.Errorf("got %d requests and %d names, want some and %d", n, lines(out), want)
		}
	}
	list(true, files)
	list(false, files)
	time.Sleep(1100 * time.Millisecond)
	list(false, files) // validated with the source, and unchanged
	source.Put("d/new", nil)
	time.Sleep(1100 * time.Millisecond)
	list(true, files+1)
	list(false, files+1)
	if got := lines(c.cached(t, "find", point+"/d", "-type", "f", "-size", "0")); got != 1 {
		t.Errorf("find: %d names, want 1", got)
	}
}

// The next reader completes a listing that an earlier one did not finish.
func TestPartOfADirectoryIsKept(t *testing.T) {
	const files = 3000
	c, _, point := newCounted(t, files, time.Hour)
	t.Setenv("MILKWEED_TEST_CHILD", "part")
	if n, out := c.requests(t, os.Args[0], point+"/d"); n != 1 || out != "." {
		t.Fatalf("got %d requests and the output %q, want 1 and \".\"", n, out)
	}
	if n, out := c.requests(t, "ls", "-U", point+"/d"); n < 2 || strings.Count(out, "\n") != files {
		t.Errorf("the whole listing: got %d requests and %d names, want %d names", n, strings.Count(out, "\n"), files)
	}
	if got := strings.Count(c.cached(t, "ls", "-U", point+"/d"), "\n"); got != files {
		t.Errorf("from the cache: got %d names, want %d", got, files)
	}
}

// open opens a directory and reports whether the kernel keeps its cache of it.
func (c *counted) open(t *testing.T, dir *metadata.Entry) (handle uint64, keep bool) {
	t.Helper()
	var out fuse.OpenOut
	if status := c.OpenDir(nil, &fuse.OpenIn{InHeader: fuse.InHeader{NodeId: dir.ID()}}, &out); status != fuse.OK {
		t.Fatal(status)
	}
	return out.Fh, out.OpenFlags&fuse.FOPEN_KEEP_CACHE != 0
}

// When a handle with an earlier version of a listing goes on after an open of a later version, the
// kernel may have cached both. The next open drops its cache.
func TestEarlierVersionIsNotKept(t *testing.T) {
	c, source, _ := newCounted(t, 10, 0)
	d, err := c.names.Resolve(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	wantKeep := func(want bool) uint64 {
		t.Helper()
		h, got := c.open(t, d)
		if got != want {
			t.Errorf("the kernel keeps its cache: got %v, want %v", got, want)
		}
		return h
	}
	wantKeep(false)
	early := wantKeep(true)
	source.Put("d/new", nil)
	wantKeep(false)
	wantKeep(true)
	out := fuse.NewDirEntryList(make([]byte, 4096), 0)
	if status := c.fileSystem.ReadDir(nil, &fuse.ReadIn{Fh: early, Offset: offsetParent, Size: 4096}, out); status != fuse.OK {
		t.Fatal(status)
	}
	wantKeep(false)
	wantKeep(true)
}

// The dentry of a stale entry, which a listing from before a change still contains, expires at
// once: the reply may reach the kernel after the invalidation of the name.
func TestStaleDentryIsNotCached(t *testing.T) {
	c, source, _ := newCounted(t, 10, time.Hour)
	d, err := c.names.Resolve(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	h, _ := c.open(t, d)
	old, err := c.names.Resolve(t.Context(), "d/0004")
	if err != nil {
		t.Fatal(err)
	}
	source.Put("d/0004", []byte("another"))
	c.names.Changed(old)
	handle, _ := c.dirs.get(h)
	if !slices.Contains(handle.listing.Entries, old) {
		t.Fatal("the listing does not contain the stale entry")
	}
	for _, e := range handle.listing.Entries {
		var out fuse.EntryOut
		c.setEntry(&out, fuse.FUSE_ROOT_ID, e.ID(), e)
		if (out.EntryValid == 0) != (e == old) {
			t.Errorf("%s: stale %v, cached for %d s", e.Name(), e.Stale(), out.EntryValid)
		}
		c.names.Forget(out.NodeId, 1)
	}
}

// The handles of a directory that does not change share one listing in memory.
func TestOpenDirectoriesShareAListing(t *testing.T) {
	c, source, _ := newCounted(t, 100, 0)
	d, err := c.names.Resolve(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	open := func() *openDir {
		h, _ := c.open(t, d)
		handle, _ := c.dirs.get(h)
		return handle
	}
	a, b := open(), open()
	if &a.listing.Entries[0] != &b.listing.Entries[0] || a.listing.Version != b.listing.Version {
		t.Error("two handles have two listings of an unchanged directory")
	}
	source.Put("d/new", nil)
	if c := open(); len(c.listing.Entries) != 101 || len(a.listing.Entries) != 100 || c.listing.Version == a.listing.Version {
		t.Error("a handle of the changed directory has the listing from before")
	}
}

// A reader that continues at an offset of another listing continues after the name at that
// offset.
func TestOffsetOfAnotherListing(t *testing.T) {
	c, source, _ := newCounted(t, 10, 0)
	ctx := t.Context()
	d, err := c.names.Resolve(ctx, "d")
	if err != nil {
		t.Fatal(err)
	}
	old, err := c.names.Listing(ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	source.Put("d/0000a", nil)
	source.Delete("d/0004")
	source.Put("d/0006", []byte("another version"))
	held := old.Entries[4]
	c.names.Hold(held) // as a lookup by the kernel does
	now, err := c.names.Listing(ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	h := &openDir{entry: d, listing: now}
	for _, e := range append(old.Entries, now.Entries...) {
		got, ok := h.position(e.ID()+offsetEntry, c.names)
		if e.Name() == "0006" && e.Stale() {
			if ok {
				t.Error("an entry that no longer exists has a position")
			}
			continue
		}
		want := 0
		for want < len(now.Entries) && now.Entries[want].Name() <= e.Name() {
			want++
		}
		if got != want || !ok {
			t.Errorf("after %s: got %d, %v, want %d", e.Name(), got, ok, want)
		}
	}
	h = &openDir{entry: d, listing: old}
	for i, e := range old.Entries {
		if got, ok := h.position(e.ID()+offsetEntry, c.names); got != i+1 || !ok {
			t.Errorf("in its own listing, after %s: got %d, %v, want %d", e.Name(), got, ok, i+1)
		}
	}
	for _, offset := range []uint64{d.ID() + offsetEntry, 1 << 40} {
		if _, ok := h.position(offset, c.names); ok {
			t.Errorf("the offset %d, which is in no listing, has a position", offset)
		}
	}
}
