package torture

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/placement"
)

// commandTimeout bounds the commands of the program.
const commandTimeout = time.Minute

// Quotas of the tiers, in bytes. The dataset fits into both together.
const (
	memoryQuota = 16 << 20
	diskQuota   = 96 << 20
)

// dacCapabilities are the capabilities by which root may read any file, with signs that remove them.
const dacCapabilities = "-dac_override,-dac_read_search"

// A daemon is the program under test with its folders.
type daemon struct {
	program string
	dir     string // has the mount point, the control socket and the log
	source  string // without options
	memory  string // the folder of the first tier
	disk    string // the folder of the second tier
	scrubs  bool   // the program has the command scrub
	pid     int    // 0 if none runs
	pids    string // a control group with pids.max; "": there can be none
}

func (d *daemon) point() string { return filepath.Join(d.dir, "point") }
func (d *daemon) log() string   { return filepath.Join(d.dir, "log") }

// dataset returns the folder of the dataset in a tier.
func (d *daemon) dataset(tier string) string {
	return filepath.Join(tier, config.DatasetID(d.source))
}

// copies returns the folder of the copies in a tier.
func (d *daemon) copies(tier string) string { return filepath.Join(d.dataset(tier), "files") }

// run runs a command of the program and returns its output, also if it fails.
func (d *daemon) run(ctx context.Context, env []string, words ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env = append(os.Environ(), control.FolderEnv+"="+filepath.Join(d.dir, "run"),
		"XDG_STATE_HOME="+d.dir, "XDG_CACHE_HOME="+d.dir, "HOME="+d.dir, "MILKWEED_CONFIG=")
	cmd.Env = append(cmd.Env, env...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // Ctrl-C ends this process first
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("%s: %w: %s", strings.Join(words, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.Bytes(), nil
}

// mount mounts the source as a cycle says.
func (d *daemon) mount(ctx context.Context, c Cycle) error {
	words := []string{
		d.program, "mount", "--log-file", d.log(),
		"-o", fmt.Sprintf("mode=%s,attr_timeout=%v,consistency=%v", c.Mode, attrTimeout, attrTimeout),
		"--tier", fmt.Sprintf("memory:%s:%d", d.memory, memoryQuota),
		"--tier", fmt.Sprintf("disk:%s:%d", d.disk, diskQuota),
		d.source, d.point(),
	}
	if config.IsURL(d.source) {
		words[len(words)-2] += "&anonymous=true"
	}
	if c.Files > 0 {
		words = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d; exec "$@"`, c.Files), "sh"}, words...)
	}
	if c.Size > 0 {
		words = append([]string{"prlimit", fmt.Sprintf("--fsize=%d", c.Size<<10), "--"}, words...)
	}
	if c.Threads > 0 && d.pids != "" {
		limit := strconv.Itoa(c.Threads)
		if err := os.WriteFile(filepath.Join(d.pids, "pids.max"), []byte(limit), 0o644); err != nil {
			return err
		}
		words = append([]string{"sh", "-c", `echo 0 >"$1/cgroup.procs"; shift; exec "$@"`, "sh", d.pids}, words...)
	}
	if c.Denied {
		words = append([]string{"setpriv", "--bounding-set", dacCapabilities, "--inh-caps", dacCapabilities}, words...)
	}
	var env []string
	if c.Memory != "" {
		env = append(env, "GOMEMLIMIT="+c.Memory)
	}
	if _, err := d.run(ctx, env, words...); err != nil {
		return err
	}
	s, err := d.status(ctx)
	d.pid = s.PID
	return err
}

// status returns what the program says of the mount.
func (d *daemon) status(ctx context.Context) (control.Status, error) {
	out, err := d.run(ctx, nil, d.program, "status", "--json", d.point())
	if err != nil {
		return control.Status{}, err
	}
	return control.DecodeStatus(out)
}

// makeGroup makes a control group that limits processes, where this machine permits that, and returns its
// folder.
func makeGroup(name string) string {
	for _, parent := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
		dir := filepath.Join(parent, name)
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, "pids.max")); err == nil {
			return dir
		}
		unix.Rmdir(dir)
	}
	return ""
}

// signal sends SIGKILL to the daemon. It ends when the disks that it waits for respond.
func (d *daemon) signal() { unix.Kill(d.pid, unix.SIGKILL) }

// kill kills the daemon and detaches its mount.
func (d *daemon) kill() error {
	if d.pid != 0 {
		d.signal()
		unmounted := false
		for start := time.Now(); procs.Alive(d.pid); time.Sleep(time.Millisecond) {
			if !unmounted && time.Since(start) > Deadline/4 { // it may wait for the end of a read: do as a user would
				unmounted = true
				d.run(context.Background(), nil, d.program, "umount", "--lazy", d.point())
			}
			if time.Since(start) > Deadline {
				return fmt.Errorf("the daemon has not ended %v after SIGKILL", Deadline)
			}
		}
		d.pid = 0
	}
	for {
		if err := unix.Unmount(d.point(), unix.MNT_DETACH); err == unix.EINVAL {
			return nil // nothing is mounted there
		} else if err != nil {
			return fmt.Errorf("umount %s: %w", d.point(), err)
		}
	}
}

// umount ends the daemon in order. If that fails because the mount is in use, the daemon
// is killed.
func (d *daemon) umount(ctx context.Context) error {
	_, err := d.run(ctx, nil, d.program, "umount", "--lazy", d.point())
	if err != nil {
		return errors.Join(err, d.kill())
	}
	for start := time.Now(); procs.Alive(d.pid); time.Sleep(time.Millisecond) {
		if time.Since(start) > Deadline {
			return errors.Join(fmt.Errorf("the daemon has not ended %v after the unmount", Deadline), d.kill())
		}
	}
	d.pid = 0
	return nil
}

// canScrub reports whether the program has the command scrub.
func (d *daemon) canScrub(ctx context.Context) bool {
	out, err := d.run(ctx, nil, d.program, "scrub", "--help") // without the command, it is the help of the program
	return err == nil && bytes.Contains(out, []byte("milkweed scrub "))
}

// scrub verifies all copies, and returns when that is done. The error means that there is no
// report.
func (d *daemon) scrub(ctx context.Context) (report placement.ScrubReport, err error) {
	out, err := d.run(ctx, nil, d.program, "scrub", "--json", d.point())
	if len(out) > 0 { // the command fails if it has found a corrupt copy
		err = json.Unmarshal(out, &report)
	}
	return report, err
}

// where returns where the copy of a file is.
func (d *daemon) where(ctx context.Context, name string) (l control.Location, err error) {
	out, err := d.run(ctx, nil, d.program, "where", "--json", filepath.Join(d.point(), name))
	if err == nil {
		err = json.Unmarshal(out, &l)
	}
	return l, err
}

// crashed returns the report of a panic or a data race in the log, or "".
func (d *daemon) crashed() string {
	data, _ := os.ReadFile(d.log())
	for _, sign := range []string{"panic:", "fatal error:", "DATA RACE"} {
		if i := bytes.Index(data, []byte(sign)); i >= 0 {
			return string(data[i:min(len(data), i+4000)])
		}
	}
	return ""
}
