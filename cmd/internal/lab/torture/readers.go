package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/child"
)

// Deadline is the time after which a read counts as hanging. It is twice what the time-outs
// of the daemon can add up to for one file: 5 s for the open of a copy, 5 s for a read of
// it, and 5 s for the source, which the plan lets hang for less.
const Deadline = 30 * time.Second

// The time between two reads of a process. It leaves room for the other processes of the
// machine.
const (
	pause           = 2 * time.Millisecond
	pauseAfterError = 20 * time.Millisecond // the mount may be gone
)

// maxChanges bounds the new versions of a file during one read.
const maxChanges = 8

// A pool is the reader processes. They read random files in random ways.
type pool struct {
	model  Model
	oracle *oracle
	point  string
	copies string // the folder of the copies in the tier in memory
	seed   uint64

	gate    sync.RWMutex // read-locked during each read; held locks out the readers
	running sync.WaitGroup
}

// start starts n processes. They end when ctx is done.
func (p *pool) start(ctx context.Context, n int) {
	for i := range n {
		p.running.Go(func() { p.run(ctx, rand.New(rand.NewPCG(p.seed, uint64(i)))) })
	}
}

// hold waits until no process reads, and keeps them from reading until release is called.
func (p *pool) hold() (release func()) {
	p.gate.Lock()
	return p.gate.Unlock
}

// run keeps one process reading. A process that hangs is replaced.
func (p *pool) run(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		reader, err := p.spawn(ctx)
		if err != nil {
			p.oracle.broken(fmt.Errorf("start a reader: %w", err))
			return
		}
		for ctx.Err() == nil && p.read(ctx, reader, rng) {
			time.Sleep(pause)
		}
		reader.CloseInput()
		go reader.kill()
	}
}

// A readerProcess is a reader process of the pool.
type readerProcess struct {
	*child.Process
	pid  int
	kill func()
}

func (p *pool) spawn(ctx context.Context) (*readerProcess, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cmd := child.Command(ctx, "read", strconv.FormatUint(p.model.Seed, 10), strconv.Itoa(p.model.Count), p.point)
	process, err := child.Start(cmd)
	if err != nil {
		cancel()
		return nil, err
	}
	return &readerProcess{process, cmd.Process.Pid, func() { cancel(); process.Stop() }}, nil
}

// read lets a process read one file. It returns false if the process hangs or has ended.
func (p *pool) read(ctx context.Context, reader *readerProcess, rng *rand.Rand) bool {
	p.gate.RLock()
	defer p.gate.RUnlock()
	if ctx.Err() != nil {
		return false
	}
	t := p.next(rng)
	start := time.Now()
	answers := make(chan error, 1)
	var results []Result
	go func() {
		err := reader.Send(t)
		if err == nil {
			err = reader.Receive(&results)
		}
		answers <- err
	}()
	select {
	case err := <-answers:
		if err != nil {
			p.oracle.broken(fmt.Errorf("reader: %w", err))
			return false
		}
		p.oracle.judge(results)
		if slices.ContainsFunc(results, func(r Result) bool { return r.Errno != 0 }) {
			time.Sleep(pauseAfterError)
		}
		return true
	case <-time.After(Deadline):
		p.oracle.hang(t, start, where(reader.pid))
		return false
	}
}

// next chooses a task.
func (p *pool) next(rng *rand.Rand) task {
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	t := task{File: rng.IntN(p.model.Count), Seed: rng.Uint64(), Drop: rng.IntN(10) < 7}
	for n := rng.IntN(total); ; {
		for _, k := range kinds {
			if n -= k.weight; n < 0 {
				t.Kind = k.kind
				t.Newest = p.oracle.newest(t.File) + maxChanges
				t.Copy = filepath.Join(p.copies, p.model.Name(t.File))
				return t
			}
		}
	}
}

// where describes in which function of the kernel the threads of a process wait.
func where(pid int) string {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", pid))
	counts := make(map[string]int)
	for _, t := range tasks {
		wchan, _ := os.ReadFile(t)
		counts[strings.TrimSpace(string(wchan))]++
	}
	var all []string
	for name, n := range counts {
		if name != "" && name != "0" && !strings.HasPrefix(name, "futex") && !strings.HasPrefix(name, "ep_poll") {
			all = append(all, fmt.Sprintf("%s × %d", name, n))
		}
	}
	return strings.Join(all, ", ")
}
