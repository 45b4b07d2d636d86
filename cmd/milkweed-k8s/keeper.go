package main

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// A keeper mounts volumes again whose daemons have died, over the dead mounts. A container that has its
// volume with mountPropagation: HostToContainer has a slave of the mount at the target, so that the kernel
// mounts the new file system in the container, too. If the dead mount were removed first, it would not.
// Therefore the dead mounts stay until the volume is unpublished. For the exceptions, see makeRoom.
//
// A keeper knows the volumes that were published since the plugin has started. kubelet publishes them again
// within two minutes (requiresRepublish: true).
type keeper struct {
	mu      sync.Mutex // guards the following
	kept    map[string]*kept
	running sync.WaitGroup
}

// A kept is a volume that is kept at a target.
type kept struct {
	cancel context.CancelFunc

	// The lock of the target guards the following.
	volume volume // as it was published last
	bare   bool   // an attempt to mount it again has failed, and nothing is mounted
}

// keep keeps a volume that is published at target. The target is locked.
func (p *plugin) keep(target string, v volume) error {
	k := &p.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if known := k.kept[target]; known != nil {
		known.volume = v
		return nil
	}
	m, err := mountAt(target)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	volume := &kept{cancel: cancel, volume: v}
	if k.kept == nil {
		k.kept = make(map[string]*kept)
	}
	k.kept[target] = volume
	k.running.Go(func() {
		defer k.forget(target, volume)
		defer panics.Contain()
		p.mountAgain(ctx, target, m.Dev, volume)
	})
	return nil
}

// forget ends the keeping of what is kept at a target, if that is volume, or volume is nil.
func (k *keeper) forget(target string, volume *kept) {
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.kept[target]
	if known == nil || volume != nil && volume != known {
		return
	}
	known.cancel()
	delete(k.kept, target)
}

// end forgets all volumes. It is called after the last keep.
func (k *keeper) end() {
	k.mu.Lock()
	for _, volume := range k.kept {
		volume.cancel()
	}
	k.mu.Unlock()
	k.running.Wait()
}

// The pauses before the second and later attempts to mount a volume again. There is none before the first one
// after a daemon has served for some time.
const (
	minPause = time.Second
	maxPause = 10 * time.Second
	served   = time.Minute
)

// mountAgain mounts a volume, whose file system is dev, again whenever its daemon has died, until ctx is done, or
// another program has unmounted it.
func (p *plugin) mountAgain(ctx context.Context, target string, dev uint64, volume *kept) {
	pause := time.Duration(0)
	for {
		since := time.Now()
		if dev != 0 {
			p.mounter.do(ctx, request{Op: opWatch, Device: dev}, nil) // after an error, restore finds out
		}
		if time.Since(since) > served {
			pause = 0
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		var err error
		dev, err = p.restore(ctx, target, volume)
		if ctx.Err() != nil || err == nil && dev == 0 {
			return
		}
		if err != nil {
			p.log.Warn("not mounted again yet", "target", target, "err", oneLine(err))
		}
		pause = min(max(minPause, 2*pause), maxPause)
	}
}

// restoreTime bounds one call of restore, as kubelet bounds its requests.
const restoreTime = 2 * time.Minute

// restore mounts a volume again if its daemon has died, and returns the device number of the file system at
// target. Without an error, it is 0 if another program has unmounted the volume.
func (p *plugin) restore(ctx context.Context, target string, volume *kept) (dev uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, restoreTime)
	defer cancel()
	unlock, err := p.targets.lock(ctx, target)
	if err != nil {
		return 0, err
	}
	defer unlock()
	m, err := mountAt(target)
	if err = cmp.Or(err, ctx.Err()); err != nil || m.Dev == 0 && !volume.bare {
		return 0, err
	}
	err = p.publish(ctx, target, volume.volume)
	m, tableErr := mountAt(target)
	volume.bare = m.Dev == 0
	return m.Dev, cmp.Or(err, tableErr)
}
