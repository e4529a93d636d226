#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Builds on a machine with a GPU, runs the tests that need one, checks kernels
# for memory errors, measures, and prints a table.
# shellcheck disable=SC2317 # the steps are called by name
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'USAGE'
Usage: bash scripts/gpu-test.sh [--build] [--tests] [--memcheck] [--racecheck] [--bench] [--gpus]
                                [--demo]
Without options the first five, in this order:
  --build     configure and build (Release, for the GPU that is here)
  --tests     the tests labelled gpu
  --memcheck  compute-sanitizer memcheck over the GPU tests of cuda/, and of tables, caches and
              shared queues
  --racecheck compute-sanitizer racecheck over the tests of tables, caches and shared queues
  --bench     the benchmarks in bench/, by scripts/bench-report.py
  --gpus      of the benchmarks, those of several GPUs on one mount
  --demo      scripts/demo.sh, through the GPU
  BUILD_DIR         build folder (build/gpu)
  GPUNVME_NO_SETUP  1: install nothing
  GPUNVME_PREFIX    a folder with library packages unpacked in it, for machines without network
  BENCH_SECONDS     limit of one benchmark (180)
  BENCH_BUDGET      limit of all of them (450; 170 when quick): what finds no time left is left out
  BENCH_QUICK       1: smaller benchmarks and fewer repeats
  PEERS_WHEELS      a folder of wheels of libraries to compare with (bench/peers.py)
USAGE
}

steps=()
for arg in "$@"; do
    case $arg in
    --build | --tests | --memcheck | --racecheck | --bench | --gpus | --demo)
        steps+=("${arg#--}")
        ;;
    *) other_argument "$arg" ;;
    esac
done
[ "${#steps[@]}" -gt 0 ] || steps=(build tests memcheck racecheck bench)

BUILD_DIR=${BUILD_DIR:-$GPUNVME_ROOT/build/gpu}
WORK=$(mktemp -d)
trap 'rm -rf --one-file-system "$WORK"' EXIT
PATH=$PATH:/usr/local/cuda/bin
TABLE=() FAILED=0

row() {
    TABLE+=("$(printf '%-22s %s' "$1" "$2")")
}

# row_of STEP EXIT-STATUS DETAIL: adds a row for a step.
row_of() {
    if [ "$2" = 0 ]; then
        row "$1" "passed${3:+: $3}"
    else
        row "$1" "FAILED, exit $2${3:+: $3}"
        FAILED=1
    fi
}

gpu_field() {
    nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -n 1
}

step_build() {
    local rc=0 capability
    capability=$(gpu_field compute_cap | tr -d .)
    configure_and_build "$BUILD_DIR" -DCMAKE_BUILD_TYPE=Release -DGPUNVME_CUDA=ON \
        -DGPUNVME_CUDA_ARCHITECTURES="${capability:-80;90}" >"$WORK/build.log" 2>&1 || rc=$?
    if [ "$rc" != 0 ]; then
        tail -n 60 "$WORK/build.log"
    elif ! grep -q '^-- CUDA executor: ON' "$WORK/build.log"; then
        warn "nvcc: not found, put its folder into PATH"
        rc=1
    fi
    row_of build "$rc" "Release, sm_${capability:-80 and sm_90}"
    [ "$rc" = 0 ] || return 0
    cmake --install "$BUILD_DIR" --prefix "$BUILD_DIR/install" >/dev/null
}

step_tests() {
    local rc=0
    ctest --test-dir "$BUILD_DIR" -L gpu --no-tests=error --output-on-failure 2>&1 |
        tee "$WORK/ctest.log" || rc=$?
    row_of "GPU tests" "$rc" "$(grep -E '^[0-9]+% tests passed' "$WORK/ctest.log" || true)"
    local skipped
    skipped=$(grep -c '^\[  SKIPPED \] .*(' "$BUILD_DIR/Testing/Temporary/LastTest.log" || true)
    [ "${skipped:-0}" = 0 ] || row "" "$skipped skipped themselves, see LastTest.log"
}

# Prints the commands of the tests that have all of the labels, one per line.
commands_labelled() {
    ctest --test-dir "$BUILD_DIR" --show-only=json-v1 | python3 -c '
import json, shlex, sys
want = set(sys.argv[1:])
for test in json.load(sys.stdin)["tests"]:
    labels = [p["value"] for p in test.get("properties", []) if p["name"] == "LABELS"]
    if labels and want <= set(labels[0]) and "command" in test:
        print(shlex.join(test["command"]))
' "$@"
}

# Under the tool, a launch waits while a kernel of another thread is resident,
# and that kernel waits for data that the launch would provide, so several
# concurrent transfers reach their deadlines.
MEMCHECK_SKIP='*ServesManyThreadsAtOnce/Cuda*:*GqReset*/Cuda*:*GqReadvReset*/Cuda*:*GqStuck*/Cuda*'
# These tests reached them too: a drive completes thousands of commands one by
# one, out of order.
MEMCHECK_SKIP+=':*WorksAtAnyDepthWithCompletionsOutOfOrder/Cuda*'
MEMCHECK_SKIP+=':*SpreadsALargeTransferOverManyQueues/Cuda*'
# The CPU executor's tests and those of plain host code say nothing here.
# shellcheck disable=SC2034 # used by eval
MEMCHECK_FILTER="-$MEMCHECK_SKIP:*/Cpu*:*/Lanes*"

# Small tests of tables, of caches and of queues that warps share, on one kind
# of mount, because each takes up to half a minute under a tool.
# shellcheck disable=SC2034 # used by eval
SHARED_FILTER='*TableGpu.*/0:*CacheGpu.ThreadsGet*/0:*CacheGpu.WarpsHold*/0:*CacheGpu.Prefetch*/0'
SHARED_FILTER+=':DirectGpu.ThreadsRead*:DirectGpu.ThreadsOfAWarp*:DirectGpu.ReadsOfOneCommand*'

# sanitize TOOL FILTER COMMAND: runs the tests of a program under a tool of
# compute-sanitizer. FILTER is the name of a variable. The daemon that a test
# starts runs without the tool.
sanitize() {
    local command=$3 status=0 failed
    # commands_labelled has quoted the line for the shell. The tool reports a
    # failure for a program without CUDA calls.
    eval "$command --gtest_list_tests \"--gtest_filter=\$$2\"" | grep -q '^  ' || return 0
    count=$((count + 1))
    eval "timeout 400 compute-sanitizer --tool $1 $SANITIZER_OPTIONS $command \"--gtest_filter=\$$2\"" \
        >"$WORK/sanitizer.log" 2>&1 </dev/null || status=$?
    # A tool finds wrong accesses of kernels. Tests that reached a deadline, for
    # the reason above, are only counted; without the tool they must pass
    # (--tests).
    failed=$(grep -c '^\[  FAILED  \] .* ms)' "$WORK/sanitizer.log" || true)
    if [ "$failed" != 0 ] && grep -qE "$NOTHING_FOUND" "$WORK/sanitizer.log"; then
        late=$((late + failed))
    elif [ "$status" != 0 ]; then
        rc=$status
        tail -n 60 "$WORK/sanitizer.log"
    fi
    grep -E 'SUMMARY' "$WORK/sanitizer.log" >>"$WORK/found" || true
}
NOTHING_FOUND='SUMMARY: 0 (errors|hazards)'
SANITIZER_OPTIONS="--target-processes application-only --error-exitcode 86"
# Refused CUDA calls are not memory errors, since tests provoke them.
SANITIZER_OPTIONS+=" --report-api-errors no"
# The warps of this kernel exchange work by acquire and release of words in
# shared memory (cuda/queue/gq_list_block.h). racecheck knows barriers only, and
# would report each exchange as a hazard.
RACECHECK_OPTIONS="--kernel-name-exclude kns=gpunvme_direct_list"

# Returns false, with a row that says so, without the tool.
sanitizer_is_here() {
    command -v compute-sanitizer >/dev/null && return 0
    row "$1" "NOT RUN: compute-sanitizer is neither in PATH nor in /usr/local/cuda/bin"
    return 1
}

# sanitize_all TOOL: the commands in $WORK/commands, each after its filter.
sanitize_all() {
    local filter command rc=0 count=0 late=0
    : >"$WORK/found"
    : >"$WORK/sanitizer.log"
    while IFS=' ' read -r filter command; do
        sanitize "$1" "$filter" "$command"
        ! grep -q 'Device not supported' "$WORK/sanitizer.log" || {
            row "$1" "NOT RUN: compute-sanitizer does not support the device of this machine"
            return 0
        }
    done <"$WORK/commands"
    [ "$count" -gt 0 ] || rc=1
    row_of "$1" "$rc" "$count programs"
    [ "$late" = 0 ] || row "" "$late tests ran into deadlines under the tool"
    while IFS= read -r command; do
        TABLE+=("    $command")
    done < <(sort "$WORK/found" | uniq -c)
}

shared_commands() {
    commands_labelled client gpu | grep -E '/client_(table|cache|direct)_gpu_test' |
        sed 's/^/SHARED_FILTER /'
}

step_memcheck() {
    sanitizer_is_here memcheck || return 0
    commands_labelled cuda gpu | sed 's/^/MEMCHECK_FILTER /' >"$WORK/commands"
    shared_commands >>"$WORK/commands"
    sanitize_all memcheck
    row "" "without $MEMCHECK_SKIP (deadlocks under the tool)"
}

step_racecheck() {
    sanitizer_is_here racecheck || return 0
    shared_commands >"$WORK/commands"
    SANITIZER_OPTIONS="$SANITIZER_OPTIONS $RACECHECK_OPTIONS" sanitize_all racecheck
}

# bench_report ROW ARGUMENT...: tables, plots and JSON stay in the build folder;
# the tables are also printed here.
bench_report() {
    local rc=0 out=$BUILD_DIR/bench-report row=$1 args=("${@:2}") budget=450
    if [ "${BENCH_QUICK:-0}" != 0 ]; then
        args+=(--quick)
        budget=170
    fi
    python3 -B "$GPUNVME_ROOT/scripts/bench-report.py" --build-dir "$BUILD_DIR" --out "$out" \
        --limit "${BENCH_SECONDS:-180}" --budget "${BENCH_BUDGET:-$budget}" \
        ${args[@]+"${args[@]}"} >"$WORK/bench.md" || rc=$?
    row_of "$row" "$rc" "report in $out"
    while IFS= read -r line; do
        TABLE+=("    $line")
    done <"$WORK/bench.md"
}

step_bench() {
    bench_report benchmarks
}

step_gpus() {
    bench_report "several GPUs" --only gpus,group
}

step_demo() {
    local rc=0
    BUILD_DIR=$BUILD_DIR-demo bash "$GPUNVME_ROOT/scripts/demo.sh" 2>&1 | tee "$WORK/demo.log" || rc=$?
    row_of demo "$rc" ""
    while IFS= read -r line; do
        TABLE+=("    $line")
    done < <(sed -n '/^files  /,$p' "$WORK/demo.log")
}

nvidia-smi -L >"$WORK/gpus" 2>/dev/null || die "nvidia-smi: no CUDA device here; this needs one"
# shellcheck disable=SC2119 # none of this script's arguments concern it
run_setup
use_prefix
row machine "$(gpu_field name), driver $(gpu_field driver_version), $(nproc) cores, $(uname -r)"
for step in "${steps[@]}"; do
    say "$step"
    "step_$step"
done

echo
printf '%s\n' "${TABLE[@]}"
exit "$FAILED"
