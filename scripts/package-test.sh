#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Builds the Debian packages from debian/ and checks that together they have all
# files of `cmake --install`, and that lintian finds nothing. In a copy of this
# system they are installed, tested, upgraded below a mount and purged.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'USAGE'
Usage: bash scripts/package-test.sh [OUT]
OUT: where the packages are left; by default nowhere.
The packages are installed in an overlay over this system's root, by root only.
With GPUNVME_NIXL_SOURCE (CONTRIBUTING.md) also the package gpunvme-nixl is built.
GPUNVME_CUDA_ARCHITECTURES, if set, replaces the architectures of the device code (80;90).
GPUNVME_NO_SETUP=1 installs nothing (debhelper, lintian, and what the build needs).
USAGE
}

case ${1:-} in
-*) other_argument "$1" ;;
esac
out=${1:+$(mkdir -p "$1" && cd "$1" && pwd)}
run_setup --package
use_prefix
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source=$work/gpunvmefs
failed=0

wrong() {
    warn "$*"
    failed=1
}

# debhelper sets HOME to a folder of the build, where ccache has no objects.
build_packages() {
    mkdir "$source"
    (cd "$GPUNVME_ROOT" && tree_files '*' | tar -c --no-recursion --files-from=-) |
        tar -x -C "$source"
    if have ccache; then
        CCACHE_DIR=$(ccache --get-config cache_dir)
        export CCACHE_DIR CCACHE_BASEDIR=$source CCACHE_NOHASHDIR=1
        export CMAKE_{C,CXX,CUDA}_COMPILER_LAUNCHER=ccache
    fi
    [ -z "${GPUNVME_NIXL_SOURCE:-}" ] || export DEB_BUILD_PROFILES=pkg.gpunvmefs.nixl
    (cd "$source" && DEB_BUILD_OPTIONS="noautodbgsym parallel=$(jobs_for_build)" \
        dpkg-buildpackage -b -us -uc -d) >"$work/log" 2>&1 || {
        tail -n 40 "$work/log"
        die "dpkg-buildpackage: fails"
    }
}

# The packages compress manual pages and changelogs; some pages are links.
check_contents() {
    local missing twice package page
    for package in *.deb; do
        dpkg-deb -c "$package" | awk '$1 !~ /^d/ { sub(/^\./, "", $6); print $6 }'
    done | sort >"$work/files"
    DESTDIR=$work/installed cmake --install "$source"/obj-* >/dev/null
    missing=$( (cd "$work/installed" && find . ! -type d -printf '/%P\n') |
        sed 's,/doc/gpunvmefs/examples/,/doc/libgpunvme-dev/examples/,' |
        sort | comm -23 - <(sed '/\/man\//s/\.gz$//' "$work/files" | sort))
    [ -z "$missing" ] || wrong "installed, but in no package: $missing"
    # man(1) runs tbl only for pages whose first line requests it.
    while IFS= read -r page; do
        [[ $(head -n 1 "$page") = "'\\\" t" ]] || wrong "${page##*/}: its first line lacks tbl"
    done < <(grep -rl '^\.TS' "$work/installed" --include='*.[1-8]')
    twice=$(uniq -d "$work/files")
    [ -z "$twice" ] || wrong "in two packages: $twice"
    for package in *.deb; do
        [[ $(dpkg-deb -f "$package" Depends) != *libcuda* ]] || wrong "$package: needs libcuda"
    done
}

check_version() {
    local version
    version=$(sed -n 's/^project(gpunvmefs VERSION \([0-9.]*\).*/\1/p' "$GPUNVME_ROOT/CMakeLists.txt")
    [ "$(dpkg-deb -f gpunvmefs_*.deb Version)" = "$version" ] ||
        wrong "debian/changelog: not of version $version"
}

# next_packages: makes packages that have a later version and are equal otherwise.
next_packages() {
    local package version
    mkdir next
    for package in *.deb; do
        version=$(dpkg-deb -f "$package" Version)
        dpkg-deb -R "$package" "$work/unpacked"
        sed -i "/^\(Version\|Depends\)/s/${version//./\\.}\b/$version+next/" \
            "$work/unpacked/DEBIAN/control"
        dpkg-deb --root-owner-group -b "$work/unpacked" next >/dev/null
        rm -r "$work/unpacked"
    done
}

# In the namespaces, mounts and daemons end with the script, and other mounts of
# this system are not kept alive. Files are on a tmpfs, because an overlay cannot
# have its upper folder on another one.
install_packages() {
    next_packages
    cp "$source/debian/tests/mount" "$GPUNVME_ROOT/tests/install/packages.sh" .
    # shellcheck disable=SC2016 # expanded by the inner shell
    unshare --mount --pid --fork --kill-child --propagation slave bash -ec '
        umount -ila -t fuse.gpunvmefs,fuseblk.gpunvmefs
        mount -t tmpfs none "$1"
        mkdir "$1"/{upper,work,root}
        mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" none "$1/root"
        mount --rbind /dev "$1/root/dev"
        mount -t proc none "$1/root/proc"
        mount -t tmpfs none "$1/root/tmp"
        mkdir "$1/root/tmp/packages"
        mount --bind "$PWD" "$1/root/tmp/packages"
        exec chroot "$1/root" bash /tmp/packages/packages.sh /tmp/packages' \
        packages "$(mktemp -d -p "$work")"
}

build_packages
mkdir "$work/packages"
cd "$work/packages"
mv "$work"/*.deb .
check_contents
check_version
if have lintian; then
    lintian --allow-root --fail-on error,warning ./*.deb >"$work/lintian" 2>&1 ||
        wrong "lintian: $(cat "$work/lintian")"
else
    warn "lintian: not here, the packages are not looked at by it"
fi
if [ "$(id -u)" = 0 ]; then
    install_packages || wrong "packages.sh: fails"
else
    warn "the packages are not installed: this needs root"
fi

if [ -n "$out" ] && [ "$failed" = 0 ]; then
    cp ./*.deb "$out"
fi
[ "$failed" = 1 ] || say "packages: complete, and they install, run, upgrade and are removed"
exit "$failed"
