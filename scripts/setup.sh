#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Installs missing packages that the build and the tests need (Debian 12, Ubuntu
# 24.04). Changes nothing if everything is present.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'USAGE'
Usage: bash scripts/setup.sh [--tests] [--lint] [--guest] [--judge] [--package] [--roots]
                            [--need-mount]
  --tests       also tools of other file systems, for tests that our programs leave those alone
  --lint        also what scripts/lint.sh runs: clang tools, cppcheck, shellcheck
  --guest       also what scripts/guest-test.sh runs: QEMU, and a kernel package, which is
                unpacked in GPUNVME_GUEST_KERNEL (build/guest-kernel) and not installed (Debian)
  --judge       also what scripts/sim-judge.sh runs: QEMU's guest, and mmdebstrap for its system
  --package     also what scripts/package-test.sh runs: debhelper, lintian
  --roots       also what scripts/roots-test.sh runs: mmdebstrap
  --need-mount  fail when FUSE file systems cannot be mounted here
USAGE
}

# Each line is PACKAGE PROBE. The package counts as present if the probe finds
# its content, from whatever source, or if dpkg reports it. Probes are cmd: a
# program, pc: a pkg-config module, and inc: a header.
BASE_PACKAGES='
gcc             cmd:gcc
g++             cmd:g++
libc6-dev       inc:stdio.h
cmake           cmd:cmake
ninja-build     cmd:ninja
ccache          cmd:ccache
pkg-config      cmd:pkg-config
git             cmd:git
python3         cmd:python3
python3-numpy   dpkg:
python3-pytest  dpkg:
libfuse3-dev    pc:fuse3
fuse3           cmd:fusermount3
libssl-dev      pc:openssl
libnvme-dev     pc:libnvme
libisal-dev     pc:libisal
uuid-dev        pc:uuid
libblkid-dev    pc:blkid
libjson-c-dev   pc:json-c
libxxhash-dev   pc:libxxhash
libseccomp-dev  pc:libseccomp
liburing-dev    pc:liburing
xxhash          cmd:xxhsum
file            cmd:file
libgtest-dev    pc:gtest
attr            cmd:setfattr
acl             cmd:setfacl
dpkg-dev        cmd:dpkg-shlibdeps
scdoc           cmd:scdoc
util-linux      cmd:setarch
mount           cmd:mount
procps          cmd:ps
'
# Tools whose file systems and partition tables our programs must leave alone. foreign_test.sh
# reports each tool that is missing.
FOREIGN_PACKAGES='
e2fsprogs       cmd:mkfs.ext4
xfsprogs        cmd:mkfs.xfs
btrfs-progs     cmd:mkfs.btrfs
dosfstools      cmd:mkfs.vfat
exfatprogs      cmd:mkfs.exfat
f2fs-tools      cmd:mkfs.f2fs
nilfs-tools     cmd:mkfs.nilfs2
jfsutils        cmd:mkfs.jfs
reiserfsprogs   cmd:mkfs.reiserfs
udftools        cmd:mkudffs
ntfs-3g         cmd:mkfs.ntfs
cryptsetup-bin  cmd:cryptsetup
lvm2            cmd:pvcreate
bcache-tools    cmd:make-bcache
genisoimage     cmd:genisoimage
xorriso         cmd:xorriso
squashfs-tools  cmd:mksquashfs
erofs-utils     cmd:mkfs.erofs
fdisk           cmd:fdisk
gdisk           cmd:sgdisk
parted          cmd:parted
'
LINT_PACKAGES="
clang-$GPUNVME_CLANG             cmd:clang-$GPUNVME_CLANG
clang-tidy-$GPUNVME_CLANG        cmd:clang-tidy-$GPUNVME_CLANG
clang-format-$GPUNVME_CLANG      cmd:clang-format-$GPUNVME_CLANG
llvm-$GPUNVME_CLANG              cmd:llvm-symbolizer-$GPUNVME_CLANG
libclang-rt-$GPUNVME_CLANG-dev   dpkg:
cppcheck             cmd:cppcheck
shellcheck           cmd:shellcheck
zsh                  cmd:zsh
"
GUEST_PACKAGES='
qemu-system-x86 cmd:qemu-system-x86_64
qemu-utils      cmd:qemu-img
busybox-static  dpkg:
cpio            cmd:cpio
kmod            dpkg:
xz-utils        cmd:xz
zstd            cmd:zstd
python3-pytest  cmd:pytest-3
python3-pytest-xdist dpkg:
'
JUDGE_PACKAGES='
mmdebstrap      cmd:mmdebstrap
'
PACKAGE_PACKAGES='
debhelper       cmd:dh
dh-python       cmd:dh_python3
lintian         cmd:lintian
'
GUEST_KERNEL_PACKAGE=${GUEST_KERNEL_PACKAGE:-linux-image-amd64}

present() {
    local package=$1 what=${2#*:}
    case $2 in
    cmd:*) have "$what" && return 0 ;;
    pc:*) have pkg-config && pkg-config --exists "$what" && return 0 ;;
    inc:*) [ -e "/usr/include/$what" ] && return 0 ;;
    esac
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ]
}

# Prints the missing packages of the table on standard input, one per line.
missing_of() {
    local package probe
    while read -r package probe; do
        if [ -n "$package" ] && ! present "$package" "$probe"; then
            printf '%s\n' "$package"
        fi
    done
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif [ -t 2 ] && [ -z "${CI:-}" ]; then
        sudo "$@"
    else
        sudo -n "$@"
    fi
}

apt() {
    as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a \
        apt-get -y -q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 "$@"
}

# The package lists are fetched only if a package is not in them, or if a listed
# package no longer exists.
install_packages() {
    local package known=1
    for package in "$@"; do
        apt-cache show "$package" >/dev/null 2>&1 || known=0
    done
    if [ "$known" = 1 ] && apt install --no-install-recommends "$@"; then
        return 0
    fi
    local try
    for try in 1 2 3; do
        if apt update && apt install --no-install-recommends "$@"; then
            return 0
        fi
        warn "apt-get: attempt $try of 3 failed"
        sleep $((try * 5))
    done
    return 1
}

ensure_packages() {
    local missing
    mapfile -t missing < <(printf '%s\n' "$1" | missing_of)
    if [ "${#missing[@]}" = 0 ]; then
        return 0
    fi
    have apt-get || die "apt-get: not here; install these in this system's own way: ${missing[*]}"
    if [ "$(id -u)" != 0 ] && ! have sudo; then
        die "${missing[*]}: missing, and neither root nor sudo here; install them and run this again"
    fi
    say "installing ${missing[*]}"
    install_packages "${missing[@]}" ||
        die "${missing[*]}: cannot be installed (above); install them by hand and run this again"
}

# Returns 0 if a package can be installed, and is not only named by another one.
has_candidate() {
    apt-cache policy "$1" 2>/dev/null | grep -q '^ *Candidate: [^(]'
}

# Prints the lines of the table on standard input whose package this distribution has.
available_of() {
    local package probe
    while read -r package probe; do
        if [ -z "$package" ] || present "$package" "$probe" || has_candidate "$package"; then
            printf '%s %s\n' "$package" "$probe"
        else
            warn "$package: not in this distribution; foreign_test.sh does without"
        fi
    done
}

# Prints the package that an empty package (linux-image-amd64) depends on.
kernel_package() {
    apt-cache depends --no-recommends --no-suggests "$GUEST_KERNEL_PACKAGE" 2>/dev/null |
        awk '/^ *Depends: linux-image-/ { print $2; exit }'
}

# Downloads and unpacks the kernel for guest tests. An existing one is kept.
fetch_guest_kernel() {
    local dir=${GPUNVME_BUILD:-$GPUNVME_ROOT/build}/guest-kernel tmp package try
    dir=${GPUNVME_GUEST_KERNEL:-$dir}
    if [ -d "$dir/lib/modules" ]; then
        return 0
    fi
    mkdir -p "$(dirname "$dir")"
    tmp=$(mktemp -d "$dir.XXXXXX")
    for try in 1 2 3; do
        package=$(kernel_package || true)
        if [ -n "$package" ] &&
            (cd "$tmp" && apt-get -q -o APT::Sandbox::User=root download "$package"); then
            break
        fi
        if [ "$try" = 3 ]; then
            rm -rf "$tmp"
            die "$GUEST_KERNEL_PACKAGE: cannot be downloaded; unpack a Debian kernel package with" \
                "'dpkg -x' and name the folder in GPUNVME_GUEST_KERNEL"
        fi
        apt update || sleep 5
    done
    say "unpacking $package for guest tests"
    dpkg -x "$tmp"/*.deb "$tmp/root"
    # The tests look in lib/, whether /usr is merged or not.
    [ -d "$tmp/root/lib/modules" ] || mv "$tmp/root/usr/lib" "$tmp/root/lib"
    rm -rf "$tmp"/*.deb "$tmp"/root/usr
    mv "$tmp/root" "$dir"
    rmdir "$tmp"
}

# Checks whether this user can mount a FUSE file system. As root it tries a real
# mount, which no daemon serves, and which ends when its descriptor is closed.
mount_works() {
    local dir rc=0
    [ -c /dev/fuse ] || { as_root modprobe fuse >/dev/null 2>&1 || true; }
    [ -c /dev/fuse ] || {
        warn "/dev/fuse: not here; run 'modprobe fuse' as root (a container needs" \
            "--device /dev/fuse --cap-add SYS_ADMIN)"
        return 1
    }
    if ! (exec 3<>/dev/fuse) 2>/dev/null; then
        warn "/dev/fuse: cannot be opened; give this user access to it (a container needs" \
            "--device /dev/fuse)"
        return 1
    fi
    if [ "$(id -u)" != 0 ]; then
        [ -u "$(command -v fusermount3)" ] && return 0
        warn "fusermount3: not setuid root, so only root can mount; reinstall the package fuse3"
        return 1
    fi
    dir=$(mktemp -d)
    if mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 gpunvme-probe "$dir" \
        3<>/dev/fuse 2>/dev/null; then
        umount -l "$dir" 2>/dev/null || true
    else
        warn "mount: FUSE file systems cannot be mounted here (a container needs" \
            "--cap-add SYS_ADMIN --security-opt apparmor=unconfined)"
        rc=1
    fi
    rmdir "$dir"
    return "$rc"
}

tests=0 lint=0 guest=0 judge=0 package=0 roots=0 need_mount=0
for arg in "$@"; do
    case $arg in
    --tests) tests=1 ;;
    --lint) lint=1 ;;
    --guest) guest=1 ;;
    --judge) judge=1 ;;
    --package) package=1 ;;
    --roots) roots=1 ;;
    --need-mount) need_mount=1 ;;
    *) other_argument "$arg" ;;
    esac
done

ensure_packages "$BASE_PACKAGES"
if [ "$tests" = 1 ]; then
    ensure_packages "$(printf '%s\n' "$FOREIGN_PACKAGES" | available_of)"
fi
if [ "$lint" = 1 ]; then
    ensure_packages "$LINT_PACKAGES"
fi
if [ "$guest" = 1 ] || [ "$judge" = 1 ]; then
    ensure_packages "$GUEST_PACKAGES"
fi
if [ "$judge" = 1 ] || [ "$roots" = 1 ]; then
    ensure_packages "$JUDGE_PACKAGES"
fi
if [ "$package" = 1 ]; then
    ensure_packages "$PACKAGE_PACKAGES"
fi
if [ "$guest" = 1 ]; then
    fetch_guest_kernel
fi
if ! mount_works; then
    [ "$need_mount" = 0 ] || exit 1
    warn "tests that mount will be skipped"
fi
say "set-up: everything needed is here"
