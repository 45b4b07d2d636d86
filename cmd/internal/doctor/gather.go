package doctor

import (
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
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/drivers/posix"
)

// ErrNoAnswer is the error of what did not answer in time.
var ErrNoAnswer = errors.New("no answer")

// Timeout bounds each request to the daemon, to a file system and to the source. Gather makes those
// that depend on nothing else in parallel, and takes at most three of them.
const Timeout = 5 * time.Second

// Gather collects the facts about the mount of a daemon. Version is that of this program. The error
// is one of the daemon, which did not answer or is of another release. Everything else that fails or
// hangs is in Missing, or is the Err of its fact.
func Gather(ctx context.Context, c *control.Client, version string) (*Facts, error) {
	f := &Facts{Version: version}
	var err error
	if f.Status, err = within(ctx, func(ctx context.Context) (control.Status, error) { return c.Status(ctx) }); err != nil {
		return nil, err
	}
	f.Tiers = make([]Storage, len(f.Status.Tiers))
	var mu sync.Mutex // guards f.Missing
	missing := func(subject string, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			f.Missing = append(f.Missing, Missing{subject, err})
		}
	}
	var gathering sync.WaitGroup
	gathering.Go(func() {
		all, err := within(ctx, func(ctx context.Context) ([]config.Setting, error) { return c.Settings(ctx) })
		missing("configuration", err)
		f.Settings = make(map[string]string)
		for _, s := range all {
			f.Settings[s.Key] = s.Value
		}
	})
	gathering.Go(func() {
		if f.Status.Peers != nil {
			report, err := within(ctx, func(ctx context.Context) (control.PeerReport, error) { return c.Peers(ctx) })
			missing("peers", err)
			f.Peers = slices.DeleteFunc(report.Nodes, func(n control.PeerAnswer) bool { return n.Self })
		}
	})
	gathering.Go(func() {
		if f.Status.GenerationGone {
			g, err := within(ctx, func(ctx context.Context) (control.Generations, error) { return c.Generations(ctx) })
			missing("generations", err)
			f.Linked = g.Linked
		}
	})
	gathering.Go(func() {
		var err error
		f.Process, err = within(ctx, func(context.Context) (Process, error) { return processOf(f.Status.PID) })
		missing("daemon", err)
	})
	gathering.Go(func() {
		var err error
		f.Source, err = within(ctx, func(ctx context.Context) (Source, error) {
			s, err := measure(ctx, shownDir(f.Status.Source.Path, f.Status.Generation), f.Status.MountPoint)
			switch pid, path := f.Status.PID, f.Status.Source.Path; {
			case errors.Is(err, unix.ENOENT):
				s.Gone = isGone(pid, path)
			case err == nil && !config.IsURL(path):
				s.Empty = isEmpty(pid, path)
			}
			return s, err
		})
		f.Source.Err = err
	})
	for i, t := range f.Status.Tiers {
		gathering.Go(func() {
			var err error
			f.Tiers[i], err = within(ctx, func(context.Context) (Storage, error) { return storageOf(t.Path) })
			f.Tiers[i].Err = err
		})
	}
	gathering.Wait()
	f.ReadAhead, f.ReadAheadFile = readAheadOf(f.Status.MountPoint)
	f.Unsynchronized = unsynchronized()
	return f, ctx.Err()
}

// within returns the result of get, or an error that matches ErrNoAnswer after Timeout. A get that
// hangs in the kernel cannot be interrupted: its goroutine ends with the process.
func within[T any](ctx context.Context, get func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	type result struct {
		value T
		err   error
	}
	got := make(chan result, 1)
	go func() {
		var r result
		r.err = panics.Do(func() (err error) {
			r.value, err = get(ctx)
			return err
		})
		got <- r
	}()
	var none T
	select {
	case r := <-got:
		if errors.Is(r.err, context.DeadlineExceeded) {
			break
		}
		return r.value, r.err
	case <-ctx.Done():
	}
	if err := context.Cause(ctx); !errors.Is(err, context.DeadlineExceeded) {
		return none, err
	}
	return none, fmt.Errorf("%w within %v", ErrNoAnswer, Timeout)
}

// processOf describes the daemon.
func processOf(pid int) (Process, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	open, err := descriptorsOf(pid)
	if err != nil {
		return Process{}, err
	}
	var limit unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		return Process{}, fmt.Errorf("limits of process %d: %w", pid, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return Process{}, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	p := Process{Known: true, Open: open, Soft: limit.Cur, Hard: limit.Max}
	p.Memory, p.MemoryLeft = config.MemoryOf(pid)
	p.Threads, p.ThreadLimit = config.ThreadsOf(pid)
	p.Limits, err = check.Limits(pid)
	return p, err
}

// descriptorsOf returns how many descriptors the daemon has open. In another PID namespace, its number is that of no
// process, or of another one.
func descriptorsOf(pid int) (int, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	open, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	serves := slices.ContainsFunc(open, func(e os.DirEntry) bool {
		file, err := os.Readlink(filepath.Join(dir, e.Name()))
		return err == nil && file == "/dev/fuse"
	})
	if !serves {
		return 0, fmt.Errorf("process %d is another one: the daemon runs in another PID namespace", pid)
	}
	return len(open), nil
}

// storageOf describes the file system that path is on.
func storageOf(path string) (Storage, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Storage{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return Storage{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return Storage{Known: true, Device: st.Dev, Size: int64(fs.Blocks) * fs.Bsize, Available: int64(fs.Bavail) * fs.Bsize}, nil
}

// Bounds on the operations of measure.
const (
	sampledFiles = 64 // whose attributes are requested
	openedFiles  = 8  // which are opened and read
	firstRead    = 4 << 10
)

// shownDir returns the directory that a mount of path shows: one of the generation in it, or beside the target of the link
// that it is.
func shownDir(path, generation string) string {
	if generation == "" || config.IsURL(path) {
		return path
	}
	target := config.RealPath(path)
	for _, dir := range []string{filepath.Join(target, generation), filepath.Join(filepath.Dir(target), generation)} {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
	}
	return path
}

// measure measures a directory that is mounted at point. Of a bucket it returns the zero value: requests cost
// money, and the daemon counts those that the store has refused.
func measure(ctx context.Context, path, point string) (Source, error) {
	if config.IsURL(path) {
		return Source{}, nil
	}
	dir, err := posix.OpenDir(path)
	if err != nil {
		return Source{}, err
	}
	defer dir.Close()
	sampling, cancel := context.WithTimeout(ctx, Timeout/2)
	defer cancel()
	found, err := dir.Sample(sampling, sampledFiles)
	if err != nil {
		return Source{}, err
	}
	sample := found.Files
	if err := sampling.Err(); err != nil && len(sample) == 0 {
		return Source{}, err
	}
	var s Source
	s.Links = check.FindLinks(sampling, dir, path, point, found.Links)
	s.Ahead, s.Future = newest(sample, time.Now())
	s.Image = check.IsImage(dir, slices.Collect(maps.Values(sample)))
	var opens, reads []time.Duration
	for name := range sample { // in no order
		if len(opens) == openedFiles || ctx.Err() != nil {
			break
		}
		if open, read, err := measureFile(ctx, dir, name); err == nil { // others may be gone, or may not be readable
			opens, reads = append(opens, open), append(reads, read)
		}
	}
	s.Files, s.Open, s.Read = len(opens), median(opens), median(reads)
	return s, nil
}

// isEmpty reports whether a path leads to an empty directory, where the daemon runs.
func isEmpty(pid int, path string) bool {
	fd, err := openWhereDaemonRuns(pid, path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return false
	}
	d := os.NewFile(uintptr(fd), path)
	defer d.Close()
	_, err = d.Readdirnames(1)
	return err == io.EOF
}

// isGone reports whether a path does not exist where the daemon runs.
func isGone(pid int, path string) bool {
	fd, err := openWhereDaemonRuns(pid, path, unix.O_PATH|unix.O_NOFOLLOW)
	if err == nil {
		unix.Close(fd)
	}
	return errors.Is(err, unix.ENOENT)
}

// errElsewhere means that this process cannot look where the daemon runs.
var errElsewhere = errors.New("the daemon runs elsewhere")

// openWhereDaemonRuns opens a path in the mount namespace of the daemon. Doctor may run in another one.
func openWhereDaemonRuns(pid int, path string, flags uint64) (fd int, err error) {
	if _, err := descriptorsOf(pid); err != nil {
		return -1, errElsewhere
	}
	root, err := unix.Open(filepath.Join("/proc", strconv.Itoa(pid), "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, errElsewhere
	}
	defer unix.Close(root)
	return unix.Openat2(root, path, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
}

// newest returns by how much the latest change time of files is in the future, and the file that has
// it. It is 0 if none is.
func newest(sample map[string]drivers.Info, now time.Time) (ahead time.Duration, file string) {
	for name, info := range sample {
		if d := info.Ctime.Sub(now); d > ahead {
			ahead, file = d, name
		}
	}
	return ahead, file
}

// measureFile opens a file and reads its beginning.
func measureFile(ctx context.Context, dir *posix.Dir, name string) (open, read time.Duration, err error) {
	began := time.Now()
	o, err := dir.Open(ctx, name)
	if err != nil {
		return 0, 0, err
	}
	defer o.Close()
	opened := time.Now()
	if n := min(o.Info().Size, firstRead); n > 0 {
		if _, err := o.ReadAt(ctx, make([]byte, n), 0); err != nil {
			return 0, 0, err
		}
	}
	return opened.Sub(began), time.Since(opened), nil
}

// median returns the median of durations, the smaller one of two, or 0 if there is none.
func median(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[(len(all)-1)/2]
}

// readAheadOf returns how many bytes the kernel reads ahead on a mount, and the file that sets it. It is 0 if
// that is not known, as in a container without /sys.
func readAheadOf(point string) (bytes int64, file string) {
	table, err := mounts.Read(mounts.Self)
	if err != nil {
		return 0, ""
	}
	m, ok := table.At(point)
	if !ok {
		return 0, ""
	}
	file = fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(m.Dev), unix.Minor(m.Dev))
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, ""
	}
	kib, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 40)
	if err != nil {
		return 0, ""
	}
	return kib << 10, file
}

// unsynchronized reports whether the kernel says that nothing synchronizes its clock.
func unsynchronized() bool {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return err == nil && state == unix.TIME_ERROR
}
