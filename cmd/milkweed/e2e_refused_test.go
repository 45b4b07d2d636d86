package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// warnings returns the warnings in the log of a mount.
func warnings(log string) (all []string) {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			all = append(all, line)
		}
	}
	return all
}

// openAll opens each file of a directory, and reads it. It prints "shut" for each file that cannot be opened,
// and "unreadable" for each one that can be opened and not be read.
const openAll = `for f in "$1"/*; do
	(exec 3<"$f"; cat <&3 >/dev/null || echo unreadable) || echo shut
done 2>/dev/null`

// An archived object takes one request, whatever its size and however often it is opened. Its readers get
// EACCES, the log has one line, and status and doctor count the objects.
func TestArchivedObjects(t *testing.T) {
	for _, manifest := range []bool{false, true} {
		t.Run(fmt.Sprintf("manifest %v", manifest), func(t *testing.T) { testArchivedObjects(t, manifest) })
	}
}

func testArchivedObjects(t *testing.T, manifest bool) {
	s := newSite(t)
	for i := range 10 {
		s.write(fmt.Sprintf("archived%d", i), 30_000)
		s.write(fmt.Sprintf("other%d", i), 30_000)
	}
	s.write("archived-large", 40<<20)
	b := newBucket(s)
	words := b.mountWords("-o", "mode=cached,log_file="+s.dir+"/log")
	if manifest {
		s.milkweed("manifest", "-o", s.dir+"/mtree", s.source)
		words = append(words, "--manifest", s.dir+"/mtree")
	}
	s.milkweed(words...)
	var mu sync.Mutex
	gets := make(map[string]int)
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("list-type") {
			b.list(w, r.URL.Query())
			return
		}
		mu.Lock()
		gets[filepath.Base(r.URL.Path)]++
		mu.Unlock()
		if strings.Contains(r.URL.Path, "/archived") {
			refusal(http.StatusForbidden, "InvalidObjectState")(w, r)
			return
		}
		b.get(w, r)
	})
	b.refuse.Store(&answer)
	s.must("cat", s.point+"/other0")
	if r := s.run("cat", s.point+"/archived0"); !strings.Contains(r.stderr, "Permission denied") {
		t.Errorf("an archived object: %+v", r)
	}
	for range 3 {
		if got := s.sh(openAll, s.point); strings.Count(got, "shut") != 11 || strings.Contains(got, "unreadable") {
			t.Errorf("of 11 archived and 10 other objects: %q", got)
		}
	}
	mu.Lock()
	for name, n := range gets {
		if n != 1 {
			t.Errorf("%d requests for %s, want 1", n, name)
		}
	}
	mu.Unlock()
	status := s.milkweed("status", s.point)
	if want := "11 objects are archived, and must be restored"; !strings.Contains(status, want) {
		t.Errorf("status lacks %q:\n%s", want, status)
	}
	if r := s.try("doctor", s.point); !strings.Contains(r.stdout, "11 objects are archived") {
		t.Errorf("doctor: %+v", r)
	}
	if got := warnings(s.must("cat", s.dir+"/log")); len(got) != 1 || !strings.Contains(got[0], "restore-object") {
		t.Errorf("the log has the warnings %q", got)
	}
	if got := s.where("archived1"); !strings.Contains(got, "not placed") || !strings.Contains(got, "InvalidObjectState") || !strings.Contains(got, "restore-object") {
		t.Errorf("where: %s", got)
	}

	b.refuse.Store(nil) // they are restored
	s.milkweed("refresh", s.point+"/archived0")
	if got := s.must("cat", s.point+"/archived0"); len(got) != 30_000 {
		t.Errorf("a restored object has %d bytes", len(got))
	}
	s.milkweed("refresh", s.point)
	if got := s.sh(openAll, s.point); strings.Contains(got, "shut") {
		t.Errorf("after a refresh of the directory: %q", got)
	}
	s.umount()
	s.wantNothing()
}

// If the clock of the machine is wrong, a bucket is mounted and read all the same, and check, the log, status and doctor
// say what is wrong. They do not when the clock is right again.
func TestWrongClock(t *testing.T) {
	s := newSite(t)
	for i := range 3 {
		s.write(fmt.Sprintf("file%d", i), 30_000)
	}
	b := newBucket(s)
	var ahead atomic.Int64 // of the store, in ns
	late := refusal(http.StatusForbidden, "RequestTimeTooSkewed")
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := time.Now().Add(time.Duration(ahead.Load()))
		w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
		at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
		switch {
		case err != nil || at.Sub(now).Abs() > 15*time.Minute:
			late(w, r)
		case r.URL.Query().Has("list-type"):
			b.list(w, r.URL.Query())
		default:
			b.get(w, r)
		}
	})
	b.refuse.Store(&answer)
	ahead.Store(int64(time.Hour))
	const behind = "the clock of this machine is 1h0m0s behind that of the store"
	if r := s.try("check", "--tier", "tier1:"+b.tier(1)+":1GiB", b.at(), b.point); !strings.Contains(r.stdout, behind) || !strings.Contains(r.stdout, "chrony") {
		t.Errorf("check: %+v", r)
	}
	s.milkweed(b.mountWords("-o", "log_file="+s.dir+"/log")...)
	s.must("cat", s.point+"/file0")
	says := func(want bool) {
		t.Helper()
		for _, command := range []string{"status", "doctor"} {
			if r := s.try(command, s.point); strings.Contains(r.stdout, behind) != want {
				t.Errorf("%s: %+v", command, r)
			}
		}
	}
	says(true)
	if got := warnings(s.must("cat", s.dir+"/log")); len(got) != 1 || !strings.Contains(got[0], behind) {
		t.Errorf("the log has the warnings %q", got)
	}
	ahead.Store(0)
	s.must("cat", s.point+"/file1")
	says(false)
	s.must("cat", s.point+"/file2")
	s.umount()
	s.wantNothing()
}

// While the store refuses the credentials, files without a copy cannot be opened, and the store gets hardly
// any requests. The log has one line, and status and doctor have the cause. When the file with the
// credentials is written, everything works again.
func TestExpiredCredentials(t *testing.T) {
	s := newSite(t)
	placed := s.write("0-placed", 30_000)
	for i := range 60 {
		s.write(fmt.Sprintf("file%03d", i), 30_000)
	}
	b := newBucket(s)
	credentials := s.dir + "/credentials"
	write := func(key string) {
		s.check(os.WriteFile(credentials, []byte("[default]\naws_access_key_id = "+key+"\naws_secret_access_key = another\n"), 0o600))
	}
	write("AKIAOLD")
	s.env = append(s.env, "AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=", "AWS_SHARED_CREDENTIALS_FILE="+credentials)
	s.milkweed(b.mountWords("-o", "mode=cached,log_file="+s.dir+"/log")...)
	s.must("ls", s.point)
	s.milkweed("warmup", s.point+"/0-placed")
	expired := refusal(http.StatusBadRequest, "ExpiredToken")
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !strings.Contains(r.Header.Get("Authorization"), "Credential=AKIANEW/"):
			expired(w, r)
		case r.URL.Query().Has("list-type"):
			b.list(w, r.URL.Query())
		default:
			b.get(w, r)
		}
	})
	before := b.gets.Load() + b.lists.Load()
	b.refuse.Store(&answer)
	for range 3 {
		if got := s.sh(openAll, s.point); strings.Count(got, "shut") != 60 || strings.Contains(got, "unreadable") {
			t.Errorf("of 60 files without a copy: %d could not be opened, %d not be read", strings.Count(got, "shut"), strings.Count(got, "unreadable"))
		}
	}
	if got := s.must("cat", s.point+"/0-placed"); got != string(placed) {
		t.Error("a placed file has other bytes")
	}
	if r := s.run("cat", s.point+"/file000"); !strings.Contains(r.stderr, "Permission denied") {
		t.Errorf("a file without a copy: %+v", r)
	}
	if n := b.gets.Load() + b.lists.Load() - before; n == 0 || n > 30 { // one in 30 s at the end
		t.Errorf("181 opens caused %d requests", n)
	}
	if got := s.status().Source.Errors; got < 181 {
		t.Errorf("%d errors of the source, want at least one for each open", got)
	}
	for command, code := range map[string]exit.Code{"status": exit.OK, "doctor": exit.Incomplete} {
		r := s.try(command, s.point)
		if r.code != code {
			t.Errorf("%s: exit code %d, want %d", command, r.code, code)
		}
		for _, want := range []string{"refused the credentials for ", "ExpiredToken", "access key AKIAOLD, from the profile \"default\" in " + credentials} {
			if !strings.Contains(strings.Join(strings.Fields(r.stdout), " "), want) {
				t.Errorf("%s lacks %q:\n%s", command, want, r.stdout)
			}
		}
	}
	if got := warnings(s.must("cat", s.dir+"/log")); len(got) != 1 || !strings.Contains(got[0], "ExpiredToken") || !strings.Contains(got[0], "Renew the session token") {
		t.Errorf("the log has the warnings %q", got)
	}

	write("AKIANEW")
	s.eventually("the mount uses the new credentials", func() bool { return s.status().Source.Requests.Refused == "" })
	if got := s.sh(openAll, s.point); got != "" {
		t.Errorf("with new credentials: %q", got)
	}
	s.umount()
	s.wantNothing()
}

// A store that refuses prefixes that do not end in "/" is read and refreshed like any other, also by the names of files.
func TestRefreshWherePrefixesEndInSlash(t *testing.T) {
	s := newSite(t)
	s.write("dir/file", 3000)
	s.write("dir/other", 3000)
	b := newBucket(s)
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		prefix := r.URL.Query().Get("prefix")
		switch {
		case !r.URL.Query().Has("list-type"):
			b.get(w, r)
		case prefix != "" && !strings.HasSuffix(prefix, "/"):
			refusal(http.StatusBadRequest, "InvalidRequest")(w, r)
		default:
			b.list(w, r.URL.Query())
		}
	})
	b.refuse.Store(&answer)
	s.milkweed(b.mountWords()...)
	s.must("cat", s.point+"/dir/file")
	data := s.write("dir/file", 5000)
	s.write("dir/new", 100)
	for _, path := range []string{"dir/file", "dir/new", "dir", "."} {
		s.milkweed("refresh", filepath.Join(s.point, path))
	}
	if got := s.must("cat", s.point+"/dir/file"); got != string(data) {
		t.Errorf("after a refresh, the file has %d bytes", len(got))
	}
	if got := s.must("ls", s.point+"/dir"); got != "file\nnew\nother\n" {
		t.Errorf("the directory has %q", got)
	}
	s.umount()
	s.wantNothing()
}
