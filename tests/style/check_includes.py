#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Checks that a folder includes, and its CMakeLists.txt compiles, only what the architecture lets
it use, that the product knows the simulator in two files only, that the headers that CUDA kernels include are installed, all of them and no more, and
that no two sources of the product have one name.

usage: check_includes.py ROOT | --self-test
"""

import collections
import os
import re

import tree

# Of every part of the file system, and of the command.
FUSEFS = ["support/", "layout/", "blockdev/", "cuda/", "gpunvme/gpunvme_ioctl.h",
          "fusefs/metrics.h"]
CLI = ["support/", "gpunvme/", "client/lib/", "blockdev/", "layout/", "fusefs/metrics.h"]


def layers(top, folders, below):
    """Rules for folders of which each may use those before it."""
    return {f"{top}/{folder}": below + [f"{top}/{earlier}/" for earlier in folders[:index]]
            for index, folder in enumerate(folders)}


DAEMON = layers("fusefs/daemon", ["base", "start", "caches", "state", "request", "transfer",
                                  "lease", "ioctl", "fuse", "mounter", "session"],
                FUSEFS + ["fusefs/core/ffs.h"])

# The rooms of the live file system, in the order of their calls: fusefs/core/storage.h. All of
# them use the headers beside the rooms; state.h has the structs of all rooms.
CORE = layers("fusefs/core", ["base", "inode", "alloc", "journal", "map", "data", "names", "mount"],
              ["support/", "layout/", "blockdev/", "fusefs/core/ffs.h", "fusefs/core/storage.h",
               "fusefs/core/state.h"])

# What the files of a folder may include of this tree, besides the folder itself. The longest
# folder that matches a file decides.
PROJECT = {
    "support": [],
    # Of the ABI's counters, for the command and the daemon.
    "fusefs/metrics.h": ["gpunvme/gpunvme_ioctl.h"],
    "layout": ["support/"],
    "blockdev": ["support/"],
    "sim": ["support/", "blockdev/transport.h", "blockdev/nvme/nvme_spec.h"],
    "sim/serve": ["support/", "sim/sim.h", "blockdev/transport.h", "blockdev/nvme/nvme_spec.h",
                  "blockdev/vfio_user/vfio_user_spec.h"],
    "sim/gpu": ["support/", "sim/sim_dma_engine.h", "cuda/gq_cuda_errno.h",
                "cuda/queue/gq_bytes.h", "cuda/queue/gq_fence.h", "cuda/queue/gq_lanes.h"],
    "cuda": ["support/", "blockdev/"],
    "cuda/queue/gq_abi.h": ["cuda/queue/gq_reads.h", "gpunvme/gpunvme_ioctl.h"],
    "cuda/queue": ["support/", "blockdev/transport.h", "blockdev/nvme/nvme_spec.h"],
    "include": ["client/device/"],
    "client": ["support/", "gpunvme/", "cuda/"],
    "client/lib": ["support/", "gpunvme/", "cuda/", "client/device/"],
    "client/cli": CLI,
    **layers("client/cli", ["common", "ctrlr", "check", "cmd"], CLI),
    "fusefs/core": ["support/", "layout/", "blockdev/"],
    **CORE,
    "fusefs": FUSEFS,
    **DAEMON,
    "fusefs/daemon/gpunvmefs.c": FUSEFS + ["fusefs/"],
    "fusefs/daemon/open_drive.h": FUSEFS + ["fusefs/"],
    # The one file of the product that opens the simulator.
    "fusefs/daemon/open_drive.c": FUSEFS + ["fusefs/", "sim/sim.h", "sim/gpu/sim_cuda_dma.h"],
    "integrations": ["gpunvme/"],
    "mkfs": ["support/", "layout/", "blockdev/", "fusefs/core/ffs.h"],
}

# Sources of other folders that the CMakeLists.txt of a folder may compile. Tests compile those of
# the folder that they test, and of tests/, as well.
COMPILED = {
    "client": ["cuda/gq_sum_fill.c", "cuda/gq_service.c"],
    "tests/client": ["cuda/gq_sum_fill.c", "cuda/gq_service.c"],
    "tests/integrations/signature": ["integrations/libblkid/gpunvme.c"],
}

# Libraries from outside, and the folders that may use them.
LIBRARIES = {
    r"fuse": ["fusefs/daemon"],
    r"libnvme|nvme/": ["blockdev", "sim", "client/cli"],
    r"isa-l|crc\.h": ["layout", "cuda/exec_cpu"],
    r"uuid/": ["blockdev", "fusefs", "mkfs", "client"],
    r"blkid/": ["blockdev", "fusefs", "mkfs"],
    r"json-c|json\.h": ["blockdev", "client", "mkfs", "fusefs/daemon", "sim/serve"],
    r"xxhash": ["layout", "client", "mkfs", "fusefs/core"],
    r"cuda": ["cuda", "client", "sim/gpu"],
    r"gtest|gmock": [],
}

# Public headers lie in include/gpunvme/, and name each other without a folder.
PUBLIC = "include/gpunvme/"

# What kernels include, and where CMake installs it with all that it includes.
DEVICE_HEADERS = (PUBLIC + "gpunvme_device.h", PUBLIC + "gpunvme_array.cuh")
INSTALLED_BY = "client/CMakeLists.txt"
INSTALLED = re.compile(r"set\(device_headers([^)]*)\)")

# Files of the product that may name the simulator; all others know a transport.
OF_SIMULATOR = ("fusefs/daemon/open_drive.c", "fusefs/daemon/start/mount_options.c")
WITHOUT_SIMULATOR = ("blockdev/", "client/", "cuda/", "fusefs/", "layout/", "mkfs/", "support/")
SIMULATOR = re.compile(r"\bsim\b|\bsim_|simulat", re.IGNORECASE)

UNCHECKED = ("tests/", "bench/", "integrations/libblkid/")
# As CMake files of this tree name sources outside their folder.
SOURCE = re.compile(r'(\.\./|\$\{(?:PROJECT_SOURCE_DIR|top)\}/)([\w./-]+\.(?:c|cc|cu))\b')
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def inside(name, folder):
    return name == folder or name.startswith(folder + "/")


def project_rule(name):
    owners = [folder for folder in PROJECT if inside(name, folder)]
    return max(owners, key=len) if owners else None


def check_own(root, name, target):
    """The problem of an include of this tree, or None."""
    if name.startswith(PUBLIC) and "/" not in target:
        ok = os.path.isfile(os.path.join(root, PUBLIC, target))
        return None if ok else f'"{target}" is not installed beside this public header'
    removed = target.startswith("sim/") and not os.path.isdir(os.path.join(root, "sim"))
    if not removed and not any(
            os.path.isfile(os.path.join(root, top, target)) for top in ("", "include")):
        return f'"{target}" is no file of this tree, written from its top or from include/'
    folder = project_rule(name)
    if folder is None:
        return f"folder {name.split('/')[0]}/ is not in the table of check_includes.py"
    allowed = PROJECT[folder]
    if inside(target, folder) or any(
            target == rule or (rule.endswith("/") and target.startswith(rule))
            for rule in allowed):
        return None
    if target.endswith(".cuh") or not allowed:
        return f'{folder} may not include "{target}"'
    return f'{folder} may not include "{target}", only its own and {", ".join(allowed)}'


def check_library(name, target):
    for pattern, folders in LIBRARIES.items():
        if re.match(pattern, target) and not any(inside(name, folder) for folder in folders):
            who = ", ".join(folders) if folders else "tests"
            return f"<{target}> is for {who} only"
    return None


def check_file(root, name):
    text = tree.read(root, name)
    problems = []
    for match in INCLUDE.finditer(text):
        own = match.group(1) == '"'
        target = match.group(2)
        problem = check_own(root, name, target) if own else check_library(name, target)
        if problem:
            line = text.count("\n", 0, match.start(2)) + 1
            problems.append(f"{name}:{line}: {problem}")
    return problems


def check_compiled(root, name):
    """Sources of other folders that a CMakeLists.txt compiles without permission."""
    folder = os.path.dirname(name)
    own = [folder + "/", "tests/", folder[len("tests/"):] + "/"] if inside(folder, "tests") else [
        folder + "/"]
    problems = []
    text = tree.read(root, name)
    for match in SOURCE.finditer(text):
        relative = match.group(1) == "../"
        target = os.path.normpath(os.path.join(folder, "..", match.group(2)) if relative
                                  else match.group(2))
        if not target.startswith(tuple(own)) and target not in COMPILED.get(folder, []):
            line = text.count("\n", 0, match.start()) + 1
            problems.append(f"{name}:{line}: {folder} may not compile {target}")
    return problems


def included(root, name):
    """Files of this tree that a file includes, and those that they include; name itself, too."""
    found, pending = set(), [name]
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        for quote, target in INCLUDE.findall(tree.read(root, name)):
            paths = [target, "include/" + target, PUBLIC + target] if quote == '"' else []
            pending += [path for path in paths if os.path.isfile(os.path.join(root, path))][:1]
    return found


def check_installed(root):
    needed = set()
    for name in DEVICE_HEADERS:
        if os.path.isfile(os.path.join(root, name)):
            needed |= included(root, name)
    if not needed:
        return []
    installed = set(INSTALLED.search(tree.read(root, INSTALLED_BY)).group(1).split())
    # Public headers are installed by a list of their own.
    return [f"{name}: kernels include it, but {INSTALLED_BY} does not install it"
            for name in sorted(needed - installed) if not name.startswith(PUBLIC)] + [
        f"{name}: {INSTALLED_BY} installs it, but kernels do not include it"
        for name in sorted(installed - needed)]


def check_simulator(root, name):
    """Mentions of the simulator, in code or comments, by a file that should not know it."""
    if not name.startswith(WITHOUT_SIMULATOR) or name in OF_SIMULATOR:
        return []
    text = tree.read(root, name)
    return [f"{name}:{text.count(chr(10), 0, match.start()) + 1}: names the simulator: "
            f"{match.group(0)}" for match in SIMULATOR.finditer(text)]


def check_names(root):
    """Sources of different folders with one name; examples have the names of calls."""
    folders = collections.defaultdict(list)
    for name in tree.source_files(root):
        if not name.startswith(("tests/", "examples/", "integrations/")):
            folders[os.path.basename(name)].append(name)
    return [f"{name}: there is {', '.join(other for other in names if other != name)}, too"
            for names in folders.values() if len(names) > 1 for name in names]


def check(root):
    problems = check_installed(root) + check_names(root)
    for name in tree.files(root):
        if os.path.basename(name) == "CMakeLists.txt":
            problems += check_compiled(root, name)
    for name in tree.source_files(root):
        if not name.startswith(UNCHECKED):
            problems += check_file(root, name) + check_simulator(root, name)
    return problems


def self_test():
    """Each file of a made-up tree, and whether it breaks a rule."""
    cases = {
        "layout/ok.c": ('#include <stdint.h>\n#include "layout/a.h"\n', False),
        "layout/a.h": ("", False),
        "layout/up.c": ('#include "blockdev/bdev.h"\n', True),
        "blockdev/bdev.h": ("", False),
        "blockdev/nvme/nvme.h": ("", False),
        "blockdev/relative.c": ('#include "bdev.h"\n', True),
        "sim/sim.h": ("", False),
        "sim/wide.c": ('#include "blockdev/nvme/nvme.h"\n', True),
        "include/gpunvme/gpunvme_ioctl.h": ("", False),
        "include/gpunvme/gpunvme.h": ('#include "gpunvme_ioctl.h"\n', False),
        "fusefs/core/data/fuse.c": ("#include <fuse_lowlevel.h>\n", True),
        "fusefs/core/state.h": ('#include "fusefs/core/names/dir.h"\n', False),
        "fusefs/core/names/dir.h": ('#include "fusefs/core/state.h"\n', False),
        "fusefs/core/names/down.c": ('#include "fusefs/core/base/cache.h"\n', False),
        "fusefs/core/base/cache.h": ("", False),
        "fusefs/core/base/rise.c": ('#include "fusefs/core/names/dir.h"\n', True),
        "fusefs/daemon/fuse/fuse_ops.c": (
            '#include <fuse_lowlevel.h>\n#include "fusefs/daemon/base/log.h"\n', False),
        "fusefs/daemon/base/log.h": ("", False),
        "fusefs/core/ffs.h": ("", False),
        "fusefs/daemon/state/file.c": ('#include "fusefs/core/ffs.h"\n', False),
        "fusefs/daemon/state/inside.c": ('#include "fusefs/core/state.h"\n', True),
        "fusefs/daemon/session/session.h": ("", False),
        "fusefs/daemon/base/up.c": ('#include "fusefs/daemon/session/session.h"\n', True),
        "fusefs/daemon/open_drive.c": ('#include "sim/sim.h"\n', False),
        "fusefs/daemon/gpunvmefs.c": ('#include "sim/sim.h"\n', True),
        "fusefs/daemon/state/other.c": ('#include "sim/sim.h"\n', True),
        "fusefs/daemon/state/client.c": ('#include "gpunvme/gpunvme.h"\n', True),
        "fusefs/daemon/state/abi.c": ('#include "gpunvme/gpunvme_ioctl.h"\n', False),
        "fusefs/core/word.c": ("/* As a Simulated drive. */\n", True),
        "fusefs/core/similar.c": ("/* A similar drive. */\n", False),
        "fusefs/daemon/start/mount_options.c": ('KEY("sim=")\n', False),
        "layout/spaced.c": ('  #  include  "sim/sim.h"\n', True),
        "strange/a.c": ('#include "layout/a.h"\n', True),
        "sim/gpu/dma.c": (
            '#include "cuda/gq_cuda_errno.h"\n#include <cuda_runtime_api.h>\n', False),
        "cuda/gq_cuda_errno.h": ("", False),
        "cuda/sim.c": ('#include "sim/sim.h"\n', True),
        "include/gpunvme/gpunvme_device.h": ('#include "client/device/gd_a.h"\n', False),
        "client/device/gd_a.h": ('#include "client/device/gd_b.h"\n', False),
        "client/device/gd_b.h": ("", True),
        "client/device/gd_c.h": ("", True),
        "client/CMakeLists.txt": (
            "x(lib/a.c ../cuda/gq_service.c)\n"
            "set(device_headers\n    include/gpunvme/gpunvme_device.h\n"
            "    client/device/gd_a.h\n    client/device/gd_c.h)\n", False),
        "cuda/CMakeLists.txt": ("x(gq.c ../sim/sim.c)\n", True),
        "fusefs/daemon/CMakeLists.txt": ("x(${PROJECT_SOURCE_DIR}/sim/gpu/sim_gpu.c)\n", True),
        "tests/client/CMakeLists.txt": ("x(../sim/rig.cc ${top}/client/a.c)\n", False),
        "tests/mkfs/CMakeLists.txt": ("x(${PROJECT_SOURCE_DIR}/client/a.c)\n", True),
        "sim/twin.c": ("", True),
        "mkfs/twin.c": ("", True),
        "tests/mkfs/twin.c": ("", False),
        "tests/sim/any.c": ('#include "fusefs/daemon/x.h"\n', False),
    }
    return tree.self_test(check, cases)


if __name__ == "__main__":
    tree.main(__doc__, check, self_test, "includes")
