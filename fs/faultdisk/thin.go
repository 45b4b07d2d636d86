package faultdisk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A ThinPool is a file system whose disk promises more than it has: a sparse image on a
// small tmpfs. When the tmpfs is full, writes that the file system has accepted fail at
// write-back. It needs no process, and cannot lose power or hang.
type ThinPool struct {
	Point string // where the file system is mounted

	memory string // where the tmpfs is mounted
	device string
}

// NewThinPool makes a pool in the folder dir. Its file system sees a disk of size bytes,
// of which room can be written. The caller must call Remove.
func NewThinPool(ctx context.Context, dir string, size, room int64, fsType string) (*ThinPool, error) {
	p := &ThinPool{Point: filepath.Join(dir, "thin"), memory: filepath.Join(dir, "pool")}
	if err := p.make(ctx, size, room, fsType); err != nil {
		return nil, errors.Join(err, p.Remove())
	}
	return p, nil
}

func (p *ThinPool) make(ctx context.Context, size, room int64, fsType string) error {
	for _, point := range []string{p.Point, p.memory} {
		if err := os.Mkdir(point, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("pool", p.memory, "tmpfs", 0, fmt.Sprintf("size=%d", room)); err != nil {
		return fmt.Errorf("mount %s: %w", p.memory, err)
	}
	image := filepath.Join(p.memory, ImageName)
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(image, size); err != nil {
		return err
	}
	device, err := attach(ctx, image)
	if err != nil {
		return err
	}
	p.device = device
	if err := Format(ctx, device, fsType); err != nil {
		return err
	}
	return Mount(ctx, device, fsType, p.Point)
}

// Remove unmounts the pool and removes its folders.
func (p *ThinPool) Remove() error {
	unix.Unmount(p.Point, unix.MNT_DETACH)
	var err error
	if p.device != "" {
		err = detach(p.device)
	}
	unix.Unmount(p.memory, unix.MNT_DETACH)
	return errors.Join(err, os.Remove(p.Point), os.Remove(p.memory))
}
