#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Boots a guest, runs one bash script in it, and shows its output and the complaints of QEMU about
the driver. For trying things out; the tests are in scenarios/.

Example: run.py --kernel K --build-dir B -c one -c two,mdts=3 'gpunvme check $(bdf_of one)'
"""
import argparse
import shutil
import sys
import tempfile

from guest import Guest, GuestError
from kernel import Kernel
from machine import Controller, Machine, Namespace


def controller(text):
    name, *options = text.split(",")
    options = dict(option.split("=", 1) for option in options)
    lba, port = int(options.pop("lba", 512)), bool(options.pop("port", ""))
    return Controller(name, [Namespace(f"{name}.img", "1G", lba)], options, port)


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", required=True, help="folder of an unpacked kernel package")
    parser.add_argument("--build-dir", required=True)
    parser.add_argument("--kvm", action="store_true")
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--iommu", default="intel-iommu,intremap=on", help="'' for none")
    parser.add_argument("-c", "--controller", type=controller, action="append",
                        metavar="NAME[,lba=N][,port=1][,QEMU-OPTION=VALUE]", help="default: one")
    parser.add_argument("script")
    return parser.parse_args()


def main():
    args = parse()
    folder = tempfile.mkdtemp(prefix="gpunvme-guest-")
    machine = Machine(args.controller or [controller("one")], iommu=args.iommu or None)
    kernel = Kernel(args.kernel, args.build_dir + "/guest")
    guest = Guest(kernel, machine, folder, args.build_dir, args.kvm)
    try:
        guest.boot()
        job = guest.start(args.script)
        try:
            status = job.wait(args.timeout)
        finally:
            print(job.output, end="")
        guest.power_off()
        wrong = guest.complaints()
        for line in wrong:
            print(f"complaint: {line}", file=sys.stderr)
        return status or bool(wrong)
    except GuestError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 125
    finally:
        guest.kill()
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
