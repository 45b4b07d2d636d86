package release_test

import (
	"os"
	"strings"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// wheel verifies that pip finds the wheels for Linux with either C library. An ordinary user installs that of this
// machine in an environment, runs the program, and reads by a mount of the module, also if the environment is not
// active. Nothing is left afterwards.
func (r release) wheel() {
	drivertest.Need(r.T, "root", "/dev/fuse", "fusermount3", "unshare", "setpriv", "python3-venv", "python3-ensurepip", "python3-pip")
	for _, platform := range []string{"manylinux2014_", "manylinux_2_17_", "musllinux_1_1_"} {
		for _, arch := range []string{"x86_64", "aarch64"} {
			sh(r.T, `/usr/bin/python3 -m pip --isolated --disable-pip-version-check download --quiet --no-index --no-deps \
				--find-links "$1" --only-binary=:all: --python-version 3.8 --platform "$2" --dest "$3" milkweed
				/usr/bin/python3 -m zipfile --list "$3"/*"$4".whl | grep '^milkweed\.py '`, r.folder, platform+arch, r.TempDir(), arch)
		}
	}
	home, err := os.MkdirTemp("", "milkweed-wheel-")
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if err := os.RemoveAll(home); err != nil {
			r.Error(err)
		}
	})
	const user = `
		cd "$1"
		mkdir -m 700 source run
		head -c 1000000 /dev/urandom >source/f
		/usr/bin/python3 -m venv env
		env/bin/pip --isolated --disable-pip-version-check install --quiet --no-index ./*.whl
		env/bin/milkweed --version
		env/bin/python -W error -c '
import milkweed
with milkweed.mount("source", tiers="ssd:" + milkweed.os.getcwd() + "/tier:64MiB", clock_skew="0s") as path:
    with open(path + "/f", "rb") as copy, open("source/f", "rb") as source:
        assert copy.read() == source.read()
    assert milkweed.status(path)["milkweed"] == "0.1.0"
'
		! grep "$1" /proc/self/mountinfo
		env/bin/pip --isolated --disable-pip-version-check uninstall --quiet --yes milkweed
		[ -z "$(find env -path "*milkweed*" ! -type d)" ]`
	out := sh(r.T, `cp "$1"/*x86_64.whl "$2" && chown -R 65534:65534 "$2"
		unshare --mount --propagation private bash -euc '
			mount -t tmpfs none /mnt && mknod -m 666 /mnt/fuse c 10 229 && mount --bind /mnt/fuse /dev/fuse
			exec setpriv --reuid=65534 --regid=65534 --clear-groups env -i PATH=/usr/bin:/bin HOME="$1" TMPDIR="$1" \
				MILKWEED_MOUNTS="$1/mounts" MILKWEED_RUNTIME_DIR="$1/run" bash -euc "$2" bash "$1"' bash "$2" "$3"`,
		r.folder, home, user)
	if !strings.HasPrefix(out, "milkweed 0.1.0") {
		r.Errorf("milkweed --version prints %q", out)
	}
}
