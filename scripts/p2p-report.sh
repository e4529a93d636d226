#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Tries DMA of a drive to GPU memory (tier 2) on a machine that has both, and
# collects the data for a report about it. docs/hardware.md describes its use.
set -euo pipefail

usage() {
    cat <<'USAGE'
Usage: bash scripts/p2p-report.sh DEVICE [BYTES [OPTIONS]]
DEVICE holds a gpunvmefs file system and is bound: vfio:0000:c1:00.0. A file of BYTES (1 GiB) is
written to it, read into GPU memory, compared in three ways and removed. The programs are those in
PATH. OPTIONS (gpu=require) are those of the mount, which also gets p2p=require. Run it as root.
The report goes to p2p-report.txt in the current folder; send that file.
USAGE
}

case ${1:--h} in
-h | --help)
    usage
    exit 0
    ;;
esac
device=$1 bytes=${2:-$((1 << 30))} options=${3:-gpu=require} report=$PWD/p2p-report.txt
folder=$(mktemp -d) file=$folder/p2p-report.data

# shellcheck disable=SC2317 # called by the trap
clean_up() {
    rm -f "$file"
    ! mountpoint -q "$folder" || umount "$folder"
    rmdir "$folder"
}
trap clean_up EXIT

# Runs a command. Its output and status go to the report, and its last lines to
# the terminal.
try() {
    local rc=0
    printf '\n$ %s\n' "$*"
    "$@" 2>&1 || rc=$?
    echo "status $rc"
    return $rc
}

collect() {
    try date -u || true
    try uname -srvm || true
    try cat /proc/cmdline || true
    try cat /proc/driver/nvidia/version || true
    try nvidia-smi topo -m || true
    try gpunvmefs -V || true
    try gpunvme check || true
    try gpunvme check "$device" || true
    try gpunvmefs "$device" "$folder" -o "$options,p2p=require" || return 1
    try gpunvme info "$folder" || true
    try dd if=/dev/urandom of="$file" bs=1M count="$bytes" iflag=count_bytes conv=fsync \
        status=none || return 1
    try gpunvme verify "$file" || return 1
    try gpunvme stats "$folder" || true
}

rc=0
collect >"$report" || rc=$?
log() {
    dmesg 2>/dev/null | grep -iE 'dmar|iommu|vfio|nvidia|nvrm|nvme' | tail -n 100
}
log >>"$report" || true
tail -n 3 "$report"
echo "the report is in $report"
exit $rc
