#!/bin/bash
# moosefs.sh up DIR      starts a MooseFS, mounts it at DIR/mnt and prints that path
# moosefs.sh down DIR    unmounts and stops it; the next "up" finds its files again
#
# The script needs root on Debian 12. It keeps configuration, metadata, chunks and logs in
# DIR. Both commands may be repeated. "up" returns when the mount is writable.
#
# The chunk server refuses loopback addresses, so the master, the chunk server and the
# client run in a network namespace whose interface lo has another address. They enter
# only the network namespace. "ip netns exec" would also create a mount namespace, and
# other processes would not see the mount.
set -euo pipefail

address=10.99.0.1

usage() {
	sed -n '2,3s/^# //p' "$0" >&2
	exit 2
}

say() { echo "moosefs.sh: $*" >&2; }

inside() { nsenter --net="/run/netns/$netns" "$@"; }

# mounted does not use mountpoint(1), which hangs if the daemon of the mount has died.
mounted() { grep -qF " $dir/mnt " /proc/self/mounts; }

writable() {
	mounted && {
		echo . | timeout -k 1 5 tee "$dir/mnt/.writable" >/dev/null &&
			timeout -k 1 5 rm "$dir/mnt/.writable"
	} 2>/dev/null
}

# within SECONDS COMMAND repeats the command until it succeeds or the time is over.
within() {
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.1
	done
}

# start NAME COMMAND starts a daemon in the namespace. The daemon inherits only its log.
start() {
	local name=$1
	shift
	nsenter --net="/run/netns/$netns" setsid "$@" </dev/null >>"$dir/log/$name" 2>&1 &
	disown
}

configure() {
	mkdir -p "$dir"/{etc,log,master,chunkserver,chunks,mnt}
	[ -e "$dir/master/metadata.mfs" ] || [ -e "$dir/master/metadata.mfs.back" ] ||
		cp /var/lib/mfs/metadata.mfs.empty "$dir/master/metadata.mfs"
	echo "* / rw,alldirs,maproot=0" >"$dir/etc/mfsexports.cfg"
	echo "$dir/chunks" >"$dir/etc/mfshdd.cfg"
	: >"$dir/etc/mfstopology.cfg"
	cat >"$dir/etc/mfsmaster.cfg" <<-END
		WORKING_USER = root
		WORKING_GROUP = root
		NICE_LEVEL = 0
		DATA_PATH = $dir/master
		EXPORTS_FILENAME = $dir/etc/mfsexports.cfg
		TOPOLOGY_FILENAME = $dir/etc/mfstopology.cfg
	END
	cat >"$dir/etc/mfschunkserver.cfg" <<-END
		WORKING_USER = root
		WORKING_GROUP = root
		NICE_LEVEL = 0
		DATA_PATH = $dir/chunkserver
		HDD_CONF_FILENAME = $dir/etc/mfshdd.cfg
		HDD_LEAVE_SPACE_DEFAULT = 64MiB
		MASTER_HOST = $address
		MASTER_RECONNECTION_DELAY = 1
	END
}

network() {
	ip netns add "$netns"
	inside ip link set lo up
	inside ip address add "$address/32" dev lo
}

listens() { [ -n "$(inside ss --no-header --listening --tcp --numeric "sport = :$1")" ]; }

boot() {
	configure
	network
	start master mfsmaster -f -a -c "$dir/etc/mfsmaster.cfg" start
	within 30 listens 9421                  # the port for clients; chunk servers use 9420
	start chunkserver mfschunkserver -f -c "$dir/etc/mfschunkserver.cfg" start
	within 30 listens 9422
	start mount mfsmount -f -H "$address" -o nonempty,mfsnice=0 "$dir/mnt"
	within 60 writable
	inside mfssetgoal -r 1 "$dir/mnt" >>"$dir/log/tools"
	inside mfssettrashtime -r 0 "$dir/mnt" >>"$dir/log/tools"
}

# undo prints the logs and stops the daemons after a command of boot failed.
undo() {
	say "cannot start; the last lines of $dir/log:"
	tail -n 5 "$dir"/log/* >&2 || true
	down
}

up() {
	"$(dirname "$0")/deps.sh" iproute2 moosefs-master moosefs-chunkserver moosefs-client
	if ! writable; then
		down
		trap undo EXIT
		boot
		trap - EXIT
	fi
	echo "$dir/mnt"
}

pids() { ip netns pids "$netns"; }

ended() { [ -z "$(pids)" ]; }

signal() {
	local pid
	for pid in $(pids); do
		kill "-$1" "$pid" 2>/dev/null || true
	done
}

down() {
	while mounted; do
		timeout -k 1 10 umount "$dir/mnt" 2>/dev/null || umount --lazy "$dir/mnt"
	done
	[ -e "/run/netns/$netns" ] || return 0
	signal TERM
	if ! within 20 ended; then
		say "killed: $(pids | xargs -r ps -o comm= -p | xargs)"
		signal KILL
		within 5 ended
	fi
	ip netns delete "$netns"
}

[ $# -eq 2 ] || usage
dir=$(realpath -m "$2")
netns=moosefs-$(printf %s "$dir" | cksum | cut -d' ' -f1)
[ "$(id -u)" -eq 0 ] || { say "root is required"; exit 1; }

case $1 in
up) up ;;
down) down ;;
*) usage ;;
esac
