package metadata

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// The replies of the source about extended attributes are cached with the attributes, absence too.
func TestXattrsAreCached(t *testing.T) {
	w := newWorld(t, time.Hour)
	for _, name := range []string{"f", "none"} {
		w.source.Put(name, []byte("x"))
	}
	w.source.Setxattr("f", "user.a", []byte("1"))
	w.source.Setxattr("f", "user.empty", nil)
	f, none := w.get(t, "f"), w.get(t, "none")
	requests := func() int64 { return w.levels.Source().Stats().Xattrs }
	read := func(want string) {
		t.Helper()
		list, err := w.Listxattr(bg, f)
		got := fmt.Sprintf("%q %v", list, err)
		for _, attr := range []string{"user.a", "user.empty", "user.b"} {
			value, err := w.Getxattr(bg, f, attr)
			got += fmt.Sprintf(", %s %q %v", attr, value, err)
		}
		list, err = w.Listxattr(bg, none)
		got += fmt.Sprintf(", none %q %v", list, err)
		if _, err := w.Getxattr(bg, none, "user.a"); !errors.Is(err, syscall.ENODATA) {
			t.Errorf("an attribute of a file without any: %v", err)
		}
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	read(`"user.a\x00user.empty\x00" <nil>, user.a "1" <nil>, user.empty "" <nil>, user.b "" no data available, none "" <nil>`)
	if got, want := requests(), int64(5); got != want { // a file without attributes is listed only
		t.Errorf("requests: got %d, want %d", got, want)
	}
	was := requests()
	read(`"user.a\x00user.empty\x00" <nil>, user.a "1" <nil>, user.empty "" <nil>, user.b "" no data available, none "" <nil>`)
	if got := requests() - was; got != 0 {
		t.Errorf("requests of the second time: got %d, want 0", got)
	}

	// A change is seen when the attributes are validated.
	w.source.Setxattr("f", "user.b", []byte("2"))
	w.source.Setxattr("none", "user.c", []byte("3"))
	for _, name := range []string{"f", "none"} {
		if _, _, err := w.revalidateName(bg, w.root, name); err != nil {
			t.Error(err)
		}
	}
	if value, err := w.Getxattr(bg, f, "user.b"); string(value) != "2" || err != nil {
		t.Errorf("an attribute that was missing: got %q, %v", value, err)
	}
	if value, err := w.Getxattr(bg, none, "user.c"); string(value) != "3" || err != nil {
		t.Errorf("an attribute of a file that had none: got %q, %v", value, err)
	}

	// A file that is gone does not have the attributes of the next file of its name.
	w.source.Delete("f")
	w.source.Put("f", []byte("other"))
	w.source.Setxattr("f", "user.a", []byte("other"))
	w.Changed(f)
	if value, err := w.Getxattr(bg, f, "user.a"); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("an attribute of a stale entry: got %q, %v", value, err)
	}
}

// The ACL of an entry is requested once, and again after a change. An ACL of another version is not
// that of the entry.
func TestACLIsReadOnce(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.source.Put("f", []byte("x"))
	w.source.Put("none", []byte("x"))
	w.source.Setxattr("f", drivers.ACLXattr, []byte("acl"))
	f, none := w.get(t, "f"), w.get(t, "none")
	want := func(e *Entry, acl string) {
		t.Helper()
		if got, err := w.ACL(bg, e); string(got) != acl || err != nil {
			t.Errorf("ACL of %s: got %q, %v, want %q", e.Name(), got, err, acl)
		}
	}
	for range 3 {
		want(f, "acl")
		want(none, "")
	}
	if got := w.levels.Source().Stats().ACLs; got != 2 {
		t.Errorf("requests: got %d, want 2", got)
	}
	w.source.Setxattr("none", drivers.ACLXattr, []byte("new"))
	if _, _, err := w.revalidateName(bg, w.root, "none"); err != nil {
		t.Error(err)
	}
	want(none, "new")

	w.source.Put("g", []byte("secret"))
	g := w.get(t, "g")
	w.source.Put("g", []byte("public"))
	if got, err := w.ACL(bg, g); !errors.Is(err, syscall.ESTALE) || !g.Stale() {
		t.Errorf("ACL of a file that was replaced: got %q, %v", got, err)
	}

	// An error of the source is not "no ACL".
	w.source.Put("h", []byte("x"))
	h := w.get(t, "h")
	w.faults.Add(drivertest.Rule{Op: drivertest.OpACL, Err: syscall.EIO})
	if got, err := w.ACL(bg, h); !errors.Is(err, syscall.EIO) {
		t.Errorf("the source fails: got %q, %v", got, err)
	}
	want(none, "new")
	if !w.HasACLs(bg) {
		t.Error("the source fails: it may have ACLs")
	}
	w.faults.Clear()
	w.faults.Add(drivertest.Rule{Op: drivertest.OpACL, Err: syscall.ENOTSUP})
	want(h, "")
	if w.HasACLs(bg) {
		t.Error("the source has no ACLs")
	}
}

// Extended attributes are not cached while a change could leave the change time as it is, nor
// without a TTL, and an error is not cached.
func TestXattrsAreNotCached(t *testing.T) {
	for name, prepare := range map[string]func(w *world){
		"racy":   func(w *world) { w.racy = time.Hour },
		"no TTL": func(w *world) { w.ttl = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, time.Hour)
			w.source.Put("f", []byte("x"))
			prepare(w)
			f := w.get(t, "f")
			for _, value := range []string{"1", "2"} {
				w.source.Setxattr("f", "user.a", []byte(value))
				if got, err := w.Getxattr(bg, f, "user.a"); string(got) != value || err != nil {
					t.Errorf("got %q, %v, want %q", got, err, value)
				}
			}
		})
	}
}

// A file that was removed has no extended attributes.
func TestXattrsOfRemovedFile(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		w.source.Put("f", []byte("x"))
		f := w.get(t, "f")
		w.source.Delete("f")
		time.Sleep(2 * time.Hour)
		if _, err := w.Getxattr(bg, f, "user.a"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v, want ErrNotExist", err)
		}
	})
}

// Several processes that need an attribute or an ACL at the same time share one request. If its
// process is interrupted, another one makes the next request.
func TestConcurrentXattrRequests(t *testing.T) {
	inBubble(t, time.Hour, func(t *testing.T, w *world) {
		for _, name := range []string{"f", "none", "g"} {
			w.source.Put(name, []byte("x"))
		}
		w.source.Setxattr("f", drivers.ACLXattr, []byte("acl"))
		w.source.Setxattr("f", "user.a", []byte("1"))
		time.Sleep(time.Second)
		f, none, g := w.get(t, "f"), w.get(t, "none"), w.get(t, "g")
		for _, op := range []drivertest.Op{drivertest.OpACL, drivertest.OpXattr} {
			w.faults.Add(drivertest.Rule{Op: op, Delay: time.Second})
		}
		var running sync.WaitGroup
		for range 8 {
			running.Go(func() {
				if acl, err := w.ACL(bg, f); string(acl) != "acl" || err != nil {
					t.Errorf("ACL: got %q, %v", acl, err)
				}
				if acl, err := w.ACL(bg, none); acl != nil || err != nil {
					t.Errorf("no ACL: got %q, %v", acl, err)
				}
				if value, err := w.Getxattr(bg, f, "user.a"); string(value) != "1" || err != nil {
					t.Errorf("Getxattr: got %q, %v", value, err)
				}
			})
		}
		running.Wait()
		if got := w.levels.Source().Stats(); got.ACLs != 2 || got.Xattrs != 1 {
			t.Errorf("requests: got %d for ACLs and %d for attributes, want 2 and 1", got.ACLs, got.Xattrs)
		}

		interrupted, interrupt := context.WithTimeout(bg, time.Second/2)
		defer interrupt()
		running.Go(func() {
			if _, err := w.ACL(interrupted, g); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("interrupted: %v", err)
			}
		})
		synctest.Wait()
		for range 2 {
			running.Go(func() {
				if acl, err := w.ACL(bg, g); acl != nil || err != nil {
					t.Errorf("after an interruption: got %q, %v", acl, err)
				}
			})
		}
		running.Wait()
		if got := w.levels.Source().Stats().ACLs; got != 4 {
			t.Errorf("requests after an interruption: got %d, want 4", got)
		}
	})
}

// The cache of extended attributes is bounded, and keeps those that are in use.
func TestXattrCacheIsBounded(t *testing.T) {
	var c replyCache[[]byte]
	value := []byte(strings.Repeat("x", 1<<16))
	used := replyKey{1, "user.used"}
	c.put(used, cachedReply[[]byte]{value: value, size: len(value)})
	for id := range uint64(1000) {
		c.put(replyKey{id, "user.a"}, cachedReply[[]byte]{value: value, size: len(value)})
		if _, ok := c.get(used, fileTimes{}); !ok {
			t.Fatalf("an attribute in use is not cached after %d others", id)
		}
	}
	if got, most := len(c.newer)+len(c.older), 2*maxReplyBytes/len(value)+2; got > most {
		t.Errorf("got %d replies, want at most %d", got, most)
	}
}
