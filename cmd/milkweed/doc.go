// Milkweed caches a slow, shared, read-only dataset in the memory and on the disks of a node. It
// is a FUSE file system: an unchanged training job reads the dataset through the mount, and
// Milkweed reads each byte of the source once.
//
// Usage:
//
//	milkweed mount [-c tiering.toml] [SOURCE] [MOUNTPOINT]
//	milkweed status [--json] [PATH]
//	milkweed where [--json] PATH…
//	milkweed warmup [--json] [PATH…]
//	milkweed refresh [--prune [--dry-run]] [--json] [-v] [PATH…]
//	milkweed generations [--json] [PATH]
//	milkweed generations drop [--json] GEN [PATH]
//	milkweed prepare [--trust-mtime] [--partial] [--json] GEN [PATH]
//	milkweed switch [--keep] [--when-idle] [--json] GEN [PATH]
//	milkweed manifest [-o FILE] [--omit NAME] [--json] SOURCE
//	milkweed plan [-0] [--stream NAME] [--epoch N] [--from N] [--lead N] MOUNT [FILE|-]
//	milkweed plan --show [--json] MOUNT
//	milkweed plan --clear [--stream NAME] MOUNT
//	milkweed exchange [-q Q] [--seed N] [--epoch N] [--by-bytes] [-0] MOUNT [FILE|-]
//	milkweed exchange --show [--json] MOUNT
//	milkweed exchange --stop MOUNT
//	milkweed peers [--json] [PATH]
//	milkweed peers keygen
//	milkweed scrub [--rate SIZE] [--background] [--json] [PATH]
//	milkweed umount [--lazy] MOUNTPOINT
//	milkweed check [-c tiering.toml] [--manifest FILE [--tiers]] [SOURCE] [MOUNTPOINT]
//	milkweed demo [--json]
//	milkweed bench [--json] [micro|workloads|monarch]…
//	milkweed version [--json]
//	milkweed completion SHELL
//
// Each command has a --help; `milkweed man FOLDER` writes the same text as manual pages. Under
// the name mount.milkweed, the program accepts the arguments that mount(8) passes to its
// helpers, so that /etc/fstab can have lines such as:
//
//	/lustre/imagenet  /mnt/imagenet  milkweed  config=/etc/milkweed/tiering.toml,_netdev  0  0
//	s3://imagenet/2012?region=eu-west-1  /mnt/imagenet  milkweed  config=/etc/milkweed/tiering.toml,_netdev  0  0
//
// # Structure of this package
//
// Each command has a file, with a function that returns a *cobra.Command. The commands connect
// to the daemon through package control. The daemon is the same program: `milkweed mount` starts
// itself again (detach.go), and the child process calls serve (daemon.go).
//
// # Limitations
//
// Only the owner of a daemon and root can connect to it. The commands do not find a mount in
// another mount namespace, such as that of a container. The daemon reads the credentials of a
// bucket from its environment and from files. Changes of these files take effect; changes
// of variables need a remount.
package main
