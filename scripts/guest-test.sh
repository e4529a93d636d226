#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Runs the project's programs against QEMU's NVMe controllers in a guest with
# Debian's kernel, an IOMMU and VFIO. It needs neither root nor KVM nor an NVMe
# drive. tests/guest/README.md describes how it works.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'USAGE'
Usage: bash scripts/guest-test.sh [--quick | --all] [--kvm] [--keep] [SCENARIO...]
                                  [-- PYTEST-ARGUMENT...]
  --quick  only the few that show whether anything works
  --all    also what takes too long for every change
  --kvm    with /dev/kvm instead of emulation
  --keep   keep the images and logs of what failed
SCENARIO is a part of a test's name or file ("faults", "power_cut"); without, all run.
BUILD_DIR (build/test) is the build; it is made when it is not there. GPUNVME_GUEST_KERNEL is the
folder of an unpacked kernel package. GPUNVME_NO_SETUP=1 installs nothing.
USAGE
}

marks=(-m "not slow") options=() names=''
while [ $# -gt 0 ]; do
    case $1 in
    --quick) marks=(-m smoke) ;;
    --all) marks=() ;;
    --kvm | --keep) options+=("$1") ;;
    --)
        shift
        options+=("$@")
        break
        ;;
    -*) other_argument "$1" ;;
    *) names+="${names:+ or }$1" ;;
    esac
    shift
done

kernel=${GPUNVME_BUILD:-$GPUNVME_ROOT/build}/guest-kernel
export GPUNVME_GUEST_KERNEL=${GPUNVME_GUEST_KERNEL:-$kernel}
run_setup --guest
use_prefix
BUILD_DIR=${BUILD_DIR:-$GPUNVME_ROOT/build/test}
configure_and_build "$BUILD_DIR" -DGPUNVME_WERROR=ON
# A guest has one processor, and the tests of one file share guests.
guests=$(($(nproc) < 4 ? $(nproc) : 4))
say "guest tests, $guests guests at a time"
exec pytest-3 -q --tb=short -p no:cacheprovider -n "$guests" --dist loadfile \
    --rootdir="$GPUNVME_ROOT/tests/guest" \
    --kernel="$GPUNVME_GUEST_KERNEL" --build-dir="$BUILD_DIR" ${marks[@]+"${marks[@]}"} \
    ${names:+-k "$names"} ${options[@]+"${options[@]}"} "$GPUNVME_ROOT/tests/guest"
