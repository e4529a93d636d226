#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# The magic line for file(1) and the probe for libblkid recognise what mkfs makes, and name it.
#
# usage: signature_test.sh MAGIC PROBE_IMAGE MKFS
set -euo pipefail

magic=$1 probe=$2 mkfs=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

expect() {
    if [[ $2 != *"$1"* ]]; then
        echo "'$1' is not in: $2"
        failed=1
    fi
}

uuid=0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0
"$mkfs" -q -s 64M -L 'my models' -U $uuid "$work/image"
"$mkfs" -q -s 64M "$work/plain"
found=$("$probe" "$work/image")
for line in 'LABEL=my models' "UUID=$uuid" UUID_SUB= VERSION=3. BLOCK_SIZE=4096 TYPE=gpunvme; do
    expect "$line" "$found"
done
[[ $("$probe" "$work/plain") != *LABEL=* ]] || failed=1

# Of a label only the checksum tells that it was changed.
cp "$work/image" "$work/damaged"
printf N | dd of="$work/damaged" bs=1 seek=184 conv=notrunc status=none
! "$probe" "$work/damaged" || failed=1
head -c 1M "$work/image" >"$work/short"
! "$probe" "$work/short" || failed=1

if ! command -v file >/dev/null; then
    echo "file: not here, the magic line is not tested"
    exit "$failed"
fi
found=$(file -b -m "$magic" "$work/image")
for part in 'gpunvmefs filesystem data, version 3.' ' 16384 blocks of 4096 bytes' "UUID=$uuid" \
    'volume name "my models"'; do
    expect "$part" "$found"
done
[[ $(file -b -m "$magic" "$work/plain") != *"volume name"* ]] || failed=1
[ -z "$(cd "$work" && file -C -m "$magic" 2>&1)" ] || failed=1
# The head of another block is none of a file system.
printf '\1' | dd of="$work/damaged" bs=1 seek=8 conv=notrunc status=none
[ "$(file -b -m "$magic" "$work/damaged")" = data ] || failed=1
exit "$failed"
