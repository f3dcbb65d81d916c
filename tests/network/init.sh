# The first process of a host, in namespaces of its own: files that no other host sees, a name, the loopback, accounts.
# From the caller: NAME, DISK (the size of all that can be written), SHARED and HIDDEN (paths, one a line), HOME,
# SETUP (a directory with what is to lie in /run/ssh), ACCOUNTS and SHADOW and HOSTS (the content of those files).
set -e

hostname "$NAME"
ip link set lo up

mount -t tmpfs -o "size=$DISK,mode=755" disk /run
mkdir -m 755 /run/real /run/disk /run/sshd
mount --rbind / /run/real

IFS='
'
for path in $HIDDEN; do
    mkdir -p "/run/disk$path"
    chmod 1777 "/run/disk$path"
    mount --bind "/run/disk$path" "$path"
done
chmod 755 "$HOME"
for path in $SHARED; do
    mkdir -p "$path"
    mount --rbind "/run/real$path" "$path"
done

cp -r "/run/real$SETUP" /run/ssh
# A lazy umount takes the whole tree, also mounts that no path reaches because the disk covers them, as `ip netns` leaves.
umount --lazy /run/real
rmdir /run/real

umask 077
printf '%s\n' "$SHADOW" > /run/shadow
umask 022
printf '%s\n' "$ACCOUNTS" > /run/passwd
printf '%s\n' "$HOSTS" > /run/hosts
mount --bind /run/shadow /etc/shadow
mount --bind /run/passwd /etc/passwd
mount --bind /run/hosts /etc/hosts

# Whoever ignores the end of a child leaves no zombie of it, and children of the dead become the first process's.
trap '' CHLD
echo ready
exec sleep infinity
