#!/bin/bash
# deps.sh [PACKAGE...]: installs what the tests need on Debian 12; with names, only those.
# Go itself is not among them: go.mod says which one.
set -euo pipefail

packages=(
	attr fuse3 iproute2                                     # mounts, network namespaces, extended attributes
	python3-h5py python3-numpy python3-pil python3-sklearn  # readers.py, examples/
	python3-torch python3-torchvision
	rclone                                                  # milkweed bench
	moosefs-chunkserver moosefs-client moosefs-master       # moosefs.sh
)
[ $# -eq 0 ] || packages=("$@")

missing=()
for package in "${packages[@]}"; do
	status=$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null || true)
	[ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" -ne 0 ]; then
	echo "deps.sh: not root; run: sudo apt-get install --no-install-recommends ${missing[*]}" >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet --quiet >&2
apt-get install --quiet --quiet --yes --no-install-recommends -o Dpkg::Use-Pty=0 "${missing[@]}" >&2
