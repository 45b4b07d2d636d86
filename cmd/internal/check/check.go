// Package check predicts whether a mount works on this machine with a configuration.
// For each problem it has a remedy.
//
// The checks leave no traces: files that they create to test permissions are removed.
// A file system that does not respond delays a check by at most five seconds.
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

// A Status is the severity of a Finding.
type Status string

// The statuses.
const (
	OK      Status = "ok"
	Warning Status = "warning" // a mount works, but not as well as it could
	Problem Status = "problem" // a mount does not work
)

// A Finding is the result of one check.
type Finding struct {
	Name   string      `json:"name"`             // such as "source" or "tier ssd"
	Status Status      `json:"status"`           // the severity
	Detail string      `json:"detail"`           // the result, on one line
	Remedy string      `json:"remedy,omitempty"` // a sentence; "" if the status is OK
	Code   exit.Code   `json:"code,omitempty"`   // the exit code of a mount; 0 if not a Problem
	Err    *exit.Error `json:"-"`                // the finding as an error; nil if not a Problem
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

// First returns the first Problem as an *exit.Error, or nil if there is none.
func First(findings []Finding) error {
	for _, f := range findings {
		if f.Err != nil {
			return f.Err
		}
	}
	return nil
}

// Write prints the findings as text, one per line, each followed by its remedy.
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

// Run runs all checks that decide whether a mount of a valid configuration works. It
// returns the findings in the order in which a mount needs them. When ctx is done, it
// returns the findings so far. It sends no request to a bucket, because requests cost
// money and time; a caller that opens the bucket adds the finding of Bucket.
func Run(ctx context.Context, c *config.Config) []Finding {
	return thisHost().run(ctx, c)
}

// BeforeMount is Run without the checks of what a mount can start without: the tiers, each of which
// it opens with Tier, and the metadata snapshot.
func BeforeMount(ctx context.Context, c *config.Config) []Finding {
	without := *c
	without.Tiers, without.Mount.MetadataSnapshot = nil, config.NoSnapshot
	return thisHost().run(ctx, &without)
}

// BeforeServing is BeforeMount for a file system that another process has mounted: without the checks
// of FUSE, of allow_other and of the mount point, which may be in another mount namespace.
func BeforeServing(ctx context.Context, c *config.Config) []Finding {
	without := *c
	without.Tiers, without.Mount.MetadataSnapshot = nil, config.NoSnapshot
	h := thisHost()
	return runAll(ctx, []func() []Finding{
		func() []Finding { return h.source(ctx, &without) },
		h.kernel,
		func() []Finding { return h.access(ctx, &without) },
		func() []Finding { return h.plan(ctx, &without) },
		h.openFiles,
		func() []Finding { return h.threads(c) },
		h.resources,
		func() []Finding { return h.metrics(&without) },
	})
}

// A host is the machine that is checked. Tests replace its parts.
type host struct {
	root    string // the directory that contains /proc, /etc and /dev
	uid     int
	timeout time.Duration // limits each check that calls a file system
	state   string        // config.StateFolder

	release  func() (string, error) // the version of the kernel
	openat2  func() error
	lookPath func(file string) (string, error)
	nofile   func() (hard uint64, err error)
	hasName  func(uid int) bool                // see hasUserName
	tasks    func() (left int64, limit string) // see config.ThreadsOf
	limits   func() ([]Limit, error)           // see Limits
	stat     func(path string) (os.FileInfo, error)
	statfs   func(path string) (unix.Statfs_t, error)
	unit     func(dir string) (int64, error) // see allocationUnit
	getxattr func(path, attr string) error
	mayRead  func(path string) error // see access(2)
	listen   func(address string) error
	probe    func(files []*os.File) []error // see milkweed.ProbePassthrough
}

func thisHost() host {
	return host{
		root:     "/",
		uid:      os.Getuid(),
		timeout:  5 * time.Second,
		state:    config.StateFolder(),
		release:  release,
		openat2:  openat2,
		lookPath: exec.LookPath,
		nofile:   nofile,
		hasName:  hasUserName,
		tasks:    func() (int64, string) { return config.ThreadsOf(os.Getpid()) },
		limits:   func() ([]Limit, error) { return Limits(0) },
		stat:     os.Stat,
		statfs:   statfs,
		unit:     allocationUnit,
		getxattr: getxattr,
		mayRead:  func(path string) error { return unix.Access(path, unix.R_OK) },
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
		func() []Finding { return h.access(ctx, c) },
		func() []Finding { return h.mountPoint(ctx, c) },
		func() []Finding { return h.tiers(ctx, c) },
		func() []Finding { return h.snapshot(ctx, c) },
		func() []Finding { return h.plan(ctx, c) },
		h.openFiles,
		func() []Finding { return h.threads(c) },
		h.resources,
		func() []Finding { return h.metrics(c) },
	}
	return runAll(ctx, checks)
}

// runAll returns the findings of checks, until ctx is done.
func runAll(ctx context.Context, checks []func() []Finding) []Finding {
	var findings []Finding
	for _, check := range checks {
		if ctx.Err() != nil {
			break
		}
		findings = append(findings, check()...)
	}
	return findings
}

// withTimeout returns the findings of check, or onTimeout if check takes longer than
// h.timeout. When ctx is done it returns nil. A check that hangs in the kernel cannot
// be interrupted: its goroutine keeps running, and its findings are dropped.
func (h host) withTimeout(ctx context.Context, onTimeout []Finding, check func() []Finding) []Finding {
	found := make(chan []Finding, 1)
	go func() { found <- check() }()
	timer := time.NewTimer(h.timeout)
	defer timer.Stop()
	select {
	case f := <-found:
		return f
	case <-timer.C:
		return onTimeout
	case <-ctx.Done():
		return nil
	}
}

// reason returns the error number in err if there is one, and otherwise err. It omits
// the path, which the message of the caller contains already.
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
		return problem(exit.Usage, name, "Choose another host:port for metrics.listen, or remove it.",
			"cannot listen on %s: %w", address, reason(err))
	}
	hostname, _, _ := net.SplitHostPort(address)
	if ip := net.ParseIP(hostname); ip != nil && !ip.IsLoopback() {
		return warning(name, "Listen on 127.0.0.1 unless Prometheus runs on another machine.",
			"everyone who reaches this machine can read the metrics at %s", address)
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
