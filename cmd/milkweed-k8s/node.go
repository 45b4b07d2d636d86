package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/fs/fusectl"
)

// GetPluginInfo implements csi.IdentityServer.
func (p *plugin) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: driverName, VendorVersion: version()}, nil
}

// GetPluginCapabilities implements csi.IdentityServer. There is no controller.
func (p *plugin) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

// Probe implements csi.IdentityServer. The plugin is ready without the mounter: if it were not, a
// liveness probe would restart it in vain.
func (p *plugin) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// NodeGetInfo implements csi.NodeServer.
func (p *plugin) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: p.node}, nil
}

// NodeGetCapabilities implements csi.NodeServer.
func (p *plugin) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	stats := &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_GET_VOLUME_STATS}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{
		{Type: &csi.NodeServiceCapability_Rpc{Rpc: stats}},
	}}, nil
}

// NodePublishVolume implements csi.NodeServer. It may be called again for a target, and then mounts
// again if the daemon has died.
func (p *plugin) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	target, err := targetPath(r.GetTargetPath(), "target_path")
	if err != nil {
		return nil, err
	}
	if err := checkCapability(r); err != nil {
		return nil, err
	}
	v, err := parseVolume(r.GetVolumeContext(), r.GetSecrets(), p.extraSecrets)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	unlock, err := p.targets.lock(ctx, target)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := p.publish(ctx, target, v); err != nil {
		return nil, err
	}
	if err := p.keep(target, v); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// checkCapability returns an error if a volume is not to be mounted, or to be written to. kubelet
// requests a writable access mode for each inline volume, which has none in its specification.
func checkCapability(r *csi.NodePublishVolumeRequest) error {
	c := r.GetVolumeCapability()
	switch {
	case c == nil:
		return status.Error(codes.InvalidArgument, "volume_capability is missing")
	case c.GetBlock() != nil:
		return status.Error(codes.InvalidArgument, "volumeMode Block is not supported: use Filesystem")
	case c.GetMount() == nil:
		return status.Error(codes.InvalidArgument, "the access type of volume_capability is missing")
	case r.GetReadonly(), r.GetVolumeContext()[ephemeralKey] == "true":
		return nil
	}
	switch mode := c.GetAccessMode().GetMode(); mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		return nil
	default:
		return status.Errorf(codes.InvalidArgument, "access mode %v: the volume is read-only; use accessModes [ReadOnlyMany], or readOnly: true in the pod", mode)
	}
}

// targetPath returns a path of a request as the kernel lists it. Only the directory in which it is may
// have symbolic links.
func targetPath(path, name string) (string, error) {
	switch {
	case path == "":
		return "", status.Errorf(codes.InvalidArgument, "%s is missing", name)
	case !filepath.IsAbs(path) || strings.Contains(path, "\x00"):
		return "", status.Errorf(codes.InvalidArgument, "%s %q is not an absolute path", name, path)
	}
	return realPath(path), nil
}

// realPath returns a path with the symbolic links of its parent resolved. It does not call the file
// system that is mounted at path.
func realPath(path string) string {
	path = filepath.Clean(path)
	if parent, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		return filepath.Join(parent, filepath.Base(path))
	}
	return path
}

// publish mounts a volume at target. The target is locked.
func (p *plugin) publish(ctx context.Context, target string, v volume) error {
	switch state, err := p.inspect(ctx, target); {
	case err != nil:
		return err
	case state == foreign:
		return status.Errorf(codes.FailedPrecondition, "another file system is mounted at %s", target)
	case state == alive:
		return nil
	case state == dead: // its mount stays below the next one, so that containers see that: see keeper.go
		p.log.Warn("a daemon has died; mounting again", "target", target)
	}
	key := v.key()
	unlock, err := p.keys.lock(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	made, err := makeTarget(target)
	if err != nil {
		return err
	}
	err = p.attach(ctx, target, key, v)
	if err != nil && made {
		os.Remove(target) // only if it is an empty directory
	}
	return err
}

// makeTarget makes the directory at which a volume is mounted. kubelet has made its parent.
func makeTarget(target string) (made bool, err error) {
	err = os.Mkdir(target, 0o750)
	if errors.Is(err, os.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(target), 0o750); err == nil {
			err = os.Mkdir(target, 0o750)
		}
	}
	if errors.Is(err, os.ErrExist) {
		return false, nil
	}
	return err == nil, err
}

// attach shows a volume at target: by a bind mount if a daemon serves the same volume, and else by a
// new mount. The key is locked.
func (p *plugin) attach(ctx context.Context, target, key string, v volume) error {
	found, err := p.mounter.do(ctx, request{Op: opFind, Key: key}, nil)
	if err != nil {
		return withRemedy(err)
	}
	if err := p.makeRoom(target); err != nil {
		return err
	}
	if found.Device != 0 {
		done, err := p.bind(found.Device, key, target)
		if done || err != nil {
			return err
		}
		// Its last mount has just been removed, or its connection has ended. Another volume may have its number.
		if _, err := p.mounter.do(ctx, request{Op: opEnd, Key: key, Device: found.Device}, nil); err != nil {
			return withRemedy(err)
		}
	}
	device, dev, err := p.mountDevice(target, key, v)
	if err != nil {
		return err
	}
	defer device.Close()
	if _, err := p.mounter.do(ctx, request{Op: opMount, Key: key, Device: dev, Target: target, Volume: v}, device); err != nil {
		device.Close()
		return errors.Join(withRemedy(err), p.unmount(target, unix.MNT_DETACH)) // a container may use it already
	}
	if err := fusectl.SetReadAhead(dev, maxRequest); err != nil {
		p.log.Info("the read-ahead of the kernel is unchanged", "target", target, "err", err)
	}
	p.log.Info("mounted", "target", target, "source", v.name())
	return nil
}

// withRemedy adds the remedy to the error of a mounter that does not answer.
func withRemedy(err error) error {
	if errors.Is(err, errNoMounter) {
		return &exit.Error{Code: exit.Failure, Err: err, Remedy: "Start the pod of milkweed-k8s mounter on this node, with the same hostPath for the socket."}
	}
	return err
}

// NodeUnpublishVolume implements csi.NodeServer. It removes only a mount of Milkweed and an empty
// directory.
func (p *plugin) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	target, err := targetPath(r.GetTargetPath(), "target_path")
	if err != nil {
		return nil, err
	}
	p.keeper.forget(target, nil) // ends an attempt that has the lock
	unlock, err := p.targets.lock(ctx, target)
	if err != nil {
		return nil, err
	}
	defer unlock()
	p.keeper.forget(target, nil) // what was published meanwhile
	if err := p.unpublish(ctx, target); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// unpublish removes the mounts at target, and target. The target is locked.
func (p *plugin) unpublish(ctx context.Context, target string) error {
	unmounted, unmountErr := p.unmountAll(target)
	for dev, key := range unmounted {
		table, err := mounts.Read(mounts.Self)
		if err != nil {
			return err
		}
		if table.Has(dev) && (key == "" || p.owner(dev) == key) { // other targets have the volume, or may have it, too
			continue
		}
		// Without the mounter, its daemons are gone, too.
		if _, err := p.mounter.do(ctx, request{Op: opEnd, Key: key, Device: dev}, nil); err != nil {
			p.log.Warn("the end of a daemon is not awaited", "target", target, "err", err)
			break
		}
	}
	if unmountErr != nil {
		return unmountErr
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return status.Errorf(codes.Internal, "the target is not removed: %v", err)
	}
	return nil
}

// NodeGetVolumeStats implements csi.NodeServer.
func (p *plugin) NodeGetVolumeStats(ctx context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	path := r.GetVolumePath()
	switch {
	case path == "":
		return nil, status.Error(codes.InvalidArgument, "volume_path is missing")
	case !filepath.IsAbs(path):
		return nil, status.Errorf(codes.NotFound, "there is no volume at %q", path)
	}
	path = realPath(path)
	st, err := statfs(ctx, path, func() {})
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, status.Errorf(codes.NotFound, "there is no volume at %s", path)
	case isDead(err):
		return nil, status.Errorf(codes.Internal, "the daemon of %s has died; the volume will be mounted again", path)
	case err != nil:
		return nil, err
	}
	switch m, err := mountAt(path); {
	case err != nil:
		return nil, err
	case m.Type != fsType:
		return nil, status.Errorf(codes.NotFound, "no volume is mounted at %s", path)
	}
	size := int64(st.Bsize)
	return &csi.NodeGetVolumeStatsResponse{
		Usage: []*csi.VolumeUsage{
			{Unit: csi.VolumeUsage_BYTES, Total: int64(st.Blocks) * size, Available: int64(st.Bavail) * size, Used: int64(st.Blocks-st.Bfree) * size},
			{Unit: csi.VolumeUsage_INODES, Total: int64(st.Files), Available: int64(st.Ffree), Used: int64(st.Files - st.Ffree)},
		},
	}, nil
}
