package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Halted returns why a process does not run although it has not ended, and a sentence that says how it goes on. Both
// are "" if it runs, or that is not known.
func Halted(pid int) (reason, remedy string) {
	h := host{root: "/"}
	if group, remedy := h.frozen(strconv.Itoa(pid)); group != "" {
		return "its control group " + group + " is frozen", remedy
	}
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // see proc_pid_stat(5)
	switch _, state, _ := strings.Cut(string(stat), ") "); {
	case strings.HasPrefix(state, "T"):
		return "a signal has stopped it", fmt.Sprintf("`kill -CONT %d` lets it go on.", pid)
	case strings.HasPrefix(state, "t"):
		return "a debugger has stopped it", "Let the debugger continue, or end it."
	}
	return "", ""
}

// frozen returns the folder of the control group that is frozen with a process, as that of a container that is
// paused, or "".
func (h host) frozen(process string) (group, remedy string) {
	h.eachGroup(process, "freezer", func(v cgroupVersion, dir string) {
		state, thawed := "freezer.self_freezing", "echo THAWED >"+filepath.Join(dir, "freezer.state")
		if v == cgroup2 {
			state, thawed = "cgroup.freeze", "echo 0 >"+filepath.Join(dir, "cgroup.freeze")
		}
		if n, err := readInt(filepath.Join(dir, state)); err == nil && n == 1 {
			group, remedy = dir, "If it belongs to a container or a job that is paused, resume that. Otherwise, as root: `"+thawed+"`."
		}
	})
	return group, remedy
}
