# shellcheck shell=bash
# Common to the scripts: sourced, never run. The caller has set -euo pipefail.

# A closed standard input would make the first file opened descriptor 0; nothing here reads it.
exec </dev/null

GPUNVME_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
GPUNVME_SELF=${0##*/}
# The clang tools differ from version to version in what they say, so one version is named.
# shellcheck disable=SC2034 # used by those who source this
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

have() {
    command -v "$1" >/dev/null 2>&1
}

# Compile jobs: one a processor, and no more than a GiB of memory each allows.
jobs_for_build() {
    local cpus mem_gib
    cpus=$(nproc)
    mem_gib=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)
    if [ "${mem_gib:-0}" -ge 1 ] && [ "$mem_gib" -lt "$cpus" ]; then
        cpus=$mem_gib
    fi
    printf '%s\n' "$cpus"
}

# Installs what is missing, unless the caller vouches for the machine with GPUNVME_NO_SETUP=1.
run_setup() {
    if [ "${GPUNVME_NO_SETUP:-0}" = 1 ]; then
        say "set-up skipped (GPUNVME_NO_SETUP=1)"
        return 0
    fi
    bash "$GPUNVME_ROOT/scripts/setup.sh" "$@"
}

# GPUNVME_PREFIX=/some/root: libraries unpacked under /some/root/usr (as `dpkg -x` does) instead of
# installed. Their .pc files say prefix=/usr, so pkg-config is told where that really is.
CMAKE_PREFIX_ARGS=()
use_prefix() {
    local root=${GPUNVME_PREFIX:-} triple
    [ -n "$root" ] || return 0
    [ -d "$root/usr" ] || die "$root: no usr/ below it, set GPUNVME_PREFIX to an unpacked root"
    root=$(cd "$root" && pwd)
    triple=$(gcc -print-multiarch 2>/dev/null || true)
    local lib=$root/usr/lib${triple:+/$triple}
    export PKG_CONFIG_SYSROOT_DIR=$root
    export PKG_CONFIG_LIBDIR=$lib/pkgconfig:$root/usr/lib/pkgconfig:$root/usr/share/pkgconfig
    export LD_LIBRARY_PATH=$lib:$root/lib${triple:+/$triple}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LIBRARY_PATH=$lib${LIBRARY_PATH:+:$LIBRARY_PATH}
    export CPATH=$root/usr/include${CPATH:+:$CPATH}
    export PATH=$root/usr/bin:$root/bin:$PATH
    CMAKE_PREFIX_ARGS=("-DCMAKE_PREFIX_PATH=$root/usr"
        "-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,$lib"
        "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-rpath-link,$lib")
}

# configure_and_build DIR [CMAKE-ARGUMENT...]
configure_and_build() {
    local dir=$1
    shift
    cmake -S "$GPUNVME_ROOT" -B "$dir" -G Ninja \
        ${CMAKE_PREFIX_ARGS[@]+"${CMAKE_PREFIX_ARGS[@]}"} "$@" || return 1
    cmake --build "$dir" -j "$(jobs_for_build)"
}

# The files of the tree that match the patterns, one a line, relative to the top: those git tracks
# and new ones that it does not ignore; in an unpacked archive all but build folders.
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
