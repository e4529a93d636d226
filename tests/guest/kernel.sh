#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Builds a small kernel with what Debian's leaves out: iommufd, VFIO's device files, noiommu mode.
# Takes the source from the package linux-source-6.12, and minutes. Nothing is installed.
#
#     bash tests/guest/kernel.sh DIR
#     GPUNVME_GUEST_KERNEL=DIR/root bash scripts/guest-test.sh --all iommus
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"

PACKAGE=linux-source-6.12
# Needs of the guest's programs, of QEMU's machine, of the drives, and what this is about.
OPTIONS='
64BIT SMP PRINTK BUG FUTEX EPOLL EVENTFD SIGNALFD TIMERFD AIO MEMFD_CREATE SHMEM POSIX_TIMERS
HIGH_RES_TIMERS NO_HZ_IDLE ADVISE_SYSCALLS MEMBARRIER FILE_LOCKING MULTIUSER UNIX98_PTYS TTY
BINFMT_ELF BINFMT_SCRIPT BLK_DEV_INITRD RD_GZIP BLOCK SWAP PROC_FS PROC_SYSCTL PROC_PAGE_MONITOR
SYSFS TMPFS HUGETLBFS COMPACTION TMPFS_XATTR DEVTMPFS INOTIFY_USER NET UNIX INET KALLSYMS STACKTRACE
HYPERVISOR_GUEST PARAVIRT PVH ACPI PCI PCI_MSI PCIEPORTBUS
HOTPLUG_PCI HOTPLUG_PCI_PCIE HOTPLUG_PCI_ACPI
SERIAL_8250 SERIAL_8250_CONSOLE X86_X2APIC
VIRTIO_MENU VIRTIO_PCI NET_9P NET_9P_VIRTIO NETWORK_FILESYSTEMS 9P_FS FUSE_FS
BLK_DEV_NVME
IOMMU_SUPPORT INTEL_IOMMU AMD_IOMMU IRQ_REMAP IOMMUFD VFIO VFIO_GROUP VFIO_CONTAINER VFIO_IOMMU_TYPE1
VFIO_DEVICE_CDEV VFIO_NOIOMMU VFIO_PCI
'

case ${1:-} in
'' | -h | --help)
    echo "Usage: bash tests/guest/kernel.sh DIR   (some GiB; the kernel will be in DIR/root)"
    exit 0
    ;;
esac
dir=$1
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
for program in flex bison bc make gcc; do
    have "$program" || die "$program: not here; install flex, bison, bc, make, gcc and libelf-dev"
done

cd "$dir"
if [ ! -d source ]; then
    apt-get -q -o APT::Sandbox::User=root download "$PACKAGE"
    dpkg -x "$PACKAGE"_*.deb package
    mkdir source.part
    tar -C source.part --strip-components=1 -xf "package/usr/src/$PACKAGE.tar.xz"
    mv source.part source
    rm -rf package "$PACKAGE"_*.deb
fi
cd source
make -s tinyconfig
for option in $OPTIONS; do
    ./scripts/config --enable "$option"
done
make -s olddefconfig
for option in $OPTIONS; do
    grep -q "^CONFIG_$option=y" .config || warn "$option: not in this kernel"
done
nice -n 19 make -s -j "$(jobs_for_build)" bzImage
version=$(make -s kernelrelease)
rm -rf "$dir/root"
mkdir -p "$dir/root/boot" "$dir/root/lib/modules/$version"
cp arch/x86/boot/bzImage "$dir/root/boot/vmlinuz-$version"
cp modules.builtin modules.builtin.modinfo "$dir/root/lib/modules/$version/"
touch "$dir/root/lib/modules/$version/modules.order"
say "kernel $version is in $dir/root"
