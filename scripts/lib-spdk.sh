# SPDX-License-Identifier: BSD-2-Clause
# shellcheck shell=bash
# The target, the mount and the clean-up of spdk-test.sh: sourced, never run. It sets RUN, TARGET
# and BUILD.

DIR=""        # of the sockets, the mount point and all files; on tmpfs
TARGET_PID="" # of SPDK's nvmf_tgt
DAEMON=""     # of the last start_mount()

prepare() {
    DIR=$(mktemp -d /dev/shm/gpunvme-spdk-XXXXXX)
    trap clean_up EXIT
    trap 'exit 1' INT TERM
    chmod 755 "$DIR" # tests act as other users
    mkdir "$DIR/tmp" "$DIR/mnt"
    head -c 16M /dev/urandom >"$DIR/data"
}

# The target's trace lies beside its directory, and a target that is killed leaves it.
forget_target() {
    wait "$TARGET_PID" 2>/dev/null || true
    rm -f "/dev/shm/nvmf_trace.pid$TARGET_PID"
    TARGET_PID=""
}

kill_target() {
    kill -KILL "$TARGET_PID" 2>/dev/null || true
    forget_target
}

# A target that is stopped gets no SIGTERM; one with lost commands may heed none.
stop_target() {
    [ -n "$TARGET_PID" ] || return 0
    kill -CONT "$TARGET_PID" 2>/dev/null || true
    kill -TERM "$TARGET_PID" 2>/dev/null || true
    for _ in $(seq 50); do
        kill -0 "$TARGET_PID" 2>/dev/null || break
        sleep 0.1
    done
    kill_target
}

# Mounts and processes whose names have DIR, which no other run has: of suites that were ended, too.
drop_mounts() {
    local point pid
    while read -r _ point _; do
        umount -l "$point" || true
    done < <(grep -F "$DIR/" /proc/self/mounts || true)
    for pid in $(pgrep -f -- "$DIR/" || true); do
        [ "$pid" != "$TARGET_PID" ] || continue
        kill -KILL "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
}

clean_up() {
    drop_mounts
    stop_target
    rm -rf "$DIR"
}

# end_step RESULT: nothing of a step is left for the next one, which gets a new target after a
# failure.
end_step() {
    drop_mounts
    rm -rf "${DIR:?}"/tmp/*
    if [ "$1" != ok ]; then
        stop_target
        start_target "${TARGET[@]}"
    fi
}

# start_target ARGUMENT...: returns when the sockets are there.
start_target() {
    rm -f "$DIR"/*/cntrl
    "$RUN" "$DIR" "$@" >"$DIR/log" 2>&1 &
    TARGET_PID=$!
    for _ in $(seq 300); do
        [ -S "$DIR/b/cntrl" ] && [ -S "$DIR/f/cntrl" ] && return 0
        kill -0 "$TARGET_PID" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$DIR/log" >&2
    die "$RUN: the target did not start"
}

# rpc ARGUMENT...: an order to the target.
rpc() {
    local py
    py=$(dirname "$RUN")/py
    PYTHONPATH=$py timeout 10 python3 -B "$py/rpc.py" -s "$DIR/rpc.sock" "$@"
}

format() {
    "$BUILD/mkfs/mkfs.gpunvme" -q -f "$@"
}

# start_mount DEVICE OPTIONS: the daemon at DIR/mnt. statfs(2) asks the daemon, where stat(2) of the
# mount of one that was killed may be answered by the kernel's cache.
start_mount() {
    "$BUILD/fusefs/daemon/gpunvmefs" "$1" "$DIR/mnt" -f -o "$2" &
    DAEMON=$!
    for _ in $(seq 100); do
        mountpoint -q "$DIR/mnt" && stat -f "$DIR/mnt" >/dev/null && return 0
        kill -0 "$DAEMON" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}

# Status of the daemon, 0 when all that was written is on the drive.
end_mount() {
    umount "$DIR/mnt" || return 1
    wait "$DAEMON"
}

# end_and_check DEVICE: and its file system is sound.
end_and_check() {
    local status=0
    end_mount || status=1
    "$BUILD/mkfs/fsck.gpunvme" -n "$1" || status=1
    return "$status"
}

# 16 MiB by the page cache, durable: fsync(2) of the file and the root directory.
put_data() {
    cp "$DIR/data" "$DIR/mnt/data" && sync "$DIR/mnt/data" "$DIR/mnt"
}

# The same, without.
overwrite() {
    timeout 60 dd if="$DIR/data" of="$DIR/mnt/data" bs=1M oflag=direct conv=fsync
}

# The file of a mount by reads without the page cache: is it the data?
reads_back() {
    rm -f "$DIR/copy"
    timeout 60 dd if="$DIR/mnt/data" of="$DIR/copy" bs=1M iflag=direct &&
        cmp "$DIR/data" "$DIR/copy"
}

# By the executor, the bounce pipeline, the page cache and without it.
every_path() {
    timeout 120 "$BUILD/client/gpunvme" verify -b 8M "$DIR/mnt/data" && reads_back
}
