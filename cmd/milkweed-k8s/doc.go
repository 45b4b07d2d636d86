// Milkweed-k8s is the part of Milkweed for Kubernetes. Each of its commands is the main process of
// a container, and runs the program milkweed as a child process:
//
//	milkweed-k8s csi       the CSI node plugin: mounts volumes for pods
//	milkweed-k8s mounter   serves the mounts of the plugin, without privileges
//	milkweed-k8s fluid     mounts the dataset of a ThinRuntime of Fluid
//
// A volume is published in these steps:
//
//  1. kubelet calls NodePublishVolume of the plugin with a target, attributes and secrets (node.go). The
//     plugin parses them (volume.go). If a Milkweed that answers is mounted at the target, that is all.
//  2. The plugin asks the mounter for a daemon of a volume with the same attributes and secrets
//     (wire.go). If there is one, the plugin mounts its file system at the target, too, in a peer group
//     of its own (mount.go). Only one daemon can use a dataset in a tier.
//  3. Otherwise the plugin opens /dev/fuse, mounts it at the target, and sends the descriptor to the
//     mounter.
//  4. The mounter starts milkweed mount --fuse-fd (mounter.go, daemon.go), and replies when it serves.
//
// When the last mount of a file system is removed, the kernel ends the connection, and the daemon ends.
// The state of the plugin is the kernel's table of mounts, and that of the mounter its child processes.
// When a daemon has died, the plugin mounts its volumes again (keeper.go).
//
// # Limitations
//
// A process without CAP_SYS_ADMIN has no passthrough: all reads go through the daemon.
//
// Volumes of one source with other options or secrets cannot use the same tiers on one node at the same
// time. This is also so while a secret is replaced: pods with the new one start when those with the
// old one have ended.
//
// A container does not see that a volume was mounted again after its daemon had died, unless it has the
// volume with mountPropagation: HostToContainer, and without subPath: the kernel mounts nothing in a part of
// a volume.
package main
