// Posixops performs system calls on a read-only tree and prints the result of each. Two file
// systems with the same tree are compared by comparing the output; see TestPosix in cmd/milkweed.
//
// Usage:
//
//	posixops make DIR    makes the tree, as root
//	posixops run DIR     performs the system calls
//
// The operations are those of pjdfstest, and those that programs use to read. Each is performed on
// each kind of file, and with arguments that are wrong. A line has the system call with its
// arguments, the path in the tree, and the result, separated by tabs. The result is an errno, or
// what the call returns where all file systems return the same.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "posixops:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: posixops make|run DIR")
	}
	switch args[0] {
	case "make":
		return makeTree(args[1])
	case "run":
		p, err := newProbe(args[1])
		if err != nil {
			return err
		}
		p.paths()
		p.pairs()
		p.files()
		p.memory()
		return p.end()
	}
	return fmt.Errorf("no command %q", args[0])
}

// A probe performs system calls on a tree.
type probe struct {
	root    string // the tree
	dir     int    // its descriptor
	scratch string // an empty directory of another file system
	out     *bufio.Writer
}

func newProbe(root string) (*probe, error) {
	dir, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	scratch, err := os.MkdirTemp("", "posixops-")
	if err != nil {
		return nil, err
	}
	return &probe{root, dir, scratch, bufio.NewWriter(os.Stdout)}, nil
}

func (p *probe) end() error {
	return errors.Join(p.out.Flush(), os.RemoveAll(p.scratch))
}

// print prints the result of a call, which is result unless there is an error.
func (p *probe) print(call, path, result string, err error) {
	if err != nil {
		result = nameOf(err)
	}
	fmt.Fprintf(p.out, "%s\t%s\t%s\n", call, path, result)
}

// nameOf returns the name of an errno.
func nameOf(err error) string {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return err.Error()
	}
	return unix.ErrnoName(errno)
}
