package slurmtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// A controller is slurmctld, and what slurmd does on all nodes besides running scripts and tasks.
type controller struct {
	root  string // of the shared folders, on the machine
	nodes []*host
	ends  sync.WaitGroup // jobs that run

	mu      sync.Mutex // guards the following
	conf    conf
	jobs    []*job // job 1 is the first
	drained map[string]string
	log     bytes.Buffer
	stopped bool
}

// A conf is what slurm.conf says.
type conf struct {
	prolog, epilog []string
	taskProlog     string
	flags          []string // of PrologFlags
	killWait       time.Duration
	prologTimeout  time.Duration // 0: none
	epilogTimeout  time.Duration
}

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

func newController(nodes []*host, root string) *controller {
	return &controller{nodes: nodes, root: root, drained: make(map[string]string)}
}

// Log returns the log of slurmctld and slurmd.
func (c *controller) Log() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log.String()
}

func (c *controller) logf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(&c.log, format+"\n", args...)
}

// reconfigure reads slurm.conf. The changes of a file have no effect before.
func (c *controller) reconfigure() error {
	data, err := os.ReadFile(c.root + "/etc/slurm/slurm.conf")
	if err != nil {
		return err
	}
	n := conf{killWait: 30 * time.Second}
	both := time.Duration(0)
	for line := range strings.Lines(string(data)) {
		line, _, _ = strings.Cut(line, "#")
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok {
			continue
		}
		if !filepath.IsAbs(value) && slices.Contains([]string{"prolog", "epilog", "taskprolog"}, strings.ToLower(key)) {
			value = "/etc/slurm/" + value
		}
		seconds := func(d *time.Duration) {
			s, err2 := strconv.Atoi(value)
			*d = time.Duration(s) * time.Second
			err = errors.Join(err, err2)
		}
		switch strings.ToLower(key) {
		case "prolog":
			n.prolog = append(n.prolog, value)
		case "epilog":
			n.epilog = append(n.epilog, value)
		case "taskprolog":
			n.taskProlog = value
		case "prologflags":
			n.flags = strings.Split(strings.ToLower(value), ",")
		case "killwait":
			seconds(&n.killWait)
		case "prologepilogtimeout":
			seconds(&both)
		case "prologtimeout":
			seconds(&n.prologTimeout)
		case "epilogtimeout":
			seconds(&n.epilogTimeout)
		case "clustername", "slurmctldhost", "partitionname", "nodename":
		default:
			err = errors.Join(err, fmt.Errorf("slurm.conf: the stub does not know %s", key))
		}
	}
	if n.prologTimeout == 0 {
		n.prologTimeout = both
	}
	if n.epilogTimeout == 0 {
		n.epilogTimeout = both
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conf = n
	return err
}

// stop cancels all jobs and waits for their ends.
func (c *controller) stop() {
	c.mu.Lock()
	c.stopped = true
	for _, j := range c.jobs {
		j.canceled = true
		for s := range j.steps {
			s.control.Close()
		}
	}
	c.mu.Unlock()
	c.ends.Wait()
}

// serve accepts the commands of the cluster.
func (c *controller) serve(l *net.UnixListener) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			code, err := c.answer(conn)
			if err != nil {
				c.logf("slurmctld: %v", err)
			}
			fmt.Fprintln(conn, code)
		}()
	}
}

// answer runs one command and returns its exit code.
func (c *controller) answer(conn *net.UnixConn) (int, error) {
	first, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(3*4))
	_, n, _, _, err := conn.ReadMsgUnix(first, rights)
	if err != nil {
		return 1, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return 1, fmt.Errorf("no files: %w", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 3 {
		return 1, fmt.Errorf("%d files: %w", len(fds), err)
	}
	var files [3]*os.File
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), "")
		defer files[i].Close()
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 1, err
	}
	var who *unix.Ucred
	var err2 error
	if err := raw.Control(func(fd uintptr) { who, err2 = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || err2 != nil {
		return 1, errors.Join(err, err2)
	}
	in := bufio.NewReader(conn)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return 1, err
	}
	var r request
	if err := json.Unmarshal(line, &r); err != nil {
		return 1, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		// A step goes on when its srun has died without a signal that it forwards.
		if line, _ := in.ReadString('\n'); line == "KILL\n" {
			cancel()
		}
	}()
	code, err := c.command(ctx, r, who.Uid, files)
	if err != nil {
		fmt.Fprintf(files[2], "%s: error: %v\n", r.Command, err)
		code = max(code, 1)
	}
	return code, nil
}

func (c *controller) command(ctx context.Context, r request, uid uint32, files [3]*os.File) (int, error) {
	switch r.Command {
	case "sbatch":
		return c.sbatch(ctx, r, uid, files)
	case "srun":
		return c.srun(ctx, r, uid, files)
	case "sbcast":
		return 0, c.sbcast(r, uid)
	case "scancel":
		return 0, c.scancel(r, uid)
	case "scontrol":
		return 0, c.scontrol(r, uid, files[1])
	case "squeue":
		if _, words, err := noOptions.parse(r.Args); err != nil || len(words) > 0 {
			return 1, fmt.Errorf("the stub knows no arguments: %q", r.Args)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		fmt.Fprintln(files[1], "JOBID USER ST NODELIST(REASON)")
		for _, j := range c.jobs {
			if j.state == "PENDING" || j.state == "RUNNING" || j.state == "COMPLETING" {
				fmt.Fprintln(files[1], j.id, userName(j.uid), j.state[:1], nodeList(j.nodes)+j.reason)
			}
		}
		return 0, nil
	case "sinfo":
		c.mu.Lock()
		defer c.mu.Unlock()
		fmt.Fprintln(files[1], "NODELIST STATE REASON")
		for _, n := range c.nodes {
			state := "idle"
			if c.drained[n.name] != "" {
				state = "drained"
			}
			fmt.Fprintln(files[1], n.name, state, c.drained[n.name])
		}
		return 0, nil
	}
	return 1, fmt.Errorf("the stub does not know this command")
}

func (c *controller) sbatch(ctx context.Context, r request, uid uint32, files [3]*os.File) (int, error) {
	options, words, err := sbatchOptions.parse(r.Args)
	if err != nil {
		return 1, err
	}
	script := string(r.Script)
	switch {
	case options["wrap"] != "":
		script, words = "#!/bin/sh\n"+options["wrap"]+"\n", []string{"wrap"}
	case len(words) > 0:
		path := words[0]
		if !filepath.IsAbs(path) {
			path = filepath.Join(r.Dir, path)
		}
		data, err := c.nodes[0].as(uid, "cat", path).Output() // the folders of jobs are shared
		if err != nil {
			return 1, fmt.Errorf("Unable to open file %s", words[0])
		}
		script = string(data)
	default:
		words = []string{"sbatch"}
	}
	more, err := directives(script)
	if err != nil {
		return 1, err
	}
	all, rest, err := sbatchOptions.parse(more)
	if err != nil || len(rest) > 0 {
		return 1, fmt.Errorf("#SBATCH: %q: %w", rest, err)
	}
	for name, value := range options { // of the command line
		all[name] = value
	}
	count, err := nodeCount(all["nodes"])
	if err != nil || count > len(c.nodes) {
		return 1, fmt.Errorf("Batch job submission failed: Requested node configuration is not available")
	}
	j := &job{
		uid: uid, options: all, script: script, words: words, env: r.Env, dir: r.Dir, state: "PENDING",
		ended: make(chan struct{}), steps: make(map[*step]bool),
	}
	if all["chdir"] != "" {
		j.dir = filepath.Join(r.Dir, all["chdir"])
	}
	c.mu.Lock()
	c.jobs = append(c.jobs, j)
	j.id = len(c.jobs)
	c.schedule()
	c.mu.Unlock()
	if all["parsable"] != "" {
		fmt.Fprintln(files[1], j.id)
	} else {
		fmt.Fprintln(files[1], "Submitted batch job", j.id)
	}
	if all["wait"] == "" {
		return 0, nil
	}
	select {
	case <-j.ended:
	case <-ctx.Done():
		return 1, nil
	}
	if j.code >= 128 {
		return 1, nil
	}
	return j.code, nil
}

// nodeCount returns the least number of nodes of --nodes.
func nodeCount(text string) (int, error) {
	if text == "" {
		return 1, nil
	}
	least, _, _ := strings.Cut(text, "-")
	n, err := strconv.Atoi(least)
	if n < 1 {
		err = errors.Join(err, errors.New("no nodes"))
	}
	return n, err
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
	each(j.nodes, func(n *host) error {
		env := append(j.scriptEnv(n, "epilog_slurmd"), fmt.Sprint("SLURM_JOB_DERIVED_EC=", j.derived),
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
		close(s.done)
		c.mu.Lock()
		delete(j.steps, s)
		c.mu.Unlock()
	}()
	return s, nil
}

func (c *controller) srun(ctx context.Context, r request, uid uint32, files [3]*os.File) (int, error) {
	options, words, err := srunOptions.parse(r.Args)
	if err != nil {
		return 1, err
	}
	if options["help"] != "" {
		for _, name := range slices.Sorted(maps.Keys(srunOptions)) {
			fmt.Fprintln(files[1], "  --"+name)
		}
		return 0, nil
	}
	if len(words) == 0 {
		return 1, errors.New("No command given to execute.")
	}
	j, err := c.find(variable(r.Env, "SLURM_JOB_ID"), uid)
	if err != nil {
		return 1, fmt.Errorf("the stub runs steps of jobs only: %w", err)
	}
	c.mu.Lock()
	nodes, id := j.nodes, j.nextStep
	j.nextStep++
	c.mu.Unlock()
	if options["nodelist"] != "" {
		names, err := roster.Hostlist(options["nodelist"])
		if err != nil {
			return 1, err
		}
		nodes = slices.DeleteFunc(slices.Clone(nodes), func(n *host) bool { return !slices.Contains(names, n.name) })
	}
	if options["nodes"] != "" {
		count, err := nodeCount(options["nodes"])
		if err != nil || count > len(nodes) {
			return 1, errors.New("Unable to create step for job: More processors requested than permitted")
		}
		nodes = nodes[:count]
	}
	if len(nodes) == 0 {
		return 1, errors.New("Unable to create step for job: Requested node configuration is not available")
	}
	tasks := 1
	for _, text := range []string{j.options["ntasks-per-node"], options["ntasks-per-node"]} {
		if text != "" {
			if tasks, err = strconv.Atoi(text); err != nil {
				return 1, err
			}
		}
	}
	if text := options["ntasks"]; text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n%len(nodes) != 0 && n > len(nodes) {
			return 1, fmt.Errorf("the stub cannot divide %s tasks among %d nodes", text, len(nodes))
		}
		nodes = nodes[:min(n, len(nodes))]
		tasks = max(1, n/len(nodes))
	}
	if err := c.prologs(j, nodes); err != nil {
		return 1, err
	}
	dir := r.Dir
	if options["chdir"] != "" {
		dir = filepath.Join(dir, options["chdir"])
	}
	var steps []*step
	kill := func() {
		for _, s := range steps {
			s.control.Close()
		}
	}
	ends := make(chan int, len(nodes)*tasks)
	for i, n := range nodes {
		for local := range tasks {
			t := task{Words: words, Env: append(slices.Clone(r.Env), j.taskEnv(nodes, i, tasks, local, strconv.Itoa(id))...), Dir: dir, UID: j.uid}
			s, err := c.launch(j, n, t, files)
			if err != nil {
				kill()
				return 1, err
			}
			steps = append(steps, s)
			go func() {
				<-s.done
				ends <- s.code
			}()
		}
	}
	code := 0
	for range steps {
		select {
		case got := <-ends:
			code = max(code, got)
			if got != 0 && options["kill-on-bad-exit"] != "" && options["kill-on-bad-exit"] != "0" {
				kill()
			}
		case <-ctx.Done():
			kill()
			<-ends
		}
	}
	c.mu.Lock()
	j.derived = max(j.derived, code)
	c.mu.Unlock()
	return code, nil
}

// find returns a job of the user, or of any user for root.
func (c *controller) find(id string, uid uint32) (*job, error) {
	n, err := strconv.Atoi(id)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || n < 1 || n > len(c.jobs) {
		return nil, fmt.Errorf("Invalid job id specified: %q", id)
	}
	if j := c.jobs[n-1]; uid == 0 || uid == j.uid {
		return j, nil
	}
	return nil, errors.New("Access/permission denied")
}

func (c *controller) sbcast(r request, uid uint32) error {
	options, words, err := sbcastOptions.parse(r.Args)
	if err != nil {
		return err
	}
	if len(words) != 2 || !filepath.IsAbs(words[1]) {
		return errors.New("the stub needs a source and an absolute destination")
	}
	j, err := c.find(variable(r.Env, "SLURM_JOB_ID"), uid)
	if err != nil {
		return err
	}
	source := words[0]
	if !filepath.IsAbs(source) {
		source = filepath.Join(r.Dir, source)
	}
	from := j.nodes[0]
	for _, n := range j.nodes {
		if n.name == variable(r.Env, "SLURMD_NODENAME") {
			from = n
		}
	}
	mode, err := from.as(uid, "stat", "--format=%a", source).Output()
	if err != nil {
		return fmt.Errorf("Can't open `%s`: %w", source, err)
	}
	data, err := from.as(uid, "cat", source).Output()
	if err != nil {
		return err
	}
	keep, force := "700", "" // mode
	if options["preserve"] != "" {
		keep = strings.TrimSpace(string(mode))
	}
	if options["force"] != "" {
		force = `rm -f "$1";`
	}
	return each(j.nodes, func(n *host) error {
		cmd := n.as(uid, "sh", "-c", force+`set -C; umask 077; cat >"$1" && chmod "$2" "$1"`, "sh", words[1], keep)
		cmd.Stdin = bytes.NewReader(data)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("REQUEST_FILE_BCAST(%s): %s", n.name, bytes.ReplaceAll(bytes.TrimSpace(out), []byte("\n"), []byte("; ")))
		}
		return nil
	})
}

func (c *controller) scancel(r request, uid uint32) error {
	options, words, err := scancelOptions.parse(r.Args)
	if err != nil {
		return err
	}
	term := options["signal"] == "TERM" || options["signal"] == "SIGTERM"
	if len(words) == 0 || options["signal"] != "" && !term {
		return errors.New("the stub needs job ids, and knows the signal TERM only")
	}
	for _, id := range words {
		j, err := c.find(id, uid)
		if err != nil {
			return err
		}
		if !term {
			c.cancel(j)
			continue
		}
		c.mu.Lock()
		for s := range j.steps {
			if s.batch == (options["batch"] != "") || options["full"] != "" {
				s.control.Write([]byte("TERM\n"))
			}
		}
		c.mu.Unlock()
	}
	return nil
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

func (c *controller) scontrol(r request, uid uint32, w io.Writer) error {
	words := r.Args
	value := func(name string) string { return variable(words, name) }
	admin := func() error {
		if uid != 0 {
			return errors.New("Access/permission denied")
		}
		return nil
	}
	switch strings.Join(words[:min(2, len(words))], " ") {
	case "show hostnames", "show hostname":
		list := variable(r.Env, "SLURM_JOB_NODELIST")
		if len(words) > 2 {
			list = words[2]
		}
		names, err := roster.Hostlist(list)
		if err == nil {
			fmt.Fprintln(w, strings.Join(names, "\n"))
		}
		return err
	case "show job":
		if len(words) != 3 {
			return errors.New("the stub needs a job id")
		}
		j, err := c.find(words[2], 0)
		if err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		fmt.Fprintf(w, "JobId=%d UserId=%s(%d)\n   JobState=%s Reason=%s Restarts=%d\n   NodeList=%s Comment=%s\n   StdOut=%s\n",
			j.id, userName(j.uid), j.uid, j.state, j.reason, j.restarts, nodeList(j.nodes), j.options["comment"], j.output())
		return nil
	}
	if len(words) == 0 {
		return errors.New("the stub needs a command")
	}
	if err := admin(); err != nil {
		return err
	}
	switch {
	case words[0] == "reconfigure" && len(words) == 1:
		return c.reconfigure()
	case words[0] == "release" && len(words) == 2:
		j, err := c.find(words[1], uid)
		if err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		j.reason = ""
		c.schedule()
		return nil
	case words[0] == "update" && value("NodeName") != "":
		names, err := roster.Hostlist(value("NodeName"))
		if err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, name := range names {
			switch strings.ToUpper(value("State")) {
			case "RESUME":
				delete(c.drained, name)
			case "DRAIN":
				c.drained[name] = value("Reason")
			default:
				return errors.New("the stub knows State=RESUME and State=DRAIN")
			}
		}
		c.schedule()
		return nil
	}
	return fmt.Errorf("the stub does not know %q", words)
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
