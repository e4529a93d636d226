#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Checks that an installed tree serves other projects: the programs are in their
# places and find their library, and a C program that knows only the prefix
# compiles against it and runs, by pkg-config and by CMake. If nvcc is
# available, kernels compile against the headers for devices. Programs,
# libraries and the unit of systemd are hardened.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case ${1:-} in
-h | --help)
    echo "Usage: bash scripts/install-test.sh [BUILD_DIR]   (a finished build; build/test)"
    exit 0
    ;;
esac
build=${1:-$GPUNVME_ROOT/build/test}
src=$GPUNVME_ROOT/tests/install
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT

cmake --install "$build" --prefix "$prefix" >/dev/null
failed=0
for program in bin/gpunvme{,fs,-sim} sbin/{mkfs,fsck,dump,tune}.gpunvme sbin/fsck.fuse.gpunvmefs \
    sbin/umount.fuse{,blk}.gpunvmefs; do
    if [ ! -x "$prefix/$program" ]; then
        warn "$program: not installed, its folder's CMakeLists.txt needs gpunvme_program()"
        failed=1
    elif ! "$prefix/$program" --help >/dev/null; then
        warn "$program: --help fails"
        failed=1
    fi
done

lacks() {
    warn "$1: lacks $2, see the hardening in cmake/options.cmake"
    failed=1
}

# Checks the effects of the flags in cmake/options.cmake. The first instruction
# of a function that other files may call shows whether indirect branches are
# checked.
check_hardened() {
    local file=$1 headers names entry
    headers=$(readelf -hldW "$file")
    names=$(nm -D "$file" | awk '{ print $NF }')
    grep -q 'Type: *DYN ' <<<"$headers" || lacks "$file" "position independence"
    grep -q ' GNU_RELRO ' <<<"$headers" || lacks "$file" "relro"
    grep -q 'BIND_NOW' <<<"$headers" || lacks "$file" "bind now"
    grep -q ' GNU_STACK .* RW ' <<<"$headers" || lacks "$file" "a stack without execution"
    grep -q '^__stack_chk_fail' <<<"$names" || lacks "$file" "the stack protector"
    grep -q '^__[a-z]*_chk@' <<<"$names" || lacks "$file" "_FORTIFY_SOURCE"
    [ "$(uname -m)" = x86_64 ] || return 0
    entry=$(nm "$file" | awk '$2 == "T" && $3 !~ /^_/ && (!e || $3 == "main") { e = $3 }
                              END { print e }')
    grep -q endbr64 <<<"$(objdump -d --disassemble="$entry" "$file")" ||
        lacks "$file" "control-flow protection"
}

elf_files=0
while IFS= read -r file; do
    [ "$(head -c 4 "$file" | tail -c 3)" = ELF ] || continue
    elf_files=$((elf_files + 1))
    check_hardened "$file"
done < <(find "$prefix" -type f -perm -u+x -o -type f -name '*.so*')
[ "$elf_files" -ge 9 ] || lacks "$prefix" "programs and libraries: $elf_files found"

# Checks the unit with systemd: it must have no unknown key, and an exposure of
# at most 5.5 of 10. Manuals are not where systemd looks for them.
if have systemd-analyze; then
    unit=$prefix/lib/systemd/system/gpunvmefs@.service
    systemd-analyze verify "$unit" 2>&1 | grep -v 'failed with code 16' >&2 && {
        warn "$unit: systemd does not understand it"
        failed=1
    }
    systemd-analyze security --offline=true --threshold=55 "$unit" >"$prefix/security" 2>&1 || {
        warn "$unit: $(tail -n 1 "$prefix/security")"
        failed=1
    }
fi

for program in gpunvmefs "gpunvme cache"; do
    unit=$prefix/lib/systemd/system/${program/ /-}@.service
    if ! grep -q "^ExecStart=$prefix/bin/$program " "$unit"; then
        warn "$unit: not installed, or does not start $prefix/bin/$program"
        failed=1
    fi
done

pc=$(find "$prefix" -name gpunvme.pc)
[ -n "$pc" ] || die "gpunvme.pc: not installed"
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
read -r -a flags < <(pkg-config --cflags --libs gpunvme)
gcc -std=c11 -Wall -Wextra -Werror "$src/uses_library.c" -o "$prefix/uses_library" "${flags[@]}"
LD_LIBRARY_PATH=$(pkg-config --variable=libdir gpunvme) "$prefix/uses_library" || {
    warn "uses_library: fails when built with pkg-config"
    failed=1
}

# Compiles each public header alone, in every language from which it may be
# included.
headers=$(dirname "$(find "$prefix" -name gpunvme.h)")
for header in "$headers"/gpunvme{,_ioctl}.h; do
    for language in "c -std=c99" "c -std=c11" "c -std=c17" "c++ -std=c++11" "c++ -std=c++20"; do
        # shellcheck disable=SC2086 # two words
        gcc -x $language -Wall -Wextra -Wpedantic -Werror -fsyntax-only "$header" || {
            warn "${header##*/}: does not compile by gcc -x $language -Wpedantic"
            failed=1
        }
    done
done

# Checks that every exported symbol is versioned and declared in a header.
library=$(find "$prefix" -name 'libgpunvme.so.*' -type f)
while read -r symbol; do
    name=${symbol%%@*}
    if [ "$name" = "$symbol" ] || ! grep -qw "$name" "$headers"/*.h; then
        warn "$symbol: exported without a version, or declared in no header"
        failed=1
    fi
done < <(nm -D --defined-only "$library" | awk '$2 == "T" || $2 == "D" || $2 == "B" { print $3 }')

cmake -S "$src" -B "$prefix/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build "$prefix/build" >/dev/null
"$prefix/build/uses_library" || {
    warn "uses_library: fails when built with CMake"
    failed=1
}
for example in "$GPUNVME_ROOT"/examples/*.c; do
    gcc -Wall -Wextra -Werror "$example" -o "$prefix/example" "${flags[@]}" || {
        warn "$example: does not compile against the installed headers"
        failed=1
    }
done
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if [ ! -x "$nvcc" ]; then
    say "install: no nvcc, gpunvme_device.h and the CUDA examples are not compiled"
else
    for source in "$src/uses_device.cu" "$GPUNVME_ROOT"/examples/*.cu; do
        "$nvcc" -std=c++17 -arch=compute_80 -Xcompiler=-Wall,-Wextra -Werror=all-warnings \
            "$(pkg-config --cflags gpunvme)" -c -o "$prefix/device.o" "$source" || {
            warn "$source: does not compile against the installed headers"
            failed=1
        }
    done
fi
[ "$failed" = 1 ] || say "install: programs, library, header, pkg-config and CMake package work"
exit "$failed"
