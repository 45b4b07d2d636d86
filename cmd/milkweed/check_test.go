package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// The output of check has the origin of every value.
func TestCheckPrintsOrigins(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"source", "mnt"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "tiering.toml")
	toml := "[source]\npath = \"" + dir + "/source\"\n\n[[tier]]\nname = \"ssd\"\npath = \"" + dir + "/tier\"\nquota = \"10MiB\"\n"
	if err := os.WriteFile(file, []byte(toml), 0o644); err != nil {
		t.Fatal(err)
	}
	out, _, err := runMilkweed(t, "check", "--json", "-c", file, "--workers", "3", "-o", "attr_timeout=30s", filepath.Join(dir, "mnt"))
	if code := exit.Of(err); code != exit.OK && code != exit.Fuse { // this machine may have no FUSE
		t.Fatalf("check: %v", err)
	}
	var got checkReport
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []config.Setting{
		{Key: "source.path", Value: dir + "/source", Origin: file + ":2"},
		{Key: "tier.ssd.quota", Value: "10MiB", Origin: file + ":7"},
		{Key: "mount.point", Value: dir + "/mnt", Origin: "argument MOUNTPOINT"},
		{Key: "mount.attr_timeout", Value: "30s", Origin: "option attr_timeout"},
		{Key: "placement.workers", Value: "3", Origin: "flag --workers"},
		{Key: "log.format", Value: "text", Origin: "default"},
	} {
		if !slices.Contains(got.Settings, want) {
			t.Errorf("no %+v in %+v", want, got.Settings)
		}
	}
	for _, name := range []string{"tier ssd", "mode", "passthrough, tier ssd", "passthrough, source"} {
		if i := slices.IndexFunc(got.Findings, func(f check.Finding) bool { return f.Name == name }); i < 0 {
			t.Errorf("there is no finding %q: %+v", name, got.Findings)
		}
	}
}

// A single argument is SOURCE if no configuration sets the source, and check needs no mount point.
func TestCheckSource(t *testing.T) {
	dir := t.TempDir()
	source, tiersOnly, whole := filepath.Join(dir, "source"), filepath.Join(dir, "tiers.toml"), filepath.Join(dir, "whole.toml")
	point := filepath.Join(dir, "mnt")
	tier := "[[tier]]\nname = \"ssd\"\npath = \"" + dir + "/tier\"\nquota = \"10MiB\"\n"
	for _, err := range []error{
		os.Mkdir(source, 0o755),
		os.Mkdir(point, 0o755),
		os.WriteFile(tiersOnly, []byte(tier), 0o644),
		os.WriteFile(whole, []byte("[source]\npath = \""+source+"\"\n"+tier), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	for _, name := range []string{"HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"} {
		t.Setenv(name, filepath.Join(dir, "home"))
	}
	t.Setenv(config.Environment, "")
	for _, test := range []struct {
		args []string
		want []config.Setting
	}{
		{[]string{source}, []config.Setting{{Key: "source.path", Value: source, Origin: "argument SOURCE"}, {Key: "mount.point", Value: "", Origin: "default"}}},
		{[]string{"-c", tiersOnly, source}, []config.Setting{{Key: "source.path", Value: source, Origin: "argument SOURCE"}, {Key: "tier.ssd.quota", Value: "10MiB", Origin: tiersOnly + ":4"}}},
		{[]string{"-c", whole, point}, []config.Setting{{Key: "source.path", Value: source, Origin: whole + ":2"}, {Key: "mount.point", Value: point, Origin: "argument MOUNTPOINT"}}},
	} {
		out, _, err := runMilkweed(t, append([]string{"check", "--json"}, test.args...)...)
		var got checkReport
		if json.Unmarshal([]byte(out), &got) != nil {
			t.Errorf("check %q: %v: %s", test.args, err, out)
		}
		for _, want := range test.want {
			if !slices.Contains(got.Settings, want) {
				t.Errorf("check %q: no %+v in %+v", test.args, want, got.Settings)
			}
		}
	}
	c := config.Default()
	if err := c.SetSource(source, ""); err != nil {
		t.Fatal(err)
	}
	if err := setArguments(&c, []string{"s3://bucket"}); err != nil || c.Source.URL != "s3://bucket" {
		t.Errorf("a URL beside a source: got %+v, %v", c.Source, err)
	}
	if _, _, err := runMilkweed(t, "mount", "--foreground", source); exit.Of(err) != exit.Usage || !strings.Contains(err.Error(), "mount.point: is missing") {
		t.Errorf("mount SOURCE: got %v, want a usage error about the mount point", err)
	}
}
