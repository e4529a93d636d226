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
