#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Installs missing packages, builds, and runs the tests.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'USAGE'
Usage: bash scripts/test.sh [--plain] [--unsanitized] [--asan] [--tsan] [--all] [--no-sim]
                            [--long] [--build] [-R NAME] [-- CTEST-ARGUMENT...]
  --plain  the ordinary build (the default)
  --unsanitized
           the ordinary build, but only the tests that --asan does not run, or not completely: those
           labelled plain or style, and with a GPU those labelled gpu
  --asan   with AddressSanitizer and UndefinedBehaviorSanitizer
  --tsan   with ThreadSanitizer: the tests labelled threads
  --all    the three, one after the other
  --no-sim without the simulated drive (-DGPUNVME_SIM=OFF): what remains of the tests
  --long   with more rounds where a test draws at random (GPUNVME_TEST_LONG=1), and with
           ThreadSanitizer over all that may have threads
  --build  builds and runs nothing
  -R NAME  builds and runs only the tests whose names match the regular expression NAME;
           GTEST_FILTER=Suite.Case selects a case
Arguments after -- go to ctest: '-- -L layout' runs the tests of one folder.
BUILD_DIR (build/test) is the plain build's folder; the others get -asan, -tsan, -no-sim behind it.
GPUNVME_NO_SETUP=1 installs nothing.
USAGE
}

# GCC 12's ThreadSanitizer cannot place its shadow memory if the kernel
# randomises more address bits than it expects; it then sometimes crashes at the
# start. Prints the command that must precede tests.
tsan_launcher() {
    local dir setarch=("setarch" "$(uname -m)" -R)
    dir=$(mktemp -d)
    printf 'int main(void)\n{\n    return 0;\n}\n' >"$dir/probe.c"
    gcc -fsanitize=thread "$dir/probe.c" -o "$dir/probe" || die "gcc: cannot build for TSan"
    for _ in $(seq 20); do
        if ! "$dir/probe" >/dev/null 2>&1; then
            "${setarch[@]}" "$dir/probe" >/dev/null 2>&1 ||
                die "ThreadSanitizer: does not start here; run 'sysctl vm.mmap_rnd_bits=28' as root"
            say "tsan: address space randomisation is off for the tests (setarch -R)" >&2
            printf '%s\n' "${setarch[@]}"
            break
        fi
    done
    rm -rf "$dir"
}

# Prints the skipped tests, counted by reason, from ctest's log of the last run.
skipped_tests() {
    awk '
        /^\[ RUN      \]/ { reason = "no reason given" }
        /: Skipped$/ { if (getline > 0) reason = $0 }
        /^\[  SKIPPED \] .*\(/ { count[reason]++; example[reason] = $4 }
        END {
            for (reason in count)
                printf "  skipped %d: %s (%s)\n", count[reason], reason,
                       example[reason] (count[reason] > 1 ? " and others" : "")
        }
    ' "$1/Testing/Temporary/LastTest.log" 2>/dev/null || true
}

# Prints the failed cases, each with its first message, since the whole output
# may be very long.
failed_cases() {
    awk '
        /^\[ RUN      \]/ { name = $4; said = ""; lines = 0 }
        lines > 0 { sub(/^ +/, ""); said = said "; " $0; lines-- }
        /: Failure$/ && said == "" { said = $0; lines = 3 }
        /^\[       OK \]|^\[  SKIPPED \]/ { name = "" }
        name != "" && /^\[  FAILED  \]/ { print "  failed: " name ": " substr(said, 1, 400); name = "" }
        name != "" && /^<end of output>/ { print "  did not end: " name; name = "" }
    ' "$1/Testing/Temporary/LastTest.log" 2>/dev/null || true
}

# ThreadSanitizer takes ten times as long as an ordinary build. It skips cases
# with one thread, most seeds of random cases, and transfers by one lane or by
# 32 lanes of one thread, if the same transfer runs with a doorbell thread
# (Tier0).
TSAN_SPARED='FsBig.*:Crash.*:CrashFiles.*:FsNames.LinksAreLimited:'
TSAN_SPARED+='*/FsData.*/2:*/FsData.*/3:'
# Plans over a mount use the same threads of the library as over tmpfs.
TSAN_SPARED+='*/Plans.*/mount_*:'
TSAN_SPARED+='*/GqTransfer.*/Cpu32*:*/GqReadv.*/Cpu32*:*/GqChunks.*/Cpu32*:'
# Its drive is a mapping of 3 TiB, for which ThreadSanitizer has no shadow
# memory.
TSAN_SPARED+='Nvme.ADiscardLongerThanARangeReachesAllOfIt:'
TSAN_SPARED+='*/GqTransfer.*/Cpu1:*/GqReadv.*/Cpu1:'
TSAN_SPARED+='*/ReadvGrowing.*/bounce:Readv.AFileInVeryManyExtents*'
# Only --long runs further parameters of a case, long inputs of one thread, and
# failures that differ only in the behaviour of the drive.
TSAN_LONG='*/Direct.*/defaults:*/Direct.ReadsAnything*/two_queues_of_four:*/List.*/defaults:'
TSAN_LONG+='*/List.*/blocks_of_4_KiB:*/ReadvLength.*/bounce:*/LongInBytes.*:*/LongBatch.*:'
TSAN_LONG+='*/PassingFault.*_for_good:*/PassingFault.*/write_lost:*/FinalFault.*/hangs_*:'
TSAN_LONG+='*/FinalFault.*/never_ready_again:*/CoherenceTest.*lba_4096:'
TSAN_LONG+='*/CoherenceTest.*/gpu_off:DirectList.SharesAreDealtWithoutGaps:'
TSAN_LONG+='DirectOne.RefusesAFileOf*:DirectOne.RefusesWhatIsNoFile*:DirectOne.BlocksThatTheFileLost*:'
# For each kind of mount, the one with the most threads remains.
TSAN_LONG+='*/Direct.*/staged:*/Direct.*/two_queues_of_four:*/List.*/staged:'
TSAN_LONG+='*/Direct.*/*least_mdts:*/List.*/*least_mdts:'
TSAN_LONG+='*/List.*/two_queues_of_four:*/DirectCsum.*:*/Unverified.*:'
TSAN_LONG+='*/ReadvTest.*/no_room_for_lists:*/ReadvTest.*/off:*/ReadvWays.*/bounce:'
# One thread of the application reads with the same threads of the daemon. For
# further kinds of mount, the case with eight threads remains.
TSAN_LONG+='*/Direct.ReadsAnything*/staged_few:*/Direct.EndsWhere*/staged_few:'
TSAN_LONG+='*/Direct.AHostThatWaits*/staged_few:*/List.ReadsAnything*/staged_blocks_of_4_KiB:'
TSAN_LONG+='*/List.WhatIsWrong*/staged_blocks_of_4_KiB:'
TSAN_LONG+='*/List.PiecesMayBe*/staged_blocks_of_4_KiB:DirectOne.WithTooFewDescriptorsSaysSo:'
TSAN_LONG+='DirectOne.TheDescriptorMayBeClosed:DirectRight.IsGrantedByTheMount:'
TSAN_LONG+='*/Direct.*/proxied_doorbells:*/DirectFails.*/Reached:*/ListFails.*/Reached:'
# Other cases have the threads of these long lists.
TSAN_LONG+='Readv.ABatchOfManyPieces*:*/ReadvGrowing.*:'
# Queue code run by one lane or by 32 lanes with a doorbell thread, and staged
# by 32.
TSAN_LONG+='*/Gq*.*/Cpu1:*/Gq*.*/Cpu32:*/Gq*.*/Cpu1Tier0Staged:DirectSharedClaims.ReadsEndWithFewCids'
# Only --long runs programs whose threads are also those of another one: lists
# and sums of the direct path (client_direct, client_direct_shared), files and
# tables (client_cache), READV and leases at their limits (daemon_transfer,
# daemon_lease), errors of GPU queues (gq_queue, gq_recover), and the driver on
# a served drive (blockdev, sim_serve).
TSAN_LONG_PROGRAMS='^(client_(direct_(readv|small|staged|sums)|file_direct|table)'
TSAN_LONG_PROGRAMS+='|client_table_fails|daemon_(lease_bounds|readv|sums)|blockdev_vfio_user_e2e'
TSAN_LONG_PROGRAMS+='|gq_(chunks|error|readv_error))_test$'
# With AddressSanitizer, only --long runs long inputs of one lane, which also
# run by other executors: they took half of the time of all its tests.
ASAN_LONG='*/PartSums.OfLongLists*/Cpu1:*/PartSums.OfLongLists*/Cpu1Tier0:'
ASAN_LONG+='*/PartSums.AreThoseOfBlocks*/Cpu1Tier0:*/GqQueue.WorksAtAnyDepth*/Cpu1Tier0Staged:'
ASAN_LONG+='*/GqReadv.FindsItsWay*/Cpu1Tier0Staged:*/GqReadv.ReadsLongPieces*/Cpu1Tier0Staged'
# Nor do tests of power cuts and of a model run in all formats. The one with
# checksums and copies has the code of the one with checksums, and more. The
# ordinary build of the nightly run has all of them.
ASAN_LONG_PROGRAMS='^(storage_resize|(storage_(campaign|chunk_crash|crash|crash_files|resize)'
ASAN_LONG_PROGRAMS+='|fs_(basic|model|threads))_csum)_test$'

# Prints the targets of DIR that the selected tests run: the program with the
# name of a test, and files of the build in the command of a script.
targets_of() { # DIR CTEST-ARGUMENT...
    ctest --test-dir "$1" --show-only=json-v1 "${@:2}" 2>/dev/null | python3 -c '
import json, os, sys
for test in json.load(sys.stdin)["tests"]:
    files = [word for word in test.get("command", []) if word.startswith(sys.argv[1] + "/")]
    print(test["name"], *(os.path.relpath(file, sys.argv[1]) for file in files), sep="\n")
' "$(realpath "$1")" | grep -Fxf <(ninja -C "$1" -t targets all | sed 's/: [^:]*$//') | sort -u
}

# prepare DIR CMAKE-ARGUMENT...: configures and builds. Of the tests, only those
# in the caller's array `select`, arguments of ctest, are built if it has any.
# With -R a configured folder stays as it is.
prepare() {
    local dir=$1 targets=() tests_in_all=ON
    shift
    [ -z "$product" ] || tests_in_all=OFF
    if [ -z "$ONLY" ] || [ ! -f "$dir/build.ninja" ]; then
        configure "$dir" -DGPUNVME_WERROR=ON -DGPUNVME_TESTS_IN_ALL="$tests_in_all" "$@" || return
    fi
    if [ "${#select[@]}" -gt 0 ]; then
        mapfile -t targets < <(targets_of "$dir" "${select[@]}" && printf '%s' "$product")
        [ "${#targets[@]}" -gt 0 ] || return 0
        targets=(--target "${targets[@]}")
    fi
    build "$dir" ${targets[@]+"${targets[@]}"}
}

SUMMARY=()
FAILED=0

# run_suite KIND DIR SANITIZERS LAUNCHER...: builds and tests one kind, and
# records the result.
run_suite() {
    local kind=$1 dir=$2 sanitize=$3 start=$SECONDS log closing
    shift 3
    # Tests wait more than they compute, so three run per processor. With six, tests
    # with deadlines failed. ThreadSanitizer computes more, so two run: half of the
    # time of its tests is waiting.
    local options=() ctest_args=() select=() product='' labels=plain filter=${GTEST_FILTER:-*}
    local jobs=$((3 * $(nproc)))
    [ "$sanitize" != thread ] || jobs=$((2 * $(nproc)))
    if [ -n "$sanitize" ]; then
        ctest_args=(-LE '^style$')
        options=(-DGPUNVME_SANITIZE="$sanitize" -DGPUNVME_CUDA=OFF -DGPUNVME_BENCH=OFF
            -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -g1" -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1")
        say "$kind: without CUDA (no sanitizer of the host sees device code), benchmarks (no tests)" \
            "and tests/style (runs nothing of ours)"
    fi
    if [ "$kind" = asan ] && [ "$LONG" != 1 ] && [ "$filter" = '*' ]; then
        filter=-$ASAN_LONG
        [ "${#CTEST_ARGS[@]}" -gt 0 ] || ctest_args+=(-E "$ASAN_LONG_PROGRAMS")
        say "$kind: ctest ${ctest_args[*]}, filter $filter"
    fi
    [ -z "$ONLY" ] || select=(-R "$ONLY")
    if [ "$kind" = unsanitized ] && [ -z "$ONLY" ]; then
        [ ! -e /dev/nvidiactl ] || labels+='|gpu'
        product=all select=(-L "^($labels)\$") ctest_args=(-L "^(style|$labels)\$")
        say "$kind: ctest ${ctest_args[*]}"
    elif [ "$kind" = no-sim ]; then
        ctest_args=(-LE '^style$')
        options=(-DGPUNVME_SIM=OFF)
    fi
    if [ "$sanitize" = thread ] && [ "${#CTEST_ARGS[@]}" = 0 ] && [ "$filter" = '*' ]; then
        filter=-$TSAN_SPARED
        if [ "$LONG" = 1 ]; then
            ctest_args=(-LE '^(style|layout|mkfs)$')
        else
            filter+=:$TSAN_LONG
            ctest_args=(-L '^threads$' -E "$TSAN_LONG_PROGRAMS")
            select=("${ctest_args[@]}")
        fi
        say "$kind: ctest ${ctest_args[*]}, filter $filter"
    fi
    say "$kind: build in $dir"
    if ! prepare "$dir" ${options[@]+"${options[@]}"}; then
        SUMMARY+=("$kind: DOES NOT BUILD")
        FAILED=1
        return 0
    fi
    if [ "$BUILD_ONLY" = 1 ]; then
        SUMMARY+=("$kind: builds ($((SECONDS - start)) s)")
        return 0
    fi
    say "$kind: tests"
    # More rounds of one thread show ThreadSanitizer nothing new.
    if [ "$sanitize" = thread ]; then
        unset GPUNVME_TEST_LONG
    elif [ "$LONG" = 1 ]; then
        export GPUNVME_TEST_LONG=1
    fi
    log=$(mktemp)
    if ! GTEST_FILTER=$filter "$@" ctest --test-dir "$dir" --output-on-failure --no-tests=error \
        -j "$jobs" ${ctest_args[@]+"${ctest_args[@]}"} \
        ${CTEST_ARGS[@]+"${CTEST_ARGS[@]}"} 2>&1 | tee "$log"; then
        FAILED=1
    fi
    closing=$(grep -E '^[0-9]+% tests passed|^No tests were found' "$log" | tail -n 1)
    rm -f "$log"
    SUMMARY+=("$kind: ${closing:-ctest did not finish} ($((SECONDS - start)) s with the build)")
    local line
    while IFS= read -r line; do
        SUMMARY+=("$line")
    done < <(skipped_tests "$dir" && failed_cases "$dir")
}

kinds=() LONG=0 BUILD_ONLY=0 CTEST_ARGS=() ONLY=''
while [ $# -gt 0 ]; do
    case $1 in
    --plain | --unsanitized | --asan | --tsan | --no-sim) kinds+=("${1#--}") ;;
    --all) kinds=(plain asan tsan) ;;
    --long) LONG=1 ;;
    --build) BUILD_ONLY=1 ;;
    -R)
        [ $# -gt 1 ] || die "-R: no name of a test"
        ONLY=$2
        shift
        ;;
    --)
        shift
        CTEST_ARGS=("$@")
        break
        ;;
    *) other_argument "$1" ;;
    esac
    shift
done
[ "${#kinds[@]}" -gt 0 ] || kinds=(plain)
[ -z "$ONLY" ] || CTEST_ARGS=(-R "$ONLY" "${CTEST_ARGS[@]}")
run_setup --tests
use_prefix
BUILD_DIR=${BUILD_DIR:-$GPUNVME_ROOT/build/test}
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:strict_string_checks=1:check_initialization_order=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
# A process whose main thread ends before others waits for exit_ms, so that their races are found.
# Hundreds of processes end so. Only --long lets each of them wait the usual second.
exit_ms=50
[ "$LONG" != 1 ] || exit_ms=1000
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1:atexit_sleep_ms=$exit_ms}

for kind in "${kinds[@]}"; do
    case $kind in
    plain | unsanitized) run_suite "$kind" "$BUILD_DIR" "" ;;
    no-sim) run_suite no-sim "$BUILD_DIR-no-sim" "" ;;
    asan) run_suite asan "$BUILD_DIR-asan" address,undefined ;;
    tsan)
        mapfile -t launcher < <(tsan_launcher)
        run_suite tsan "$BUILD_DIR-tsan" thread ${launcher[@]+"${launcher[@]}"}
        ;;
    esac
done

say "summary"
if [ "$BUILD_ONLY" = 1 ]; then GPUNVME_CLOSING=; fi
printf '%s\n' "${SUMMARY[@]}" | tee -a "${GPUNVME_CLOSING:-/dev/null}"
exit "$FAILED"
