package metadata

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The names of a snapshot are found without a request for the rest of their TTL, with their
// versions.
func TestSnapshotOfBucket(t *testing.T) {
	inBucket(t, time.Hour, 50, 10, func(t *testing.T, w *bucketWorld) {
		w.bucket.setVersion("f0007", strings.Repeat("v", 300))
		w.source.Mkdir("empty")
		want := tree(t, w.Container)
		if got := want["d/f0007"].Version; len(got) != 300 {
			t.Errorf("got version %q", got)
		}
		for range 2 { // the second time, blocks that were not loaded are copied
			next := w.restart(t)
			w.before = w.bucket.Requests()
			w.world = next.restart(t)
			w.wantRequests(t, 0, 1) // for the root, by New
		}
		next := w
		next.get(t, "d/f0007")
		next.wantMissing(t, next.get(t, "d"), "none")
		wantTree(t, tree(t, next.Container), want)
		next.wantRequests(t, 0, 0)
		time.Sleep(time.Hour)
		wantTree(t, tree(t, next.Container), want)
		next.wantRequests(t, 7, 0)
		if next.get(t, "d/f0007").Stale() {
			t.Error("the entry of an unchanged file was replaced")
		}
	})
}

// A name that was invalidated when the snapshot was saved is not taken as missing.
func TestSnapshotOfInvalidated(t *testing.T) {
	inBucket(t, time.Hour, 50, 10, func(t *testing.T, w *bucketWorld) {
		w.dir(t)
		w.list(t, "d")
		w.Changed(w.get(t, "d/f0001"))
		next := w.restart(t)
		w.before = w.bucket.Requests()
		next.get(t, "d/f0002")
		w.wantRequests(t, 0, 0)
		next.get(t, "d/f0001")
	})
}

// A snapshot of format version 1, which had no versions of files, is not used. The next
// snapshot replaces it.
func TestSnapshotWithoutVersions(t *testing.T) {
	inBucket(t, time.Hour, 3, 0, func(t *testing.T, w *bucketWorld) {
		want := tree(t, w.Container)
		var out bytes.Buffer
		if err := w.writeSnapshot(&out, "src"); err != nil {
			t.Fatal(err)
		}
		old := out.Bytes()
		old[len(headMagic)] = 1
		path := filepath.Join(t.TempDir(), "snapshot")
		writeFile(t, path, old)
		next := w.newProcess(t)
		if err := openSnapshot(next.Container, path, "src"); err == nil || errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "version 1") {
			t.Errorf("got %v, want an error that contains \"version 1\"", err)
		}
		wantTree(t, tree(t, next.Container), want)
		if err := saveSnapshot(next.Container, path, "src"); err != nil {
			t.Fatal(err)
		}
		last := w.newProcess(t)
		if err := openSnapshot(last.Container, path, "src"); err != nil {
			t.Fatal(err)
		}
		before := w.bucket.Requests()
		wantTree(t, tree(t, last.Container), want)
		if got := w.bucket.Requests(); got != before {
			t.Errorf("got requests %+v, want %+v", got, before)
		}
	})
}
