package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// A result says whether the tests have found a mutant.
type result struct {
	mutant
	Test    string   `json:"test"`           // the command of the step test
	Step    string   `json:"step,omitempty"` // the step that found it
	By      []string `json:"by,omitempty"`   // tests, or what failed if no test did; empty if it was missed
	Seconds float64  `json:"seconds"`        // of all steps
}

// key identifies a mutant in the results of an earlier source, in which an ID may be that of another
// fault.
func (m mutant) key() string { return m.ID + "\x00" + m.Before + "\x00" + m.After }

// verdict returns "missed", or which step and tests found the mutant.
func (r result) verdict() string {
	if len(r.By) == 0 {
		return "missed"
	}
	names, more := r.By, ""
	if len(names) > 3 {
		names, more = names[:3], fmt.Sprintf(" and %d more", len(names)-3)
	}
	return "found by " + r.Step + ": " + strings.Join(names, " ") + more
}

// append appends the result to a file, and waits until the disk has it.
func (r result) append(file string) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Sync(), f.Close())
}

// readResults reads the results that a file has of the command test, by the keys of their mutants. There
// are none if the file does not exist.
func readResults(file, test string) (map[string]result, error) {
	results := make(map[string]result)
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		var r result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n, err)
		}
		if r.Test == test {
			results[r.key()] = r
		}
	}
	return results, nil
}

// printTable prints a table of the results, and returns how many mutants were found.
func printTable(out io.Writer, results []result) (found int) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, r := range results {
		if len(r.By) > 0 {
			found++
		}
		fmt.Fprintf(table, "%s\t%s\t%.1f s\n", r.ID, r.verdict(), r.Seconds)
	}
	table.Flush()
	return found
}
