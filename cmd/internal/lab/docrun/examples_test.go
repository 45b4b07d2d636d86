package docrun

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// The examples in the --help of the commands, which are those of the reference, are run, one after
// the other, with the mounts and the files that they presume. These are not, or in another form.
var examples = []struct {
	part string // of the line
	runs string // what runs in place of part; "" if the line is not run
	why  string
}{
	{part: "milkweed bench", why: "TestBench runs them for a shorter time"},
	{part: "milkweed demo", why: "TestDemo runs it for a shorter time"},
	{part: "s3://", why: "the guide for a bucket has servers"},
	{part: "gs://", why: "the guide for a bucket has servers"},
	{part: "node[1-4]", why: "the guide for Slurm has nodes"},
	{part: "kubectl", why: "there is no cluster"},
	{part: "--fuse-fd", why: "another process has to mount; TestFuseFD has one"},
	{part: "--while-locked", why: "it is not known when the mount ends; TestWhileLocked waits for that"},
	{part: "${fpath[1]}", why: "it is for zsh"},
	{part: "/lustre/imagenet  /mnt/imagenet  milkweed", why: "it is a line of /etc/fstab"},
	{part: "milkweed top /mnt/imagenet", why: "it needs a terminal; TestTopInATerminal has one"},
	{part: "milkweed status --watch", runs: "endless milkweed status --watch", why: "it has no end"},
	{part: "milkweed top --json", runs: "endless milkweed top --json", why: "it has no end"},
	{part: "milkweed trace", runs: "endless milkweed trace", why: "nothing is read"},
	{part: "milkweed mount -f", runs: "endless milkweed mount -f", why: "it has no end"},
	{part: "--interval 10s", runs: "--interval 100ms", why: "it takes a minute"},
	{part: "--duration 1m", runs: "--duration 1s", why: "it takes a minute"},
	{part: "milkweed profile --json", runs: "milkweed profile --duration 1s --json", why: "it takes half a minute"},
}

// examplesSetup makes files, and the function ready, which mounts what its argument says: none,
// imagenet, data, or nothing and without the link /data/current.
const examplesSetup = `
mkdir -p /lustre/imagenet/train/n01440764 /lustre/imagenet/val /mnt/imagenet /mnt/data /local /lustre/sets/v3
for dir in /lustre/imagenet/train/n01440764 /lustre/imagenet/val /lustre/sets/v3; do
	for i in 1 2 3 4 5; do
		head -c 20000 /dev/urandom >$dir/$i.JPEG
	done
done
tar cf /lustre/imagenet/train.tar -C /lustre/imagenet val
for v in v2 v3 v4; do
	mkdir -p /data/$v
	echo $v >/data/$v/a
	echo $v >/data/$v/b
done
find /lustre -name '*.JPEG' -printf '/mnt/imagenet/train/n01440764/%f\n' >/root/files.txt
find /lustre /data -exec touch --date='1 hour ago' {} +
mkdir /root/conf
cat >/root/conf/tiering.toml <<'END'
[source]
path = "/lustre/imagenet"

[[tier]]
name = "ram"
path = "/dev/shm/milkweed"
quota = "64MiB"

[mount]
point = "/mnt/imagenet"
END
install -D /root/conf/tiering.toml /etc/milkweed/imagenet.toml
cat >/opt/ready <<'END'
ready() {
	cd ~
	local point
	for point in /mnt/imagenet /mnt/data; do
		if mountpoint -q $point && [ $point != "/mnt/$1" ]; then
			milkweed umount $point
		fi
	done
	case $1 in
	imagenet)
		mountpoint -q /mnt/imagenet || milkweed mount -c conf/tiering.toml
		;;
	data)
		ln -sfn v3 /data/current
		mountpoint -q /mnt/data || milkweed mount /data/current /mnt/data
		milkweed switch v3 /mnt/data || true
		milkweed prepare v2 /mnt/data
		;;
	link) rm -f /data/current ;;
	esac
	[ -e imagenet.mtree ] || milkweed manifest -o imagenet.mtree /lustre/imagenet
}

endless() { timeout --signal=INT 3 "$@" || [ $? = 124 ]; }
END
`

// Each example in a help text works.
func TestExamples(t *testing.T) {
	if testing.Short() {
		t.Skip("runs every page and example of the documentation")
	}
	t.Parallel()
	drivertest.Need(t, "root", "unshare", "jq", "mountpoint")
	const name = "docs/reference/commands.md"
	text, err := os.ReadFile(root + "/" + name)
	if err != nil {
		t.Fatal(err)
	}
	used := make([]bool, len(examples))
	section, inExample, run, last := "", false, 0, 0
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		switch {
		case strings.HasPrefix(line, "## "):
			section = strings.TrimPrefix(line, "## milkweed ")
		case strings.HasPrefix(line, "```"):
			inExample = line == "```sh"
		case inExample && strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#"):
			if lines[i] = exampleLine(section, line, used); lines[i] != ":" {
				run++
				last = i
			}
		}
	}
	for i, e := range examples {
		if !used[i] {
			t.Errorf("no example has %q", e.part)
		}
	}
	if run < 60 {
		t.Errorf("%d examples are run, want at least 60", run)
	}
	lines[last] += "; ready none"
	for i, line := range lines {
		if line == "```text" {
			lines[i] = "```plain" // a text of help, and not the output of the examples
		}
	}
	p, err := Parse(name, strings.Join(lines, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), pageTimeout)
	defer cancel()
	output, err := Sandbox{Program: path, Repo: root, Setup: examplesSetup, Env: []string{"BASH_ENV=/opt/ready"}}.Run(ctx, p)
	wantPage(t, output, err)
}

// exampleLine returns what runs in place of an example: the line after the mounts that it needs are
// made, or ":" if it is not run. It notes the elements of examples that it has used.
func exampleLine(section, line string, used []bool) string {
	for i, e := range examples {
		if !strings.Contains(line, e.part) {
			continue
		}
		used[i] = true
		if e.runs == "" {
			return ":"
		}
		line = strings.ReplaceAll(line, e.part, e.runs)
	}
	mount := "imagenet"
	switch {
	case strings.Contains(line, "ln -s v3"):
		mount = "link"
	case strings.HasPrefix(section, "generations"), section == "prepare", section == "switch":
		mount = "data"
	case strings.Contains(line, "milkweed mount"), section == "check":
		mount = "none"
	}
	if strings.Contains(line, "-c tiering.toml") || strings.Contains(line, "config show --json") { // without -c, other commands must not find the file
		line = "cd conf; " + line
	}
	return "ready " + mount + "; " + line
}
