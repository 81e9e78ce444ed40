#!/bin/sh
# Make the base in /base: the packages of base.txt and nothing else, so that it is the same whatever image runs this.
# usage: base.sh DISTRIBUTION ARCHITECTURE DAY. apt compares every package with the mirror's signed index.
set -eu
distribution=$1 architecture=$2 day=$3 root=/base debs=/base.debs
. /dev/cell/steps/cell.sh
export LC_ALL=C DEBIAN_FRONTEND=noninteractive

running="$(. /etc/os-release && echo "$VERSION_CODENAME") $(dpkg --print-architecture)"
[ "$running" = "$distribution $architecture" ] || {
    echo "TOOL is of $running, the base is of $distribution $architecture (docker build --platform?)" >&2
    exit 1
}

mkdir $root $debs && cd $debs
# shellcheck disable=SC2046 # one word a package
pinned "$day" download $(cat $in/base.txt)

# One /usr, as Debian has it, and no documents.
for folder in bin sbin lib; do mkdir -p $root/usr/$folder && ln -s usr/$folder $root/$folder; done
if [ "$architecture" = amd64 ]; then mkdir $root/usr/lib64 && ln -s usr/lib64 $root/lib64; fi
mkdir -p $root/etc/dpkg/dpkg.cfg.d $root/var/lib/dpkg $root/dev
for folder in doc man locale; do echo "path-exclude=/usr/share/$folder/*"; done > $root/etc/dpkg/dpkg.cfg.d/cell
for deb in *.deb; do
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C $root --keep-directory-symlink \
        --exclude './usr/share/doc/*' --exclude './usr/share/man/*' --exclude './usr/share/locale/*'
done

if mknod -m 666 $root/dev/null c 1 3 2> /dev/null; then
    mknod -m 666 $root/dev/zero c 1 5 && mknod -m 666 $root/dev/urandom c 1 9
else # a rootless build makes no devices, and files serve these scripts as well
    for name in null zero urandom; do : > $root/dev/$name && chmod 666 $root/dev/$name; done
fi
printf '127.0.0.1\tlocalhost\n::1\tlocalhost\n' > $root/etc/hosts
echo cell > $root/etc/hostname
: > $root/etc/resolv.conf
: > $root/var/lib/dpkg/status
mv $debs $root/debs
chroot $root sh -c 'dpkg --install --force-depends --force-unsafe-io /debs/*.deb && dpkg --audit'

# Its own sources are those that Debian's apt gives as its example.
mkdir /base.apt
dpkg-deb --fsys-tarfile $root/debs/apt_*.deb | tar -x -C /base.apt --strip-components 6 ./usr/share/doc/apt/examples
if [ -f /base.apt/debian.sources ]; then
    sed -E '/^#/d; s/^(Components:).*/\1 main/' /base.apt/debian.sources > $root/etc/apt/sources.list.d/debian.sources
else
    sed -nE 's/^(deb [^ ]+ [^ ]+ main).*/\1/p' /base.apt/sources.list > $root/etc/apt/sources.list
fi

# Exactly the list, or no base.
sort $in/base.txt > /base.wanted
chroot $root dpkg-query --show --showformat '${Package}=${Version}\n' | sort | diff /base.wanted -
test "$(chroot $root dpkg-query --show --showformat '${db:Status-Status}\n' | sort -u)" = installed

# What tells of this run: logs, caches, identities, times. A file of two names becomes two, as not every builder
# copies such names.
cd $root
rm -rf debs dev/* run/* tmp/* var/log/apt var/log/*.log var/cache/ldconfig/aux-cache var/cache/apt/*.bin
rm -f var/lib/dpkg/*-old var/lib/dpkg/lock* etc/*- var/cache/debconf/*.dat* var/lib/dpkg/triggers/Lock
: > etc/machine-id
find . -type f -links +1 -exec sh -c 'for f; do cp -p "$f" "$f.one" && mv "$f.one" "$f"; done' sh {} +
find . -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
