package slurmtest_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/lab"
	"github.com/milkweedfs/milkweed/cmd/internal/lab/slurmtest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := lab.RemovePrograms(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// run runs a shell script by a command of the cluster, which must succeed, and returns its output.
func run(t *testing.T, cmd *exec.Cmd, script string) string {
	t.Helper()
	cmd.Stdin = strings.NewReader("set -e\n" + script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s\n%v\n%s", script, err, out)
	}
	return string(out)
}

// write writes a file in the shared folders.
func write(t *testing.T, c *slurmtest.Cluster, name, text string) {
	t.Helper()
	path := filepath.Join(c.Folder, "shared", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// eventually waits until the script succeeds.
func eventually(t *testing.T, cmd func() *exec.Cmd) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); cmd().Run() != nil; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%q fails for a minute", cmd().Args)
		}
	}
}

// The scripts run as the manual says: where, as whom, in which order, and with which variables.
func TestScripts(t *testing.T) {
	c := slurmtest.New(t, slurmtest.Options{Nodes: 2, Conf: `PrologFlags=Alloc
Prolog=/etc/slurm/prolog.d/*
Epilog=epilog.sh
TaskProlog=/etc/slurm/task.sh`})
	for _, name := range []string{"10-a", "20-b"} {
		write(t, c, "etc/slurm/prolog.d/"+name, "#!/bin/bash\n/usr/bin/echo \"$SLURM_SCRIPT_CONTEXT $SLURMD_NODENAME $UID "+name+"\" >>/lustre/log-$SLURMD_NODENAME\n/usr/bin/env -u _ -u SHLVL -u PWD >/lustre/env\n")
	}
	write(t, c, "etc/slurm/epilog.sh", "#!/bin/bash\n/usr/bin/echo \"$SLURM_SCRIPT_CONTEXT $SLURM_JOB_EXIT_CODE2\" >>/lustre/log-$SLURMD_NODENAME\n")
	write(t, c, "etc/slurm/task.sh", "#!/bin/bash\necho export A=b c\necho unset SECRET\necho print hello from $(id -un)\necho ignored\n")
	write(t, c, "home/alice/job", "#!/bin/bash\n#SBATCH --nodes=2 --comment=\"a 'b' $(x)\"  # a comment\n#SBATCH -o out-%j\necho \"$A,$SECRET,$(id -un),$PWD\"\nsrun sh -c 'echo $SLURM_PROCID/$SLURM_NTASKS on $(hostname)' | sort\nexit 3\n#SBATCH --unknown\n")
	if out, err := func() (string, error) {
		cmd := c.As("alice", "sbatch", "--wait", "job")
		cmd.Env = append(cmd.Env, "SECRET=x")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}(); out != "Submitted batch job 1\n" || err == nil || err.(*exec.ExitError).ExitCode() != 3 {
		t.Fatalf("%q, %v", out, err)
	}
	want := "hello from alice\nb c,,alice,/home/alice\n0/2 on node1\n1/2 on node2\nhello from alice\nhello from alice\n"
	if got := run(t, c.As("alice", "sh"), "cat out-1"); got != want {
		t.Errorf("output %q, want %q", got, want)
	}
	for _, node := range []string{"node1", "node2"} {
		want := "prolog_slurmd " + node + " 0 20-b\nprolog_slurmd " + node + " 0 10-a\nepilog_slurmd 3:0\n"
		if got := run(t, c.Command("sh"), "cat /lustre/log-"+node); got != want {
			t.Errorf("%s: got %q, want %q", node, got, want)
		}
	}
	env := run(t, c.Command("sh"), "cut -d= -f1 /lustre/env | sort")
	if got := strings.Fields(env); !slices.Equal(got, strings.Fields(`SLURMD_NODENAME SLURM_CLUSTER_NAME SLURM_CONF SLURM_JOBID SLURM_JOB_COMMENT
		SLURM_JOB_CPUS_PER_NODE SLURM_JOB_END_TIME SLURM_JOB_EXCLUSIVE SLURM_JOB_GID SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_JOB_NUM_NODES
		SLURM_JOB_OVERSUBSCRIBE SLURM_JOB_PARTITION SLURM_JOB_RESTART_COUNT SLURM_JOB_START_TIME SLURM_JOB_STDERR SLURM_JOB_STDIN
		SLURM_JOB_STDOUT SLURM_JOB_UID SLURM_JOB_USER SLURM_JOB_WORK_DIR SLURM_SCRIPT_CONTEXT`)) {
		t.Errorf("variables of a prolog: %q", got)
	}
	if got := run(t, c.Command("sh"), "grep COMMENT /lustre/env"); got != "SLURM_JOB_COMMENT=a 'b' $(x)\n" {
		t.Errorf("comment: %q", got)
	}
}

// If a prolog fails, the node is drained and the job is requeued and held.
func TestFailedProlog(t *testing.T) {
	c := slurmtest.New(t, slurmtest.Options{Nodes: 1, Conf: "PrologFlags=Alloc\nProlog=/etc/slurm/prolog"})
	write(t, c, "etc/slurm/prolog", "#!/bin/sh\n[ -e /lustre/repaired ]\n")
	run(t, c.Command("sh"), "sbatch --parsable --wrap 'echo $SLURM_RESTART_COUNT'")
	eventually(t, func() *exec.Cmd {
		return c.Command("sh", "-c", "scontrol show job 1 | grep 'JobState=PENDING Reason=(launch failed requeued held) Restarts=1' && sinfo | grep 'node1 drained Prolog error'")
	})
	run(t, c.Command("sh"), ": >/lustre/repaired; scontrol update NodeName=node1 State=RESUME; scontrol release 1")
	eventually(t, func() *exec.Cmd {
		return c.Command("sh", "-c", "scontrol show job 1 | grep JobState=COMPLETED && grep -x 1 slurm-1.out")
	})
}

// A process of a step ends with the step, whatever it did to leave it. A job that is cancelled gets
// SIGTERM, and SIGKILL after KillWait.
func TestKilledProcesses(t *testing.T) {
	c := slurmtest.New(t, slurmtest.Options{Nodes: 1, Conf: "KillWait=1"})
	run(t, c.Command("sh"), `sbatch --wait --wrap 'srun sh -c "setsid -f sleep 1001"; srun -N1 true; setsid -f sleep 1002'`)
	if out, err := c.OnNode(1, "pgrep", "-a", "sleep").Output(); err == nil {
		t.Errorf("left: %s", out)
	}
	run(t, c.Command("sh"), `sbatch --wrap 'trap "echo TERM" TERM; echo started; while :; do sleep 0.1; done'`)
	eventually(t, func() *exec.Cmd { return c.Command("grep", "started", "slurm-2.out") })
	run(t, c.Command("sh"), "scancel 2")
	eventually(t, func() *exec.Cmd {
		return c.Command("sh", "-c", "scontrol show job 2 | grep JobState=CANCELLED && grep TERM slurm-2.out")
	})
	if out, err := c.OnNode(1, "pgrep", "-a", "sleep").Output(); err == nil {
		t.Errorf("left: %s", out)
	}
	for _, words := range [][]string{{"sbatch", "--nosuch"}, {"srun", "true"}, {"scontrol", "nosuch"}, {"sbcast", "a"}} {
		if err := c.Command(words...).Run(); err == nil {
			t.Errorf("%q is accepted", words)
		}
	}
}

// Sbcast writes to no file that exists, and keeps the mode if requested.
func TestBroadcast(t *testing.T) {
	c := slurmtest.New(t, slurmtest.Options{Nodes: 2})
	write(t, c, "home/bob/job", `#!/bin/bash
#SBATCH -N 2
umask 077
echo secret >key
sbcast --preserve key /tmp/key
srun stat -c '%a %U' /tmp/key
sbcast --preserve key /tmp/key || echo refused
sbcast -fp key /tmp/key && scontrol show hostnames
`)
	run(t, c.As("bob", "sbatch", "--wait", "job"), "")
	got := run(t, c.As("bob", "sh"), "grep -v 'not written' slurm-1.out")
	if want := "600 bob\n600 bob\nrefused\nnode1\nnode2\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
