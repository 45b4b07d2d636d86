package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// writeReloadable writes the configuration file of a site, with a quota and more lines.
func (s *site) writeReloadable(quota, more string) {
	s.t.Helper()
	s.check(os.WriteFile(s.dir+"/tiering.toml", fmt.Appendf(nil,
		"[source]\npath = %q\n[mount]\npoint = %q\n[[tier]]\nname = \"ssd\"\npath = %q\nquota = %q\n%s",
		s.source, s.point, s.dir+"/tier1", quota, more), 0o600))
}

// The command and SIGHUP apply what can be changed, name what cannot, and change nothing if the file is
// invalid. Of a quota that was lowered and raised, no copy is evicted, and files are placed again.
func TestReload(t *testing.T) {
	parallel(t)
	for _, words := range [][]string{nil, {"--supervise"}} {
		t.Run(fmt.Sprint(words), func(t *testing.T) {
			s := newSite(t)
			for i := range 20 {
				s.write(fmt.Sprintf("%02d", i), 40000)
			}
			s.age()
			s.writeReloadable("400KiB", "")
			s.milkweed(append([]string{"mount", "-c", s.dir + "/tiering.toml"}, words...)...)
			s.milkweed("warmup", s.point)
			if got := s.settled().Tiers[0].Files; got != 10 {
				t.Fatalf("%d copies, want 10", got)
			}
			value := func(key string) string {
				var all []config.Setting
				s.check(json.Unmarshal([]byte(s.milkweed("config", "show", "--json", s.point)), &all))
				return all[slices.IndexFunc(all, func(v config.Setting) bool { return v.Key == key })].Value
			}

			s.writeReloadable("100KiB", "[placement]\nworkers = 3\n[log]\nlevel = \"debug\"\n")
			var r control.Reloaded
			s.check(json.Unmarshal([]byte(s.milkweed("config", "reload", "--json", "--dry-run", s.point)), &r))
			if len(r.Changed) != 3 || len(r.Refused) != 0 || value("placement.workers") != "64" {
				t.Errorf("a dry run: %+v, and %s workers", r, value("placement.workers"))
			}
			s.milkweed("config", "reload", s.point)
			st := s.status()
			if st.Tiers[0].QuotaBytes != 100<<10 || st.Tiers[0].Files != 10 || value("placement.workers") != "3" || value("log.level") != "debug" {
				t.Errorf("after a reload: %+v, %s workers", st.Tiers[0], value("placement.workers"))
			}

			s.writeReloadable("nonsense", "")
			if got := s.try("config", "reload", s.point); got.code != exit.Usage || !strings.Contains(got.stderr, "tier.quota") {
				t.Errorf("an invalid file: %+v", got)
			}
			s.writeReloadable("10MiB", "[source]\n")
			if got := s.try("config", "reload", s.point); got.code != exit.Usage || s.status().Tiers[0].QuotaBytes != 100<<10 {
				t.Errorf("an invalid file: %+v", got)
			}

			s.writeReloadable("10MiB", "[placement]\nwindow = \"1%\"\nworkers = 5\n")
			pid := s.status().PID
			for _, p := range s.processes() {
				if len(words) > 0 && p != pid || len(words) == 0 && p == pid {
					s.check(unix.Kill(p, unix.SIGHUP))
				}
			}
			s.eventually("the signal has had its effect", func() bool { return value("placement.workers") == "5" })
			if got := s.try("config", "reload", s.point); got.code != exit.Incomplete || !strings.Contains(got.stderr, "placement.window") {
				t.Errorf("a key that cannot be reloaded: %+v", got)
			}
			s.milkweed("warmup", s.point)
			if got := s.settled().Tiers[0]; got.Files != 20 || got.QuotaBytes != 10<<20 {
				t.Errorf("after the quota was raised: %+v", got)
			}
			if log := s.logs(); !strings.Contains(log, "from=100KiB to=10MiB") || !strings.Contains(log, "is not reloaded") {
				t.Errorf("the log:\n%s", log)
			}
			s.umount()
		})
	}
}

// A limit on the source that is added while a job reads slows that job, and one that is removed does so no
// longer. The bytes are right, and a relative path of the file is still found.
func TestReloadOfRates(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole epochs")
	}
	s := newSite(t)
	for i := range 64 {
		s.write(fmt.Sprintf("%02d", i), 256<<10)
	}
	s.age()
	s.writeReloadable("64KiB", "") // no file has room: all are read from the source
	mount := s.command(s.words([]string{"mount", "-c", "tiering.toml"})...)
	mount.Dir = s.dir
	if out, err := mount.CombinedOutput(); err != nil {
		t.Fatalf("mount: %v\n%s", err, out)
	}
	rates := func(lines string) {
		t.Helper()
		s.check(os.WriteFile(s.dir+"/tiering.toml", fmt.Appendf(nil,
			"[source]\npath = %q\n%s[mount]\npoint = %q\n[[tier]]\nname = \"ssd\"\npath = %q\nquota = \"64KiB\"\n",
			s.source, lines, s.point, s.dir+"/tier1"), 0o600))
		s.milkweed("config", "reload", s.point)
	}
	job := s.command("sh", "-ec", `while [ ! -e "$2" ]; do cat "$1"/?? | cmp - "$3"; echo; done`, "sh", s.point, s.dir+"/stop", s.dir+"/all")
	s.sh(`cat "$1"/?? >"$2"`, s.source, s.dir+"/all")
	var out bytes.Buffer
	job.Stdout, job.Stderr = &out, &out
	s.check(job.Start())
	// direct reads 4 MiB through the daemon.
	direct := func() time.Duration {
		begin := time.Now()
		s.sh(`for i in 0 1 2 3 4 5 6 7; do for f in "$1/1$i" "$1/2$i"; do dd if="$f" iflag=direct of=/dev/null bs=256k 2>/dev/null; done; done`, s.point)
		return time.Since(begin)
	}
	rates("operations = 1000000\nbandwidth = \"2MB\"\n")
	direct() // what the limiter grants at once
	if took := direct(); took < time.Second {
		t.Errorf("4 MiB took %v with a limit of 2 MB/s", took)
	}
	rates("")
	limited := s.status().Source.Bytes
	direct()
	if sent := s.status().Source.Bytes - limited; sent < 4<<20 {
		t.Errorf("%d bytes from the source", sent)
	}
	s.sh(`: >"$1"`, s.dir+"/stop")
	if err := job.Wait(); err != nil || strings.TrimSpace(out.String()) != "" {
		t.Errorf("the job: %v\n%s", err, &out)
	}
	s.umount()
}
