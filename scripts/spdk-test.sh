#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Runs the file system on SPDK's NVMe controller, a foreign one, over vfio-user.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/lib-spdk.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-spdk.sh"

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
SPDK_STEPS (all): tests or figures alone, or a pattern of the shell for names of steps ("*killed*").
The last output is a table of the steps.
USAGE
}

RUN=${1:-} # starts the target
TARGET=(1620 400 128 400 128) # memory, namespaces of a, of b, of f: MiB
BUILD=${BUILD_DIR:-$GPUNVME_ROOT/build/test}
PATTERN="*" # selects steps by name
FAILED=0
ROWS=()

# step NAME ASSERTED COMMAND...: runs a step, adds a row to the table, and
# prints the end of the output of a failed step.
step() {
    local name=$1 asserted=$2 start result=ok
    shift 2
    # shellcheck disable=SC2254 # a pattern
    case $name in
    $PATTERN) ;;
    *) return 0 ;;
    esac
    start=$(date +%s)
    "$@" >"$DIR/output" 2>&1 || result="FAILED ($?)"
    ROWS+=("| $name | $asserted | $result | $(($(date +%s) - start)) |")
    printf '%-40s %-12s %4d s\n' "$name" "$result" $(($(date +%s) - start))
    if [ "$result" != ok ]; then
        FAILED=1
        grep -vE '^\[( RUN|       OK)' "$DIR/output" | tail -n 40
    fi
    end_step "$result"
}

print_table() {
    [ "${#ROWS[@]}" -gt 0 ] || return 0
    printf '\n| step | asserted | result | s |\n|---|---|---|---|\n'
    printf '%s\n' "${ROWS[@]}"
}

# suite DEVICE PROGRAM [ARGUMENT...]: runs a test program of the tree on a drive
# instead of an image.
suite() {
    GPUNVME_TEST_DEVICE=$1 GPUNVME_TEST_SMALL=1 TMPDIR=$DIR/tmp \
        timeout -k 10 600 "$BUILD/tests/$2" "${@:3}"
}

# Reads by commands of every length, without a file system.
check_data() {
    "$BUILD/client/gpunvme" check --data "$1" | grep -F 'commands of every length return'
}

# Drives leased queues from host threads: single reads and lists, into memory
# that the drive reaches and into staged memory, with a doorbell proxy, and with
# threads that share two queues of four entries.
direct_path() {
    local few=two_queues_of_four way reads lists
    reads="Mounts/Direct.Many*/$few:Mounts/Direct.AHost*/defaults"
    lists="Mounts/List.Many*/$few"
    for way in defaults staged proxied_doorbells; do
        reads+=":Mounts/Direct.Reads*/$way"
        lists+=":Mounts/List.Reads*/$way"
    done
    suite "$1" client/client_direct_test --gtest_filter="$reads" &&
        suite "$1" client/client_direct_readv_test --gtest_filter="$lists"
}

# Commands that fail a few times or are slow only cost time. Commands that
# always fail are errors until they no longer fail.
failing_commands() {
    local device=vfio-user:$DIR/f/cntrl status=0
    format "$device" && start_mount "$device" executor=cpu,deadline=1000 || return 1
    put_data || status=1
    rpc bdev_error_inject_error EE_D0 read failure -n 2 && reads_back || status=1
    rpc bdev_error_inject_error EE_D0 read failure -n 1000000 || status=1
    if reads_back; then
        echo "a read succeeded on a drive that fails"
        status=1
    fi
    rpc bdev_error_inject_error EE_D0 clear failure && reads_back || status=1
    rpc bdev_error_inject_error EE_D0 write failure -n 2 || status=1
    overwrite || status=1
    reads_back || status=1
    "$BUILD/client/gpunvme" info "$DIR/mnt" | grep -E '^Errors: +[1-9]' || status=1
    end_and_check "$device" || status=1
    return "$status"
}

# Commands that take long, but less than the deadline, are waited for.
slow_commands() {
    local device=vfio-user:$DIR/f/cntrl status=0
    format "$device" && start_mount "$device" executor=cpu,deadline=1000 || return 1
    put_data || status=1
    rpc bdev_delay_update_latency D0 avg_read 700000 || status=1
    timeout 60 dd if="$DIR/mnt/data" of="$DIR/copy" bs=64k count=1 iflag=direct || status=1
    rpc bdev_delay_update_latency D0 avg_read 0 || status=1
    cmp -n 65536 "$DIR/data" "$DIR/copy" && reads_back || status=1
    if "$BUILD/client/gpunvme" info "$DIR/mnt" | grep -E '^Timeouts: +[1-9]'; then
        echo "a command was given up"
        status=1
    fi
    end_and_check "$device" || status=1
    return "$status"
}

# Commands that take longer than the deadline are given up and repeated, and
# complete late. After an Abort of such a command SPDK's target hangs when its
# client unmaps memory or disconnects (docs/hardware.md).
late_commands() {
    local device=vfio-user:$DIR/f/cntrl reader status=0
    format "$device" && start_mount "$device" executor=cpu,deadline=1000 || return 1
    put_data || status=1
    rpc bdev_delay_update_latency D0 avg_read 1500000 || status=1
    reads_back &
    reader=$!
    sleep 0.5
    rpc bdev_delay_update_latency D0 avg_read 0 || status=1
    wait "$reader" && reads_back || status=1
    "$BUILD/client/gpunvme" info "$DIR/mnt" | grep -E '^Timeouts: +[1-9]' || status=1
    end_and_check "$device" || status=1
    return "$status"
}

# A lost command only costs time.
lost_commands() {
    local device=vfio-user:$DIR/f/cntrl op status=0
    format "$device" && start_mount "$device" executor=cpu,deadline=1000 || return 1
    put_data || status=1
    for op in read write read; do
        rpc bdev_error_inject_error EE_D0 "$op" pending -n 1 || status=1
        if [ "$op" = read ]; then
            reads_back || status=1
        else
            overwrite || status=1
        fi
    done
    "$BUILD/client/gpunvme" info "$DIR/mnt" | grep -E '^Timeouts: +[1-9]' || status=1
    end_and_check "$device" || status=1
    return "$status"
}

# file_of DEVICE OPTIONS: writes a file and reads it back on every path.
file_of() {
    local status=0
    start_mount "$1" "executor=cpu,$2" || return 1
    put_data && every_path || status=1
    "$BUILD/client/gpunvme" info "$DIR/mnt" | grep -F 'DMA regions' || status=1
    end_mount || status=1
    return "$status"
}

# Namespaces of one controller, with LBAs of 512 and 4096 bytes, each hold a
# file system.
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

# write_on UNTIL: writes a file repeatedly until that fails or SECONDS reaches
# UNTIL.
write_on() {
    while timeout 60 dd if=/dev/zero of="$DIR/mnt/zeros" bs=1M count=90 oflag=direct conv=fsync; do
        [ "$SECONDS" -lt "$1" ] || return 0
    done
    return 1
}

# Requests to a killed target end in bounded time, and the next target can be
# used at once.
killed_target() {
    local device=vfio-user:$DIR/b/cntrl writer status=0
    format "$device" && start_mount "$device" executor=cpu,deadline=1000 || return 1
    write_on $((SECONDS + 60)) &
    writer=$!
    sleep 0.1
    kill_target
    if wait "$writer"; then
        echo "a write succeeded without a target"
        status=1
    fi
    umount "$DIR/mnt" || status=1
    if wait "$DAEMON"; then
        echo "the daemon ended with status 0"
        status=1
    fi
    start_target "${TARGET[@]}"
    format "$device" && file_of "$device" deadline=1000 || status=1
    return "$status"
}

# beside_pause SECONDS COMMAND...: stops the target for that long. Succeeds if
# the command succeeds, but not before the target continues.
beside_pause() {
    local seconds=$1 job status=0
    shift
    kill -STOP "$TARGET_PID"
    "$@" &
    job=$!
    sleep "$seconds"
    if ! kill -0 "$job" 2>/dev/null; then
        echo "$1: ended while the target was stopped"
        status=1
    fi
    kill -CONT "$TARGET_PID"
    wait "$job" || status=1
    return "$status"
}

# Registers and commands of a stopped target do not respond for longer than the
# deadline. Memory is registered after it continues, since registrations fail at
# the deadline.
paused_target() {
    local device=vfio-user:$DIR/b/cntrl status=0
    format "$device" && start_mount "$device" executor=cpu,deadline=1000 || return 1
    put_data || status=1
    beside_pause 6 reads_back || status=1
    every_path || status=1
    beside_pause 6 overwrite || status=1
    every_path || status=1
    end_and_check "$device" || status=1
    return "$status"
}

paused_mkfs() {
    local device=vfio-user:$DIR/b/cntrl
    beside_pause 4 format "$device" && file_of "$device" deadline=1000
}

# A daemon replaces one that was killed during writes, at the same mount point.
killed_daemon() {
    local device=vfio-user:$DIR/b/cntrl writer status=0
    format "$device" && start_mount "$device" executor=cpu,deadline=1000 || return 1
    put_data || status=1
    write_on $((SECONDS + 60)) &
    writer=$!
    sleep 0.1
    kill -KILL "$DAEMON"
    wait "$DAEMON" || true
    if wait "$writer"; then
        echo "a write succeeded without a daemon"
        status=1
    fi
    start_mount "$device" executor=cpu,deadline=1000 || return 1
    every_path || status=1
    end_mount || status=1
    if grep -F " $DIR/mnt " /proc/self/mounts; then
        echo "the mount of the killed daemon is left"
        status=1
    fi
    "$BUILD/mkfs/fsck.gpunvme" -n "$device" || status=1
    return "$status"
}

# settings EXTRA: restarts the target with other settings of its transport.
settings() {
    local device=vfio-user:$DIR/b/cntrl
    stop_target
    EXTRA=$1 start_target "${TARGET[@]}"
    format "$device" && check_data "$device" && file_of "$device" deadline=10000
}

# Runs benchmarks of the GPU's queues, which verify their bytes.
figures() {
    local device=vfio-user:$DIR/a/cntrl bench status=0
    format "$device" && start_mount "$device" gpu=require,direct=all,queues=24 || return 1
    for bench in "bare_bench -s 256 -r 15 -q 8 -d 65" "rows_bench -s 256 -w 8 -r 15 -q 8 -d 65" \
        "file_bench -s 512 -w 14 -r 15" "file_bench -s 16 -w 14 -r 15" "latency_bench -n 1000" \
        "small_bench -s 256 -r 1 -q 8 -d 65 -w 512"; do
        echo "$bench"
        # shellcheck disable=SC2086 # a program and its arguments
        timeout 120 "$BUILD/bench/"$bench "$DIR/mnt" || status=1
    done
    "$BUILD/client/gpunvme" info "$DIR/mnt" || status=1
    end_mount || status=1
    return "$status"
}

gpu_figures() {
    if ! nvidia-smi -L >/dev/null 2>&1; then
        say "spdk-test: no figures, there is no GPU here"
        return 0
    fi
    TARGET=(3100 2500 0 64 64)
    start_target "${TARGET[@]}"
    step figures "every byte that the benchmarks read and write" figures
    cat "$DIR/output"
}

# suites_on LBA DEVICE: runs the suites on a drive with this LBA size.
suites_on() {
    local of="LBAs of $1"
    step "identify, $of" "the controller and its namespaces are decoded" \
        timeout 60 "$BUILD/client/gpunvme" identify "$2"
    step "check --data, $of" "commands of every length return what single pages do" \
        check_data "$2"
    step "buffer_test, $of" "READ, WRITE, READV of every kind of buffer, staged and not; fsck" \
        suite "$2" e2e/buffer_test
    step "e2e_test, $of" "both paths agree beside changes, and after a new mount" \
        suite "$2" e2e/e2e_test
    step "posix_names_test, $of" "names, links, renames, directories; fsck" \
        suite "$2" e2e/posix_names_test
    step "posix_data_test, $of" "writes, holes, truncates, mmap; fsck" \
        suite "$2" e2e/posix_data_test
    step "posix_mixed_test, $of" "threads that create, write, rename, remove; fsck" \
        suite "$2" e2e/posix_mixed_test
    step "direct path, $of" "reads and lists by leased queues, shared by threads, have every byte" \
        direct_path "$2"
}

# Tests faults of a controller, its server and the daemon.
ladder() {
    step "failing commands" "two failures are repeated; endless ones are errors until they end" \
        failing_commands
    step "slow commands" "those within the deadline are waited for, right bytes; fsck" slow_commands
    step "late commands" "those beyond it are given up and repeated, right bytes; fsck" late_commands
    step "lost commands" "reads and writes succeed, right bytes; fsck" lost_commands
    step "target killed and restarted" "requests end with errors; mkfs and mount on the next" \
        killed_target
    step "target paused" "reads and writes wait for 6 s twice, right bytes; fsck" paused_target
    step "mkfs, target paused" "it waits for 4 s; a file system as usual" paused_mkfs
    step "daemon killed" "a mount at the same place at once, synced bytes; fsck" killed_daemon
}

tests() {
    local setting
    [ -x "$BUILD/tests/e2e/buffer_test" ] || die "$BUILD: not built, run scripts/test.sh first"
    start_target "${TARGET[@]}"
    suites_on 512 "vfio-user:$DIR/a/cntrl"
    suites_on 4096 "vfio-user:$DIR/b/cntrl"
    step "two namespaces" "a file system each, read by every path; fsck of both" two_namespaces
    ladder
    for setting in max_queue_depth=16 max_queue_depth=1024 max_io_size=16384 \
        max_io_size=1048576 max_io_qpairs_per_ctrlr=4; do
        step "$setting" "mkfs, check --data, a file read by every path" \
            settings "--transport $setting"
    done
    stop_target
}

main() {
    case $RUN in
    -h | --help) usage && return 0 ;;
    esac
    if [ -z "$RUN" ]; then
        say "spdk-test: skipped, no path to SPDK's run.sh was given"
        return 0
    fi
    [ -x "$RUN" ] || die "$RUN: cannot be run, give the path of run.sh of the SPDK target"
    prepare
    case ${SPDK_STEPS:-all} in
    figures) gpu_figures ;;
    tests) tests ;;
    all) tests && gpu_figures ;;
    *)
        PATTERN=$SPDK_STEPS
        tests
        [ "${#ROWS[@]}" -gt 0 ] || die "SPDK_STEPS=$SPDK_STEPS: no step has such a name"
        ;;
    esac
    print_table
    return "$FAILED"
}

main
