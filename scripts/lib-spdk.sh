# SPDX-License-Identifier: BSD-2-Clause
# shellcheck shell=bash
# Provides the target, the mount and the clean-up of spdk-test.sh, which sources
# this file and sets RUN, TARGET and BUILD.

DIR=""        # for the sockets, the mount point and all files; on tmpfs
TARGET_PID="" # process of SPDK's nvmf_tgt
DAEMON=""     # process of the last start_mount()

prepare() {
    DIR=$(mktemp -d /dev/shm/gpunvme-spdk-XXXXXX)
    trap clean_up EXIT
    trap 'exit 1' INT TERM
    chmod 755 "$DIR" # tests run as other users
    mkdir "$DIR/tmp" "$DIR/mnt"
    head -c 16M /dev/urandom >"$DIR/data"
}

# The target's trace file is not in its directory, and a killed target leaves
# it.
forget_target() {
    wait "$TARGET_PID" 2>/dev/null || true
    rm -f "/dev/shm/nvmf_trace.pid$TARGET_PID"
    TARGET_PID=""
}

kill_target() {
    kill -KILL "$TARGET_PID" 2>/dev/null || true
    forget_target
}

# Stops the target. A stopped process does not handle SIGTERM, and one with lost
# commands may ignore it.
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

# Ends mounts and processes, including those of killed suites. Their names
# contain DIR, which no other run has.
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

# end_step RESULT: removes everything that a step has left, and starts a new
# target after a failure.
end_step() {
    drop_mounts
    rm -rf "${DIR:?}"/tmp/*
    if [ "$1" != ok ]; then
        stop_target
        start_target "${TARGET[@]}"
    fi
}

# start_target ARGUMENT...: starts the target and returns when the sockets
# exist.
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

# rpc ARGUMENT...: sends a command to the target.
rpc() {
    local py
    py=$(dirname "$RUN")/py
    PYTHONPATH=$py timeout 10 python3 -B "$py/rpc.py" -s "$DIR/rpc.sock" "$@"
}

format() {
    "$BUILD/mkfs/mkfs.gpunvme" -q -f "$@"
}

# start_mount DEVICE OPTIONS: starts the daemon at DIR/mnt. statfs(2) sends a
# request to the daemon, while the kernel may answer stat(2) from its cache even
# if the daemon was killed.
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

# Unmounts and returns the status of the daemon, which is 0 if all data is on
# the drive.
end_mount() {
    umount "$DIR/mnt" || return 1
    wait "$DAEMON"
}

# end_and_check DEVICE: unmounts and checks that the file system is consistent.
end_and_check() {
    local status=0
    end_mount || status=1
    "$BUILD/mkfs/fsck.gpunvme" -n "$1" || status=1
    return "$status"
}

# Writes 16 MiB through the page cache and makes them durable with fsync(2) of
# the file and the root directory.
put_data() {
    cp "$DIR/data" "$DIR/mnt/data" && sync "$DIR/mnt/data" "$DIR/mnt"
}

# Writes the file again without the page cache.
overwrite() {
    timeout 60 dd if="$DIR/data" of="$DIR/mnt/data" bs=1M oflag=direct conv=fsync
}

# Reads the file of a mount without the page cache and compares it with the
# data.
reads_back() {
    rm -f "$DIR/copy"
    timeout 60 dd if="$DIR/mnt/data" of="$DIR/copy" bs=1M iflag=direct &&
        cmp "$DIR/data" "$DIR/copy"
}

# Reads with the executor, the bounce pipeline, and with and without the page
# cache.
every_path() {
    timeout 120 "$BUILD/client/gpunvme" verify -b 8M "$DIR/mnt/data" && reads_back
}
