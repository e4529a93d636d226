# SPDX-License-Identifier: BSD-2-Clause
# shellcheck shell=bash
# Common to the scripts that run in the guest.
set -euo pipefail
trap 'echo "failed here: $BASH_COMMAND"' ERR
cd /tmp
# shellcheck source=/dev/null
. /run/guest/env
export PATH="$BUILD/client:$BUILD/fusefs/daemon:$BUILD/mkfs:$PATH"
# An empty directory to mount on.
MNT=/mnt/fs
mkdir -p "$MNT"

# The PCI address of the controller with that serial number, also when no driver has it; the kernel
# chooses the number of the bus behind a port.
bdf_of() {
    local address port
    address=$(awk -v name="$1" '$1 == name { print $2 }' /run/guest/addresses)
    port=(/sys/bus/pci/devices/0000:00:"$address"/0000:??:??.?)
    if [ -e "${port[0]}" ]; then
        basename "${port[0]}"
    else
        echo "0000:00:$address"
    fi
}

# The kernel's block device of a namespace: SERIAL NSID.
disk_of() {
    local ctrlr
    for ctrlr in /sys/class/nvme/nvme*; do
        if [ "$(tr -d ' ' <"$ctrlr/serial")" = "$1" ]; then
            echo "/dev/${ctrlr##*/}n$2"
            return
        fi
    done
    echo "no kernel driver for controller $1" >&2
    return 1
}

# Waits until no daemon serves the device any more: umount(8) returns before it has ended.
wait_unused() {
    for _ in $(seq 600); do
        pgrep -f "^[^ ]*gpunvmefs .*$1" >/dev/null || return 0
        sleep 0.1
    done
    echo "gpunvmefs still runs on $1 after a minute" >&2
    return 1
}

# Starts the daemon in the foreground of a job and waits until it serves $MNT: DEVICE [OPTIONS]. Its
# log is /tmp/daemon.log, its exit status will be in /tmp/daemon.status.
serve() {
    rm -f /tmp/daemon.status
    (
        trap - ERR
        rc=0
        gpunvmefs -f "$1" "$MNT" -o "deadline=1000${2:+,$2}" >/tmp/daemon.log 2>&1 || rc=$?
        echo "$rc" >/tmp/daemon.status
    ) </dev/null &
    until mountpoint -q "$MNT"; do
        if [ -e /tmp/daemon.status ]; then
            cat /tmp/daemon.log
            return 1
        fi
        sleep 0.05
    done
}

# Waits until that daemon has ended, and says how: [SECONDS].
served() {
    for _ in $(seq "$((${1:-60} * 10))"); do
        if [ -s /tmp/daemon.status ]; then
            cat /tmp/daemon.log
            echo "ended with status $(cat /tmp/daemon.status)"
            return 0
        fi
        sleep 0.1
    done
    cat /tmp/daemon.log
    echo "gpunvmefs has not ended after ${1:-60} s" >&2
    return 1
}
