package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// userError checks that err is an *exit.Error with one line and a remedy, and returns
// the line.
func userError(t testing.TB, err error) string {
	t.Helper()
	e, ok := errors.AsType[*exit.Error](err)
	if !ok {
		t.Fatalf("got error %v, want an *exit.Error", err)
	}
	line := e.Err.Error()
	if e.Code != exit.Usage || e.Remedy == "" || strings.Contains(line, "\n") || strings.Contains(e.Remedy, "\n") {
		t.Errorf("got code %d, line %q, remedy %q; want code %d, one line, a remedy", e.Code, line, e.Remedy, exit.Usage)
	}
	return line
}

func parse(t *testing.T, data string) *Config {
	t.Helper()
	c, err := Parse("tiering.toml", []byte(data))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestParseErrors(t *testing.T) {
	tests := []struct {
		name, data, want string
	}{
		{"syntax", "[mount]\nmode = \n", `tiering.toml:2: not TOML: `},
		{"duplicate key", "[mount]\nmode = 'auto'\nmode = 'auto'", `tiering.toml:3: not TOML: `},
		{"not text", "a = '\xff'", `tiering.toml:1: not TOML: `},
		{"misspelt key", "[[tier]]\nname = 'a'\n\nquotta = '1GiB'", `tiering.toml:4: unknown key "tier.quotta": did you mean "quota"?`},
		{"misspelt key of an earlier tier", "[[tier]]\nquotta = '1GiB'\n[[tier]]\nquota = '1GiB'", `tiering.toml:2: unknown key "tier.quotta": did you mean "quota"?`},
		{"capital letters", "[mount]\nMode = 'auto'", `tiering.toml:2: unknown key "mount.Mode": did you mean "mode"?`},
		{"nothing near", "[mount]\nzzz = 1", `tiering.toml:2: unknown key "mount.zzz"`},
		{"misspelt table", "#\n[sorce]\npath = '/a'", `tiering.toml:2: unknown table "sorce": did you mean "source"?`},
		{"key without table", "workers = 3", `tiering.toml:1: unknown key "workers": did you mean "placement.workers"?`},
		{"key in another table", "[mount]\nworkers = 3", `tiering.toml:2: unknown key "mount.workers": did you mean "placement.workers"?`},
		{"key below a key", "[mount]\nmode.fast = true", `tiering.toml:2: mount.mode: must be text in double quotes`},
		{"tier once", "\n[tier]\nname = 'a'", `tiering.toml:2: "tier" must be a table, [[tier]]`},
		{"tier a number", "tier = [3]", `tiering.toml:1: "tier" must be a table, [[tier]]`},
		{"source a list", "[[source]]", `tiering.toml:1: "source" must be a table, [source]`},
		{"source a string", "source = '/a'", `tiering.toml:1: "source" must be a table, [source]`},
		{"inline tier", "tier = [{name = 'a'},\n {nam = 'b'}]", `tiering.toml:1: unknown key "tier.nam": did you mean "name"?`},

		{"text for number", "[placement]\nworkers = '8'", `tiering.toml:2: placement.workers: must be a number without quotes`},
		{"fraction", "[placement]\nworkers = 1.5", `tiering.toml:2: placement.workers: must be a number without quotes`},
		{"number for text", "[[tier]]\nquota = 1048576\n[[tier]]\nquota='1'", `tiering.toml:2: tier.quota: must be text in double quotes`},
		{"text for boolean", "[mount]\nallow_other = 'yes'", `tiering.toml:2: mount.allow_other: must be true or false without quotes`},
		{"boolean for path", "[source]\npath = true", `tiering.toml:2: source.path: must be text in double quotes`},

		{"no worker", "[placement]\nworkers = 0", `tiering.toml:2: placement.workers: 0 is not from 1 to 256`},
		{"negative workers", "[placement]\nworkers = -8", `tiering.toml:2: placement.workers: -8 is not from 1 to 256`},
		{"many workers", "[placement]\nworkers = 257", `tiering.toml:2: placement.workers: 257 is not from 1 to 256`},
		{"bandwidth without quotes", "[source]\nbandwidth = 500", `tiering.toml:2: source.bandwidth: must be text in double quotes`},
		{"bandwidth with a unit of time", "[source]\nbandwidth = '500MB/s'", `tiering.toml:2: source.bandwidth: "500MB/s" is not a size`},
		{"negative bandwidth", "[source]\nbandwidth = '-1MB'", `tiering.toml:2: source.bandwidth: "-1MB" is not a size`},
		{"percentage of bandwidth", "[source]\nbandwidth = '50%'", `tiering.toml:2: source.bandwidth: "50%" is not a size`},
		{"operations in quotes", "[source]\noperations = '100'", `tiering.toml:2: source.operations: must be a number without quotes`},
		{"negative operations", "[source]\noperations = -1", `tiering.toml:2: source.operations: -1 is negative`},
		{"metadata snapshot a number", "[mount]\nmetadata_snapshot = 1", `tiering.toml:2: mount.metadata_snapshot: must be text in double quotes`},
		{"no metadata snapshot", "[mount]\nmetadata_snapshot = ''", `tiering.toml:2: mount.metadata_snapshot: is empty`},
		{"unset variable in metadata snapshot", "[mount]\nmetadata_snapshot = '${MILKWEED_TEST_UNSET}/a'", `tiering.toml:2: mount.metadata_snapshot: the environment variable "MILKWEED_TEST_UNSET" is not set, or empty`},
		{"no mode", "[mount]\nmode = 'fast'", `tiering.toml:2: mount.mode: "fast" is not a mode`},
		{"duration without unit", "[mount]\nattr_timeout = '30'", `tiering.toml:2: mount.attr_timeout: "30" is not a duration`},
		{"negative duration", "[mount]\nattr_timeout = '-1s'", `tiering.toml:2: mount.attr_timeout: "-1s" is negative`},
		{"short window", "[mount]\nconsistency = '10ms'", `tiering.toml:2: mount.consistency: "10ms" is shorter than a second`},
		{"address without port", "[metrics]\nlisten = 'localhost'", `tiering.toml:2: metrics.listen: "localhost" is not host:port`},
		{"high port", "[metrics]\nlisten = ':65536'", `tiering.toml:2: metrics.listen: ":65536" has no port from 0 to 65535`},
		{"roster a number", "[peers]\nroster = 3", `tiering.toml:2: peers.roster: must be text in double quotes, or a list of such texts`},
		{"roster with a number", "[peers]\nroster = ['a', 3]", `tiering.toml:2: peers.roster: must be text in double quotes, or a list of such texts`},
		{"list for a path", "[peers]\nsecret_file = ['a']", `tiering.toml:2: peers.secret_file: must be text in double quotes`},
		{"roster without a name", "[peers]\nroster = 'dns:'", `tiering.toml:2: peers.roster: dns: is not dns:NAME or dns:NAME:PORT`},
		{"roster with half a range", "[peers]\nroster = 'node[1-'", `tiering.toml:2: peers.roster: there is a [ without a ]`},
		{"roster without a file", "[peers]\nroster = 'file:'", `tiering.toml:2: peers.roster: is empty`},
		{"two names of a node", "[peers]\nname = 'a,b'", `tiering.toml:2: peers.name: "a,b" is not the name of a node`},
		{"peers listen without port", "[peers]\nlisten = '10.0.0.1'", `tiering.toml:2: peers.listen: "10.0.0.1" is not host:port`},
		{"peers listen on any port", "[peers]\nlisten = ':0'", `tiering.toml:2: peers.listen: ":0" has no port from 1 to 65535`},
		{"many nodes", "[peers]\nmin = 65537", `tiering.toml:2: peers.min: 65537 is not from 0 to 65536`},
		{"group of less than no node", "[peers]\ngroup = -1", `tiering.toml:2: peers.group: -1 is not from 0 to 65536`},
		{"level", "[log]\nlevel = 'INFO+1'", `tiering.toml:2: log.level: "INFO+1" is not a level`},
		{"format", "[log]\nformat = 'xml'", `tiering.toml:2: log.format: "xml" is not a format`},
		{"tier name", "[[tier]]\nname = 'RAM disk'", `tiering.toml:2: tier.name: "RAM disk" is not a name`},
		{"URL for path", "[source]\npath = 's3://bucket?token=geheim'", `tiering.toml:2: source.path: is a URL and not a path`},
		{"number for URL", "[source]\nurl = 1", `tiering.toml:2: source.url: must be text in double quotes`},
		{"path for URL", "[source]\nurl = '/data'", `tiering.toml:2: source.url: is not a URL`},
		{"unset variable in URL", "[source]\nurl = 's3://${MILKWEED_TEST_UNSET}'", `tiering.toml:2: source.url: the environment variable "MILKWEED_TEST_UNSET" is not set, or empty`},
		{"empty path", "[source]\npath = ''", `tiering.toml:2: source.path: is empty`},
		{"path with NUL", "[source]\npath = \"/a\\u0000b\"", `tiering.toml:2: source.path: "/a\x00b" is not a path`},
		{"unset variable", "[[tier]]\npath = '${MILKWEED_TEST_UNSET}/a'", `tiering.toml:2: tier.path: the environment variable "MILKWEED_TEST_UNSET" is not set, or empty`},
		{"open variable", "[[tier]]\npath = '/a/${HOME'", `tiering.toml:2: tier.path: "${HOME" has no "}"`},
		{"negative quota", "[[tier]]\nquota = '-1GiB'", `tiering.toml:2: tier.quota: "-1GiB" is not a size`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("tiering.toml", []byte(tt.data))
			if got := userError(t, err); got != tt.want && !(strings.HasSuffix(tt.want, "TOML: ") && strings.HasPrefix(got, tt.want)) {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestParseQuota(t *testing.T) {
	good := []struct {
		text, back string
		want       Quota
	}{
		{"10GiB", "10GiB", Quota{Bytes: 10 << 30}},
		{"10 gib", "10GiB", Quota{Bytes: 10 << 30}},
		{"500MB", "500MB", Quota{Bytes: 500e6}},
		{"1048576", "1MiB", Quota{Bytes: 1 << 20}},
		{"1.5GiB", "1536MiB", Quota{Bytes: 3 << 29}},
		{"1023", "1023", Quota{Bytes: 1023}},
		{"9007199254740993", "9007199254740993", Quota{Bytes: 1<<53 + 1}}, // not representable as float64
		{"9223372036854775807", "9223372036854775807", Quota{Bytes: 1<<63 - 1}},
		{"90%", "90%", Quota{Percent: 90}},
		{"12.5%", "12.5%", Quota{Percent: 12.5}},
		{"100 %", "100%", Quota{Percent: 100}},
	}
	for _, tt := range good {
		got, err := ParseQuota(tt.text)
		if err != nil || got != tt.want || got.String() != tt.back {
			t.Errorf("ParseQuota(%q) = %+v (%s), %v; want %+v (%s)", tt.text, got, got, err, tt.want, tt.back)
		}
		if again, err := ParseQuota(got.String()); again != got {
			t.Errorf("ParseQuota(%q) = %+v, %v; want %+v", got, again, err, got)
		}
	}
	bad := []string{"", " ", "-1GiB", "+1GiB", "1e30GiB", "1,5GiB", ".5GiB", "GiB", "1GiB2", "10 Gi B", "0", "0GiB", "0.1",
		"9223372036854775808", "8EiB", "99999999999999999999EiB", "1XiB", "١GiB", "NaN", "0x10",
		"%", "0%", "0.0%", "-5%", "101%", "100.001%", "1e1%", "NaN%", "Inf%", "5%%"}
	for _, text := range bad {
		if q, err := ParseQuota(text); err == nil {
			t.Errorf("ParseQuota(%q) = %+v, want an error", text, q)
		}
	}
}

func TestNoWindow(t *testing.T) {
	for _, in := range []string{"", "0", "0%"} {
		v := shareValue{Percent: 5}
		if err := v.Set(in); err != nil || v != (shareValue{}) {
			t.Errorf("%q: %v, %v, want no window", in, v, err)
		}
	}
}

func TestModeNames(t *testing.T) {
	for _, want := range []Mode{Auto, Passthrough, Stateless, Cached} {
		if got := parse(t, fmt.Sprintf("[mount]\nmode = %q", want)).Mount.Mode; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestRateLimits(t *testing.T) {
	for _, tt := range []struct {
		key, text, back string
		want            Source
	}{
		{"source.bandwidth", "500MB", "500MB", Source{Bandwidth: 500e6, Operations: 7}},
		{"source.bandwidth", "1.5 GiB", "1536MiB", Source{Bandwidth: 3 << 29, Operations: 7}},
		{"source.bandwidth", "1000000", "1MB", Source{Bandwidth: 1e6, Operations: 7}},
		{"source.bandwidth", "0MB", "", Source{Operations: 7}},
		{"source.bandwidth", "", "", Source{Operations: 7}},
		{"source.operations", "2000", "2000", Source{Bandwidth: 7, Operations: 2000}},
		{"source.operations", "0", "0", Source{Bandwidth: 7}},
	} {
		c := Default()
		c.Source = Source{Bandwidth: 7, Operations: 7}
		if err := c.Set(tt.key, tt.text, "flag"); err != nil || c.Source != tt.want {
			t.Errorf("%s = %q: got %+v, %v; want %+v", tt.key, tt.text, c.Source, err, tt.want)
		}
		for _, s := range c.Settings() {
			if s.Key == tt.key && s.Value != tt.back {
				t.Errorf("%s = %q reads back as %q, want %q", s.Key, tt.text, s.Value, tt.back)
			}
		}
	}
}

func TestQuotaOf(t *testing.T) {
	if got, want := (Quota{Percent: 50}).Of(1000), int64(500); got != want {
		t.Errorf("50%% of 1000: got %d, want %d", got, want)
	}
	if got, want := (Quota{Bytes: 7}).Of(1000), int64(7); got != want {
		t.Errorf("7 bytes of 1000: got %d, want %d", got, want)
	}
}

const whole = `# with everything
[source]
path = "/data"
bandwidth = "500MB"
operations = 2000

[[tier]]
name = "ram"
path = "/dev/shm/a"
quota = "10GiB"
[[tier]]
name = "ssd"
quota = """
90%"""
path = '/local/a'

[mount]
point = "mnt"
mode = "cached"
allow_other = true
attr_timeout = "90s"
consistency = "20s"
metadata_snapshot = "x.snapshot"
plan = "order.txt"

[placement]
workers = 4
window = "5%"

[scrub]
interval = "168h"
rate = "20MB"

[metrics]
listen = ":9877"

[log]
level = "debug"
format = "json"
file = "log"

[peers]
roster = ["node1", "node[2-3]:7441"]
listen = ":7440"
secret_file = "job.key"
gossip = false
min = 3
`

func TestParse(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	c := parse(t, whole)
	var got []string
	for _, s := range c.Settings() {
		got = append(got, s.Key+" = "+s.Value+" from "+s.Origin)
		if o := c.Origin(s.Key); o != s.Origin {
			t.Errorf("Origin(%q) = %q, want %q", s.Key, o, s.Origin)
		}
	}
	want := []string{
		"profile = none from default",
		"source.path = /data from tiering.toml:3",
		"source.url =  from default",
		"source.generation =  from default",
		"source.manifest =  from default",
		"source.bandwidth = 500MB from tiering.toml:4",
		"source.operations = 2000 from tiering.toml:5",
		"source.clock_skew = 5s from default",
		"tier.ram.path = /dev/shm/a from tiering.toml:9",
		"tier.ram.quota = 10GiB from tiering.toml:10",
		"tier.ssd.path = /local/a from tiering.toml:15",
		"tier.ssd.quota = 90% from tiering.toml:13",
		"mount.point = " + dir + "/mnt from tiering.toml:18",
		"mount.mode = cached from tiering.toml:19",
		"mount.allow_other = true from tiering.toml:20",
		"mount.force_allow_other = false from default",
		"mount.xattrs = false from default",
		"mount.attr_timeout = 1m30s from tiering.toml:21",
		"mount.consistency = 20s from tiering.toml:22",
		"mount.metadata_snapshot = " + dir + "/x.snapshot from tiering.toml:23",
		"mount.plan = " + dir + "/order.txt from tiering.toml:24",
		"placement.workers = 4 from tiering.toml:27",
		"placement.window = 5% from tiering.toml:28",
		"peers.roster = node1,node[2-3]:7441 from tiering.toml:43",
		"peers.name =  from default",
		"peers.listen = :7440 from tiering.toml:44",
		"peers.secret_file = " + dir + "/job.key from tiering.toml:45",
		"peers.tls_cert =  from default",
		"peers.tls_key =  from default",
		"peers.tls_ca =  from default",
		"peers.serve = true from default",
		"peers.gossip = false from tiering.toml:46",
		"peers.min = 3 from tiering.toml:47",
		"peers.wait = 2m from default",
		"peers.group = 0 from default",
		"scrub.interval = 168h from tiering.toml:31",
		"scrub.rate = 20MB from tiering.toml:32",
		"metrics.listen = 127.0.0.1:9877 from tiering.toml:35",
		"log.level = debug from tiering.toml:38",
		"log.format = json from tiering.toml:39",
		"log.file = " + dir + "/log from tiering.toml:40",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

func TestDefault(t *testing.T) {
	c := parse(t, "")
	want := Config{
		Profile:   "none",
		Source:    Source{ClockSkew: 5 * time.Second},
		Mount:     Mount{Mode: "auto", AttrTimeout: time.Hour, Consistency: time.Minute, MetadataSnapshot: "auto"},
		Placement: Placement{Workers: 64},
		Peers:     Peers{Serve: true, Gossip: true, Wait: 2 * time.Minute},
		Scrub:     Scrub{Rate: 50_000_000},
		Log:       Log{Format: "text"},
	}
	if got := fmt.Sprintf("%+v", *c); got != fmt.Sprintf("%+v", want) {
		t.Errorf("got %s, want %+v", got, want)
	}
	for _, s := range c.Settings() {
		if !s.IsDefault() {
			t.Errorf("%s comes from %q, want default", s.Key, s.Origin)
		}
	}
}

// The path of a file with a roster becomes absolute.
func TestRoster(t *testing.T) {
	t.Chdir("/")
	for text, want := range map[string]string{"": "", "node1,node[2-4]": "node1,node[2-4]", "slurm": "slurm", "file:nodes": "file:/nodes", "dns:milkweed": "dns:milkweed"} {
		if got := parse(t, fmt.Sprintf("[peers]\nroster = %q", text)).Peers.Roster; got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// The words "auto" and "off" are no files; every other text is one.
func TestMetadataSnapshot(t *testing.T) {
	t.Chdir("/")
	for text, want := range map[string]string{"auto": "", "off": "", "./off": "/off", "/a/auto": "/a/auto"} {
		c := parse(t, fmt.Sprintf("[mount]\nmetadata_snapshot = %q", text))
		if got := c.Mount.SnapshotFile(); got != want {
			t.Errorf("%q: got the file %q, want %q", text, got, want)
		}
	}
}

func TestPathsExpandVariables(t *testing.T) {
	t.Setenv("MILKWEED_TEST_DIR", "/scratch/17")
	c := parse(t, "[[tier]]\nname = 'a'\npath = '${MILKWEED_TEST_DIR}/milkweed/$x/~'")
	if got, want := c.Tiers[0].Path, "/scratch/17/milkweed/$x/~"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	c = parse(t, "[[tier]]\nname = 'a'\n[mount]\nmetadata_snapshot = '${MILKWEED_TEST_DIR}/snapshot'")
	if got, want := c.Mount.MetadataSnapshot, "/scratch/17/snapshot"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := c.Set("tier.a.path", "/b/${MILKWEED_TEST_DIR}", "flag"); err != nil {
		t.Fatal(err)
	}
	if got, want := c.Tiers[0].Path, "/b/${MILKWEED_TEST_DIR}"; got != want {
		t.Errorf("Set: got %q, want %q", got, want)
	}
}

func TestSet(t *testing.T) {
	c := parse(t, whole)
	for name, value := range map[string]string{
		"placement.workers": "16", "tier.ssd.quota": "5GiB", "mount.attr_timeout": "10m", "mount.allow_other": "false", "metrics.listen": "",
	} {
		if err := c.Set(name, value, "flag --x"); err != nil {
			t.Error(err)
		}
		if got, want := c.Origin(name), "flag --x"; got != want {
			t.Errorf("origin of %s: got %q, want %q", name, got, want)
		}
	}
	if c.Placement.Workers != 16 || c.Tiers[1].Quota != (Quota{Bytes: 5 << 30}) || c.Mount.AttrTimeout != 10*time.Minute ||
		c.Mount.AllowOther || c.Metrics.Listen != "" {
		t.Errorf("values were not set: %+v", c)
	}
	for _, tt := range []struct{ name, value, want string }{
		{"placement.workers", "x", `flag --x: placement.workers: "x" is not a number`},
		{"mount.mode", "fast", `flag --x: mount.mode: "fast" is not a mode`},
		{"tier.tape.quota", "1GiB", `flag --x: unknown key "tier.tape.quota"`},
		{"tier.quota", "1GiB", `flag --x: unknown key "tier.quota"`},
		{"mount", "1", `flag --x: unknown key "mount"`},
	} {
		if got := userError(t, c.Set(tt.name, tt.value, "flag --x")); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
	if c.Placement.Workers != 16 {
		t.Errorf("a wrong value changed workers to %d", c.Placement.Workers)
	}
}

func TestSetOverDefault(t *testing.T) {
	c := Default()
	if err := c.Set("source.path", "/a", "argument SOURCE"); err != nil {
		t.Fatal(err)
	}
	if c.Source.Path != "/a" || c.Origin("source.path") != "argument SOURCE" || c.Origin("mount.mode") != "default" {
		t.Errorf("got %q from %q", c.Source.Path, c.Origin("source.path"))
	}
}

func TestLoadMissing(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "absent.toml"), dir} {
		_, err := Load(path)
		if got := userError(t, err); !strings.Contains(got, path) {
			t.Errorf("%s does not name %s", got, path)
		}
	}
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv(Environment, "")
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config"))
	old := systemFolder
	systemFolder = filepath.Join(dir, "etc")
	t.Cleanup(func() { systemFolder = old })

	_, err := Find("")
	candidates := []string{"tiering.toml", filepath.Join(dir, "config/milkweed/tiering.toml"), filepath.Join(dir, "etc/milkweed/tiering.toml")}
	if got, want := userError(t, err), "no configuration file: none of "+strings.Join(candidates, ", ")+" exists"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}

	check := func(explicit, want string) {
		t.Helper()
		if got, err := Find(explicit); got != want || err != nil {
			t.Errorf("Find(%q) = %q, %v; want %q", explicit, got, err, want)
		}
	}
	// The last candidate comes first. Each candidate takes precedence over those before it.
	for _, p := range slices.Backward(candidates) {
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		check("", p)
	}
	t.Setenv(Environment, "/from/environment")
	check("", "/from/environment")
	check("/from/flag", "/from/flag")
}

// TestSampleIsComplete checks the tiering.toml of the repository. It must contain
// every key, and be valid when the keys that are commented out are made active. The
// values of those keys must be the defaults.
func TestSampleIsComplete(t *testing.T) {
	data, err := os.ReadFile("../../../tiering.toml")
	if err != nil {
		t.Fatal(err)
	}
	active := regexp.MustCompile(`(?m)^# (\w+ = )`).ReplaceAll(data, []byte("$1"))
	c := parse(t, string(active))
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	for _, name := range c.settableKeys() {
		if c.Origin(name) == "default" {
			t.Errorf("%s is missing", name)
		}
	}
	for i := range c.Tiers {
		if c.originOf(tierKey(i, "name")) == "default" {
			t.Errorf("the name of tier %d is missing", i)
		}
	}

	d := Default()
	d.Source, d.Tiers, d.Mount.Point = c.Source, c.Tiers, c.Mount.Point
	want := make(map[string]string)
	for _, s := range d.Settings() {
		want[s.Key] = s.Value
	}
	for _, c := range []*Config{c, parse(t, string(data))} {
		for _, s := range c.Settings() {
			if s.Value != want[s.Key] {
				t.Errorf("%s is %q, but its default is %q", s.Key, s.Value, want[s.Key])
			}
		}
	}
}

// The files in examples/tiering are valid.
func TestExamplesAreValid(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("SLURM_JOB_ID", "17")
	t.Setenv("SLURM_TMPDIR", dir)
	files, err := filepath.Glob("../../../examples/tiering/*.toml")
	if err != nil || len(files) == 0 {
		t.Fatalf("got %v, %v; want files", files, err)
	}
	for _, file := range files {
		c, err := Load(file)
		if err != nil {
			t.Error(err)
			continue
		}
		if err := c.Validate(); err != nil {
			t.Error(err)
		}
	}
}

func TestLines(t *testing.T) {
	text := "\ufeff# [no]\r\na = [ # ]\n 1, '[x]',\n]\n\"b.c\" . d = \"\"\"\n[no]\n\\\"\"\"\"\"\"\ne = { f = [1], g = \"}\\\"\" }\n" +
		"[h] # x\ni.j = '''\nk = 1'''\n[[l]]\nm = 1\n[[l]]\n\n'm' = 2\n[l.n]\no = 1 # end"
	got := scanLines(text)
	for key, want := range map[string]int{
		"a": 2, "b.c.d": 5, "e": 8, "h": 9, "h.i": 10, "h.i.j": 10, "l[0]": 12, "l[0].m": 13, "l[1]": 14, "l[1].m": 16,
	} {
		if got[key] != want {
			t.Errorf("%s: got line %d, want %d", key, got[key], want)
		}
	}
	if got, want := got.of("e.f.x"), 8; got != want {
		t.Errorf("within an inline table: got line %d, want %d", got, want)
	}
	if n, ok := got["no"]; ok {
		t.Errorf("a heading in a string or a comment was found on line %d", n)
	}
}

// FuzzParse checks that Parse does not panic, that each error is one line with a
// remedy, and that Set accepts every value that Each returns.
func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte("[[tier]]\nquotta = '1GiB'"))
	f.Add([]byte("tier = [{name='a', quota='1%'}, {name='a'}]\nmount.mode='auto'"))
	f.Add([]byte("[source]\nurl = 's3://b/p?endpoint=h:1&region=r'\n[[tier]]\nname='a'\npath='/a'\nquota='1%'"))
	f.Add([]byte("[a\n\"\\\n'''"))
	if data, err := os.ReadFile("../../../tiering.toml"); err == nil {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		scanLines(string(data)) // must return for invalid TOML, too
		c, err := Parse("tiering.toml", data)
		if err != nil {
			userError(t, err)
			return
		}
		if err := c.validateTiers(); err != nil {
			userError(t, err)
			return // the names of tiers may be missing or duplicate
		}
		for _, s := range c.Settings() {
			if s.Value == "" {
				continue // the value is not set
			}
			if err := c.Set(s.Key, s.Value, "flag"); err != nil {
				t.Errorf("Set refuses a value of Settings: %v", err)
			}
		}
		for _, s := range c.Settings() {
			if s.IsDefault() && s.Value != "" {
				t.Errorf("%s = %q has no origin", s.Key, s.Value)
			}
		}
	})
}
