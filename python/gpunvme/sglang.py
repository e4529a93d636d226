# SPDX-License-Identifier: BSD-2-Clause
"""Is a plug-in of SGLang, whose entry point sglang.srt.plugins calls register()."""

import os

from ._install import install


def register() -> None:
    """Lets SGLang read safetensors into GPU memory, if SGLANG_PLUGINS names gpunvme."""
    if "gpunvme" in map(str.strip, os.environ.get("SGLANG_PLUGINS", "").split(",")):
        install("cuda")
