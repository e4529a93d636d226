#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Lets drivers of others use gpunvme-sim: Linux's behind QEMU's vfio-user-pci,
# with nvme-cli, fio and blktests, and SPDK's. The simulator must find no mistake
# in them.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/lib-spdk.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-spdk.sh"

usage() {
    cat <<'USAGE'
Usage: bash scripts/sim-judge.sh [--keep] [PATH-TO-RUN.SH] [-- PYTEST-ARGUMENT...]
Makes a system of Debian 13 with QEMU (vfio-user-pci needs 10.1) and Linux from its backports,
nvme-cli and fio, once, in GPUNVME_JUDGE_SYSTEM (build/judge-system, 560 MB). Nothing of it is
installed, and no program of it runs but QEMU, whose guest is emulated: neither root nor KVM.
BLKTESTS is a folder of blktests, or a repository of it instead of the public one, from which a
fixed commit is taken; 6 minutes. Without either the tests are not run, and the summary says so.
Mounts also reserve a block device of this Linux for one of two hosts (nvmet).
PATH-TO-RUN.SH starts SPDK's nvmf_tgt as in scripts/spdk-test.sh, whose NVMe driver is then the second
judge. BUILD_DIR (build/test) is the build; it is made when it is not there. GPUNVME_NO_SETUP=1
installs nothing (mmdebstrap and what guest tests need).
USAGE
}

MIRROR=http://deb.debian.org/debian
PACKAGES=qemu-system-x86,linux-image-amd64,nvme-cli,fio,util-linux
PACKAGES+=,base-files,bash,coreutils,grep,sed
# These are for blktests.
PACKAGES+=,bsdextrautils,dash,diffutils,findutils,gawk,gzip,jq,kmod,libc-bin,pciutils,procps
PACKAGES+=,udev,xfsprogs
BLKTESTS_URL=https://github.com/linux-blktests/blktests
BLKTESTS_COMMIT=a608cb56341e0f4cacf473f5e0ac6052f1f12de9
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
# QEMU, its BIOS and Linux come from the backports.
# shellcheck disable=SC2016,SC2317 # the hook's shell has its own $1; called by step
make_system() {
    [ "$(cat "$SYSTEM/made-of" 2>/dev/null)" != "$PACKAGES" ] || return 0
    rm -rf "$SYSTEM" "$SYSTEM.part"
    mmdebstrap --quiet --variant=extract --include="$PACKAGES" \
        --aptopt='APT::Install-Recommends "false"' \
        --setup-hook='printf "Package: qemu-system-* seabios linux-image-* linux-b*\n\
Pin: release n=trixie-backports\nPin-Priority: 990\n" >"$1/etc/apt/preferences.d/newer"' \
        trixie "$SYSTEM.part" "deb $MIRROR trixie main" "deb $MIRROR trixie-backports main" ||
        return 1
    mkdir -p "$SYSTEM.part"/{mnt,var/tmp}
    for config in "$SYSTEM.part"/lib/modules/*/config; do # blktests looks in /boot
        cp "$config" "$SYSTEM.part/boot/config-$(basename "$(dirname "$config")")"
    done
    echo "$PACKAGES" >"$SYSTEM.part/made-of"
    mv "$SYSTEM.part" "$SYSTEM"
}

# judge FILE [PYTEST-ARGUMENT...]: -rs shows why tests are skipped.
# shellcheck disable=SC2317 # called by step
judge() {
    local file=$1
    shift
    pytest-3 -q -rs --tb=short -p no:cacheprovider --rootdir="$GPUNVME_ROOT/tests/guest" \
        --kernel="$SYSTEM" --system="$SYSTEM" --build-dir="$BUILD" \
        ${options[@]+"${options[@]}"} "$@" "$GPUNVME_ROOT/tests/guest/judges/$file"
}

# Makes a built copy of blktests in DIR. Fails without a message if there is no
# source.
fetch_blktests() { # DIR
    local from=${BLKTESTS:-$BLKTESTS_URL}

    rm -rf "$1"
    if [ -e "$from/check" ]; then
        cp -r "$from" "$1"
        return
    fi
    [ ! -d "$from" ] || from=$(realpath "$from")
    git init -q "$1" && git -C "$1" fetch -q --depth 1 "$from" "$BLKTESTS_COMMIT" 2>/dev/null &&
        git -C "$1" checkout -q FETCH_HEAD
}

# shellcheck disable=SC2317 # called by step
blktests() { # DIR
    make -s -C "$1/src" && judge test_blktests.py --blktests="$1"
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
build "$BUILD" --target prog_gpunvme-sim prog_gpunvmefs prog_mkfs.gpunvme prog_fsck.gpunvme \
    >/dev/null
step "system" make_system
step "Linux, nvme-cli, fio" judge test_linux.py
step "reservations" judge test_reservations.py
if fetch_blktests "$SYSTEM.blktests"; then
    step "blktests" blktests "$SYSTEM.blktests"
else
    STEPS+=("$(printf '%-22s not run: %s gave nothing' blktests "${BLKTESTS:-$BLKTESTS_URL}")")
fi
if [ -n "$RUN" ]; then
    step "SPDK" spdk
else
    say "sim-judge: no path to SPDK's run.sh was given, its driver is not tried"
fi
steps_summary
exit "$STEPS_FAILED"
