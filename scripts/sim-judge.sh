#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Lets drivers of others use gpunvme-sim: Linux's behind QEMU's vfio-user-pci,
# with nvme-cli and fio, and SPDK's. The simulator must find no mistake in them.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/lib-spdk.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-spdk.sh"

usage() {
    cat <<'USAGE'
Usage: bash scripts/sim-judge.sh [--keep] [PATH-TO-RUN.SH] [-- PYTEST-ARGUMENT...]
Makes a system of Debian 13 with QEMU from its backports (vfio-user-pci needs 10.1), its kernel,
nvme-cli and fio, once, in GPUNVME_JUDGE_SYSTEM (build/judge-system, 450 MB). Nothing of it is
installed, and no program of it runs but QEMU, whose guest is emulated: neither root nor KVM.
PATH-TO-RUN.SH starts SPDK's nvmf_tgt as in scripts/spdk-test.sh, whose NVMe driver is then the second
judge. BUILD_DIR (build/test) is the build; it is made when it is not there. GPUNVME_NO_SETUP=1
installs nothing (mmdebstrap and what guest tests need).
USAGE
}

MIRROR=http://deb.debian.org/debian
PACKAGES=qemu-system-x86,linux-image-amd64,nvme-cli,fio,util-linux
PACKAGES+=,base-files,bash,coreutils,grep,sed
RUN='' # starts SPDK's target
SIM=''
options=()
while [ $# -gt 0 ]; do
    case $1 in
    --keep) options+=("$1") ;;
    --)
        shift
        options+=("$@")
        break
        ;;
    -*) other_argument "$1" ;;
    *) RUN=$(realpath "$1") ;;
    esac
    shift
done

run_setup --judge
use_prefix
BUILD=${BUILD_DIR:-$GPUNVME_ROOT/build/test}
SYSTEM=${GPUNVME_JUDGE_SYSTEM:-${GPUNVME_BUILD:-$GPUNVME_ROOT/build}/judge-system}
cd "$GPUNVME_ROOT"

# Packages are unpacked and not configured, so no program of theirs runs. Only
# QEMU and its BIOS come from the backports.
# shellcheck disable=SC2016,SC2317 # the hook's shell has its own $1; called by step
make_system() {
    [ ! -e "$SYSTEM/usr/bin/qemu-system-x86_64" ] || return 0
    rm -rf "$SYSTEM" "$SYSTEM.part"
    mmdebstrap --quiet --variant=extract --include="$PACKAGES" \
        --aptopt='APT::Install-Recommends "false"' \
        --setup-hook='printf "Package: qemu-system-* seabios\nPin: release n=trixie-backports\n\
Pin-Priority: 990\n" >"$1/etc/apt/preferences.d/qemu"' \
        trixie "$SYSTEM.part" "deb $MIRROR trixie main" "deb $MIRROR trixie-backports main" ||
        return 1
    mkdir -p "$SYSTEM.part"/{mnt,var/tmp}
    mv "$SYSTEM.part" "$SYSTEM"
}

# shellcheck disable=SC2317 # called by step
linux() {
    pytest-3 -q --tb=short -p no:cacheprovider --rootdir="$GPUNVME_ROOT/tests/guest" \
        --kernel="$SYSTEM" --system="$SYSTEM" --build-dir="$BUILD" \
        ${options[@]+"${options[@]}"} "$GPUNVME_ROOT/tests/guest/judges"
}

# shellcheck disable=SC2317 # called by step
attach_sim() {
    rpc bdev_nvme_attach_controller -b Sim -t VFIOUSER -a "$DIR/sim"
}

# A store of logical volumes is data that SPDK writes, discards, zeroes and finds
# again. (It cannot offer the drive further: commands of a client's memory would
# reach the simulator, which has no map of it.)
# shellcheck disable=SC2317 # called by step
spdk_volumes() {
    attach_sim && rpc bdev_nvme_get_controller_health_info -c Sim || return 1
    rpc bdev_lvol_create_lvstore --clear-method unmap Simn1 store &&
        rpc bdev_lvol_create -l store -c write_zeroes zeroed 32 &&
        rpc bdev_lvol_create -l store -c unmap discarded 32 || return 1
    rpc bdev_nvme_reset_controller Sim && rpc bdev_lvol_create -l store later 16 || return 1
    rpc bdev_nvme_detach_controller Sim && attach_sim || return 1
    for _ in $(seq 50); do # the store is looked for after the reply
        rpc bdev_get_bdevs -b store/later >/dev/null && break
        sleep 0.1
    done
    rpc bdev_get_bdevs -b store/zeroed && rpc bdev_lvol_delete store/discarded &&
        rpc bdev_lvol_delete_lvstore -l store && rpc bdev_nvme_detach_controller Sim
}

# shellcheck disable=SC2317 # called by step
spdk() {
    local status=0
    prepare
    mkdir "$DIR/sim"
    start_target 900 64 0 64 64 # which removes sockets of earlier runs
    "$BUILD/sim/serve/gpunvme-sim" --strict --size=256M "$DIR/sim/cntrl" >"$DIR/sim.out" &
    SIM=$!
    spdk_volumes || status=1
    kill -TERM "$SIM" # it ends with status 3 if it has seen a mistake
    wait "$SIM" || status=1
    [ "$status" = 0 ] || tail -n 20 "$DIR/log"
    return "$status"
}

configure "$BUILD" -DGPUNVME_WERROR=ON >/dev/null
build "$BUILD" --target prog_gpunvme-sim >/dev/null
step "system" make_system
step "Linux, nvme-cli, fio" linux
if [ -n "$RUN" ]; then
    step "SPDK" spdk
else
    say "sim-judge: no path to SPDK's run.sh was given, its driver is not tried"
fi
steps_summary
exit "$STEPS_FAILED"
