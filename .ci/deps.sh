#!/bin/bash
# deps.sh [NAME...] installs the packages that the tests need on Debian 12, or the named
# ones. A name is a package of Debian, a server of an object store, csi-sanity, which tests CSI
# drivers, axe-core, which checks the accessibility of web pages, a program for the manifests of
# Kubernetes, kubernetes or fluid, which are the schemas of their objects, or a tool that makes
# releases. What is not of Debian is installed in the user's cache folder, where the tests find it.
# Go itself is not installed; go.mod has its version. With fuse3, and on a machine without udev, root
# lets all users open /dev/fuse, as udev does.
set -euo pipefail

packages=(
	acl attr fuse3 iproute2                                 # mounts, network namespaces, extended attributes
	python3-h5py python3-numpy python3-pil python3-sklearn  # readers.py, examples/
	python3-torch python3-torchvision
	python3-jsonschema                                      # cmd/internal/config
	prometheus                                              # examples/prometheus, examples/grafana
	rclone                                                  # milkweed bench
	fio                                                     # TestPosixFio
	libarchive-tools mtree-netbsd                           # drivers/manifest
	strace                                                  # drivers/peer
	tmux                                                    # milkweed top
	curl jq                                                 # docs/howto, the examples of --help
	procps util-linux                                       # cmd/internal/lab/slurmtest
	e2fsprogs mount xfsprogs                                # disks that lose data, cmd/torture
	moosefs-chunkserver moosefs-client moosefs-master       # moosefs.sh
	chromium chromium-driver axe-core                       # cmd/internal/lab/browser
	buildah kustomize kubeconform kubernetes fluid          # cmd/internal/lab/kubetest
	versitygw fake-gcs-server azurite                       # blobtest
	nfpm cyclonedx-gomod python3-wheel                      # make release
	lintian mmdebstrap python3-pip python3-venv rpm         # cmd/release
	systemd-container
	csi-sanity                                              # cmd/milkweed-k8s
)
[ $# -eq 0 ] || packages=("$@")

go=${GO:-go}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/milkweed-test

# module PACKAGE VERSION installs a program of a Go module.
module() {
	local package=${1%/v[0-9]}
	local program=$cache/bin/${package##*/}
	if ! "$go" version -m "$program" 2>/dev/null | grep --quiet $'^\tmod\t.*\t'"$2"$'\t'; then
		GOBIN=$cache/bin "$go" install "$1@$2" >&2
	fi
}

# module_file NAME MODULE VERSION PATH copies a file, or a folder, of a Go module into the folder
# NAME@VERSION of the cache.
module_file() {
	local folder=$cache/$1@$3 module
	if [ ! -d "$folder" ]; then
		rm -rf "$folder.new"
		module=$(cd / && "$go" mod download -json "$2@$3" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
		mkdir -p "$folder.new"
		cp -R "$module/$4" "$folder.new/"
		chmod -R u+w "$folder.new"
		mv "$folder.new" "$folder"
	fi
}

# npm_package NAME VERSION installs a package of npm into the folder NAME@VERSION of the cache.
npm_package() {
	local folder=$cache/$1@$2
	if [ ! -d "$folder" ]; then
		rm -rf "$folder.new"
		npm install --prefix "$folder.new" --ignore-scripts --no-audit --no-fund --loglevel error "$1@$2" >&2
		mv "$folder.new" "$folder"
	fi
}

# azurite VERSION installs Azurite, a Node.js program.
azurite() {
	npm_package azurite "$1"
	mkdir -p "$cache/bin"
	ln -sfn "$cache/azurite@$1/node_modules/.bin/azurite-blob" "$cache/bin/azurite-blob"
}

# axe VERSION installs axe-core, a script.
axe() {
	npm_package axe-core "$1"
	ln -sfn "$cache/axe-core@$1/node_modules/axe-core/axe.min.js" "$cache/axe.min.js"
}

missing=() programs=()
for package in "${packages[@]}"; do
	case $package in
	versitygw | fake-gcs-server | nfpm | cyclonedx-gomod | csi-sanity | kustomize | kubeconform | kubernetes | fluid)
		programs+=("$package")
		;;
	azurite | axe-core)
		programs+=("$package")
		command -v npm >/dev/null || missing+=(nodejs npm)
		;;
	*)
		status=$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null || true)
		[ "$status" = installed ] || missing+=("$package")
		;;
	esac
done

if [ ${#missing[@]} -gt 0 ]; then
	if [ "$(id -u)" -ne 0 ]; then
		echo "deps.sh: root is required; run: sudo apt-get install --no-install-recommends ${missing[*]}" >&2
		exit 1
	fi
	export DEBIAN_FRONTEND=noninteractive
	apt-get update --quiet --quiet >&2
	apt-get install --quiet --quiet --yes --no-install-recommends -o Dpkg::Use-Pty=0 "${missing[@]}" >&2
fi

for program in "${programs[@]}"; do
	case $program in
	versitygw) module github.com/versity/versitygw/cmd/versitygw v1.8.0 ;;
	fake-gcs-server) module github.com/fsouza/fake-gcs-server v1.56.1 ;;
	azurite) azurite 3.37.0 ;;
	nfpm) module github.com/goreleaser/nfpm/v2/cmd/nfpm v2.45.2 ;;
	cyclonedx-gomod) module github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod v1.10.0 ;;
	axe-core) axe 4.14.1 ;;
	kustomize) module sigs.k8s.io/kustomize/kustomize/v5 v5.7.1 ;;
	kubeconform) module github.com/yannh/kubeconform/cmd/kubeconform v0.7.0 ;;
	kubernetes) module_file kubernetes k8s.io/kubernetes v1.34.3 api/openapi-spec/swagger.json ;;
	fluid) module_file fluid github.com/fluid-cloudnative/fluid v1.0.8 config/crd/bases ;;
	csi-sanity) module github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity v5.6.0 ;;
	esac
done

if [[ " ${packages[*]} " == *" fuse3 "* ]] && [ -c /dev/fuse ] && [ ! -d /run/udev ] && [ "$(id -u)" -eq 0 ]; then
	chmod 0666 /dev/fuse
fi
