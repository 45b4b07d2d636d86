# Arguments: an empty folder, the program, the repository, the user, the setup, and then the words
# of the session, which variables of its environment may precede.
scratch=$1 program=$2 repo=$3 user=$4 setup=$5
shift 5
root=$scratch/root

# With copies of the mounts of other tests, those would stay in use after they are unmounted. One of
# which the mount point is removed meanwhile goes by itself.
awk '$3 == "fuse.milkweed" { print $2 }' /proc/self/mounts | xargs -r umount -l || true

# The system is the lower layer. Its changes are in memory. What is not on an overlay, such as the
# tiers, is on the disk of the scratch folder.
mkdir "$scratch/layer" "$root"
mount -t tmpfs -o mode=755 layer "$scratch/layer"
mkdir "$scratch/layer/upper" "$scratch/layer/work"
chmod 755 "$scratch/layer/upper"
mount -t overlay -o "lowerdir=/,upperdir=$scratch/layer/upper,workdir=$scratch/layer/work" page "$root"
for dir in proc sys dev; do
	mount --rbind "/$dir" "$root/$dir"
done
for dir in home mnt srv tmp root var/tmp var/lib/milkweed var/log; do
	mkdir -p "$scratch/disk/$dir" "$root/$dir"
	mount --bind "$scratch/disk/$dir" "$root/$dir"
done
chmod 1777 "$root/tmp" "$root/var/tmp"
for dir in dev/shm run; do
	mount -t tmpfs -o mode=755 "page-${dir##*/}" "$root/$dir"
done
chmod 1777 "$root/dev/shm"

# The package.
install -D -m 755 "$program" "$root/usr/bin/milkweed"
ln -sfn ../bin/milkweed "$root/usr/sbin/mount.milkweed"
mkdir -p "$root/usr/share/doc/milkweed"
cp -r "$repo/examples" "$repo/docs" "$root/usr/share/doc/milkweed/"
cp "$repo"/examples/systemd/*.service "$root/usr/lib/systemd/system/"
mkdir -p "$root/etc/milkweed"
echo 'milkweed:x:1501:1501::/var/cache/milkweed:/usr/sbin/nologin' >>"$root/etc/passwd"
echo 'milkweed:x:1501:' >>"$root/etc/group"
install -d -o 1501 -g 1501 -m 700 "$root/run/milkweed-service"

# The user, and a sudo that asks for no password.
echo 'ada:x:1500:1500::/home/ada:/bin/bash' >>"$root/etc/passwd"
echo 'ada:x:1500:' >>"$root/etc/group"
install -d -o 1500 -g 1500 -m 700 "$root/home/ada" "$root/run/user/1500"
chmod 755 "$root/run/user"
mkdir -p "$root/opt/page"
cp "$scratch"/stubs/* "$root/opt/page/" 2>/dev/null || true
install -m 4755 /usr/bin/setpriv "$root/opt/page/become"
if [ ! -e "$root/opt/page/sudo" ]; then
	printf '%s\n' '#!/bin/sh' 'exec /opt/page/become --reuid=0 --regid=0 --clear-groups "$@"' >"$root/opt/page/sudo"
	chmod 755 "$root/opt/page/sudo"
fi

common=(PATH=/opt/page:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM=xterm)
chroot "$root" env -i "${common[@]}" HOME=/root sh -euc "$setup" </dev/null
case $user in
root) id=(0 0) home=/root runtime= ;;
*) id=(1500 1500) home=/home/$user runtime=/run/user/1500 ;;
esac
status=0
chroot "$root" setpriv --reuid="${id[0]}" --regid="${id[1]}" --clear-groups \
	env -i --chdir="$home" "${common[@]}" HOME="$home" USER="$user" ${runtime:+XDG_RUNTIME_DIR=$runtime} "$@" </dev/null || status=$?
if [ $status -eq 0 ] && grep ' fuse\.milkweed ' /proc/self/mountinfo; then
	echo 'the page has left these mounts'
	status=1
fi
exit $status
