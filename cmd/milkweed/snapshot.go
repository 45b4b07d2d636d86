package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// snapshotName is the name of the metadata snapshot in the folder of the dataset in a tier. It does
// not count towards the quota of the tier.
const snapshotName = "metadata.snapshot"

// The daemon saves the metadata while it is used, so that a daemon that is killed leaves most of
// it: at least saveInterval after the last time, and saveShare times as long as that took. While an earlier
// snapshot could not be removed, leftInterval takes the place of saveInterval.
const (
	saveInterval = time.Minute
	leftInterval = time.Second
	saveShare    = 100
)

// saveTime bounds how long the end of a mount waits for the metadata to be saved. A million names
// take less than a second.
const saveTime = 2 * time.Second

var errNotOpened = errors.New("its disk does not answer")

// A snapshotKeeper opens and saves the metadata snapshot of a mount.
type snapshotKeeper struct {
	opened *metadata.Snapshot // nil: there was none

	mu      sync.Mutex // held while the metadata is saved; guards the following
	changes uint64     // Container.Changes when it was last saved
	place   string     // the path of the place that has the newest snapshot; "": none
	removed bool       // since it was last saved, or since the mount
	left    bool       // another place may have an earlier snapshot
}

// leaves reports whether a place may have an earlier snapshot that should be removed.
func (k *snapshotKeeper) leaves() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.left
}

// close closes the snapshot that the mount has started with, so that its file system can be
// unmounted.
func (k *snapshotKeeper) close() {
	if k.opened != nil {
		k.opened.Close()
	}
}

// A snapshotPlace is a file for the metadata snapshot.
type snapshotPlace struct {
	path   string // of the folder or the tier, for messages
	name   string // of the file
	folder func() (*os.Root, error)
}

// open opens the snapshot. It returns nil if the file does not exist.
func (p snapshotPlace) open(source string) (*metadata.Snapshot, error) {
	folder, err := p.folder()
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	s, err := metadata.OpenSnapshot(folder, p.name, source)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return s, err
}

// save saves the snapshot.
func (p snapshotPlace) save(ctx context.Context, names *metadata.Container, source string) error {
	folder, err := p.folder()
	if err != nil {
		return err
	}
	defer folder.Close()
	return names.SaveSnapshot(ctx, folder, p.name, source)
}

// remove removes the snapshot, if it exists.
func (p snapshotPlace) remove() error {
	folder, err := p.folder()
	if err != nil {
		return err
	}
	defer folder.Close()
	return metadata.RemoveSnapshot(folder, p.name)
}

// snapshotPlaces returns the places of the metadata snapshot. It is saved in the first one where that
// succeeds, and the newest of all is read. With the copies, tiers on a disk come first, because they
// survive a reboot. Tiers that are down are left out, and then all is false. Without a consistency window,
// nothing compares a snapshot with the source before its TTLs expire: then it must be requested by a file.
func (d *daemon) snapshotPlaces() (places []snapshotPlace, all bool) {
	mount := d.cfg.Mount
	if mount.AttrTimeout == 0 || d.cfg.Source.Manifest != "" { // the manifest has the names
		return nil, true
	}
	if file := mount.SnapshotFile(); file != "" {
		dir, name := filepath.Split(file)
		return []snapshotPlace{{dir, name, func() (*os.Root, error) { return os.OpenRoot(dir) }}}, true
	}
	if mount.MetadataSnapshot == config.NoSnapshot || mount.Consistency == 0 {
		return nil, true
	}
	var disks, memory []snapshotPlace
	all = true
	for i, t := range d.levels.Tiers() {
		opened := d.tiers.get(i)
		if opened.store == nil || t.Stats().Health == tiers.Down {
			all = false
			continue
		}
		p := snapshotPlace{t.Path(), snapshotName, opened.store.Folder}
		if opened.inMemory {
			memory = append(memory, p)
		} else {
			disks = append(disks, p)
		}
	}
	return append(disks, memory...), all
}

// openSnapshot opens the newest snapshot, if there is one that can be used. It waits for openTimeout at
// most, since a disk may hang.
func (d *daemon) openSnapshot() {
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	type found struct {
		place    string
		snapshot *metadata.Snapshot // nil: none
	}
	opened := make(chan found)
	places, _ := d.snapshotPlaces()
	for _, p := range places {
		go func() {
			defer panics.Contain()
			s, err := p.open(d.cfg.Source.Name())
			if err != nil {
				d.log.Warn("metadata snapshot is not used", "folder", p.path, "err", err)
			}
			select {
			case opened <- found{p.path, s}:
			case <-ctx.Done():
				if s != nil {
					s.Close()
				}
			}
		}()
	}
	k := &d.saved
	for range places {
		select {
		case f := <-opened:
			if f.snapshot == nil {
				continue
			}
			k.left = k.opened != nil
			if k.opened != nil {
				k.left = true
				if k.opened.Written().After(f.snapshot.Written()) {
					f.snapshot.Close()
					continue
				}
				k.opened.Close()
			}
			k.opened, k.place = f.snapshot, f.place
		case <-ctx.Done():
			d.log.Warn("a metadata snapshot is not used", "err", errNotOpened)
			k.left = true
			return
		}
	}
}

// saveOften saves the metadata from time to time, until ctx is done. Between two times it removes what
// was saved as soon as it is wrong, so that no program sees a file as it was before what it has seen. If
// that fails, as on a tier that is down, it saves the metadata elsewhere, and tries to remove it again.
func (d *daemon) saveOften(ctx context.Context) {
	var failed string // the last error
	var pause time.Duration
	for next := time.After(saveInterval); ; {
		var what string
		var err error
		select {
		case <-d.names.Overtaken():
			what, err = "removed", d.removeSaved()
		case <-next:
			start := time.Now()
			what, err = "saved", d.save(ctx)
			pause = saveShare * time.Since(start)
			next = time.After(max(saveInterval, pause))
		case <-ctx.Done():
			return
		}
		if d.saved.leaves() {
			next = time.After(max(leftInterval, pause))
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			failed = ""
		case failed != err.Error():
			failed = err.Error()
			d.log.Warn("metadata snapshot is not "+what, "err", err)
		}
	}
}

// saveAtEnd saves the metadata, and closes the earlier snapshot.
func (d *daemon) saveAtEnd() {
	ctx, cancel := context.WithTimeoutCause(context.Background(), saveTime, errLeftBehind)
	defer cancel()
	if err := atMost(saveTime, func() error { return d.save(ctx) }); err != nil {
		d.log.Warn("metadata snapshot is not saved", "err", err)
	}
	d.saved.close()
}

// save saves the metadata, if it has changed since the last time, and removes what was saved elsewhere.
func (d *daemon) save(ctx context.Context) error {
	k := &d.saved
	if !k.mu.TryLock() { // a call by saveOften hangs
		return errLeftBehind
	}
	defer k.mu.Unlock()
	changes := d.names.Changes()
	if changes == k.changes && !k.removed {
		if k.left {
			return d.removeOthers()
		}
		return nil
	}
	places, _ := d.snapshotPlaces()
	var errs []error
	for _, p := range places {
		err := p.save(ctx, d.names, d.cfg.Source.Name())
		if err == nil {
			k.changes, k.place, k.removed = changes, p.path, false
			return d.removeOthers()
		}
		errs = append(errs, fmt.Errorf("%s: %w", p.path, err))
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// removeSaved removes the metadata from all places, since the newest of what is there is read.
func (d *daemon) removeSaved() error {
	k := &d.saved
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.removed && !k.left {
		return nil
	}
	k.place, k.removed = "", true
	return d.removeOthers()
}

// removeOthers removes the metadata from all places but the one that has the newest.
// d.saved.mu must be held.
func (d *daemon) removeOthers() error {
	places, all := d.snapshotPlaces()
	d.saved.left = !all
	var errs []error
	for _, p := range places {
		if p.path == d.saved.place {
			continue
		}
		if err := p.remove(); err != nil && !errors.Is(err, metadata.ErrForeign) {
			d.saved.left = true
			errs = append(errs, fmt.Errorf("%s: %w", p.path, err))
		}
	}
	return errors.Join(errs...)
}
