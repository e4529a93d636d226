# SPDX-License-Identifier: BSD-2-Clause
"""Writes memory to a file and reads it back by NIXL's plug-in for cuFile, with NIXL's stock wheel.

usage: nixl_files.py PLUGIN FOLDER [BYTES]

PLUGIN is GDS_MT or GDS. Prints the transfers' state and throughput; ends with 1 where the bytes of
the file, or those read back, are not the ones written. Run it by gpunvme-run.
"""

import os
import sys
import time

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

PATIENCE_S = 120
BLOCK = 1 << 20


def transfer(agent, operation, memory, files):
    """Runs one transfer to its end and returns the seconds it took."""
    handle = agent.initialize_xfer(operation, memory, files, agent.name)
    begun = time.monotonic()
    state = agent.transfer(handle)
    while state not in ("DONE", "ERR") and time.monotonic() - begun < PATIENCE_S:
        state = agent.check_xfer_state(handle)
    seconds = time.monotonic() - begun
    agent.release_xfer_handle(handle)
    if state != "DONE":
        sys.exit(f"{operation}: ended as {state}")
    return seconds


def blocks(base, length):
    """The range cut into descriptors."""
    return [(base + at, min(BLOCK, length - at)) for at in range(0, length, BLOCK)]


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    plugin, folder = sys.argv[1:3]
    length = int(sys.argv[3]) if len(sys.argv) > 3 else (8 << 20) + 4096
    agent = nixl_agent("files", nixl_agent_config(backends=[]))
    agent.create_backend(plugin)
    rng = np.random.default_rng(1)
    source = rng.integers(0, 256, length, dtype=np.uint8)
    target = np.zeros(length, dtype=np.uint8)
    path = os.path.join(folder, "nixl.data")
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    registered = [agent.register_memory([(a.ctypes.data, a.nbytes, 0, "")], "DRAM")
                  for a in (source, target)]
    registered.append(agent.register_memory([(0, length, fd, "")], "FILE"))
    on_file = agent.get_xfer_descs([(at, n, fd) for at, n in blocks(0, length)], "FILE")
    for operation, array in (("WRITE", source), ("READ", target)):
        cut = [(at, n, 0) for at, n in blocks(array.ctypes.data, length)]
        seconds = transfer(agent, operation, agent.get_xfer_descs(cut, "DRAM"), on_file)
        print(f"{plugin} {operation}: {length} bytes, {length / seconds / 1e9:.3f} GB/s")
    for memory in registered:
        agent.deregister_memory(memory)
    os.close(fd)
    stored = np.fromfile(path, dtype=np.uint8)
    os.unlink(path)
    if not np.array_equal(stored, source) or not np.array_equal(target, source):
        sys.exit(f"{plugin}: the bytes differ")
    print(f"{plugin}: file and memory hold what was written")


if __name__ == "__main__":
    main()
