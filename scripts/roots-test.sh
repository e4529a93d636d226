#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Follows the documents in clean roots of Debian: runs the commands of README.md
# and docs/quickstart.md as they stand there, and runs scripts/package-test.sh
# and, with the packages that it makes, autopkgtest. sid has the newest compilers
# and libraries (libfuse 3.18).
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'USAGE'
Usage: bash scripts/roots-test.sh [SUITE...]    (bookworm trixie sid)
Needs root, mmdebstrap and a mirror of Debian. GPUNVME_ROOTS (build/roots) keeps the roots, the
packages that were downloaded, and compiled objects; all else is removed.
GPUNVME_NO_SETUP=1 installs nothing (mmdebstrap).
USAGE
}

MIRROR=http://deb.debian.org/debian
case ${1:-} in
-*) other_argument "$1" ;;
esac
[ "$(id -u)" = 0 ] || die "roots: this needs root"
run_setup --roots
suites=("$@")
[ $# -gt 0 ] || suites=(bookworm trixie sid)
ROOTS=${GPUNVME_ROOTS:-${GPUNVME_BUILD:-$GPUNVME_ROOT/build}/roots}
mkdir -p "$ROOTS/ccache"
work=$(mktemp -d -p "$ROOTS" work.XXXXXX)
trap 'rm -rf "$work"' EXIT

# make_root SUITE: makes a root with a minimal system, sudo and git. Package
# lists of an outdated mirror are accepted.
# shellcheck disable=SC2317 # called by step
make_root() {
    [ ! -e "$ROOTS/$1/etc" ] || return 0
    rm -rf "${ROOTS:?}/$1.part"
    mmdebstrap --quiet --variant=apt --include=sudo,git,ca-certificates \
        --aptopt='Acquire::Check-Valid-Until "false"' "$1" "$ROOTS/$1.part" "$MIRROR" || return 1
    mv "$ROOTS/$1.part" "$ROOTS/$1"
}

# in_root SUITE SCRIPT: runs a script in a copy of the root, in /src, where the
# tree is. In the namespaces, mounts and daemons end with the script. The
# certificates are those of this system, which may include those of a proxy.
# They do not keep other mounts of this system alive.
# shellcheck disable=SC2317 # called by step
in_root() {
    local suite=$1 run=$2
    make_root "$suite" || return 1
    rm -rf "${work:?}"/*
    mkdir -p "$work"/{upper/src,work,root} "$ROOTS/$suite.debs/partial"
    (cd "$GPUNVME_ROOT" && tree_files '*' | tar -c --no-recursion --files-from=-) |
        tar -x -C "$work/upper/src"
    cp "$run" "$work/upper/src.sh"
    # shellcheck disable=SC2016 # expanded by the inner shell
    unshare --mount --pid --fork --kill-child --propagation slave bash -ec '
        work=$1 lower=$2 debs=$3 ccache=$4
        umount -ila -t fuse.gpunvmefs,fuseblk.gpunvmefs
        mount -t overlay -o "lowerdir=$lower,upperdir=$work/upper,workdir=$work/work" none "$work/root"
        root=$work/root
        mkdir "$root/ccache"
        mount --rbind /dev "$root/dev"
        mount -t tmpfs none "$root/dev/shm"
        mount -t proc none "$root/proc"
        mount --rbind /sys "$root/sys"
        mount --bind "$ccache" "$root/ccache"
        mount --bind "$debs" "$root/var/cache/apt/archives"
        mount --bind /etc/ssl/certs "$root/etc/ssl/certs"
        cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
        exec chroot "$root" env -i HOME=/root TERM=dumb LANG=C.UTF-8 PATH="$PATH" \
            CCACHE_DIR=/ccache DEBIAN_FRONTEND=noninteractive \
            CMAKE_{C,CXX}_COMPILER_LAUNCHER=ccache bash -c "cd /src && . /src.sh"' \
        roots "$work" "$ROOTS/$suite" "$ROOTS/$suite.debs" "$ROOTS/ccache"
}

python3 -B "$GPUNVME_ROOT/tests/install/documents.py" "$GPUNVME_ROOT" >"$work.documents"
cat >"$work.packages" <<'SCRIPT'
set -e
bash scripts/setup.sh --package
bash scripts/package-test.sh /packages
apt-get install -y -q --no-install-recommends /packages/*.deb autopkgtest
apt-get purge -y -q gpunvmefs libgpunvme0 libgpunvme-dev python3-gpunvme
autopkgtest --no-built-binaries --ignore-restrictions isolation-machine /packages/*.deb . -- null
SCRIPT
trap 'rm -rf "$work" "$work.documents" "$work.packages"' EXIT
for suite in "${suites[@]}"; do
    step "$suite, documents" in_root "$suite" "$work.documents"
    step "$suite, packages" in_root "$suite" "$work.packages"
done
steps_summary
exit "$STEPS_FAILED"
