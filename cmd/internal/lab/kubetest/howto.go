package kubetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/lab"
)

// stubs are the programs of docs/howto/kubernetes.md that need a network, by name.
var stubs = map[string]string{
	// The page builds the programs for two architectures, which is checked as far as it is fast.
	"go": `#!/bin/sh -e
[ "$1" = build ] && [ "$CGO_ENABLED" = 0 ]
while [ "$1" != -o ]; do shift; done
out=$2; shift 2
mkdir -p "$out"
for package; do [ -f "$package/main.go" ]; touch "$out/$(basename "$package")"; done
`,
	"git": `#!/bin/sh -e
[ "$1 $2" = "clone https://github.com/milkweedfs/milkweed" ]
mkdir milkweed
cp -R "$KUBETEST_CHECKOUT/examples" "$KUBETEST_CHECKOUT/cmd" milkweed
`,
	"buildah": `#!/bin/sh -e
case "$1 $2" in
"build --platform")
	[ "$4 $6" = "--manifest --file" ] && [ -f "$7" ]
	for arch in amd64 arm64; do
		case $3 in *linux/$arch*) [ -f "$8/$arch/milkweed" ] && [ -f "$8/$arch/milkweed-k8s" ] ;; *) false ;; esac
	done
	echo "$5" >"$KUBETEST_STATE/image"
	;;
"manifest push") [ "$3 $4" = "--all $(cat "$KUBETEST_STATE/image")" ] && [ "$5" = "docker://$4" ] ;;
*) false ;;
esac
`,
}

// HowTo returns a bash that executes, from its standard input, the commands of docs/howto/kubernetes.md
// in an empty folder. In its PATH are the programs in the folder programs, the kubectl of this
// package, and stubs of what needs a network. The page presumes credentials in the environment, and a
// remote of rclone with the name s3, which is a folder. All is removed at the end of the test.
func HowTo(t testing.TB, programs, checkout string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"bin", "home", "state", "schemas", "s3/training"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range stubs {
		if err := os.WriteFile(filepath.Join(dir, "bin", name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	kubectl, err := lab.Program("cmd/internal/lab/kubetest/kubectl", false)
	if err == nil {
		err = os.Symlink(kubectl, dir+"/bin/kubectl")
	}
	if err != nil {
		t.Fatal(err)
	}
	schemas, err := WriteSchemas(dir + "/schemas")
	if err != nil {
		t.Fatal(err)
	}
	cache, err := os.UserCacheDir() // the tools are in that of the user, not in the home of the page
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-e", "-u", "-o", "pipefail", "-s")
	cmd.Dir = dir + "/home"
	cmd.Env = []string{
		"PATH=" + dir + "/bin:" + programs + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + dir + "/home", "TMPDIR=" + os.TempDir(), "XDG_CACHE_HOME=" + cache,
		"KUBETEST_STATE=" + dir + "/state", "KUBETEST_SCHEMAS=" + string(schemas), "KUBETEST_PROGRAMS=" + programs, "KUBETEST_CHECKOUT=" + checkout,
		"AWS_ACCESS_KEY_ID=id", "AWS_SECRET_ACCESS_KEY=key",
		"RCLONE_CONFIG_S3_TYPE=alias", "RCLONE_CONFIG_S3_REMOTE=" + dir + "/s3",
	}
	return cmd
}
