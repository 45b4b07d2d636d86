package fs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/fs/faultdisk"
	"github.com/milkweedfs/milkweed/tiers"
)

func init() {
	children["disk"] = serveDisk
	children["readFiles"] = readFiles
}

const diskSize = 128 << 20

// serveDisk is the process of a fault disk. args are its base file and its folder.
func serveDisk(args []string) error {
	return faultdisk.Run(args[0], diskSize, args[1], os.Stdin, os.Stdout)
}

// readFiles reads files, one after the other, and prints for each the duration in nanoseconds and the
// error, if there is one. args are the folder and the first and the last number of a file.
func readFiles(args []string) error {
	first, _ := strconv.Atoi(args[1])
	last, err := strconv.Atoi(args[2])
	for i := first; err == nil && i <= last; i++ {
		start := time.Now()
		data, err := os.ReadFile(filepath.Join(args[0], fmt.Sprintf("%03d", i)))
		if err == nil && len(data) != illSize {
			err = io.ErrUnexpectedEOF
		}
		fmt.Println(time.Since(start).Nanoseconds(), err)
	}
	return err
}

const (
	illFiles = 100
	illSize  = 200_000
)

// An illStack is a stack with a tier on a fault disk that holds copies of all files.
type illStack struct {
	*stack
	disk *faultdisk.Disk
}

func newIllStack(t *testing.T, mode fs.Mode) illStack {
	t.Helper()
	drivertest.Need(t, "root", "mkfs.ext4")
	dir := t.TempDir()
	folder, point := filepath.Join(dir, "disk"), filepath.Join(dir, "mnt")
	ill := illStack{}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.Mkdir(folder, 0o755))
	check(os.Mkdir(point, 0o755))
	cmd := childCommand("disk", filepath.Join(dir, "base"), folder)
	cmd.Stderr = os.Stderr
	var err error
	ill.disk, err = faultdisk.Start(cmd, folder)
	check(err)
	t.Cleanup(func() {
		var busy error
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if busy = unix.Unmount(point, 0); busy != unix.EBUSY || time.Now().After(deadline) {
				break
			}
		}
		if busy == unix.EINVAL { // it was not mounted
			busy = nil
		}
		if err := errors.Join(ill.disk.PowerOff(0, 0), busy, ill.disk.Stop()); err != nil {
			t.Error(err)
		}
	})
	device, err := ill.disk.Attach(context.Background())
	check(err)
	check(faultdisk.Format(context.Background(), device, "ext4"))
	check(faultdisk.Mount(context.Background(), device, "ext4", point))
	ill.stack = newStack(t, stackOptions{mode: mode, quotas: []tiers.Quota{bytesQuota(1 << 30)}, tiers: point}, func(source string) {
		for i := range illFiles {
			write(t, source, fmt.Sprintf("%03d", i), illSize, uint64(i))
		}
	})
	t.Cleanup(func() { ill.faults(faultdisk.Faults{}) }) // before the stack ends
	ill.epoch(1)
	ill.settled()
	child(t, "forget", ill.tierPath(1))
	return ill
}

// verify reads all copies, so that they are compared with their checksums.
func (s illStack) verify() {
	s.t.Helper()
	s.epoch(2)
	s.settled()
	s.forget()
	s.closed()
}

func (s illStack) faults(f faultdisk.Faults) {
	s.t.Helper()
	s.check(s.disk.SetFaults(f))
}

// forget drops the pages of all copies and of the mount.
func (s illStack) forget() {
	s.t.Helper()
	child(s.t, "forget", s.tierPath(1))
	s.forgetPages()
}

func (s illStack) health() tiers.TierStats { return s.levels.Tier(1).Stats() }

// read reads files and returns the number of errors, and how long the slowest took.
func (s illStack) read(first, last int) (failed int, slowest time.Duration) {
	s.t.Helper()
	for line := range strings.Lines(child(s.t, "readFiles", s.point, strconv.Itoa(first), strconv.Itoa(last))) {
		var nanos int64
		var err string
		fmt.Sscan(line, &nanos, &err)
		if slowest = max(slowest, time.Duration(nanos)); err != "<nil>" {
			failed++
		}
	}
	return failed, slowest
}

// recovers waits until the disk is used again, after its faults have ended.
func (s illStack) recovers() {
	s.t.Helper()
	s.faults(faultdisk.Faults{})
	s.within(time.Minute, "the tier is used again", func() bool { return s.health().Health == tiers.Healthy })
	// A file that was read from the source a moment ago is read there for a second more.
	s.within(time.Minute, "nothing is read from the source after the disk has recovered", func() bool {
		before := s.from.Bytes(drivertest.OpRead)
		s.forget()
		if failed, _ := s.read(0, illFiles-1); failed > 0 {
			s.t.Errorf("%d of %d reads failed after the disk has recovered", failed, illFiles)
		}
		return s.from.Bytes(drivertest.OpRead) == before
	})
}

func (s illStack) within(d time.Duration, what string, f func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(d); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("not within %v: %s", d, what)
		}
	}
}

// A disk from which nothing can be read any more is left, also while only the kernel reads from it.
// After that, no open gets an error of the disk, also of files that are open on it.
func TestDiskFails(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		s := newIllStack(t, mode)
		s.verify()
		open := hold(t, s.in("007"))
		defer open.close()
		s.faults(faultdisk.Faults{ReadError: 1})
		start, failed := time.Now(), 0
		s.within(time.Minute, "the tier is left", func() bool {
			n, _ := s.read(0, 2)
			failed += n
			return s.health().Health == tiers.Down
		})
		t.Logf("%s: left after %v, %v; %d reads failed before", mode, time.Since(start), s.health().Cause, failed)
		if failed > 0 && mode != fs.Passthrough {
			t.Errorf("%d reads failed", failed)
		}
		if failed, _ := s.read(0, illFiles-1); failed > 0 {
			t.Errorf("%d of %d reads failed after the tier was left", failed, illFiles)
		}
		if got := open.read(0, 1000); mode == fs.Passthrough && !strings.Contains(got, "input/output error") {
			t.Errorf("a handle that was open before: %s, want the error of the disk", got)
		}
		s.recovers()
	})
}

// A disk that hangs is left. After that, no open waits for it.
func TestDiskHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a disk that hangs")
	}
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		s := newIllStack(t, mode)
		s.verify()
		s.faults(faultdisk.Faults{Hang: true})
		start := time.Now()
		var stuck []*stuckReader
		for i := 0; s.health().Health != tiers.Down; i = min(i+1, illFiles-1) {
			if time.Since(start) > time.Minute {
				t.Fatal("the tier is not left")
			}
			stuck = append(stuck, startReader(t, s.in(fmt.Sprintf("%03d", i))))
			time.Sleep(100 * time.Millisecond)
		}
		t.Logf("%s: left after %v, %v", mode, time.Since(start), s.health().Cause)
		_, slowest := s.read(0, illFiles-1)
		t.Logf("%s: slowest read after that %v", mode, slowest)
		n := 0
		for _, r := range stuck {
			select {
			case <-r.ended:
			default:
				n++
			}
		}
		t.Logf("%s: %d of %d processes that have begun before that still wait", mode, n, len(stuck))
		for i := 0; i < len(stuck) && mode != fs.Passthrough; i++ {
			select {
			case <-stuck[i].ended:
			case <-time.After(20 * time.Second):
				t.Fatal("a process still waits")
			}
		}
		s.faults(faultdisk.Faults{})
		for _, r := range stuck {
			if <-r.ended; r.err != nil {
				t.Error(r.err)
			}
		}
		s.recovers()
	})
}

// An open of a copy that was not compared with its checksum yet waits for a disk that hangs, but not
// longer than a time-out.
func TestUncheckedDiskHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a disk that hangs")
	}
	t.Parallel()
	s := newIllStack(t, fs.Passthrough)
	s.restart() // the first epoch may have opened copies, which are compared then
	child(t, "forget", s.tierPath(1))
	s.faults(faultdisk.Faults{Hang: true})
	if failed, slowest := s.read(0, illFiles-1); failed > 0 || slowest > 20*time.Second {
		t.Errorf("%d reads failed, and the slowest took %v", failed, slowest)
	}
	s.recovers()
}

// A stuckReader is a child that reads a file and may have to wait for it.
type stuckReader struct {
	ended chan struct{} // closed when the child has ended
	err   error         // valid after that
}

func startReader(t *testing.T, path string) *stuckReader {
	t.Helper()
	cmd := exec.Command("cat", path)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	r := &stuckReader{ended: make(chan struct{})}
	go func() {
		io.Copy(io.Discard, out)
		r.err = cmd.Wait()
		close(r.ended)
	}()
	return r
}

// A disk on which each operation takes a second is left for a source that is faster, and used again
// when it is fast.
func TestDiskIsSlow(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a slow disk")
	}
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		s := newIllStack(t, mode)
		s.verify()
		s.faults(faultdisk.Faults{Delay: time.Second})
		start, reads := time.Now(), 0
		s.within(time.Minute, "the tier is left", func() bool {
			if failed, _ := s.read(reads, reads); failed > 0 {
				t.Error("a read failed")
			}
			reads++
			return s.health().Health == tiers.Down
		})
		t.Logf("%s: left after %v and %d reads, %v", mode, time.Since(start), reads, s.health().Cause)
		if reads > 12 || !strings.Contains(fmt.Sprint(s.health().Cause), "slow: reads take ") {
			t.Errorf("left after %d reads with cause %v", reads, s.health().Cause)
		}
		before := s.from.Bytes(drivertest.OpRead)
		if failed, _ := s.read(illFiles/2, illFiles-1); failed > 0 {
			t.Errorf("%d reads failed after the tier was left", failed)
		}
		if got, want := s.from.Bytes(drivertest.OpRead)-before, int64(illFiles/2*illSize); got < want {
			t.Errorf("%d bytes were read from the source after that, want %d", got, want)
		}
		s.recovers()
	})
}
