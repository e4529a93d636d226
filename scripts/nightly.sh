#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Runs the checks that take too long for every change (.ci/run): random tests
# with many more rounds, all suites with ThreadSanitizer, all guest scenarios, a
# soak of killed daemons, damaged media, clang's build, and long fuzzing.
# Continues after a failure. The table at the end shows which steps failed, and
# the exit status whether any did.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'USAGE'
Usage: bash scripts/nightly.sh [STEP...]
Steps, all of them without an argument:
  plain   the tests with more rounds (GPUNVME_TEST_LONG=1)
  asan    the same with ASan and UBSan
  tsan    the same with TSan, all suites
  no-sim  the build without the simulated drive, and its tests
  crash   CRASH_STATES power cuts (100000), as many with copies of metadata, 7 minutes each, and
          a daemon killed in the middle of writes, CRASH_ROUNDS times (40)
  media   MEDIA_CASES file systems with one damaged block (40000, 10 minutes)
  guest   all guest scenarios
  roots   scripts/roots-test.sh: the documents' commands in clean roots of bookworm, trixie, sid
  packages  scripts/package-test.sh: the Debian packages, with device code for all architectures
  wheel   scripts/wheel.sh: a wheel with the library, installed alone
  judge   scripts/sim-judge.sh: Linux's NVMe driver, nvme-cli, fio and blktests on the simulator
          (11 minutes)
  lint    all of scripts/lint.sh, clang's build and the whole of its analyzer included
  fuzz    scripts/fuzz.sh, each fuzzer for FUZZ_SECONDS (600)
  mutate  random small bugs, planted one at a time for MUTATE_MINUTES (60), most of them in files
          that have changed since MUTATE_SINCE (the last tag): 85 % must be noticed
BUILD_DIR (build/test) is the plain build's folder; the others have its name and a suffix.
GPUNVME_NO_SETUP=1 installs nothing.
USAGE
}

export BUILD_DIR=${BUILD_DIR:-${GPUNVME_BUILD:-$GPUNVME_ROOT/build}/test}
GPUNVME_CLOSING=$(mktemp)
export GPUNVME_CLOSING
trap 'rm -f "$GPUNVME_CLOSING"' EXIT
cd "$GPUNVME_ROOT"

# set -e has no effect in the functions that step calls.
# shellcheck disable=SC2317 # called by step
crash_soak() {
    local rc=0
    configure_and_build "$BUILD_DIR" -DGPUNVME_WERROR=ON >/dev/null || return 1
    export CRASH_STATES=${CRASH_STATES:-100000}
    "$BUILD_DIR/tests/fusefs/core/storage_campaign_test" || rc=1
    DATA_CSUM=1 META_COPIES=1 "$BUILD_DIR/tests/fusefs/core/storage_campaign_test" || rc=1
    python3 -B tests/crash/kill_daemon.py "$BUILD_DIR/mkfs/mkfs.gpunvme" \
        "$BUILD_DIR/mkfs/fsck.gpunvme" "$BUILD_DIR/fusefs/daemon/gpunvmefs" \
        "${CRASH_ROUNDS:-40}" || rc=1
    return "$rc"
}

# shellcheck disable=SC2317 # called by step
media_campaign() {
    configure_and_build "$BUILD_DIR" -DGPUNVME_WERROR=ON >/dev/null || return 1
    MEDIA_CASES=${MEDIA_CASES:-40000} "$BUILD_DIR/tests/media/media_test"
}

# shellcheck disable=SC2317 # called by step
mutants() {
    local since=${MUTATE_SINCE:-$(git describe --tags --abbrev=0 2>/dev/null || true)}
    python3 -B scripts/mutate.py --minutes "${MUTATE_MINUTES:-60}" ${since:+--since "$since"}
}

nightly() {
    case $1 in
    plain) step "tests, long" bash scripts/test.sh --long ;;
    asan) step "ASan + UBSan, long" bash scripts/test.sh --long --asan ;;
    tsan) step "TSan, all, long" bash scripts/test.sh --long --tsan ;;
    no-sim) step "without the simulator" bash scripts/test.sh --no-sim ;;
    crash) step "crash soak" crash_soak ;;
    media) step "damaged media" media_campaign ;;
    guest)
        export GPUNVME_KILL_ROUNDS=${GPUNVME_KILL_ROUNDS:-250}
        step "guest, all" bash scripts/guest-test.sh --all
        ;;
    roots) step "clean roots" bash scripts/roots-test.sh ;;
    packages) step "packages" bash scripts/package-test.sh ;;
    wheel) step "wheel" bash scripts/wheel.sh ;;
    judge) step "judges of sim" bash scripts/sim-judge.sh ;;
    lint) step "lint" bash scripts/lint.sh format style shell cppcheck tidy cxx analyzer clang ;;
    mutate) step "mutants" mutants ;;
    fuzz) step "fuzzers" bash scripts/fuzz.sh -t "${FUZZ_SECONDS:-600}" ;;
    esac
}

steps=()
for arg in "$@"; do
    case $arg in
    plain | asan | tsan | no-sim | crash | media | guest | roots | packages | wheel | judge | lint | \
        fuzz | mutate)
        steps+=("$arg")
        ;;
    *) other_argument "$arg" step ;;
    esac
done
[ "${#steps[@]}" -gt 0 ] ||
    steps=(plain asan tsan no-sim crash media guest roots packages wheel judge lint fuzz mutate)
for name in "${steps[@]}"; do
    nightly "$name"
done

steps_summary
exit "$STEPS_FAILED"
