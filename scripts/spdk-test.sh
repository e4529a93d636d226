#!/bin/bash
# Runs the file system on SPDK's NVMe controller over vfio-user: one that is not of this tree.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'USAGE'
Usage: bash scripts/spdk-test.sh [PATH-TO-RUN.SH]
PATH-TO-RUN.SH starts SPDK's nvmf_tgt in the foreground: run.sh DIR MEMORY_MB NS1_MB [NS2_4K_MB
[B_4K_MB [FAULT_MB]]] makes the sockets DIR/a/cntrl (namespace 1 with LBAs of 512 bytes), DIR/b/cntrl
(LBAs of 4096 bytes). Without it the tests are skipped.
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
        [ -S "$DIR/b/cntrl" ] && return 0
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
    timeout 300 "$@" >"$DIR/output" 2>&1 || result="FAILED ($?)"
    printf '%-52s %-12s %4d s\n' "$name" "$result" $(($(date +%s) - start))
    if [ "$result" != ok ]; then
        FAILED=1
        grep -vE '^\[( RUN|       OK)' "$DIR/output" | tail -n 40
    fi
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
    start_target "$run" 1240 400 0 400
    for lba in 512:a 4096:b; do
        export GPUNVME_TEST_DEVICE=vfio-user:$DIR/${lba#*:}/cntrl GPUNVME_TEST_SMALL=1
        step "identify, LBAs of ${lba%:*}" "$build/client/gpunvme" identify "$GPUNVME_TEST_DEVICE"
        for suite in buffer posix_data; do
            step "${suite}_test, LBAs of ${lba%:*}" "$build/tests/e2e/${suite}_test"
        done
    done
    stop_target
    return "$FAILED"
}

main "$@"
