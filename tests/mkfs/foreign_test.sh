#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# A former image of gpunvmefs that was given another use since stays unchanged: each of our programs
# refuses the image and names its present contents.
#
# usage: foreign_test.sh MKFS FSCK TUNE DUMP [DAEMON]
# shellcheck disable=SC2317 # functions are called by name, through row
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

mkfs=$1 fsck=$2 tune=$3 dump=$4 daemon=${5:-}
work=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo /tmp)")
loop=
clean_up() {
    umount "$work/mount" "$work/other" 2>/dev/null || true
    [ -z "$loop" ] || losetup -d "$loop" || true
    rm -rf "$work"
}
trap clean_up EXIT
mkdir "$work/images" "$work/mount"
label=former-$$
image=$work/images/image
failed=0

fail() {
    echo "FAILED: $*"
    failed=1
}

# refuses TEXT STATUS PROGRAM...: one line with the text, the status, and the image unchanged.
refuses() {
    local text=$1 status=$2 rc=0 lines
    shift 2
    "$@" >"$work/out" 2>&1 </dev/null || rc=$?
    lines=$(wc -l <"$work/out")
    if [ "$rc" != "$status" ] || [ "$lines" != 1 ] || ! grep -q -e "$text" "$work/out"; then
        fail "$row: ${*##*/}: status $rc, wanted $status and '$text': $(cat "$work/out")"
    fi
}

# all_refuse TEXT [UNNAMED]: every program that uses a file system. UNNAMED: block 0 has lost the
# label, so that LABEL= does not find the image.
all_refuse() {
    cp --sparse=always "$image" "$work/before"
    for mode in -n -p -y; do
        refuses "$1" 8 "$fsck" "$mode" "$image"
    done
    refuses "$1" 1 "$tune" -L new "$image"
    refuses "$1" 1 "$tune" --size=max "$image"
    refuses "$1" 1 "$dump" "$image"
    if [ -n "$daemon" ]; then
        refuses "$1" 32 "$daemon" "$image" "$work/mount"
        refuses "$1" 32 "$daemon" -o ro "$image" "$work/mount"
        refuses "${2:-$1}" 1 env GPUNVMEFS_IMAGES="$work/images" \
            "$daemon" "LABEL=$label" "$work/mount"
    fi
    cmp "$image" "$work/before" || fail "$row: the image has changed"
    umount "$work/mount" "$work/other" 2>/dev/null || true
}

# row NAME TOOL COMMAND...: a tool's work on $image, found again as NAME.
row() {
    local name=$1 tool=$2
    row="$2, $1"
    shift 2
    if ! command -v "$tool" >/dev/null; then
        echo "$tool: not here (scripts/setup.sh installs it), its format is not tested"
        return 0
    fi
    cp --sparse=always "$work/former" "$image"
    if ! "$@" >"$work/out" 2>&1; then
        fail "$row: the tool itself: $(tail -n 3 "$work/out")"
    elif cmp -s "$image" "$work/former"; then
        fail "$row: the tool has changed nothing"
    else
        case $(dd if="$image" bs=1 skip=184 count=${#label} status=none | tr -d '\0') in
        "$label") all_refuse "holds .*${name}[:)]" ;;
        *) all_refuse "holds .*${name}[:)]" 'found on no' ;;
        esac
    fi
}

put() {
    printf "%b" "$2" | dd of="$image" bs=1 seek="$1" conv=notrunc status=none
}

# overlay FILE: the file's bytes at the start of the image.
overlay() {
    dd if="$1" of="$image" bs=64K conv=notrunc status=none
}

# md_at OFFSET: the fields of an md superblock of version 1 by which libblkid knows it.
md_at() {
    put "$1" '\xfc\x4e\x2b\xa9\x01\x00\x00\x00'
    put $(($1 + 144)) "$(printf '\\x%02x\\x%02x\\x%02x\\x%02x\\0\\0\\0\\0' \
        $(($1 >> 9 & 255)) $(($1 >> 17 & 255)) $(($1 >> 25 & 255)) $(($1 >> 33)))"
}

zfs_label() {
    local i
    dd if=/dev/zero of="$image" bs=8K count=1 conv=notrunc status=none
    for i in 0 1 2 3 4 5 6 7; do
        put $((131072 + 1024 * i)) '\x0c\xb1\xba\x00\x00\x00\x00\x00'
    done
}

physical_volume() {
    local config='devices { use_devicesfile = 0 } activation { udev_sync = 0 udev_rules = 0 }'
    loop=$(losetup -f --show "$image")
    pvcreate -qq -ff -y --config "$config" --devices "$loop" "$loop"
    losetup -d "$loop"
    loop=
}

iso() {
    rm -f "$work/iso"
    "$@" -quiet -o "$work/iso" "$work/former-name"
    overlay "$work/iso"
}

packed() {
    rm -f "$work/packed"
    "$@"
    overlay "$work/packed"
}

echo name >"$work/former-name"
# mkfs.xfs makes nothing smaller than 300 MiB.
"$mkfs" -q -s 320M -L "$label" "$work/former"
row xfs mkfs.xfs mkfs.xfs -qf "$image"
rm "$work/former"
"$mkfs" -q -s 132M -L "$label" "$work/former"
row ext4 mkfs.ext4 mkfs.ext4 -qF "$image"
row btrfs mkfs.btrfs mkfs.btrfs -qf "$image"
row vfat mkfs.vfat mkfs.vfat "$image"
row exfat mkfs.exfat mkfs.exfat "$image"
row f2fs mkfs.f2fs mkfs.f2fs -qf "$image"
row nilfs2 mkfs.nilfs2 mkfs.nilfs2 -qf "$image"
row jfs mkfs.jfs mkfs.jfs -q "$image"
row reiserfs mkfs.reiserfs mkfs.reiserfs -q -ff "$image"
row udf mkudffs mkudffs "$image"
row ntfs mkfs.ntfs mkfs.ntfs -FqQ "$image"
row minix mkfs.minix mkfs.minix "$image"
row swap mkswap mkswap "$image"
row crypto_LUKS cryptsetup cryptsetup -q luksFormat --pbkdf pbkdf2 \
    --pbkdf-force-iterations 1000 "$image" "$work/former-name"
row bcache make-bcache make-bcache -B "$image"
row iso9660 genisoimage iso genisoimage
row iso9660 xorriso iso xorriso -as mkisofs
row squashfs mksquashfs packed mksquashfs "$work/former-name" "$work/packed" -quiet
row erofs mkfs.erofs packed mkfs.erofs "$work/packed" "$work/mount"
row gpt sfdisk sfdisk -q -X gpt "$image" <<<',,L'
row dos sfdisk sfdisk -q -X dos "$image" <<<',,L'
row gpt sgdisk sgdisk -o -n 1:2048:0 "$image"
row gpt parted parted -s "$image" mklabel gpt mkpart p ext4 1MiB 100%
row dos parted parted -s "$image" mklabel msdos mkpart primary ext4 1MiB 100%
row gpt fdisk fdisk "$image" <<<$'g\nn\n\n\n\nw'
row dos fdisk fdisk "$image" <<<$'o\nn\n\n\n\n\nw'
if [ "$(id -u)" = 0 ] && losetup -f >/dev/null 2>&1; then
    row LVM2_member pvcreate physical_volume
else
    echo "pvcreate: needs root and a loop device, LVM is not tested"
fi
# mdadm needs the kernel's md, and Debian has no tools for ZFS: the bytes that libblkid looks for.
row linux_raid_member dd md_at 4096
row zfs_member dd zfs_label

# A table that was cleared leaves its partition.
partition_alone() {
    dd if=/dev/zero of="$image" bs=64K count=1 conv=notrunc status=none
    mkfs.ext4 -qF -E offset=1048576 "$image" 64M
}
row ext4 mkfs.ext4 partition_alone

# Past the end of the file system a signature counts, in data it may be a user's.
row='md 1.0'
bytes=$((132 << 20))
cp --sparse=always "$work/former" "$image"
md_at $((bytes - 8192))
"$fsck" -n "$image" || fail "a signature in a free block is taken for more"
cp --sparse=always "$work/former" "$image"
truncate -s $((bytes + (1 << 20))) "$image"
md_at $((bytes + (1 << 20) - 8192))
all_refuse 'holds .*linux_raid_member'

# Nothing of anybody: only on request.
row='zeroed'
cp --sparse=always "$work/former" "$image"
dd if=/dev/zero of="$image" bs=4K count=1 conv=notrunc status=none
all_refuse '--reclaim' 'found on no'
"$fsck" -y --reclaim "$image" >"$work/out" && fail "--reclaim has found nothing to do"
"$fsck" -n "$image" >"$work/out" || fail "after --reclaim: $(cat "$work/out")"

# way_out NAME [STATUS]: the way out that the message names. STATUS: of the repair.
way_out() {
    local rc=0
    row="way out, $1"
    refuses 'holds ' 8 "$fsck" -y --reclaim "$image"
    wipefs -qaf "$image"
    "$fsck" -y --reclaim "$image" >"$work/out" 2>&1 || rc=$?
    [ "$rc" = "${2:-1}" ] || fail "$row: status $rc: $(cat "$work/out")"
    "$fsck" -n "$image" >"$work/out" || fail "$row: $(cat "$work/out")"
}
cp --sparse=always "$work/former" "$image"
md_at 4096
way_out md 0 # block 1 is for multi-mount protection alone
if command -v sfdisk >/dev/null; then
    cp --sparse=always "$work/former" "$image"
    sfdisk -q -X gpt "$image" <<<',,L'
    way_out gpt
fi

# A loop device over the image.
row='loop'
if [ "$(id -u)" != 0 ] || ! loop=$(losetup -f --show "$image" 2>/dev/null); then
    echo "losetup: needs root and a loop device, images in use through one are not tested"
else
    "$fsck" -n "$image" >"$work/out" 2>&1 || fail "an idle loop device: $(cat "$work/out")"
    mkfs.ext4 -qF "$loop"
    if mount -o ro,noload "$loop" "$work/mount"; then
        mkdir "$work/other"
        cp --sparse=always "$image" "$work/before"
        refuses 'in use' 1 "$mkfs" -q -f "$image"
        refuses 'in use' 8 "$fsck" -y "$image"
        refuses 'in use' 1 "$tune" -L new "$image"
        [ -z "$daemon" ] || refuses 'in use' 32 "$daemon" "$image" "$work/other"
        cmp "$image" "$work/before" || fail "loop: the image has changed"
        umount "$work/mount"
    else
        echo "mount: no ext4 here, images in use through a loop device are not tested"
    fi
fi
exit "$failed"
