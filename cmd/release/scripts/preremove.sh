#!/bin/sh
# Unmounts all datasets before the program is removed. While a job uses one, the package cannot be
# removed, and all stay mounted.
set -e
case $1 in
remove | deconfigure | 0) ;;
*) exit 0 ;; # an upgrade: mounts go on with the earlier program
esac
if [ -e /proc/self/mountinfo ]; then # in a chroot without it, no process has mounted
	milkweed umount --all --dry-run && milkweed umount --all || {
		echo 'The package milkweed stays, because a mount is in use: see above.' >&2
		exit 1
	}
fi
if [ -d /run/systemd/system ]; then
	systemctl stop 'milkweed@*.service'
fi
