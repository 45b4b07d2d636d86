#!/bin/bash
# release.sh FOLDER builds a release of the commit that is checked out into FOLDER, which it empties:
# packages for Debian, RPM and pip, archives, bills of materials and checksums, for amd64 and arm64, and
# an archive from which the image of containers is built. All times are that of the commit, so that a
# commit gives the same bytes wherever it is built with the same Go. ARCHS=amd64 builds for one
# architecture.
set -euo pipefail
umask 022
export LC_ALL=C TZ=UTC CGO_ENABLED=0 GOOS=linux GOFLAGS=-mod=readonly

out=$(realpath --canonicalize-missing "${1:?usage: release.sh FOLDER}")
here=$(realpath "$(dirname "$0")")
cd "$here/../.."
go=${GO:-go}
stage=$(mktemp --directory)
trap 'rm -rf "$stage"' EXIT

SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

# The version is 1.2.3 at the tag v1.2.3, and 1.2.3+5.gabcdef 5 commits later. Without a tag it is
# 0~20261124.gabcdef, which comes before all others.
if version=$(git describe --tags --match 'v[0-9]*' 2>/dev/null); then
	version=$(sed 's/^v//; s/-\([0-9]*\)-g/+\1.g/; s/-/~/' <<<"$version")
else
	version=0~$(date --date "@$SOURCE_DATE_EPOCH" +%Y%m%d).g$(git rev-parse --short HEAD)
fi
if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
	echo 'release.sh: some changes are not committed' >&2
	version+=+dirty
fi

# The same version for pip: 1.0.0rc1 in place of 1.0.0~rc1, and 0.dev20261124+gabcdef, which comes before
# all others.
pip_version=$(sed -E 's/^0~([0-9]+)\./0.dev\1+/; s/~//; s/(\+.*)\+/\1./' <<<"$version")

.ci/deps.sh nfpm cyclonedx-gomod python3-wheel
tools=${XDG_CACHE_HOME:-$HOME/.cache}/milkweed-test/bin

# compile ARCH PROGRAM FILE compiles a program. It is static, because cgo is off.
compile() {
	GOARCH=$1 "$go" build -trimpath -buildvcs=false -ldflags "-s -w -X main.release=$version" -o "$3" "./cmd/$2"
}

# native is the architecture of this machine, for which the program milkweed is compiled first.
native=$("$go" env GOHOSTARCH)

# licenses PROGRAM prints the licences of Go and of the modules in a program, which are the same for all
# architectures.
licenses() {
	local folder module version file
	{
		echo "go $("$go" env GOVERSION) $("$go" env GOROOT)"
		"$go" version -m "$1" | awk '$1 == "dep" {print $2}' | xargs "$go" list -m -f '{{.Path}} {{.Version}} {{.Dir}}'
	} | while read -r module version folder; do
		for file in "$folder"/{LICEN[CS]E,COPYING,NOTICE,PATENTS}*; do
			[ -f "$file" ] || continue
			printf '%s %s: %s\n\n' "$module" "$version" "${file##*/}"
			cat "$file"
			printf '\n%s\n\n' '----------------------------------------'
		done
	done
}

# archive FILE FOLDER NAME packs a folder under another name.
archive() {
	tar --create --directory "$2" --transform "flags=rh;s|^\.|$3|" --sort=name --format=gnu \
		--mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner . | gzip --best --no-name >"$1"
}

# wheel ARCH PROGRAM LICENSES packs the program and the Python module for pip. A static program meets the
# rules of manylinux and of musllinux; manylinux2014 is the name of manylinux_2_17 before pip 20.3.
wheel() {
	local folder=$stage/wheel/$1 info data machine=x86_64
	info=$folder/milkweed-$pip_version.dist-info
	data=$folder/milkweed-$pip_version.data
	[ "$1" = amd64 ] || machine=aarch64
	mkdir -p "$info/licenses" "$data/scripts"
	cp examples/pytorch/milkweed.py "$folder/"
	cp "$2" "$data/scripts/milkweed"
	cp LICENSE "$info/licenses/"
	zcat "$3" >"$info/licenses/third-party-licenses"
	sed "s/@VERSION@/$pip_version/" "$here/wheel.metadata" >"$info/METADATA"
	printf '%s\n' 'Wheel-Version: 1.0' 'Generator: milkweed' 'Root-Is-Purelib: false' \
		"Tag: py3-none-"{manylinux_2_17,manylinux2014,musllinux_1_1}"_$machine" >"$info/WHEEL"
	/usr/bin/python3 -m wheel pack --dest-dir "$out" "$folder" >"$stage/log" || { cat "$stage/log" >&2; exit 1; }
}

# share FOLDER makes what is the same for all architectures.
share() {
	local milkweed=$stage/milkweed doc=$1/doc/milkweed
	compile "$native" milkweed "$milkweed"
	mkdir -p "$1"/{man/man8,bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d} "$doc"
	"$milkweed" man "$1/man/man1"
	gzip --best --no-name "$1"/man/man1/*
	ln -s ../man1/milkweed-mount.1.gz "$1/man/man8/mount.milkweed.8.gz"
	"$milkweed" completion bash >"$1/bash-completion/completions/milkweed"
	"$milkweed" completion zsh >"$1/zsh/vendor-completions/_milkweed"
	"$milkweed" completion fish >"$1/fish/vendor_completions.d/milkweed.fish"
	git archive HEAD README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md tiering.toml docs examples ':!*.go' |
		tar --extract --directory "$doc"
	cp LICENSE "$doc/copyright"
	licenses "$milkweed" | gzip --best --no-name >"$doc/third-party-licenses.gz"
	gzip --best --no-name >"$doc/changelog.gz" <<-END
		milkweed ($version) unstable; urgency=medium

		  * The changes are in CHANGELOG.md.

		 -- The Milkweed Authors <milkweedfs@users.noreply.github.com>  $(date --date "@$SOURCE_DATE_EPOCH" --rfc-email)
	END
	mkdir -p "$1/lintian/overrides"
	cp "$here/lintian-overrides" "$1/lintian/overrides/milkweed"
}

rm -rf "$out"
mkdir -p "$out"
share "$stage/share"
image=milkweed-$version-image
mkdir "$stage/$image"
cp LICENSE examples/container/{Dockerfile,README.md} "$stage/$image/"
for arch in ${ARCHS:-amd64 arm64}; do
	name=milkweed-$version-linux-$arch
	usr=$stage/$arch/usr
	mkdir -p "$usr"/{bin,sbin} "$usr"/lib/{systemd/system,sysusers.d,tmpfiles.d}
	if [ "$arch" = "$native" ]; then
		cp "$stage/milkweed" "$usr/bin/milkweed"
	else
		compile "$arch" milkweed "$usr/bin/milkweed"
	fi
	ln -s ../bin/milkweed "$usr/sbin/mount.milkweed"
	cp 'examples/systemd/milkweed@.service' "$usr/lib/systemd/system/"
	cp "$here/sysusers.conf" "$usr/lib/sysusers.d/milkweed.conf"
	cp "$here/tmpfiles.conf" "$usr/lib/tmpfiles.d/milkweed.conf"
	cp --recursive --no-dereference "$stage/share" "$usr/share"
	find "$usr" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
	ln -s "$here/scripts" "$stage/$arch/scripts"
	for format in deb rpm; do
		(cd "$stage/$arch" && ARCH=$arch VERSION=$version \
			"$tools/nfpm" package --config "$here/nfpm.yaml" --packager "$format" --target "$out/" >"$stage/log") ||
			{ cat "$stage/log" >&2; exit 1; }
	done
	archive "$out/$name.tar.gz" "$usr" "$name"
	wheel "$arch" "$usr/bin/milkweed" "$usr/share/doc/milkweed/third-party-licenses.gz"
	mkdir "$stage/$image/$arch"
	cp "$usr/bin/milkweed" "$stage/$image/$arch/"
	compile "$arch" milkweed-k8s "$stage/$image/$arch/milkweed-k8s"
	[ -e "$stage/$image/third-party-licenses.gz" ] ||
		licenses "$stage/$image/$arch/milkweed-k8s" | gzip --best --no-name >"$stage/$image/third-party-licenses.gz"
	for program in milkweed milkweed-k8s; do
		"$tools/cyclonedx-gomod" bin -json -noserial -notimestamp -version "v$version" \
			-output "$out/$program-$version-linux-$arch.cdx.json" "$stage/$image/$arch/$program" 2>"$stage/log" ||
			{ cat "$stage/log" >&2; exit 1; }
	done
done
archive "$out/$image.tar.gz" "$stage/$image" "$image"
(cd "$out" && sha256sum -- * >SHA256SUMS)
echo "$out:"
(cd "$out" && ls -l --human-readable | awk 'NR > 1 {print "  " $5 "\t" $9}')
