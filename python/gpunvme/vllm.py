# SPDX-License-Identifier: BSD-2-Clause
"""Is vLLM's load format "gpunvme", whose entry point vllm.general_plugins calls register()."""
# mypy: allow-subclassing-any

import dataclasses
import time
from collections.abc import Generator
from typing import Any

from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight
from vllm.platforms import current_platform

from .torch import iter_tensors


class GpunvmeModelLoader(DefaultModelLoader):
    """Reads safetensors straight into the memory of this rank's GPU, without other ranks' experts."""

    counter_before_loading_weights: float

    def __init__(self, load_config: Any) -> None:
        super().__init__(dataclasses.replace(load_config, load_format="safetensors"))

    def _get_weights_iterator(self, source: Any) -> Generator[tuple[str, Any], None, None]:
        files = self._prepare_weights(source.model_or_path, source.subfolder, source.revision,
                                      source.fall_back_to_pt, source.allow_patterns_overrides)[1]
        self.counter_before_loading_weights = (self.counter_before_loading_weights
                                               or time.perf_counter())

        def keep(name: str) -> bool:
            unused = source.is_unused_weight is not None and source.is_unused_weight(name)
            return not unused and not should_skip_weight(name, self.local_expert_ids)

        device = self.load_config.device or current_platform.device_type or "cpu"
        for name, tensor in iter_tensors(sorted(files), device, keep=keep):
            yield source.prefix + name, tensor


def register() -> None:
    """Registers the format."""
    register_model_loader("gpunvme")(GpunvmeModelLoader)
