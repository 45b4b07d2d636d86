package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// The arguments of the mounts in the examples for Kubernetes are valid. TestSlurmExamples runs those
// for Slurm.
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
}
