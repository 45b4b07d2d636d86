package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
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
	for _, want := range []setting{
		{"source.path", dir + "/source", file + ":2"},
		{"tier.ssd.quota", "10MiB", file + ":7"},
		{"mount.point", dir + "/mnt", "argument MOUNTPOINT"},
		{"mount.attr_timeout", "30s", "option attr_timeout"},
		{"placement.workers", "3", "flag --workers"},
		{"log.format", "text", "default"},
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
