package torture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/fs/faultdisk"
)

// Config describes a run.
type Config struct {
	Folder     string // empty; the suite has everything in it
	Seed       uint64
	Duration   time.Duration // no cycle begins after it
	Cycles     int           // most cycles; 0 is no limit
	FileSystem string        // of the disks: ext4, xfs or btrfs
	Bucket     bool          // the source is a bucket, whose ETags repeat
	Program    string        // the path of the program under test
	Groups     []string      // of faults; see Groups
	Files      int           // of the dataset
	Readers    int           // processes
	FailFast   bool          // end at the first finding
	Verbose    bool          // log each event
	Log        io.Writer
}

// A suite is the state of a run.
type suite struct {
	Config
	dir         string // has everything
	data        string // the folder of the dataset
	model       Model
	tierDisk    *volume
	source      *volume
	bucket      *bucketServer // nil: the source is a folder
	gets, sent  int64         // of the bucket when the daemon was started
	daemon      *daemon
	oracle      *oracle
	pool        *pool
	summary     *Summary
	endOutage   func()   // ends the window in which the mount is gone
	endCycle    []func() // ends of the windows that last until the daemon ends
	cycleNumber int
	mode        string // of the mount
	start       time.Time

	withdrawn []withdrawal      // the oldest first
	foreign   map[string]uint64 // the inode numbers of files in tiers that the daemon may not count, by path
	damaged   map[int]bool      // files of which a copy may be damaged: flipped or planted since the last scrub
	lost      bool              // the power was cut, or writes have failed, since the last mount
	moved     int               // the last cycle in which the folder of a tier was removed or renamed; -1: none
	lossy     int               // the last cycle in which the disk of the tier has lost writes; -1: none since it was formatted or verified
}

// Run runs the suite in a mount namespace and a PID namespace of its own, which the caller
// has made. The Summary is nil if the run could not begin. The error is that of the
// suite itself; what was found is in the Summary.
func Run(ctx context.Context, c Config) (summary *Summary, err error) {
	s := &suite{Config: c, dir: c.Folder, model: Model{c.Seed, c.Files}, summary: newSummary(c.Seed, c.FileSystem), start: time.Now(),
		damaged: make(map[int]bool), foreign: make(map[string]uint64), moved: -1, lossy: -1}
	s.oracle = newOracle(s.model, s.summary, s.logf)
	readers, stopReaders := context.WithCancel(ctx)
	defer func() {
		stopReaders()
		err = errors.Join(err, s.remove())
	}()
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	s.pool.start(readers, c.Readers)
	for n := 0; ctx.Err() == nil && !s.done(n); n++ {
		if err := s.cycle(ctx, PlanCycle(c.Seed, n, c.Groups)); err != nil && ctx.Err() == nil {
			return s.summary, fmt.Errorf("cycle %d: %w", n, err)
		}
		s.summary.Cycles++
		s.oracle.forget()
	}
	if err := s.last(ctx); err != nil && ctx.Err() == nil {
		return s.summary, err
	}
	stopReaders()
	s.pool.running.Wait()
	s.summary.Seconds = time.Since(s.start).Seconds()
	if crash := s.daemon.crashed(); crash != "" {
		s.summary.Errors++
		s.summary.Findings = append(s.summary.Findings, Finding{Cause: "crash", Text: crash})
	}
	return s.summary, errors.Join(ctx.Err(), s.oracle.err())
}

// done reports whether the run ends before cycle n.
func (s *suite) done(n int) bool {
	return time.Since(s.start) >= s.Duration || s.Cycles > 0 && n == s.Cycles || s.FailFast && !s.oracle.ok()
}

func (s *suite) logf(format string, args ...any) {
	fmt.Fprintf(s.Log, "%7.1fs  %s\n", time.Since(s.start).Seconds(), fmt.Sprintf(format, args...))
}

func (s *suite) verbosef(format string, args ...any) {
	if s.Verbose {
		s.logf(format, args...)
	}
}

// memorySize is the size of the file system of the tier in memory, in bytes.
const memorySize = 24 << 20

// prepare makes the disks, the tier in memory and the dataset.
func (s *suite) prepare(ctx context.Context) (err error) {
	for _, name := range []string{"images", "memory", "point", "run"} {
		if err := os.Mkdir(filepath.Join(s.dir, name), 0o700); err != nil {
			return err
		}
	}
	images, memory := filepath.Join(s.dir, "images"), filepath.Join(s.dir, "memory")
	if err := unix.Mount("images", images, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount %s: %w", images, err)
	}
	if err := unix.Mount("memory", memory, "tmpfs", 0, fmt.Sprintf("size=%d", memorySize)); err != nil {
		return fmt.Errorf("mount %s: %w", memory, err)
	}
	if err := s.fakeBoot(); err != nil {
		return err
	}
	if s.source, err = newVolume(filepath.Join(images, "source"), filepath.Join(s.dir, "source"), s.FileSystem, 384<<20); err != nil {
		return err
	}
	if s.tierDisk, err = newVolume(filepath.Join(images, "tier"), filepath.Join(s.dir, "tier"), s.FileSystem, 192<<20); err != nil {
		return err
	}
	s.data = filepath.Join(s.source.point, "data")
	source := s.data
	if s.Bucket {
		bucket, url, err := serveBucket(s.data)
		if err != nil {
			return err
		}
		s.bucket = bucket
		source = "s3://" + bucketName + "?endpoint=" + url
	}
	s.daemon = &daemon{
		program: s.Program, dir: s.dir, source: source,
		memory: filepath.Join(memory, "tier"), disk: filepath.Join(s.tierDisk.point, "tier"),
	}
	s.daemon.scrubs = s.daemon.canScrub(ctx)
	s.daemon.pids = makeGroup(filepath.Base(s.dir))
	s.pool = &pool{model: s.model, oracle: s.oracle, point: s.daemon.point(), copies: s.daemon.copies(s.daemon.memory), seed: s.Seed}
	s.outage()
	return s.writeDataset(ctx)
}

// writeDataset writes the first version of all files, and mounts the disk again, so that
// the page cache has nothing of it.
func (s *suite) writeDataset(ctx context.Context) error {
	if err := os.Mkdir(filepath.Join(s.source.point, "temp"), 0o755); err != nil {
		return err
	}
	for f := range s.model.Count {
		path := filepath.Join(s.data, s.model.Name(f))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, s.model.Content(f, 0), 0o644); err != nil {
			return err
		}
	}
	return errors.Join(s.source.unmount(), s.source.mount(ctx))
}

// bootID is the file by which programs recognize a boot.
const bootID = "/proc/sys/kernel/random/boot_id"

// fakeBoot puts a file above bootID, in this mount namespace.
func (s *suite) fakeBoot() error {
	if err := s.boot(0); err != nil {
		return err
	}
	if err := unix.Mount(filepath.Join(s.dir, "boot_id"), bootID, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", bootID, err)
	}
	return nil
}

// boot makes another boot of this machine, with number n.
func (s *suite) boot(n uint64) error {
	id := fmt.Sprintf("00000000-0000-4000-8000-%012x\n", n&(1<<48-1))
	return os.WriteFile(filepath.Join(s.dir, "boot_id"), []byte(id), 0o444)
}

// outage opens the window in which the mount is gone, unless it is open.
func (s *suite) outage() {
	if s.endOutage == nil {
		s.endOutage = s.oracle.allow(-1, "the daemon is dead or not mounted yet", 0,
			unix.ENOTCONN, unix.ECONNABORTED, unix.EIO, unix.ESTALE, unix.ENOENT, unix.ENODEV, unix.EINTR)
	}
}

// cycle runs one cycle.
func (s *suite) cycle(ctx context.Context, c Cycle) error {
	s.verbosef("%v", c)
	s.outage()
	s.mode, s.cycleNumber = c.Mode, c.Number
	if c.Fresh {
		s.tierDisk.odd(c.Odd)
	}
	for what, on := range map[string]bool{c.Odd: c.Odd != "" && s.FileSystem == "ext4", "file size": c.Size > 0, "descriptors": c.Files > 0, "threads": c.Threads > 0 && s.daemon.pids != "", "memory": c.Memory != ""} {
		if on {
			s.summary.Events[groupLimits+": "+what]++
		}
	}
	if err := s.repair(ctx, c.Fresh); err != nil {
		return err
	}
	for _, e := range c.Down {
		if err := s.do(ctx, e); err != nil {
			return err
		}
	}
	if s.lost {
		s.setForeign(s.listCopies(s.daemon.disk)...)
		s.lost = false
	}
	if err := s.mount(ctx, c); err != nil {
		return err
	}
	for _, e := range c.Up {
		sleep(ctx, e.Wait)
		if err := s.do(ctx, e); err != nil {
			return err
		}
	}
	sleep(ctx, c.End.Wait)
	if !slices.ContainsFunc(c.Up, func(e Event) bool { return e.Group != groupSource && e.Group != groupLimits && e.Group != "" }) {
		s.compareStatus(ctx)
	}
	return s.end(ctx, c.End)
}

// last mounts once more and lets the readers run until all windows are closed, and a while
// longer: what the faults have left behind allows no error.
func (s *suite) last(ctx context.Context) error {
	for len(s.withdrawn) > 0 {
		if err := s.restoreAccess(); err != nil {
			return err
		}
	}
	if err := s.cycle(ctx, Cycle{Number: s.cycleNumber + 1, Mode: "cached", End: Event{Name: umount, Wait: grace + 2*time.Second}}); err != nil {
		return fmt.Errorf("after the last cycle: %w", err)
	}
	return nil
}

// mount mounts. If that fails, which is a finding, it makes all tiers empty and tries
// again.
func (s *suite) mount(ctx context.Context, c Cycle) error {
	s.oracle.mounting()
	if s.bucket != nil {
		for s.bucket.open.Load() > 0 && ctx.Err() == nil { // what the daemon before has sent
			sleep(ctx, time.Millisecond)
		}
		s.gets, s.sent = s.bucket.gets.Load(), s.bucket.sent.Load()
	}
	err := s.daemon.mount(ctx, c)
	if err != nil && ctx.Err() == nil {
		s.oracle.refused(err)
		s.removeTier(s.daemon.memory)
		if err = errors.Join(s.daemon.kill(), s.repair(ctx, true)); err == nil {
			err = s.daemon.mount(ctx, c)
		}
	}
	if err != nil {
		return err
	}
	s.oracle.mounted(c.Mode, c.Denied)
	s.endOutage()
	s.endOutage = nil
	return nil
}

// repair mounts the disk of the tier again if its file system does not work, and formats
// it if that does not help, or if fresh is set.
func (s *suite) repair(ctx context.Context, fresh bool) error {
	if !fresh && s.tierDisk.works() {
		return nil
	}
	release := s.pool.hold()
	defer release()
	if err := s.tierDisk.unmount(); err != nil {
		return err
	}
	if !fresh && s.tierDisk.mount(ctx) == nil && s.tierDisk.works() {
		s.summary.Events["disk remounted after errors"]++
		return nil
	}
	return s.format(ctx)
}

// format formats the disk of the tier. The readers must be held.
func (s *suite) format(ctx context.Context) error {
	s.summary.Events["disk formatted"]++
	s.lossy = -1
	if err := s.tierDisk.unmount(); err != nil {
		return err
	}
	return errors.Join(s.tierDisk.disk.PowerOn(), s.tierDisk.format(ctx))
}

// end ends the daemon.
func (s *suite) end(ctx context.Context, e Event) error {
	s.oracle.at(s.cycleNumber, e.String())
	s.summary.Events[e.String()]++
	s.outage()
	for _, end := range s.endCycle {
		end()
	}
	s.endCycle = nil
	rng := rand.New(rand.NewPCG(e.Seed, 0))
	switch e.Group {
	case groupKill:
		s.summary.Events["SIGKILL"]++
		if e.Name != "" {
			return s.killHanging(ctx, e.For)
		}
		return s.daemon.kill()
	case groupCut:
		s.lost = true
		s.summary.Events["SIGKILL"]++
		return s.cut(ctx, e, rng)
	}
	return s.daemon.umount(ctx)
}

// killHanging kills the daemon while the disk of the tier hangs.
func (s *suite) killHanging(ctx context.Context, d time.Duration) error {
	if err := s.tierDisk.disk.SetFaults(faultdisk.Faults{Hang: true}); err != nil {
		return err
	}
	sleep(ctx, d/2)
	s.daemon.signal()
	sleep(ctx, d/2)
	return errors.Join(s.tierDisk.disk.SetFaults(faultdisk.Faults{}), s.daemon.kill())
}

// remove ends all processes and removes everything.
func (s *suite) remove() error {
	var errs []error
	if s.tierDisk != nil { // operations that hang end
		errs = append(errs, s.tierDisk.disk.PowerOff(0, 0))
	}
	if s.source != nil {
		errs = append(errs, s.source.disk.PowerOff(0, 0))
	}
	if s.daemon != nil {
		errs = append(errs, s.daemon.kill())
		if s.daemon.pids != "" {
			errs = append(errs, unix.Rmdir(s.daemon.pids))
		}
	}
	if s.pool != nil {
		s.pool.running.Wait()
	}
	for _, v := range []*volume{s.tierDisk, s.source} {
		if v != nil {
			errs = append(errs, v.remove())
		}
	}
	unix.Unmount(bootID, unix.MNT_DETACH)
	for _, name := range []string{"images", "memory"} {
		unix.Unmount(filepath.Join(s.dir, name), unix.MNT_DETACH)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cleaning up: %w", err)
	}
	return nil
}

// sleep waits, or returns when ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
