#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Checks the packages: each has its files, together they have all that
# `cmake --install` installs, no file is in two of them, they install into an
# empty root, run there, and leave nothing when they are removed.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case ${1:-} in
-h | --help)
    echo "Usage: bash scripts/package-test.sh [BUILD_DIR [OUT]]   (a finished build; build/test)"
    echo "OUT: where the packages are left; by default nowhere."
    exit 0
    ;;
esac
build=$(cd "${1:-$GPUNVME_ROOT/build/test}" && pwd)
out=${2:+$(mkdir -p "$2" && cd "$2" && pwd)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

wrong() {
    warn "$*"
    failed=1
}

have dpkg-shlibdeps || die "dpkg-shlibdeps: not found, install dpkg-dev"
(cd "$build" && cpack -G DEB -B "$work/packages") >"$work/log" 2>&1 || {
    cat "$work/log"
    die "cpack: fails"
}
cd "$work/packages"
packages=(*.deb)

# file_of NAME: prints the file of the package.
file_of() {
    local package
    for package in "${packages[@]}"; do
        if [ "$(dpkg-deb -f "$package" Package)" = "$1" ]; then
            printf '%s\n' "$package"
        fi
    done
}

# has PACKAGE PATTERN...: checks that each pattern matches a path in the
# package.
has() {
    local name=$1 pattern package
    shift
    package=$(file_of "$name")
    if [ -z "$package" ]; then
        wrong "$name: no such package among ${packages[*]}"
        return 0
    fi
    dpkg-deb -c "$package" | awk '$1 !~ /^d/ { print $6 }' | tee -a "$work/files" >"$work/list"
    for pattern in "$@" "/usr/share/doc/$name/copyright"; do
        grep -q -- "$pattern" "$work/list" || wrong "$name: has no $pattern"
    done
    [ -n "$(dpkg-deb -f "$package" Description)" ] || wrong "$name: has no description"
}

major=$(sed -n 's/^project(gpunvmefs VERSION \([0-9]*\).*/\1/p' "$GPUNVME_ROOT/CMakeLists.txt")
has gpunvmefs /bin/gpunvmefs /bin/gpunvme /sbin/mkfs.gpunvme /sbin/fsck.gpunvme /sbin/dump.gpunvme
has "libgpunvme$major" "/libgpunvme.so.$major" /gpunvme/libcufile.so.0 /bin/gpunvme-run /cufile.json
has libgpunvme-dev /gpunvme/gpunvme.h /gpunvme.pc /gpunvmeConfig.cmake \
    '/libgpunvme.so$'
has python3-gpunvme /dist-packages/gpunvme/__init__.py /dist-packages/gpunvme/py.typed
# `cmake --install` shows what a build installs. The package of Python has its
# folder from another component.
cmake --install "$build" --prefix "$work/installed/usr" >/dev/null
missing=$( (cd "$work/installed" && find . ! -type d ! -path '*/site-packages/*' -printf '/%P\n') |
    sort | comm -23 - <(sed 's/^\.//; /\/man\//s/\.gz$//' "$work/files" | sort))
[ -z "$missing" ] || wrong "installed, but in no package: $missing"
twice=$(sort "$work/files" | uniq -d)
[ -z "$twice" ] || wrong "in two packages: $twice"
[[ $(dpkg-deb -f "$(file_of libgpunvme-dev)" Depends) = *"libgpunvme$major (= "* ]] ||
    wrong "libgpunvme-dev: does not depend on the library of its version"

# CPack calls ldconfig in addition to the trigger, which cannot be disabled. A
# build that was not configured for /usr has its libraries in lib and not in the
# folder of the architecture.
if have lintian; then
    lintian --allow-root --fail-on error,warning --suppress-tags \
        maintscript-calls-ldconfig,pkg-config-unavailable-for-cross-compilation \
        "${packages[@]}" >"$work/lintian" 2>&1 || {
        cat "$work/lintian"
        wrong "lintian: has findings"
    }
else
    warn "lintian: not here, the packages are not looked at by it"
fi

# Installs into a separate root. Dependencies are those of the machine.
root=$work/root
in_root() {
    dpkg --root="$root" --force-depends --force-not-root --force-script-chrootless \
        --log="$work/dpkg.log" "$@" >>"$work/log" 2>&1
}

mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates"
touch "$root/var/lib/dpkg/status"
if ! in_root --no-triggers -i "${packages[@]}"; then
    tail -n 20 "$work/log"
    wrong "dpkg -i: fails"
fi
library=$(dirname "$(find "$root" -name "libgpunvme.so.$major")")
"$root/usr/bin/gpunvme" --version >/dev/null || wrong "gpunvme: does not run where it is installed"
# shellcheck disable=SC2016 # the program that is run expands it
"$root/usr/bin/gpunvme-run" sh -c 'test -e "${LD_PRELOAD%%:*}"' || wrong "gpunvme-run: no library"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' && {
    PYTHONPATH=$root/usr/lib/python3/dist-packages LD_LIBRARY_PATH=$library PYTHONDONTWRITEBYTECODE=1 \
        python3 -c 'import gpunvme; print(gpunvme.__version__)' >/dev/null ||
        wrong "python3-gpunvme: cannot be imported"
}
in_root --no-triggers --purge gpunvmefs "libgpunvme$major" libgpunvme-dev python3-gpunvme ||
    wrong "dpkg --purge: fails"
left=$(find "$root" -path "$root/var" -prune -o -type f -print)
[ -z "$left" ] || wrong "left behind: $left"

if [ -n "$out" ] && [ "$failed" = 0 ]; then
    cp "${packages[@]}" "$out"
fi
[ "$failed" = 1 ] || say "packages: ${packages[*]} install, run and are removed"
exit "$failed"
