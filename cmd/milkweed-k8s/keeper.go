package main

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// When a daemon has died, the keeper mounts its volumes again, over the dead mounts. A container that has
// its volume with mountPropagation: HostToContainer has a slave of the mount at the target, so that the
// kernel mounts the new file system in the container, too. A dead mount is not removed before the volume
// is unpublished: without it, the mount in the container would be a slave of nothing.
//
// The keeper knows the volumes that were published since the plugin was started. For the others, kubelet
// calls NodePublishVolume again within two minutes (requiresRepublish: true).
type keeper struct {
	mu      sync.Mutex // guards the following
	ctx     context.Context
	volumes map[string]volume // by target
	watched map[uint64]bool   // the device numbers of the file systems that have a goroutine
	running sync.WaitGroup
}

// start makes the keeper work until ctx is done. The caller calls running.Wait after that.
func (k *keeper) start(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ctx, k.volumes, k.watched = ctx, make(map[string]volume), make(map[uint64]bool)
}

// drop forgets the volume at a target.
func (k *keeper) drop(target string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.volumes, target)
}

// volume returns the volume at a target.
func (k *keeper) volume(target string) (v volume, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v, ok = k.volumes[target]
	return v, ok
}

// of returns the targets at which a file system is mounted, and not hidden. If there is none, nobody
// watches it any more.
func (k *keeper) of(dev uint64) ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	table, err := mounts.Read(mounts.Self)
	if err != nil {
		return nil, err
	}
	targets := slices.DeleteFunc(slices.Sorted(maps.Keys(k.volumes)), func(target string) bool {
		m, ok := table.At(target)
		return !ok || m.Dev != dev
	})
	if len(targets) == 0 {
		delete(k.watched, dev)
	}
	return targets, nil
}

// keep keeps a volume, which is mounted at target. The target is locked.
func (p *plugin) keep(target string, v volume) error {
	table, err := mounts.Read(mounts.Self)
	if err != nil {
		return err
	}
	k := &p.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	k.volumes[target] = v
	m, ok := table.At(target)
	if !ok || k.watched[m.Dev] || k.ctx.Err() != nil {
		return nil
	}
	k.watched[m.Dev] = true
	ctx := k.ctx
	k.running.Go(func() {
		defer panics.Contain()
		p.watch(ctx, m.Dev)
	})
	return nil
}

// The pauses of watch.
const (
	minAgain = time.Second
	maxAgain = 15 * time.Second
)

// watch waits for the end of the daemon of a file system, and mounts its volumes again. It returns when
// the file system is at no target any more.
func (p *plugin) watch(ctx context.Context, dev uint64) {
	for pause := minAgain; ; pause = min(2*pause, maxAgain) {
		// If the mounter does not answer, its daemons end.
		lost := uint64(0)
		if _, err := p.mounter.do(ctx, request{Op: opWatch, Device: dev}, nil); err == nil {
			lost, pause = dev, minAgain
		}
		targets, err := p.keeper.of(dev)
		if err == nil && len(targets) == 0 {
			return
		}
		for _, target := range targets {
			if err := p.mountAgain(ctx, target, lost); err != nil && ctx.Err() == nil {
				p.log.Warn("not mounted again yet", "target", target, "err", oneLine(err))
			}
		}
		if targets, err := p.keeper.of(dev); err == nil && len(targets) == 0 {
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// publishTime bounds one attempt to mount a volume again, as kubelet bounds its requests.
const publishTime = 2 * time.Minute

// mountAgain mounts the volume at a target again, unless its daemon answers. The file system lost, unless
// it is 0, has no daemon any more, or one that was killed and cannot end.
func (p *plugin) mountAgain(ctx context.Context, target string, lost uint64) error {
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	unlock, err := p.targets.lock(ctx, target)
	if err != nil {
		return err
	}
	defer unlock()
	v, ok := p.keeper.volume(target)
	if !ok { // it was unpublished
		return nil
	}
	if err := p.abort(ctx, target, v.key(), lost); err != nil {
		return err
	}
	if err := p.publish(ctx, target, v); err != nil {
		return err
	}
	return p.keep(target, v)
}

// abort aborts the connection of the file system lost at a target, so that a daemon that was killed can
// end. If a daemon serves the volume there, lost is what had its device number before.
func (p *plugin) abort(ctx context.Context, target, key string, lost uint64) error {
	if lost == 0 {
		return nil
	}
	found, err := p.mounter.do(ctx, request{Op: opFind, Key: cmp.Or(p.owner(lost), key)}, nil)
	if err != nil || found.Device == lost {
		return err
	}
	if err := mounts.Abort(lost, target); err != nil { // it has ended, as a rule
		p.log.Debug("not aborted", "target", target, "err", err)
	}
	return nil
}
