#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Runs as root in a root that is thrown away. Installs and tests the packages of
# FOLDER, replaces them by those of FOLDER/next while a file system is mounted,
# and purges them.
#
# usage: packages.sh FOLDER
set -euo pipefail
cd "$1"
log=$(mktemp)
image=/tmp/image mnt=/tmp/mnt

failed() {
    cat "$log"
    printf 'packages.sh: %s\n' "$*" >&2
    exit 1
}

# Dependencies are those of the system, which may have them from other sources.
packages() {
    env DEBIAN_FRONTEND=noninteractive dpkg --force-depends "$@" >>"$log" 2>&1 ||
        failed "dpkg $*: fails"
}

# contents: prints the files of the folders that packages install to.
contents() {
    find /etc /usr ! -path /etc/ld.so.cache ! -name '*.pyc' | sort
}

contents >"$log.before"
packages -i ./*.deb
bash ./mount >>"$log" 2>&1 || failed "debian/tests/mount: fails"
# shellcheck disable=SC2016 # the program that is run expands it
gpunvme-run sh -c 'test -e "${LD_PRELOAD%%:*}"' || failed "gpunvme-run: no library"
if command -v gpunvme-nixl-env >/dev/null; then
    # shellcheck disable=SC2016 # the program that is run expands it
    XDG_CACHE_HOME=/tmp gpunvme-nixl-env python3 -c 'import ctypes, os
for name in "GPUNVME", "GDS", "GDS_MT":
    ctypes.CDLL(os.path.join(os.environ["NIXL_PLUGIN_DIR"], f"libplugin_{name}.so"))' ||
        failed "gpunvme-nixl-env: no plug-in"
fi
systemctl --root=/ is-enabled 'gpunvmefs@weights' >>"$log" 2>&1 && failed "a unit is enabled"

truncate -s 256M "$image"
mkfs.gpunvme -q "$image"
mkdir "$mnt"
gpunvmefs "$image" "$mnt" 2>>"$log" || failed "gpunvmefs: does not mount"
date >"$mnt/before"
exec 3>>"$mnt/open"
packages -i next/*.deb
date >&3 || failed "an open file cannot be written after the upgrade"
gpunvme read "$mnt/before" "$mnt/open" >>"$log" || failed "the mount does not serve after the upgrade"
exec 3>&-
umount "$mnt" || failed "the mount does not end after the upgrade"
fsck.gpunvme -n "$image" >>"$log" || failed "fsck.gpunvme: the file system is not clean"
gpunvmefs "$image" "$mnt" 2>>"$log" || failed "gpunvmefs: does not mount after the upgrade"
[ -s "$mnt/open" ] || failed "what was written during the upgrade is missing"

mapfile -t names < <(for file in *.deb; do dpkg-deb -f "$file" Package; done)
packages --purge "${names[@]}"
[ -s "$mnt/before" ] || failed "the mount does not serve after the purge"
umount "$mnt"
left=$(contents | comm -13 "$log.before" -)
[ -z "$left" ] || failed "left behind: $left"
