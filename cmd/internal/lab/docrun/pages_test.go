package docrun

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/lab"
	"github.com/milkweedfs/milkweed/cmd/internal/lab/kubetest"
	"github.com/milkweedfs/milkweed/cmd/internal/lab/slurmtest"
	"github.com/milkweedfs/milkweed/drivers/blob/blobtest"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// root is the root of the repository.
const root = "../../../.."

// pages has the function that runs a page, by its path in docs.
var pages = map[string]func(t *testing.T, p *Page){
	"tutorial.md":         tutorialPage,
	"howto/bucket.md":     bucketPage,
	"howto/cloud-vm.md":   cloudPage,
	"howto/kubernetes.md": kubernetesPage,
	"howto/python.md":     pythonPage,
	"howto/slurm.md":      slurmPage,
}

// kubernetesPage runs the guide with a kubectl that has no cluster and validates what it is given.
func kubernetesPage(t *testing.T, p *Page) {
	checkout, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	output, err := p.RunOn(kubetest.HowTo(t, kubetest.Programs(t), checkout))
	wantPage(t, output, err)
}

// slurmPage runs the guide on a cluster of nodes on this machine, with stubs of Slurm.
func slurmPage(t *testing.T, p *Page) {
	drivertest.Need(t, "/usr/bin/torchrun", "python3-torch")
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	output, err := p.RunOn(slurmtest.HowTo(t, path, root))
	wantPage(t, output, err)
}

// Each command in the tutorial and in a how-to guide is run, and prints what the page shows.
func TestPages(t *testing.T) {
	if testing.Short() {
		t.Skip("runs every page and example of the documentation")
	}
	for _, path := range slices.Sorted(maps.Keys(pages)) {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			p := readPage(t, "docs/"+path)
			if p.Commands() == 0 {
				t.Error("the page has no commands")
			}
			pages[path](t, p)
		})
	}
}

// No tutorial and no how-to guide is missing in pages.
func TestEveryPageIsRun(t *testing.T) {
	found := []string{"tutorial.md"}
	err := fs.WalkDir(os.DirFS(root+"/docs"), "howto", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(found)
	if run := slices.Sorted(maps.Keys(pages)); !slices.Equal(run, found) {
		t.Errorf("the pages that are run are %q, want %q", run, found)
	}
}

// readPage parses a page of the repository.
func readPage(t *testing.T, path string) *Page {
	t.Helper()
	text, err := os.ReadFile(root + "/" + path)
	if err != nil {
		t.Fatal(err)
	}
	page, err := Parse(path, string(text))
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// program returns the path of the program.
func program() (string, error) { return lab.Program("cmd/milkweed", false) }

// folder is a temporary folder of these tests.
var folder string

func TestMain(m *testing.M) {
	var err error
	if folder, err = os.MkdirTemp("", "milkweed-docrun-"); err != nil {
		panic(err)
	}
	code := m.Run()
	if err := errors.Join(os.RemoveAll(folder), lab.RemovePrograms()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// pageTimeout bounds the session of a page. They take seconds on an idle machine; only a page that
// hangs reaches it.
const pageTimeout = 10 * time.Minute

// runPage runs a page in a sandbox, in which it adds a package and an apt.
func runPage(t *testing.T, p *Page, s Sandbox) {
	t.Helper()
	drivertest.Need(t, "root", "unshare", "setpriv", "fusermount3")
	var err error
	if s.Program, err = program(); err != nil {
		t.Fatal(err)
	}
	s.Repo = root
	s.Setup = fakePackage + s.Setup
	stubs := map[string]string{"apt": aptStub}
	maps.Copy(stubs, s.Stubs)
	s.Stubs = stubs
	ctx, cancel := context.WithTimeout(t.Context(), pageTimeout)
	defer cancel()
	output, err := s.Run(ctx, p)
	wantPage(t, output, err)
}

// wantPage fails the test if a page has failed.
func wantPage(t *testing.T, output string, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
	if testing.Verbose() {
		t.Log(output)
	}
}

// fakePackage is a setup that makes a package for aptStub.
const fakePackage = "for home in /root /home/ada; do : >$home/milkweed_0_amd64.deb; done\n"

// aptStub is an apt that installs nothing. It fails if a package is neither a file nor installed.
const aptStub = `#!/bin/sh
[ "$(id -u)" -eq 0 ] || { echo "apt: are you root?" >&2; exit 100; }
command=$1
shift
[ "$command" = install ] || [ "$command" = remove ] || exit 100
for word; do
	case $word in
	-*) ;;
	./*) [ -f "$word" ] || { echo "apt: no file $word" >&2; exit 100; } ;;
	milkweed) [ "$command" = remove ] || exit 100 ;;
	*) dpkg-query --show --showformat '${Package} is installed\n' "$word" >&2 ;;
	esac
done
`

// The tutorial is for an ordinary user. Root can follow it, too.
func tutorialPage(t *testing.T, p *Page) {
	drivertest.Need(t, "python3-torch", "python3-torchvision", "python3-sklearn")
	for _, user := range []bool{true, false} {
		t.Run(fmt.Sprintf("user=%v", user), func(t *testing.T) {
			t.Parallel()
			runPage(t, p, Sandbox{User: user})
		})
	}
}

func pythonPage(t *testing.T, p *Page) {
	drivertest.Need(t, "python3-numpy", "python3-torch")
	runPage(t, p, Sandbox{User: true})
}

// fillBucket makes a bucket with 20 images below 2012/.
func fillBucket(t *testing.T, kind blobtest.Kind, name, prefix string) *blobtest.Server {
	t.Helper()
	s := blobtest.Start(t, kind)
	s.MakeBucket(t, name)
	s.PutMany(t, name, func(yield func(string, []byte) bool) {
		for i := range 20 {
			key := fmt.Sprintf("%s/train/%s/%d.jpg", prefix, []string{"cat", "dog"}[i%2], i)
			if !yield(key, []byte(strings.Repeat(key, 4000))) {
				return
			}
		}
	})
	return s
}

// variable returns the value of a variable in the environment of a client of a server.
func variable(t *testing.T, s *blobtest.Server, name string) string {
	t.Helper()
	for _, pair := range s.Env() {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	t.Fatalf("no variable %s", name)
	return ""
}

// The stores of the page are servers on this machine. Only URLs and secrets differ from the page.
func bucketPage(t *testing.T, p *Page) {
	drivertest.Need(t, "rclone")
	s3 := fillBucket(t, blobtest.S3, "imagenet", "2012")
	gcs := fillBucket(t, blobtest.GCS, "public-images", "v1")
	azure := fillBucket(t, blobtest.Azure, "imagenet", "2012")
	id, secret := variable(t, s3, "AWS_ACCESS_KEY_ID"), variable(t, s3, "AWS_SECRET_ACCESS_KEY")
	runPage(t, p, Sandbox{
		User: true,
		Replace: []string{
			"s3://imagenet/2012?region=eu-west-1", s3.BucketURL("imagenet", "2012", ""),
			"AKIAIOSFODNN7EXAMPLE", id,
			"wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", secret,
			"gs://public-images/v1?anonymous=true", gcs.BucketURL("public-images", "v1", ""),
			"azblob://imagenet/2012?account=vision", azure.BucketURL("imagenet", "2012", ""),
			"cGxlYXNlIHVzZSB5b3VyIG93biBrZXk=", variable(t, azure, "AZURE_STORAGE_KEY"),
		},
		// aws s3 cp FILE URL, for the server.
		Stubs: map[string]string{"aws": `#!/bin/sh
[ "$1 $2 $#" = "s3 cp 4" ] || exit 2
exec rclone --config= --s3-provider=Other --s3-no-check-bucket --s3-endpoint=` + s3.URL + ` \
	--s3-access-key-id=` + id + ` --s3-secret-access-key=` + secret + ` copyto "$3" ":s3:${4#s3://}"
`},
	})
}

// The machine of the page has the role of a metadata service that runs here, a file in place of the
// NVMe, and a systemctl that does what the unit says, with its user and its capabilities.
func cloudPage(t *testing.T, p *Page) {
	drivertest.Need(t, "curl", "mkfs.ext4", "python3")
	s3 := fillBucket(t, blobtest.S3, "imagenet", "2012")
	runPage(t, p, Sandbox{
		Env: []string{"AWS_EC2_METADATA_SERVICE_ENDPOINT=" + metadataService(t, s3)},
		Replace: []string{
			"s3://imagenet/2012?region=eu-west-1", s3.BucketURL("imagenet", "2012", ""),
			"/dev/nvme1n1", "/srv/nvme",
		},
		Setup: "truncate --size=300M /srv/nvme\n",
		Stubs: map[string]string{"systemctl": `#!/bin/bash
set -eu
command=$1
shift
[ "$1" != --now ] || shift
name=${1#milkweed@}
[ $# = 1 ] && [ "$name" != "$1" ] || exit 2
unit=/usr/lib/systemd/system/milkweed@.service
set -a
. <(sed -n 's/^Environment=//p' $unit)
set +a
start=$(sed -n "s/^ExecStart=//; T; s/%i/$name/gp" $unit)
point=$(sed -n 's/^point = "\(.*\)"/\1/p' "/etc/milkweed/$name.toml")
case $command in
enable)
	install -d -o milkweed -g milkweed -m 700 /var/log/milkweed /var/cache/milkweed
	umask 077
	rights=$(sed -n 's/^AmbientCapabilities=CAP_/+/p' $unit | sed 's/ CAP_/,+/g' | tr A-Z a-z)
	user=$(sed -n 's/^User=//p' $unit)
	export NOTIFY_SOCKET=/run/notify
	exec python3 -c '
import os, socket, subprocess, sys
ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
ready.bind(os.environ["NOTIFY_SOCKET"])
os.chmod(os.environ["NOTIFY_SOCKET"], 0o666)
journal = open("/run/journal", "w")
subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=journal, stderr=journal, start_new_session=True)
ready.settimeout(60)
assert ready.recv(100) == b"READY=1"
' setpriv --reuid="$user" --regid="$user" --clear-groups --no-new-privs --inh-caps="$rights" --ambient-caps="$rights" $start
	;;
disable)
	pid=$(milkweed status --json "$point" | sed 's/.*"pid":\([0-9]*\).*/\1/')
	kill -TERM "$pid"
	while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
	;;
*) exit 2 ;;
esac
`},
	})
}

// metadataService starts a metadata service of a machine whose role may use a server, and returns
// its URL. It is that of Amazon, version 2.
func metadataService(t *testing.T, s *blobtest.Server) string {
	const token, roles = "the token of a session", "/latest/meta-data/iam/security-credentials/"
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /latest/api/token", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
		fmt.Fprint(w, token)
	})
	mux.HandleFunc("GET "+roles+"{role...}", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("X-Aws-Ec2-Metadata-Token") != token:
			w.WriteHeader(http.StatusUnauthorized)
		case r.PathValue("role") == "":
			fmt.Fprint(w, "training")
		default:
			json.NewEncoder(w).Encode(map[string]string{
				"Code": "Success", "Type": "AWS-HMAC",
				"AccessKeyId":     variable(t, s, "AWS_ACCESS_KEY_ID"),
				"SecretAccessKey": variable(t, s, "AWS_SECRET_ACCESS_KEY"),
				"LastUpdated":     time.Now().UTC().Format(time.RFC3339),
				"Expiration":      time.Now().Add(6 * time.Hour).UTC().Format(time.RFC3339),
			})
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}
