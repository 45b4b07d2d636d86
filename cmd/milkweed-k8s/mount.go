package main

import (
	"context"
	"errors"
	"fmt"
	"os"
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

// mountAt returns the topmost mount at path. If nothing is mounted there, it is the zero Mount.
func mountAt(path string) (mounts.Mount, error) {
	table, err := mounts.Read(mounts.Self)
	m, ok := table.At(path)
	if err != nil || !ok {
		return mounts.Mount{}, err
	}
	return m, nil
}

// inspect returns the state of a target, which is locked. If the daemon was killed and cannot end, inspect
// aborts the connection, so that the state is dead.
func (p *plugin) inspect(ctx context.Context, target string) (state, error) {
	m, err := mountAt(target)
	switch {
	case err != nil || m.Type == "":
		return unmounted, err
	case m.Type != fsType:
		return foreign, nil
	}
	switch _, err := statfs(ctx, target, func() { p.abortLost(ctx, m.Dev, target) }); {
	case err == nil:
		return alive, nil
	case isDead(err):
		return dead, nil
	default:
		return unmounted, err
	}
}

// abortLost aborts the connection of the file system dev at target if no daemon can serve it any more. A
// daemon that was killed while it told the kernel of a change does not end: a thread of it waits, in the
// kernel, for a reply that only the daemon could give.
func (p *plugin) abortLost(ctx context.Context, dev uint64, target string) {
	if p.mayServe(ctx, dev) {
		return
	}
	c, err := mounts.Connection(dev, target)
	if err == nil {
		err = errors.Join(c.Abort(), c.Close())
	}
	if err != nil {
		p.log.Warn("the connection of a daemon that was killed is not aborted", "target", target, "err", err)
		return
	}
	p.log.Warn("a daemon was killed, and has not ended: its connection is aborted", "target", target)
}

// maxServing is how long the mounter may take to say that no daemon serves a file system.
const maxServing = time.Second

// mayServe reports whether a daemon may serve the file system dev.
func (p *plugin) mayServe(ctx context.Context, dev uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, maxServing)
	defer cancel()
	_, err := p.mounter.do(ctx, request{Op: opWatch, Device: dev}, nil)
	// If nobody listens, the mounter has ended, or ends, and so do its daemons.
	return err != nil && !errors.Is(err, unix.ECONNREFUSED)
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

// statfs calls statfs(2), and silent each second until there is an answer. If the daemon does not answer in
// time, a goroutine of statfs goes on.
func statfs(ctx context.Context, path string, silent func()) (unix.Statfs_t, error) {
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
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case r := <-answered:
			return r.st, r.err
		case <-tick.C:
			silent()
		case <-ctx.Done():
			return unix.Statfs_t{}, status.Errorf(codes.DeadlineExceeded, "the daemon of %s does not answer", path)
		}
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
	m, err := mountAt(target)
	if err == nil && m.Type != fsType {
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
// mounted nowhere, or its connection has ended: then it is the dead one at target.
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
	if m, ok := table.At(target); ok && m.Dev == dev {
		return false, nil
	}
	for _, m := range table {
		if m.Dev != dev || m.Type != fsType || m.Root != "/" {
			continue
		}
		if at, _ := table.At(m.Point); at.Dev != dev { // another mount hides it
			continue
		}
		if err := clone(m.Point, target); err != nil {
			return false, status.Errorf(codes.Internal, "bind %s to %s: %v", m.Point, target, err)
		}
		p.log.Info("bound", "target", target, "to", m.Point)
		return true, nil
	}
	return false, nil
}

// clone mounts the file system at path at target, too, as a bind mount does, but in a peer group of its own.
// Before Linux 5.12, they are in one peer group.
func clone(path, target string) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_NO_AUTOMOUNT)
	if err != nil {
		return os.NewSyscallError("open_tree", err)
	}
	defer unix.Close(fd)
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_PRIVATE})
	if err != nil && !errors.Is(err, unix.ENOSYS) {
		return os.NewSyscallError("mount_setattr", err)
	}
	return os.NewSyscallError("move_mount", unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH))
}

// owner returns the key of the volume whose file system dev is mounted, or "" if it is not known.
func (p *plugin) owner(dev uint64) string {
	p.table.Lock()
	defer p.table.Unlock()
	return p.owners[dev]
}

// unmountAll removes the mounts of Milkweed at target, one for each daemon that has died, and returns the
// keys of the volumes of those that were removed, also after an error, by the device numbers.
func (p *plugin) unmountAll(target string) (map[uint64]string, error) {
	unmounted := make(map[uint64]string)
	for range 2 * maxStacked {
		m, err := mountAt(target)
		switch {
		case err != nil || m.Type == "":
			return unmounted, err
		case m.Type != fsType:
			return unmounted, status.Errorf(codes.FailedPrecondition, "another file system is mounted at %s", target)
		}
		key := p.owner(m.Dev) // after the unmount, another volume may have the number
		if err := p.unmount(target, 0); err != nil {
			return unmounted, err
		}
		unmounted[m.Dev] = key
	}
	return unmounted, status.Errorf(codes.Internal, "%s is still mounted", target)
}

// maxStacked is the largest number of mounts at one target. All but the topmost are dead.
const maxStacked = 32

// makeRoom prepares a target, at which dead mounts may be, for one more. If the topmost is in the peer group of
// mounts of the same directory, as bind mounts are, makeRoom removes all of these, since a new mount over one of
// them would be mounted over all. It removes the topmost, too, if there are too many.
func (p *plugin) makeRoom(target string) error {
	p.table.Lock()
	defer p.table.Unlock()
	table, err := mounts.Read(mounts.Self)
	if err != nil {
		return err
	}
	top, ok := table.At(target)
	if !ok {
		return nil
	}
	var remove []string
	stacked := 0
	for _, m := range table {
		if m.Point == target {
			stacked++
		}
		at, _ := table.At(m.Point)
		if m.PeerGroup == top.PeerGroup && at.PeerGroup == top.PeerGroup && m.Root == top.Root {
			remove = append(remove, m.Point)
		}
	}
	switch {
	case len(remove) > 1 && top.PeerGroup != "":
	case stacked >= maxStacked:
		remove = []string{target}
	default:
		return nil
	}
	for _, point := range remove {
		// Processes with open files there have got ENOTCONN already.
		if err := unix.Unmount(point, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
			return status.Errorf(codes.Internal, "unmount %s: %v", point, err)
		}
	}
	return nil
}

// unmount removes one mount at target. flags are those of umount2(2).
func (p *plugin) unmount(target string, flags int) error {
	p.table.Lock()
	defer p.table.Unlock()
	switch err := unix.Unmount(target, flags|unix.UMOUNT_NOFOLLOW); {
	case err == nil, errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT): // it is not mounted
		return nil
	case errors.Is(err, unix.EBUSY):
		return status.Errorf(codes.FailedPrecondition, "%s is in use by a process", target)
	default:
		return status.Errorf(codes.Internal, "unmount %s: %v", target, err)
	}
}
