package config

import (
	"strings"
	"testing"
	"time"
)

// Each value of a profile is valid, differs from the default, and has a reason.
func TestProfiles(t *testing.T) {
	for _, p := range Profiles() {
		if len(p.Values) == 0 || !strings.HasSuffix(p.For, ".") {
			t.Errorf("%+v has no values, or is for nothing", p)
		}
		c, d := parse(t, "profile = '"+p.Name+"'"), Default()
		for _, v := range p.Values {
			_, k, _, ok := d.lookup(v.Key)
			if !ok {
				t.Fatalf("%s: there is no key %s", p.Name, v.Key)
			}
			if got := k.field(c, nil).String(); got != v.Value || c.Origin(v.Key) != "profile "+p.Name {
				t.Errorf("%s: %s is %s from %s, want %s", p.Name, v.Key, got, c.Origin(v.Key), v.Value)
			}
			if k.field(&d, nil).String() == v.Value || !strings.HasSuffix(v.Reason, ".") {
				t.Errorf("%s: %s is the default, or has no reason: %+v", p.Name, v.Key, v)
			}
		}
		for _, s := range c.Settings() {
			if !s.IsDefault() && s.Key != "profile" && !p.sets(s.Key) {
				t.Errorf("%s sets %+v", p.Name, s)
			}
		}
		c.Source.Path, c.Mount.Point = "/a", "/b"
		c.Tiers = []Tier{{Name: "t", Path: "/c", Quota: Quota{Percent: 1}}}
		if err := c.ValidateValues(); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
}

// A profile determines what nothing else sets, in any order, and the last profile counts.
func TestProfilePrecedence(t *testing.T) {
	set := func(c *Config, key, value string) {
		t.Helper()
		if err := c.Set(key, value, "flag"); err != nil {
			t.Fatal(err)
		}
	}
	check := func(c *Config, key, value, origin string) {
		t.Helper()
		for _, s := range c.Settings() {
			if s.Key == key && s != (Setting{key, value, origin}) {
				t.Errorf("got %+v, want %s from %s", s, value, origin)
			}
		}
	}
	c := parse(t, "profile = 'hpc'\n[mount]\nattr_timeout = '1h'\n")
	check(c, "profile", "hpc", "tiering.toml:1")
	check(c, "mount.attr_timeout", "1h", "tiering.toml:3") // the default, set by the user
	check(c, "mount.consistency", "24h", "profile hpc")
	check(c, "mount.mode", "auto", "default")
	set(c, "profile", "imagenet-folder")
	check(c, "mount.attr_timeout", "1h", "tiering.toml:3")
	check(c, "mount.consistency", "1m", "default")
	check(c, "mount.mode", "stateless", "profile imagenet-folder")
	set(c, "mount.mode", "cached")
	set(c, "profile", "tfrecord")
	check(c, "mount.mode", "cached", "flag")
	set(c, "source.url", "s3://bucket")
	check(c, "mount.consistency", "0s", "default")
	set(c, "profile", "object-store")
	check(c, "mount.consistency", "24h", "profile object-store")
	set(c, "profile", NoProfile)
	check(c, "mount.consistency", "0s", "default")
}

func TestProfileErrors(t *testing.T) {
	for data, want := range map[string]string{
		"profile = 'hcp'":                   `f:1: profile: "hcp" is not a profile`,
		"\nprofile = 'imagnet-folder'":      `f:2: profile: "imagnet-folder" is not a profile: did you mean "imagenet-folder"?`,
		"profile = 'tfrecords'":             `f:1: profile: "tfrecords" is not a profile: did you mean "tfrecord"?`,
		"profile = ''":                      `f:1: profile: "" is not a profile`,
		"profile = 1":                       `f:1: profile: must be text in double quotes`,
		"[profile]\nname = 'hpc'":           `f:1: profile: must be text in double quotes`,
		"profil = 'hpc'":                    `f:1: unknown key "profil": did you mean "profile"?`,
		"[mount]\nprofile = 'hpc'":          `f:2: unknown key "mount.profile": did you mean "profile"?`,
		"\"\" = {profile = 'hpc'}":          `f:1: unknown table ""`,
		"profile = 'hpc'\n[placement]\nx=1": `f:3: unknown key "placement.x"`,
	} {
		_, err := Parse("f", []byte(data))
		if got := userError(t, err); got != want {
			t.Errorf("%q: got %s, want %s", data, got, want)
		}
	}
}

// Another profile is a change that a mount does not take over, and neither are the values that it sets and that
// cannot be reloaded. Values that are adopted keep the origin of the configuration that they come from.
func TestProfileReload(t *testing.T) {
	c, next := parse(t, "profile = 'hpc'\n[scrub]\ninterval = '1h'"), parse(t, "[mount]\nattr_timeout = '24h'\n[scrub]\ninterval = '2h'")
	changed, fixed := c.Compare(next)
	if len(changed) != 1 || changed[0].Key != "scrub.interval" {
		t.Errorf("changed: %+v", changed)
	}
	if len(fixed) != 2 || fixed[0].Key != "profile" || fixed[1] != (Change{"mount.consistency", "24h", "1m", "default"}) {
		t.Errorf("fixed: %+v", fixed)
	}
	if err := c.Adopt(next, changed); err != nil {
		t.Fatal(err)
	}
	if c.Mount.Consistency != 24*time.Hour || c.Origin("mount.consistency") != "profile hpc" || c.Origin("mount.attr_timeout") != "tiering.toml:2" {
		t.Errorf("%+v", c.Settings())
	}
	same := parse(t, "profile = 'hpc'\n[mount]\nconsistency = '1m'")
	err := same.Adopt(parse(t, ""), []Change{{Key: "log.level", New: "warn"}})
	if err != nil || same.Origin("mount.consistency") != originDefault || same.Set("log.level", "info", "flag") != nil || same.Mount.Consistency != time.Minute {
		t.Errorf("a default that the profile would set: %+v, %v", same.Settings(), err)
	}
	if err := c.Adopt(parse(t, "profile = 'hpc'"), nil); err != nil || c.Origin("mount.attr_timeout") != "profile hpc" {
		t.Errorf("got %s, %v; want the profile again", c.Origin("mount.attr_timeout"), err)
	}
}
