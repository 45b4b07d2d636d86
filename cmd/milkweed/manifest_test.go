package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// listed returns the words that mount with a manifest.
func (s *site) listed(manifest string, quotas ...string) []string {
	words := s.mountWords(quotas...)
	return append([]string{"mount", "--manifest", manifest}, words[1:]...)
}

// A mount with a manifest shows what that lists, without a request for a name. Its copies have the hashes
// of the manifest, and serve the next mount.
func TestMountWithManifest(t *testing.T) {
	s := newSite(t)
	for i := range 20 {
		s.write(fmt.Sprintf("d/%d", i), 5000)
	}
	s.write("large", 3<<20)
	s.write("new\nline/a b", 0)
	s.check(os.Symlink("../d/1", s.source+"/new\nline/link"))
	file := s.dir + "/list.mtree"
	s.milkweed("manifest", "-o", file, s.source)
	s.milkweed(s.listed(file, "64MiB")...)
	s.must("diff", "-r", s.source, s.point)
	if _, links := s.inode(s.point + "/d"); links != 1 {
		t.Errorf("a directory has %d links", links)
	}
	s.settled()
	s.write("later", 10)
	s.check(os.Remove(s.source + "/d/0"))
	if out := s.must("ls", s.point, s.point+"/d"); strings.Contains(out, "later") || !strings.Contains(out, "\n0\n") {
		t.Errorf("the mount shows\n%s", out)
	}
	if source := s.status().Source; source.ReadDirs != 0 || source.Stats != 0 || source.Readlinks != 0 || source.ACLs != 0 || source.Xattrs != 0 {
		t.Errorf("requests for names: %+v", source.SourceCounters)
	}
	s.umount()

	s.check(os.Rename(s.source, s.source+".gone"))
	s.check(os.Mkdir(s.source, 0o755))
	s.milkweed(s.listed(file, "64MiB")...)
	s.must("diff", s.source+".gone/large", s.point+"/large")
	s.must("cat", s.point+"/d/0") // which the source has removed
	s.must("cmp", s.source+".gone/d/19", s.point+"/d/19")
	if n := s.status().Source.Reads; n != 0 {
		t.Errorf("%d reads from the source", n)
	}
	s.umount()
	s.wantNothing()
}

// A file that is not the one in the manifest is an error to its readers, and has no copy. When the source
// has the right one again, so has the mount.
func TestManifestPinsContent(t *testing.T) {
	s := newSite(t)
	for _, name := range []string{"right", "other", "longer", "missing"} {
		s.write(name, 50_000)
	}
	large := s.write("large", 10<<20)
	file := s.dir + "/list.mtree"
	s.milkweed("manifest", "-o", file, s.source)
	other := s.write("../other", 50_000)
	s.check(os.WriteFile(s.source+"/other", other, 0o644))
	s.write("longer", 50_001)
	s.check(os.Remove(s.source + "/missing"))
	large[7<<20]++
	s.check(os.WriteFile(s.source+"/large", large, 0o644))
	logged := 0
	for _, mode := range []string{"cached", "stateless", "passthrough"} {
		t.Run(mode, func(t *testing.T) {
			s.milkweed(append(s.listed(file, "64MiB"), "--mode", mode)...)
			for _, name := range []string{"other", "longer", "missing"} {
				for range 2 {
					if r := s.run("cat", s.point+"/"+name); r.code == 0 || !strings.Contains(r.stderr, "Input/output error") || r.stdout != "" {
						t.Errorf("%s: exit code %d, %q, %d bytes", name, r.code, r.stderr, len(r.stdout))
					}
				}
			}
			s.run("cat", s.point+"/large") // may get some bytes, or all
			s.settled()
			if r := s.run("cat", s.point+"/large"); r.code == 0 || !strings.Contains(r.stderr, "Input/output error") {
				t.Errorf("large, again: exit code %d, %q, %d bytes", r.code, r.stderr, len(r.stdout))
			}
			s.must("cmp", s.source+"/right", s.point+"/right")
			if st := s.settled(); st.Placement.Placed != 1 || st.Placement.Mismatched != 4 {
				t.Errorf("%d placed, %d mismatched; want 1 and 4", st.Placement.Placed, st.Placement.Mismatched)
			}
			if out := s.milkweed("status", s.point); !strings.Contains(out, file+"; 4 files are not as it says") {
				t.Errorf("status printed\n%s", out)
			}
			if r := s.try("doctor", s.point); r.code != exit.Incomplete || !strings.Contains(r.stdout, "4 files of the source are not as the manifest says") {
				t.Errorf("doctor: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
			}
			logged += 4
			if got := strings.Count(s.logs(), `msg="file not as in the manifest"`); got != logged {
				t.Errorf("%d lines in the log, want %d:\n%s", got, logged, s.logs())
			}
			r := s.try("warmup", s.point)
			if want := "4 files could not be copied; 4 of them cannot be read, because the source and the manifest differ\n  `milkweed check --manifest` names"; r.code != exit.Incomplete ||
				!strings.Contains(r.stderr, want) || !strings.Contains(r.stderr, "longer: it has 50001 bytes at the source, and 50000 in the manifest") {
				t.Errorf("warmup: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
			}
			s.umount()
			s.emptyTiers()
		})
	}
	s.milkweed(s.listed(file, "64MiB")...)
	if r := s.run("cat", s.point+"/other"); r.code == 0 {
		t.Error("the wrong file was read")
	}
	s.write("other", 50_000)
	s.must("cmp", s.source+"/other", s.point+"/other")
	s.umount()
	s.wantNothing()
}

// Check compares a source, or the copies in the tiers, with a manifest.
func TestCheckManifest(t *testing.T) {
	s := newSite(t)
	for i := range 10 {
		s.write(fmt.Sprintf("d/%d", i), 5000)
	}
	s.check(os.Symlink("d", s.source+"/link"))
	file := s.source + "/list.mtree" // inside the dataset
	out := s.milkweed("manifest", "-o", file, s.source)
	if !strings.HasPrefix(out, "10 files (49 KiB) in ") {
		t.Errorf("manifest printed %s", out)
	}
	first, err := os.ReadFile(file)
	s.check(err)
	s.milkweed("manifest", "-o", file, s.source) // leaves itself out
	inside := func(manifest []byte) []string {   // without the time of the root, and what follows from it
		lines := strings.SplitAfter(string(manifest), "\n")
		return lines[3 : len(lines)-2]
	}
	if second, err := os.ReadFile(file); err != nil || strings.Contains(string(second), "list.mtree") || !slices.Equal(inside(first), inside(second)) {
		t.Errorf("%v; the manifests are\n%s\n%s", err, first, second)
	}
	for _, place := range []string{file, "dataset:list.mtree"} {
		if out := s.milkweed("check", "--manifest", place, s.source); !strings.HasPrefix(out, "10 files (49 KiB) as in") {
			t.Errorf("check printed %s", out)
		}
	}

	if out := s.milkweed("check", "-o", "manifest="+file, s.source, s.point); !strings.Contains(out, file+" has 10 files, 49 KiB") {
		t.Errorf("check printed\n%s", out)
	}
	s.milkweed(s.listed(file, "64MiB")...)
	s.must("sh", "-c", `cat "$1"/d/*`, "sh", s.point)
	s.settled()
	inTiers := append([]string{"check", "--tiers"}, s.listed(file, "64MiB")[1:]...)
	if out := s.milkweed(inTiers...); !strings.HasPrefix(out, "10 files (49 KiB) as in") {
		t.Errorf("check --tiers printed %s", out)
	}
	s.umount()
	s.sh(`f=$1; touch -r "$f" "$f.time"; printf X | dd of="$f" conv=notrunc status=none; touch -r "$f.time" "$f"; rm "$f.time"`, s.dataset(1)+"/files/d/3")
	s.check(os.Truncate(s.dataset(1)+"/files/d/4", 10))
	r := s.try(inTiers...)
	if r.code != exit.Incomplete || !strings.HasPrefix(r.stdout, "tier1:d/3: its SHA-256 is ") || !strings.Contains(r.stdout, "\n8 files (39 KiB) as in") ||
		!strings.Contains(r.stdout, "; 1 copy of other versions; 1 name is not") {
		t.Errorf("check --tiers: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}

	s.write("extra\xff", 1)
	s.write("d/1", 6000)
	s.check(os.Remove(s.source + "/d/2"))
	s.sh(`printf X | dd of="$1/d/5" conv=notrunc status=none; rm "$1/link"; ln -s e "$1/link"; rm "$1/d/6"; mkdir "$1/d/6"`, s.source)
	r = s.try("check", "--json", "--manifest", file, s.source)
	var c comparison
	s.check(json.Unmarshal([]byte(r.stdout), &c))
	problems := make(map[string]string)
	for _, d := range c.Differences {
		problems[d.Path] = d.Problem
	}
	for name, want := range map[string]string{
		"extra\xff": "it is not in the manifest", "d/1": "it has 6000 bytes, and 5000 in the manifest", "d/2": "it is missing",
		"d/5": "its SHA-256 is", "link": `it points to "e", and to "d" in the manifest`, "d/6": "it is a directory, and a file in the manifest",
	} {
		if !strings.HasPrefix(problems[name], want) {
			t.Errorf("%s: got %q, want %q", name, problems[name], want)
		}
	}
	if r.code != exit.Incomplete || c.Different != 6 || c.Files != 6 || len(problems) != 6 {
		t.Errorf("exit code %d, %+v", r.code, c)
	}
	s.wantNothing()
}

// A wrong manifest is one clear error, and nothing is mounted.
func TestWrongManifests(t *testing.T) {
	s := newVersioned(t)
	s.check(os.WriteFile(s.dir+"/not", []byte("hello\n"), 0o644))
	s.check(os.WriteFile(s.dir+"/sets/v1/not", []byte("./a type=file size=1\n"), 0o644))
	good := s.dir + "/good"
	s.milkweed("manifest", "-o", good, s.source)
	s.sh(`head -n -1 "$1/good" > "$1/cut"; cp "$1/cut" "$1/sets/v1/cut"; echo '#mtree' > "$1/empty"`, s.dir)
	for manifest, want := range map[string]string{
		"dataset:nosuch": "source.manifest: v1/nosuch: it has no manifest",
		"dataset:not":    `source.manifest: v1/not: line 1: "a": the keyword sha256 is missing`,
		"dataset:cut":    "source.manifest: v1/cut: the manifest is damaged: its last line is missing",
		"dataset:../not": `"../not" is not the name of a file in the dataset`,
		good:             "is the manifest of one generation, and the source has several",
	} {
		r := s.try(s.listed(manifest, "1MiB")...)
		if r.code != exit.Usage && r.code != exit.Source || !strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") != 2 {
			t.Errorf("%s: exit code %d\n%s", manifest, r.code, r.stderr)
		}
		if checked := s.try("check", "-o", "manifest="+manifest, s.source, s.point); checked.code != r.code || !strings.Contains(checked.stdout+checked.stderr, "  manifest ") && !strings.Contains(checked.stderr, want) {
			t.Errorf("check of %s: exit code %d\n%s", manifest, checked.code, checked.stderr)
		}
	}
	s.check(os.Remove(s.source))
	s.check(os.Rename(s.dir+"/sets/v1", s.source))
	for manifest, want := range map[string]string{
		s.dir + "/not":    s.dir + `/not: line 1: "hello": the keyword type is missing`,
		s.dir + "/cut":    s.dir + "/cut: the manifest is damaged: its last line is missing\n  Copy it again",
		s.dir + "/empty":  s.dir + "/empty: it has no names",
		s.dir + "/nosuch": "source.manifest: open " + s.dir + "/nosuch: no such file or directory",
		s.dir + "/sets":   s.dir + "/sets: is a directory",
	} {
		if r := s.try(s.listed(manifest, "1MiB")...); r.code != exit.Usage || !strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") != 2 {
			t.Errorf("%s: exit code %d\n%s", manifest, r.code, r.stderr)
		}
		if r := s.try("check", "--manifest", manifest, s.source); r.code != exit.Usage || !strings.Contains(r.stderr, want) {
			t.Errorf("check --manifest %s: exit code %d\n%s", manifest, r.code, r.stderr)
		}
	}
	s.wantNothing()
}

// A manifest of another program has no end that shows that it is complete: mount and check say how many
// names it has.
func TestForeignManifest(t *testing.T) {
	s := newSite(t)
	s.write("d/a", 10)
	file := s.dir + "/list.mtree"
	s.milkweed("manifest", "-o", file, s.source)
	s.sh(`grep -v milkweed "$1" > "$1.foreign"`, file)
	const want = "3 names, and no end that shows that it is complete"
	if r := s.try("check", "-o", "manifest="+file+".foreign", s.source, s.point); !strings.Contains(r.stdout, "warning  manifest") || !strings.Contains(r.stdout, file+".foreign has "+want) {
		t.Errorf("check printed\n%s%s", r.stdout, r.stderr)
	}
	if r := s.try("check", "--manifest", file+".foreign", s.source); r.code != exit.OK || !strings.HasPrefix(r.stdout, "1 file") || !strings.Contains(r.stderr, want) {
		t.Errorf("check --manifest: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	for at, warns := range map[string]bool{file: false, file + ".foreign": true} {
		r := s.try(s.listed(at, "1MiB")...)
		if got := strings.Contains(r.stderr, "the manifest has no end") && strings.Contains(r.stderr, "names=3"); r.code != exit.OK || got != warns {
			t.Errorf("mount with %s: exit code %d\n%s", at, r.code, r.stderr)
		}
		s.must("cmp", s.source+"/d/a", s.point+"/d/a")
		s.umount()
	}
	s.wantNothing()
}

// An unreadable file, a missing source or a foreign output leave no manifest.
func TestManifestFails(t *testing.T) {
	s := newSite(t)
	s.write("d/readable", 10)
	s.write("d/secret", 10)
	s.check(os.Chmod(s.source+"/d/secret", 0))
	out := s.dir + "/out"
	s.check(os.WriteFile(out, []byte("before"), 0o644))
	s.giveToNobody()
	r := s.try("manifest", "-o", out, s.source)
	if r.code != exit.Incomplete || !strings.Contains(r.stderr, "d/secret: ") || !strings.Contains(r.stderr, "1 name could not be read") {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
	for _, words := range [][]string{
		{"manifest", "-o", out, s.dir + "/nosuch"},
		{"manifest", "-o", s.dir + "/nosuch/out", s.source},
		{"manifest", "--json", s.source},
		{"manifest"},
		{"check", "--tiers", s.source, s.point},
	} {
		if r := s.try(words...); r.code != exit.Usage && r.code != exit.Source || !strings.Contains(r.stderr, "\n  ") {
			t.Errorf("%q: exit code %d\n%s", words, r.code, r.stderr)
		}
	}
	if left, _ := filepath.Glob(out + "*"); len(left) != 1 {
		t.Errorf("left: %q", left)
	}
	if content, err := os.ReadFile(out); err != nil || string(content) != "before" {
		t.Errorf("the old file has %q, %v", content, err)
	}
}

// With manifests in the generations, prepare shares the copies of files with equal hashes, although they
// are not links; and a generation without a manifest is refused.
func TestGenerationsWithManifests(t *testing.T) {
	s := newVersioned(t)
	s.sh(`rm -r "$1/v2"; cp -r "$1/v1" "$1/v2"`, s.dir+"/sets")
	for i := range 5 {
		s.write(fmt.Sprintf("../sets/v2/d/%d", i), 6000)
	}
	s.write("../sets/v3/d/1", 10)
	for _, g := range []string{"v1", "v2"} {
		s.milkweed("manifest", "-o", s.dir+"/sets/"+g+"/list", s.dir+"/sets/"+g)
	}
	s.milkweed(s.listed("dataset:list", "1MiB")...)
	shows := func(g string) {
		t.Helper()
		s.must("diff", "-r", "-x", "list", s.dir+"/sets/"+g, s.point)
	}
	shows("v1")
	s.settled()
	before := s.status().Source
	var p control.Prepared
	s.check(json.Unmarshal([]byte(s.milkweed("prepare", "--json", "v2", s.point)), &p))
	if p.Found.Files != 20 || p.Shared.Files != 15 || p.Copied != (control.Amount{Files: 5, Bytes: 30_000}) {
		t.Errorf("got %+v", p)
	}
	after := s.status().Source
	if n := after.Bytes - before.Bytes; n != 30_000 {
		t.Errorf("%d bytes were read from the source, want the 30,000 that differ", n)
	}
	if n := after.Opens - before.Opens; n != 5 {
		t.Errorf("%d files were opened at the source, want the 5 that differ", n)
	}
	for _, words := range [][]string{{"prepare", "v3", s.point}, {"switch", "v3", s.point}} {
		if r := s.try(words...); r.code != exit.Usage || !strings.Contains(r.stderr, "v3/list: it has no manifest") {
			t.Errorf("%q: exit code %d\n%s", words, r.code, r.stderr)
		}
	}
	s.sh(`head -n -1 "$1/v2/list" > "$1/v3/list"`, s.dir+"/sets")
	for _, words := range [][]string{{"prepare", "v3", s.point}, {"switch", "v3", s.point}} {
		if r := s.try(words...); r.code != exit.Source || !strings.Contains(r.stderr, "v3/list: the manifest is damaged: its last line is missing") {
			t.Errorf("%q: exit code %d\n%s", words, r.code, r.stderr)
		}
	}
	s.milkweed("switch", "v2", s.point)
	shows("v2")
	s.eventually("the copies of v1 are gone", func() bool { return s.copies() == "v1:0 v2:20 v3:0" })
	if n := s.status().Source.Bytes - after.Bytes; n != 0 {
		t.Errorf("%d bytes were read from the source after the switch", n)
	}
	s.umount()
	s.wantNothing()
}

// The manifest of a bucket is made and used with as few requests as documented.
func TestManifestOfBucket(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers of several object stores")
	}
	s := newSite(t)
	for i := range 10 {
		s.write(fmt.Sprintf("d/%d", i), 5000)
	}
	s.write("large", 20<<20)
	b := newBucket(s)
	file := s.dir + "/list.mtree"
	if out := s.milkweed("manifest", "-o", file, b.at()); !strings.HasPrefix(out, "11 files (20 MiB) in ") {
		t.Errorf("manifest printed %s", out)
	}
	if out := s.milkweed("check", "--manifest", file, b.at()); !strings.HasPrefix(out, "11 files (20 MiB) as in ") {
		t.Errorf("check printed %s", out)
	}
	lists, gets := b.lists.Load(), b.gets.Load()
	s.milkweed("mount", "--manifest", file, "--tier", "tier1:"+s.tier(1)+":1GiB", b.at(), s.point)
	s.must("diff", "-r", s.source, s.point)
	s.settled()
	if lists, gets := b.lists.Load()-lists, b.gets.Load()-gets; lists != 1+11 || gets != 10+3 {
		t.Errorf("%d requests for keys and %d for content, want one for the mount and one for each file, and 13", lists, gets)
	}
	s.must("cmp", s.source+"/large", s.point+"/large")
	s.umount()
	s.wantNothing()
}
