package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// The arguments of the mounts in the examples for Slurm and Kubernetes are valid, and the job of
// Slurm gives its nodes a secret that nobody else may read, and removes it.
func TestPeerExamples(t *testing.T) {
	t.Run("kubernetes", func(t *testing.T) {
		data, err := os.ReadFile("../../examples/kubernetes/peers/peers.yaml")
		if err != nil {
			t.Fatal(err)
		}
		yaml := string(data)
		var args []string
		list := regexp.MustCompile(`(?s)args: (\[.*?\])`).FindStringSubmatch(yaml)
		if list == nil {
			t.Fatal("no args")
		}
		if err := json.Unmarshal([]byte(list[1]), &args); err != nil {
			t.Fatal(err)
		}
		args[len(args)-1] = t.TempDir() // in place of /mnt/imagenet
		_, _, err = runMilkweed(t, append(args, "--fake")...)
		wantCode(t, err, exit.OK)
		service := regexp.MustCompile(`(?s)kind: Service\nmetadata:\n  name: (\S+)\n`).FindStringSubmatch(yaml)
		for _, want := range []string{
			`"dns:` + service[1] + `"`, "clusterIP: None", "publishNotReadyAddresses: true", fmt.Sprintf("port: %d", defaultPort),
		} {
			if !strings.Contains(yaml, want) {
				t.Errorf("%s is missing", want)
			}
		}
	})
	t.Run("slurm", func(t *testing.T) {
		path, err := program()
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		write := func(name, text string) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"slurm/node.sh", "slurm/milkweed-peers.sbatch", "tiering/hpc-node.toml"} {
			data, err := os.ReadFile("../../examples/" + name)
			if err != nil {
				t.Fatal(err)
			}
			write(filepath.Base(name), string(data))
		}
		if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
			t.Fatal(err)
		}
		write("bin/scontrol", "#!/bin/sh\necho node1\n")
		write("bin/sbcast", "#!/bin/sh\n[ \"$1\" = --preserve ] && shift && [ ! -e \"$2\" ] && exec cp -p \"$@\"\n")
		write("bin/srun", "#!/bin/sh\nshift\nexec \"$@\"\n")
		write("bin/torchrun", "#!/bin/sh\necho torchrun >>\"$LOG\"\n")
		write("bin/milkweed", `#!/bin/sh
echo "$@" >>"$LOG"
case $1 in
mount) stat -c 'mode %a' "$7" >>"$LOG"; shift; exec "$PROGRAM" mount --fake "$@" ;;
peers) exec "$PROGRAM" "$@" ;;
esac
`)
		job := fmt.Sprintf("test-%d", os.Getpid())
		cmd := exec.CommandContext(t.Context(), "bash", filepath.Join(dir, "milkweed-peers.sbatch"))
		cmd.Env = append(os.Environ(), "PATH="+dir+"/bin:"+os.Getenv("PATH"), "TMPDIR="+dir, "LOG="+dir+"/log", "PROGRAM="+path, "USER=me",
			"SLURM_SUBMIT_DIR="+dir, "SLURM_TMPDIR="+dir+"/scratch", "SLURM_JOB_ID="+job, "SLURM_JOB_NODELIST=node1", "SLURM_NNODES=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		log, err := os.ReadFile(dir + "/log")
		if err != nil {
			t.Fatal(err)
		}
		key := "/tmp/milkweed-" + job + "-0.key"
		want := "peers keygen\nmount -c hpc-node.toml --peers slurm --peers-secret " + key + "\nmode 600\ntorchrun\nstatus\numount " + dir + "/scratch/imagenet\n"
		if string(log) != want {
			t.Errorf("got\n%s\nwant\n%s", log, want)
		}
		if left, _ := filepath.Glob(dir + "/tmp.*"); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
		if _, err := os.Lstat(key); err == nil {
			t.Errorf("%s was not removed", key)
			os.Remove(key)
		}
	})
}
