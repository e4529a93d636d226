# SPDX-License-Identifier: BSD-2-Clause
"""Stores the pages of SGLang's HiCache in files by gpunvme, as its backend "dynamic".

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
    '{"backend_name": "gpunvme", "module_path": "gpunvme.hicache", "class_name": "HiCache",
      "file_storage_path": "/mnt/kv"}'
"""
# mypy: allow-subclassing-any

import contextlib
import logging
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sglang.srt.mem_cache.hicache_storage import HiCacheFile

from ._file import File

_log = logging.getLogger(__name__)


class HiCache(HiCacheFile):
    """SGLang's backend "file" with transfers by gpunvme; names, limits and contents are the same.

    Pages of a batch move at the same time. A page appears in its file as a whole.
    """

    def __init__(self, storage_config: Any, _: Any = None, threads: int = 8) -> None:
        if not (storage_config.extra_config or {}).get("file_storage_path"):
            raise ValueError("file_storage_path: not in the extra config, name a folder of a mount")
        super().__init__(storage_config)
        os.makedirs(self.file_path, exist_ok=True)
        self._pool = ThreadPoolExecutor(threads, "gpunvme-hicache")

    def _path(self, name: str) -> str:
        return os.path.join(self.file_path, f"{name}.bin")

    def get(self, key: str, target_location: Any, target_sizes: Any = None) -> Any:
        name = self._get_suffixed_key(key)
        try:
            with File(self._path(name)) as file:
                moved = file.read(target_location)
                if moved != target_location.nbytes or moved != file.size():
                    raise OSError(f"{self._path(name)}: not a page of {target_location.nbytes} bytes")
        except FileNotFoundError:
            if self.metadata_cache is not None:
                self.metadata_cache.remove(name)
            return None
        self._evictor.touch(name, self._path(name))
        return target_location

    def batch_get(self, keys: list[str], target_locations: Any, target_sizes: Any = None) -> list[Any]:
        return list(self._pool.map(self.get, keys, target_locations))

    def set(self, key: str, value: Any = None, target_location: Any = None,
            target_sizes: Any = None) -> bool:
        name = self._get_suffixed_key(key)
        if self.exists(key):
            self._evictor.touch(name, self._path(name))
            return True
        if not self._evictor.reserve(name, value.nbytes, key=key):
            return False
        try:
            self._write(self._path(name), value.contiguous())
        except OSError as error:
            _log.error("%s: %s", key, error)
            self._evictor.abort(name)
            return False
        self._evictor.commit(name)
        if self.metadata_cache is not None:
            self.metadata_cache.add(name)
        return True

    def _write(self, path: str, value: Any) -> None:
        temporary = os.path.join(self.file_path, f".{uuid.uuid4().hex}.tmp")
        try:
            with File(temporary, "w") as file:
                if file.write(value) != value.nbytes:
                    raise OSError(f"{path}: not written as a whole")
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None,
                  target_sizes: Any = None) -> bool:
        return all(list(self._pool.map(self.set, keys, values)))

    def close(self) -> None:
        """Ends the threads of the pool."""
        self._pool.shutdown()
