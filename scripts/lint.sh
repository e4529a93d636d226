#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Checks formatting, and runs static analysis and clang's warnings. Prints every
# finding and fails if there is one.
# shellcheck disable=SC2317 # the steps are called by name
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'USAGE'
Usage: bash scripts/lint.sh [STEP...]
Steps, all of them but analyzer and clang without an argument:
  format    clang-format over C, C++ and CUDA files
  style     tests/style without those that need a build
  shell     shellcheck over the scripts
  cppcheck  cppcheck over the C files
  tidy      clang-tidy over the C files; clang's analyzer follows short functions only
  cxx       clang's warnings of the C++ files (four minutes of a processor)
  analyzer  clang-tidy over the C files, with the whole of clang's analyzer (ten minutes of a
            processor)
  clang     programs and fuzzers built by clang, instrumented (ASan, UBSan); scripts/fuzz.sh
BUILD_DIR (build/test) is a configured build, of which tidy, cxx and analyzer need the compiler's
arguments alone;
BUILD_DIR-clang is the clang build's folder. FUZZ_SECONDS: how long each fuzzer runs (10).
What clang-tidy and cppcheck found clean is remembered in the user's cache folder, gpunvme/.
USAGE
}

cd "$GPUNVME_ROOT"
BUILD_DIR=${BUILD_DIR:-$GPUNVME_ROOT/build/test}
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/gpunvme

lint_format() {
    local files
    mapfile -t files < <(tree_files '*.c' '*.h' '*.cc' '*.cu' '*.cuh')
    "clang-format-$GPUNVME_CLANG" --dry-run -Werror "${files[@]}"
}

lint_style() {
    local check
    for check in includes size docs declarations licence comments; do
        python3 -B "tests/style/check_$check.py" --self-test >/dev/null
        python3 -B "tests/style/check_$check.py" .
    done
}

lint_shell() {
    local files
    mapfile -t files < <(tree_files '*.sh' '.ci/run')
    shellcheck -x "${files[@]}"
}

# cppcheck reads no headers of the system, so it needs the macros of <sys/queue.h>
# with which members are declared and lists are walked.
lint_cppcheck() {
    local files list
    mapfile -t files < <(tree_files '*.c' | grep -v '^tests/')
    mkdir -p "$CACHE/cppcheck"
    for list in LIST STAILQ TAILQ; do
        echo "#define ${list}_HEAD(name, type) struct name { struct type *lh_first; }"
        echo "#define ${list}_FOREACH(v, head, field) for (v = (head)->lh_first; v; v = v->field)"
    done >"$CACHE/queue.h"
    cppcheck --cppcheck-build-dir="$CACHE/cppcheck" --quiet --std=c11 --inline-suppr \
        --enable=warning,performance,portability --suppressions-list=.cppcheck-suppressions \
        --suppress=unmatchedSuppression --error-exitcode=1 \
        -D_GNU_SOURCE --include="$CACHE/queue.h" -I . -I include -j "$(nproc)" "${files[@]}"
}

# Provides the compiler's arguments from a configured build, which need not have
# been built.
compile_commands() {
    if [ -e "$BUILD_DIR/build.ninja" ]; then
        ninja -C "$BUILD_DIR" build.ninja
    else
        configure "$BUILD_DIR" -DGPUNVME_WERROR=ON
    fi >/dev/null
}

# CUDA files have arguments of nvcc that clang does not accept.
lint_tidy() {
    compile_commands
    python3 -B scripts/tidy.py --version "$GPUNVME_CLANG" --build "$BUILD_DIR" --suffix .c --shallow
}

# C++ files consist mostly of gtest's macros, so they get only clang's own
# warnings.
lint_cxx() {
    compile_commands
    python3 -B scripts/tidy.py --version "$GPUNVME_CLANG" --build "$BUILD_DIR" --suffix .cc \
        --checks='-*,clang-diagnostic-*,readability-duplicate-include'
}

lint_analyzer() {
    compile_commands
    python3 -B scripts/tidy.py --version "$GPUNVME_CLANG" --build "$BUILD_DIR" --suffix .c
}

lint_clang() {
    local programs=(prog_gpunvme{,fs,-sim} prog_{mkfs,fsck,dump}.gpunvme)
    CC=clang-$GPUNVME_CLANG CXX=clang++-$GPUNVME_CLANG configure "$BUILD_DIR-clang" \
        -DGPUNVME_CUDA=OFF -DGPUNVME_WERROR=ON -DGPUNVME_FUZZ=ON >/dev/null
    build "$BUILD_DIR-clang" --target "${programs[@]}"
    GPUNVME_NO_SETUP=1 bash scripts/fuzz.sh
}

steps=()
for arg in "$@"; do
    case $arg in
    format | style | shell | cppcheck | tidy | cxx | analyzer | clang) steps+=("$arg") ;;
    *) other_argument "$arg" step ;;
    esac
done
[ "${#steps[@]}" -gt 0 ] || steps=(format style shell cppcheck tidy cxx)
run_setup --lint

results=() failed=0
for step in "${steps[@]}"; do
    say "lint: $step"
    start=$SECONDS
    # The step runs in a subshell with errexit, which 'if lint_X' would disable.
    set +e
    (
        set -e
        "lint_$step"
    )
    rc=$?
    set -e
    if [ "$rc" = 0 ]; then
        results+=("$step: clean ($((SECONDS - start)) s)")
    else
        results+=("$step: FINDINGS, exit $rc ($((SECONDS - start)) s)")
        failed=1
    fi
done
say "lint: summary"
printf '%s\n' "${results[@]}"
exit "$failed"
