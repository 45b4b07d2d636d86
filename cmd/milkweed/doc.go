// Milkweed puts a node's memory and disks in front of a slow, shared, read-only
// dataset, as a mount from which an unchanged training job reads each byte of
// the source once.
//
// Usage:
//
//	milkweed mount [-c tiering.toml] [SOURCE] [MOUNTPOINT]
//	milkweed status [--json] [PATH]
//	milkweed where [--json] PATH…
//	milkweed warmup [--json] [PATH…]
//	milkweed umount [--lazy] MOUNTPOINT
//	milkweed check [-c tiering.toml] [SOURCE] [MOUNTPOINT]
//	milkweed demo [--json]
//	milkweed bench [--json] [micro|workloads|monarch]…
//	milkweed version [--json]
//	milkweed completion SHELL
//
// Each command explains itself with --help; `milkweed man FOLDER` writes that
// as manual pages. Called by the name mount.milkweed, the program takes what
// mount(8) gives its helpers, so that a line of /etc/fstab can name it:
//
//	/lustre/imagenet  /mnt/imagenet  milkweed  config=/etc/milkweed/tiering.toml,_netdev  0  0
//	s3://imagenet/2012?region=eu-west-1  /mnt/imagenet  milkweed  config=/etc/milkweed/tiering.toml,_netdev  0  0
//
// # How the parts of this folder belong together
//
// Each command is a file and a function that returns a *cobra.Command. A
// command that needs the daemon finds it through package control. The daemon is
// this program too: mount starts itself again (detach.go), and what it starts
// calls serve (daemon.go).
//
// # Limitations
//
// A daemon is reached by its owner and root only. A mount in another mount name
// space, such as a container's, is not found. Credentials of a bucket come from
// the environment that the daemon was started in: a variable that changes later
// is not seen, a file is.
package main
