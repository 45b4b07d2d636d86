package slurmtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/milkweedfs/milkweed/drivers/peer/roster"
)

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
			return 1, fmt.Errorf("%s cannot be read", words[0])
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
		return 1, errors.New("there are not so many nodes")
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
		return 1, errors.New("there is no command")
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
			return 1, errors.New("the job has not so many nodes")
		}
		nodes = nodes[:count]
	}
	if len(nodes) == 0 {
		return 1, errors.New("the job has no such node")
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
	return code, nil
}

// find returns a job of the user, or of any user for root.
func (c *controller) find(id string, uid uint32) (*job, error) {
	n, err := strconv.Atoi(id)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || n < 1 || n > len(c.jobs) {
		return nil, fmt.Errorf("there is no job %q", id)
	}
	if j := c.jobs[n-1]; uid == 0 || uid == j.uid {
		return j, nil
	}
	return nil, errors.New("permission denied")
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
		return fmt.Errorf("%s cannot be read: %w", source, err)
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
			return fmt.Errorf("%s: not written: %s", n.name, bytes.ReplaceAll(bytes.TrimSpace(out), []byte("\n"), []byte("; ")))
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

func (c *controller) scontrol(r request, uid uint32, w io.Writer) error {
	words := r.Args
	value := func(name string) string { return variable(words, name) }
	admin := func() error {
		if uid != 0 {
			return errors.New("permission denied")
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
