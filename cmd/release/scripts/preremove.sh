#!/bin/sh
# Unmounts all datasets before the program is removed. While a job uses one, the package cannot be
# removed.
set -e
case $1 in
remove | deconfigure | 0) ;;
*) exit 0 ;; # an upgrade: mounts go on with the earlier program
esac
milkweed umount --all || {
	echo "milkweed cannot be removed while a mount is in use: see above" >&2
	exit 1
}
if [ -d /run/systemd/system ]; then
	systemctl stop 'milkweed@*.service'
fi
