package slurmtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
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
	return 1, errors.New("the stub does not know this command")
}
