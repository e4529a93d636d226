# SPDX-License-Identifier: BSD-2-Clause
"""Puts gpunvme in place of safetensors, for programs that are not changed."""

import sys
from typing import Any

_installed: list[Any] = []  # functions in the place of the package's
_TORCH = ("pt", "torch", "pytorch")


def install(device: Any = None) -> None:
    """Replaces safetensors.safe_open, also in modules that have imported it.

    Tensors of torch are then read by gpunvme; other frameworks keep the package's reader. device:
    where tensors go that the caller wants on the CPU, which is the default of safetensors; None
    means there.
    """
    from . import _safetensors  # which keeps the function of the package
    theirs = _safetensors.reference
    if theirs is None:
        raise ImportError("the package safetensors is not installed", name="safetensors")

    # The names and defaults are those of safetensors.
    def safe_open(filename: Any, framework: str, device: Any = "cpu", *,
                  backend: str = "mmap") -> Any:
        if framework not in _TORCH:
            return theirs(filename, framework, device, backend=backend)
        from .torch import safe_open as ours
        return ours(filename, framework, replaced if str(device) == "cpu" else device,
                    backend=backend)

    replaced = "cpu" if device is None else device
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == __package__:
            continue
        for variable, value in list(getattr(module, "__dict__", {}).items()):
            if value is theirs or any(value is earlier for earlier in _installed):
                setattr(module, variable, safe_open)
    _installed.append(safe_open)
