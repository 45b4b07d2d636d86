package metadata

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// inUnlisted runs f with a source that ignores case, and with one that also lists names alone. d has IMG_1.JPG,
// and .snapshot, which no listing shows.
func inUnlisted(t *testing.T, ttl time.Duration, f func(t *testing.T, w *world)) {
	for _, namer := range []bool{false, true} {
		t.Run(fmt.Sprint("namer ", namer), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, ttl)
				if namer {
					w = newNamerWorld(t, ttl)
				}
				w.source.IgnoreCase()
				w.source.Put("d/IMG_1.JPG", []byte("image"))
				w.source.Put("d/.snapshot/daily/f", []byte("file"))
				w.source.Hide("d/.snapshot", true)
				if err := w.refreshRoot(bg); err != nil { // the container is older than its names
					t.Fatal(err)
				}
				f(t, w)
			})
		})
	}
}

// kinds are names that no listing shows.
var kinds = []string{"d/img_1.jpg", "d/.snapshot/daily/f"}

// useAll returns the entries of names. The kernel knows them and the directories that they are in.
func (w *world) useAll(t *testing.T, names ...string) (found []*Entry) {
	t.Helper()
	for _, name := range names {
		e := w.get(t, name)
		found = append(found, e)
		for ; e.Parent() != e; e = e.Parent() {
			w.Hold(e)
		}
	}
	return found
}

// Names that no listing shows are found, whether the directory was listed before or after. They are requested once
// in a TTL, no listing shows them, and they keep their entries.
func TestNamesThatNoListingShows(t *testing.T) {
	for _, listed := range []bool{true, false} {
		t.Run(fmt.Sprint("listed before ", listed), func(t *testing.T) {
			inUnlisted(t, time.Minute, func(t *testing.T, w *world) {
				outdated := collect(t, w)
				list := func() {
					t.Helper()
					if got := w.list(t, "d"); got != "IMG_1.JPG" {
						t.Errorf("listing: got %q", got)
					}
				}
				if listed {
					list()
				}
				found := w.useAll(t, kinds...)
				for round := range 3 {
					w.sent()
					for i, name := range kinds {
						if e := w.get(t, name); e != found[i] || e.Stale() || e.Info().Size == 0 {
							t.Errorf("%s: got another entry", name)
						}
					}
					if got := w.sent(); got > 5 {
						t.Errorf("%d requests in a TTL, want 5 at most: of d, and each name below it", got)
					}
					outdated()
					list()
					want := ""
					if !listed && round == 0 {
						want = "d/.snapshot d/img_1.jpg"
					}
					if got := outdated(); got != want {
						t.Errorf("round %d: a listing without the names: outdated: got %q, want %q", round, got, want)
					}
					time.Sleep(time.Minute)
				}
			})
		})
	}
}

// A walk, as of warmup, does not find names that no listing shows, and neither does a container that starts with the
// snapshot list them.
func TestWalkSkipsUnlisted(t *testing.T) {
	inUnlisted(t, time.Hour, func(t *testing.T, w *world) {
		w.list(t, "d")
		for _, name := range kinds {
			w.get(t, name)
		}
		got := tree(t, w.Container)
		if _, ok := got["d/IMG_1.JPG"]; !ok || len(got) != 2 {
			t.Errorf("got %v", got)
		}
		next := w.restart(t)
		if got := next.list(t, "d"); got != "IMG_1.JPG" {
			t.Errorf("listing after a restart: got %q", got)
		}
		for _, name := range kinds {
			next.get(t, name)
		}
	})
}

// A name that was removed is missing at its next use, and its entry is stale. One that the kernel does not know does
// not outlive the first listing without it.
func TestUnlistedNamesAreRemoved(t *testing.T) {
	inUnlisted(t, time.Hour, func(t *testing.T, w *world) {
		collect(t, w)
		unknown := w.get(t, "d/Img_1.jpg")
		w.list(t, "d")
		if !unknown.Stale() {
			t.Error("the entry of a name that nobody uses is not stale")
		}
		before := w.Len()
		w.get(t, "d/Img_1.jpg")
		for _, want := range []int{before + 1, before} {
			w.list(t, "d")
			if got := w.Len(); got != want {
				t.Errorf("%d entries, want %d", got, want)
			}
			time.Sleep(time.Hour)
		}
		found := w.useAll(t, kinds...)
		w.source.Delete("d/.snapshot")
		w.source.Delete("d/IMG_1.JPG")
		if got, _ := w.revalidate(t, "."); got != "removed d/.snapshot, removed d/IMG_1.JPG, removed d/img_1.jpg" {
			t.Errorf("got %q", got)
		}
		for i, name := range kinds {
			wantMissing(t, w, name)
			if !found[i].Stale() {
				t.Errorf("%s: the entry is not stale", name)
			}
		}
	})
}

// An unlisted name has the version that the source has, and no listing shows its next one. The listing of the directory
// counts when it was removed.
func TestUnlistedNamesFollowTheSource(t *testing.T) {
	inUnlisted(t, time.Hour, func(t *testing.T, w *world) {
		outdated := collect(t, w)
		w.list(t, "d")
		d := w.get(t, "d")
		w.Hold(d)
		for _, how := range []string{"TTL", "refresh"} {
			w.get(t, "d/img_1.jpg")
			w.list(t, "d")
			w.source.Put("d/IMG_1.JPG", []byte("content after "+how))
			if how == "TTL" {
				time.Sleep(time.Hour)
			} else {
				w.revalidate(t, ".")
			}
			if got, want := w.get(t, "d/img_1.jpg").Size(), len("content after "+how); got != int64(want) {
				t.Errorf("%s: got %d bytes, want %d", how, got, want)
			}
			if got := w.list(t, "d"); got != "IMG_1.JPG" {
				t.Errorf("%s: listing: got %q", how, got)
			}
		}

		e, snapshot := w.get(t, "d/img_1.jpg"), w.get(t, "d/.snapshot")
		w.Hold(e)
		w.Hold(snapshot)
		if held := slices.Collect(w.Held(w.Root())); !slices.Equal(held, []*Entry{e}) {
			t.Errorf("the kernel has %d files, want %s", len(held), e.Path())
		}
		w.list(t, "d")
		w.source.Delete("d/.snapshot")
		outdated()
		w.revalidate(t, "d/.snapshot")
		if got := outdated(); got != "attributes of d d/.snapshot" {
			t.Errorf("removed: outdated: got %q", got)
		}
		w.faults.Reset()
		w.list(t, "d")
		if got := w.faults.Count(drivertest.OpReadDir); got != 0 {
			t.Errorf("removed: %d listings, want 0", got)
		}
		w.distrustBelow(w.Root())
		if got := outdated(); !strings.Contains(got, "d/img_1.jpg") {
			t.Errorf("the root was replaced: outdated: got %q", got)
		}
	})
}

// A listed directory that was removed costs a listing and no more, if the kernel does not know it.
func TestRemovedDirectory(t *testing.T) {
	inUnlisted(t, time.Hour, func(t *testing.T, w *world) {
		w.source.Put("d/e/f", []byte("x"))
		w.list(t, "d")
		w.list(t, "d/e")
		before := w.Len()
		w.source.Delete("d/e")
		time.Sleep(time.Hour)
		w.list(t, "d")
		if got := w.Len(); got != before-2 {
			t.Errorf("%d entries, want %d", got, before-2)
		}
		w.sent()
		wantMissing(t, w, "d/e")
		w.list(t, "d")
		if got := w.sent(); got > 2 {
			t.Errorf("%d requests, want 2 at most, of the name and of the root", got)
		}
	})
}

// A directory that listings have shown is not removed because one lacks it: an automounter has unmounted it.
func TestListedDirectoryIsUnlisted(t *testing.T) {
	inUnlisted(t, time.Hour, func(t *testing.T, w *world) {
		outdated := collect(t, w)
		w.source.Hide("d/.snapshot", false)
		w.list(t, "d")
		e := w.useAll(t, kinds[1])[0]
		for _, hidden := range []bool{true, false, true} {
			w.source.Hide("d/.snapshot", hidden)
			outdated()
			if got, _ := w.revalidate(t, "."); got != "" {
				t.Errorf("got %q", got)
			}
			want := ".snapshot IMG_1.JPG"
			if hidden {
				want = "IMG_1.JPG"
			}
			if got := w.list(t, "d"); got != want {
				t.Errorf("listing: got %q, want %q", got, want)
			}
			wantOutdated := "listing of d"
			if hidden {
				wantOutdated = "d/.snapshot listing of d"
			}
			if got := outdated(); got != wantOutdated {
				t.Errorf("outdated: got %q, want %q", got, wantOutdated)
			}
			if got := w.get(t, kinds[1]); got != e || e.Stale() {
				t.Error("the file below has another entry")
			}
		}
	})
}

// A new name that was looked up is in the next listing, also within the TTL.
func TestNewNameIsListed(t *testing.T) {
	inUnlisted(t, time.Hour, func(t *testing.T, w *world) {
		w.list(t, "d")
		w.source.Put("d/new", []byte("x"))
		e := w.get(t, "d/new")
		w.sent()
		if got := w.list(t, "d"); got != "IMG_1.JPG new" || w.get(t, "d/new") != e {
			t.Errorf("listing: got %q", got)
		}
		if i, listed := w.Index(e); i != 1 || !listed {
			t.Errorf("position: got %d, %v", i, listed)
		}
		w.list(t, "d")
		if got := w.faults.Count(drivertest.OpReadDir); got > 1 {
			t.Errorf("%d listings, want 1", got)
		}

		w.source.Put("d/newer", []byte("x"))
		w.get(t, "d/newer")
		remove := w.faults.Add(drivertest.Rule{Op: drivertest.OpReadDir, Err: syscall.EIO})
		if _, err := w.relist(bg, e.Parent()); !errors.Is(err, syscall.EIO) {
			t.Errorf("got %v, want EIO", err)
		}
		remove()
		if got := w.list(t, "d"); got != "IMG_1.JPG new newer" {
			t.Errorf("after a failure: got %q", got)
		}
		w.source.Put("d/newest", []byte("x"))
		w.get(t, "d/newest")
		if got := w.restart(t).list(t, "d"); got != "IMG_1.JPG new newer newest" {
			t.Errorf("after a restart: got %q", got)
		}
	})
}

// A listing after each lookup of a name that it lacks costs one request, and the names are not requested again.
func TestListingsBetweenLookups(t *testing.T) {
	inUnlisted(t, time.Hour, func(t *testing.T, w *world) {
		const n = 50
		for i := range n {
			w.source.Put(fmt.Sprintf("d/A%d", i), []byte("x"))
		}
		w.list(t, "d")
		w.get(t, "d/img_1.jpg")
		w.faults.Reset()
		for range 2 {
			for i := range n {
				for j := range i + 1 {
					w.get(t, fmt.Sprintf("d/a%d", j))
				}
				w.list(t, "d")
			}
		}
		if stats, lists := w.faults.Count(drivertest.OpStat), w.faults.Count(drivertest.OpReadDir); stats != n || lists != n {
			t.Errorf("%d requests for names and %d listings, want %d and %d", stats, lists, n, n)
		}
	})
}

// A name that is looked up while the directory is listed, and that is not in that listing, is in the next one, also if
// it is not known which was first.
func TestLookupDuringListing(t *testing.T) {
	inUnlisted(t, time.Hour, func(t *testing.T, w *world) {
		w.Hold(w.get(t, "d/img_1.jpg"))
		w.source.Put("d/new", []byte("x"))
		w.Hold(w.get(t, "d/new"))
		w.source.Hide("d/new", true)
		w.list(t, "d") // in the same tick
		w.source.Hide("d/new", false)
		if got := w.list(t, "d"); got != "IMG_1.JPG new" {
			t.Errorf("listing: got %q", got)
		}
	})
}

// The sweep makes no request for what is in an unlisted directory that the kernel does not know, so that an automounter
// may unmount it.
func TestSweepLeavesUnlistedAlone(t *testing.T) {
	inUnlisted(t, 24*time.Hour, func(t *testing.T, w *world) {
		w.list(t, "d")
		w.list(t, "d/.snapshot/daily")
		e := w.get(t, "d/.snapshot/daily")
		w.Hold(e.Parent())
		w.Hold(e)
		var requests atomic.Int64
		w.faults.Add(drivertest.Rule{Match: func(name string) bool {
			if strings.HasPrefix(name, "d/.snapshot") {
				requests.Add(1)
			}
			return false
		}})
		w.sweepUntilEnd(t)
		if time.Sleep(2 * window); requests.Load() == 0 {
			t.Error("the sweep makes no request for what the kernel knows")
		}
		w.Forget(e.ID(), 1)
		w.Forget(e.Parent().ID(), 1)
		time.Sleep(window) // a pass may have planned requests
		requests.Store(0)
		if time.Sleep(10 * window); requests.Load() != 0 {
			t.Errorf("the sweep makes %d requests", requests.Load())
		}
	})
}

// When a listing has a new name, the kernel forgets that other spellings of it are missing. A refresh has it forget all
// names that are missing, and those that are being looked up.
func TestMissingNamesAreForgotten(t *testing.T) {
	for _, how := range []string{"sweep", "listing", "refresh"} {
		t.Run(how, func(t *testing.T) {
			inUnlisted(t, time.Hour, func(t *testing.T, w *world) {
				outdated := collect(t, w)
				w.list(t, "d")
				d := w.get(t, "d")
				for _, name := range []string{"new", "other"} {
					wantMissing(t, w, "d/"+name)
					if !w.HoldMissing(d, name, time.Now()) {
						t.Error("the kernel may not cache a missing name")
					}
				}
				time.Sleep(time.Hour)
				outdated()
				began := time.Now()
				w.source.Put("d/NEW", []byte("x"))
				want := "d/new"
				switch how {
				case "sweep":
					w.sweepUntilEnd(t)
					time.Sleep(window)
				case "listing":
					w.list(t, "d")
				case "refresh":
					w.source.Hide("d/NEW", true)
					w.revalidate(t, ".")
					want = "d/new d/other"
				}
				if got := outdated(); got != want {
					t.Errorf("outdated: got %q, want %q", got, want)
				}
				if w.HoldMissing(d, "new", began) {
					t.Error("the kernel may cache the reply to an earlier lookup")
				}
				w.get(t, "d/new")
			})
		})
	}
}

// While the source fails, names that no listing shows are served as others, and so are listings that lack them.
func TestUnlistedNamesInAnOutage(t *testing.T) {
	inUnlisted(t, time.Minute, func(t *testing.T, w *world) {
		w.list(t, "d")
		e := w.get(t, "d/img_1.jpg")
		w.faults.Add(drivertest.Rule{Err: errors.New("the server is down")})
		for range 2 {
			if got, err := w.Lookup(bg, e.Parent(), e.Name()); got != e || err != nil {
				t.Errorf("got %v, %v", got, err)
			}
			lists := w.faults.Count(drivertest.OpReadDir)
			for range 10 {
				if got := w.list(t, "d"); got != "IMG_1.JPG" {
					t.Errorf("listing: got %q", got)
				}
			}
			if got := w.faults.Count(drivertest.OpReadDir) - lists; got != 1 {
				t.Errorf("%d requests for listings, want 1", got)
			}
			if _, err := w.Lookup(bg, e.Parent(), "none"); err != ErrUnconfirmed {
				t.Errorf("a name that is not listed: got %v, want %v", err, ErrUnconfirmed)
			}
			time.Sleep(time.Minute)
		}
	})
}

// While the source hangs, lookups of names that a listing lacks do not wait for long, unless the source is known to have
// such names. An error about the name is no failure of the source.
func TestHungSourceOfMissingNames(t *testing.T) {
	inUnlisted(t, time.Hour, func(t *testing.T, w *world) {
		w.list(t, "d")
		d := w.get(t, "d")
		w.faults.Add(drivertest.Rule{Op: drivertest.OpStat, Name: "d/bad*", Err: syscall.EINVAL})
		if _, err := w.Lookup(bg, d, "bad:name"); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("got %v, want EINVAL", err)
		}
		w.faults.Add(drivertest.Rule{Hang: true})
		start := time.Now()
		for i := range 100 {
			if _, err := w.Lookup(bg, d, fmt.Sprint("none", i)); err != ErrUnconfirmed {
				t.Errorf("got %v, want %v", err, ErrUnconfirmed)
			}
		}
		if took := time.Since(start); took != confirmTimeout {
			t.Errorf("100 lookups took %v, want %v", took, confirmTimeout)
		}
		w.faults.Clear()
		time.Sleep(confirmPause)
		e := w.get(t, "d/img_1.jpg")
		w.faults.Add(drivertest.Rule{Hang: true})
		ctx, cancel := context.WithTimeout(bg, time.Minute)
		defer cancel()
		if _, err := w.Lookup(ctx, d, "IMG_1.jpg"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("another spelling of %s: got %v", e.Name(), err)
		}
		w.faults.Clear()
	})
}

// In a bucket, listings are complete: the kernel forgets no missing name.
func TestBucketForgetsNoMissingNames(t *testing.T) {
	inBucket(t, time.Hour, 3, 0, func(t *testing.T, w *bucketWorld) {
		outdated := collect(t, w.world)
		d := w.dir(t)
		w.list(t, "d")
		w.wantMissing(t, d, "none")
		w.HoldMissing(d, "none", time.Now())
		outdated()
		w.source.Put("d/NONE", nil)
		w.revalidate(t, "d")
		w.list(t, "d")
		if got := outdated(); strings.Contains(got, "none") {
			t.Errorf("outdated: got %q", got)
		}
	})
}
