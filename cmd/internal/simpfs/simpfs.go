// Package simpfs simulates a parallel file system (PFS): a child process mounts a
// folder, delays each operation, limits the bandwidth, and counts operations and
// bytes.
package simpfs

import (
	"context"
	"fmt"

	"github.com/milkweedfs/milkweed/cmd/internal/child"
	"github.com/milkweedfs/milkweed/fs/pfs"
)

// Speed is the speed of a simulated PFS, and how its client caches names.
type Speed = pfs.Config

// Use counts the operations of a simulated PFS.
type Use = pfs.Use

// A PFS is a simulated PFS in a child process.
type PFS struct{ process *child.Process }

// Start mounts a folder at a mount point, and returns when the mount is ready.
// The end of ctx does not end the process, since the mounts on top of a PFS have
// to end first. The caller must call Stop.
func Start(ctx context.Context, folder, point string, speed Speed) (*PFS, error) {
	p, err := child.Start(child.Command(context.WithoutCancel(ctx), "demo", "pfs", folder, point,
		"--latency", speed.Latency.String(), "--bandwidth", fmt.Sprint(speed.BytesPerSecond), "--ttl", speed.TTL.String(), "--ahead", speed.Ahead.String(), fmt.Sprint("--direct=", speed.Direct)))
	if err != nil {
		return nil, err
	}
	pfs := &PFS{p}
	if _, err := pfs.Use(); err != nil { // the first reply comes when it is mounted
		return nil, err
	}
	return pfs, nil
}

// Use returns the counts since the start.
func (p *PFS) Use() (Use, error) {
	var u Use
	err := p.process.Send(request{})
	if err == nil {
		err = p.process.Receive(&u)
	}
	if err != nil {
		return u, fmt.Errorf("simulated PFS: %w", err)
	}
	return u, nil
}

// Stop unmounts the PFS and ends the process.
func (p *PFS) Stop() error {
	if err := p.process.Stop(); err != nil {
		return fmt.Errorf("stop the simulated PFS: %w", err)
	}
	return nil
}
