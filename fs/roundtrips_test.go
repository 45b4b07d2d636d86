package fs

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// A tripCounter counts the FUSE round trips for names, attributes, opens, listings and extended
// attributes and access(2). It does not count reads, because the kernel may reclaim pages at any time.
type tripCounter struct {
	*fileSystem
	lookups, attributes, opens, lists, xattrs, accesses atomic.Int64
}

func (c *tripCounter) Lookup(cancel <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	c.lookups.Add(1)
	return c.fileSystem.Lookup(cancel, in, name, out)
}

func (c *tripCounter) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	c.attributes.Add(1)
	return c.fileSystem.GetAttr(cancel, in, out)
}

func (c *tripCounter) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	c.opens.Add(1)
	return c.fileSystem.Open(cancel, in, out)
}

func (c *tripCounter) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	c.lists.Add(1)
	return c.fileSystem.OpenDir(cancel, in, out)
}

func (c *tripCounter) GetXAttr(cancel <-chan struct{}, in *fuse.InHeader, attr string, dst []byte) (uint32, fuse.Status) {
	if attr != drivers.ACLXattr || in.NodeId != fuse.FUSE_ROOT_ID { // whether the ACL of the root is cached depends on the kernel
		c.xattrs.Add(1)
	}
	return c.fileSystem.GetXAttr(cancel, in, attr, dst)
}

func (c *tripCounter) ListXAttr(cancel <-chan struct{}, in *fuse.InHeader, dst []byte) (uint32, fuse.Status) {
	c.xattrs.Add(1)
	return c.fileSystem.ListXAttr(cancel, in, dst)
}

func (c *tripCounter) Access(cancel <-chan struct{}, in *fuse.AccessIn) fuse.Status {
	c.accesses.Add(1)
	return c.fileSystem.Access(cancel, in)
}

// trips are numbers of round trips.
type trips struct{ lookups, attributes, opens, lists, xattrs, accesses int64 }

func (c *tripCounter) count() trips {
	return trips{c.lookups.Swap(0), c.attributes.Swap(0), c.opens.Swap(0), c.lists.Swap(0), c.xattrs.Swap(0), c.accesses.Swap(0)}
}

// A sourceOpener opens files at the source.
type sourceOpener struct{ levels *tiers.Hierarchy }

func (o sourceOpener) Open(ctx context.Context, e *metadata.Entry) (drivers.Object, error) {
	return o.levels.Source().OpenVersion(ctx, e.Path(), e.Info())
}

// A tripRig is a mount whose round trips are counted.
type tripRig struct {
	*tripCounter
	levels *tiers.Hierarchy
	t      *testing.T
	source *drivertest.Mem
	faults *drivertest.Faults // around the source
	point  string
}

// newTripRig mounts a source with the files d0/00, d0/01 and so on: 10 directories of 20 files.
// It calls set, unless it is nil, before it mounts.
func newTripRig(t *testing.T, set func(*fileSystem)) *tripRig {
	t.Helper()
	drivertest.Need(t, "/dev/fuse")
	r := &tripRig{t: t, source: drivertest.NewMem(0), point: t.TempDir()}
	r.check(os.Chmod(filepath.Dir(r.point), 0o755)) // for other users
	for i := range 200 {
		r.source.Put(fmt.Sprintf("d%d/%02d", i%10, i/10), []byte("x"))
	}
	log := slog.New(slog.DiscardHandler)
	r.faults = drivertest.NewFaults(drivertest.NewNamer(r.source))
	levels, err := tiers.New(r.faults, nil, tiers.Options{}, log)
	r.check(err)
	r.levels = levels
	names, err := metadata.New(t.Context(), levels, metadata.Options{TTL: time.Hour}, log)
	r.check(err)
	r.tripCounter = &tripCounter{fileSystem: &fileSystem{
		RawFileSystem: fuse.NewDefaultRawFileSystem(), names: names, opener: sourceOpener{levels}, negativeTTL: time.Hour, log: log,
	}}
	if set != nil {
		set(r.fileSystem)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	server := serve(t, r.tripCounter, r.point, fuse.MountOptions{EnableAcl: r.acls, AllowOther: r.acls, Options: []string{"ro"}})
	running.Go(func() { (&Mount{server: server, fs: r.fileSystem}).invalidate(ctx) })
	return r
}

func (r *tripRig) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Error(err)
	}
}

// epoch lists all directories, reads all files, and looks a missing name up, and returns the round
// trips of that.
func (r *tripRig) epoch() trips {
	r.t.Helper()
	r.count()
	out, err := exec.Command("sh", "-c", `ls -l "$1"/* >/dev/null && cat "$1"/d?/[0-9]* >/dev/null; test -e "$1/d0/missing" || true`, "sh", r.point).CombinedOutput()
	if err != nil {
		r.t.Errorf("%v: %s", err, out)
	}
	return r.count()
}

// warm repeats epoch until two in a row have equal round trips, and returns these.
func (r *tripRig) warm() trips {
	r.t.Helper()
	last := r.epoch()
	for range 10 {
		now := r.epoch()
		if now == last {
			return now
		}
		last = now
	}
	r.t.Fatal("the round trips differ from epoch to epoch")
	return trips{}
}

// A warm epoch causes as many FUSE round trips during the sweep as without it.
func TestSweepCostsNoRoundTrips(t *testing.T) {
	if testing.Short() {
		t.Skip("counts requests in real time")
	}
	r := newTripRig(t, nil)
	want := r.warm()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.names.Sweep(ctx, time.Second) })
	defer running.Wait()
	defer stop()
	equal, all := 0, 0
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); all++ {
		if got := r.epoch(); got == want {
			equal++
		} else {
			t.Logf("got %+v, want %+v", got, want) // the kernel may reclaim a name at any time
		}
	}
	if equal < all/2 {
		t.Errorf("%d of %d epochs had the round trips of one without the sweep", equal, all)
	}
	if got := r.names.Sweeps(); got.Stats < 20 {
		t.Errorf("the sweep has not run: %+v", got)
	}
}

// After a refresh, the kernel requests what has changed, the name that was missing, with the attributes of its
// directory, and nothing else.
func TestRefreshInvalidatesOnlyChanges(t *testing.T) {
	r := newTripRig(t, nil)
	refresh := func(want string) {
		t.Helper()
		var found []string
		r.check(r.names.Revalidate(t.Context(), []string{"."}, func(f metadata.Finding) {
			if f.Change != metadata.Unchanged || f.Err != nil {
				found = append(found, f.Change.String()+" "+f.Path)
			}
		}))
		if got := strings.Join(found, ", "); got != want {
			t.Errorf("found %q, want %q", got, want)
		}
	}
	refresh("") // the root has changed since the container was made
	warm := r.warm()
	refresh("")
	want := warm
	want.lookups++
	want.attributes++
	if got := r.epoch(); got != want {
		t.Errorf("nothing has changed: got %+v, want %+v", got, want)
	}
	r.source.Put("d3/07", []byte("other"))
	refresh("replaced d3/07")
	got := r.epoch()
	// The new version may be found by READDIRPLUS in place of LOOKUP. The attributes are those of
	// the directory and of the new version.
	if got.lookups > want.lookups+1 || got.attributes > want.attributes+3 || got.opens != warm.opens || got.lists != warm.lists {
		t.Errorf("a file was replaced: got %+v, want %+v and one more lookup", got, want)
	}
	if out, err := exec.Command("cat", r.point+"/d3/07").CombinedOutput(); err != nil || string(out) != "other" {
		t.Errorf("the new version: %s, %v", out, err)
	}
	if got := r.warm(); got != warm {
		t.Errorf("after that: got %+v, want %+v", got, warm)
	}
	r.source.Put("d0/missing", []byte("x"))
	refresh("added d0/missing")
	if out, err := exec.Command("cat", r.point+"/d0/missing").CombinedOutput(); err != nil || string(out) != "x" {
		t.Errorf("a name that was missing: %s, %v", out, err)
	}
}

// sh runs a shell script with the mount point as its argument, and returns its round trips.
func (r *tripRig) sh(script string) trips {
	r.t.Helper()
	r.count()
	if out, err := exec.Command("sh", "-c", script, "sh", r.point).CombinedOutput(); err != nil {
		r.t.Errorf("%s: %v: %s", script, err, out)
	}
	return r.count()
}

// requests returns the number of listings, and that of the names whose attributes were requested, at
// the source since the last call.
func (r *tripRig) requests() (lists, names int64) {
	defer r.faults.Reset()
	return r.faults.Count(drivertest.OpReadDir), r.faults.Count(drivertest.OpStat) + r.faults.Count(drivertest.OpEntry)
}

// A program that needs no attributes of the files in a directory causes no request for them.
func TestListingCostsOneRequest(t *testing.T) {
	for name, script := range map[string]string{
		"ls":                   `ls -U "$1/big" | wc -l`,
		"find":                 `find "$1/big" -type f | wc -l`,
		"os.scandir, is_dir()": `python3 -c 'import os, sys; print(sum(not e.is_dir() for e in os.scandir(sys.argv[1])))' "$1/big"`,
	} {
		t.Run(name, func(t *testing.T) {
			r := newTripRig(t, nil)
			for i := range 2000 {
				r.source.Put(fmt.Sprintf("big/%04d", i), []byte("x"))
			}
			r.requests()
			r.sh(`[ "$(` + script + `)" = 2000 ]`)
			if lists, names := r.requests(); lists != 1 || names > 2 { // of the directory
				t.Errorf("%d listings, and the attributes of %d names", lists, names)
			}
		})
	}
}

// A program that needs the attributes of all files in a directory causes one request for each, of
// which many are in flight at the same time, and no round trips once they are cached.
func TestAttributesAreRequestedOnce(t *testing.T) {
	const files = 2000
	for name, script := range map[string]string{
		"ls -l":      `ls -l "$1/big" | tail -n +2 | wc -l`,
		"find -size": `find "$1/big" -type f -size -10 | wc -l`,
	} {
		t.Run(name, func(t *testing.T) {
			r := newTripRig(t, nil)
			for i := range files {
				r.source.Put(fmt.Sprintf("big/%04d", i), []byte("x"))
			}
			r.requests()
			script := fmt.Sprintf(`[ "$(%s)" = %d ]`, script, files)
			first := r.sh(script)
			if lists, names := r.requests(); lists != 1 || names > files+2 {
				t.Errorf("%d listings, and the attributes of %d names", lists, names)
			}
			if first.lookups > files/2 && name == "ls -l" { // find reads all names before it needs attributes
				t.Errorf("the first time: %+v", first)
			}
			if got := r.sh(script); got.lookups+got.attributes > files/10 { // the kernel may reclaim a name at any time
				t.Errorf("the second time: %+v", got)
			}
			if lists, names := r.requests(); lists != 0 || names != 0 {
				t.Errorf("the second time: %d listings, and the attributes of %d names", lists, names)
			}
		})
	}
}

// A name whose request for attributes hangs is listed, and its neighbours have attributes. Only a
// program that needs its attributes waits.
func TestHungName(t *testing.T) {
	t.Parallel()
	r := newTripRig(t, nil)
	for _, op := range []drivertest.Op{drivertest.OpStat, drivertest.OpEntry} {
		r.faults.Add(drivertest.Rule{Op: op, Name: "d0/07", Hang: true})
	}
	defer r.faults.Clear()
	r.sh(`[ "$(ls "$1/d0" | wc -l)" = 20 ]`)
	r.sh(`cd "$1/d0" && [ "$(ls -l 0[0-6] 0[89] 1? | wc -l)" = 19 ]`)
	hung := exec.Command("ls", "-l", r.point+"/d0")
	r.check(hung.Start())
	for r.faults.Hung() == 0 {
		time.Sleep(time.Millisecond)
	}
	r.sh(`[ "$(cat "$1/d0/06" "$1/d0/08" | wc -c)" = 2 ]`)
	r.faults.Clear()
	if err := hung.Wait(); err != nil {
		t.Errorf("after the source has recovered: %v", err)
	}
}

// Without extended attributes, ls requests one or two for each process, whatever the number of
// files, and listing their names costs nothing. Programs that copy ACLs request one for each file.
func TestNoXattrRoundTrips(t *testing.T) {
	drivertest.Need(t, "getfattr")
	r := newTripRig(t, nil)
	r.sh(`ls -lR "$1" >/dev/null; getfattr -d "$1" || true`) // the first LISTXATTR
	for _, c := range []struct {
		script string
		most   int64
	}{
		{`ls -lR "$1" >/dev/null`, 2},
		{`getfattr -R -d "$1" || true`, 0},
		{`cp -r "$1" "$(mktemp -d -p "` + t.TempDir() + `")"`, 0},
		{`cp -a "$1" "$(mktemp -d -p "` + t.TempDir() + `")"`, 200 + 10 + 1},
		{`find "$1" -size +1 -o -perm 777; cat "$1"/d?/[0-9]* >/dev/null`, 0},
	} {
		if got := r.sh(c.script); got.xattrs > c.most {
			t.Errorf("%s: %+v, want at most %d for extended attributes", c.script, got, c.most)
		}
	}
	if got := r.levels.Source().Stats().Xattrs; got != 0 {
		t.Errorf("requests at the source: %d", got)
	}
}

// The root shows the path of the control socket, also after other attributes were refused, and
// whether or not attributes of the source are shown. The source's own attribute of that name is
// hidden at the root.
func TestSocketXattr(t *testing.T) {
	drivertest.Need(t, "getfattr")
	for _, xattrs := range []bool{false, true} {
		t.Run(fmt.Sprintf("xattrs %v", xattrs), func(t *testing.T) {
			r := newTripRig(t, func(f *fileSystem) {
				f.xattrs, f.socket = xattrs, func(uint32) string { return "/run/milkweed/x.sock" }
			})
			r.source.Setxattr(".", SocketXattr, []byte("/tmp/other.sock"))
			r.sh(`! getfattr -n user.a "$1" && ! getfattr -n user.a "$1/d0" && { getfattr -d "$1" || true; }`)
			r.sh(`[ "$(getfattr --only-values -n ` + SocketXattr + ` "$1")" = /run/milkweed/x.sock ]`)
			r.sh(`! getfattr -n ` + SocketXattr + ` "$1/d0"`)
		})
	}
	t.Run("no socket", func(t *testing.T) {
		r := newTripRig(t, nil)
		r.sh(`! getfattr -n ` + SocketXattr + ` "$1"`)
	})
}

// The root shows the index of this node, whether or not attributes of the source are shown. Without
// peers there is no such attribute. The source's own attribute of that name is hidden at the root.
func TestNodeXattr(t *testing.T) {
	drivertest.Need(t, "getfattr")
	for _, xattrs := range []bool{false, true} {
		for _, node := range []string{"", "2/16"} {
			t.Run(fmt.Sprintf("xattrs %v, node %q", xattrs, node), func(t *testing.T) {
				r := newTripRig(t, func(f *fileSystem) { f.xattrs, f.node = xattrs, node })
				r.source.Setxattr(".", NodeXattr, []byte("other"))
				if node == "" {
					r.sh(`LC_ALL=C getfattr -n ` + NodeXattr + ` "$1" 2>&1 | grep -q "No such attribute"`)
				} else {
					r.sh(`[ "$(getfattr --only-values -n ` + NodeXattr + ` "$1")" = ` + node + ` ]`)
				}
				r.sh(`! getfattr -n ` + NodeXattr + ` "$1/d0"`)
			})
		}
	}
}

// With extended attributes, the source is asked about each file once.
func TestXattrRoundTrips(t *testing.T) {
	drivertest.Need(t, "getfattr")
	r := newTripRig(t, func(f *fileSystem) { f.xattrs = true })
	r.source.Setxattr("d0/00", "user.a", []byte("1"))
	const script = `[ "$(getfattr --only-values -n user.a "$1/d0/00")" = 1 ] && getfattr -R -d "$1"`
	if got := r.sh(script); got.xattrs < 200 {
		t.Errorf("the first time: %+v", got)
	}
	was := r.levels.Source().Stats().Xattrs
	r.sh(script)
	if got := r.levels.Source().Stats().Xattrs; got != was || was > 215 { // 211 lists, and one value
		t.Errorf("requests at the source: %d the first time, %d more the second time", was, got-was)
	}
}

// With ACLs, the kernel requests the ACL of each file once.
func TestACLRoundTrips(t *testing.T) {
	r := newTripRig(t, func(f *fileSystem) { f.acls = true })
	const script = `setpriv --reuid=77 --regid=77 --clear-groups cat "$1"/d?/[0-9]* >/dev/null`
	first := r.sh(script)
	if got := first.xattrs; got != 210 {
		t.Errorf("the first time: %+v, want an ACL of each of 200 files and 10 directories", first)
	}
	if got := r.sh(script); got.xattrs != 0 {
		t.Errorf("the second time: %+v", got)
	}
	if got := r.levels.Source().Stats().ACLs; got != 211 {
		t.Errorf("requests at the source: got %d, want 211", got)
	}
}

// The kernel denies access to a file whose ACL the source does not return, although its mode allows it.
func TestUnknownACLDenies(t *testing.T) {
	drivertest.Need(t, "root", "setpriv")
	r := newTripRig(t, func(f *fileSystem) { f.acls = true })
	r.faults.Add(drivertest.Rule{Op: drivertest.OpACL, Name: "d0/00", Err: syscall.EIO})
	r.sh(`setpriv --reuid=77 --regid=77 --clear-groups sh -c 'cat "$1/d0/01" && ! cat "$1/d0/00"' sh "$1"`)
}

// Each access(2) is a round trip. Listing, opening and reading cause none of them.
func TestAccessRoundTrips(t *testing.T) {
	r := newTripRig(t, nil)
	if got := r.sh(`ls -lR "$1" >/dev/null && cat "$1"/d?/[0-9]* >/dev/null && find "$1" -size +1M && tar -cf /dev/null -C / "${1#/}"`); got.accesses != 0 {
		t.Errorf("listing, opening and reading: %+v", got)
	}
	if got := r.sh(`[ "$(find "$1" -type f -executable | wc -l)" = 0 ]`); got.accesses != 200 {
		t.Errorf("access(2) of 200 files: %+v", got)
	}
}
