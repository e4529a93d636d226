# SPDX-License-Identifier: BSD-2-Clause
"""fastsafetensors' copier over gpunvme: importing this module registers it as "gpunvme".

For fastsafetensors 0.5.0.

    import gpunvme_copier
    loader = BaseSafeTensorsFileLoader(pg, device, copier_type="gpunvme")
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import gpunvme
from fastsafetensors.copier.base import (CopierInterface, validated_byte_ranges,
                                         validated_chunk_allocation_size)
from fastsafetensors.copier.nogds import load_library_func
from fastsafetensors.copier.registry import register_copier_constructor
from fastsafetensors.st_types import DType
from gpunvme._memory import Memory


class GpunvmeCopier(CopierInterface):
    """Reads the data of one file into a buffer of the framework, with threads."""

    def __init__(self, metadata: Any, device: Any, framework: Any,
                 pool: ThreadPoolExecutor) -> None:
        self.metadata, self.device, self.framework, self._pool = metadata, device, framework, pool
        self._file = gpunvme.open(metadata.src)
        self._reads: list[tuple["Future[int]", int]] = []
        self._ranges: list[tuple[int, int]] | None = None
        self._names: set[str] | None = None
        self._room: int | None = None
        self._base = metadata.header_length

    def set_byte_ranges(self, byte_ranges: Any) -> None:
        self._ranges = validated_byte_ranges(self.metadata, byte_ranges)

    def set_chunk(self, byte_ranges: Any, names: set[str],
                  allocation_size: int | None = None) -> None:
        self._room = validated_chunk_allocation_size(byte_ranges, allocation_size)
        self.set_byte_ranges(byte_ranges)
        self._names = set(names)

    @classmethod
    def chunk_transient_multiplier(cls, paths: list[str]) -> int:
        return 1

    @classmethod
    def fixed_device_overhead(cls, paths: list[str]) -> int:
        return 0

    def _read(self, address: int, size: int, offset: int) -> int:
        return self._file.transfer(False, Memory(address, size, None), size, offset, 0)

    def submit_io(self, use_buf_register: bool, max_copy_block_size: int) -> Any:
        ranges = self._ranges
        if ranges is None:
            ranges = [(self.metadata.header_length, self.metadata.size_bytes)]
        length = self.metadata.size_bytes - self._base
        if self._names is not None:
            self._base = min((begin for begin, _ in ranges), default=self._base)
            span = max((end for _, end in ranges), default=self._base) - self._base
            length = self._room or span
        gbuf = self.framework.alloc_tensor_memory(length, self.device)
        for begin, end in ranges:
            for at in range(begin, end, max_copy_block_size):
                size = min(max_copy_block_size, end - at)
                address = gbuf.get_base_address() + at - self._base
                self._reads.append((self._pool.submit(self._read, address, size, at), size))
        return gbuf

    def finish_io(self) -> None:
        reads, self._reads = self._reads, []
        try:
            results = [(future.result(), size) for future, size in reads]
        finally:
            for future, _ in reads:
                future.exception()  # waits, since memory is freed after this
            self._file.close()
        if any(done != size for done, size in results):
            raise OSError(f"{self.metadata.src}: the file has become shorter")

    def wait_io(self, gbuf: Any, dtype: DType = DType.AUTO, noalign: bool = False,
                owner: Any = None) -> Any:
        self.finish_io()
        return self.metadata._get_tensors(gbuf, self.device, self._base, dtype=dtype,
                                          names=self._names, owner=owner)


@register_copier_constructor("gpunvme", GpunvmeCopier)
def new_gpunvme_copier(_: Any, max_threads: int = 8, **options: Any) -> Any:
    """Called by fastsafetensors. Returns a function that makes copiers."""
    load_library_func(options.get("framework"))
    pool = ThreadPoolExecutor(max_threads, "gpunvme-copier")
    return lambda metadata, device, framework: GpunvmeCopier(metadata, device, framework, pool)
