package release_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A machine is a fresh Debian 12 in a container that runs systemd.
type machine struct {
	*testing.T
	root   string // its root directory
	leader string // the process ID of its systemd
}

// start makes a machine and starts it. It ends with the test.
func start(t *testing.T) *machine {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{T: t, root: filepath.Join(t.TempDir(), "debian")}
	archive := filepath.Join(cache, "milkweed-test", "debian12.tar")
	sh(t, `mkdir -p "$(dirname "$1")" "$2"
		[ -f "$1" ] || { mmdebstrap --variant=minbase --include=dbus,fuse3,systemd,systemd-sysv bookworm "$1.new.tar" && mv "$1.new.tar" "$1"; }
		tar -C "$2" --exclude=./dev/* -xf "$1"`, archive, m.root)
	ctx, cancel := context.WithCancel(t.Context())
	drivertest.Need(t, "/dev/autofs")
	nspawn := exec.CommandContext(ctx, "systemd-nspawn", "--quiet", "--directory="+m.root, "--boot", "--register=no", "--keep-unit",
		"--capability=all", "--bind=/dev/fuse", "--bind=/dev/autofs", "--private-network", "--console=pipe", fmt.Sprintf("--machine=milkweed-%d", os.Getpid()))
	nspawn.WaitDelay = 10 * time.Second
	if err := nspawn.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if m.leader != "" {
			exec.Command("kill", "-s", "RTMIN+4", m.leader).Run() // power off
			sh(t, `for i in $(seq 300); do [ -d "/proc/$1" ] || exit 0; sleep 0.1; done; echo "the machine does not power off" >&2`, m.leader)
		}
		cancel()
		nspawn.Wait()
	})
	m.leader = strings.TrimSpace(m.until("systemd has started", func() (string, error) {
		out, err := exec.Command("pgrep", "--parent", fmt.Sprint(nspawn.Process.Pid)).Output()
		return string(out), err
	}))
	return m
}

// await waits until the machine has booted. It returns the machine for the use by a subtest.
func (m *machine) await(t *testing.T) *machine {
	t.Helper()
	m = &machine{T: t, root: m.root, leader: m.leader}
	m.until("the machine has booted", func() (string, error) {
		out, err := m.command(`systemctl is-system-running | grep -E 'running|degraded'`).CombinedOutput()
		return string(out), err
	})
	return m
}

// until repeats f until it succeeds, and returns its result.
func (m *machine) until(what string, f func() (string, error)) string {
	m.Helper()
	var out string
	var err error
	for range 1200 {
		if out, err = f(); err == nil {
			return out
		}
		time.Sleep(50 * time.Millisecond)
	}
	m.Fatalf("%s: not after a minute: %v\n%s", what, err, out)
	return ""
}

// prelude begins each script. After "!", set -e would ignore a command that succeeds; so there is the
// function not.
const prelude = "trap 'echo \"failed: $BASH_COMMAND\"' ERR\nnot() { if \"$@\"; then echo \"unexpected: $*\"; return 1; fi; }\n"

// command returns a command that runs a script as root in the machine.
func (m *machine) command(script string) *exec.Cmd {
	cmd := exec.Command("nsenter", "--target", m.leader, "--all", "--", "bash", "-Eeuo", "pipefail", "-c", prelude+script)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "HOME=/root", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8"}
	return cmd
}

// do runs a script in the machine. If it fails, the test fails.
func (m *machine) do(script string) string {
	m.Helper()
	out, err := m.command(script).CombinedOutput()
	if err != nil {
		journal, _ := m.command(`journalctl -b --no-pager -n 30`).CombinedOutput()
		m.Fatalf("%s\n%v\n%s\nThe journal:\n%s", script, err, out, journal)
	}
	return string(out)
}

// refuse runs a script that has to fail with a message.
func (m *machine) refuse(script, message string) {
	m.Helper()
	out, err := m.command(script).CombinedOutput()
	if err == nil || !strings.Contains(string(out), message) {
		m.Errorf("%s: got %v and\n%s\nwant an error with %q", script, err, out, message)
	}
}

// eventually runs a script until it succeeds.
func (m *machine) eventually(script string) {
	m.Helper()
	m.until(script, func() (string, error) {
		out, err := m.command(script).CombinedOutput()
		return string(out), err
	})
}

// installRPM installs and removes the RPM package. Debian's rpm does it, since there is no machine
// of Red Hat.
func (m *machine) installRPM(first string) {
	sh(m.T, `cp "$1"/*.x86_64.rpm "$2/root/"
		rpm --root "$2" --dbpath /var/lib/rpm --nodeps -i "$2/root/milkweed-0.1.0-1.x86_64.rpm"
		chroot "$2" milkweed --version | grep -F 0.1.0
		grep '^milkweed:' "$2/etc/passwd"
		rpm --root "$2" --dbpath /var/lib/rpm -e milkweed
		[ ! -e "$2/usr/bin/milkweed" ]
		[ ! -e "$2/usr/lib/systemd/system/milkweed@.service" ]`, first, m.root)
}

// installDebian installs the package, mounts by the unit and by fstab, upgrades, and removes.
func (m *machine) installDebian(first, second string) {
	sh(m.T, `cp "$1"/*_amd64.deb "$2"/*_amd64.deb "$3/root/"`, first, second, m.root)
	m.do(`cd /root
		apt-get install --yes --no-install-recommends ./milkweed_0.1.0_amd64.deb
		milkweed --version | grep -F 0.1.0
		[ "$(stat -c %U:%a /run/milkweed-service)" = milkweed:711 ]
		[ "$(stat -c %U:%a /etc/milkweed)" = root:755 ]
		systemd-analyze --man=no verify /usr/lib/systemd/system/milkweed@.service`)

	// A dataset with a file that only its owner may read.
	m.do(`mkdir -p /srv/data/class{0,1} /mnt/data /mnt/tab
		for i in $(seq 20); do head -c $((i * 10000)) /dev/urandom >/srv/data/class$((i % 2))/$i; done
		echo secret >/srv/data/secret
		chmod 600 /srv/data/secret
		chown games /srv/data/secret
		find /srv -exec touch -d '1 hour ago' {} +
		printf '%s\n' '[source]' 'path = "/srv/data"' '[mount]' 'point = "/mnt/data"' 'mode = "passthrough"' \
			'[[tier]]' 'name = "ram"' 'path = "/dev/shm/milkweed-data"' 'quota = "64MiB"' \
			'[[tier]]' 'name = "disk"' 'path = "/var/cache/milkweed/data"' 'quota = "64MiB"' >/etc/milkweed/data.toml
		systemctl enable --now milkweed@data`)
	m.do(`pid=$(systemctl show --property MainPID --value milkweed@data)
		[ "$(stat -c %U "/proc/$pid")" = milkweed ]
		# CAP_DAC_READ_SEARCH and CAP_SYS_ADMIN
		grep -x milkweed "/proc/$pid/comm"
		grep -E 'CapEff:\s*0000000000200004' "/proc/$pid/status"
		journalctl --unit milkweed@data | grep 'msg=mounted'
		milkweed warmup /mnt/data
		setpriv --reuid=nobody --clear-groups diff -r --exclude=secret /srv/data /mnt/data
		not setpriv --reuid=nobody --clear-groups cat /mnt/data/secret
		[ "$(setpriv --reuid=games --clear-groups cat /mnt/data/secret)" = secret ]
		milkweed status /mnt/data | grep -F 'mode passthrough'
		sed -i '1i [log]\nlevel = "debug"' /etc/milkweed/data.toml
		systemctl reload milkweed@data`)
	m.eventually(`journalctl --unit milkweed@data | grep 'configuration reloaded' && milkweed status /mnt/data`)
	// The reload of a configuration with a typo, or with a change that needs a new mount, fails.
	m.do(`cp /etc/milkweed/data.toml /root/good
		echo 'lvel = "info"' >>/etc/milkweed/data.toml
		not systemctl reload milkweed@data
		journalctl --unit milkweed@data | grep lvel
		sed 's/"passthrough"/"cached"/' /root/good >/etc/milkweed/data.toml
		not systemctl reload milkweed@data
		cp /root/good /etc/milkweed/data.toml
		systemctl reload milkweed@data
		milkweed status /mnt/data`)
	m.do(`kill -KILL "$(systemctl show --property MainPID --value milkweed@data)"`)
	m.eventually(`milkweed status /mnt/data && cat /mnt/data/class0/2 >/dev/null`) // started again

	// Fstab, by mount(8) and by systemd's mount unit.
	m.do(`printf '%s\n' '[[tier]]' 'name = "ram"' 'path = "/dev/shm/milkweed-tab"' 'quota = "64MiB"' >/etc/milkweed/tab.toml
		echo '/srv/data /mnt/tab milkweed ro,nofail,allow_other,config=/etc/milkweed/tab.toml 0 0' >>/etc/fstab
		mount /mnt/tab
		cmp /srv/data/class0/2 /mnt/tab/class0/2
		umount /mnt/tab
		systemctl daemon-reload
		systemctl start mnt-tab.mount
		cmp /srv/data/class0/2 /mnt/tab/class0/2
		systemctl stop mnt-tab.mount
		not mountpoint -q /mnt/tab
		systemctl start mnt-tab.mount`)
	m.automount()
	// An upgrade leaves mounts alone.
	m.do(`daemon=$(systemctl show --property MainPID --value milkweed@data)
		exec 3</mnt/data/class1/3
		cd /root
		apt-get install --yes --no-install-recommends ./milkweed_0.2.0_amd64.deb
		milkweed --version | grep -F 0.2.0
		[ "$(systemctl show --property MainPID --value milkweed@data)" = "$daemon" ]
		cmp /srv/data/class1/3 - <&3
		cmp /srv/data/class1/5 /mnt/data/class1/5
		cmp /srv/data/class1/5 /mnt/tab/class1/5
		milkweed status /mnt/data
		exec 3<&-
		systemctl restart milkweed@data
		milkweed status /mnt/data | grep -F 'milkweed 0.2.0'`)

	// While a job uses a mount, the package stays. Then no mount and no process is left.
	m.do(`systemd-run --quiet --unit=job --property=StandardOutput=null tail -f /mnt/data/class1/3`)
	m.eventually(`ls -l /proc/"$(systemctl show --property MainPID --value job)"/fd | grep /mnt/data`)
	m.refuse(`apt-get remove --yes milkweed`, "/mnt/data is in use by tail")
	m.do(`milkweed --version
		cmp /srv/data/class1/5 /mnt/data/class1/5
		cmp /srv/data/class1/5 /mnt/tab/class1/5 # which nobody uses
		systemctl stop job
		apt-get remove --yes milkweed
		not grep fuse.milkweed /proc/self/mountinfo
		not grep -lx milkweed /proc/[0-9]*/comm
		[ ! -e /usr/bin/milkweed ]
		[ -z "$(systemctl list-units --no-legend --state=active,activating,failed 'milkweed@*')" ]
		[ -e /etc/milkweed/data.toml ]
		[ -d /var/log/milkweed ]
		apt-get purge --yes milkweed
		[ ! -e /var/log/milkweed ]
		[ ! -e /var/cache/milkweed ]
		[ ! -e /run/milkweed-service ]
		[ -e /etc/milkweed/data.toml ]
		diff <(ls /dev/shm) <(printf '%s\n' milkweed-data milkweed-tab)`)
}

// automount mounts by x-systemd.automount: at the first access, by the mount unit and by mount(8). The
// source, a bind mount, is mounted in the same way.
func (m *machine) automount() {
	m.do(`printf '%s\n' '[[tier]]' 'name = "ram"' 'path = "/dev/shm/milkweed-auto"' 'quota = "64MiB"' >/etc/milkweed/auto.toml
		cp /etc/fstab /root/fstab
		echo '/srv/data /mnt/shared none bind,noauto,x-systemd.automount 0 0' >>/etc/fstab
		echo '/mnt/shared /mnt/auto milkweed ro,noauto,x-systemd.automount,x-systemd.idle-timeout=1s,allow_other,config=/etc/milkweed/auto.toml 0 0' >>/etc/fstab
		systemctl daemon-reload
		systemctl start mnt-shared.automount mnt-auto.automount
		not grep ' /mnt/auto .* fuse.milkweed' /proc/self/mountinfo
		cmp /srv/data/class0/2 /mnt/auto/class0/2
		milkweed status /mnt/auto`)
	m.eventually(`not grep ' /mnt/auto .* fuse.milkweed' /proc/self/mountinfo`) // after the idle time
	m.do(`setpriv --reuid=nobody --clear-groups cmp /srv/data/class0/2 /mnt/auto/class0/2
		cp /root/fstab /etc/fstab
		echo '/mnt/shared /mnt/auto milkweed ro,noauto,x-systemd.automount,allow_other,config=/etc/milkweed/auto.toml 0 0' >>/etc/fstab
		systemctl stop mnt-auto.automount
		systemctl daemon-reload
		for mount in 'systemctl start mnt-auto.mount' 'mount /mnt/auto'; do
			systemctl start mnt-auto.automount
			not grep ' /mnt/auto .* fuse.milkweed' /proc/self/mountinfo
			$mount
			grep ' /mnt/auto .* fuse.milkweed' /proc/self/mountinfo
			cmp /srv/data/class0/2 /mnt/auto/class0/2
			systemctl stop mnt-auto.automount
			not grep ' /mnt/auto ' /proc/self/mountinfo
		done
		cp /root/fstab /etc/fstab
		systemctl daemon-reload
		rm -r /dev/shm/milkweed-auto`)
}
