package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// newVersioned returns a site with two generations of 20 files, v1 and v2, whose source is a symbolic
// link to v1.
func newVersioned(t *testing.T) *site {
	s := newSite(t)
	s.check(os.Mkdir(s.dir+"/sets", 0o755))
	for _, g := range []string{"v1", "v2"} {
		for i := range 20 {
			s.write(fmt.Sprintf("../sets/%s/d/%d", g, i), 5000)
		}
	}
	s.check(os.Remove(s.source))
	s.link("v1")
	return s
}

// link makes the source point to a generation.
func (s *site) link(generation string) {
	s.t.Helper()
	s.check(os.Symlink(s.dir+"/sets/"+generation, s.source+".new"))
	s.check(os.Rename(s.source+".new", s.source))
}

// generations returns what the command of that name prints.
func (s *site) generations() control.Generations {
	s.t.Helper()
	var g control.Generations
	s.check(json.Unmarshal([]byte(s.milkweed("generations", "--json", s.point)), &g))
	return g
}

// copies returns the number of copies that the tiers hold of each generation.
func (s *site) copies() string {
	s.t.Helper()
	var all []string
	for _, g := range s.generations().All {
		n := int64(0)
		for _, c := range g.Copies {
			n += c.Files
		}
		all = append(all, fmt.Sprintf("%s:%d", g.Name, n))
	}
	return strings.Join(all, " ")
}

// shows fails the test if the mount does not show a generation.
func (s *site) shows(generation string) {
	s.t.Helper()
	s.must("diff", "-r", s.dir+"/sets/"+generation, s.point)
	if got := s.status().Generation; got != generation {
		s.t.Errorf("status has the generation %q, want %s", got, generation)
	}
}

// The names of generations, and of the files in them, need not be UTF-8: every command takes the name that
// generations prints, and one that has U+FFFD in place of a byte is another name.
func TestGenerationsOfAnyName(t *testing.T) {
	s := newVersioned(t)
	const name, similar, other = "v\xff", "v\ufffd", "w\xfe"
	for _, g := range []string{name, similar, other} {
		s.check(os.Rename(s.dir+"/sets/v2", s.dir+"/sets/"+g))
		s.sh(`cp -r "$1/v1" "$1/v2"; echo "$2" > "$1/$2/which"; echo > "$1/v2/z$2"`, s.dir+"/sets", g)
	}
	s.mount("1MiB", "1MiB")
	s.link(name)
	s.milkweed("prepare", name, s.point)
	before := s.status().Source.Reads
	var switched control.Switched
	s.check(json.Unmarshal([]byte(s.milkweed("switch", "--json", name, s.point)), &switched))
	if switched.To != name || switched.Linked != name || !switched.Done {
		t.Errorf("switch printed %+v", switched)
	}
	s.shows(name)
	if n := s.status().Source.Reads - before; n != 0 {
		t.Errorf("%d reads from the source after prepare", n)
	}
	g := s.generations()
	var all []string
	for _, one := range g.All {
		all = append(all, one.Name)
	}
	if want := []string{"v1", "v2", similar, name, other}; !slices.Equal(all, want) || g.Current != name || g.Linked != name {
		t.Errorf("got %q, want %q; %+v", all, want, g)
	}
	if out := s.milkweed("status", s.point); !strings.Contains(out, `generation "v\xff"`) {
		t.Errorf("status printed\n%s", out)
	}
	s.milkweed("switch", "--keep", similar, s.point)
	s.shows(similar)
	s.milkweed("generations", "drop", name, s.point)
	s.milkweed("refresh", s.point)
	s.umount()

	words := s.mountWords("1MiB")
	s.milkweed(append([]string{"mount", "--generation", other}, words[1:]...)...)
	s.shows(other)
	s.umount()
	s.milkweed(words...) // follows the link
	s.shows(name)
	s.umount()
	s.wantNothing()
}

// A mount pins the generation that its link names, and a switch replaces it. The copies of the old one
// go when its last open file is closed, and those of the new one stay.
func TestGenerations(t *testing.T) {
	s := newVersioned(t)
	s.mount("1MiB", "1MiB")
	s.link("v2")
	s.shows("v1")
	s.must("ls", s.point+"/.generations/v2")
	s.milkweed("warmup", s.point+"/.generations/v2/d")
	s.settled()
	if got := s.copies(); got != "v1:20 v2:20" {
		t.Errorf("before the switch: %s", got)
	}
	open, err := os.Open(s.point + "/d/7")
	s.check(err)
	defer open.Close()
	if out := s.milkweed("switch", "v2", s.point); !strings.Contains(out, "shows v2, and no longer v1") {
		t.Errorf("switch printed %q", out)
	}
	s.shows("v2")
	time.Sleep(2 * minDropPoll)
	if g := s.generations(); !g.All[0].Dropping || g.All[0].Copies[0].Files == 0 || g.Linked != "v2" {
		t.Errorf("while a file is open: %+v", g)
	}
	want, err := os.ReadFile(s.dir + "/sets/v1/d/7")
	s.check(err)
	got := make([]byte, len(want))
	if _, err := open.ReadAt(got, 0); err != nil || string(got) != string(want) {
		t.Errorf("the open file: %v, or other bytes", err)
	}
	s.check(open.Close())
	s.eventually("the copies of the old generation are gone", func() bool { return s.copies() == "v1:0 v2:20" })
	before := s.status().Source.Reads
	s.shows("v2")
	if after := s.status().Source.Reads; after != before {
		t.Errorf("%d reads from the source after the switch", after-before)
	}
	if st := s.status(); st.Tiers[0].Files+st.Tiers[1].Files != 20 || st.Tiers[0].UsedBytes+st.Tiers[1].UsedBytes != 20*8192 {
		t.Errorf("status has other copies than those of v2: %+v", st.Tiers)
	}
	s.umount()

	s.mount("1MiB", "1MiB") // the link points to v2
	s.shows("v2")
	if n := s.status().Source.Reads; n != 0 {
		t.Errorf("%d reads from the source after a mount, want none", n)
	}
	r := s.try("switch", "--keep", "v1", s.point)
	if r.code != exit.OK || !strings.Contains(r.stderr, "still points to v2") {
		t.Errorf("switch --keep: exit code %d, %q", r.code, r.stderr)
	}
	s.shows("v1")
	s.settled()
	if got := s.copies(); got != "v1:20 v2:20" {
		t.Errorf("after a switch with --keep: %s", got)
	}
	if out := s.milkweed("generations", "drop", "v2", s.point); out != "v2: 20 copies (160 KiB) removed\n" {
		t.Errorf("drop printed %q", out)
	}
	s.eventually("the copies are dropped", func() bool { return s.copies() == "v1:20 v2:0" })
	s.umount()
	s.wantNothing()
}

// The paths of commands are those of the current generation, or below the directory of all.
func TestGenerationNames(t *testing.T) {
	s := newVersioned(t)
	s.mount("1MiB")
	s.must("sh", "-c", `cat "$1"/d/3 >/dev/null && ls "$1"/d "$1"/.generations/v2/d`, "sh", s.point)
	s.settled()
	if out := s.milkweed("where", s.point+"/d/3", s.point+"/.generations/v2/d/3"); !strings.Contains(out, s.dataset(1)+"/files/v1/d/3") ||
		!strings.Contains(out, s.point+"/.generations/v2/d/3  source") {
		t.Errorf("where printed\n%s", out)
	}
	s.write("../sets/v1/d/new", 100)
	s.write("../sets/v2/d/new", 100)
	s.check(os.Remove(s.dir + "/sets/v1/d/4"))
	if out := s.milkweed("refresh", "-v", s.point); !strings.Contains(out, "added "+s.point+"/d/new") || !strings.Contains(out, "removed "+s.point+"/d/4") || strings.Contains(out, "v2") {
		t.Errorf("refresh printed\n%s", out)
	}
	s.milkweed("warmup", s.point+"/d")
	if out := s.milkweed("scrub", s.point+"/d"); !strings.HasPrefix(out, "20 copies") {
		t.Errorf("scrub printed %s", out)
	}
	if out := s.must("sh", "-c", `echo d/5 | "$1" plan "$2"`, "sh", s.program, s.point); !strings.Contains(out, "1 ") {
		t.Errorf("plan printed %s", out)
	}
	s.check(os.Remove(s.dir + "/sets/v1/d/6"))
	if out := s.milkweed("refresh", "--prune", s.point); !strings.Contains(out, "1 (8.0 KiB) removed") && !strings.Contains(out, "1 (8 KiB) removed") {
		t.Errorf("refresh --prune printed\n%s", out)
	}
	s.milkweed("warmup", s.point+"/.generations/v2")
	s.check(os.RemoveAll(s.dir + "/sets/v2"))
	if out := s.milkweed("refresh", "--prune", "--force", s.point); !strings.Contains(out, "21 (") {
		t.Errorf("refresh --prune without v2 printed\n%s", out)
	}
	if got := s.copies(); got != "v1:19" {
		t.Errorf("left are %s", got)
	}
	s.check(os.Rename(s.dir+"/sets/v1", s.dir+"/sets/v0"))
	if r := s.try("refresh", "--prune", s.point); r.code != exit.Source || !strings.Contains(r.stderr, "no copy was removed") && !strings.Contains(r.stderr, "cannot be read") {
		t.Errorf("without the current generation, refresh --prune: exit code %d, %q", r.code, r.stderr)
	}
	if n := len(s.files(s.dataset(1) + "/files")); n != 19 {
		t.Errorf("%d copies left, want 19", n)
	}
	s.umount()
	s.wantNothing()
}

// A switch with --when-idle waits for processes, and an interrupt ends it without a switch.
func TestSwitchWhenIdle(t *testing.T) {
	s := newVersioned(t)
	s.mount("1MiB")
	busy := s.command("sh", "-c", `cd "$1"/d && exec sleep 60`, "sh", s.point)
	s.check(busy.Start())
	s.eventually("the process is in the mount", func() bool {
		dir, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", busy.Process.Pid))
		return strings.HasPrefix(dir, s.point)
	})
	waiting := s.command(s.program, "switch", "--when-idle", "v2", s.point)
	s.check(waiting.Start())
	waits := func() bool { return strings.Contains(s.get("/debug/pprof/goroutine?debug=1"), "daemon).awaitIdle") }
	s.eventually("the switch waits", waits)
	s.check(waiting.Process.Signal(unix.SIGINT))
	waiting.Wait()
	if code := waiting.ProcessState.ExitCode(); code != int(exit.Incomplete) {
		t.Errorf("an interrupted switch has the exit code %d", code)
	}
	s.shows("v1")
	s.eventually("the switch has ended", func() bool { return !waits() })
	waiting = s.command(s.program, "switch", "--when-idle", "v2", s.point)
	s.check(waiting.Start())
	s.eventually("the switch waits", waits)
	s.shows("v1")
	s.check(busy.Process.Kill())
	busy.Wait()
	s.check(waiting.Wait())
	s.shows("v2")
	s.umount()
	s.wantNothing()
}

// Sources that are no link to a generation are mounted as they are, or refused.
func TestGenerationSources(t *testing.T) {
	s := newVersioned(t)
	sets := s.dir + "/sets"
	none := func(what string) {
		t.Helper()
		if r := s.try("switch", "v2", s.point); r.code != exit.Usage || !strings.Contains(r.stderr, "no generations") {
			t.Errorf("%s: exit code %d, %q", what, r.code, r.stderr)
		}
		if _, err := os.Stat(s.point + "/.generations"); err == nil {
			t.Errorf("%s: the mount has .generations", what)
		}
		s.umount()
	}
	tier := "tier1:" + s.tier(1) + ":1MiB"
	s.milkweed("mount", "--tier", tier, sets+"/v1", s.point)
	none("a directory")
	s.milkweed("mount", "--tier", "tier1:"+sets+"/tier:1MiB", s.source, s.point)
	none("a link with a tier beside its target")
	s.sh(`mkdir "$1/fs" && mount -t tmpfs none "$1/fs" && cp -r "$1/sets/v1/d" "$1/fs" && ln -s "$1/fs" "$1/tofs"`, s.dir)
	s.milkweed("mount", "--tier", tier, s.dir+"/tofs", s.point)
	s.must("diff", "-r", s.dir+"/fs", s.point)
	none("a link to a file system")
	s.sh(`umount "$1"`, s.dir+"/fs")

	s.milkweed("mount", "--tier", tier, "--generation", "v2", s.source, s.point)
	s.shows("v2")
	s.umount()
	s.milkweed("mount", "--tier", tier, "--generation", "v2", sets, s.point)
	s.shows("v2")
	s.umount()
	for _, tt := range []struct {
		name, source, generation string
		code                     exit.Code
		says                     string
	}{
		{"missing generation", s.source, "v9", exit.Source, "has no directory v9"},
		{"a path as generation", s.source, "../v2", exit.Usage, "generation"},
		{"dangling link", s.dir + "/dangling", "", exit.Source, "dangling"},
		{"link to a file", s.dir + "/tofile", "", exit.Source, "not a directory"},
	} {
		os.Symlink(sets+"/v9", s.dir+"/dangling")
		os.Symlink(sets+"/v1/d/1", s.dir+"/tofile")
		words := []string{"mount", "--tier", tier, tt.source, s.point}
		if tt.generation != "" {
			words = append(words, "--generation", tt.generation)
		}
		if r := s.try(words...); r.code != tt.code || !strings.Contains(r.stderr, tt.says) {
			t.Errorf("%s: exit code %d, %q; want %d, %q", tt.name, r.code, r.stderr, tt.code, tt.says)
		}
	}
	s.wantNothing()
}

// In a bucket, a pointer is an object with the name of a generation.
func TestGenerationsInBucket(t *testing.T) {
	s := newSite(t)
	for _, g := range []string{"v1", "v2"} {
		for i := range 5 {
			s.write(fmt.Sprintf("%s/d/%d", g, i), 5000)
		}
	}
	b := newBucket(s)
	s.check(os.WriteFile(filepath.Join(s.source, "current"), []byte("v1\n"), 0o644))
	at := strings.Replace(b.at(), "/?", "/current?", 1)
	tier := "tier1:" + s.tier(1) + ":1GiB"
	if out := s.milkweed("check", "--tier", tier, at, s.point); !strings.Contains(out, "can be listed") {
		t.Errorf("check printed\n%s", out)
	}
	before := b.lists.Load() + b.gets.Load()
	s.milkweed("mount", "--tier", tier, at, s.point)
	if n := b.lists.Load() + b.gets.Load() - before; n != 7 {
		t.Errorf("the mount took %d requests, want 7 as documented", n)
	}
	s.must("diff", "-r", s.source+"/v1", s.point)
	s.settled()
	s.check(os.WriteFile(filepath.Join(s.source, "current"), []byte("v2"), 0o644))
	if g := s.generations(); g.Current != "v1" || g.Linked != "v2" || len(g.All) != 2 || g.All[0].Copies[0].Files != 5 {
		t.Errorf("got %+v", g)
	}
	s.milkweed("switch", "v2", s.point)
	s.must("diff", "-r", s.source+"/v2", s.point)
	s.umount()
	s.milkweed("mount", "--tier", tier, at, s.point)
	s.must("diff", "-r", s.source+"/v2", s.point)
	s.umount()
	for _, content := range []string{"a/b", "", "..", strings.Repeat("x", maxPointer+1)} {
		s.check(os.WriteFile(filepath.Join(s.source, "current"), []byte(content), 0o644))
		if r := s.try("mount", "--tier", tier, at, s.point); r.code != exit.Source || !strings.Contains(r.stderr, "pointer") {
			t.Errorf("a pointer %.20q: exit code %d, %q", content, r.code, r.stderr)
		}
	}
	s.wantNothing()
}

// A store that gives all objects one ETag has no two equal objects: after a switch, the mount shows the new
// generation. status, check and doctor say what the store does.
func TestPrepareWithOneETag(t *testing.T) {
	s := newSite(t)
	for _, g := range []string{"v1", "v2"} {
		for i := range 5 {
			s.write(fmt.Sprintf("%s/d/%d", g, i), 5000)
		}
	}
	s.write("longer", 7000)
	b := newBucket(s)
	b.etag = func(fs.FileInfo) string { return `"00000000000000000000000000000000-1"` }
	s.check(os.WriteFile(filepath.Join(s.source, "current"), []byte("v1\n"), 0o644))
	at := strings.Replace(b.at(), "/?", "/current?", 1)
	tier := "tier1:" + s.tier(1) + ":1GiB"
	s.milkweed("mount", "--tier", tier, at, s.point)
	s.must("diff", "-r", s.source+"/v1", s.point)
	s.settled()
	if out := s.milkweed("prepare", "v2", s.point); !strings.Contains(out, "5 (24 KiB) copied") {
		t.Errorf("prepare printed %s", out)
	}
	s.milkweed("switch", "v2", s.point)
	s.must("diff", "-r", s.source+"/v2", s.point)
	const want = "objects of different sizes have the same ETag"
	if r := s.status().Source.Requests; len(r.Oddities) != 1 || !strings.HasPrefix(r.Oddities[0], want) {
		t.Errorf("status has the oddities %q", r.Oddities)
	}
	for _, words := range [][]string{{"status", s.point}, {"doctor", s.point}, {"check", "--tier", "t:" + s.tier(2) + ":1GiB", b.at(), s.point + "2"}} {
		if r := s.try(words...); !strings.Contains(strings.Join(strings.Fields(r.stdout), " "), want) {
			t.Errorf("%q printed %s%s", words, r.stdout, r.stderr)
		}
	}
	if n := strings.Count(s.logs(), want); n != 1 {
		t.Errorf("the log says %d times that %s", n, want)
	}
	s.umount()
	s.wantNothing()
}

// nextGeneration makes the generation v2 of newVersioned one that shares half of its files with v1, as
// rsync --link-dest does: as hard links.
func (s *site) nextGeneration() {
	s.t.Helper()
	s.sh(`rm -r "$1/v2" && mkdir -p "$1/v2/d" && cp -l "$1"/v1/d/*[13579] "$1/v2/d"`, s.dir+"/sets")
	for i := range 10 {
		s.write(fmt.Sprintf("../sets/v2/d/%d", 2*i), 6000)
	}
}

// used returns the bytes of room that the tiers use.
func (s *site) used() (n int64) {
	for _, t := range s.status().Tiers {
		n += t.UsedBytes
	}
	return n
}

// Prepare copies what has changed, and nothing else. What has not changed is one copy with two names,
// which takes room once, also when the other generation is gone.
func TestPrepare(t *testing.T) {
	s := newVersioned(t)
	s.nextGeneration()
	s.mount("1MiB")
	s.must("sh", "-c", `cat "$1"/d/* >/dev/null`, "sh", s.point)
	s.settled()
	before := s.status().Source.Bytes
	var p control.Prepared
	s.check(json.Unmarshal([]byte(s.milkweed("prepare", "--json", "v2", s.point)), &p))
	want := control.Prepared{
		Generation: "v2", Found: control.Amount{Files: 20, Bytes: 10*5000 + 10*6000}, Shared: control.Amount{Files: 10, Bytes: 50000},
		Copied: control.Amount{Files: 10, Bytes: 60000}, NeedBytes: 10 * 8192, RoomBytes: 1<<20 - 20*8192,
	}
	if !reflect.DeepEqual(p, want) {
		t.Errorf("got  %+v\nwant %+v", p, want)
	}
	if n := s.status().Source.Bytes - before; n != 60000 {
		t.Errorf("%d bytes were read from the source, want the 60,000 that have changed", n)
	}
	if n := s.used(); n != 30*8192 {
		t.Errorf("both generations take %d bytes, want those of 30 files", n)
	}
	if out := s.milkweed("prepare", "v2", s.point); !strings.HasPrefix(out, "v2: 20 files (107 KiB), 20 (107 KiB) there before after") {
		t.Errorf("a second prepare printed %s", out)
	}
	s.milkweed("switch", "v2", s.point)
	s.shows("v2")
	s.eventually("the copies of v1 are gone", func() bool { return s.copies() == "v1:0 v2:20" })
	s.eventually("their room is returned", func() bool { return s.used() == 20*8192 })
	if n := s.status().Source.Bytes - before; n != 60000 {
		t.Errorf("%d bytes were read from the source after the switch", n)
	}
	s.umount()
	s.link("v2")
	s.mount("1MiB")
	s.shows("v2")
	if st := s.status(); st.Source.Reads != 0 || s.used() != 20*8192 {
		t.Errorf("after a mount: %d reads from the source, %d bytes used", st.Source.Reads, s.used())
	}
	if out := s.milkweed("scrub", s.point); !strings.HasPrefix(out, "20 copies") || !strings.Contains(out, "0 corrupt") {
		t.Errorf("scrub printed %s", out)
	}
	s.umount()
	s.wantNothing()
}

// Links that are made while the old generation is mounted, and have just been made, are the same files.
// The new files of the generation are copied when their times identify their content.
func TestPrepareNewLinks(t *testing.T) {
	s := newVersioned(t)
	time.Sleep(500 * time.Millisecond) // the files of v1 are not racy any more
	s.mountWith("clock_skew=300ms", "1MiB")
	s.must("sh", "-c", `cat "$1"/d/* >/dev/null`, "sh", s.point)
	s.settled()
	before := s.status().Source.Bytes
	s.nextGeneration()
	var p control.Prepared
	s.check(json.Unmarshal([]byte(s.milkweed("prepare", "--json", "v2", s.point)), &p))
	if p.Shared.Files != 10 || p.Copied.Files != 10 {
		t.Errorf("%d files are shared and %d copied, want 10 and 10", p.Shared.Files, p.Copied.Files)
	}
	s.milkweed("switch", "--keep", "v2", s.point)
	s.shows("v2")
	s.milkweed("refresh", s.point+"/.generations") // the change times in v1 are those of the links
	s.milkweed("switch", "--keep", "v1", s.point)
	s.shows("v1")
	if n := s.status().Source.Bytes - before; n != 60000 {
		t.Errorf("%d bytes were read from the source, want the 60,000 that have changed", n)
	}
	s.umount()
}

// Files with equal times are the same only if that is asked for. A generation without room is refused
// before anything is copied.
func TestPrepareChoices(t *testing.T) {
	s := newVersioned(t)
	s.sh(`rm -r "$1/v2" && cp -rp "$1/v1" "$1/v2"`, s.dir+"/sets")
	s.mount("256KiB") // 20 of 40 files of 8 KiB, and 12 more
	s.must("sh", "-c", `cat "$1"/d/* >/dev/null`, "sh", s.point)
	s.settled()
	r := s.try("prepare", "v2", s.point)
	if r.code != exit.Tier || !strings.Contains(r.stderr, "needs 160 KiB, and the tiers have 96 KiB free") {
		t.Errorf("without room: exit code %d, %q", r.code, r.stderr)
	}
	if got := s.copies(); got != "v1:20 v2:0" {
		t.Errorf("after that: %s", got)
	}
	if out := s.milkweed("prepare", "--partial", "v2", s.point); !strings.Contains(out, "12 (59 KiB) copied, 8 (39 KiB) skipped") {
		t.Errorf("--partial printed %s", out)
	}
	s.milkweed("generations", "drop", "v2", s.point)
	if out := s.milkweed("prepare", "--trust-mtime", "v2", s.point); !strings.Contains(out, "20 (98 KiB) shared") {
		t.Errorf("--trust-mtime printed %s", out)
	}
	if n := s.used(); n != 20*8192 {
		t.Errorf("both generations take %d bytes", n)
	}
	for _, words := range [][]string{{"prepare", "v9", s.point}, {"prepare", "../x", s.point}, {"switch", "d", s.point}} {
		if r := s.try(words...); r.code != exit.Usage || !strings.Contains(r.stderr, "no generation") {
			t.Errorf("%q: exit code %d, %q", words, r.code, r.stderr)
		}
	}
	s.umount()
	s.wantNothing()
}

// After the daemon was killed in a preparation, a switch or a removal of copies, the next mount has all
// copies of the generation that it shows, as far as they were complete, and an account that is right.
func TestKilledBetweenGenerations(t *testing.T) {
	if testing.Short() {
		t.Skip("kills and restarts daemons many times")
	}
	s := newVersioned(t)
	for i := range 300 {
		s.write(fmt.Sprintf("../sets/v1/d/more%d", i), 3000)
	}
	s.nextGeneration()
	for round := range 12 {
		s.detectRaces(round%3 == 0)
		s.link("v1")
		s.mount("16MiB")
		s.must("sh", "-c", `cat "$1"/d/* >/dev/null`, "sh", s.point)
		s.settled()
		pid := s.status().PID
		work := s.command("sh", "-c", `"$1" prepare v2 "$2"; "$1" switch v2 "$2"; sleep 0.1; "$1" generations drop v1 "$2"`, "sh", s.program, s.point)
		s.check(work.Start())
		time.Sleep(time.Duration(20+25*round) * time.Millisecond)
		shown := s.status().Generation
		s.check(unix.Kill(pid, unix.SIGKILL))
		work.Wait()
		s.milkweed("umount", "--lazy", s.point)
		s.link(shown)
		s.mount("16MiB")
		var before []string
		for _, g := range s.generations().All {
			before = append(before, fmt.Sprintf("%s:%d", g.Name, g.Copies[0].Files))
		}
		read := s.status().Source.Bytes
		s.shows(shown)
		t.Logf("round %d: %s, copies %q, %d bytes read from the source", round, shown, before, s.status().Source.Bytes-read)
		if s.status().Source.Bytes != read {
			t.Errorf("round %d: copies of the generation in use were lost: %d bytes were read", round, s.status().Source.Bytes-read)
		}
		s.settled()
		used := s.used()
		s.umount()
		s.mount("16MiB")
		if now := s.used(); now != used {
			t.Errorf("round %d: the account had %d bytes, and the next scan found %d", round, used, now)
		}
		s.umount()
	}
	s.wantNothing()
}
