#!/bin/bash
# Formatting, static analysis and a build with clang. Prints every finding, fails if there is one.
# shellcheck disable=SC2317 # the steps are called by name
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'USAGE'
Usage: bash scripts/lint.sh [STEP...]
Steps, all of them without an argument:
  format    clang-format over C, C++ and CUDA files
  style     include rules, sizes of files and functions, names in documents
  shell     shellcheck over the scripts
  cppcheck  cppcheck over the C files
  tidy      clang-tidy over the C files, with clang's own warnings
  clang     programs and fuzzers built by clang, instrumented (ASan, UBSan); the fuzzers run
            briefly; clang's warnings of the tests
BUILD_DIR (build/lint) is the clang build's folder.
USAGE
}

cd "$GPUNVME_ROOT"
BUILD_DIR=${BUILD_DIR:-build/lint}

lint_format() {
    local files
    mapfile -t files < <(tree_files '*.c' '*.h' '*.cc' '*.cu' '*.cuh')
    "clang-format-$GPUNVME_CLANG" --dry-run -Werror "${files[@]}"
}

lint_style() {
    local check
    for check in includes size docs; do
        python3 -B "tests/style/check_$check.py" --self-test >/dev/null
        python3 -B "tests/style/check_$check.py" .
    done
}

lint_shell() {
    local files
    mapfile -t files < <(tree_files '*.sh' '.ci/run')
    shellcheck -x "${files[@]}"
}

lint_cppcheck() {
    local files
    mapfile -t files < <(tree_files '*.c' | grep -v '^tests/')
    cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr \
        --error-exitcode=1 --suppressions-list=.cppcheck-suppressions --suppress=unmatchedSuppression \
        -D_GNU_SOURCE -I . -I include -j "$(nproc)" "${files[@]}"
}

configure_clang() {
    CC=clang-$GPUNVME_CLANG CXX=clang++-$GPUNVME_CLANG cmake -S . -B "$BUILD_DIR" -G Ninja \
        -DGPUNVME_CUDA=OFF -DGPUNVME_WERROR=ON -DGPUNVME_FUZZ=ON >"$1"
}

# run_tidy PATTERN [ARGUMENT...]: prints the findings only.
run_tidy() {
    local pattern=$1 log rc=0
    shift
    log=$(mktemp)
    "run-clang-tidy-$GPUNVME_CLANG" -quiet -p "$BUILD_DIR" -j "$(nproc)" "$@" "$pattern" \
        >"$log" 2>&1 || rc=$?
    if [ "$rc" != 0 ]; then
        sed -i 's/\x1b\[[0-9;]*m//g' "$log"
        grep -E -A 4 '(warning|error):' "$log" || cat "$log"
    fi
    rm -f "$log"
    return "$rc"
}

lint_tidy() {
    configure_clang /dev/null
    echo "clang-tidy: C files; not tests/**/*.cc (findings about gtest's macros) nor .cu (nvcc's flags)"
    run_tidy "^$GPUNVME_ROOT/.*\\.c$"
}

# The tests are compiled for clang's warnings, but not built: gtest costs minutes. Of it only the
# precompiled header is built, which half of each look at a test would go into otherwise.
lint_clang() {
    configure_clang /dev/null
    local fuzzers programs=(prog_gpunvme{,fs,-sim} prog_{mkfs,fsck,dump}.gpunvme)
    mapfile -t fuzzers < <(ctest --test-dir "$BUILD_DIR" -N -L fuzz | sed -n 's/^ *Test *#[0-9]*: //p')
    cmake --build "$BUILD_DIR" -j "$(jobs_for_build)" --target "${programs[@]}" "${fuzzers[@]}" \
        gtest_header
    echo "clang: tests/**/*.cc for warnings only, not run (gcc's builds are)"
    run_tidy "^$GPUNVME_ROOT/.*\\.cc$" '-checks=-*,clang-diagnostic-*,readability-duplicate-include'
    if [ "${#fuzzers[@]}" -gt 0 ]; then
        ctest --test-dir "$BUILD_DIR" -L fuzz --output-on-failure -j "$(nproc)"
    fi
}

steps=()
for arg in "$@"; do
    case $arg in
    format | style | shell | cppcheck | tidy | clang) steps+=("$arg") ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        usage >&2
        die "$arg: no such step"
        ;;
    esac
done
[ "${#steps[@]}" -gt 0 ] || steps=(format style shell cppcheck tidy clang)
run_setup --lint

results=() failed=0
for step in "${steps[@]}"; do
    say "lint: $step"
    start=$SECONDS
    # In a subshell of its own with errexit: a plain 'if lint_X' would switch errexit off inside.
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
