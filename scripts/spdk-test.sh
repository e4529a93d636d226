#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Runs the file system on SPDK's NVMe controller over vfio-user: one that is not of this tree.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'USAGE'
Usage: bash scripts/spdk-test.sh [PATH-TO-RUN.SH]
PATH-TO-RUN.SH starts SPDK's nvmf_tgt in the foreground: run.sh DIR MEMORY_MB NS1_MB [NS2_4K_MB
[B_4K_MB [FAULT_MB]]] makes the sockets DIR/a/cntrl (namespaces with LBAs of 512 and 4096 bytes),
DIR/b/cntrl (LBAs of 4096 bytes), DIR/f/cntrl (behind bdev_error). py/rpc.py beside it makes the
faults. Without it the tests are skipped.
BUILD_DIR (build/test) holds the programs and tests. CPUMASK (0x1): processors of the target, each
of which it keeps busy. With a GPU the benchmarks print what the GPU's queues reach on this
controller, beside the link's limits and a bare loop (bench/RESULTS.md); 0xf gave its figures.
SPDK_STEPS (all): tests or figures alone.
USAGE
}

TARGET_PID=""
TARGET=(1620 400 128 400 128) # memory, namespaces of a, of b, of f: MiB
BUILD=${BUILD_DIR:-$GPUNVME_ROOT/build/test}
DAEMON=""
DIR=""
FAILED=0

stop_target() {
    [ -n "$TARGET_PID" ] || return 0
    kill -TERM "$TARGET_PID" 2>/dev/null || true
    for _ in $(seq 50); do
        kill -0 "$TARGET_PID" 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL "$TARGET_PID" 2>/dev/null || true
    wait "$TARGET_PID" 2>/dev/null || true
    TARGET_PID=""
}

clean_up() {
    if mountpoint -q "$DIR/mnt"; then umount -l "$DIR/mnt"; fi
    stop_target
    rm -rf "$DIR"
}

# start_target RUN ARGUMENT...: returns when the sockets are there.
start_target() {
    local run=$1
    shift
    rm -f "$DIR"/*/cntrl
    "$run" "$DIR" "$@" >"$DIR/log" 2>&1 &
    TARGET_PID=$!
    for _ in $(seq 300); do
        [ -S "$DIR/b/cntrl" ] && [ -S "$DIR/f/cntrl" ] && return 0
        kill -0 "$TARGET_PID" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$DIR/log" >&2
    die "$run: the target did not start"
}

# step NAME COMMAND...: a line of the table, and the end of the output of what failed.
step() {
    local name=$1 start result=ok
    shift
    start=$(date +%s)
    "$@" >"$DIR/output" 2>&1 || result="FAILED ($?)"
    printf '%-52s %-12s %4d s\n' "$name" "$result" $(($(date +%s) - start))
    if [ "$result" != ok ]; then
        FAILED=1
        grep -vE '^\[( RUN|       OK)' "$DIR/output" | tail -n 40
    fi
}

# start_mount DEVICE OPTIONS: the daemon at DIR/mnt.
start_mount() {
    mkdir -p "$DIR/mnt"
    "$BUILD/fusefs/daemon/gpunvmefs" "$1" "$DIR/mnt" -f -o "$2" &
    DAEMON=$!
    for _ in $(seq 100); do
        mountpoint -q "$DIR/mnt" && return 0
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

format() {
    "$BUILD/mkfs/mkfs.gpunvme" -q -f "$@"
}

# rpc RPC ARGUMENT...: an order to the target.
rpc() {
    PYTHONPATH=$(dirname "$1") timeout 10 python3 "$1" -s "$DIR/rpc.sock" "${@:2}"
}

# The file of a mount by reads without the page cache: is it the data?
reads_back() {
    rm -f "$DIR/copy"
    timeout 60 dd if="$DIR/mnt/data" of="$DIR/copy" bs=1M iflag=direct && cmp "$DIR/data" "$DIR/copy"
}

# Commands that fail a few times or are slow cost time; those that fail always are errors until they
# do not. failing_commands RPC: reads and writes 16 MiB.
failing_commands() {
    local device=vfio-user:$DIR/f/cntrl status=0
    format "$device" || return 1
    start_mount "$device" executor=cpu,deadline=1000 || return 1
    cp "$DIR/data" "$DIR/mnt/data" && sync -f "$DIR/mnt/data" || status=1
    rpc "$1" bdev_error_inject_error EE_D0 read failure -n 2 && reads_back || status=1
    rpc "$1" bdev_error_inject_error EE_D0 read failure -n 1000000 || status=1
    if reads_back; then
        echo "a read succeeded on a drive that fails"
        status=1
    fi
    rpc "$1" bdev_error_inject_error EE_D0 clear failure && reads_back || status=1
    rpc "$1" bdev_error_inject_error EE_D0 write failure -n 2 || status=1
    timeout 60 dd if="$DIR/data" of="$DIR/mnt/data" bs=1M oflag=direct conv=fsync || status=1
    reads_back || status=1
    rpc "$1" bdev_delay_update_latency D0 avg_read 700000 || status=1
    timeout 60 dd if="$DIR/mnt/data" of="$DIR/copy" bs=64k count=1 iflag=direct || status=1
    rpc "$1" bdev_delay_update_latency D0 avg_read 0 || status=1
    cmp -n 65536 "$DIR/data" "$DIR/copy" && reads_back || status=1
    "$BUILD/client/gpunvme" info "$DIR/mnt" | grep -E '^(Errors|Timeouts): +[1-9]' || status=1
    end_mount || status=1
    "$BUILD/mkfs/fsck.gpunvme" -n "$device" || status=1
    return "$status"
}

# A command that is lost costs time only. lost_commands RPC: reads and writes 16 MiB.
lost_commands() {
    local device=vfio-user:$DIR/f/cntrl op status=0
    format "$device" || return 1
    start_mount "$device" executor=cpu,deadline=1000 || return 1
    cp "$DIR/data" "$DIR/mnt/data" && sync -f "$DIR/mnt/data" || status=1
    for op in read write read; do
        rpc "$1" bdev_error_inject_error EE_D0 "$op" pending -n 1 || status=1
        if [ "$op" = read ]; then
            timeout 60 dd if="$DIR/mnt/data" of="$DIR/copy" bs=1M iflag=direct || status=1
        else
            timeout 60 dd if="$DIR/data" of="$DIR/mnt/data" bs=1M oflag=direct conv=fsync ||
                status=1
        fi
    done
    cmp "$DIR/data" "$DIR/copy" || status=1
    end_mount || status=1
    "$BUILD/mkfs/fsck.gpunvme" -n "$device" || status=1
    return "$status"
}

# Reads by commands of every length, without a file system.
check_data() {
    "$BUILD/client/gpunvme" check --data "$1" | grep -F 'commands of every length return'
}

# A file is written, and read back by every path. file_of DEVICE OPTIONS.
file_of() {
    local status=0
    start_mount "$1" "executor=cpu,$2" || return 1
    cp "$DIR/data" "$DIR/mnt/data" && sync -f "$DIR/mnt/data" || status=1
    timeout 120 "$BUILD/client/gpunvme" verify -b 8M "$DIR/mnt/data" || status=1
    timeout 60 dd if="$DIR/mnt/data" of="$DIR/copy" bs=1M iflag=direct || status=1
    cmp "$DIR/data" "$DIR/copy" || status=1
    "$BUILD/client/gpunvme" info "$DIR/mnt" | grep -F 'DMA regions' || status=1
    end_mount || status=1
    return "$status"
}

# Namespaces of one controller, with LBAs of 512 and 4096 bytes, hold a file system each.
two_namespaces() {
    local device=vfio-user:$DIR/a/cntrl nsid
    for nsid in 1 2; do
        format -N "$nsid" "$device" || return 1
    done
    for nsid in 1 2; do
        file_of "$device" "nsid=$nsid" || return 1
    done
    for nsid in 1 2; do
        "$BUILD/mkfs/fsck.gpunvme" -n -N "$nsid" "$device" || return 1
    done
}

# write_on UNTIL: writes a file over and over until that fails, or SECONDS have come there.
write_on() {
    while timeout 60 dd if=/dev/zero of="$DIR/mnt/zeros" bs=1M count=90 oflag=direct conv=fsync; do
        [ "$SECONDS" -lt "$1" ] || return 0
    done
    return 1
}

# Its requests end in bounded time, and the next target is used at once. killed_target RUN.
killed_target() {
    local device=vfio-user:$DIR/b/cntrl writer status=0
    format "$device" && start_mount "$device" executor=cpu,deadline=1000 || return 1
    write_on $((SECONDS + 60)) &
    writer=$!
    sleep 0.1
    kill -KILL "$TARGET_PID"
    wait "$TARGET_PID" || true
    TARGET_PID=""
    if wait "$writer"; then
        echo "a write succeeded without a target"
        status=1
    fi
    umount "$DIR/mnt" || status=1
    if wait "$DAEMON"; then
        echo "the daemon ended with status 0"
        status=1
    fi
    start_target "$1" "${TARGET[@]}"
    format "$device" && file_of "$device" deadline=1000 || status=1
    return "$status"
}

# settings RUN EXTRA: the target with other settings of its transport.
settings() {
    local device=vfio-user:$DIR/b/cntrl
    stop_target
    EXTRA=$2 start_target "$1" "${TARGET[@]}"
    format "$device" && check_data "$device" && file_of "$device" deadline=10000
}

# What the GPU's queues reach: the tables of the benchmarks, whose bytes are verified.
figures() {
    local device=vfio-user:$DIR/a/cntrl bench status=0
    format "$device" && start_mount "$device" gpu=require,direct=all,queues=24 || return 1
    for bench in "readv_bench -s 256 -w 8 -r 15 -q 8 -d 65" "ioctl_bench -s 512 -w 14 -r 15" \
        "write_bench -s 512 -w 8 -r 15" "latency_bench -n 1000" \
        "warps_bench -s 256 -r 1 -q 8 -d 65 -w 512"; do
        echo "$bench"
        # shellcheck disable=SC2086 # a program and its arguments
        timeout 120 "$BUILD/bench/"$bench "$DIR/mnt" || status=1
    done
    "$BUILD/client/gpunvme" info "$DIR/mnt" || status=1
    end_mount || status=1
    return "$status"
}

tests() {
    local run=$1 suite lba setting
    [ -x "$BUILD/tests/e2e/buffer_test" ] || die "$BUILD: not built, run scripts/test.sh first"
    start_target "$run" "${TARGET[@]}"
    for lba in 512:a 4096:b; do
        export GPUNVME_TEST_DEVICE=vfio-user:$DIR/${lba#*:}/cntrl GPUNVME_TEST_SMALL=1
        step "identify, LBAs of ${lba%:*}" \
            timeout 60 "$BUILD/client/gpunvme" identify "$GPUNVME_TEST_DEVICE"
        step "check --data, LBAs of ${lba%:*}" check_data "$GPUNVME_TEST_DEVICE"
        for suite in buffer posix_data; do
            step "${suite}_test, LBAs of ${lba%:*}" timeout 300 "$BUILD/tests/e2e/${suite}_test"
        done
    done
    unset GPUNVME_TEST_DEVICE GPUNVME_TEST_SMALL
    step "two namespaces" two_namespaces
    step "failing and slow commands" failing_commands "$(dirname "$run")/py/rpc.py"
    step "lost commands" lost_commands "$(dirname "$run")/py/rpc.py"
    step "target killed and restarted" killed_target "$run"
    for setting in max_queue_depth=16 max_queue_depth=1024 max_io_size=16384 \
        max_io_size=1048576 max_io_qpairs_per_ctrlr=4; do
        step "$setting" settings "$run" "--transport $setting"
    done
}

main() {
    local run=${1:-}
    case $run in
    -h | --help) usage && return 0 ;;
    esac
    if [ -z "$run" ]; then
        say "spdk-test: skipped, no path to SPDK's run.sh was given"
        return 0
    fi
    [ -x "$run" ] || die "$run: cannot be run, give the path of run.sh of the SPDK target"
    DIR=$(mktemp -d /dev/shm/gpunvme-spdk-XXXXXX)
    trap clean_up EXIT
    trap 'exit 1' INT TERM
    head -c 16M /dev/urandom >"$DIR/data"
    [ "${SPDK_STEPS:-all}" = figures ] || tests "$run"
    if [ "${SPDK_STEPS:-all}" = tests ]; then
        :
    elif nvidia-smi -L >/dev/null 2>&1; then
        stop_target
        start_target "$run" 3100 2500 0 64 64
        step figures figures
        cat "$DIR/output"
    else
        say "spdk-test: no figures, there is no GPU here"
    fi
    stop_target
    return "$FAILED"
}

main "$@"
