// Package reader reads files in child processes, as the workers of a data loader
// do. The processes measure the time and check sizes or checksums.
package reader

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/milkweedfs/milkweed/cmd/internal/child"
	"github.com/milkweedfs/milkweed/cmd/internal/dataset"
)

// Sizes of reads.
const (
	BlockSize  = 256 << 10 // of a sequential read
	RandomSize = 4 << 10   // of a random read
)

// A Kind is a kind of task.
type Kind string

// The kinds of tasks. Unless stated otherwise, a task fails at the first file
// that cannot be read or does not have its size.
const (
	Read   Kind = "read"   // open, read to the end and close each file
	Random Kind = "random" // read Count blocks of RandomSize at random offsets of the first file
	Stat   Kind = "stat"   // stat each file
	List   Kind = "list"   // list Folder recursively
	Find   Kind = "find"   // list Folder recursively and stat each file, as find -size does
	Check  Kind = "check"  // read each file and compare its checksum
	Copy   Kind = "copy"   // copy each file to the folder Target
	Drop   Kind = "drop"   // drop the pages of each file from the page cache
	Batch  Kind = "batch"  // read Extents

	// Epoch lists Folder recursively. It then reads each file, compares its
	// checksum and drops its pages. Files with errors are listed in Result.Wrong
	// and do not end the task. It is the only kind that reports its progress.
	Epoch Kind = "epoch"
)

// A Task is a request to a reader process.
type Task struct {
	Kind      Kind           `json:"kind"`
	Folder    string         `json:"folder,omitempty"`
	Files     []dataset.File `json:"files,omitempty"` // relative to Folder
	Target    string         `json:"target,omitempty"`
	Count     int            `json:"count,omitempty"`
	Extents   []Extent       `json:"extents,omitempty"`
	DropFirst bool           `json:"drop_first,omitempty"` // drop the pages of Files first, untimed
}

// An Extent is a range of a file. A process keeps the file open from one extent
// to the next until it has read the last one of the file.
type Extent struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset,omitempty"`
	Length int64  `json:"length"`
	Last   bool   `json:"last,omitempty"`   // the last extent of the file
	NPZ    bool   `json:"npz,omitempty"`    // a whole NumPy archive, read as NumPy does
	Direct bool   `json:"direct,omitempty"` // read with O_DIRECT
	Drop   bool   `json:"drop,omitempty"`   // drop the pages of the file after the last extent
}

// A Result is the reply to a Task.
type Result struct {
	Seconds float64  `json:"seconds"`
	Files   int64    `json:"files,omitempty"` // files read; of Epoch only
	Bytes   int64    `json:"bytes"`           // bytes read
	Stall   float64  `json:"stall,omitempty"` // seconds that the longest open or read took; of Epoch only
	Wrong   []string `json:"wrong,omitempty"` // the first errors of an Epoch
	Error   string   `json:"error,omitempty"` // why the task failed
	Done    bool     `json:"done,omitempty"`  // false in a report of progress
}

// A Group is several reader processes.
type Group struct{ processes []*child.Process }

// Start starts n processes as a user; nil is the user of this process. They are
// killed when ctx is done. The caller must call Stop.
func Start(ctx context.Context, n int, user *syscall.Credential) (*Group, error) {
	g := &Group{}
	for range n {
		cmd := child.Command(ctx, "demo", "read")
		cmd.SysProcAttr.Credential = user
		p, err := child.Start(cmd)
		if err != nil {
			g.Stop()
			return nil, err
		}
		g.processes = append(g.processes, p)
	}
	return g, nil
}

// Do runs task i in process i, all at the same time. It calls progress, unless it
// is nil, with the sum of the results so far; the calls do not overlap. The time
// of the result is that of the slowest process.
func (g *Group) Do(tasks []Task, progress func(Result)) (Result, error) {
	results := make([]Result, len(tasks))
	var (
		mu      sync.Mutex // guards results
		running errgroup.Group
	)
	for i, t := range tasks {
		running.Go(func() error {
			if err := g.Send(i, t); err != nil {
				return err
			}
			_, err := g.receive(i, func(r Result) {
				mu.Lock()
				defer mu.Unlock()
				results[i] = r
				if progress != nil {
					progress(sum(results))
				}
			})
			return err
		})
	}
	err := running.Wait()
	return sum(results), err
}

// DoSplit deals the files of a task to all processes in turn, and runs it.
func (g *Group) DoSplit(t Task, progress func(Result)) (Result, error) {
	return g.Do(split(t, len(g.processes)), progress)
}

// Send starts a task in process i and does not wait. Several tasks may be sent to
// a process, which does them in order.
func (g *Group) Send(i int, t Task) error {
	if err := g.processes[i].Send(t); err != nil {
		return fmt.Errorf("reader %d: %w", i+1, err)
	}
	return nil
}

// Receive waits for the end of the first task that process i has not ended yet.
func (g *Group) Receive(i int) (Result, error) {
	return g.receive(i, func(Result) {})
}

func (g *Group) receive(i int, progress func(Result)) (r Result, err error) {
	for !r.Done {
		r = Result{}
		if err := g.processes[i].Receive(&r); err != nil {
			return r, fmt.Errorf("reader %d: %w", i+1, err)
		}
		progress(r)
	}
	if r.Error != "" {
		return r, fmt.Errorf("reader %d: %w", i+1, errors.New(r.Error))
	}
	return r, nil
}

// Stop ends the processes. When it returns, they have no file open.
func (g *Group) Stop() {
	for _, p := range g.processes {
		p.CloseInput() // all of them end at the same time
	}
	for _, p := range g.processes {
		p.Stop()
	}
}

func split(t Task, n int) []Task {
	tasks := make([]Task, n)
	for i := range tasks {
		tasks[i] = t
		tasks[i].Files = nil
	}
	for i, f := range t.Files {
		to := &tasks[i%n]
		to.Files = append(to.Files, f)
	}
	return tasks
}

func sum(results []Result) Result {
	var all Result
	for _, r := range results {
		all.Seconds = max(all.Seconds, r.Seconds)
		all.Files += r.Files
		all.Bytes += r.Bytes
		all.Stall = max(all.Stall, r.Stall)
		all.Wrong = append(all.Wrong, r.Wrong...)
	}
	return all
}
