# node.sh FOLDER NAME CHECKOUT SHARED makes the root of a host of a cluster, in new namespaces, and
# then is process 1 of the host.
set -e
folder=$1 name=$2 checkout=$3 mem=$1/nodes/$2
hostname "$name"
ip link set lo up
mount -t tmpfs -o mode=755 none "$mem"
mkdir "$mem"/up "$mem"/work "$mem"/root
mount -t overlay -o "lowerdir=/,upperdir=$mem/up,workdir=$mem/work" none "$mem/root"
cd "$mem/root"
mount --rbind /dev dev
mount -t tmpfs -o mode=1777 none dev/shm
mount --rbind /sys sys
mount -t proc none proc
mount -t tmpfs -o mode=755 none run
for f in "$folder"/bin/*; do
	if [ -L "$f" ] && [ "$(readlink "$f")" = slurm-stub ]; then
		ln -sfn slurm-stub "usr/bin/${f##*/}"
	else
		: >"usr/bin/${f##*/}"
		mount --bind "$(readlink -f "$f")" "usr/bin/${f##*/}"
	fi
done
for s in $4; do
	mkdir -p "$s"
	mount --bind "$folder/shared/$s" "$s"
done
if [ -n "$checkout" ]; then
	for s in examples docs; do
		mkdir -p "usr/share/doc/milkweed/$s"
		mount --bind -o ro "$checkout/$s" "usr/share/doc/milkweed/$s"
	done
fi
cat "$folder/hosts" >etc/hosts
echo "alice:x:2001:2001::/home/alice:/bin/bash
bob:x:2002:2002::/home/bob:/bin/bash" >>etc/passwd
mount -t tmpfs -o mode=1777 none tmp
mount -t tmpfs -o mode=755 none mnt
mkdir -p old
pivot_root . old
umount -l /old
exec /usr/bin/slurm-stub
