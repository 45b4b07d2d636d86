package config

import (
	"math"
	"os"
	"testing"
)

// The lowest limit of the control group and its parents counts.
func TestPidsLeft(t *testing.T) {
	h := testHost(t, map[string]string{
		"proc/self/cgroup":                     "0::/job/step\n",
		"sys/fs/cgroup/pids.max":               "max\n",
		"sys/fs/cgroup/pids.current":           "5000\n",
		"sys/fs/cgroup/job/pids.max":           "400\n",
		"sys/fs/cgroup/job/pids.current":       "350\n",
		"sys/fs/cgroup/job/step/pids.max":      "300\n",
		"sys/fs/cgroup/job/step/pids.current":  "10\n",
		"sys/fs/cgroup/elsewhere/pids.max":     "1\n",
		"sys/fs/cgroup/elsewhere/pids.current": "1\n",
	})
	if left, limit := h.pidsLeft("self"); left != 50 || limit != "pids.max of its control group is 400" {
		t.Errorf("got %d, %s", left, limit)
	}
	v1 := testHost(t, map[string]string{
		"proc/self/cgroup":                     "8:pids:/job\n4:memory:/elsewhere\n0::/\n",
		"sys/fs/cgroup/pids/job/pids.max":      "300\n",
		"sys/fs/cgroup/pids/job/pids.current":  "10\n",
		"sys/fs/cgroup/memory/job/pids.max":    "1\n", // not a group of processes
		"sys/fs/cgroup/elsewhere/pids.max":     "1\n",
		"sys/fs/cgroup/elsewhere/pids.current": "1\n",
	})
	if left, limit := v1.pidsLeft("self"); left != 290 || limit != "pids.max of its control group is 300" {
		t.Errorf("version 1: got %d, %s", left, limit)
	}
	if left, limit := h.pidsLeft("1"); left != math.MaxInt64 || limit != "" {
		t.Errorf("without a group: %d, %s", left, limit)
	}
}

// The threads of a user are counted, also those of this process.
func TestThreadsOfUser(t *testing.T) {
	if got := threadsOfUser(uint32(os.Getuid())); got < 2 {
		t.Errorf("this user has %d threads", got)
	}
	if all := threadsOfMachine(); all < 2 {
		t.Errorf("the machine has %d threads", all)
	}
	if got := threadsOfUser(math.MaxUint32); got != 0 {
		t.Errorf("nobody has %d threads", got)
	}
	if left, limit := ThreadsOf(os.Getpid()); left <= 0 || (left == math.MaxInt64) != (limit == "") {
		t.Errorf("got %d, %q", left, limit)
	}
}
