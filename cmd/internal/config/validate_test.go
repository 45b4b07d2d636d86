package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// valid returns a valid configuration with all paths below dir.
func valid(dir string) *Config {
	c := Default()
	c.Source.Path = filepath.Join(dir, "source")
	c.Mount.Point = filepath.Join(dir, "mnt")
	c.Tiers = []Tier{
		{Name: "ram", Path: filepath.Join(dir, "ram"), Quota: Quota{Bytes: 1}},
		{Name: "ssd", Path: filepath.Join(dir, "ssd"), Quota: Quota{Percent: 1}},
	}
	return &c
}

func TestValidate(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"source/sub", "ram", "mnt", "other"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"to-source": "source", "to-ram": "ram", "to-dir": "."} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name string
		edit func(c *Config)
		want string // $ stands for dir
	}{
		{"valid", func(*Config) {}, ""},
		{"similar names", func(c *Config) { c.Tiers[0].Path = dir + "/source-2" }, ""},
		{"no source", func(c *Config) { c.Source.Path = "" }, `source.path: is missing`},
		{"bucket", func(c *Config) { c.Source = Source{URL: "s3://bucket"} }, ""},
		{"bucket with the path of a tier as its name", func(c *Config) { c.Source = Source{URL: "s3:/" + dir + "/ram"} }, ""},
		{"two sources", func(c *Config) { c.Source.URL = "s3://bucket" }, `source.url: source.path is set too, by default`},
		{"tier in tier beside a bucket", func(c *Config) {
			c.Source = Source{URL: "s3://bucket"}
			c.Tiers[1].Path = dir + "/ram/x"
		}, `tier.path: "$/ram/x" lies inside the tier "ram" "$/ram"`},
		{"no mount point", func(c *Config) { c.Mount.Point = "" }, `mount.point: is missing`},
		{"no tier", func(c *Config) { c.Tiers = nil }, `tier: no tier is configured`},
		{"no name", func(c *Config) { c.Tiers[1].Name = "" }, `tier.name: is missing`},
		{"no tier path", func(c *Config) { c.Tiers[1].Path = "" }, `tier.path: is missing`},
		{"window larger than the tier", func(c *Config) {
			c.Tiers[0].Quota, c.Placement.Window = Quota{Bytes: 8 << 30}, Quota{Bytes: 9 << 30}
		}, `placement.window: 9GiB is more than the quota of tier ram, which is 8GiB`},
		{"no quota", func(c *Config) { c.Tiers[0].Quota = Quota{} }, `tier.quota: is missing`},
		{"same name", func(c *Config) { c.Tiers[1].Name = "ram" }, `tier.name: "ram" is also the name of tier 1`},
		{"too many", func(c *Config) {
			for i := range 15 {
				c.Tiers = append(c.Tiers, Tier{fmt.Sprint(i), fmt.Sprintf("%s/t%d", dir, i), Quota{Bytes: 1}})
			}
		}, `tier: 17 tiers are more than 16`},

		{"same tier", func(c *Config) { c.Tiers[1].Path = dir + "/ram" }, `tier.path: "$/ram" is the tier "ram" "$/ram"`},
		{"same tier by link", func(c *Config) { c.Tiers[1].Path = dir + "/to-ram" }, `tier.path: "$/to-ram" is the tier "ram" "$/ram"`},
		{"same tier by link, missing", func(c *Config) {
			c.Tiers[0].Path, c.Tiers[1].Path = dir+"/x/y", dir+"/to-dir/x/y"
		}, `tier.path: "$/to-dir/x/y" is the tier "ram" "$/x/y"`},
		{"tier in tier", func(c *Config) { c.Tiers[1].Path = dir + "/ram/x" }, `tier.path: "$/ram/x" lies inside the tier "ram" "$/ram"`},
		{"tier in source", func(c *Config) { c.Tiers[0].Path = dir + "/source/sub/x" }, `tier.path: "$/source/sub/x" lies inside the source "$/source"`},
		{"tier in source by link", func(c *Config) { c.Tiers[0].Path = dir + "/to-source/x" }, `tier.path: "$/to-source/x" lies inside the source "$/source"`},
		{"source in tier", func(c *Config) { c.Source.Path = dir + "/ram/x" }, `tier.path: "$/ram" contains the source "$/ram/x"`},
		{"source is root", func(c *Config) { c.Source.Path = "/" }, `tier.path: "$/ram" lies inside the source "/"`},
		{"mount point is source", func(c *Config) { c.Mount.Point = dir + "/source" }, `mount.point: "$/source" is the source "$/source"`},
		{"mount point in source", func(c *Config) { c.Mount.Point = dir + "/source/sub" }, `mount.point: "$/source/sub" lies inside the source "$/source"`},
		{"mount point in tier", func(c *Config) { c.Mount.Point = dir + "/ram/m" }, `mount.point: "$/ram/m" lies inside the tier "ram" "$/ram"`},
		{"snapshot outside of all", func(c *Config) { c.Mount.MetadataSnapshot = dir + "/snapshot" }, ""},
		{"snapshot in tier", func(c *Config) { c.Mount.MetadataSnapshot = dir + "/ram/snapshot" }, ""},
		{"snapshot in source", func(c *Config) { c.Mount.MetadataSnapshot = dir + "/source/snapshot" }, `mount.metadata_snapshot: "$/source/snapshot" lies inside the source "$/source"`},
		{"snapshot in source by link", func(c *Config) { c.Mount.MetadataSnapshot = dir + "/to-source/snapshot" }, `mount.metadata_snapshot: "$/to-source/snapshot" lies inside the source "$/source"`},
		{"snapshot is source", func(c *Config) { c.Mount.MetadataSnapshot = dir + "/source" }, `mount.metadata_snapshot: "$/source" is the source "$/source"`},
		{"snapshot under mount point", func(c *Config) { c.Mount.MetadataSnapshot = dir + "/mnt/x/snapshot" }, `mount.metadata_snapshot: "$/mnt/x/snapshot" lies inside the mount point "$/mnt"`},
		{"plan in source", func(c *Config) { c.Mount.Plan = dir + "/source/order.txt" }, ""},
		{"plan in tier", func(c *Config) { c.Mount.Plan = dir + "/ram/order.txt" }, ""},
		{"plan under mount point", func(c *Config) { c.Mount.Plan = dir + "/mnt/order.txt" }, `mount.plan: "$/mnt/order.txt" lies inside the mount point "$/mnt"`},
		{"roster", func(c *Config) { c.Peers.Roster = "slurm" }, ""},
		{"no nodes", func(c *Config) { c.Peers.Min, c.Peers.Listen = 0, ":7440" }, ""},
		{"names without a number", func(c *Config) { c.Peers.Roster = "dns:milkweed" }, `peers.min: is missing, and the roster is "dns:milkweed"`},
		{"names with a number", func(c *Config) { c.Peers.Roster, c.Peers.Min = "dns:milkweed", 4 }, ""},
		{"no secret", func(c *Config) { c.Peers.Roster, c.Peers.Listen = "a,b", ":7440" }, `peers.listen: other machines can reach :7440, and there is no secret`},
		{"no secret on loopback", func(c *Config) { c.Peers.Roster, c.Peers.Listen = "a,b", "[::1]:7440" }, ""},
		{"no secret, serves nobody", func(c *Config) { c.Peers.Roster, c.Peers.Listen, c.Peers.Serve = "a,b", ":7440", false }, ""},
		{"TLS", func(c *Config) {
			c.Peers.Roster, c.Peers.TLSCert, c.Peers.TLSKey, c.Peers.TLSCA = "a,b", "/c", "/k", "/a"
		}, ""},
		{"TLS without authorities", func(c *Config) { c.Peers.Roster, c.Peers.TLSCert, c.Peers.TLSKey = "a,b", "/c", "/k" }, `peers.tls_ca: is missing`},
		{"TLS without a key", func(c *Config) { c.Peers.Roster, c.Peers.TLSCert, c.Peers.TLSCA = "a,b", "/c", "/a" }, `peers.tls_key: is missing`},
		{"authorities without a certificate", func(c *Config) { c.Peers.Roster, c.Peers.TLSCA = "a,b", "/a" }, `peers.tls_cert: is missing`},
		{"secret", func(c *Config) { c.Peers.Roster, c.Peers.Listen, c.Peers.SecretFile = "a,b", ":7440", "/x" }, ""},
		{"mount point around all", func(c *Config) { c.Mount.Point = dir }, `mount.point: "$" contains the source "$/source"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := valid(dir)
			tt.edit(c)
			err := c.Validate()
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			want := strings.ReplaceAll(tt.want, "$", dir)
			if got := userError(t, err); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

// A message contains the line of the value. For a missing key it contains the line
// of the table.
func TestValidateNamesTheLine(t *testing.T) {
	for _, tt := range []struct{ data, want string }{
		{"[mount]\npoint = '/m'\n[source]", "tiering.toml:3: source.path: is missing"},
		{"[source]\npath = '/s'\n[mount]\nmode = 'auto'", "tiering.toml:3: mount.point: is missing"},
		{"[source]\nurl = 's3://b'\n#\npath = '/s'\n[mount]\npoint = '/m'", "tiering.toml:2: source.url: source.path is set too, by tiering.toml:4"},
		{"mount.point = '/m'\nsource.path = '/s'\n[[tier]]\n[[tier]]\n", "tiering.toml:3: tier.name: is missing"},
		{"mount.point = '/m'\nsource.path = '/s'\n[[tier]]\nname = 'a'\nquota = '1%'\npath = '/s/a'", `tiering.toml:6: tier.path: "/s/a" lies inside the source "/s"`},
	} {
		if got := userError(t, parse(t, tt.data).Validate()); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}

func TestValidateDetectsBindMounts(t *testing.T) {
	dir := t.TempDir()
	source, other := filepath.Join(dir, "source"), filepath.Join(dir, "other")
	for _, d := range []string{source, other} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount(source, other, "", unix.MS_BIND, ""); err != nil {
		drivertest.Skipf(t, "needs the right to bind-mount: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(other, unix.MNT_DETACH) })
	c := valid(dir)
	c.Tiers[1].Path = filepath.Join(other, "x")
	want := fmt.Sprintf(`tier.path: %q lies inside the source %q`, c.Tiers[1].Path, source)
	if got := userError(t, c.Validate()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Validate returns while a file system hangs. It waits for a tier for a short time only. Package
// check reports the file system.
func TestValidateDoesNotHang(t *testing.T) {
	for name, test := range map[string]struct {
		hangs func(*Config) string
		limit *time.Duration
	}{
		"mount point": {func(c *Config) string { return c.Mount.Point }, &resolveTimeout},
		"snapshot": {func(c *Config) string {
			folder := c.Tiers[0].Path + "-hung"
			c.Mount.MetadataSnapshot = folder + "/snapshot"
			return folder
		}, &tierTimeout},
		"tier": {func(c *Config) string { return c.Tiers[0].Path }, &tierTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			c := valid(t.TempDir())
			hang(t, test.hangs(c))
			defer func(r, t time.Duration) { resolveTimeout, tierTimeout = r, t }(resolveTimeout, tierTimeout)
			resolveTimeout, tierTimeout = time.Hour, time.Hour
			*test.limit = 50 * time.Millisecond
			if err := c.Validate(); err != nil {
				t.Error(err)
			}
		})
	}
}

// hang mounts a file system that hangs on dir, which it makes.
func hang(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		drivertest.Skipf(t, "needs /dev/fuse: %v", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device.Fd())
	if err := unix.Mount("nobody", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		device.Close()
		drivertest.Skipf(t, "needs the right to mount: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	t.Cleanup(func() { device.Close() }) // fails the requests that hang
}
