package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A user without privileges mounts and unmounts through fusermount3.
func TestUnprivileged(t *testing.T) {
	if testing.Short() {
		t.Skip("runs programs that take long")
	}
	drivertest.Need(t, "fusermount3")
	s := newSite(t)
	dataset := varied(s)
	s.inNamespace(fuseForAll)
	s.giveToNobody()

	s.mount("2MiB", "64MiB")
	s.epoch(1)
	status := s.settled()
	if got := status.Placement.PlacedBytes; got != dataset {
		t.Errorf("placed: got %d bytes, want %d", got, dataset)
	}
	if got := s.milkweed("where", s.point+"/class0/000.jpg"); !strings.Contains(got, "placed") {
		t.Errorf("where: %s", got)
	}
	s.epoch(2)
	if got, was := s.status().Source.Opens, status.Source.Opens; got != was {
		t.Errorf("source opens in the second epoch: %d, before %d", got, was)
	}
	s.umount()
	s.wantNothing()

	s.emptyTiers()
	s.mount("2MiB", "64MiB")
	if got := s.milkweed("warmup", s.point); !strings.HasPrefix(got, "200 of 200 files") {
		t.Errorf("warmup: %s", got)
	}
	s.umount()
	s.wantNothing()
}

// A user with CAP_SYS_ADMIN, as the one of the systemd unit, needs no fusermount3, has passthrough,
// and may allow other users. With CAP_DAC_READ_SEARCH it reads the files of all users.
func TestServiceUser(t *testing.T) {
	drivertest.Need(t, "setpriv")
	s := newSite(t)
	dataset := varied(s)
	s.inNamespace(fuseForAll)
	root := s.wrapper
	s.giveToNobody()
	s.sh(`chown -R 77 "$1" && find "$1" -type f -exec chmod 400 {} +`, s.source)
	const rights = "+sys_admin,+dac_read_search"
	service := append(s.wrapper[:len(s.wrapper)-1], "--inh-caps="+rights, "--ambient-caps="+rights, "--no-new-privs", "--")
	s.wrapper = service
	if got := s.milkweed("check", s.source, s.point); !strings.Contains(got, "not needed with CAP_SYS_ADMIN") {
		t.Errorf("check:\n%s", got)
	}
	s.mountWith("allow_other,mode=passthrough", "64MiB")
	warmed := s.milkweed("warmup", s.point)
	status := s.settled()
	if status.Placement.PlacedBytes != dataset || status.Mode != "passthrough" {
		t.Errorf("placed: %d bytes of %d, mode %s\n%s", status.Placement.PlacedBytes, dataset, status.Mode, warmed)
	}
	s.wrapper = root
	for user, want := range map[string]exit.Code{"77": exit.OK, "78": 1} {
		if r := s.run("setpriv", "--reuid="+user, "--", "cat", s.point+"/class0/000.jpg"); r.code != want {
			t.Errorf("cat as user %s: exit code %d\n%s", user, r.code, r.stderr)
		}
	}
	s.wrapper = service
	s.umount()
	s.wantNothing()
}

// A user cannot use the daemon of another user, unless the mount has allow_other and the user may read its root: then
// status, where and plan can be used.
func TestOtherUser(t *testing.T) {
	s := newSite(t)
	s.write("f", 1000)
	root := s.wrapper
	commands := [][]string{
		{"status", s.point}, {"where", s.point + "/f"}, {"plan", "--show", s.point}, {"warmup", s.point}, {"refresh", s.point},
		{"evict", s.point}, {"scrub", s.point}, {"trace", s.point}, {"config", "show", s.point}, {"config", "reload", s.point},
		{"exchange", "--show", s.point}, {"doctor", s.point}, {"peers", s.point},
	}
	for _, c := range []struct {
		options, mode string
		permitted     int // how many of the commands
	}{{"clock_skew=0s", "755", 0}, {"allow_other", "711", 0}, {"allow_other", "755", 3}} {
		s.sh(`chmod "$2" "$1"`, s.source, c.mode)
		s.mountWith(c.options, "64MiB")
		s.asNobody()
		for i, words := range commands {
			code, message := exit.NotMounted, "was mounted by another user (0)"
			if i < c.permitted {
				code, message = exit.OK, ""
			}
			if r := s.try(words...); r.code != code || !strings.Contains(r.stderr, message) {
				t.Errorf("%v: %q: exit code %d\n%s", c, words, r.code, r.stderr)
			}
		}
		s.wrapper = root
		s.umount()
	}
	s.wantNothing()
}

// asUser runs words as a user with groups, the first of which is the effective one.
func (s *site) asUser(uid, groups string, words ...string) result {
	s.t.Helper()
	group, _, _ := strings.Cut(groups, ",")
	return s.run(append([]string{"setpriv", "--reuid=" + uid, "--regid=" + group, "--groups=" + groups, "--"}, words...)...)
}

// Guests of a daemon that does not see their processes are known nevertheless: one in a PID namespace whose /proc is
// that of another one.
func TestGuestsWithoutProc(t *testing.T) {
	drivertest.Need(t, "unshare", "setpriv")
	s := newSite(t)
	s.write("f", 1000)
	s.inNamespace(`mount --bind "$2" "$2" && mount --make-shared "$2"`, s.dir) // so that the mount is seen in it
	namespace := s.wrapper
	for _, own := range []string{"", "--mount-proc"} { // as in a container
		s.wrapper = slices.Concat(namespace, []string{"unshare", "--mount", "--propagation", "unchanged", "--pid", "--fork"}, strings.Fields(own+" --"))
		d := &foreground{site: s, ended: make(chan error, 1)}
		d.cmd = s.command(append(s.words(s.mountWords("1MiB")), "--foreground", "--options", "allow_other")...)
		s.wrapper = namespace
		d.start()
		s.eventually("the mount is ready", func() bool { return s.try("status", s.point).code == exit.OK })
		for words, want := range map[string]string{"status": s.point, "where " + s.point + "/f": "f"} {
			if r := s.asUser("77", "77", append([]string{s.program}, strings.Fields(words)...)...); r.code != exit.OK || !strings.Contains(r.stdout, want) {
				t.Errorf("%q, %s: exit code %d\n%s%s", own, words, r.code, r.stdout, r.stderr)
			}
		}
		s.must("umount", s.point)
		d.wait()
	}
}

// For a guest, where permits what the kernel permits, and says no more of other names. Status names no file.
func TestGuestSees(t *testing.T) {
	drivertest.Need(t, "setfacl", "setpriv")
	s := newSite(t)
	names := []string{"plain", "not-for-77", "not-for-group-88", "for-77", "for-group-88", "of-78", "folder/f", "private/f", "list-only/f"}
	for _, name := range names {
		s.write(name, 1000)
	}
	s.sh(`cd "$1" && setfacl -m u:77:--- not-for-77 && setfacl -m g:88:--- not-for-group-88 && chmod 600 for-77 for-group-88 &&
		setfacl -m u:77:r for-77 && setfacl -m g:88:r,m::r for-group-88 && setfacl -m u:77:--- folder && chmod 400 of-78 && chown 78:99 of-78 &&
		chmod 711 private && chmod 744 list-only && chown 78 private/f && chmod 600 private/f`, s.source)
	s.mountWith("allow_other", "64MiB")
	names = append(names, "missing", "private/missing", "list-only/missing", "folder/missing")
	const compare = `program=$1 point=$2 && shift 2
		for name in "$@"; do
			read=$(LC_ALL=C cat "$point/$name" 2>&1 >/dev/null) && read=permitted
			where=$("$program" where "$point/$name" 2>&1 >/dev/null) && where=permitted
			case "$read $where" in
			"permitted permitted"|*"No such file"*"not exist"*|*"Permission denied"*"permission denied"*) ;;
			*) echo "$name: the kernel says $read, and where says $where" ;;
			esac
		done`
	for _, user := range [][]string{{"77", "77"}, {"77", "77,88"}, {"78", "78"}, {"78", "78,88"}, {"78", "99"}, {"79", "79,88,99"}, {nobody, nobody}} {
		if r := s.asUser(user[0], user[1], append([]string{"sh", "-c", compare, "sh", s.program, s.point}, names...)...); r.stdout != "" || r.code != exit.OK {
			t.Errorf("user %s, groups %s: %s%s", user[0], user[1], r.stdout, r.stderr)
		}
	}

	for words, want := range map[string]string{"status": s.point, "status --json " + s.point: s.point, "top --lines --count 1 " + s.point: "PLACED"} {
		if r := s.asUser("77", "77", append([]string{s.program}, strings.Fields(words)...)...); r.code != exit.OK || !strings.Contains(r.stdout, want) {
			t.Errorf("%s: exit code %d\n%s%s", words, r.code, r.stdout, r.stderr)
		}
	}
	s.milkweed("warmup", s.point)
	s.flip(1) // the status of root names the files
	if r := s.try("scrub", s.point); r.code == exit.OK {
		t.Errorf("the damage is not found: %s", r.stdout)
	}
	if got := s.milkweed("status", "--json", s.point); !strings.Contains(got, `"list-only/f"`) {
		t.Errorf("root does not see the name of a corrupt copy: %s", got)
	}
	if r := s.asUser("78", "78", s.program, "status", "--json", s.point); r.code != exit.OK || strings.Contains(r.stdout, `/f"`) {
		t.Errorf("a guest: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	s.umount()
	s.wantNothing()
}

// A guest hands over a plan, which follows the opens of this user only. Files that the guest may not read are neither
// looked up nor copied. Other guests do not see the plan, and it ends with the last process of the user.
func TestGuestPlans(t *testing.T) {
	for _, mode := range []string{"cached", "stateless"} {
		t.Run(mode, func(t *testing.T) {
			drivertest.Need(t, "setpriv")
			s := newSite(t)
			var list []string
			for i := range 20 {
				name := fmt.Sprintf("%02d", i)
				s.write(name, 1000)
				s.write("private/"+name, 1000)
				list = append(list, s.point+"/"+name, s.point+"/private/"+name)
			}
			s.sh(`chown -R 4000078 "$1/private" && chmod 700 "$1/private"`, s.source)
			order := s.dir + "/order"
			s.check(os.WriteFile(order, []byte(strings.Join(list, "\n")), 0o644))
			s.mountWith("allow_other,mode="+mode, "64MiB")

			const guest, other = "4000077", "4000078" // no other processes of the machine have them
			job := s.command("setpriv", "--reuid="+guest, "--regid="+guest, "--clear-groups", "--", "sh", "-c",
				`"$1" plan --stream rank0 "$2" "$3" && "$1" plan --show "$2" && echo end && read x && cat "$2/00" "$2/01" >/dev/null && echo end && exec cat`,
				"sh", s.program, s.point, order)
			job.Stderr = t.Output()
			stdin, err := job.StdinPipe()
			s.check(err)
			stdout, err := job.StdoutPipe()
			s.check(err)
			s.check(job.Start())
			lines := bufio.NewScanner(stdout)
			untilEnd := func() (shown string) {
				for lines.Scan() && lines.Text() != "end" {
					shown += lines.Text() + "\n"
				}
				return shown
			}
			shown := untilEnd()
			if !strings.Contains(shown, "40 entries in 1 stream,") || !strings.Contains(shown, "\nrank0 ") {
				t.Errorf("the guest: %s", shown)
			}
			s.eventually("the plan is carried out", func() bool { return s.settled().Placement.Placed == 20 })
			for i := range 20 {
				for dir, want := range map[string]string{"": "placed", "private/": "source"} {
					if got := s.milkweed("where", fmt.Sprintf("%s/%s%02d", s.point, dir, i)); !strings.Contains(got, " "+want+" ") {
						t.Errorf("where: %s, want %s", got, want)
					}
				}
			}
			if r := s.asUser(other, other, "cat", s.point+"/05", s.point+"/private/05"); r.code != exit.OK || s.status().Plan.Opens != 0 {
				t.Errorf("the plan sees the opens of another user: %s", r.stderr)
			}
			_, err = stdin.Write([]byte("\n"))
			s.check(err)
			untilEnd()
			if got := s.milkweed("plan", "--show", s.point); !strings.Contains(got, "rank0 (user "+guest+")") || !strings.Contains(got, "2 of 3\n") {
				t.Errorf("root: %s", got)
			}
			if r := s.asUser(other, other, s.program, "plan", "--show", s.point); r.code != exit.OK || !strings.Contains(r.stdout, "no plan") {
				t.Errorf("another guest: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
			}
			if r := s.asUser(other, other, s.program, "status", "--json", s.point); r.code != exit.OK || !strings.Contains(r.stdout, `"stream_count":0`) {
				t.Errorf("the status of another guest: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
			}
			if r := s.asUser(other, other, s.program, "plan", "--clear", s.point); r.code != exit.OK || s.status().Plan.StreamCount != 1 {
				t.Errorf("another guest has cleared the plan, or not its own: exit code %d\n%s", r.code, r.stderr)
			}
			s.check(stdin.Close())
			s.check(job.Wait())
			s.eventually("the plan has ended", func() bool { return s.status().Plan.StreamCount == 0 })
			if got := s.status().Plan; got.Opens != 2 || got.Correct != 2 {
				t.Errorf("after the end of the plan: %+v", got)
			}
			s.umount()
			s.wantNothing()
		})
	}
}

// A guest may take longer for a list than a connection is permitted after the kernel was asked.
func TestGuestPlansLate(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a minute")
	}
	drivertest.Need(t, "setpriv")
	s := newSite(t)
	s.write("f", 1000)
	s.mountWith("allow_other", "64MiB")
	r := s.asUser("77", "77", "sh", "-c", `{ sleep 65; echo f; } | "$1" plan "$2" -`, "sh", s.program, s.point)
	if r.code != exit.OK || !strings.Contains(r.stdout, "1 file planned") {
		t.Errorf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	s.umount()
	s.wantNothing()
}

// The Python module hands over the order of a guest.
func TestGuestPlansWithPython(t *testing.T) {
	drivertest.Need(t, "setpriv")
	s := newSite(t)
	for i := range 100 {
		s.write(fmt.Sprintf("%02d", i), 1000)
	}
	s.sh(`install -m 644 "$2" "$1/milkweed.py"`, s.dir, "../../examples/pytorch/milkweed.py")
	s.mountWith("allow_other", "64MiB")
	const job = `
import json, os, sys, time, warnings
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import milkweed
warnings.simplefilter("error")
paths = sorted(entry.path for entry in os.scandir(sys.argv[1]))
control = milkweed._Control(sys.argv[1], "", 0)
for index in milkweed.planned(range(99, -1, -1), paths, sys.argv[1], lead=8):
    while index == 99 and json.loads(control.request("GET", 60))["entries"] < 100:
        time.sleep(0.01)    # the order is handed over in the background
    with open(paths[index], "rb") as file:
        assert len(file.read()) == 1000
`
	if r := s.asUser("77", "77", python, "-c", job, s.point); r.code != exit.OK {
		t.Fatalf("exit code %d\n%s", r.code, r.stderr)
	}
	if got := s.status().Plan; got.Opens != 100 || got.Correct != 100 || got.Missing+got.Rejected != 0 {
		t.Errorf("got %+v", got)
	}
	s.umount()
	s.wantNothing()
}

// A mount without a configuration works if another user has taken the folder in /dev/shm. It says
// which folder it uses, and the next mount finds the copies in it.
func TestTakenFolder(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole epochs")
	}
	s := newSite(t)
	dataset := varied(s)
	s.inNamespace(`mount -t tmpfs none /dev/shm && mkdir -m 700 /dev/shm/milkweed-0 && chown 77 /dev/shm/milkweed-0`)
	for epoch := range 2 {
		r := s.try("mount", s.source, s.point)
		if want := "/dev/shm/milkweed-0-1 is used, because another user took /dev/shm/milkweed-0"; r.code != exit.OK || !strings.Contains(r.stderr, want) {
			t.Fatalf("exit code %d\n%s", r.code, r.stderr)
		}
		s.epoch(epoch)
		if status := s.settled(); status.Tiers[0].UsedBytes < dataset || epoch == 1 && status.Source.Bytes != 0 {
			t.Errorf("epoch %d: %d bytes placed, %d read from the source", epoch, status.Tiers[0].UsedBytes, status.Source.Bytes)
		}
		s.umount()
	}
	s.wantNothing()
}

// If the source denies root access, as NFS does with root_squash, allow_other is refused unless it is
// forced. Here root lacks the capabilities that override permission bits.
func TestRootSquash(t *testing.T) {
	drivertest.Need(t, "setpriv")
	s := newSite(t)
	s.write("f", 10)
	s.sh(`chmod 600 "$1" && chown 77 "$1"`, s.source+"/f")
	s.wrapper = append(s.wrapper, "setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search", "--")
	r := s.try(append(s.mountWords("64MiB"), "--allow-other")...)
	if r.code != exit.Fuse || !strings.Contains(r.stderr, "allow_other is refused: the source denies root to read "+s.source+"/f") {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
	s.mountWith("allow_other,force_allow_other", "64MiB")
	s.umount()
	s.wantNothing()
}

// With allow_other, POSIX ACLs decide as they do at the source, in every mode, for files that are
// placed and for others. The source is asked for the ACL of each file once.
func TestACLs(t *testing.T) {
	parallel(t)
	drivertest.Need(t, "setfacl", "setpriv")
	for _, mode := range []string{"passthrough", "stateless", "cached"} {
		t.Run(mode, func(t *testing.T) {
			s := newSite(t)
			files := []string{"plain", "not-for-77", "not-for-group-88", "for-77", "folder/f"}
			for _, name := range files {
				s.write(name, 1000)
			}
			s.sh(`cd "$1" && setfacl -m u:77:--- not-for-77 && setfacl -m g:88:--- not-for-group-88 &&
				chmod 600 for-77 && chgrp 99 for-77 && setfacl -m u:77:r for-77 && setfacl -m u:77:--- folder`, s.source)
			users := []string{"77:77", "78:78", "78:88", "78:99"}
			mayRead := func(dir, name, user string) bool {
				uid, gid, _ := strings.Cut(user, ":")
				return s.run("setpriv", "--reuid="+uid, "--regid="+gid, "--clear-groups", "--", "cat", dir+"/"+name).code == exit.OK
			}
			compare := func(when string) {
				t.Helper()
				for _, name := range files {
					for _, user := range users {
						if got, want := mayRead(s.point, name, user), mayRead(s.source, name, user); got != want {
							t.Errorf("%s, %s, user and group %s: may read: %v at the mount, %v at the source", when, name, user, got, want)
						}
					}
				}
			}
			s.mountWith("allow_other,clock_skew=0s,mode="+mode, "64MiB")
			compare("at first")
			s.settled()
			was := s.status().Source.ACLs
			if most := int64(1 + 1 + 1 + len(files)); was == 0 || was > most { // of the root, which is also examined at mount, and of a folder
				t.Errorf("ACLs read at the source: %d, want at most %d", was, most)
			}
			compare("when placed")
			if got := s.status().Source.ACLs; got != was {
				t.Errorf("ACLs read at the source the second time: %d", got-was)
			}
			s.sh(`cd "$1" && setfacl -m u:78:--- plain && setfacl -b not-for-77`, s.source)
			s.milkweed("refresh", s.point)
			compare("after a change")
			s.umount()
			s.wantNothing()
		})
	}
}

// Mount(8) and fstab mount through /sbin/mount.milkweed.
func TestMountHelper(t *testing.T) {
	if testing.Short() {
		t.Skip("runs programs that take long")
	}
	drivertest.Need(t, "mount", "umount")
	s := newSite(t)
	dataset := varied(s)
	s.inNamespace(`mount -t tmpfs none /sbin/ && ln -s "$2" /sbin/mount.milkweed`, s.program)
	file := s.config(1, "[source]\nclock_skew = '0s'")[2]
	fstab := filepath.Join(s.dir, "fstab")
	options := "config=" + file + ",workers=3,noatime,_netdev,x-systemd.automount,noexec"
	s.sh(`echo "$2 $3 milkweed $4 0 0" >"$1"`, fstab, s.source, s.point, options)

	for _, words := range [][]string{
		{"mount", "-t", "milkweed", "-o", options, s.source, s.point},
		{"mount", "-t", "milkweed", "-o", "ro,config=" + file, "none", s.point},
		{"mount", "--fstab", fstab, s.point},
		{"/sbin/mount.milkweed", s.source, s.point, "-o", "rw," + options},
	} {
		s.must(words...)
		s.epoch(1)
		if got := s.settled().Tiers[0]; got.Name != "ram" || got.Files != 200 || got.UsedBytes < dataset {
			t.Errorf("%q: tier 1: %+v", words, got)
		}
		s.must("umount", s.point) // umount(8), which does not wait for the daemon
		s.eventually("the daemon has ended", func() bool { return len(s.processes()) == 0 })
		s.wantNothing()
	}

	r := s.run("mount", "-t", "milkweed", "-o", "config="+file+",wrokers=3", s.source, s.point)
	if r.code == exit.OK || !strings.Contains(r.stderr, `unknown option "wrokers": did you mean "workers"?`) {
		t.Errorf("a misspelt option: exit code %d\n%s", r.code, r.stderr)
	}
}

// A second "mount -a" changes nothing, whether the line of fstab has the dataset or its configuration. One that finds
// another dataset, or a daemon that has died, fails. A mount cannot be changed by "mount -o remount".
func TestMountAll(t *testing.T) {
	drivertest.Need(t, "mount", "umount")
	for name, source := range map[string]string{"configuration": "none", "dataset": ""} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.inNamespace(`mount -t tmpfs none /sbin/ && ln -s "$2" /sbin/mount.milkweed`, s.program)
			s.write("f", 1000)
			if source == "" {
				source = s.source
			}
			file, fstab := s.config(4, `name = "ram"`)[2], filepath.Join(s.dir, "fstab")
			s.sh(`echo "$2 $3 milkweed config=$4,nofail 0 0" >"$1"`, fstab, source, s.point, file)
			all := []string{"mount", "--all", "--fstab", fstab}
			s.must(all...)
			before := s.processes()
			for range 2 {
				if r := s.run(all...); r.code != 0 || r.stdout+r.stderr != "" {
					t.Errorf("again: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
				}
			}
			if now := s.processes(); !slices.Equal(now, before) || len(now) != 1 {
				t.Errorf("processes %v, then %v", before, now)
			}
			r := s.run("mount", "--fstab", fstab, "-o", "remount,ro", s.point)
			if r.code == 0 || !strings.Contains(r.stderr, "cannot be changed by mount(8)") || !strings.Contains(r.stderr, "config reload") {
				t.Errorf("remount: exit code %d\n%s", r.code, r.stderr)
			}
			if source == "none" {
				wantFailure := func(when, want string) {
					t.Helper()
					if r := s.run(all...); r.code == 0 || !strings.Contains(r.stderr, want) {
						t.Errorf("%s: exit code %d\n%s", when, r.code, r.stderr)
					}
				}
				s.check(os.Rename(s.source, s.source+".gone")) // copies can be read
				s.must(all...)
				s.check(os.Rename(s.source+".gone", s.source))
				s.sh(`mkdir "$1"; cp "$3" "$3.old"; sed -i "s#^path = \"$2\"#path = \"$1\"#" "$3"`, s.dir+"/other", s.source, file)
				wantFailure("another dataset", "is already a Milkweed mount of "+s.source)
				s.sh(`mv "$1.old" "$1"`, file)
				s.killDaemon()
				wantFailure("a dead mount", "whose daemon has ended")
			}
			s.milkweed("umount", s.point)
			s.must(all...)
			s.umount()
			s.wantNothing()
		})
	}
}

// Without a path, status shows the mounts of the user, and does not fail because of those of others.
func TestStatusBesideOthers(t *testing.T) {
	s, dead := newSite(t), newSite(t)
	s.write("f", 1000)
	s.inNamespace(fuseForAll)
	dead.inNamespaceOf(s)
	dead.mount("64MiB")
	dead.killDaemon()
	s.giveToNobody()
	if r := s.try("status"); r.code != exit.NotMounted || !strings.Contains(r.stderr, "no Milkweed is mounted") {
		t.Errorf("without an own mount: code %d, %s", r.code, r.stderr)
	}
	s.mount("64MiB")
	if r := s.try("status"); r.code != exit.OK || !strings.Contains(r.stdout, s.point) || strings.Contains(r.stdout+r.stderr, dead.point) {
		t.Errorf("code %d, %s%s", r.code, r.stdout, r.stderr)
	}
	s.umount()
}
