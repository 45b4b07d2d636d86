package release_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/lab"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := lab.RemovePrograms(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// machines are those of the programs, by the architecture in the name of a wheel.
var machines = map[string]elf.Machine{"x86_64": elf.EM_X86_64, "aarch64": elf.EM_AARCH64}

// wheelName returns the name of a wheel of version 0.1.0.
func wheelName(arch string) string {
	return "milkweed-0.1.0-py3-none-manylinux_2_17_" + arch + ".manylinux2014_" + arch + ".musllinux_1_1_" + arch + ".whl"
}

// wheels verifies the wheels: their list of files is right, the program is for the right machine, and pip
// finds them for Linux with either C library.
func (r release) wheels() {
	for arch, machine := range machines {
		files := readWheel(r.T, filepath.Join(r.folder, wheelName(arch)))
		program, err := elf.NewFile(bytes.NewReader(files["milkweed-0.1.0.data/scripts/milkweed"]))
		if err != nil || program.Machine != machine {
			r.Errorf("%s: the program: %v", arch, err)
		}
		for name, part := range map[string]string{
			"milkweed-0.1.0.dist-info/licenses/LICENSE":              "ISC",
			"milkweed-0.1.0.dist-info/licenses/third-party-licenses": "github.com/hanwen/go-fuse/v2",
			"milkweed-0.1.0.dist-info/METADATA":                      "\nVersion: 0.1.0\n",
			"milkweed/__init__.py":                                   "\ndef mount(",
		} {
			if !strings.Contains(string(files[name]), part) {
				r.Errorf("%s: %s lacks %q", arch, name, part)
			}
		}
		if _, ok := files["milkweed/py.typed"]; !ok {
			r.Errorf("%s: the module is not typed", arch)
		}
		for _, platform := range []string{"manylinux2014_", "manylinux_2_17_", "musllinux_1_1_"} {
			sh(r.T, `/usr/bin/python3 -m pip --isolated --disable-pip-version-check download --quiet --no-index --no-deps --find-links "$1" --only-binary=:all: \
				--python-version 3.8 --platform "$2" --dest "$3" milkweed && ls "$3"/*"$4".whl`, r.folder, platform+arch, r.TempDir(), arch)
		}
	}
}

// readWheel returns the files of a wheel. It compares them with the list RECORD.
func readWheel(t *testing.T, path string) map[string][]byte {
	t.Helper()
	wheel, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer wheel.Close()
	files := make(map[string][]byte)
	var want strings.Builder
	record := ""
	for _, f := range wheel.File {
		content, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(content)
		if err != nil {
			t.Fatal(err)
		}
		files[f.Name] = data
		mode := os.FileMode(0o644)
		if strings.HasSuffix(f.Name, "/scripts/milkweed") {
			mode = 0o755
		}
		if f.Mode() != mode {
			t.Errorf("%s: mode %v, want %v", f.Name, f.Mode(), mode)
		}
		if strings.HasSuffix(f.Name, "/RECORD") {
			record = string(data)
			fmt.Fprintf(&want, "%s,,\n", f.Name)
			continue
		}
		sum := sha256.Sum256(data)
		fmt.Fprintf(&want, "%s,sha256=%s,%d\n", f.Name, base64.RawURLEncoding.EncodeToString(sum[:]), len(data))
	}
	if record != want.String() {
		t.Errorf("RECORD: got\n%swant\n%s", record, want.String())
	}
	return files
}

// buildWheel builds a wheel of the program of this machine, in a folder that all users can read.
func buildWheel(t *testing.T) (folder, wheel string) {
	t.Helper()
	var err error
	if folder, err = os.MkdirTemp("", "milkweed-wheel-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	wheel, err = lab.Wheel(folder)
	if err != nil {
		t.Fatal(err)
	}
	return folder, wheel
}

// An ordinary user installs the wheel in a fresh environment, without an index, runs the command, and
// trains over a mount of the module. Nothing is left afterwards.
func TestWheel(t *testing.T) {
	drivertest.Need(t, "root", "/dev/fuse", "fusermount3", "unshare", "setpriv", "python3-venv", "python3-ensurepip")
	folder, wheel := buildWheel(t)
	readWheel(t, wheel)
	const user = `
		export HOME=$1 TMPDIR=$1 MILKWEED_MOUNTS=$1/mounts MILKWEED_RUNTIME_DIR=$1/run PATH=/usr/bin:/bin
		mkdir -m 700 "$1/source" "$1/run" && head -c 1000000 /dev/urandom >"$1/source/f"
		cd "$1"
		/usr/bin/python3 -m venv env
		env/bin/pip --isolated --disable-pip-version-check install --quiet --no-index ./*.whl
		env/bin/milkweed --version
		. env/bin/activate
		python -m py_compile env/share/doc/milkweed/examples/{pytorch,tensorflow}/train.py
		rm -r env/share/doc/milkweed/examples/*/__pycache__
		[ "$(command -v milkweed)" = "$1/env/bin/milkweed" ]
		env -C / "$1/env/bin/python" -W error -c '
import sys, milkweed
with milkweed.mount(sys.argv[1] + "/source", tiers=["ssd:" + sys.argv[1] + "/tier:64MiB"], clock_skew="0s") as path:
    with open(path + "/f", "rb") as copy, open(sys.argv[1] + "/source/f", "rb") as source:
        assert copy.read() == source.read()
    assert milkweed.status(path)["ready"]
    assert milkweed.plan(["f"], path, indices=[0])
' "$1"
		! grep "$1" /proc/self/mountinfo
		pip --isolated --disable-pip-version-check uninstall --quiet --yes milkweed
		[ -z "$(find env -path "*milkweed*" ! -type d)" ] # pip leaves empty folders`
	out := sh(t, `chown -R 65534:65534 "$1"
		unshare --mount --propagation private bash -euc '
			mount -t tmpfs none /mnt && mknod -m 666 /mnt/fuse c 10 229 && mount --bind /mnt/fuse /dev/fuse
			exec setpriv --reuid=65534 --regid=65534 --clear-groups env -i bash -euc "$2" bash "$1"' bash "$1" "$2"`, folder, user)
	if !strings.HasPrefix(out, "milkweed ") {
		t.Errorf("milkweed --version: %s", out)
	}
}
