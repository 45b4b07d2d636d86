package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/fs/faultdisk"
)

// failTier does a tier fault and undoes it.
func (s *suite) failTier(ctx context.Context, e Event) error {
	place, what, _ := strings.Cut(e.Name, " ")
	tier, point := s.daemon.memory, filepath.Dir(s.daemon.memory)
	if place == "disk" {
		tier, point = s.daemon.disk, s.tierDisk.point
	}
	switch what {
	case "removed":
		s.moved = s.cycleNumber
		s.removeTier(tier)
	case "full":
		return s.fill(ctx, point, e.For)
	case "read-only":
		return s.readOnly(ctx, point, e.For)
	case "renamed":
		s.moved = s.cycleNumber
		return s.renamed(ctx, tier, e.For)
	case "chowned":
		dir := s.daemon.dataset(tier)
		os.Chown(dir, 65534, 65534)
		sleep(ctx, e.For)
		os.Chown(dir, 0, 0)
		syncFS(dir) // after a power cut, the folder must not belong to the other user again
	default:
		return s.failDisk(ctx, what, e)
	}
	return nil
}

// syncFS writes a file system to its disk, if it works.
func syncFS(dir string) {
	if f, err := os.Open(dir); err == nil {
		defer f.Close()
		unix.Syncfs(int(f.Fd()))
	}
}

// removeTier removes the folder of a tier. It renames the folder first, because the daemon
// may create files while the folder is removed.
func (s *suite) removeTier(tier string) {
	os.RemoveAll(tier + ".removed") // the daemon may have created files in it since
	if os.Rename(tier, tier+".removed") == nil {
		os.RemoveAll(tier + ".removed")
	}
}

// fill takes all space of a file system for a while.
func (s *suite) fill(ctx context.Context, point string, d time.Duration) error {
	path := filepath.Join(point, "filler")
	if !takeAll(path) {
		return nil
	}
	sleep(ctx, d)
	os.Remove(path)
	return nil
}

// fillForLong takes all space of a file system until the daemon ends.
func (s *suite) fillForLong(e Event) error {
	point := s.tierDisk.point
	if e.Name == "memory full of others" {
		point = filepath.Dir(s.daemon.memory)
	}
	path := filepath.Join(point, "filler-for-long")
	if !takeAll(path) {
		return errNoEffect
	}
	s.endCycle = append(s.endCycle, func() {
		os.Remove(path)
		syncFS(point) // after a power cut, it must not be there again
	})
	return nil
}

// takeAll makes a file of all space of a file system, and reports whether that works.
func takeAll(path string) bool {
	f, err := os.Create(path)
	if err != nil {
		return false // the file system does not work
	}
	defer f.Close()
	for size := int64(64 << 20); size >= 1<<12; {
		info, err := f.Stat()
		if err != nil {
			return true
		}
		if unix.Fallocate(int(f.Fd()), 0, info.Size(), size) != nil {
			size /= 2
		}
	}
	return true
}

// readOnly makes a file system read-only for a while. While files are open for writing, the kernel refuses.
func (s *suite) readOnly(ctx context.Context, point string, d time.Duration) error {
	if unix.Mount("", point, "", unix.MS_REMOUNT|unix.MS_RDONLY, "") != nil {
		return errNoEffect
	}
	sleep(ctx, d)
	unix.Mount("", point, "", unix.MS_REMOUNT, "")
	return nil
}

// renamed hides a folder for a while. What was created in its place is removed.
func (s *suite) renamed(ctx context.Context, dir string, d time.Duration) error {
	away := dir + ".away"
	if os.Rename(dir, away) != nil {
		return nil // the file system does not work
	}
	sleep(ctx, d)
	for range 100 {
		os.RemoveAll(dir)
		if os.Rename(away, dir) == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond) // the daemon creates the folder again
	}
	return os.RemoveAll(away)
}

// failDisk makes the disk of the tier hang, fail or slow down.
func (s *suite) failDisk(ctx context.Context, what string, e Event) error {
	f, err := diskFaults(what, e.Seed)
	if err != nil {
		return err
	}
	if s.mode == "passthrough" {
		defer s.oracle.allow(-1, "a failing disk in passthrough", grace, unix.EIO, unix.ENOSPC)()
	}
	return s.faulty(ctx, s.tierDisk, f, e.For)
}

func diskFaults(what string, seed uint64) (faultdisk.Faults, error) {
	f := faultdisk.Faults{Seed: seed}
	switch what {
	case "hangs", "hang":
		f.Hang = true
	case "read errors":
		f.ReadError = 0.5
	case "slow":
		f.Delay = 20 * time.Millisecond
	default:
		return f, fmt.Errorf("%q: not a fault of a disk", what)
	}
	return f, nil
}

// changeSource does a source fault and, if it is not a new version, undoes it.
func (s *suite) changeSource(ctx context.Context, e Event, rng *rand.Rand) error {
	switch e.Name {
	case "replaced":
		for range 1 + rng.IntN(5) {
			if err := s.replace(rng.IntN(s.model.Count), time.Time{}); err != nil {
				return err
			}
		}
		return nil
	case "rewritten in place":
		for range 1 + rng.IntN(3) {
			if err := s.rewrite(s.constant(rng), time.Time{}); err != nil {
				return err
			}
		}
		return nil
	case "missing":
		return s.missing(ctx, rng.IntN(s.model.Count), e.For)
	case "folder renamed":
		// The daemon has the folder open: no error is allowed.
		return s.renamed(ctx, s.data, e.For)
	case "folder exchanged":
		return s.exchangeSource(ctx, e.For, rng)
	case "access withdrawn":
		return s.withdraw(rng)
	}
	f, err := diskFaults(e.Name, e.Seed)
	if err != nil {
		return err
	}
	if f.ReadError > 0 {
		defer s.oracle.allow(-1, "read errors of the source", grace, unix.EIO)()
	}
	return s.faulty(ctx, s.source, f, e.For)
}

// constant returns a file whose versions have one size.
func (s *suite) constant(rng *rand.Rand) int {
	for {
		if f := rng.IntN(s.model.Count); !s.model.Resizes(f) {
			return f
		}
	}
}

// placed returns a file that constant may return, too. If it can, it returns one that has
// a copy, which evict does not remove: a version that is not noticed stays for long.
func (s *suite) placed(rng *rand.Rand) int {
	copies := append(s.listCopies(s.daemon.memory), s.listCopies(s.daemon.disk)...)
	for range len(copies) {
		file, ok := s.fileOf(copies[rng.IntN(len(copies))])
		if ok && !s.model.Resizes(file) && file%2 == 1 {
			return file
		}
	}
	return s.constant(rng)
}

func (s *suite) path(file int) string { return filepath.Join(s.data, s.model.Name(file)) }

// replace puts a new version of a file in the place of the old one. Its modification time
// is mtime, unless that is zero.
func (s *suite) replace(file int, mtime time.Time) error {
	temp := filepath.Join(s.source.point, "temp", "new")
	old, err := os.Stat(s.path(file))
	if err != nil {
		return err
	}
	for s.Bucket && old.ModTime().Unix() == time.Now().Unix() { // a new version has another time
		time.Sleep(10 * time.Millisecond)
	}
	if err := s.writeVersion(temp, file, old.Mode()); err != nil {
		return err
	}
	if !mtime.IsZero() {
		if err := os.Chtimes(temp, time.Time{}, mtime); err != nil {
			return err
		}
	}
	s.oracle.beginChange(file, false)
	defer s.oracle.endChange(file)
	return os.Rename(temp, s.path(file))
}

// writeVersion writes the next version of a file to a path, and waits until the disk has it. While a
// later fault lasts, the file system might find no place for it, and tell nobody.
func (s *suite) writeVersion(path string, file int, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(s.model.Content(file, s.oracle.newest(file)+1))
	return errors.Join(err, f.Sync(), f.Close())
}

// rewrite writes a new version of a file over the old one. Its modification time is mtime,
// unless that is zero. An object of a bucket is replaced instead.
func (s *suite) rewrite(file int, mtime time.Time) error {
	if s.Bucket {
		return s.replace(file, mtime)
	}
	f, err := os.OpenFile(s.path(file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	data := s.model.Content(file, s.oracle.newest(file)+1)
	s.oracle.beginChange(file, true)
	defer s.oracle.endChange(file)
	if _, err := f.WriteAt(data, 0); err != nil {
		return err
	}
	if mtime.IsZero() {
		return nil
	}
	return os.Chtimes(s.path(file), time.Time{}, mtime)
}

// missing takes a file away for a while.
func (s *suite) missing(ctx context.Context, file int, d time.Duration) error {
	defer s.oracle.allow(file, "a file that is missing at the source", grace, unix.ENOENT, unix.ESTALE, unix.EIO)()
	away := filepath.Join(s.source.point, "temp", "away")
	if err := os.Rename(s.path(file), away); err != nil {
		return err
	}
	sleep(ctx, d)
	return os.Rename(away, s.path(file))
}

// exchangeSource puts another folder in the place of the dataset, and removes the old one a while later. Some
// files in the new one have new versions, and the others are links. No error is allowed.
func (s *suite) exchangeSource(ctx context.Context, d time.Duration, rng *rand.Rand) error {
	other := filepath.Join(s.source.point, "temp", "data")
	for f := range s.model.Count {
		path := filepath.Join(other, s.model.Name(f))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.Link(s.path(f), path); err != nil {
			return err
		}
	}
	for _, w := range s.withdrawn {
		if err := os.Chmod(filepath.Join(other, w.name), 0); err != nil {
			return err
		}
	}
	for range rng.IntN(4) {
		f := rng.IntN(s.model.Count)
		if s.oracle.isClosed(f) {
			continue
		}
		path := filepath.Join(other, s.model.Name(f))
		if err := os.Remove(path); err != nil { // it is a link
			return err
		}
		if err := s.writeVersion(path, f, 0o644); err != nil {
			return err
		}
		s.oracle.beginChange(f, false)
		defer s.oracle.endChange(f)
	}
	if err := unix.Renameat2(unix.AT_FDCWD, other, unix.AT_FDCWD, s.data, unix.RENAME_EXCHANGE); err != nil {
		return err
	}
	sleep(ctx, d)
	return os.RemoveAll(other)
}

// A withdrawal is a file or a folder of the source that its permissions deny to everyone.
type withdrawal struct {
	name  string // relative to the root of the dataset
	mode  os.FileMode
	files []int
	end   []func() // of the windows in which the files may not be read
}

// maxWithdrawn is how many withdrawals there are at the same time. Each lasts for many cycles.
const maxWithdrawn = 3

// withdraw denies a file, or a folder with all of its files. It ends the oldest withdrawal first, if there
// are enough.
func (s *suite) withdraw(rng *rand.Rand) error {
	if len(s.withdrawn) == maxWithdrawn {
		if err := s.restoreAccess(); err != nil {
			return err
		}
	}
	file := s.placed(rng)
	w := withdrawal{name: s.model.Name(file), files: []int{file}}
	if rng.IntN(4) == 0 {
		w = withdrawal{name: filepath.Dir(w.name)}
		for f := range s.model.Count {
			if filepath.Dir(s.model.Name(f)) == w.name {
				w.files = append(w.files, f)
			}
		}
	}
	if slices.ContainsFunc(w.files, s.oracle.isClosed) {
		return nil
	}
	path := filepath.Join(s.data, w.name)
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	w.mode = info.Mode()
	for _, f := range w.files {
		w.end = append(w.end, s.oracle.allow(f, "a file that permissions deny", staleBound, unix.EACCES))
	}
	if err := os.Chmod(path, 0); err != nil {
		return err
	}
	for _, f := range w.files {
		s.oracle.close(f)
	}
	s.withdrawn = append(s.withdrawn, w)
	return nil
}

// restoreAccess ends the oldest withdrawal.
func (s *suite) restoreAccess() error {
	w := s.withdrawn[0]
	s.withdrawn = s.withdrawn[1:]
	for _, f := range w.files {
		s.oracle.reopen(f)
	}
	if err := os.Chmod(filepath.Join(s.data, w.name), w.mode); err != nil {
		return err
	}
	for _, end := range w.end {
		end()
	}
	return nil
}

// shiftSource changes files without a modification time that tells.
func (s *suite) shiftSource(ctx context.Context, e Event, rng *rand.Rand) error {
	file := s.placed(rng)
	switch e.Name {
	case "future mtime":
		return s.replace(file, time.Now().Add(time.Hour))
	case "same mtime": // as touch -r does
		info, err := os.Stat(s.path(file))
		if err != nil {
			return err
		}
		return s.rewrite(file, info.ModTime())
	}
	second := time.Now().Truncate(time.Second) // as a source with whole seconds
	if err := s.rewrite(file, second); err != nil {
		return err
	}
	sleep(ctx, e.For)
	return s.rewrite(file, second)
}
