# SPDX-License-Identifier: BSD-2-Clause
"""Types of the package, of its examples, and of the programs in its documentation."""

import os
import re
import subprocess
import sys

import pytest

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def test_types_satisfy_mypy(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    programs = []
    for name in "docs/python.md", "README.md", "integrations/README.md":
        document = os.path.join(TOP, "..", name)
        if os.path.exists(document):
            with open(document, encoding="utf-8") as file:
                programs += re.findall("```python\n(.*?)```", file.read(), re.DOTALL)
    names = "from typing import Any\nimport torch\nimport gpunvme\n" \
            "tensor: Any\nx: Any\nblock: Any\ngraph: Any\n"
    for i, text in enumerate(programs):
        (tmp_path / f"program{i}.py").write_text(names + text)
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports",
                           "--cache-dir", str(tmp_path / "cache"), os.path.join(TOP, "gpunvme"),
                           os.path.join(TOP, "examples"),
                           *(str(p) for p in tmp_path.glob("program*.py"))],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
