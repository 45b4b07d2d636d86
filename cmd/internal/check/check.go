// Package check is what can be known before a mount: what will work on this
// machine with this configuration, and what to do about the rest.
//
// It changes nothing: what it creates to see whether it may, it removes. A file
// system that does not answer costs it five seconds.
package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	milkweed "github.com/milkweedfs/milkweed/fs"
)

// A Status is how bad a Finding is.
type Status string

// The statuses.
const (
	OK      Status = "ok"
	Warning Status = "warning" // a mount works, and not as well as it could
	Problem Status = "problem" // a mount does not work
)

// A Finding is the result of one check.
type Finding struct {
	Name   string      `json:"name"`             // what was looked at, such as "source" or "tier ssd"
	Status Status      `json:"status"`           //
	Detail string      `json:"detail"`           // what was found, on one line
	Remedy string      `json:"remedy,omitempty"` // what to do, a sentence; "" if all is well
	Code   exit.Code   `json:"code,omitempty"`   // what a mount exits with; 0 unless it is a Problem
	Err    *exit.Error `json:"-"`                // the same as an error; nil unless it is a Problem
}

func ok(name, format string, args ...any) []Finding {
	return []Finding{{Name: name, Status: OK, Detail: fmt.Sprintf(format, args...)}}
}

func warning(name, remedy, format string, args ...any) []Finding {
	return []Finding{{Name: name, Status: Warning, Detail: fmt.Sprintf(format, args...), Remedy: remedy}}
}

func problem(code exit.Code, name, remedy, format string, args ...any) []Finding {
	err := fmt.Errorf(format, args...)
	return []Finding{{
		Name: name, Status: Problem, Detail: err.Error(), Remedy: remedy, Code: code,
		Err: &exit.Error{Code: code, Err: fmt.Errorf("%s: %w", name, err), Remedy: remedy},
	}}
}

// First returns the first Problem among the findings as an error, which is an
// *exit.Error, or nil.
func First(findings []Finding) error {
	for _, f := range findings {
		if f.Err != nil {
			return f.Err
		}
	}
	return nil
}

// Write prints the findings for people, one below the other.
func Write(w io.Writer, findings []Finding) error {
	width := 0
	for _, f := range findings {
		width = max(width, len(f.Name))
	}
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&b, "%-7s  %-*s  %s\n", f.Status, width, f.Name, f.Detail)
		if f.Remedy != "" {
			fmt.Fprintf(&b, "%*s%s\n", 7+2+width+2+2, "", f.Remedy)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Run makes all checks of a configuration that is valid on which it depends
// whether a mount works, and returns what each found, in the order in which a
// mount needs them. When ctx is done it returns what it has. It asks no bucket
// anything, since that costs money and time: who opens one has Bucket tell of it.
func Run(ctx context.Context, c *config.Config) []Finding {
	return thisHost().run(ctx, c)
}

// A host is the machine as the checks see it.
type host struct {
	root     string // that /proc, /etc and /dev are below
	uid      int
	patience time.Duration // that a file system is given to answer

	release  func() (string, error) // of the kernel
	openat2  func() error
	lookPath func(file string) (string, error)
	nofile   func() (hard uint64, err error)
	stat     func(path string) (os.FileInfo, error)
	statfs   func(path string) (unix.Statfs_t, error)
	listen   func(address string) error
	probe    func(files []*os.File) []error // as milkweed.ProbePassthrough
}

func thisHost() host {
	return host{
		root:     "/",
		uid:      os.Getuid(),
		patience: 5 * time.Second,
		release:  release,
		openat2:  openat2,
		lookPath: exec.LookPath,
		nofile:   nofile,
		stat:     os.Stat,
		statfs:   statfs,
		listen:   listen,
		probe:    milkweed.ProbePassthrough,
	}
}

func (h host) run(ctx context.Context, c *config.Config) []Finding {
	checks := []func() []Finding{
		func() []Finding { return h.source(ctx, c) },
		h.kernel,
		h.fuseDevice,
		h.mayMount,
		func() []Finding { return h.allowOther(c) },
		func() []Finding { return h.mountPoint(ctx, c) },
		func() []Finding { return h.tiers(ctx, c) },
		func() []Finding { return h.namesFile(ctx, c) },
		h.openFiles,
		func() []Finding { return h.metrics(c) },
	}
	var findings []Finding
	for _, check := range checks {
		if ctx.Err() != nil {
			break
		}
		findings = append(findings, check()...)
	}
	return findings
}

// within returns what check finds, or late if that takes too long. A check
// that hangs in the kernel cannot be stopped: it is left behind, and what it
// finds is dropped.
func (h host) within(ctx context.Context, late []Finding, check func() []Finding) []Finding {
	found := make(chan []Finding, 1)
	go func() { found <- check() }()
	timer := time.NewTimer(h.patience)
	defer timer.Stop()
	select {
	case f := <-found:
		return f
	case <-timer.C:
		return late
	case <-ctx.Done():
		return nil
	}
}

// reason is what went wrong, without the path that the message names already.
func reason(err error) error {
	if e, ok := errors.AsType[unix.Errno](err); ok {
		return e
	}
	return err
}

func (h host) metrics(c *config.Config) []Finding {
	const name = "metrics"
	address := c.Metrics.Listen
	if address == "" {
		return nil
	}
	if err := h.listen(address); err != nil {
		return problem(exit.Usage, name, "Choose another host:port for metrics.listen, or leave it out.",
			"cannot listen on %s: %w", address, reason(err))
	}
	hostname, _, _ := net.SplitHostPort(address)
	if ip := net.ParseIP(hostname); ip != nil && !ip.IsLoopback() {
		return warning(name, "Listen on 127.0.0.1 unless Prometheus runs on another machine.",
			"%s can be read by whoever reaches this machine", address)
	}
	return ok(name, "%s is free", address)
}

func listen(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return l.Close()
}
