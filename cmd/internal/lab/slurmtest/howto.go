package slurmtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// HowTo returns a shell in a cluster with what docs/howto/slurm.md presumes: two nodes, the dataset
// /lustre/imagenet, and milkweed. program is the milkweed that is used, and checkout the root of this
// repository. The caller sets Stdin to the commands.
func HowTo(t testing.TB, program, checkout string) *exec.Cmd {
	t.Helper()
	c := New(t, Options{Nodes: 2, Programs: map[string]string{"milkweed": program}, Checkout: checkout})
	if err := os.Mkdir(c.Folder+"/shared/lustre/imagenet", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"1.jpg", "2.jpg", "3.jpg", "4.jpg"} {
		if err := os.WriteFile(filepath.Join(c.Folder, "shared/lustre/imagenet", name), make([]byte, 500000), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return c.Command("bash")
}
