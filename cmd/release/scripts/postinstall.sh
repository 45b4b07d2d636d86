#!/bin/sh
# Makes the user and the folder of the service. Mounts go on with the earlier program.
set -e
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers milkweed.conf
	systemd-tmpfiles --create milkweed.conf
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
