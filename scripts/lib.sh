# SPDX-License-Identifier: BSD-2-Clause
# shellcheck shell=bash
# Functions that the scripts share, which source this file. The caller has set
# -euo pipefail.

# With a closed standard input the first opened file would become descriptor 0.
# No script reads standard input.
exec </dev/null

GPUNVME_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
GPUNVME_SELF=${0##*/}
# The findings of clang tools differ between versions, so one version is fixed.
# shellcheck disable=SC2034 # used by the scripts that source this
GPUNVME_CLANG=14

say() {
    printf '== %s\n' "$*"
}

warn() {
    printf '%s: %s\n' "$GPUNVME_SELF" "$*" >&2
}

die() {
    warn "$*"
    exit 1
}

# Handles an argument that is not in a script's table. For help it prints
# usage(), which the script defines.
other_argument() { # ARGUMENT [KIND]
    case $1 in
    -h | --help)
        usage
        exit 0
        ;;
    esac
    usage >&2
    die "$1: no such ${2:-option}"
}

have() {
    command -v "$1" >/dev/null 2>&1
}

# Prints the number of compile jobs: one per processor, but at most one per GiB
# of available memory.
jobs_for_build() {
    local cpus mem_gib
    cpus=$(nproc)
    mem_gib=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)
    if [ "${mem_gib:-0}" -ge 1 ] && [ "$mem_gib" -lt "$cpus" ]; then
        cpus=$mem_gib
    fi
    printf '%s\n' "$cpus"
}

# Installs missing packages, unless GPUNVME_NO_SETUP=1 asserts that the machine
# has them.
run_setup() {
    if [ "${GPUNVME_NO_SETUP:-0}" = 1 ]; then
        say "set-up skipped (GPUNVME_NO_SETUP=1)"
        return 0
    fi
    bash "$GPUNVME_ROOT/scripts/setup.sh" "$@"
}

# GPUNVME_PREFIX=/some/root names a root into which libraries were unpacked, for
# example by `dpkg -x`, instead of installed. Their .pc files have prefix=/usr
# and require packages that only static linking needs, and development links may
# point to /lib; build/prefix has copies in which all three are corrected.
CMAKE_PREFIX_ARGS=()
use_prefix() {
    local root=${GPUNVME_PREFIX:-} ours=$GPUNVME_ROOT/build/prefix triple dir file
    [ -n "$root" ] || return 0
    [ -d "$root/usr" ] || die "$root: no usr/ below it, set GPUNVME_PREFIX to an unpacked root"
    root=$(cd "$root" && pwd)
    triple=$(gcc -print-multiarch)
    rm -rf "$ours"
    mkdir -p "$ours/lib" "$ours/pkgconfig"
    for dir in "$root/lib" "$root/usr/lib" "$root/lib/$triple" "$root/usr/lib/$triple"; do
        for file in "$dir"/lib*.so*; do
            # The C library must be that of the running system.
            case ${file##*/} in
            libc.so* | libm.so* | libmvec.so* | libpthread.so* | libdl.so* | librt.so*) continue ;;
            esac
            if [ -L "$file" ] && [[ $(readlink "$file") = /* ]]; then
                ln -sf "$root$(readlink "$file")" "$ours/lib/${file##*/}"
            elif [ -e "$file" ]; then
                ln -sf "$file" "$ours/lib/${file##*/}"
            fi
        done
        for file in "$dir"/pkgconfig/*.pc; do
            [ -e "$file" ] || continue
            sed -e "s,^prefix=.*,prefix=$root/usr," -e "s,^libdir=.*,libdir=$ours/lib," \
                -e "s,^includedir=/usr,includedir=$root/usr," -e '/^Requires.private:/d' \
                "$file" >"$ours/pkgconfig/${file##*/}"
        done
    done
    export PKG_CONFIG_PATH=$ours/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
    export LD_LIBRARY_PATH=$ours/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export PATH=$PATH:$root/usr/bin:$root/bin:$root/usr/sbin:$root/sbin
    CMAKE_PREFIX_ARGS=("-DCMAKE_PREFIX_PATH=$root/usr"
        "-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,$ours/lib"
        "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-rpath-link,$ours/lib")
}

# Uses ccache if it is installed. Its keys contain paths relative to the tree
# and no build folder, so that a fresh clone uses results of another one.
# Precompiled headers need the sloppiness; the tree does not use __TIME__. The
# inode cache stores hashes of files, since otherwise the precompiled header of
# 75 MB is read once for each test. If ccache has been removed, it is also
# removed from a configured folder.
CMAKE_LAUNCHER_ARGS=()
use_ccache() {
    local launcher='' language
    if have ccache; then
        launcher=ccache
        export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$GPUNVME_ROOT} CCACHE_NOHASHDIR=1
        export CCACHE_INODECACHE=1
        export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    fi
    CMAKE_LAUNCHER_ARGS=()
    for language in C CXX CUDA; do
        CMAKE_LAUNCHER_ARGS+=("-DCMAKE_${language}_COMPILER_LAUNCHER=$launcher")
    done
}

# configure DIR [CMAKE-ARGUMENT...]: configures a build folder.
# GPUNVME_CUDA_ARCHITECTURES replaces the CUDA architectures to compile for, and
# with GPUNVME_TESTS_IN_ALL=OFF build() builds tests only by name. The lock keeps
# steps that run at the same time from configuring or building one folder at once.
configure() {
    local dir=$1
    shift
    use_ccache
    mkdir -p "$dir"
    flock -o "$dir" cmake -S "$GPUNVME_ROOT" -B "$dir" -G Ninja "${CMAKE_LAUNCHER_ARGS[@]}" \
        ${CMAKE_PREFIX_ARGS[@]+"${CMAKE_PREFIX_ARGS[@]}"} \
        -DGPUNVME_TESTS_IN_ALL="${GPUNVME_TESTS_IN_ALL:-ON}" \
        ${GPUNVME_CUDA_ARCHITECTURES:+"-DGPUNVME_CUDA_ARCHITECTURES=$GPUNVME_CUDA_ARCHITECTURES"} \
        ${GPUNVME_NIXL_SOURCE:+"-DGPUNVME_NIXL_SOURCE=$GPUNVME_NIXL_SOURCE"} "$@"
}

# build DIR [CMAKE-BUILD-ARGUMENT...]: builds in a configured folder.
build() {
    local dir=$1
    shift
    use_ccache
    flock -o "$dir" cmake --build "$dir" -j "$(jobs_for_build)" "$@"
}

# configure_and_build DIR [CMAKE-ARGUMENT...]: does both.
configure_and_build() {
    configure "$@" && build "$1"
}

# The results of a run of several steps. A failed step does not end the run, so
# that one run shows all failures.
STEPS=() STEPS_FAILED=0
# scripts/test.sh appends the closing lines of ctest to this file.
GPUNVME_CLOSING=${GPUNVME_CLOSING:-}

# Records the result of a step.
record_step() { # NAME STATUS SECONDS
    if [ "$2" = 0 ]; then
        STEPS+=("$(printf '%-22s passed  %4d s' "$1" "$3")")
    else
        STEPS+=("$(printf '%-22s FAILED  %4d s  exit %d' "$1" "$3" "$2")")
        # shellcheck disable=SC2034 # the scripts exit with it
        STEPS_FAILED=1
    fi
}

# step NAME COMMAND...: runs a step and records its result.
step() {
    local name=$1 start=$SECONDS rc=0
    shift
    say "$GPUNVME_SELF: $name"
    "$@" || rc=$?
    record_step "$name" "$rc" $((SECONDS - start))
}

# BESIDE_PID has the processes of the steps that run in the background, by name.
declare -A BESIDE_PID=()
BESIDE_DIR='' AHEAD_LAST=''

# step_beside NAME COMMAND...: starts a step that runs at the same time as the
# following ones.
step_beside() {
    start_beside "$1" '' "${@:2}"
}

# step_ahead NAME COMMAND...: starts a step that computes only while the
# processors are idle (SCHED_IDLE), because tests wait most of their time. It
# begins after the previous one of these steps.
step_ahead() {
    start_beside "$1" "$AHEAD_LAST" chrt -i 0 "${@:2}"
    AHEAD_LAST=${BESIDE_PID[$1]}
}

start_beside() { # NAME PID-TO-WAIT-FOR COMMAND...
    local name=$1 before=$2 start rc=0
    shift 2
    [ -n "$BESIDE_DIR" ] || BESIDE_DIR=$(mktemp -d)
    (
        [ -z "$before" ] || tail --pid="$before" -f /dev/null
        start=$SECONDS
        setsid "$@" >"$BESIDE_DIR/$name.log" 2>&1 &
        echo $! >"$BESIDE_DIR/$name.group"
        wait $! || rc=$?
        echo "$rc $((SECONDS - start))" >"$BESIDE_DIR/$name.end"
    ) &
    BESIDE_PID[$name]=$!
}

# Ends what step_beside() and step_ahead() have started and is not done, with its
# processes, when the caller exits.
steps_stop() {
    local pid group
    [ -n "$BESIDE_DIR" ] || return 0
    for pid in "${BESIDE_PID[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    for group in "$BESIDE_DIR"/*.group; do
        [ -e "${group%.group}.end" ] || kill -- "-$(cat "$group")" 2>/dev/null || true
    done
    rm -rf "$BESIDE_DIR"
}

# step_end NAME: waits for a step of step_beside() or step_ahead(), prints its
# output and records its result.
step_end() {
    local rc=1 seconds=0
    say "$GPUNVME_SELF: $1"
    wait "${BESIDE_PID[$1]}" || true
    cat "$BESIDE_DIR/$1.log" || true
    read -r rc seconds <"$BESIDE_DIR/$1.end" || true
    record_step "$1" "$rc" "$seconds"
}

# Prints the table of the steps, followed by the closing lines of their tests.
steps_summary() {
    say "$GPUNVME_SELF: summary ($SECONDS s)"
    printf '%s\n' "${STEPS[@]}"
    if [ -s "$GPUNVME_CLOSING" ]; then
        cat "$GPUNVME_CLOSING"
    fi
}

# Prints the files of the tree that match the patterns, one per line, relative
# to the top. These are the files that git tracks and new ones that it does not
# ignore, or, in an unpacked archive, all files outside build folders.
tree_files() {
    if git -C "$GPUNVME_ROOT" rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git -C "$GPUNVME_ROOT" ls-files -co --exclude-standard -- "$@" | while IFS= read -r file; do
            if [ -f "$GPUNVME_ROOT/$file" ]; then printf '%s\n' "$file"; fi
        done
        return
    fi
    local pattern args=()
    for pattern in "$@"; do
        args+=(-o -name "$pattern")
    done
    (cd "$GPUNVME_ROOT" && find . -path './build*' -prune -o -type f \( -false "${args[@]}" \) -print) |
        sed 's,^\./,,'
}
