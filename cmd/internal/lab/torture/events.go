package torture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/fs/faultdisk"
)

// do does an event. Its error is one of the suite: what a fault breaks is no error.
func (s *suite) do(ctx context.Context, e Event) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if s.Bucket && slices.Contains(bucketUnfit, e.Name) {
		return nil
	}
	s.oracle.at(s.cycleNumber, e.String())
	s.verbosef("%v", e)
	rng := rand.New(rand.NewPCG(e.Seed, 0))
	var err error
	switch {
	case e.Name == "evict":
		s.evict(rng)
		return nil
	case e.Name == "scrub":
		if !s.daemon.scrubs {
			return nil
		}
		s.scrub(ctx)
		return nil
	case e.Name == "remount disk":
		release := s.pool.hold()
		err = errors.Join(s.tierDisk.unmount(), s.tierDisk.mount(ctx))
		release()
	case e.Group == groupFlip:
		if !s.flip(rng, e.Name == "in use") {
			return nil
		}
	case e.Group == groupPlant:
		s.plant(rng, e.Name == "other user")
	case e.Group == groupWriteBack:
		err = s.failWriteBack(ctx, e)
	case e.Group == groupLimits:
		err = s.fillForLong(e)
	case e.Group == groupTier:
		err = s.failTier(ctx, e)
	case e.Group == groupSource:
		err = s.changeSource(ctx, e, rng)
	case e.Name == "chmod copies":
		for _, path := range s.listCopies(s.daemon.disk) {
			os.Chmod(path, 0o600)
			s.setForeign(path)
		}
	case e.Group == groupClock:
		err = s.shiftSource(ctx, e, rng)
	}
	if errors.Is(err, errNoEffect) {
		return nil
	}
	s.summary.Events[e.String()]++
	if err != nil {
		return fmt.Errorf("%v: %w", e, err)
	}
	return nil
}

// errNoEffect is the error of an event that did not happen.
var errNoEffect = errors.New("no effect")

// listCopies returns the paths of the copies in a tier, in order.
func (s *suite) listCopies(tier string) (paths []string) {
	filepath.WalkDir(s.daemon.copies(tier), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			paths = append(paths, path)
		}
		return nil
	})
	return paths
}

// evict removes a third of the copies of every other file, so that files are placed in
// each cycle, and others stay placed for long.
func (s *suite) evict(rng *rand.Rand) {
	for _, tier := range []string{s.daemon.memory, s.daemon.disk} {
		for _, path := range s.listCopies(tier) {
			if file, ok := s.fileOf(path); ok && file%2 == 0 && rng.IntN(3) == 0 {
				os.Remove(path)
			}
		}
	}
}

// fileOf returns the number of the file of a copy.
func (s *suite) fileOf(path string) (file int, ok bool) {
	_, err := fmt.Sscanf(filepath.Base(path), "%04d.bin", &file)
	return file, err == nil && file < s.model.Count
}

// flip flips a bit of a random copy. running tells whether the daemon runs. It returns
// false if there is no copy whose place is known.
func (s *suite) flip(rng *rand.Rand, running bool) bool {
	tiers := []string{s.daemon.memory, s.daemon.disk}
	rng.Shuffle(2, func(i, j int) { tiers[i], tiers[j] = tiers[j], tiers[i] })
	for _, tier := range tiers {
		copies := s.listCopies(tier)
		for range min(10, len(copies)) {
			path := copies[rng.IntN(len(copies))]
			if file, ok := s.fileOf(path); ok && s.flipCopy(path, file, tier == s.daemon.disk, rng, running) {
				return true
			}
		}
	}
	return false
}

func (s *suite) flipCopy(path string, file int, onDisk bool, rng *rand.Rand, running bool) bool {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return false
	}
	if onDisk && s.FileSystem == "btrfs" {
		return false // it has addresses of its own
	}
	off, bit := rng.Int64N(info.Size()), rng.IntN(8)
	s.oracle.flip(file, off, bit, running) // before anyone reads it
	s.damaged[file] = true
	s.setForeign(path)
	if onDisk {
		place, ok, err := faultdisk.Locate(f, off)
		if err != nil || !ok || s.tierDisk.disk.Flip(place, bit) != nil {
			return false
		}
		unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		return true
	}
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		return false
	}
	b[0] ^= 1 << bit
	_, err = f.WriteAt(b[:], off)
	return errors.Join(err, os.Chtimes(path, time.Time{}, info.ModTime())) == nil
}

// plant replaces a random copy by a file of the same size and modification time that
// Milkweed has not written. With other, the file belongs to another user.
func (s *suite) plant(rng *rand.Rand, other bool) {
	copies := append(s.listCopies(s.daemon.memory), s.listCopies(s.daemon.disk)...)
	if len(copies) == 0 {
		return
	}
	path := copies[rng.IntN(len(copies))]
	info, err := os.Stat(path)
	if err != nil {
		return
	}
	if file, ok := s.fileOf(path); ok {
		s.damaged[file] = true
	}
	temp := filepath.Join(filepath.Dir(path), "planted")
	if os.WriteFile(temp, bytes.Repeat(planted, int(info.Size()+7)/8)[:info.Size()], 0o600) != nil {
		os.Remove(temp)
		return
	}
	if other {
		os.Chown(temp, 65534, 65534)
	}
	os.Chtimes(temp, time.Time{}, info.ModTime())
	os.Rename(temp, path)
	s.setForeign(path)
}

// failWriteBack lets writes to the disk of the tier fail for a while. A file system that
// gives up stays mounted until the daemon ends, as it would on a real machine.
func (s *suite) failWriteBack(ctx context.Context, e Event) error {
	f := faultdisk.Faults{Seed: e.Seed}
	s.lossy, s.lost = s.cycleNumber, true
	switch e.Name {
	case "errors":
		f.WriteError = 1
	case "some errors":
		f.WriteError = 0.3
	case "torn":
		f.Tear = 0.7
	case "flush fails":
		f.FlushError = 1
	case "thin pool full":
		f.Full = true
	}
	if s.mode == "passthrough" {
		s.endCycle = append(s.endCycle, s.oracle.allow(-1, "a failing disk in passthrough", grace, unix.EIO, unix.ENOSPC))
	}
	return s.faulty(ctx, s.tierDisk, f, e.For)
}

// faulty makes a disk fail for a time.
func (s *suite) faulty(ctx context.Context, v *volume, f faultdisk.Faults, d time.Duration) error {
	if err := v.disk.SetFaults(f); err != nil {
		return err
	}
	sleep(ctx, d)
	return v.disk.SetFaults(faultdisk.Faults{})
}

// syncBystander lets another program sync a file of its own on the disk of the tier. The
// file system then commits its journal: the names and sizes of copies reach the disk.
func (s *suite) syncBystander() {
	f, err := os.Create(filepath.Join(s.tierDisk.point, "bystander"))
	if err != nil {
		return // the file system does not work
	}
	defer f.Close()
	f.WriteString("x")
	f.Sync()
}

// cut cuts the power of the disk of the tier, and kills the daemon. Half of the cuts are
// reboots, after which the tier in memory is empty.
func (s *suite) cut(ctx context.Context, e Event, rng *rand.Rand) error {
	copies := s.listCopies(s.daemon.disk)
	if rng.IntN(2) == 0 { // more data is on its way to a slow disk
		slow := faultdisk.Faults{Delay: time.Duration(5+rng.IntN(40)) * time.Millisecond}
		if err := s.tierDisk.disk.SetFaults(slow); err != nil {
			return err
		}
		sleep(ctx, time.Duration(50+rng.IntN(300))*time.Millisecond)
	}
	if rng.IntN(4) > 0 {
		s.syncBystander()
	}
	keep := 0.0
	if rng.IntN(2) == 0 {
		keep = rng.Float64()
	}
	if err := s.tierDisk.disk.PowerOff(keep, e.Seed); err != nil {
		return err
	}
	if err := s.daemon.kill(); err != nil {
		return err
	}
	release := s.pool.hold()
	defer release()
	if rng.IntN(2) == 0 {
		if err := errors.Join(s.boot(e.Seed), os.RemoveAll(s.daemon.memory)); err != nil {
			return err
		}
		s.summary.Events["reboot"]++
	}
	if err := s.tierDisk.cut(ctx, keep, e.Seed); err != nil {
		s.logf("the disk cannot be mounted after a power cut: %v", err)
		return s.format(ctx)
	}
	if e.Name == "clock set back" && s.FileSystem == "ext4" {
		return s.setClockBack(ctx, copies)
	}
	return nil
}

// setClockBack makes the disk of the tier look as if the clock were set back by a day: all
// change times of copies are a day ahead. It writes to the file system while it is not
// mounted, because no system call sets a change time.
func (s *suite) setClockBack(ctx context.Context, copies []string) error {
	if err := s.tierDisk.unmount(); err != nil {
		return err
	}
	device, err := s.tierDisk.disk.Attach(ctx)
	if err != nil {
		return err
	}
	var script strings.Builder
	ahead := time.Now().Add(24 * time.Hour)
	for _, path := range copies {
		name := strings.TrimPrefix(path, s.tierDisk.point)
		fmt.Fprintf(&script, "set_inode_field %s ctime @%d\n", name, ahead.Unix())
	}
	cmd := exec.CommandContext(ctx, "debugfs", "-w", "-f", "-", device)
	cmd.Stdin = strings.NewReader(script.String())
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("debugfs: %w: %s", err, out)
	}
	if err := errors.Join(err, s.tierDisk.disk.Detach(), s.tierDisk.mount(ctx)); err != nil {
		return err
	}
	for _, path := range copies { // debugfs does not report its errors
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil && st.Ctim.Sec != ahead.Unix() {
			return fmt.Errorf("debugfs has not set the change time of %s", path)
		}
	}
	return nil
}
