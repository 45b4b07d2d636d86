package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/automount"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/fs"
)

// A daemon ends in these steps:
//
//  1. The mount is gone in the mount namespace of the daemon: `milkweed umount`, umount(8), or the
//     daemon has unmounted it, after SIGTERM (awaitUnmount) or without a lock (unmountUnlocked).
//  2. The daemon stops serving other nodes, ends its background work, saves the metadata and
//     unlocks the tiers (release). From now on, another daemon can mount the same dataset at the
//     same place with the same tiers.
//  3. If the kernel has not ended the connection, the mount is in use in other mount namespaces,
//     such as those of containers, or by open files. The daemon serves these from the source until
//     the mount is idle (drain).
//  4. The end of the process ends the connection.
//
// A mount of another process (--fuse-fd) ends when the kernel ends the connection. The daemon cannot
// unmount it: after SIGTERM, step 2 and then step 4 follow.
//
// If the kernel ends the connection while the mount stays, the daemon has failed, and ends by step 2
// with an error. The mount stays, too: programs then see ENOTCONN, and not an empty directory, until a
// supervisor or a service manager mounts again.
//
// No step waits long for a disk or for the source: what hangs there is left behind.

const (
	staysTime = time.Second      // after the end of the connection, until a mount stays: umount -f ends it first
	endTime   = time.Second      // for background work in progress to end
	idleTime  = 10 * time.Second // without a request or a user, until a mount that drains is idle
	abortTime = 5 * time.Second  // for the kernel to end the connection
)

// awaitUnmount returns nil when the file system is not mounted any more in this mount namespace. When
// ctx is done, or it was unmounted by force from its mount point, awaitUnmount unmounts it wherever it
// is mounted. It returns an error if the connection has ended and the mount stays.
func (d *daemon) awaitUnmount(ctx context.Context) error {
	watch, stop := context.WithCancel(ctx)
	defer stop()
	gone := make(chan struct{})
	if !d.adopts() { // otherwise it is mounted in another mount namespace
		go func() {
			defer panics.Contain()
			if err := mounts.AwaitUnmount(watch, d.at.Dev); err == nil {
				close(gone)
			} else if watch.Err() == nil {
				d.log.Warn("mounts are not watched", "err", err)
			}
		}()
	}
	select {
	case <-gone:
		return nil
	case <-d.mount.Ended():
		if !d.awaitGone(ctx) {
			return fmt.Errorf("the kernel has ended the connection of %s, which is still mounted: "+
				"somebody has aborted it, or a request took longer than the kernel permits", text(d.cfg.Mount.Point))
		}
	case <-ctx.Done():
	}
	d.unmount()
	return nil
}

// awaitGone returns true when the file system, whose connection has ended, is not mounted any more or ctx
// is done. It returns false if the mount stays.
func (d *daemon) awaitGone(ctx context.Context) bool {
	timeout := time.After(staysTime)
	tick := time.NewTicker(staysTime / 50)
	defer tick.Stop()
	for d.stays() {
		select {
		case <-tick.C:
		case <-timeout:
			return false
		case <-ctx.Done():
			return true
		}
	}
	return true
}

// stays reports whether the mount is still there, perhaps moved. Other mount points of the file system do
// not count. If another process has mounted it, stays is true if it is mounted anywhere and the connection is known.
func (d *daemon) stays() bool {
	if d.adopts() {
		return d.connection != nil && d.connection.Live()
	}
	table, err := mounts.Read(mounts.Self)
	isOurs := func(m mounts.Mount) bool { return m.ID == d.at.ID && m.Dev == d.at.Dev && m.Type == d.at.Type }
	// While the connection lives, no other file system has the device number.
	return err == nil && slices.ContainsFunc(table, isOurs) && d.connection.Live()
}

// unmount unmounts the file system, wherever it is mounted by now. If files are open on it, unmount
// detaches it.
func (d *daemon) unmount() {
	if d.adopts() {
		return
	}
	points, err := d.points()
	if err != nil {
		points = []string{d.cfg.Mount.Point}
	}
	for _, point := range slices.Backward(points) {
		err := automount.Reach(func() error { return fs.Unmount(context.Background(), point, false) })
		if errors.Is(err, syscall.EBUSY) || err != nil && os.Geteuid() != 0 {
			err = automount.Reach(func() error { return fs.Unmount(context.Background(), point, true) })
		}
		if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: it is already unmounted
			d.log.Error("unmount", "point", point, "err", err)
		}
	}
}

// points returns the mount points of the file system in this mount namespace, the first one first. After
// the end of the mount there are none, although its device number may be that of another file system.
func (d *daemon) points() ([]string, error) {
	table, err := mounts.Read(mounts.Self)
	if err != nil || d.connection == nil { // only the connection tells whose number it is
		select {
		case <-d.mount.Ended():
			return nil, nil
		default:
		}
	}
	if err != nil || !d.connection.Live() {
		return nil, err
	}
	return table.Points(d.at.Dev), nil
}

// release stops serving other nodes, ends the background work, saves the metadata, and unlocks the
// tiers.
func (d *daemon) release() {
	d.draining.Store(true)
	d.peers.stop()
	d.stopWork()
	d.saveAtEnd()
	d.levels.Retire()
	if err := d.tiers.close(); err != nil {
		d.log.Warn("tier", "err", err)
	}
}

// drain serves the mount while it is in use elsewhere, until it is idle or to be aborted.
// Signal is done after the first signal to this process; the second one ends the process.
func (d *daemon) drain(signal context.Context, l *control.Listener) {
	select {
	case <-d.mount.Ended():
		return
	case <-time.After(100 * time.Millisecond): // the kernel ends the connection after umount(2)
	}
	if d.adopts() { // this daemon is to end, and nothing tells it who uses the mount
		d.log.Info("the end of the process ends the mount")
		return
	}
	if err := l.Drain(); err != nil {
		d.log.Warn("control socket", "err", err)
	}
	d.how.lock.close() // from now on, the dataset can be mounted again
	d.log.Warn("unmounted here, but in use elsewhere", "namespaces", procs.Namespaces(d.at.Dev))
	signaled := signal.Done()
	if signal.Err() != nil { // it has begun the shutdown
		signaled = nil
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	requests, idleSince := d.mount.Requests(), time.Now()
	for {
		select {
		case <-d.mount.Ended():
			return
		case <-d.aborted:
			d.abort("requested")
			return
		case <-signaled:
			d.abort("signal")
			return
		case <-tick.C:
		}
		n := d.mount.Requests()
		if n != requests || time.Since(idleSince) > idleTime && d.inUse() {
			requests, idleSince = n, time.Now()
		}
		if time.Since(idleSince) > idleTime {
			d.abort("idle")
			return
		}
	}
}

// inUse reports whether a process uses a file of the mount, or may use one.
func (d *daemon) inUse() bool {
	users, hidden := procs.Users(d.at.Dev)
	return len(users)+len(hidden) > 0
}

// abort ends the connection in all mount namespaces.
func (d *daemon) abort(reason string) {
	d.log.Info("ending the mount in all mount namespaces", "reason", reason)
	if err := d.connection.Abort(); err != nil {
		d.log.Info("the end of the process ends it", "err", err)
		return
	}
	select {
	case <-d.mount.Ended():
	case <-time.After(abortTime):
	}
}

// Shutdown implements control.Daemon.
func (d *daemon) Shutdown(abort bool) {
	if abort {
		d.abortOnce.Do(func() { close(d.aborted) })
	}
	d.shutdown()
}

// errDraining is the error of requests to a daemon that drains.
var errDraining = &exit.Error{
	Code:   exit.NotMounted,
	Err:    errors.New("the mount is unmounted, and its daemon serves other mount namespaces only"),
	Remedy: "Mount the dataset again.",
}

// waitAtMost waits for wg, at most for a time. It reports whether wg has no goroutine left.
func waitAtMost(wg *sync.WaitGroup, d time.Duration) bool {
	return atMost(d, func() error { wg.Wait(); return nil }) == nil
}

// errLeftBehind is the error of atMost for a function that has not returned.
var errLeftBehind = errors.New("a disk or the source does not answer; ending without it")

// atMost calls f and returns its error, or errLeftBehind if f has not returned after a time.
func atMost(d time.Duration, f func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- panics.Do(f) }()
	select {
	case err := <-ended:
		return err
	case <-time.After(d):
		return errLeftBehind
	}
}
