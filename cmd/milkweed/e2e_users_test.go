package main

import (
	"path/filepath"
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

// A user cannot use the daemon of another user.
func TestOtherUser(t *testing.T) {
	s := newSite(t)
	s.write("f", 1000)
	s.mount("1GiB")
	s.asNobody()
	r := s.try("status", s.point)
	if r.code != exit.NotMounted || !strings.Contains(r.stderr, "was mounted by another user (0)") {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
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
