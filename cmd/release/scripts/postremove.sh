#!/bin/sh
# With dpkg --purge, removes the logs and the copies of the service. Configurations stay: this
# package has not made them.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
if [ "$1" = purge ]; then
	rm -rf /var/log/milkweed /var/cache/milkweed /run/milkweed-service
	rmdir --ignore-fail-on-non-empty /etc/milkweed 2>/dev/null || true
fi
