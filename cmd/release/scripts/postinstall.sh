#!/bin/sh
# Makes the user and the folder of the service. Mounts go on with the earlier program.
set -e
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers milkweed.conf
fi
if [ -d /run/systemd/system ]; then # not in a chroot
	systemd-tmpfiles --create milkweed.conf
	systemctl daemon-reload
fi
