package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// showConfig returns what config show prints.
func showConfig(t *testing.T, words ...string) (settings []config.Setting) {
	t.Helper()
	out, _, err := runMilkweed(t, append([]string{"config", "show", "--json"}, words...)...)
	if err != nil {
		t.Fatalf("%q: %v", words, err)
	}
	if err := json.Unmarshal([]byte(out), &settings); err != nil {
		t.Fatalf("%q: %v: %s", words, err, out)
	}
	return settings
}

// Without a mount, config show prints what mount would use, and needs neither the source nor the tiers.
func TestConfigShow(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv(config.Environment, "")
	toml := "[source]\npath = \"/gone\"\n[[tier]]\nname = \"ssd\"\npath = \"/elsewhere\"\nquota = \"90%\"\n"
	if err := os.WriteFile("tiering.toml", []byte(toml), 0o600); err != nil {
		t.Fatal(err)
	}
	all := showConfig(t, "--workers", "3", "-o", "attr_timeout=30s", "/mnt")
	for _, want := range []config.Setting{
		{Key: "source.path", Value: "/gone", Origin: "tiering.toml:2"},
		{Key: "tier.ssd.quota", Value: "90%", Origin: "tiering.toml:6"},
		{Key: "mount.point", Value: "/mnt", Origin: "argument MOUNTPOINT"},
		{Key: "mount.attr_timeout", Value: "30s", Origin: "option attr_timeout"},
		{Key: "mount.mode", Value: "auto", Origin: "default"},
		{Key: "placement.workers", Value: "3", Origin: "flag --workers"},
	} {
		if !slices.Contains(all, want) {
			t.Errorf("no %+v in %+v", want, all)
		}
	}
	changed := showConfig(t, "--changed")
	if slices.ContainsFunc(changed, config.Setting.IsDefault) || len(changed) != 3 {
		t.Errorf("--changed: got %+v", changed)
	}
	out, _, err := runMilkweed(t, "config", "show", "--changed")
	if want := "source.path     /gone       tiering.toml:2\n"; err != nil || !strings.HasPrefix(out, want) {
		t.Errorf("got %q, %v; want %q first", out, err, want)
	}
	if _, _, err := runMilkweed(t, "config", "show", "-c", "none.toml"); exit.Of(err) != exit.Usage || !strings.Contains(err.Error(), "none.toml") {
		t.Errorf("a file that is missing: got %v", err)
	}
}

// Of a mount, config show prints the values with which it was made, also if the file has changed since.
func TestConfigShowOfMount(t *testing.T) {
	s := newSite(t)
	s.write("d/f", 1000)
	s.mountWith("attr_timeout=30s,workers=5", "64MiB")
	show := func(words ...string) string {
		return s.milkweed(append([]string{"config", "show"}, words...)...)
	}
	for _, path := range []string{s.point, filepath.Join(s.point, "d/f")} {
		got := strings.Fields(show("--changed", path))
		for _, want := range [][]string{{"source.path", s.source}, {"mount.attr_timeout", "30s", "option", "attr_timeout"}, {"placement.workers", "5"}} {
			if i := slices.Index(got, want[0]); i < 0 || !slices.Equal(got[i:i+len(want)], want) {
				t.Errorf("%s: no %q in %q", path, want, got)
			}
		}
	}
	if got := show("--workers=7", s.source, s.point); !strings.Contains(got, "flag --workers") {
		t.Errorf("with other arguments, it is not about the mount any more: got %q", got)
	}
	s.umount()
	s.wantNothing()
}

// The command prints the schema, which a test of package config validates.
func TestConfigSchema(t *testing.T) {
	out, _, err := runMilkweed(t, "config", "schema")
	if err != nil || out != string(config.Schema()) || !json.Valid([]byte(out)) {
		t.Errorf("got %d bytes, %v", len(out), err)
	}
	if _, _, err := runMilkweed(t, "config", "shcema"); exit.Of(err) != exit.Usage || !strings.Contains(err.Error(), "milkweed config schema") {
		t.Errorf("a misspelled command: got %v", err)
	}
}

// A profile replaces defaults only: the file, options, flags and arguments win, for the profile itself too.
func TestProfileOfMount(t *testing.T) {
	s := newSite(t)
	s.write("d/f", 1<<20) // auto would not choose stateless, if passthrough works
	s.writeReloadable("64MiB", "[placement]\nworkers = 5\n")
	file := s.dir + "/tiering.toml"
	data, err := os.ReadFile(file)
	s.check(err)
	s.check(os.WriteFile(file, append([]byte("profile = \"tfrecord\"\n"), data...), 0o600))

	origin := func(key string, words ...string) string {
		all := showConfig(t, append([]string{"-c", file}, words...)...)
		i := slices.IndexFunc(all, func(v config.Setting) bool { return v.Key == key })
		return all[i].Value + " from " + all[i].Origin
	}
	for _, c := range []struct{ key, words, want string }{
		{"profile", "", "tfrecord from " + file + ":1"},
		{"profile", "-o profile=hpc", "hpc from option profile"},
		{"profile", "-o profile=hpc --profile imagenet-folder", "imagenet-folder from flag --profile"},
		{"mount.mode", "", "passthrough from profile tfrecord"},
		{"mount.mode", "--profile none", "auto from default"},
		{"mount.mode", "-o profile=hpc --profile imagenet-folder", "stateless from profile imagenet-folder"},
		{"mount.mode", "-o mode=cached --profile imagenet-folder", "cached from option mode"},
		{"mount.mode", "-o mode=cached --profile imagenet-folder --mode auto", "auto from flag --mode"},
		{"placement.workers", "--profile hpc", "5 from " + file + ":11"},
		{"mount.point", "--profile hpc /elsewhere", "/elsewhere from argument MOUNTPOINT"},
	} {
		if got := origin(c.key, strings.Fields(c.words)...); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s with %q: got %s, want %s", c.key, c.words, got, c.want)
		}
	}

	s.milkweed("mount", "-c", file, "--profile", "imagenet-folder")
	if st := s.status(); st.Mode != string(config.Stateless) {
		t.Errorf("the mode is %s, want stateless", st.Mode)
	}
	got := strings.Fields(s.milkweed("config", "show", "--changed", s.point))
	for _, want := range [][]string{
		{"profile", "imagenet-folder", "flag", "--profile"},
		{"mount.mode", "stateless", "profile", "imagenet-folder"},
		{"mount.attr_timeout", "24h", "profile", "imagenet-folder"},
	} {
		if i := slices.Index(got, want[0]); i < 0 || !slices.Equal(got[i:i+len(want)], want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
	s.umount()

	s.milkweed("mount", "-c", file)
	s.check(os.WriteFile(file, append([]byte("profile = \"hpc\"\n"), data...), 0o600))
	r := s.try("config", "reload", s.point)
	if r.code != exit.Incomplete || !strings.Contains(r.stderr, "profile, mount.mode, mount.attr_timeout, mount.consistency") {
		t.Errorf("another profile: %+v", r)
	}
	s.umount()
	s.wantNothing()
}

// The command lists the profiles, or one.
func TestConfigProfiles(t *testing.T) {
	out, _, err := runMilkweed(t, "config", "profiles")
	for _, p := range config.Profiles() {
		if err != nil || !strings.Contains(out, p.Name+": "+p.For+"\n") {
			t.Errorf("no %s in %q, %v", p.Name, out, err)
		}
		for _, v := range p.Values {
			if !strings.Contains(out, "  "+v.Key+" = "+v.Value+"\n    ") {
				t.Errorf("no %+v in %q", v, out)
			}
		}
	}
	out, _, err = runMilkweed(t, "config", "profiles", "--json", "hpc")
	var got []config.Profile
	if err != nil || json.Unmarshal([]byte(out), &got) != nil || len(got) != 1 || got[0].Name != "hpc" || len(got[0].Values) != 2 || got[0].Values[0].Reason == "" {
		t.Errorf("got %s, %v", out, err)
	}
	for _, words := range [][]string{{"config", "profiles", "tfrecords"}, {"mount", "--fake", "--profile", "tfrecords", "/", "/mnt"}, {"check", "-o", "profile=tfrecords", "/"}} {
		_, _, err := runMilkweed(t, words...)
		if exit.Of(err) != exit.Usage || !strings.Contains(err.Error(), `"tfrecords" is not a profile: did you mean "tfrecord"?`) {
			t.Errorf("%q: got %v", words, err)
		}
	}
}
