package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// A result is what is known of a step that has ended. It is a line of the file of results.
type result struct {
	Step    string    `json:"step"`
	Command string    `json:"command"` // of the shell, in the root of the repository
	Start   time.Time `json:"start"`
	Seconds float64   `json:"seconds"`
	Passed  int       `json:"passed,omitempty"`  // tests
	Skipped []failure `json:"skipped,omitempty"` // tests
	Failed  []failure `json:"failed,omitempty"`
	Error   string    `json:"error,omitempty"` // why the step failed, unless it was a test
	Left    []string  `json:"left,omitempty"`  // what the step has left on the machine
	Load    bool      `json:"load,omitempty"`  // the machine was kept busy
}

// A failure is a test that has failed or was skipped.
type failure struct {
	Test    string  `json:"test"`   // such as drivers/posix.TestDir, or a package
	Repeat  string  `json:"repeat"` // a command that runs it alone
	Output  string  `json:"output"` // its last lines
	Seconds float64 `json:"seconds"`
}

// ok reports whether the step has passed.
func (r result) ok() bool { return r.Error == "" && len(r.Failed) == 0 && len(r.Left) == 0 }

// Results are the results of a run, in memory and in a file.
type results struct {
	all  []result
	path string
	file *os.File
}

// openResults starts the file of a run of a command, or continues the newest one in the folder dir, with
// its results.
func openResults(dir, command string, resume bool) (*results, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	r := &results{path: filepath.Join(dir, command+"-"+time.Now().UTC().Format("20060102T150405.000Z")+".jsonl")}
	if resume {
		earlier, err := filepath.Glob(filepath.Join(dir, command+"-*.jsonl"))
		if err != nil || len(earlier) == 0 {
			return nil, errors.Join(err, fmt.Errorf("nothing to resume: %s has no results of %s; run it without -resume", dir, command))
		}
		r.path = slices.Max(earlier)
		if r.all, err = readResults(r.path); err != nil {
			return nil, err
		}
	}
	var err error
	r.file, err = os.OpenFile(r.path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	// A line that was cut when an earlier run was killed is overwritten.
	var size int64
	for _, one := range r.all {
		line, err := json.Marshal(one)
		if err != nil {
			return nil, err
		}
		size += int64(len(line)) + 1
	}
	if _, err := r.file.Seek(size, io.SeekStart); err != nil {
		return nil, err
	}
	return r, r.file.Truncate(size)
}

// readResults reads the results in a file up to the first line that is not whole.
func readResults(path string) (all []result, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for lines := bufio.NewReader(f); ; {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return all, nil
		}
		var r result
		if err == nil {
			err = json.Unmarshal(line, &r)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, r)
	}
}

// add appends a result to the file and syncs it.
func (r *results) add(one result) error {
	r.all = append(r.all, one)
	line, err := json.Marshal(one)
	if err != nil {
		return err
	}
	if _, err := r.file.Write(append(line, '\n')); err != nil {
		return err
	}
	return r.file.Sync()
}

// done reports whether the step has a result.
func (r *results) done(step string) bool {
	return slices.ContainsFunc(r.all, func(one result) bool { return one.Step == step })
}

func (r *results) close() error { return r.file.Close() }
