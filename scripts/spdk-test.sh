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
[B_4K_MB [FAULT_MB]]] makes the sockets DIR/a/cntrl (namespace 1 with LBAs of 512 bytes), DIR/b/cntrl
(LBAs of 4096 bytes), DIR/f/cntrl (behind bdev_error). py/rpc.py beside it makes the faults. Without
it the tests are skipped.
BUILD_DIR (build/test) holds the programs and tests. CPUMASK (0x1): processors of the target, each
of which it keeps busy.
USAGE
}

TARGET_PID=""
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

# A command that is lost costs time only. lost_commands BUILD RPC: reads and writes 16 MiB.
lost_commands() {
    local build=$1 device=vfio-user:$DIR/f/cntrl daemon op status=0
    rpc() { PYTHONPATH=$(dirname "$2") timeout 10 python3 "$2" -s "$DIR/rpc.sock" "${@:3}"; }
    mkdir -p "$DIR/mnt"
    head -c 16M /dev/urandom >"$DIR/data"
    "$build/mkfs/mkfs.gpunvme" -q -f "$device" || return 1
    "$build/fusefs/daemon/gpunvmefs" "$device" "$DIR/mnt" -f -o executor=cpu,deadline=1000 &
    daemon=$!
    for _ in $(seq 100); do
        mountpoint -q "$DIR/mnt" && break
        sleep 0.1
    done
    mountpoint -q "$DIR/mnt" || return 1
    cp "$DIR/data" "$DIR/mnt/data" && sync -f "$DIR/mnt/data" || status=1
    for op in read write read; do
        rpc "$1" "$2" bdev_error_inject_error EE_D0 "$op" pending -n 1 || status=1
        if [ "$op" = read ]; then
            timeout 60 dd if="$DIR/mnt/data" of="$DIR/copy" bs=1M iflag=direct || status=1
        else
            timeout 60 dd if="$DIR/data" of="$DIR/mnt/data" bs=1M oflag=direct conv=fsync ||
                status=1
        fi
    done
    cmp "$DIR/data" "$DIR/copy" || status=1
    umount "$DIR/mnt" || status=1
    wait "$daemon" || status=1
    "$build/mkfs/fsck.gpunvme" -n "$device" || status=1
    return "$status"
}

main() {
    local run=${1:-} build=${BUILD_DIR:-$GPUNVME_ROOT/build/test} suite lba
    case $run in
    -h | --help) usage && return 0 ;;
    esac
    if [ -z "$run" ]; then
        say "spdk-test: skipped, no path to SPDK's run.sh was given"
        return 0
    fi
    [ -x "$run" ] || die "$run: cannot be run, give the path of run.sh of the SPDK target"
    [ -x "$build/tests/e2e/buffer_test" ] || die "$build: not built, run scripts/test.sh first"
    DIR=$(mktemp -d /dev/shm/gpunvme-spdk-XXXXXX)
    trap clean_up EXIT
    trap 'exit 1' INT TERM
    start_target "$run" 1370 400 0 400 128
    for lba in 512:a 4096:b; do
        export GPUNVME_TEST_DEVICE=vfio-user:$DIR/${lba#*:}/cntrl GPUNVME_TEST_SMALL=1
        step "identify, LBAs of ${lba%:*}" \
            timeout 60 "$build/client/gpunvme" identify "$GPUNVME_TEST_DEVICE"
        for suite in buffer posix_data; do
            step "${suite}_test, LBAs of ${lba%:*}" timeout 300 "$build/tests/e2e/${suite}_test"
        done
    done
    step "lost commands" lost_commands "$build" "$(dirname "$run")/py/rpc.py"
    stop_target
    return "$FAILED"
}

main "$@"
