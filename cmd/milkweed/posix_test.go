package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/milkweedfs/milkweed/cmd/internal/lab"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// The tests in this file run suites that compare a mount with a local read-only file system.

// A difference is a line of testdata/posix.txt.
type difference struct {
	line   string
	calls  *regexp.Regexp // matches where, call, path, local result and result on the mount
	occurs bool
}

// differences reads testdata/posix.txt.
func differences(t *testing.T) []*difference {
	t.Helper()
	data, err := os.ReadFile("testdata/posix.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all []*difference
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		columns := strings.Fields(line)
		if len(columns) < 6 {
			t.Fatalf("less than 6 columns: %s", line)
		}
		pattern := "^(" + strings.Join(columns[:5], ")\t(") + ")$" // the others are the reason
		all = append(all, &difference{line: line, calls: regexp.MustCompile(pattern)})
	}
	return all
}

// calls runs posixops on a tree, and returns the result of each call.
func (s *site) calls(tree string) map[string]string {
	s.t.Helper()
	results := make(map[string]string)
	for line := range strings.Lines(s.must(s.dir+"/posixops", "run", tree)) {
		end := strings.LastIndexByte(line, '\t')
		results[line[:end]] = strings.TrimSuffix(line[end+1:], "\n")
	}
	return results
}

// Each system call of posixops has the same result on a mount as on its source, which is a
// read-only tmpfs, except for the differences in testdata/posix.txt, which all occur. The calls
// are made by root and by another user, before and after the files are placed.
func TestPosixCalls(t *testing.T) {
	if testing.Short() {
		t.Skip("compares with local file systems at length")
	}
	parallel(t)
	drivertest.Need(t, "unshare", "nsenter", "setpriv", "setfacl", "fusermount3")
	program, err := lab.Program("cmd/internal/lab/posixops", false)
	if err != nil {
		t.Fatal(err)
	}
	listed := differences(t)
	var mu sync.Mutex
	unlisted := make(map[string][]string) // where a difference occurs
	compare := func(where string, local, mount map[string]string) {
		mu.Lock()
		defer mu.Unlock()
		for call := range local {
			if local[call] == mount[call] {
				continue
			}
			found := false
			line := call + "\t" + local[call] + "\t" + mount[call]
			for _, d := range listed {
				if d.calls.MatchString(where + "\t" + line) {
					found, d.occurs = true, true
				}
			}
			if !found && !slices.Contains(unlisted[line], where) {
				unlisted[line] = append(unlisted[line], where)
			}
		}
	}
	for _, mode := range []string{"passthrough", "stateless", "cached"} {
		for _, kind := range []string{"default", "allow_other", "xattrs", "own"} {
			if mode == "passthrough" && kind == "own" {
				continue // it requires a privilege
			}
			t.Run(mode+"/"+kind, func(t *testing.T) {
				s := newSite(t)
				s.sh(`cp "$1" "$2"`, program, s.dir)
				s.inNamespace(fuseForAll+` && mount -t tmpfs none "$2" && "$3" make "$2" && mount -o remount,ro,nosuid,nodev "$2"`, s.source, program)
				asRoot, user, options := s.wrapper, "root", "mode="+mode
				// The local results come first, because a file that the daemon has open has no lease.
				locally := make(map[string]map[string]string)
				if kind != "own" {
					locally["root"] = s.calls(s.source)
				}
				if kind == "own" || kind == "allow_other" {
					s.asNobody()
					locally["nobody"] = s.calls(s.source)
					s.wrapper = asRoot
				}
				switch kind {
				case "own":
					s.giveToNobody()
					user = "nobody"
				case "allow_other", "xattrs":
					options += "," + kind
				}
				s.mountWith(options, "64MiB")
				for range 2 {
					compare(mode+"/"+kind+"/"+user, locally[user], s.calls(s.point))
					s.settled()
				}
				if kind == "allow_other" {
					s.asNobody()
					compare(mode+"/"+kind+"/nobody", locally["nobody"], s.calls(s.point))
					s.wrapper = asRoot
				}
				s.umount()
			})
		}
	}
	t.Cleanup(func() { // after the subtests
		for _, line := range slices.Sorted(maps.Keys(unlisted)) {
			t.Errorf("not listed: %s (%s)", strings.ReplaceAll(line, "\t", " | "), strings.Join(unlisted[line], ", "))
		}
		for _, d := range listed {
			if !d.occurs {
				t.Errorf("does not occur: %s", d.line)
			}
		}
	})
}

// treeEnv is an environment variable for the test binary. If it is set, the binary runs
// fstest.TestFS on that directory.
const treeEnv = "MILKWEED_TEST_TREE"

func testTree(tree string) (code int) {
	if err := fstest.TestFS(os.DirFS(tree), "folder/0", "folder/9", "folder/b/c", "link", "ä b", "empty"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Fstest.TestFS of the standard library passes on a mount in each mode, while files are placed and
// when they are.
func TestPosixFS(t *testing.T) {
	if testing.Short() {
		t.Skip("compares with local file systems at length")
	}
	s := newSite(t)
	for i := range 10 {
		s.write(fmt.Sprint("folder/", i), 300*i)
	}
	s.write("folder/b/c", 10)
	s.write("ä b", 10)
	s.write("empty", 0)
	s.check(os.Symlink("folder/1", s.source+"/link"))
	for _, mode := range []string{"passthrough", "stateless", "cached"} {
		s.mountWith("mode="+mode, "64MiB")
		for range 2 {
			test := s.command("/proc/self/exe")
			test.Env = append(s.env, treeEnv+"="+s.point)
			if out, err := test.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", mode, err, out)
			}
			s.settled()
		}
		s.umount()
		s.emptyTiers()
	}
	s.wantNothing()
}

// fio runs testdata/posix.fio, and returns the bytes that each job has read.
func (s *site) fio(tree, pattern string, flags ...string) map[string]int64 {
	s.t.Helper()
	env := s.env
	s.env = append(slices.Clip(env), "TREE="+tree, "RW="+pattern)
	out := s.must(append([]string{"fio", "--output-format=json", "testdata/posix.fio"}, flags...)...)
	s.env = env
	var result struct {
		Jobs []struct {
			Name string `json:"jobname"`
			Read struct {
				Bytes int64 `json:"io_bytes"`
			}
		}
	}
	s.check(json.Unmarshal([]byte(out), &result))
	read := make(map[string]int64)
	for _, j := range result.Jobs {
		read[j.Name] = j.Read.Bytes
	}
	return read
}

// With each engine of testdata/posix.fio, at the same time, fio verifies the content of files that
// are being placed, that are placed, and that no tier has room for.
func TestPosixFio(t *testing.T) {
	if testing.Short() {
		t.Skip("compares with local file systems at length")
	}
	drivertest.Need(t, "fio")
	s := newSite(t)
	s.fio(s.source, "write")
	want := s.files(s.source)
	if len(want) != 8 {
		t.Fatalf("wrote %v, want 8 files", want)
	}
	for _, mode := range []string{"passthrough", "stateless", "cached"} {
		for _, quota := range []string{"1MiB", "128MiB"} {
			s.mountWith("mode="+mode, quota)
			for range 2 {
				if got := s.fio(s.point, "randread", "--readonly"); !maps.Equal(got, want) {
					t.Errorf("%s, %s: read %v, want %v", mode, quota, got, want)
				}
				s.settled()
			}
			if placed := s.status().Placement.Placed; (placed == 8) != (quota != "1MiB") {
				t.Errorf("%s, %s: %d files placed", mode, quota, placed)
			}
			s.umount()
			s.emptyTiers()
		}
	}
	s.wantNothing()
}
