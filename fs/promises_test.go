package fs_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/posix"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/tiers"
)

// The tests in this file hold the promises of ARCHITECTURE.md, in its order.

// Source is truth: the source is opened through a type without write methods, and the mount is
// read-only.
func TestSourceIsTruth(t *testing.T) {
	allowed := map[string]bool{
		"Open": true, "ReadDir": true, "Stat": true, "Readlink": true, "Listxattr": true,
		"Getxattr": true, "ACL": true, "Holes": true, "FindsHoles": true, "Statfs": true, "Close": true, "FSType": true, "Stats": true, "Sample": true,
		"IsLister": true, "IsEmpty": true, "HaveSameContent": true, "Digest": true, "Reject": true, "List": true, "IsNamer": true, "Names": true, "StatNames": true, "OpenVersion": true, "Profile": true, "BaseLatency": true,
		"Avoid": true, "Permits": true, "User": true, "Access": true, "DeniesFiles": true,
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[*posix.Dir](), reflect.TypeFor[*tiers.Source]()} {
		for m := range typ.Methods() {
			if !allowed[m.Name] {
				t.Errorf("%v has a method %s", typ, m.Name)
			}
		}
	}
	drivertest.Need(t, "python3")
	s := newStack(t, stackOptions{quotas: []tiers.Quota{bytesQuota(1 << 20)}}, func(source string) {
		write(t, source, "d/f", 1000, 1)
	})
	before := sh(t, `cd "$1" && find . -printf '%p %s %m %u %g %T@ %C@\n' | sort`, s.source)
	for _, script := range []string{
		`echo x > "$1/d/f"`, `echo x >> "$1/d/f"`, `echo x > "$1/new"`, `mkdir "$1/new"`, `rm "$1/d/f"`, `rm -r "$1/d"`,
		`mv "$1/d/f" "$1/g"`, `ln "$1/d/f" "$1/g"`, `ln -s d "$1/g"`, `chmod 600 "$1/d/f"`, `chown 1 "$1/d/f"`,
		`truncate -s 0 "$1/d/f"`, `touch "$1/d/f"`, `mkfifo "$1/p"`, `python3 -c 'import os, sys; os.setxattr(sys.argv[1], "user.a", b"b")' "$1/d/f"`,
	} {
		out, err := trySh(script, s.point)
		if err == nil || !strings.Contains(out, "Read-only file system") {
			t.Errorf("%s: got %v, %s; want EROFS", script, err, out)
		}
	}
	if after := sh(t, `cd "$1" && find . -printf '%p %s %m %u %g %T@ %C@\n' | sort`, s.source); after != before {
		t.Errorf("the source has changed:\n%s", after)
	}
}

// Publish after commit: a level is published only after the copy is complete and renamed.
func TestPublishAfterCommit(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		s := newStack(t, stackOptions{mode: mode, quotas: []tiers.Quota{bytesQuota(1 << 30)}}, func(source string) {
			write(t, source, "f", 3<<20, 1)
		})
		s.to[0].Add(drivertest.Rule{Op: drivertest.OpCommit, Hang: true})
		s.epoch(1)
		s.eventually("commit begins", func() bool { return s.to[0].Hung() == 1 })
		e, err := s.names.Resolve(context.Background(), "f")
		s.check(err)
		if got := e.Level(); got != tiers.AtSource {
			t.Errorf("level before the copy is committed: got %d, want %d", got, tiers.AtSource)
		}
		if got := s.tierFiles(1); len(got) > 0 {
			t.Errorf("copies before the commit: got %q, want none", got)
		}
		s.epoch(2) // readable in flight
		s.to[0].Clear()
		s.settled()
		if got := e.Level(); got != 1 {
			t.Errorf("level after the commit: got %d, want 1", got)
		}
		if got := s.tierFiles(1); len(got) != 1 || got[0] != "f" {
			t.Errorf("copies after the commit: got %q, want f", got)
		}
		if got, want := s.from.Bytes(drivertest.OpRead), int64(3<<20); got != want {
			t.Errorf("source bytes read: got %d, want %d", got, want)
		}
	})
}

// Tiers may fail: while a tier is full, slow, broken, emptied by hand or gone, reads go to the
// next level. The tier is used again when it is healthy.
func TestTiersMayFail(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		wrong := fmt.Errorf("injected: %w", syscall.EIO)
		full := fmt.Errorf("injected: %w", syscall.ENOSPC)
		cases := []struct {
			name  string
			rules []drivertest.Rule
			do    func(s *stack)
			down  bool // the tier must be marked as down
			lost  bool // the files of the tier must be copied again
		}{
			{name: "write error", rules: []drivertest.Rule{{Op: drivertest.OpWrite, Err: wrong}}},
			{name: "create error", rules: []drivertest.Rule{{Op: drivertest.OpCreate, Err: wrong}}},
			{name: "commit error", rules: []drivertest.Rule{{Op: drivertest.OpCommit, Err: wrong}}},
			{name: "full at create", rules: []drivertest.Rule{{Op: drivertest.OpCreate, Err: full}}},
			{name: "full at write", rules: []drivertest.Rule{{Op: drivertest.OpWrite, Err: full, After: 3}}},
			{name: "read error", rules: []drivertest.Rule{{Op: drivertest.OpRead, Err: wrong}, {Op: drivertest.OpReadBack, Err: wrong}, {Op: drivertest.OpProbe, Err: wrong}}, down: true},
			{name: "some read errors", rules: []drivertest.Rule{{Op: drivertest.OpRead, Err: wrong, P: 0.3}, {Op: drivertest.OpReadBack, Err: wrong, P: 0.1}}},
			{name: "short reads", rules: []drivertest.Rule{{Op: drivertest.OpRead, Short: true, P: 0.5}}},
			{name: "open error", rules: []drivertest.Rule{{Op: drivertest.OpOpen, Err: wrong}}},
			{name: "stat error", rules: []drivertest.Rule{{Op: drivertest.OpStat, Err: wrong}, {Op: drivertest.OpReadDir, Err: wrong}}},
			{name: "slow", rules: []drivertest.Rule{{Op: drivertest.OpRead, Delay: 20 * time.Millisecond}, {Op: drivertest.OpWrite, Delay: 20 * time.Millisecond}}},
			{name: "hung reads", rules: []drivertest.Rule{{Op: drivertest.OpRead, Hang: true}, {Op: drivertest.OpReadBack, Hang: true}, {Op: drivertest.OpProbe, Hang: true}}, down: true},
			{name: "hung writes", rules: []drivertest.Rule{{Op: drivertest.OpWrite, Hang: true}, {Op: drivertest.OpProbe, Hang: true}}},
			{name: "hung", rules: []drivertest.Rule{{Hang: true}}, down: true},
			{name: "emptied by hand", do: func(s *stack) { sh(s.t, `rm -rf "$1"/data/files/*`, s.dir+"/tier1") }, lost: true},
			{name: "folder gone", do: func(s *stack) { sh(s.t, `rm -rf "$1"`, s.dir+"/tier1") }, lost: true},
			{name: "copies truncated", do: func(s *stack) { sh(s.t, `find "$1"/data/files -type f -exec truncate -s 5 {} +`, s.dir+"/tier1") }, lost: true},
		}
		for _, placedBefore := range []bool{false, true} {
			for _, c := range cases {
				if !placedBefore && c.do != nil {
					continue
				}
				t.Run(fmt.Sprintf("%s/placed=%v", c.name, placedBefore), func(t *testing.T) {
					t.Parallel()
					s := newStack(t, stackOptions{mode: mode,
						quotas:  []tiers.Quota{bytesQuota(1 << 30), bytesQuota(1 << 30)},
						tier:    tiers.Options{Timeout: 300 * time.Millisecond, Probe: 20 * time.Millisecond},
						timeout: 100 * time.Millisecond,
					}, func(source string) {
						for i := range 12 {
							write(t, source, fmt.Sprintf("d%d/f%d", i%3, i), 20_000*(i+1), uint64(i))
						}
						write(t, source, "large", 3<<20+1, 99)
					})
					if placedBefore {
						s.epoch(1)
						s.settled()
						s.eventually("the tier is healthy", func() bool { // a busy machine may exceed its time-out
							return s.levels.Tier(1).Stats().Health == tiers.Healthy
						})
					}
					for _, r := range c.rules {
						s.to[0].Add(r)
					}
					if c.do != nil {
						c.do(s)
					}
					before := s.met(c.rules, placedBefore)
					s.forgetPages()
					s.epoch(2)
					s.epoch(3)
					if after := s.met(c.rules, placedBefore); before >= 0 && after == before {
						t.Errorf("no operation has met the fault: %+v", s.levels.Tier(1).Stats())
					}
					if c.down && placedBefore {
						s.eventually("the broken tier is down", func() bool { return s.levels.Tier(1).Stats().Health == tiers.Down })
					}
					s.to[0].Clear()
					s.eventually("the tier is healthy again", func() bool {
						return s.levels.Tier(1).Stats().Health == tiers.Healthy
					})
					s.forgetPages()
					s.epoch(4)
					s.settled()
					if c.lost {
						s.eventually("lost files are copied again", func() bool {
							s.forgetPages() // in a stateless mount only a read notices that a copy is gone
							s.epoch(5)
							return len(s.tierFiles(1))+len(s.tierFiles(2)) >= 13
						})
					}
					// New files are copied to the fastest tier.
					var fresh []string
					s.eventually("the tier is filled again", func() bool { // a busy disk may time out again
						name := fmt.Sprint("fresh", len(fresh))
						fresh = append(fresh, name)
						write(t, s.source, name, 1000, 7)
						time.Sleep(200 * time.Millisecond)
						s.epoch(6)
						s.settled()
						return slices.Contains(s.tierFiles(1), name)
					})
				})
			}
		}
	})
}

// met returns how many operations on tier 1 could have met rules, or -1 if this depends on
// more than whether the files are placed: reads occur if they are, and writes if they are not.
func (s *stack) met(rules []drivertest.Rule, placed bool) int64 {
	n := int64(-1)
	for _, r := range rules {
		reads := r.Op == drivertest.OpRead
		writes := r.Op == drivertest.OpCreate || r.Op == drivertest.OpWrite || r.Op == drivertest.OpCommit
		if reads && placed || writes && !placed {
			n = max(n, 0) + s.to[0].Count(r.Op)
		}
	}
	return n
}

// Open files stay readable: a handle that was opened on a copy stays readable when the copy is
// removed or superseded.
func TestOpenFilesStayReadable(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		var (
			data []byte
			gone bool // the version that is open was replaced at the source
		)
		s := newStack(t, stackOptions{mode: mode,
			quotas:  []tiers.Quota{bytesQuota(1 << 30)},
			timeout: 100 * time.Millisecond,
		}, func(source string) {
			data = write(t, source, "f", 8<<20, 1)
		})
		s.epoch(1)
		s.settled()
		h := hold(t, s.in("f"))
		readAt := func(off int64) {
			t.Helper()
			got := h.read(off, 4096)
			if mode == fs.Stateless && gone && strings.Contains(got, "stale file handle") {
				return // no handle keeps the old version open
			}
			if want := hash(data[off : off+4096]); got != want {
				t.Errorf("read at %d: got %s, want %s", off, got, want)
			}
		}
		s.forgetPages()
		readAt(0)
		sh(t, `rm "$1"/data/files/f`, s.dir+"/tier1")
		readAt(2 << 20)
		// A new version replaces the file at the source and then in the tier.
		sh(t, `head -c 1000 /dev/urandom > "$1/new" && mv "$1/new" "$1/f"`, s.source)
		gone = true
		time.Sleep(300 * time.Millisecond)
		s.epoch(2)
		s.settled()
		if got := sh(t, `stat -c %s "$1"/data/files/f`, s.dir+"/tier1"); got != "1000\n" {
			t.Errorf("size of the new copy: got %s, want 1000", got)
		}
		readAt(4 << 20)
	})
}

// Each byte once: while a tier has room for a file, no byte of the file is read from the source
// twice, for any number of readers and any order of reads.
func TestEachByteOnce(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		fill, total := mixed(t)
		s := newStack(t, stackOptions{mode: mode, quotas: []tiers.Quota{bytesQuota(1 << 30)}}, fill)
		var readers sync.WaitGroup
		for i := range 4 {
			readers.Go(func() { s.epoch(i) })
		}
		readers.Wait()
		s.settled()
		if got := s.from.Bytes(drivertest.OpRead); got != *total {
			t.Errorf("source bytes read: got %d, want %d", got, *total)
		}
		if got, want := s.from.Count(drivertest.OpOpen), int64(62); got != want {
			t.Errorf("source opens: got %d, want %d", got, want)
		}
		s.from.Reset()
		s.forgetPages()
		s.epoch(5)
		if got := s.from.Count(drivertest.OpRead) + s.from.Count(drivertest.OpOpen); got != 0 {
			t.Errorf("source opens and reads in the second epoch: got %d, want 0", got)
		}
	})
}

// Never a mixture: a reader sees the old version of a file or the new one, never some of each.
func TestNeverAMixture(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		const size, piece = 6 << 20, 64 << 10
		change := map[string]string{
			"replaced":    `cp "$2" "$1/f.new" && mv "$1/f.new" "$1/f"`,
			"overwritten": `dd if="$2" of="$1/f" conv=notrunc bs=1M status=none`,
		}
		for name, script := range change {
			for _, when := range []string{"before", "during", "after"} {
				t.Run(name+" "+when+" the fill", func(t *testing.T) {
					t.Parallel()
					other := t.TempDir()
					fresh := write(t, other, "fresh", size, 2)
					var old []byte
					s := newStack(t, stackOptions{mode: mode,
						quotas:  []tiers.Quota{bytesQuota(1 << 30)},
						timeout: 200 * time.Millisecond,
						workers: 1,
					}, func(source string) {
						old = write(t, source, "f", size, 1)
					})
					sh(t, `stat "$1" >/dev/null`, s.in("f")) // the old version is cached
					var h *held
					switch when {
					case "during":
						// With one worker, the blocks after the first are copied one by one.
						release := s.from.Add(drivertest.Rule{Op: drivertest.OpRead, Delay: 200 * time.Millisecond})
						h = hold(t, s.in("f"))
						if got, want := h.read(0, piece), hash(old[:piece]); got != want {
							t.Errorf("read before the change: got %s, want %s, the old version", got, want)
						}
						sh(t, script, s.source, filepath.Join(other, "fresh"))
						release()
					case "after":
						h = hold(t, s.in("f"))
						s.epoch(1)
						s.settled()
						s.forgetPages()
						sh(t, script, s.source, filepath.Join(other, "fresh"))
					default:
						sh(t, script, s.source, filepath.Join(other, "fresh"))
						h = hold(t, s.in("f"))
					}
					// The handle reads one version, or ESTALE if that version is gone.
					var olds, news, stales int
					for off := int64(0); off < size; off += piece {
						switch got := h.read(off, piece); {
						case got == hash(old[off:off+piece]):
							olds++
						case got == hash(fresh[off:off+piece]):
							news++
						case strings.Contains(got, "stale file handle"):
							stales++
						default:
							t.Fatalf("read at %d: got %s", off, got)
						}
					}
					ok, want := false, ""
					switch {
					case when == "before" && mode == fs.Stateless:
						// The kernel may open the node of the old version without a round trip.
						ok, want = news == size/piece || stales == size/piece, "all of the new version, or all stale"
					case when == "before":
						ok, want = news == size/piece, "all of the new version"
					case when == "during" && (name == "overwritten" || mode == fs.Stateless):
						// The bytes that were not copied are gone. In a stateless mount the daemon
						// closes the old version when the fill ends. The kernel has cached one piece.
						ok, want = olds > 0 && news == 0, "some of the old version, the others stale"
					default: // the old version is open, at the source or as a copy
						ok, want = olds == size/piece, "all of the old version"
					}
					if !ok {
						t.Errorf("reads of the handle: got %d of the old version, %d of the new, %d stale; want %s", olds, news, stales, want)
					}
					// The next open sees the new version.
					time.Sleep(500 * time.Millisecond)
					if got, err := trySh(`cat "$1" | cmp - "$2"`, s.in("f"), filepath.Join(other, "fresh")); err != nil {
						t.Errorf("a new open does not see the new version: %s", got)
					}
					s.settled()
					if got, err := trySh(`cmp "$1"/data/files/f "$2"`, s.dir+"/tier1", filepath.Join(other, "fresh")); err != nil {
						t.Errorf("the copy is not of the new version: %s", got)
					}
				})
			}
		}
	})
}

// Placing never stops: a file that does not fit is skipped, smaller files are still placed, and
// placed copies are never evicted.
func TestPlacingNeverStops(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		s := newStack(t, stackOptions{mode: mode, quotas: []tiers.Quota{bytesQuota(200 << 10), bytesQuota(500 << 10)}}, func(source string) {
			write(t, source, "a", 150<<10, 1)
			write(t, source, "b", 2<<20, 2) // fits nowhere
			write(t, source, "c", 100<<10, 3)
			write(t, source, "d", 40<<10, 4)
			write(t, source, "e", 300<<10, 5)
			write(t, source, "f", 400<<10, 6) // fits nowhere by then
			write(t, source, "g", 10<<10, 7)
		})
		for range 2 {
			sh(t, `cd "$1" && for f in a b c d e f g; do cat $f | cmp - "$2"/$f || exit 1; done`, s.point, s.source)
			s.settled()
			if got, want := strings.Join(s.tierFiles(1), " "), "a d"; got != want {
				t.Errorf("tier 1: got %s, want %s", got, want)
			}
			if got, want := strings.Join(s.tierFiles(2), " "), "c e g"; got != want {
				t.Errorf("tier 2: got %s, want %s", got, want)
			}
		}
		if got := s.handler.Stats().Skipped; got != 2 {
			t.Errorf("files skipped: got %d, want 2", got)
		}
		for _, tier := range s.levels.Tiers() {
			if st := tier.Stats(); st.Used > st.Quota {
				t.Errorf("%s: %d bytes used of %d", st.Name, st.Used, st.Quota)
			}
		}
	})
}

// Ready at once: a mount needs one operation of the source, for any size of the dataset and of
// the tiers.
func TestReadyAtOnce(t *testing.T) {
	t.Parallel()
	var operations []int64
	for _, files := range []int{10, 2000} {
		s := newStack(t, stackOptions{quotas: []tiers.Quota{bytesQuota(1 << 30)}}, func(source string) {
			for i := range files {
				write(t, source, fmt.Sprintf("%d/%d", i%20, i), 10, 1)
			}
		})
		s.epoch(1)
		s.settled()
		s.restart()
		var n int64
		for _, op := range []drivertest.Op{drivertest.OpOpen, drivertest.OpRead, drivertest.OpStat, drivertest.OpReadDir} {
			n += s.from.Count(op)
		}
		operations = append(operations, n)
		if got := s.names.Len(); got != 1 {
			t.Errorf("entries loaded by mounting %d files: got %d, want 1", files, got)
		}
	}
	if operations[0] != 1 || operations[1] != 1 {
		t.Errorf("source operations of mounting: got %d, want 1 each", operations)
	}
}

// Warm restart: copies survive a restart and are validated against the source before they are
// used. Files that Milkweed did not create are never removed.
func TestWarmRestart(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		fill, _ := mixed(t)
		s := newStack(t, stackOptions{mode: mode, quotas: []tiers.Quota{bytesQuota(10 << 20), bytesQuota(1 << 30)}}, fill)
		s.epoch(1)
		s.settled()
		held := s.levels.Tier(2).Stats().Used
		tier := filepath.Join(s.dir, "tier1", "data")
		s.end()
		// The temporary file of a killed daemon, and files of other programs.
		sh(t, `cd "$1" && echo half > incoming/0123456789abcdef.part && echo mine > incoming/notes.txt && echo mine > notes.txt && echo mine > files/notes.txt`, tier)
		// New versions of two files: one of another size, one of the same size.
		write(t, s.source, "class0/000.bin", 5000, 77)
		changed := write(t, s.source, "class1/001.bin", 2000, 78)
		s.start()
		if got := s.levels.Tier(2).Stats().Used; got != held {
			t.Errorf("bytes used after the restart: got %d, want %d", got, held)
		}
		s.epoch(2)
		s.settled()
		if got, want := s.from.Bytes(drivertest.OpRead), int64(5000+2000); got != want {
			t.Errorf("source bytes read after the restart: got %d, want %d, the size of the changed files", got, want)
		}
		if got, err := os.ReadFile(filepath.Join(tier, "files", "class1", "001.bin")); err != nil || string(got) != string(changed) {
			t.Errorf("the outdated copy was not replaced: %v", err)
		}
		if got, want := sh(t, `cd "$1" && ls incoming && cat notes.txt incoming/notes.txt files/notes.txt`, tier), "notes.txt\nmine\nmine\nmine\n"; got != want {
			t.Errorf("files left in the folder: got %q, want %q", got, want)
		}
	})
}
