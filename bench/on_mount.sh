#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Runs a program over a fresh mount in memory: on_mount.sh SIZE OPTIONS PROGRAM [ARGUMENT...]
# SIZE is the image's (8G); OPTIONS are mount options ("-": none). The mount point is given to the
# program as its last argument, the daemon's process in the environment variable BENCH_DAEMON. The
# programs of this project are taken from PATH. MKFS_FEATURES: of mkfs (data_csum). SIM: arguments
# of gpunvme-sim(1), such as faults; it then serves the image to the daemon.
set -euo pipefail

[ $# -ge 3 ] || {
    sed -n '3,8s/^# //p' "$0" >&2
    exit 2
}
size=$1 options=$2
shift 2

dir=$(mktemp -d -p /dev/shm gpunvme-bench-XXXXXX)
daemon='' server='' device=$dir/image
# shellcheck disable=SC2317 # called by trap
clean_up() {
    umount "$dir/mnt" 2>/dev/null || true
    if [ -n "$daemon" ]; then
        for _ in $(seq 300); do
            kill -0 "$daemon" 2>/dev/null || break
            sleep 0.1
        done
        kill -9 "$daemon" 2>/dev/null || true
    fi
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$dir"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

mkdir "$dir/mnt"
mkfs.gpunvme -q ${MKFS_FEATURES:+-O "$MKFS_FEATURES"} -s "$size" "$dir/image"
if [ -n "${SIM:-}" ]; then
    # shellcheck disable=SC2086 # several arguments
    gpunvme-sim $SIM --image="$dir/image" "$dir/sock" &
    server=$! device=vfio-user:$dir/sock
    for _ in $(seq 300); do
        [ ! -S "$dir/sock" ] || break
        sleep 0.1
    done
fi
args=(-f)
[ "$options" = - ] || args+=(-o "$options")
gpunvmefs "$device" "$dir/mnt" "${args[@]}" &
daemon=$!
export BENCH_DAEMON=$daemon
for _ in $(seq 300); do
    if mountpoint -q "$dir/mnt"; then
        "$@" "$dir/mnt"
        exit
    fi
    kill -0 "$daemon" 2>/dev/null || break
    sleep 0.1
done
echo "on_mount.sh: $dir/mnt: the daemon did not mount it" >&2
exit 1
