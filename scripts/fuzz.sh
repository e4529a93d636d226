#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Builds and runs the fuzzers (libFuzzer, with ASan and UBSan). The corpora stay
# in the build folder, so that a run continues from the last one. Each finding
# is printed with the command that replays it.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'USAGE'
Usage: bash scripts/fuzz.sh [-t SECONDS] [-l] [TARGET...]
  -t, --time SECONDS   how long each target runs (FUZZ_SECONDS, or 10)
  -l, --list           print the targets and end
Without TARGET all of them run, as many at once as there are processors.
BUILD_DIR-clang (build/test-clang) is the build's folder. GPUNVME_NO_SETUP=1 installs nothing.
USAGE
}

BUILD=${BUILD_DIR:-$GPUNVME_ROOT/build/test}-clang
seconds=${FUZZ_SECONDS:-10} list=0 wanted=()
while [ $# -gt 0 ]; do
    case $1 in
    -l | --list) list=1 ;;
    -t | --time)
        [ $# -gt 1 ] || die "$1: needs a number of seconds"
        seconds=$2
        shift
        ;;
    -*) other_argument "$1" ;;
    *) wanted+=("$1") ;;
    esac
    shift
done
[[ $seconds =~ ^[1-9][0-9]*$ ]] || die "$seconds: not a number of seconds"

[ "$list" = 1 ] || run_setup --lint
CC=clang-$GPUNVME_CLANG CXX=clang++-$GPUNVME_CLANG configure "$BUILD" -DGPUNVME_CUDA=OFF \
    -DGPUNVME_WERROR=ON -DGPUNVME_FUZZ=ON -DGPUNVME_FUZZ_SECONDS="$seconds" >/dev/null
mapfile -t targets < <(ctest --test-dir "$BUILD" -N -L fuzz | sed -n 's/^ *Test *#[0-9]*: //p')
[ "${#targets[@]}" -gt 0 ] || die "$BUILD: has no fuzzers"
if [ "$list" = 1 ]; then
    printf '%s\n' "${targets[@]}"
    exit 0
fi
for target in ${wanted[@]+"${wanted[@]}"}; do
    printf '%s\n' "${targets[@]}" | grep -qxF -- "$target" ||
        die "$target: no such fuzzer, see --list"
done
[ "${#wanted[@]}" -eq 0 ] || targets=("${wanted[@]}")

# The file of a finding is in the folder in which ctest ran the fuzzer.
print_findings() {
    local target binary file
    for target in "${targets[@]}"; do
        binary=$(find "$BUILD/tests" -type f -name "$target" -perm -u+x)
        while IFS= read -r file; do
            warn "$target: replay with: $binary $file"
        done < <(find "$(dirname "$binary")" -maxdepth 1 -newer "$BUILD/fuzz-began" -type f \
            \( -name 'crash-*' -o -name 'timeout-*' -o -name 'leak-*' -o -name 'oom-*' \))
    done
}

build "$BUILD" --target "${targets[@]}"
touch "$BUILD/fuzz-began"
pattern=$(printf '|%s' "${targets[@]}")
rc=0
ctest --test-dir "$BUILD" -R "^(${pattern:1})\$" --no-tests=error --output-on-failure \
    -j "$(nproc)" || rc=$?
[ "$rc" = 0 ] || print_findings
exit "$rc"
