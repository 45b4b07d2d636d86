package kubetest

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// CheckCommand checks a command line of a container of the image by the real program in the folder
// programs, which does not mount and does not serve: whether it is a command, and whether it accepts
// the flags and, of a mount, everything else.
func CheckCommand(programs string, line []string) error {
	if len(line) < 2 || path.Dir(line[0]) != "/usr/bin" {
		return fmt.Errorf("%q: not a command of a program in /usr/bin", line)
	}
	program, args := path.Base(line[0]), line[1:]
	if program != "milkweed" && program != "milkweed-k8s" {
		return fmt.Errorf("%q: %s is not in the image", line, program)
	}
	dir, err := os.MkdirTemp("", "command-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	usage := ""
	switch program + " " + args[0] {
	case "milkweed mount":
		if err := os.Mkdir(dir+"/point", 0o755); err != nil {
			return err
		}
		args = append(slices.Clone(args[:len(args)-1]), dir+"/point", "--fake")
	case "milkweed-k8s fluid":
		if err := os.Mkdir(dir+"/source", 0o755); err != nil {
			return err
		}
		config := fmt.Sprintf(`{"mounts":[{"mountPoint":"local://%s/source"}],"targetPath":"%s/point"}`, dir, dir)
		if err := os.WriteFile(dir+"/config.json", []byte(config), 0o644); err != nil {
			return err
		}
		given := []string{"fluid", "--config", dir + "/config.json", "--milkweed", filepath.Join(programs, "milkweed")}
		args = slices.Concat(given, args[1:], []string{"--fake"})
	case "milkweed-k8s mounter":
		// The tiers are checked by a mount that has them.
		mount := []string{"/usr/bin/milkweed", "mount"}
		for i, word := range args {
			if word == "--tier" && i+1 < len(args) {
				mount = append(mount, args[i:i+2]...)
			}
		}
		if err := CheckCommand(programs, append(mount, dir, "/point")); err != nil {
			return err
		}
		fallthrough
	default:
		args, usage = append(slices.Clone(args), "--help"), program+" "+args[0]
	}
	out, err := exec.Command(filepath.Join(programs, program), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%q: %w\n%s", line, err, out)
	}
	if !strings.Contains(string(out), "\nUsage:\n  "+usage) && usage != "" {
		return fmt.Errorf("%q: no such command", line)
	}
	return nil
}
