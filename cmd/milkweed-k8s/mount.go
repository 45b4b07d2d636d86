package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// fsType is the type of a file system of Milkweed, as in package fs.
const fsType = "fuse.milkweed"

// maxRequest is the largest read that the kernel sends, in bytes, as in package fs. The daemon may
// choose a smaller one.
const maxRequest = 1 << 20

// A state is that of a target.
type state int

const (
	unmounted state = iota // nothing is mounted there; the directory may be missing
	alive                  // a Milkweed is mounted, and its daemon answers
	dead                   // a Milkweed is mounted, and its daemon has died
	foreign                // another file system is mounted
)

// inspect returns the state of a target.
func inspect(ctx context.Context, target string) (state, error) {
	table, err := mounts.Read(mounts.Self)
	if err != nil {
		return unmounted, err
	}
	m, ok := table.At(target)
	switch {
	case !ok:
		return unmounted, nil
	case m.Type != fsType:
		return foreign, nil
	}
	switch _, err := statfs(ctx, target); {
	case err == nil:
		return alive, nil
	case isDead(err):
		return dead, nil
	default:
		return unmounted, err
	}
}

// isMilkweed reports whether a Milkweed is mounted at path.
func isMilkweed(path string) bool {
	table, err := mounts.Read(mounts.Self)
	m, ok := table.At(path)
	return err == nil && ok && m.Type == fsType
}

// isDead reports whether an error of a FUSE file system means that its daemon has ended.
func isDead(err error) bool {
	return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED)
}

// answerTime is how long a daemon may take to answer a statfs(2), for which it does not call the source.
const answerTime = 10 * time.Second

// statfsSlots limits the calls of statfs(2) that are in progress: kubelet asks again and again about a
// daemon that does not answer.
var statfsSlots = make(chan struct{}, 64)

// statfs calls statfs(2). If the daemon does not answer in time, its goroutine goes on.
func statfs(ctx context.Context, path string) (unix.Statfs_t, error) {
	select {
	case statfsSlots <- struct{}{}:
	default:
		return unix.Statfs_t{}, status.Error(codes.Unavailable, "too many daemons do not answer")
	}
	type result struct {
		st  unix.Statfs_t
		err error
	}
	answered := make(chan result, 1)
	go func() {
		defer panics.Contain()
		defer func() { <-statfsSlots }()
		var r result
		if err := unix.Statfs(path, &r.st); err != nil {
			r.err = &os.PathError{Op: "statfs", Path: path, Err: err}
		}
		answered <- r
	}()
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	select {
	case r := <-answered:
		return r.st, r.err
	case <-ctx.Done():
		return unix.Statfs_t{}, status.Errorf(codes.DeadlineExceeded, "the daemon of %s does not answer", path)
	}
}

// mountDevice mounts a new /dev/fuse at target for the volume with a key, and returns its descriptor and
// the device number of the file system. The caller closes the descriptor. Every user may read the mount,
// as the permission bits of the files allow: a pod has any user.
func (p *plugin) mountDevice(target, key string, v volume) (device *os.File, dev uint64, err error) {
	p.table.Lock()
	defer p.table.Unlock()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, status.Errorf(codes.FailedPrecondition, "open /dev/fuse: %v; load the module fuse on the node", err)
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_RDONLY)
	if v.noExec() {
		flags |= unix.MS_NOEXEC
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=0,max_read=%d,allow_other,default_permissions", fd, p.mounter.uid, maxRequest)
	if err := unix.Mount(v.Source, target, fsType, flags, data); err != nil {
		unix.Close(fd)
		return nil, 0, status.Errorf(codes.Internal, "mount %s: %v", target, err)
	}
	device = os.NewFile(uintptr(fd), "/dev/fuse")
	table, err := mounts.Read(mounts.Self)
	m, ok := table.At(target)
	if err == nil && !ok {
		err = fmt.Errorf("mount %s: it is not in the table of mounts", target)
	}
	if err != nil {
		device.Close()
		return nil, 0, errors.Join(err, unix.Unmount(target, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH))
	}
	if p.owners == nil {
		p.owners = make(map[uint64]string)
	}
	p.owners[m.Dev] = key
	return device, m.Dev, nil
}

// bind mounts the file system dev, of the volume with a key, at target, too. It reports false if that is
// mounted nowhere.
func (p *plugin) bind(dev uint64, key, target string) (bool, error) {
	p.table.Lock()
	defer p.table.Unlock()
	if owner, known := p.owners[dev]; known && owner != key {
		return false, nil
	}
	table, err := mounts.Read(mounts.Self)
	if err != nil {
		return false, err
	}
	for _, m := range table {
		if m.Dev != dev || m.Type != fsType {
			continue
		}
		if at, _ := table.At(m.Point); at.Dev != dev { // another mount hides it
			continue
		}
		if err := unix.Mount(m.Point, target, "", unix.MS_BIND, ""); err != nil {
			return false, status.Errorf(codes.Internal, "bind %s to %s: %v", m.Point, target, err)
		}
		p.log.Info("bound", "target", target, "to", m.Point)
		return true, nil
	}
	return false, nil
}

// owner returns the key of the volume whose file system dev is mounted, or "" if it is not known.
func (p *plugin) owner(dev uint64) string {
	p.table.Lock()
	defer p.table.Unlock()
	return p.owners[dev]
}

// maxStacked is the number of mounts at one target that are removed.
const maxStacked = 8

// unmountAll removes the mounts of Milkweed at target, and returns the keys of their volumes by the device
// numbers.
func (p *plugin) unmountAll(target string) (map[uint64]string, error) {
	unmounted := make(map[uint64]string)
	for range maxStacked {
		table, err := mounts.Read(mounts.Self)
		if err != nil {
			return nil, err
		}
		m, ok := table.At(target)
		if !ok {
			return unmounted, nil
		}
		if m.Type != fsType {
			return nil, status.Errorf(codes.FailedPrecondition, "another file system is mounted at %s", target)
		}
		key := p.owner(m.Dev) // after the unmount, another volume may have the number
		if err := p.unmount(target); err != nil {
			return nil, err
		}
		unmounted[m.Dev] = key
	}
	return nil, status.Errorf(codes.Internal, "%s is still mounted", target)
}

// unmount removes one mount at target.
func (p *plugin) unmount(target string) error {
	p.table.Lock()
	defer p.table.Unlock()
	switch err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW); {
	case err == nil, errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT): // it is not mounted
		return nil
	case errors.Is(err, unix.EBUSY):
		return status.Errorf(codes.FailedPrecondition, "%s is in use by a process", target)
	default:
		return status.Errorf(codes.Internal, "unmount %s: %v", target, err)
	}
}

// setReadAhead sets how much the kernel reads ahead on a file system to the size of a request.
func setReadAhead(dev uint64) error {
	path := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(dev), unix.Minor(dev))
	return os.WriteFile(path, []byte(strconv.Itoa(maxRequest>>10)), 0)
}
