package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/placement"
	"golang.org/x/sys/unix"
)

func TestRefreshOutput(t *testing.T) {
	d := &controltest.Daemon{Refreshes: []control.Refreshed{{Names: 12345, Added: 1, Replaced: 1, Omitted: 2,
		Changes: []control.NameChange{{Path: "train/new", Change: "added"}, {Path: "train/\xff", Change: "replaced"}}}}}
	point := served(t, d)
	out, _, err := runMilkweed(t, "refresh", "-v", filepath.Join(point, "train"), point)
	wantCode(t, err, exit.OK)
	want := "added " + point + "/train/new\nreplaced \"" + point + `/train/\xff"` + "\n2 more changes are not shown\n" +
		point + ": 12,345 names compared: 1 added, 0 removed, 1 replaced after "
	if !strings.HasPrefix(out, want) {
		t.Errorf("got\n%s\nwant\n%s…", out, want)
	}
	if got, want := *d.Refreshed.Load(), []string{"train", "."}; !reflect.DeepEqual(got, want) {
		t.Errorf("names in the request: %q, want %q", got, want)
	}
	out, _, err = runMilkweed(t, "refresh", "--json", point)
	wantCode(t, err, exit.OK)
	var got struct {
		MountPoint string `json:"mount_point"`
		control.Refreshed
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.MountPoint != point || !reflect.DeepEqual(got.Refreshed, d.Refreshes[0]) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// --prune and --dry-run reach the daemon, and what it has pruned is printed.
func TestPruneOutput(t *testing.T) {
	pruned := placement.PruneReport{Examined: 1200, Orphans: 3, Bytes: 3 << 20, Removed: 2, Freed: 2 << 20, Failed: 1, Error: "train/x: input/output error"}
	d := &controltest.Daemon{Refreshes: []control.Refreshed{{Names: 5, Removed: 3, Pruned: &pruned}}}
	point := served(t, d)
	out, _, err := runMilkweed(t, "refresh", "--prune", point)
	wantCode(t, err, exit.Incomplete)
	if want := "1,200 copies examined, 3 (3.0 MiB) of files that the source does not have; 2 (2.0 MiB) removed\n"; !strings.HasSuffix(out, want) {
		t.Errorf("printed\n%swithout\n%s", out, want)
	}
	if err == nil || !strings.Contains(err.Error(), pruned.Error) {
		t.Errorf("got %v", err)
	}
	pruned.Failed, pruned.Error, pruned.DryRun = 0, "", true
	out, _, err = runMilkweed(t, "refresh", "--prune", "--dry-run", "--json", point)
	wantCode(t, err, exit.OK)
	var got control.Refreshed
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.Pruned == nil || *got.Pruned != pruned {
		t.Errorf("got %+v, %v", got, err)
	}
	if got := *d.RefreshedWith.Load(); got != (control.RefreshOptions{Prune: true, DryRun: true}) {
		t.Errorf("options in the request: %+v", got)
	}
	_, _, err = runMilkweed(t, "refresh", "--dry-run", point)
	wantCode(t, err, exit.Usage)
}

func TestRefreshWithFailures(t *testing.T) {
	point := served(t, &controltest.Daemon{Refreshes: []control.Refreshed{
		{Names: 2, Failed: 1, Errors: []control.FileError{{Path: "train/x", Error: "input/output error"}}}}})
	out, stderr, err := runMilkweed(t, "refresh", point)
	wantCode(t, err, exit.Incomplete)
	if want := point + "/train/x: input/output error\n"; stderr != want {
		t.Errorf("stderr %q, want %q", stderr, want)
	}
	if !strings.Contains(out, "0 replaced, 1 failed after") {
		t.Errorf("printed %q", out)
	}
}

func TestRefreshInterrupted(t *testing.T) {
	point := served(t, &controltest.Daemon{Refreshes: []control.Refreshed{{Names: 5}}, StepEvery: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	err := run(ctx, []string{"milkweed", "refresh", point}, &out, onWrite(cancel)) // it prints its progress
	wantCode(t, err, exit.Incomplete)
}

func TestRefreshOutside(t *testing.T) {
	_, _, err := runMilkweed(t, "refresh", t.TempDir())
	wantCode(t, err, exit.NotMounted)
	if err == nil || !strings.Contains(err.Error(), "is not in a mount of Milkweed") {
		t.Errorf("got %v", err)
	}
}

// Refresh makes the changes of the source visible, in each mode, while they are cached for an
// hour and nothing revalidates them in the background.
func TestRefresh(t *testing.T) {
	parallel(t)
	for _, mode := range []string{"cached", "passthrough", "stateless"} {
		t.Run(mode, func(t *testing.T) {
			s := newSite(t)
			for _, name := range []string{"d/kept", "d/gone", "d/new", "e/f"} {
				s.write(name, 1000)
			}
			s.milkweed(append(s.mountWords("64MiB"), "-o", "consistency=0s,mode="+mode)...)
			s.must("sh", "-c", `cat "$1"/*/* >/dev/null && ls "$1" "$1"/d && ! stat "$1"/d/added`, "sh", s.point)
			s.settled()
			s.check(os.Remove(s.source + "/d/gone"))
			s.write("d/other", 2000)
			s.check(os.Rename(s.source+"/d/other", s.source+"/d/new"))
			s.write("d/added", 1000)
			out := s.milkweed("refresh", "-v", s.point)
			for _, want := range []string{"added " + s.point + "/d/added\n", "removed " + s.point + "/d/gone\n", "replaced " + s.point + "/d/new\n", "1 added, 1 removed, 1 replaced"} {
				if !strings.Contains(out, want) {
					t.Errorf("printed\n%s\nwithout %s", out, want)
				}
			}
			s.must("diff", "-r", s.source, s.point)
			if out := s.milkweed("refresh", s.point+"/d", s.point+"/e/f"); !strings.Contains(out, "0 added, 0 removed, 0 replaced") {
				t.Errorf("nothing has changed: printed %s", out)
			}
			if r := s.try("refresh", s.point+"/none"); r.code != exit.Failure || !strings.Contains(r.stderr, "none") {
				t.Errorf("a missing path: exit code %d, %q", r.code, r.stderr)
			}
			s.umount()
			s.wantNothing()
		})
	}
}

// If the source is gone, refresh fails, and cached names are still served.
func TestRefreshOfGoneSource(t *testing.T) {
	s := newSite(t)
	s.write("d/f", 1000)
	s.mount("64MiB")
	s.must("cat", s.point+"/d/f")
	s.settled()
	s.check(os.RemoveAll(s.source))
	if r := s.try("refresh", s.point); r.code != exit.Source || !strings.Contains(r.stderr, "the source cannot be read") {
		t.Errorf("exit code %d, %q; want %d", r.code, r.stderr, exit.Source)
	}
	s.must("cat", s.point+"/d/f")
	s.umount()
	s.wantNothing()
}

// Prune removes the copies of files that the source no longer has, in both tiers, also those of which
// the daemon knows nothing yet. It removes no other file, and nothing if the source is empty.
func TestPrune(t *testing.T) {
	s := newSite(t)
	for i := range 20 {
		s.write(fmt.Sprintf("kept/%d", i), 5000)
		s.write(fmt.Sprintf("gone/%d", i), 5000)
		s.write(fmt.Sprintf("some/%d", i), 5000)
	}
	s.mount("256KiB", "64MiB")
	s.must("sh", "-c", `cat "$1"/*/* >/dev/null`, "sh", s.point)
	s.settled()
	s.umount()
	s.mount("256KiB", "64MiB")
	copies := func() int { return len(s.files(s.dataset(1)+"/files")) + len(s.files(s.dataset(2)+"/files")) }
	if n := copies(); n != 60 {
		t.Fatalf("%d copies, want 60", n)
	}
	s.check(os.RemoveAll(s.source + "/gone"))
	for i := range 10 {
		s.check(os.Remove(fmt.Sprintf("%s/some/%d", s.source, i)))
	}
	mine := s.dataset(1) + "/files/gone/mine" // not a copy of Milkweed
	s.check(os.WriteFile(mine, []byte("mine"), 0o644))
	if out := s.milkweed("refresh", "--prune", "--dry-run", s.point); !strings.Contains(out, "30 (240 KiB) of files that the source does not have; none was removed") {
		t.Errorf("a dry run printed %s", out)
	}
	if n := copies(); n != 61 {
		t.Errorf("after a dry run: %d files in the tiers, want 61", n)
	}
	if out := s.milkweed("refresh", "--prune", s.point); !strings.Contains(out, "60 copies examined, 30 (240 KiB) of files that the source does not have; 30 (240 KiB) removed") {
		t.Errorf("printed %s", out)
	}
	if n := copies(); n != 31 {
		t.Errorf("%d files in the tiers, want 31", n)
	}
	if text, err := os.ReadFile(mine); string(text) != "mine" {
		t.Errorf("a file of the user: %q, %v", text, err)
	}
	s.must("diff", "-r", s.source, s.point)
	if st := s.status(); st.Tiers[0].Files+st.Tiers[1].Files != 30 {
		t.Errorf("status has %d and %d copies, want 30", st.Tiers[0].Files, st.Tiers[1].Files)
	}
	for _, dir := range []string{"kept", "some"} {
		s.check(os.RemoveAll(s.source + "/" + dir))
	}
	if r := s.try("refresh", "--prune", s.point); r.code != exit.Source || !strings.Contains(r.stderr, "no copy was removed: the source is empty") {
		t.Errorf("an empty source: exit code %d, %q", r.code, r.stderr)
	}
	if n := copies(); n != 31 {
		t.Errorf("%d files in the tiers, want 31", n)
	}
	s.umount()
	s.wantNothing()
}

// While parts of the source, which are mounts of their own, are not mounted, the copies of their files stay.
// If it lacks the files of more than half of the copies, all copies stay. --force removes them.
func TestPruneWithPartsUnmounted(t *testing.T) {
	drivertest.Need(t, "root")
	s := newSite(t)
	for _, part := range []string{"train", "val"} {
		dir := s.source + "/" + part
		s.check(os.Mkdir(dir, 0o755))
		if part == "val" {
			s.write("val/README", 100) // of the directory below the mount
		}
		s.check(unix.Mount("test", dir, "tmpfs", 0, "size=1m"))
		t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
		for i := range 5 {
			s.write(fmt.Sprintf("%s/%d", part, i), 5000)
		}
	}
	for i := range 12 {
		s.write(fmt.Sprintf("top%d", i), 5000)
	}
	s.mount("64MiB")
	s.must("sh", "-c", `cat "$1"/top* "$1"/*/* >/dev/null`, "sh", s.point)
	s.settled()
	copies := func() int { return len(s.files(s.dataset(1) + "/files")) }
	if n := copies(); n != 22 {
		t.Fatalf("%d copies, want 22", n)
	}
	for _, part := range []string{"train", "val"} {
		s.check(unix.Unmount(s.source+"/"+part, unix.MNT_DETACH)) // the daemon may have files open
	}
	s.check(os.Remove(s.source + "/top0"))
	moved := func(part string) string {
		return fmt.Sprintf("  %s/%s: 5 copies (40 KiB), it is on another file system than before\n", s.point, part)
	}
	r := s.try("refresh", "--prune", "--dry-run", s.point)
	if r.code != exit.OK || !strings.Contains(r.stdout, moved("train")+moved("val")) || !strings.Contains(r.stdout, "--force is needed to remove all") {
		t.Errorf("a dry run: exit code %d, %s%s", r.code, r.stdout, r.stderr)
	}
	r = s.try("refresh", "--prune", s.point)
	if r.code != exit.Source || !strings.Contains(r.stdout, moved("train")+moved("val")) || !strings.Contains(r.stderr, "10 copies were kept: ") || !strings.Contains(r.stderr, "--force") {
		t.Errorf("exit code %d, %s%s", r.code, r.stdout, r.stderr)
	}
	if n := copies(); n != 21 {
		t.Errorf("%d copies, want 21: those of the parts, and all but top0", n)
	}
	s.sh(`rm "$1"/top[1-9]`, s.source)
	r = s.try("refresh", "--prune", "--json", s.point)
	var got control.Refreshed
	s.check(json.Unmarshal([]byte(r.stdout), &got))
	if r.code != exit.Source || !strings.Contains(r.stderr, "no copy was removed: the source lacks the files of more than half of the copies below .") || len(got.PrunedDirs) != 3 || got.PrunedDirs[0] != (control.PrunedDir{Path: ".", Copies: 9, Bytes: 9 * 8192}) {
		t.Errorf("exit code %d, %s%s", r.code, r.stdout, r.stderr)
	}
	if n := copies(); n != 21 {
		t.Errorf("%d copies, want 21", n)
	}
	if out := s.milkweed("refresh", "--prune", "--force", s.point); !strings.Contains(out, "19 (152 KiB) removed") {
		t.Errorf("--force printed %s", out)
	}
	if n := copies(); n != 2 {
		t.Errorf("%d copies, want 2", n)
	}
	s.umount()
	s.wantNothing()
}

// While the source hangs, a prune ends after a minute without an answer.
func TestPruneOfAHungSource(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the time limits of sources, tiers or daemons that hang")
	}
	s := newSite(t)
	s.write("d/f", 1000)
	stop, resume := s.hangable()
	s.mount("64MiB")
	s.must("cat", s.point+"/d/f")
	s.settled()
	stop()
	if r := s.try("refresh", "--prune", s.point); r.code != exit.Source || !strings.Contains(r.stderr, "the source has not answered for 1m0s") {
		t.Errorf("exit code %d, %q", r.code, r.stderr)
	}
	resume()
	s.umount()
}

// A silence ends its context when progress is missing for its limit, and not before.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, s, stop := withSilence(t.Context(), time.Minute)
		defer stop()
		for range 5 {
			time.Sleep(59 * time.Second)
			s.progress()
		}
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if ctx.Err() != nil {
			t.Error("the context has ended early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		s.progress()
		if err := context.Cause(ctx); exit.Of(err) != exit.Source {
			t.Errorf("the cause is %v", err)
		}
	})
}

// Without a refresh, a change is seen within mount.consistency, and the requests for that are
// counted.
func TestConsistency(t *testing.T) {
	s := newSite(t)
	s.write("d/f", 1000)
	s.milkweed(append(s.mountWords("64MiB"), "--consistency", "2s")...)
	s.must("sh", "-c", `cat "$1"/d/f >/dev/null && ls "$1"/d && ! stat "$1"/d/new`, "sh", s.point)
	s.settled()
	// Each by a rename: between a creation and a write, the sweep would see another version.
	s.write("../new", 2000)
	s.write("../f", 3000)
	s.check(os.Rename(s.dir+"/new", s.source+"/d/new"))
	s.check(os.Rename(s.dir+"/f", s.source+"/d/f"))
	s.eventually("the changes are seen", func() bool {
		return s.run("diff", s.source+"/d/f", s.point+"/d/f").code == 0 && s.run("diff", s.source+"/d/new", s.point+"/d/new").code == 0
	})
	if got := s.status().Sweep; got.Changes != 2 || got.Stats == 0 || got.ReadDirs == 0 {
		t.Errorf("got %+v, want 2 changes and some requests", got)
	}
	s.umount()
	s.wantNothing()
}
