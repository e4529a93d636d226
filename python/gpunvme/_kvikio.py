# SPDX-License-Identifier: BSD-2-Clause
"""Has KvikIO's names and arguments, so that its programs run with `import gpunvme as kvikio`."""

from typing import Any

from . import _native
from ._file import File, IOFuture, IOFutureStream, deregister, register, threads


class CuFile(File):
    """kvikio.CuFile: sizes are bytes of the buffer, and reads and writes take no place in it.

    task_size is accepted and unused: transfers are cut by the library.
    """

    def __init__(self, file: Any, flags: str = "r") -> None:
        super().__init__(file, flags)

    def read(self, buf: Any, size: int | None = None, file_offset: int = 0,
             task_size: int | None = None) -> int:
        return super().read(buf, size, file_offset)

    def write(self, buf: Any, size: int | None = None, file_offset: int = 0,
              task_size: int | None = None) -> int:
        return super().write(buf, size, file_offset)

    def pread(self, buf: Any, size: int | None = None, file_offset: int = 0,
              task_size: int | None = None) -> IOFuture:
        return self._start(False, buf, size, file_offset)

    def pwrite(self, buf: Any, size: int | None = None, file_offset: int = 0,
               task_size: int | None = None) -> IOFuture:
        return self._start(True, buf, size, file_offset)

    def raw_read(self, buf: Any, size: int | None = None, file_offset: int = 0,
                 dev_offset: int = 0) -> int:
        return super().read(buf, size, file_offset, dev_offset)

    def raw_write(self, buf: Any, size: int | None = None, file_offset: int = 0,
                  dev_offset: int = 0) -> int:
        return super().write(buf, size, file_offset, dev_offset)

    def raw_read_async(self, buf: Any, stream: Any, size: int | None = None, file_offset: int = 0,
                       dev_offset: int = 0) -> IOFutureStream:
        return self.read_async(buf, size, file_offset, dev_offset, stream)

    def raw_write_async(self, buf: Any, stream: Any, size: int | None = None,
                        file_offset: int = 0, dev_offset: int = 0) -> IOFutureStream:
        return self.write_async(buf, size, file_offset, dev_offset, stream)


class _Defaults:
    """kvikio.defaults: num_threads has an effect; compat_mode is what this process was told."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {"compat_mode": None, "task_size": 4 << 20,
                                        "gds_threshold": 0, "bounce_buffer_size": 2 << 20}

    def get(self, name: str) -> Any:
        if name == "num_threads":
            return threads.workers
        if name == "compat_mode":
            return _native.process.options.path == 2
        return self._values[name]

    def set(self, name: str | dict[str, Any], value: Any = None) -> None:
        for key, new in (name.items() if isinstance(name, dict) else [(name, value)]):
            if key == "num_threads":
                threads.resize(new)
            elif key in self._values:
                self._values[key] = new
            else:
                raise KeyError(key)


defaults = _Defaults()
memory_register = register
memory_deregister = deregister
