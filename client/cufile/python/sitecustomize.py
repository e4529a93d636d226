# SPDX-License-Identifier: BSD-2-Clause
"""Python runs this when it starts under gpunvme-run --safetensors, before the program."""

import contextlib
import importlib.util
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))


def install():
    try:
        from gpunvme import _install
    except (ImportError, OSError) as error:
        print(f"gpunvme-run: {sys.executable}: cannot use the package gpunvme: {error}",
              file=sys.stderr)
        return
    _install.install(os.environ["GPUNVME_SAFETENSORS"])


class Finder:
    """Calls install() when the program has imported safetensors."""

    def find_spec(self, name, _path=None, _target=None):
        if name != "safetensors":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                install()
            spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
# The system's file of this name, which this one hides, has its turn.
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != FOLDER]
own = sys.modules.pop("sitecustomize")
with contextlib.suppress(ImportError):
    import sitecustomize  # noqa: F401  # pylint: disable=import-self
sys.modules.setdefault("sitecustomize", own)
