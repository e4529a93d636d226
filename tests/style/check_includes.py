#!/usr/bin/env python3
"""Checks that a folder includes only what the architecture lets it use.

usage: check_includes.py ROOT | --self-test
"""

import os
import re
import sys
import tempfile

import tree

# What the files of a folder may include of this tree, besides the folder itself. The longest
# folder that matches a file decides.
PROJECT = {
    "layout": [],
    "blockdev": [],
    "sim": ["blockdev/transport.h", "blockdev/nvme_spec.h", "blockdev/file_lock.h"],
    "cuda": ["layout/", "blockdev/"],
    "sim/serve": ["sim/sim.h", "blockdev/transport.h", "blockdev/nvme_spec.h",
                  "blockdev/vfio_user_spec.h"],
    "client": ["cuda/"],
    "client/cli": ["client/", "blockdev/"],
    "fusefs/core": ["layout/", "blockdev/"],
    "fusefs": ["layout/", "blockdev/", "cuda/", "client/gpunvme_ioctl.h"],
    "fusefs/daemon/gpunvmefs.c": ["fusefs/", "layout/", "blockdev/", "cuda/", "client/gpunvme_ioctl.h",
                             "sim/sim.h"],
    "mkfs": ["layout/", "blockdev/", "fusefs/core/"],
}

# Libraries of others, and who may use them.
LIBRARIES = {
    r"fuse": ["fusefs/daemon"],
    r"libnvme|nvme/": ["blockdev", "sim", "client/cli"],
    r"isa-l|crc\.h": ["layout"],
    r"uuid/": ["fusefs", "mkfs"],
    r"blkid/": ["blockdev", "fusefs", "mkfs"],
    r"json-c|json\.h": ["blockdev", "client", "mkfs", "fusefs/daemon", "sim/serve"],
    r"xxhash": ["layout", "client", "mkfs", "fusefs/core"],
    r"cuda|cooperative_groups|nv/": ["cuda", "client"],
    r"gtest|gmock": [],
}

# Installed headers lie side by side in an include folder, so they name each other without ours.
INSTALLED = ("client/gpunvme.h", "client/gpunvme_ioctl.h")

UNCHECKED = ("tests/", "bench/")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def inside(name, folder):
    return name == folder or name.startswith(folder + "/")


def project_rule(name):
    owners = [folder for folder in PROJECT if inside(name, folder)]
    return max(owners, key=len) if owners else None


def check_own(root, name, target):
    """What is wrong with an include of this tree, or None."""
    if name in INSTALLED:
        ok = f"client/{target}" in INSTALLED
        return None if ok else f'"{target}" is not installed beside this public header'
    if not os.path.isfile(os.path.join(root, target)):
        return f'"{target}" is no file of this tree, written from its top'
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


def check(root):
    problems = []
    for name in tree.source_files(root):
        if not name.startswith(UNCHECKED):
            problems += check_file(root, name)
    return problems


def self_test():
    """Each file of a made-up tree, and whether it breaks a rule."""
    cases = {
        "layout/ok.c": ('#include <stdint.h>\n#include "layout/a.h"\n', False),
        "layout/a.h": ("", False),
        "layout/up.c": ('#include "blockdev/bdev.h"\n', True),
        "blockdev/bdev.h": ("", False),
        "blockdev/nvme.h": ("", False),
        "blockdev/relative.c": ('#include "bdev.h"\n', True),
        "sim/sim.h": ("", False),
        "sim/wide.c": ('#include "blockdev/nvme.h"\n', True),
        "client/gpunvme_ioctl.h": ("", False),
        "client/gpunvme.h": ('#include "gpunvme_ioctl.h"\n', False),
        "fusefs/core/fuse.c": ("#include <fuse_lowlevel.h>\n", True),
        "fusefs/daemon/fuse_ops.c": ("#include <fuse_lowlevel.h>\n", False),
        "fusefs/daemon/gpunvmefs.c": ('#include "sim/sim.h"\n', False),
        "fusefs/daemon/other.c": ('#include "sim/sim.h"\n', True),
        "fusefs/daemon/client.c": ('#include "client/gpunvme.h"\n', True),
        "fusefs/daemon/abi.c": ('#include "client/gpunvme_ioctl.h"\n', False),
        "layout/spaced.c": ('  #  include  "sim/sim.h"\n', True),
        "strange/a.c": ('#include "layout/a.h"\n', True),
        "tests/sim/any.c": ('#include "fusefs/daemon/x.h"\n', False),
    }
    with tempfile.TemporaryDirectory() as root:
        for name, (text, _) in cases.items():
            os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
            with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                file.write(text)
        found = {problem.split(":")[0] for problem in check(root)}
    expected = {name for name, (_, broken) in cases.items() if broken}
    return [f"self-test: {name}: expected {'a' if name in expected else 'no'} violation"
            for name in sorted(found ^ expected)]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    problems = self_test() if sys.argv[1] == "--self-test" else check(sys.argv[1])
    print("\n".join(problems) if problems else "includes: in order")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
