package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// A badInput is a mount command that fails.
type badInput struct {
	name string
	prep func(s *site)          // prepares the site; may be nil
	args func(s *site) []string // the arguments; nil for a mount that works without prep
	code exit.Code
	says []string // parts of the error, in this order
}

// config writes a tiering.toml, with one line replaced by text, and returns the arguments that
// mount it.
func (s *site) config(line int, text string) []string {
	lines := []string{
		"[source]", fmt.Sprintf("path = %q", s.source),
		"[[tier]]", `name = "ram"`, fmt.Sprintf("path = %q", s.tier(1)), `quota = "1GiB"`,
		"[mount]", fmt.Sprintf("point = %q", s.point),
	}
	lines[line-1] = text
	file := s.dir + "/tiering.toml"
	s.check(os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644))
	return []string{"mount", "-c", file}
}

func toml(line int, text string) func(*site) []string {
	return func(s *site) []string { return s.config(line, text) }
}

func tiersOf(paths ...string) func(*site) []string {
	return func(s *site) []string {
		words := []string{"mount"}
		for i, path := range paths {
			words = append(words, "--tier", fmt.Sprintf("tier%d:%s:1GiB", i+1, filepath.Join(s.dir, path)))
		}
		return append(words, s.source, s.point)
	}
}

func quotaOf(quota string) func(*site) []string {
	return func(s *site) []string { return s.mountWords(quota) }
}

// folders returns the arguments for a source and a mount point in the site.
func folders(source, point string) func(*site) []string {
	return func(s *site) []string {
		return []string{"mount", "--tier", "tier1:" + s.tier(1) + ":1GiB", filepath.Join(s.dir, source), filepath.Join(s.dir, point)}
	}
}

var badInputs = []badInput{
	{name: "source missing", args: folders("none", "point"),
		code: exit.Source, says: []string{"source: ", "/none does not exist", "Name a directory that exists"}},
	{name: "source a file", prep: func(s *site) { s.write("f", 1) }, args: folders("source/f", "point"),
		code: exit.Source, says: []string{"/source/f is not a directory", "Name the directory"}},
	{name: "source unreadable", prep: func(s *site) { s.giveToNobody(); s.sh(`chown 0 "$1" && chmod 700 "$1"`, s.source) },
		code: exit.Source, says: []string{"/source may not be read", "Run milkweed as a user"}},

	{name: "mount point missing", args: folders("source", "none"),
		code: exit.MountPoint, says: []string{"/none does not exist", "mkdir -p"}},
	{name: "mount point a file", prep: func(s *site) { s.sh(`rmdir "$1" && echo x > "$1"`, s.point) },
		code: exit.MountPoint, says: []string{"/point is not a directory", "Choose an empty directory"}},
	{name: "mount point not empty", prep: func(s *site) { s.sh(`echo x > "$1/f"`, s.point) },
		code: exit.MountPoint, says: []string{"/point: is not empty", "Choose an empty directory"}},
	{name: "mount point mounted", prep: func(s *site) { s.mount("1GiB") },
		code: exit.MountPoint, says: []string{"/point is already a Milkweed mount", "milkweed umount "}},
	{name: "mount point of others", prep: func(s *site) { s.sh(`mount -t tmpfs none "$1"`, s.point) },
		code: exit.MountPoint, says: []string{"/point is already a mount, tmpfs", "Choose another"}},

	{name: "key misspelt", args: toml(6, `quoat = "1GiB"`),
		code: exit.Usage, says: []string{`tiering.toml:6: unknown key "tier.quoat": did you mean "quota"?`, "The keys of [tier] are"}},
	{name: "key unknown", args: toml(7, `frobnicate = 1`),
		code: exit.Usage, says: []string{`tiering.toml:7: unknown key "tier.frobnicate"`, "The keys of [tier] are"}},
	{name: "table misspelt", args: toml(7, `[muont]`),
		code: exit.Usage, says: []string{`tiering.toml:7: unknown table "muont": did you mean "mount"?`, "The tables are"}},
	{name: "not TOML", args: toml(4, `name = `),
		code: exit.Usage, says: []string{"tiering.toml:4: ", "\n  "}},
	{name: "wrong type", args: toml(6, `quota = 5`),
		code: exit.Usage, says: []string{"tiering.toml:6: tier.quota: must be text in double quotes", "A quota is a size"}},
	{name: "config missing", args: func(s *site) []string { return []string{"mount", "-c", s.dir + "/none.toml"} },
		code: exit.Usage, says: []string{"/none.toml", "\n  "}},

	{name: "quota negative", args: quotaOf("-5GiB"), code: exit.Usage, says: []string{`tier.quota: "-5GiB"`, "A quota is a size"}},
	{name: "quota no size", args: quotaOf("5 potatoes"), code: exit.Usage, says: []string{`tier.quota: "5 potatoes"`, "A quota is a size"}},
	{name: "quota nothing", args: quotaOf("0"), code: exit.Usage, says: []string{`tier.quota: "0"`, "A quota is a size"}},
	{name: "quota over 100%", args: quotaOf("101%"), code: exit.Usage, says: []string{`tier.quota: "101%"`, "A quota is a size"}},
	{name: "quota of TOML", args: toml(6, `quota = "-1"`), code: exit.Usage, says: []string{`tiering.toml:6: tier.quota: "-1"`, "A quota is a size"}},

	{name: "two tiers in one folder", args: tiersOf("tier1", "tier1"),
		code: exit.Usage, says: []string{`tier1" is the tier "tier1"`, "none inside another"}},
	{name: "tier inside tier", args: tiersOf("tier1", "tier1/b"),
		code: exit.Usage, says: []string{`tier1/b" lies inside the tier "tier1"`, "none inside another"}},
	{name: "tier inside source", args: tiersOf("source/t"),
		code: exit.Usage, says: []string{`source/t" lies inside the source`, "none inside another"}},
	{name: "source inside tier", args: tiersOf(""),
		code: exit.Usage, says: []string{`contains the source`, "none inside another"}},
	{name: "mount point inside source", prep: func(s *site) { s.sh(`mkdir "$1/p"`, s.source) }, args: folders("source", "source/p"),
		code: exit.Usage, says: []string{`source/p" lies inside the source`, "none inside another"}},
	{name: "mount point inside tier", prep: func(s *site) { s.sh(`mkdir -p "$1/p"`, s.tier(1)) }, args: folders("source", "tier1/p"),
		code: exit.Usage, says: []string{`tier1/p" lies inside the tier "tier1"`, "none inside another"}},
	{name: "mount point is source", args: folders("source", "source"),
		code: exit.Usage, says: []string{`source" is the source`, "none inside another"}},

	{name: "tier read-only", prep: func(s *site) { s.sh(`mkdir "$1" && mount -t tmpfs -o ro none "$1"`, s.tier(1)) },
		code: exit.Tier, says: []string{"tier tier1: cannot write to", "read-only file system", "mounted for writing"}},
	{name: "tier without a size", prep: func(s *site) { s.sh(`mkdir "$1" && mount -t ramfs none "$1"`, s.tier(1)) },
		args: quotaOf("50%"), code: exit.Tier, says: []string{"the quota is 50%", "reports no size", "in bytes"}},
	{name: "tier a file", prep: func(s *site) { s.sh(`echo x > "$1"`, s.tier(1)) },
		code: exit.Tier, says: []string{"/tier1 is not a directory", "Choose a directory"}},
	{name: "tier of another user", prep: func(s *site) { s.sh(`mkdir "$1" && chown "$2" "$1"`, s.tier(1), nobody) },
		code: exit.Tier, says: []string{"/tier1 belongs to user 65534", "Choose a directory of your own"}},
	{name: "tier not permitted", prep: func(s *site) {
		s.inNamespace(fuseForAll)
		s.giveToNobody()
		s.sh(`mkdir "$1" && chmod 755 "$1"`, s.tier(1))
	}, code: exit.Tier, says: []string{"tier tier1: cannot write to", "permission denied", "that you may write to"}},
	{name: "dataset folder not ours", prep: func(s *site) { s.sh(`mkdir -p "$1" && echo thesis > "$1/thesis.tex"`, s.dataset(1)) },
		code: exit.Tier, says: []string{"not a Milkweed folder of this dataset", "Milkweed does not change it"}},

	{name: "FUSE missing", prep: func(s *site) { s.inNamespace(`mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3`) },
		code: exit.Fuse, says: []string{"there is no /dev/fuse", "modprobe fuse"}},
	{name: "FUSE not permitted", prep: func(s *site) {
		s.inNamespace(fuseForAll + ` && chmod 600 /dev/fuse`)
		s.giveToNobody()
	}, code: exit.Fuse, says: []string{"/dev/fuse: permission denied", "chmod 0666 /dev/fuse"}},
	{name: "allow_other not permitted", prep: func(s *site) {
		s.inNamespace(fuseForAll + ` && echo >"$1/fuse.conf" && { [ ! -e /etc/fuse.conf ] || mount --bind "$1/fuse.conf" /etc/fuse.conf; }`)
		s.giveToNobody()
	}, args: func(s *site) []string { return append(s.mountWords("1GiB"), "--allow-other") },
		code: exit.Fuse, says: []string{"/etc/fuse.conf does not permit it", "user_allow_other"}},

	{name: "log file", args: func(s *site) []string { return append(s.mountWords("1GiB"), "--log-file", s.dir+"/none/log") },
		code: exit.Usage, says: []string{"log.file: open ", "/none/log: no such file", "Set it to a file that this user may write"}},
}

// A mount that fails prints two lines, the problem and the remedy. It exits with the documented
// code, and leaves nothing behind.
func TestBadInput(t *testing.T) {
	parallel(t)
	for _, c := range badInputs {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			if c.prep != nil {
				c.prep(s)
			}
			args := s.mountWords("1GiB")
			if c.args != nil {
				args = c.args(s)
			}
			s.wantRefusal(args, c.code, c.says...)
		})
	}
}

// wantRefusal runs a mount command that must fail.
func (s *site) wantRefusal(words []string, code exit.Code, text ...string) {
	s.t.Helper()
	before, mounts, processes := s.tree(), s.mounts(), s.processes()
	r := s.try(words...)
	if r.code != code {
		s.t.Errorf("exit code %d, want %d", r.code, code)
	}
	lines := strings.Split(strings.TrimSuffix(r.stderr, "\n"), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "milkweed: ") || !strings.HasPrefix(lines[1], "  ") || r.stdout != "" {
		s.t.Errorf("want a line with the problem and a line with the remedy; got:\n%s%s", r.stdout, r.stderr)
	}
	at := 0
	for _, part := range text {
		i := strings.Index(r.stderr[at:], part)
		if i < 0 {
			s.t.Fatalf("the error lacks %q after %q:\n%s", part, r.stderr[:at], r.stderr)
		}
		at += i + len(part)
	}
	if after := s.tree(); after != before {
		s.t.Errorf("the command left something; before:\n%s\nafter:\n%s", before, after)
	}
	if after := s.mounts(); !slices.Equal(after, mounts) {
		s.t.Errorf("mounts: %q, before %q", after, mounts)
	}
	if after := s.processes(); !slices.Equal(after, processes) {
		s.t.Errorf("processes: %d, before %d", after, processes)
	}
}

// tree lists the files of the site, without logs and without files below the mount point.
func (s *site) tree() string {
	s.t.Helper()
	return s.sh(`cd "$1" && find . -path ./state/milkweed -prune -o -path './point/*' -prune -o -printf '%p %y %m %u %s\n' | sort`, s.dir)
}

// A mount fails if another process listens on the address of the metrics.
func TestBadMetricsAddress(t *testing.T) {
	s := newSite(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.check(err)
	defer l.Close()
	words := append(s.mountWords("1GiB"), "--metrics-listen", l.Addr().String())
	s.wantRefusal(words, exit.Usage, "cannot listen on "+l.Addr().String(), "Choose another")
}

// killDaemon kills the daemon, and waits until the kernel has aborted the FUSE connection, which
// is a little later than the end of the process.
func (s *site) killDaemon() {
	s.t.Helper()
	s.check(unix.Kill(s.status().PID, unix.SIGKILL))
	s.eventually("the daemon has ended", func() bool {
		return len(s.processes()) == 0 && unix.Statfs(s.root+s.point, new(unix.Statfs_t)) == unix.ENOTCONN
	})
}

// A mount at the mount point of a daemon that was killed fails, and the remedy in the error works.
func TestStaleMountPoint(t *testing.T) {
	s := newSite(t)
	s.write("f", 1000)
	s.mount("1GiB")
	s.killDaemon()
	s.wantRefusal(s.mountWords("1GiB"), exit.MountPoint,
		"left over from a file system whose daemon has ended: transport endpoint is not connected", "milkweed umount "+s.point)
	s.umount()
	s.mount("1GiB")
	s.epoch(1)

	// A service that is restarted uses --clear-stale, which does not unmount a live mount.
	clear := append(s.mountWords("1GiB"), "--clear-stale")
	s.wantRefusal(clear, exit.MountPoint, "is already a Milkweed mount")
	s.killDaemon()
	s.milkweed(clear...)
	s.epoch(1)
	s.umount()
	s.wantNothing()
}

// A second daemon for the same tiers fails and names the first, which is not affected.
func TestSecondDaemon(t *testing.T) {
	s := newSite(t)
	s.write("f", 1000)
	s.mount("1GiB")
	other := filepath.Join(s.dir, "other")
	s.check(os.Mkdir(other, 0o755))
	words := s.mountWords("1GiB")
	words[len(words)-1] = other
	s.wantRefusal(words, exit.Tier, fmt.Sprintf("in use by process %d on ", s.status().PID), "mounted at "+s.point, "unmount the other")
	s.epoch(1)
	s.umount()
	words[len(words)-1] = other
	s.milkweed(words...) // the tiers are free now
	s.milkweed("umount", other)
	s.wantNothing()
}
