package slurmtest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socket is where slurmctld listens, in the shared folders.
const socket = "/var/spool/slurm/slurmctld.socket"

// commands are the commands of Slurm that a cluster has.
var commands = []string{"sbatch", "srun", "sbcast", "scancel", "scontrol", "sinfo", "squeue"}

// Main is the main function of the stub.
func Main() {
	var err error
	code := 0
	switch name := filepath.Base(os.Args[0]); name {
	case "slurm-stub":
		err = beInit()
	case "slurmd":
		err = runScripts()
	case "slurmstepd":
		code, err = runTask()
	default:
		code, err = ask(name)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: error: %v\n", filepath.Base(os.Args[0]), err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// beInit is process 1 of a host. It ends with standard input, and the kernel then ends the others.
func beInit() error {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	go func() {
		for range children {
			for {
				pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
				if pid <= 0 || err != nil {
					break
				}
			}
		}
	}()
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// A request is what a command sends to slurmctld, with its standard files.
type request struct {
	Command string
	Args    []string
	Env     []string
	Dir     string
	Script  []byte // sbatch: standard input, if there is no file
}

// ask sends the command to slurmctld and waits for its exit code.
func ask(name string) (int, error) {
	dir, err := os.Getwd()
	if err != nil {
		return 1, err
	}
	r := request{Command: name, Args: os.Args[1:], Env: os.Environ(), Dir: dir}
	if name == "sbatch" {
		if options, words, err := sbatchOptions.parse(r.Args); err == nil && len(words) == 0 && options["wrap"] == "" {
			if r.Script, err = io.ReadAll(os.Stdin); err != nil {
				return 1, err
			}
		}
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return 1, err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return 1, err
	}
	// The files go with the first byte.
	if _, _, err := c.WriteMsgUnix([]byte{'\n'}, unix.UnixRights(0, 1, 2), nil); err != nil {
		return 1, err
	}
	if _, err := c.Write(append(data, '\n')); err != nil {
		return 1, err
	}
	if options, _, err := srunOptions.parse(r.Args); name == "srun" && err == nil {
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGINT)
		go func() {
			for sig := range signals {
				if !strings.Contains(options["ignore-signals"], unix.SignalName(sig.(syscall.Signal))) {
					fmt.Fprintln(os.Stderr, "srun: forcing job termination")
					c.Write([]byte("KILL\n")) // srun forwards all of them as SIGKILL
				}
			}
		}()
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return 1, err
	}
	return strconv.Atoi(strings.TrimSpace(line))
}

// A scriptRun is what slurmd gets on its standard input.
type scriptRun struct {
	Patterns []string // of Prolog or Epilog
	Env      []string
	Timeout  time.Duration // 0: none
}

// A scriptResult is what slurmd prints.
type scriptResult struct {
	Output   string
	Failed   bool
	TimedOut bool
}

// runScripts runs the scripts of a Prolog or Epilog on this node, as slurmd does: in reverse
// alphabetical order, each in its own process group, with standard input from /dev/null and output
// to a pipe. A script has ended when it has exited and nobody has the pipe any more.
func runScripts() error {
	var r scriptRun
	if err := json.NewDecoder(os.Stdin).Decode(&r); err != nil {
		return err
	}
	var scripts []string
	for _, p := range r.Patterns {
		found, err := filepath.Glob(p)
		if err != nil {
			return err
		}
		scripts = append(scripts, found...)
	}
	slices.Sort(scripts)
	slices.Reverse(scripts)
	var result scriptResult
	for _, path := range scripts {
		var out bytes.Buffer
		cmd := exec.Command(path)
		cmd.Env = r.Env
		cmd.Dir = "/"
		cmd.Stdout, cmd.Stderr = &out, &out
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := unix.Access(path, unix.R_OK|unix.X_OK); err != nil {
			result.Failed = true
			result.Output += fmt.Sprintf("%s can not be executed: %v\n", path, err)
			continue
		}
		if err := cmd.Start(); err != nil {
			result.Failed = true
			result.Output += err.Error() + "\n"
			continue
		}
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		var timeout <-chan time.Time
		if r.Timeout > 0 {
			timeout = time.After(r.Timeout)
		}
		var err error
		select {
		case err = <-done:
		case <-timeout:
			result.TimedOut = true
			unix.Kill(-cmd.Process.Pid, unix.SIGTERM)
			time.Sleep(10 * time.Millisecond)
			unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
			cmd.Process.Wait()
			err = errors.New("time-out")
		}
		result.Output += out.String()
		if err != nil {
			result.Failed = true
			result.Output += fmt.Sprintf("%s failed: %v\n", path, err)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// A task is what slurmstepd gets on file descriptor 3. On this connection, KILL and TERM follow; its
// end is KILL.
type task struct {
	Words      []string
	Env        []string
	Dir        string
	UID        uint32
	TaskProlog string
	Output     string // a file for standard output and error, if not ""
}

// runTask runs one task of a step as the user of the job, after the task prolog. All processes that
// the task has started are killed when it ends, even if they have left its process group and session.
func runTask() (int, error) {
	// Orphans among the descendants become children of this process, so that none is lost.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 1, err
	}
	control := bufio.NewReader(os.NewFile(3, "control"))
	unix.CloseOnExec(3)
	line, err := control.ReadString('\n')
	if err != nil {
		return 1, err
	}
	var t task
	if err := json.Unmarshal([]byte(line), &t); err != nil {
		return 1, err
	}
	go func() {
		for {
			line, err := control.ReadString('\n')
			if err != nil || line == "KILL\n" {
				signalDescendants(unix.SIGKILL)
				if err != nil {
					return
				}
			} else {
				signalDescendants(unix.SIGCONT)
				signalDescendants(unix.SIGTERM)
			}
		}
	}()
	defer func() {
		for signalDescendants(unix.SIGKILL) > 0 {
			for {
				if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 || err != nil {
					break
				}
			}
			time.Sleep(time.Millisecond)
		}
	}()

	stdout := io.Writer(os.Stdout)
	stderr := io.Writer(os.Stderr)
	if t.Output != "" {
		f, err := os.OpenFile(t.Output, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
		if err != nil {
			return 1, err
		}
		if err := f.Chown(int(t.UID), int(t.UID)); err != nil {
			return 1, err
		}
		stdout, stderr = f, f
	}
	as := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: t.UID, Gid: t.UID}, Setpgid: true}
	if t.TaskProlog != "" {
		cmd := exec.Command(t.TaskProlog)
		cmd.Dir, cmd.SysProcAttr = t.Dir, as
		cmd.Env = append(slices.Clone(t.Env), "SLURM_SCRIPT_CONTEXT=prolog_task", "SLURM_TASK_PID="+strconv.Itoa(os.Getpid()))
		cmd.Stderr = stderr
		out, err := cmd.Output()
		if err != nil {
			return 1, fmt.Errorf("TaskProlog failed: %w", err)
		}
		t.Env = interpret(string(out), t.Env, stdout)
	}
	path, err := lookPath(t.Words[0], t.Env, t.Dir)
	if err != nil {
		return 2, err
	}
	cmd := exec.Command(path, t.Words[1:]...)
	cmd.Args[0] = t.Words[0]
	cmd.Env, cmd.Dir, cmd.SysProcAttr = t.Env, t.Dir, as
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if t.Output == "" {
		cmd.Stdin = os.Stdin
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	state, err := cmd.Process.Wait()
	if err != nil {
		return 1, err
	}
	status := state.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
}

// interpret returns env with the changes that the output of a task prolog requests, and prints what
// it wants printed.
func interpret(output string, env []string, w io.Writer) []string {
	remove := func(name string) {
		env = slices.DeleteFunc(slices.Clone(env), func(s string) bool { return strings.HasPrefix(s, name+"=") })
	}
	for line := range strings.Lines(output) {
		line = strings.TrimSuffix(line, "\n")
		if text, ok := strings.CutPrefix(line, "print "); ok {
			fmt.Fprintln(w, text)
		} else if text, ok := strings.CutPrefix(line, "export "); ok {
			if name, _, ok := strings.Cut(text, "="); ok {
				remove(name)
				env = append(env, text)
			}
		} else if name, ok := strings.CutPrefix(line, "unset "); ok {
			remove(name)
		}
	}
	return env
}

// lookPath finds a program by the PATH of a task.
func lookPath(name string, env []string, dir string) (string, error) {
	folders := []string{""}
	if !strings.Contains(name, "/") {
		folders = strings.Split(variable(env, "PATH"), ":")
	}
	for _, folder := range folders {
		path := filepath.Join(folder, name)
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		if info, err := os.Stat(path); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("execve(): %s: No such file or directory", name)
}

// variable returns the value of a variable of env, or "".
func variable(env []string, name string) string {
	for _, s := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(s, name+"="); ok {
			return value
		}
	}
	return ""
}

// signalDescendants sends a signal to all descendants of this process that live, and returns their
// number.
func signalDescendants(sig unix.Signal) int {
	parents := make(map[int]int)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		// pid (name) state ppid; the name may contain anything.
		pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
		fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		if len(fields) > 1 && fields[0] != "Z" {
			parents[pid], _ = strconv.Atoi(fields[1])
		}
	}
	n := 0
	for pid := range parents {
		for at := parents[pid]; at > 0; at = parents[at] {
			if at == os.Getpid() {
				n++
				unix.Kill(pid, sig)
				break
			}
		}
	}
	return n
}
