#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""How many multiprocessors does the queue code need? few_sms.py [GQ_BENCH ARGUMENT...]

Runs gq_bench once for each share of the GPU, as a client of the MPS server that is running (see
with_mps.sh): MPS keeps a client on its share of the multiprocessors, so neither the kernel that
drives the queues nor the simulated drive's copy kernel, nor the comparing kernels, can use more.
Prints the report of all as JSON. Exit 77: MPS does not confine here.
"""

import json
import os
import subprocess
import sys

SHARES = (4, 8, 16, 100)  # percent
SWEEP = "multiprocessors"
WANTED = {"plain copy", "gather", "gq_transfer"}


def run(command, share):
    environment = dict(os.environ, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=str(share))
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=120,
                          check=True)
    return json.loads(done.stdout)


def points(report, sms):
    """Rows of one run, renamed by the number of multiprocessors."""
    rows = []
    for row in report["results"]:
        if row["name"] not in WANTED:
            continue
        row = dict(row, name=f"{row['name']}, {sms} SMs", sweep=SWEEP, series=row["name"], x=sms)
        if "against" in row:
            row["against"] += f", {sms} SMs"
        rows.append(row)
    return rows


def main():
    command = [argument for argument in sys.argv[1:] if argument not in ("-o", "json")]
    if not command:
        sys.exit("usage: few_sms.py GQ_BENCH [ARGUMENT...]")
    found, seen = None, set()
    for share in SHARES:
        report = run(command + ["-o", "json"], share)
        sms = report["parameters"].get("multiprocessors", 0)
        if sms in seen:
            continue
        seen.add(sms)
        found = found or dict(report, program="few_sms.py", results=[])
        found["results"] += points(report, sms)
    if len(seen) < 2:
        print("few_sms.py: MPS does not confine its clients here", file=sys.stderr)
        return 77
    found["parameters"].pop("multiprocessors")
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
