// Package release_test tests the artefacts of make release.
package release_test

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A release is the folder of the artefacts of one version.
type release struct {
	*testing.T
	folder string
}

func TestRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("builds two releases and boots a Debian")
	}
	drivertest.Need(t, "root")
	m := start(t) // it boots during the first build
	repository := checkout(t)
	first := build(t, repository, "0.1.0")
	t.Run("Names", func(t *testing.T) { release{t, first}.names() })
	t.Run("Reproducible", func(t *testing.T) {
		t.Parallel()
		// The compiler does not run again, because it has the results in its cache: that `go build
		// -trimpath` is reproducible is a promise of Go.
		other := filepath.Join(t.TempDir(), "another folder")
		sh(t, `git clone -q "$1" "$2"`, repository, other)
		release{t, first}.equals(build(t, other, "0.1.0", "TZ=Asia/Tokyo", "LC_ALL=C.UTF-8"))
	})
	t.Run("Checksums", func(t *testing.T) { release{t, first}.checksums() })
	t.Run("Programs", func(t *testing.T) { release{t, first}.programs() })
	t.Run("Bill", func(t *testing.T) { release{t, first}.bills() })
	t.Run("Lintian", func(t *testing.T) {
		t.Parallel()
		release{t, first}.lintian()
	})
	t.Run("Files", func(t *testing.T) { release{t, first}.files() })
	t.Run("Wheel", func(t *testing.T) {
		t.Parallel()
		release{t, first}.wheel()
	})
	t.Run("Install", func(t *testing.T) {
		t.Parallel()
		// The tests at the same time use the repository of the first version.
		other := filepath.Join(t.TempDir(), "milkweed")
		sh(t, `git clone -q "$1" "$2"`, repository, other)
		second := build(t, other, "0.2.0", "ARCHS=amd64")
		m := m.await(t)
		m.installRPM(first)
		m.installDebian(first, second)
	})
}

// checkout copies the working tree into a new repository and returns its folder. So the tests need no
// history, and include what is not committed.
func checkout(t *testing.T) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "milkweed")
	sh(t, `mkdir "$1"
		tar -C ../.. --exclude=./build --exclude=./.git --exclude=__pycache__ -c . | tar -C "$1" -x --no-same-owner
		cd "$1"
		git init -q
		git config user.name x
		git config user.email x@example.org
		git add -A
		GIT_COMMITTER_DATE=2026-01-02T03:04:05Z git commit -q -m x`, folder)
	return folder
}

// build builds a release of a version from a repository. It returns the folder of the artefacts.
func build(t *testing.T, repository, version string, env ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "release")
	sh(t, `cd "$1" && git tag --list | xargs --no-run-if-empty git tag --delete && git tag "v$2"`, repository, version)
	cmd := exec.Command(repository+"/cmd/release/release.sh", out)
	cmd.Env = append(os.Environ(), env...)
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("release.sh: %v\n%s", err, output)
	}
	return out
}

// sh runs a script of bash, in which args are $1 and so on, and returns its output.
func sh(t *testing.T, script string, args ...string) string {
	t.Helper()
	cmd := exec.Command("bash", append([]string{"-euo", "pipefail", "-c", script, "bash"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", script, args, err, out)
	}
	return string(out)
}

// lines returns the lines of a text.
func lines(text string) []string { return strings.Split(strings.TrimSuffix(text, "\n"), "\n") }

func (r release) list() []string {
	r.Helper()
	return lines(sh(r.T, `cd "$1" && LC_ALL=C ls`, r.folder))
}

func (r release) read(name string) []byte {
	r.Helper()
	data, err := os.ReadFile(filepath.Join(r.folder, name))
	if err != nil {
		r.Fatal(err)
	}
	return data
}

func (r release) names() {
	want := []string{
		"SHA256SUMS",
		"milkweed-0.1.0-1.aarch64.rpm", "milkweed-0.1.0-1.x86_64.rpm", "milkweed-0.1.0-image.tar.gz",
		"milkweed-0.1.0-linux-amd64.cdx.json", "milkweed-0.1.0-linux-amd64.tar.gz",
		"milkweed-0.1.0-linux-arm64.cdx.json", "milkweed-0.1.0-linux-arm64.tar.gz",
		"milkweed-0.1.0-py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64.musllinux_1_1_aarch64.whl",
		"milkweed-0.1.0-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.musllinux_1_1_x86_64.whl",
		"milkweed-k8s-0.1.0-linux-amd64.cdx.json", "milkweed-k8s-0.1.0-linux-arm64.cdx.json",
		"milkweed_0.1.0_amd64.deb", "milkweed_0.1.0_arm64.deb",
	}
	if got := r.list(); !slices.Equal(got, want) {
		r.Errorf("got  %q\nwant %q", got, want)
	}
}

// equals compares all bytes with those of another build.
func (r release) equals(folder string) {
	other := release{r.T, folder}
	if got, want := other.list(), r.list(); !slices.Equal(got, want) {
		r.Errorf("got %q, want %q", got, want)
	}
	for _, name := range r.list() {
		if !bytes.Equal(r.read(name), other.read(name)) {
			r.Errorf("%s differs", name)
		}
	}
}

// checksums verifies that SHA256SUMS has the checksum of every other file.
func (r release) checksums() {
	var want strings.Builder
	for _, name := range r.list() {
		if name != "SHA256SUMS" {
			sum := sha256.Sum256(r.read(name))
			want.WriteString(hex.EncodeToString(sum[:]) + "  " + name + "\n")
		}
	}
	if got := string(r.read("SHA256SUMS")); got != want.String() {
		r.Errorf("got\n%swant\n%s", got, want.String())
	}
}

// programs verifies that the archives have programs for the right machine that need no libraries.
func (r release) programs() {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		name := "milkweed-0.1.0-linux-" + arch
		folder := r.TempDir()
		sh(r.T, `tar -C "$2" -xzf "$1"`, filepath.Join(r.folder, name+".tar.gz"), folder)
		f, err := elf.Open(filepath.Join(folder, name, "bin/milkweed"))
		if err != nil {
			r.Fatal(err)
		}
		libraries, err := f.ImportedLibraries()
		if err != nil || f.Machine != machine || len(libraries) > 0 || f.Section(".interp") != nil {
			r.Errorf("%s: machine %v, libraries %q, %v", arch, f.Machine, libraries, err)
		}
		f.Close()
		if arch == "amd64" {
			sh(r.T, `tar -C "$2" -xzf "$1"/milkweed-0.1.0-image.tar.gz
				cd "$2"/milkweed-0.1.0-image
				diff <(find * | sort) <(printf '%s\n' Dockerfile LICENSE README.md amd64{,/milkweed{,-k8s}} arm64{,/milkweed{,-k8s}} third-party-licenses.gz)
				cmp amd64/milkweed ../milkweed-0.1.0-linux-amd64/bin/milkweed
				amd64/milkweed-k8s --version | grep -F 0.1.0`, r.folder, folder)
			if got := sh(r.T, `"$1/bin/milkweed" --version; readlink "$1/sbin/mount.milkweed"`, filepath.Join(folder, name)); !strings.HasPrefix(got, "milkweed 0.1.0 (go") || !strings.HasSuffix(got, "\n../bin/milkweed\n") {
				r.Errorf("milkweed --version, mount.milkweed: %s", got)
			}
		}
	}
}

// bills verifies that a bill of materials names the version and the libraries.
func (r release) bills() {
	for _, arch := range []string{"amd64", "arm64"} {
		var bill struct {
			BOMFormat string
			Metadata  struct {
				Component struct{ Name, Version string }
			}
			Components []struct{ Name, Version string }
		}
		if err := json.Unmarshal(r.read("milkweed-0.1.0-linux-"+arch+".cdx.json"), &bill); err != nil {
			r.Fatal(err)
		}
		var names []string
		for _, c := range bill.Components {
			names = append(names, c.Name)
		}
		main := bill.Metadata.Component
		if bill.BOMFormat != "CycloneDX" || main.Name != "github.com/milkweedfs/milkweed" || main.Version != "v0.1.0" || !slices.Contains(names, "github.com/hanwen/go-fuse/v2") {
			r.Errorf("%s: a bill of %s %s with %q", arch, main.Name, main.Version, names)
		}
	}
}

// lintian checks the packages by the rules of Debian. It leaves temporary files.
func (r release) lintian() {
	out := sh(r.T, `cd "$1" && TMPDIR=$2 lintian --allow-root --fail-on none --tag-display-limit 0 -- *.deb`, r.folder, r.TempDir())
	for _, line := range lines(out) {
		if line != "" && !strings.HasPrefix(line, "N:") {
			r.Error(line)
		}
	}
}

// files verifies that all packages and archives have the same files with the same modes, and that
// root owns them.
func (r release) files() {
	deb := lines(sh(r.T, `dpkg-deb -c "$1"/milkweed_0.1.0_amd64.deb | awk '$1 !~ /^d/ {print $1, $2, $6, $7, $8}' | sed 's|^l[^ ]*|l|; s| \./| /|; s| *$||' | sort`, r.folder))
	if len(deb) < 80 {
		r.Errorf("only %d files: %q", len(deb), deb)
	}
	for _, line := range deb {
		mode, rest, _ := strings.Cut(line, " ")
		want := "-rw-r--r--"
		switch {
		case strings.Contains(line, " -> "):
			want = "l"
		case strings.HasSuffix(line, "/bin/milkweed"), mode == "-rwxr-xr-x" && strings.Contains(line, "/examples/"):
			want = "-rwxr-xr-x"
		}
		if mode != want || !strings.HasPrefix(rest, "root/root /") {
			r.Errorf("in the package of Debian: %s", line)
		}
	}
	for _, want := range []string{
		"/usr/bin/milkweed", "/usr/sbin/mount.milkweed -> ../bin/milkweed",
		"/usr/lib/systemd/system/milkweed@.service", "/usr/lib/sysusers.d/milkweed.conf", "/usr/lib/tmpfiles.d/milkweed.conf",
		"/usr/share/man/man1/milkweed-mount.1.gz", "/usr/share/man/man8/mount.milkweed.8.gz -> ../man1/milkweed-mount.1.gz",
		"/usr/share/bash-completion/completions/milkweed", "/usr/share/zsh/vendor-completions/_milkweed", "/usr/share/fish/vendor_completions.d/milkweed.fish",
		"/usr/share/doc/milkweed/copyright", "/usr/share/doc/milkweed/third-party-licenses.gz", "/usr/share/doc/milkweed/README.md", "/usr/share/doc/milkweed/tiering.toml",
	} {
		if !slices.ContainsFunc(deb, func(line string) bool { return strings.HasSuffix(line, " "+want) }) {
			r.Errorf("the package of Debian has no %s", want)
		}
	}
	for name, list := range map[string]string{
		"RPM":         `rpm -qlvp "$1"/milkweed-0.1.0-1.x86_64.rpm 2>/dev/null | awk '$1 !~ /^d/ {print $1, $3 "/" $4, $9, $10, $11}'`,
		"the archive": `tar -tvzf "$1"/milkweed-0.1.0-linux-amd64.tar.gz | awk '$1 !~ /^d/ {print $1, "root/root", $6, $7, $8}' | sed 's|milkweed-0.1.0-linux-amd64/|/usr/|'`,
	} {
		got := lines(sh(r.T, list+` | sed 's|^l[^ ]*|l|; s| *$||' | sort`, r.folder))
		if !slices.Equal(got, deb) {
			r.Errorf("the files of %s differ from those of Debian:\n%s", name, sh(r.T, `diff <(echo "$1") <(echo "$2") || true`, strings.Join(deb, "\n"), strings.Join(got, "\n")))
		}
	}
	if got := sh(r.T, `rpm -qp --queryformat '%{BUILDHOST}' "$1"/milkweed-0.1.0-1.x86_64.rpm 2>/dev/null`, r.folder); got != "localhost" {
		r.Errorf("RPM: build host %q", got)
	}
	if got := sh(r.T, `tar -tvzf "$1"/milkweed-0.1.0-linux-amd64.tar.gz --numeric-owner | awk '{print $2}' | sort -u`, r.folder); got != "0/0\n" {
		r.Errorf("owners in the archive: %q", got)
	}
}

// The versions of releases and of commits between them sort in Debian, in RPM and in pip as they were made.
func TestVersions(t *testing.T) {
	drivertest.Need(t, "git", "dpkg", "python3-pip")
	repository := checkout(t)
	script := `cd "$1" && sed -n '/^# The version is/,/^pip_version/p' cmd/release/release.sh >"$2" && . "$2" && echo "$version" "$pip_version"`
	other := filepath.Join(t.TempDir(), "clone")
	sh(t, `git clone -q --no-tags "$1" "$2" && cd "$2" && git config user.name x && git config user.email x@example.org`, repository, other)
	part := filepath.Join(t.TempDir(), "part")
	export := `export SOURCE_DATE_EPOCH=1767323045; `
	got := lines(sh(t, export+script, other, part))
	for _, tag := range []string{"v1.0.0-rc1", "v1.0.0", "v1.0.1"} {
		sh(t, `cd "$1" && git commit -q --allow-empty -m x && git tag "$2"`, other, tag)
		got = append(got, lines(sh(t, export+script, other, part))...)
		sh(t, `cd "$1" && git commit -q --allow-empty -m x`, other)
		got = append(got, lines(sh(t, export+script, other, part))...)
	}
	if want := []string{"1.0.0~rc1 1.0.0rc1", "1.0.0 1.0.0", "1.0.1 1.0.1"}; !slices.Equal([]string{got[1], got[3], got[5]}, want) || !strings.HasPrefix(got[6], "1.0.1+1.g") || !strings.HasPrefix(got[0], "0~20260102.g") {
		t.Errorf("versions: %q", got)
	}
	for i := range got[1:] {
		a, pipA, _ := strings.Cut(got[i], " ")
		b, pipB, _ := strings.Cut(got[i+1], " ")
		sh(t, `dpkg --compare-versions "$1" lt "$2"
			/usr/bin/python3 -c 'import sys; from pip._vendor.packaging.version import Version; assert Version(sys.argv[1]) < Version(sys.argv[2])' "$3" "$4"`, a, b, pipA, pipB)
	}
}
