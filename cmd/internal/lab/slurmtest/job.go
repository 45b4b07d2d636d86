package slurmtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/peer/roster"
)

// A job is a batch job.
type job struct {
	id       int
	uid      uint32
	options  map[string]string
	script   string
	words    []string // of the script
	env      []string // of sbatch
	dir      string
	restarts int
	begun    time.Time
	nodes    []*host
	state    string
	reason   string
	code     int
	derived  int // the highest exit code of a step
	ended    chan struct{}

	prologs  map[string]bool // nodes on which the prolog has run
	steps    map[*step]bool
	nextStep int
	canceled bool
}

// A step is the part of a step on one node.
type step struct {
	control net.Conn
	batch   bool // it is the script of the job
	done    chan struct{}
	code    int
}

// schedule starts the jobs for which there are nodes. Jobs share nodes. c.mu must be held.
func (c *controller) schedule() {
	for _, j := range c.jobs {
		if j.state != "PENDING" || j.reason != "" || c.stopped {
			continue
		}
		count, _ := nodeCount(j.options["nodes"])
		var nodes []*host
		wanted, _ := roster.Hostlist(j.options["nodelist"])
		for _, n := range c.nodes {
			if c.drained[n.name] == "" && len(nodes) < count && (len(wanted) == 0 || slices.Contains(wanted, n.name)) {
				nodes = append(nodes, n)
			}
		}
		if len(nodes) < count {
			continue
		}
		j.nodes, j.state, j.begun = nodes, "RUNNING", time.Now()
		j.prologs, j.nextStep, j.canceled = make(map[string]bool), 0, false
		c.ends.Go(func() { c.run(j) })
	}
}

// run runs a job that has nodes, from its prologs to its epilogs.
func (c *controller) run(j *job) {
	c.mu.Lock()
	conf := c.conf
	c.mu.Unlock()
	first := j.nodes[:1]
	if slices.ContainsFunc(conf.flags, func(f string) bool { return f != "serial" }) { // they imply Alloc
		first = j.nodes
	}
	err := c.prologs(j, first)
	if err == nil {
		c.batch(j)
	}
	c.mu.Lock()
	j.state = "COMPLETING"
	if !j.canceled { // else they have got SIGTERM
		c.terminate(j) // steps that the script did not wait for
	}
	steps := maps.Clone(j.steps)
	c.mu.Unlock()
	for s := range steps {
		<-s.done
	}
	c.mu.Lock()
	derived := j.derived
	c.mu.Unlock()
	each(j.nodes, func(n *host) error {
		env := append(j.scriptEnv(n, "epilog_slurmd"), fmt.Sprint("SLURM_JOB_DERIVED_EC=", derived),
			fmt.Sprint("SLURM_JOB_EXIT_CODE=", j.code<<8), fmt.Sprintf("SLURM_JOB_EXIT_CODE2=%d:0", j.code))
		if err := c.script(n, "epilog", scriptRun{conf.epilog, env, conf.epilogTimeout}); err != nil {
			c.drain(n.name, "Epilog error")
		}
		return nil
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil && j.options["no-requeue"] == "" && !j.canceled:
		j.state, j.reason, j.nodes = "PENDING", "(launch failed requeued held)", nil
		j.restarts++
		return
	case err != nil:
		j.state, j.code = "FAILED", 1
	case j.canceled:
		j.state = "CANCELLED"
	case j.code != 0:
		j.state = "FAILED"
	default:
		j.state = "COMPLETED"
	}
	close(j.ended)
	c.schedule()
}

// each calls f for all nodes at the same time, and returns their errors.
func each(nodes []*host, f func(n *host) error) error {
	errs := make([]error, len(nodes))
	var running sync.WaitGroup
	for i, n := range nodes {
		running.Go(func() { errs[i] = f(n) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// prologs runs the prolog of the job on the nodes where it has not run yet.
func (c *controller) prologs(j *job, nodes []*host) error {
	c.mu.Lock()
	conf := c.conf
	var missing []*host
	for _, n := range nodes {
		if !j.prologs[n.name] {
			missing = append(missing, n)
			j.prologs[n.name] = true
		}
	}
	c.mu.Unlock()
	return each(missing, func(n *host) error {
		err := c.script(n, "prolog", scriptRun{conf.prolog, j.scriptEnv(n, "prolog_slurmd"), conf.prologTimeout})
		if err != nil {
			c.drain(n.name, "Prolog error")
		}
		return err
	})
}

func (c *controller) drain(name, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drained[name] = reason
}

// script runs the scripts of a prolog or an epilog on a node.
func (c *controller) script(n *host, kind string, r scriptRun) error {
	in, err := json.Marshal(r)
	if err != nil {
		return err
	}
	cmd := n.command("/usr/bin/slurmd")
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.Output()
	var result scriptResult
	if err == nil {
		err = json.Unmarshal(out, &result)
	}
	c.logf("%s: %s: %s", n.name, kind, result.Output)
	if err == nil && result.Failed {
		err = fmt.Errorf("%s on %s failed", kind, n.name)
	}
	return err
}

// scriptEnv is the environment of Prolog and Epilog: of what the manual lists, that which is set
// without GPUs, licences, reservations and job arrays. There is no PATH.
func (j *job) scriptEnv(n *host, context string) []string {
	output := j.output()
	env := []string{
		"SLURMD_NODENAME=" + n.name, "SLURM_CONF=/etc/slurm/slurm.conf", "SLURM_CLUSTER_NAME=test",
		fmt.Sprint("SLURM_JOB_ID=", j.id), fmt.Sprint("SLURM_JOBID=", j.id),
		fmt.Sprint("SLURM_JOB_UID=", j.uid), fmt.Sprint("SLURM_JOB_GID=", j.uid), "SLURM_JOB_USER=" + userName(j.uid),
		"SLURM_JOB_WORK_DIR=" + j.dir, "SLURM_JOB_NODELIST=" + nodeList(j.nodes), fmt.Sprint("SLURM_JOB_NUM_NODES=", len(j.nodes)),
		"SLURM_JOB_PARTITION=main", "SLURM_JOB_CPUS_PER_NODE=1", "SLURM_JOB_OVERSUBSCRIBE=OK", "SLURM_JOB_EXCLUSIVE=NO",
		fmt.Sprint("SLURM_JOB_RESTART_COUNT=", j.restarts), fmt.Sprint("SLURM_JOB_START_TIME=", j.begun.Unix()),
		fmt.Sprint("SLURM_JOB_END_TIME=", j.begun.Add(time.Hour).Unix()),
		"SLURM_JOB_STDIN=/dev/null", "SLURM_JOB_STDOUT=" + output, "SLURM_JOB_STDERR=" + output,
		"SLURM_SCRIPT_CONTEXT=" + context,
	}
	for variable, option := range map[string]string{
		"SLURM_JOB_ACCOUNT": "account", "SLURM_JOB_COMMENT": "comment", "SLURM_JOB_CONSTRAINTS": "constraint", "SLURM_JOB_EXTRA": "extra", "SLURM_JOB_QOS": "qos",
	} {
		if value := j.options[option]; value != "" {
			env = append(env, variable+"="+value)
		}
	}
	return env
}

// output is the file of the job's output.
func (j *job) output() string {
	name := j.options["output"]
	if name == "" {
		name = "slurm-%j.out"
	}
	name = strings.NewReplacer("%j", strconv.Itoa(j.id), "%x", j.options["job-name"], "%u", userName(j.uid)).Replace(name)
	if !filepath.IsAbs(name) {
		name = filepath.Join(j.dir, name)
	}
	return name
}

// taskEnv is the environment of a task, besides that of the user.
func (j *job) taskEnv(nodes []*host, index, tasks, local int, stepID string) []string {
	env := []string{
		fmt.Sprint("SLURM_JOB_ID=", j.id), fmt.Sprint("SLURM_JOBID=", j.id), "SLURM_JOB_NODELIST=" + nodeList(j.nodes), "SLURM_NODELIST=" + nodeList(j.nodes),
		fmt.Sprint("SLURM_JOB_NUM_NODES=", len(j.nodes)), fmt.Sprint("SLURM_NNODES=", len(j.nodes)), fmt.Sprint("SLURM_JOB_UID=", j.uid),
		"SLURM_JOB_USER=" + userName(j.uid), "SLURM_JOB_PARTITION=main", "SLURM_CONF=/etc/slurm/slurm.conf", "SLURM_SUBMIT_DIR=" + j.dir, "SLURM_SUBMIT_HOST=login",
		"SLURMD_NODENAME=" + nodes[index].name, fmt.Sprint("SLURM_NODEID=", index), fmt.Sprint("SLURM_PROCID=", index*tasks+local),
		fmt.Sprint("SLURM_LOCALID=", local), fmt.Sprint("SLURM_NTASKS=", len(nodes)*tasks), fmt.Sprint("SLURM_CPUS_ON_NODE=", 1),
		"SLURM_STEP_ID=" + stepID, "SLURM_STEPID=" + stepID,
	}
	if j.restarts > 0 {
		env = append(env, fmt.Sprint("SLURM_RESTART_COUNT=", j.restarts))
	}
	if j.options["job-name"] != "" {
		env = append(env, "SLURM_JOB_NAME="+j.options["job-name"])
	}
	return env
}

// batch runs the script of the job on its first node.
func (c *controller) batch(j *job) {
	// slurmd writes the script to its spool folder, which is not the folder of the job.
	n := j.nodes[0]
	path := fmt.Sprintf("/run/slurm-script-%d", j.id)
	cmd := n.command("install", "-m", "500", "-o", fmt.Sprint(j.uid), "/dev/stdin", path)
	cmd.Stdin = strings.NewReader(j.script)
	if out, err := cmd.CombinedOutput(); err != nil {
		c.logf("%s: the script of job %d: %v: %s", n.name, j.id, err, out)
		j.code = 1
		return
	}
	t := task{
		Words: append([]string{path}, j.words[1:]...),
		Env:   append(slices.Clone(j.env), j.taskEnv(j.nodes[:1], 0, 1, 0, "4294967291")...),
		Dir:   j.dir, UID: j.uid, Output: j.output(),
	}
	s, err := c.launch(j, n, t, [3]*os.File{})
	if err != nil {
		c.logf("%s: job %d: %v", n.name, j.id, err)
		j.code = 1
		return
	}
	<-s.done
	j.code = s.code
}

// launch starts a task on a node.
func (c *controller) launch(j *job, n *host, t task, files [3]*os.File) (*step, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control")
	defer theirs.Close()
	control, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	t.TaskProlog = c.conf.taskProlog
	c.mu.Unlock()
	data, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	cmd := n.command("/usr/bin/slurmstepd")
	cmd.ExtraFiles = []*os.File{theirs}
	var log bytes.Buffer
	cmd.Stderr = &log
	if files[1] != nil {
		cmd.Stdout, cmd.Stderr = files[1], files[2]
	}
	s := &step{control: control, batch: t.Output != "", done: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	if j.canceled {
		control.Close()
		return nil, errors.New("the job is cancelled")
	}
	if err := cmd.Start(); err != nil {
		control.Close()
		return nil, err
	}
	j.steps[s] = true
	go func() {
		control.Write(append(data, '\n'))
		cmd.Wait()
		s.code = max(cmd.ProcessState.ExitCode(), 0)
		control.Close()
		c.logf("%s: a task of job %d has ended with %d: %s", n.name, j.id, s.code, &log)
		c.mu.Lock()
		if !s.batch {
			j.derived = max(j.derived, s.code)
		}
		delete(j.steps, s)
		c.mu.Unlock()
		close(s.done)
	}()
	return s, nil
}

// cancel ends a job.
func (c *controller) cancel(j *job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch j.state {
	case "PENDING":
		j.state = "CANCELLED"
		close(j.ended)
		return
	case "RUNNING":
	default:
		return
	}
	j.canceled = true
	c.terminate(j)
}

// terminate sends SIGCONT and SIGTERM to all processes of the job, and SIGKILL after KillWait. c.mu
// must be held.
func (c *controller) terminate(j *job) {
	wait := c.conf.killWait
	for s := range j.steps {
		s.control.Write([]byte("TERM\n"))
		go func() {
			timer := time.NewTimer(wait)
			defer timer.Stop()
			select {
			case <-timer.C:
				s.control.Close()
			case <-s.done:
			}
		}()
	}
}

func userName(uid uint32) string {
	for name, id := range Users {
		if id == uid {
			return name
		}
	}
	if uid == 0 {
		return "root"
	}
	return strconv.Itoa(int(uid))
}

// nodeList returns the names of nodes as Slurm does, such as node[1-3,5].
func nodeList(nodes []*host) string {
	if len(nodes) == 0 {
		return ""
	}
	if len(nodes) == 1 {
		return nodes[0].name
	}
	var ranges []string
	for i := 0; i < len(nodes); {
		first := number(nodes[i])
		last := first
		for i++; i < len(nodes) && number(nodes[i]) == last+1; i++ {
			last++
		}
		if first == last {
			ranges = append(ranges, strconv.Itoa(first))
		} else {
			ranges = append(ranges, fmt.Sprintf("%d-%d", first, last))
		}
	}
	return "node[" + strings.Join(ranges, ",") + "]"
}

func number(n *host) int {
	i, _ := strconv.Atoi(strings.TrimPrefix(n.name, "node"))
	return i
}
