package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

func TestFromHelper(t *testing.T) {
	for _, c := range []struct {
		words, want string // "" for an error
	}{
		// The arguments that mount(8) of util-linux 2.38 passes.
		{"src /mnt -o rw", "mount -o  -- src /mnt"},
		{"src /mnt -o rw,noatime,noexec,nosuid,nodev,workers=3,_netdev,nofail,user", "mount -o noatime,noexec,nosuid,nodev,workers=3,_netdev,nofail,user -- src /mnt"},
		{"src /mnt -f -n -v -o ro", "mount -o ro --fake -- src /mnt"},

		// A bucket in a line of /etc/fstab.
		{"s3://b/p?region=r&endpoint=http://h:1 /mnt -o rw,config=/etc/m.toml,_netdev", "mount -o config=/etc/m.toml,_netdev -- s3://b/p?region=r&endpoint=http://h:1 /mnt"},

		{"none /mnt -o config=/etc/m.toml", "mount -o config=/etc/m.toml --unless-mounted -- /mnt"},
		{"-o a=1 src -o workers=2 /mnt", "mount -o a=1,workers=2 -- src /mnt"},
		{"-s -o remount,workers=2 src /mnt", "mount -o remount,workers=2 -- src /mnt"},
		{"-s -o frobnicate=1,workers=2 src /mnt", "mount -o workers=2 -- src /mnt"},
		{"src /mnt -sfnv -t milkweed -N /proc/1/ns/mnt", "mount -o  --fake -- src /mnt"},
		{"src", ""},
		{"src /mnt -Z", ""},
	} {
		got, err := fromHelper(strings.Fields(c.words))
		if c.want == "" {
			wantCode(t, err, exit.Usage)
			continue
		}
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, %v; want %s", c.words, got, err, c.want)
		}
	}
}

func TestParseOptions(t *testing.T) {
	got, err := parseOptions("config=/etc/m.toml,defaults,noauto,x-systemd.automount,comment=a,noexec,,allow_other,workers=3,metrics=:9877")
	if err != nil {
		t.Fatal(err)
	}
	want := options{
		config: "/etc/m.toml",
		values: []optionValue{{"allow_other", "true"}, {"workers", "3"}, {"metrics", ":9877"}},
		noExec: true,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// The help of mount lists every option.
func TestHelpListsOptions(t *testing.T) {
	for _, name := range ownOptions() {
		if !regexp.MustCompile(`\b` + name + `\b`).MatchString(mountLong) {
			t.Errorf("option %s is missing", name)
		}
	}
}

func TestParseOptionsRefuses(t *testing.T) {
	for words, want := range map[string]string{
		"rw":                 "read-only",
		"remount,ro":         "config reload",
		"wokers=3":           `did you mean "workers"?`,
		"alow_other":         `did you mean "allow_other"?`,
		"source_operation=1": `did you mean "source_operations"?`,
		"metadata_snapshot":  "has no value",
		"zzzzzzzz=1":         `unknown option "zzzzzzzz"`,
		"workers":            "has no value",
		"config=":            "has no value",
		"ro,noauto=1":        `unknown option "noauto"`,
	} {
		_, err := parseOptions(words)
		wantCode(t, err, exit.Usage)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", words, err, want)
		}
	}
}

// load returns the configuration of a command line of mount, and the text that mount
// prints.
func load(t *testing.T, words ...string) (*config.Config, string, error) {
	t.Helper()
	var f mountFlags
	var stderr bytes.Buffer
	c := newMount()
	c.ResetFlags()
	f.addConfiguration(c.Flags())
	if err := c.ParseFlags(words); err != nil {
		t.Fatal(err)
	}
	cfg, err := f.load(c.Flags(), c.Flags().Args(), &stderr)
	return cfg, stderr.String(), err
}

// sourceAndPoint creates a source and a mount point.
func sourceAndPoint(t *testing.T) (source, point string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	source, point = filepath.Join(dir, "source"), filepath.Join(dir, "point")
	for _, d := range []string{source, point} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return source, point
}

// Flags override -o, and -o overrides the file. Each value has its origin.
func TestLoadPrecedence(t *testing.T) {
	source, point := sourceAndPoint(t)
	file := filepath.Join(t.TempDir(), "tiering.toml")
	toml := `
[source]
path = "/elsewhere"
[[tier]]
name = "ram"
path = "/dev/shm/milkweed-test"
quota = "1GiB"
[placement]
workers = 1
[log]
level = "error"
format = "json"
`
	if err := os.WriteFile(file, []byte(toml), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := load(t, "-o", "config="+file+",workers=2,log_level=warn", "--workers", "3", source, point)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"placement.workers": "flag --workers",
		"log.level":         "option log_level",
		"log.format":        file + ":12",
		"source.path":       "argument SOURCE",
		"mount.point":       "argument MOUNTPOINT",
		"mount.mode":        "default",
	} {
		if got := c.Origin(key); got != want {
			t.Errorf("the origin of %s is %q, want %q", key, got, want)
		}
	}
	if c.Placement.Workers != 3 || c.Source.Path != source {
		t.Errorf("%+v", c)
	}
}

// Each option sets its key of the configuration.
func TestLoadOptions(t *testing.T) {
	source, point := sourceAndPoint(t)
	snapshot := filepath.Join(filepath.Dir(point), "x.snapshot")
	c, _, err := load(t, "--tier", "ram:/dev/shm/milkweed-test:1GiB", source, point,
		"-o", "source_bandwidth=500MB,source_operations=1000,clock_skew=2s,mode=stateless,metadata_snapshot="+snapshot)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Source, (config.Source{Path: source, Bandwidth: 500e6, Operations: 1000, ClockSkew: 2 * time.Second}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if c.Mount.Mode != config.Stateless || c.Mount.MetadataSnapshot != snapshot {
		t.Errorf("got %+v, want mode stateless and metadata snapshot %s", c.Mount, snapshot)
	}
	c, _, err = load(t, "--tier", "ram:/dev/shm/milkweed-test:1GiB", "--peers", "n1,n2:7441", "--peers-secret", "/job.key", source, point,
		"-o", "peers_name=n2,peers_listen=:7441,peers_serve=false,peers_gossip=false,peers_min=2,peers_wait=3s,peers_group=4,peers_tls_cert=/tls.crt,peers_tls_key=/tls.key,peers_tls_ca=/ca.crt,metadata_snapshot="+snapshot)
	if err != nil {
		t.Fatal(err)
	}
	peers := config.Peers{Roster: "n1,n2:7441", Name: "n2", Listen: ":7441", SecretFile: "/job.key", Min: 2, Wait: 3 * time.Second, Group: 4,
		TLSCert: "/tls.crt", TLSKey: "/tls.key", TLSCA: "/ca.crt"}
	if c.Peers != peers {
		t.Errorf("got %+v, want %+v", c.Peers, peers)
	}
	if got, want := c.Origin("mount.metadata_snapshot"), "option metadata_snapshot"; got != want {
		t.Errorf("the origin of mount.metadata_snapshot is %q, want %q", got, want)
	}
}

// SOURCE may be the URL of a bucket. It replaces the source of the file, and the
// default number of workers differs.
func TestLoadBucket(t *testing.T) {
	source, point := sourceAndPoint(t)
	const url = "s3://bucket/a/b?region=eu-west-1"
	tier := []string{"--tier", "ram:/dev/shm/milkweed-test:1GiB"}
	c, _, err := load(t, append(tier, url, point)...)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Source, (config.Source{URL: url, ClockSkew: 5 * time.Second}); got != want || c.Origin("source.url") != "argument SOURCE" {
		t.Errorf("got %+v from %s, want %+v", got, c.Origin("source.url"), want)
	}
	if got, from := c.Placement.Workers, c.Origin("placement.workers"); got != 64 || from != "default" {
		t.Errorf("got %d workers from %s, want 64 from default", got, from)
	}
	if c, _, err = load(t, append(tier, url, point, "--workers", "8")...); err != nil || c.Placement.Workers != 8 {
		t.Errorf("got %d workers, %v; want 8", c.Placement.Workers, err)
	}

	file := filepath.Join(t.TempDir(), "tiering.toml")
	if err := os.WriteFile(file, []byte("[source]\nurl = \"gs://bucket\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err = load(t, append(tier, "-c", file, point)...)
	if err != nil || c.Source.URL != "gs://bucket" || c.Origin("source.url") != file+":2" {
		t.Errorf("from the file: got %+v from %s, %v", c.Source, c.Origin("source.url"), err)
	}
	c, _, err = load(t, append(tier, "-c", file, source, point)...)
	if err != nil || c.Source != (config.Source{Path: source, ClockSkew: 5 * time.Second}) {
		t.Errorf("the directory of the command line: got %+v, %v", c.Source, err)
	}
}

// A URL that the driver refuses is an error before anything is printed or requested.
// No message of mount or check contains a part of the URL that may be secret.
func TestLoadBucketRefuses(t *testing.T) {
	_, point := sourceAndPoint(t)
	for url, want := range map[string]string{
		"s3://geheim:geheim@bucket":              "source.url: contains credentials",
		"s3://bucket?secret_access_key=geheim":   "source.url: contains credentials",
		"azblob://data?sv=1&sig=geheim":          "source.url: contains credentials",
		"s3://bucket?password=geheim":            "source.url: contains credentials",
		"nfs://geheim":                           "source.url: nfs:// is not one of",
		"s3://bucket?rgion=geheim":               `source.url: unknown option "rgion"`,
		"gs://bucket?region=geheim":              "source.url: option region: is for s3:// only",
		"s3://bucket?anonymous=geheim":           "source.url: option anonymous:",
		"s3://bucket?hedge=geheim":               "source.url: option hedge:",
		"s3://bucket/a//b":                       "source.url: prefix",
		"s3://bucket?endpoint=ftp://geheim":      "source.url: option endpoint:",
		"s3://bucket?region=geheim&region=other": "source.url: option region is given twice",
	} {
		for _, command := range [][]string{{"mount", "--fake"}, {"check"}} {
			out, stderr, err := runMilkweed(t, append(command, "--tier", "ram:/dev/shm/milkweed-test:1GiB", url, point)...)
			wantCode(t, err, exit.Usage)
			if err == nil || !strings.Contains(err.Error(), "argument SOURCE: "+want) {
				t.Errorf("%s %s: got %v, want an error with %q", command, url, err, want)
				continue
			}
			printed := out + stderr + err.Error()
			if isSecret := strings.Contains(want, "credentials"); isSecret && strings.Contains(printed, "geheim") {
				t.Errorf("%s %s prints the secret: %s", command, url, printed)
			}
		}
	}
}

func TestLoadTierFlags(t *testing.T) {
	source, point := sourceAndPoint(t)
	c, printed, err := load(t, "--tier", "ram:/dev/shm/milkweed-test:1GiB", "--tier", "ssd:/var/tmp/a:b:90%", source, point)
	if err != nil {
		t.Fatal(err)
	}
	want := []config.Tier{
		{Name: "ram", Path: "/dev/shm/milkweed-test", Quota: config.Quota{Bytes: 1 << 30}},
		{Name: "ssd", Path: "/var/tmp/a:b", Quota: config.Quota{Percent: 90}},
	}
	if !reflect.DeepEqual(c.Tiers, want) {
		t.Errorf("got %+v, want %+v", c.Tiers, want)
	}
	if printed != "" {
		t.Errorf("printed %q", printed)
	}
	for _, bad := range []string{"ssd", "ssd:1GiB", ":/x:1GiB", "SSD:/x:1GiB", "ssd:/x:much"} {
		_, _, err := load(t, "--tier", bad, source, point)
		wantCode(t, err, exit.Usage)
	}
}

// Without a configuration file the command prints the tiers.
func TestLoadDefaultTiers(t *testing.T) {
	source, point := sourceAndPoint(t)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	c, printed, err := load(t, source, point)
	if err != nil {
		drivertest.Skipf(t, "this machine has no space for the default tiers: %v", err)
	}
	for _, tier := range c.Tiers {
		if !strings.Contains(printed, tier.Path) {
			t.Errorf("printed %q, without %s", printed, tier.Path)
		}
	}
}
