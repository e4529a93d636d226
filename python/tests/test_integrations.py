# SPDX-License-Identifier: BSD-2-Clause
"""Plug-ins for other programs (integrations/), with the programs' own code, where it is installed."""

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import types
import zipfile

import pytest

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../integrations")


def of_folder(path, name):
    spec = importlib.util.spec_from_file_location(name, os.path.join(FOLDER, path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lmcache_packages():
    """LMCache's folders as packages, without what their __init__ would import."""
    if "lmcache" in sys.modules:
        return
    spec = importlib.util.find_spec("lmcache")
    if spec is None:
        pytest.skip("lmcache is not installed")
    path = spec.submodule_search_locations[0]
    for name in ("lmcache", "lmcache.v1", "lmcache.v1.gpu_connector"):
        if name not in sys.modules:
            package = types.ModuleType(name)
            package.__path__ = [os.path.join(path, *name.split(".")[1:])]
            sys.modules[name] = package


def test_serves_lmcache(torch, folder, device):
    lmcache_packages()
    backend = of_folder("lmcache/gpunvme.py", "lmcache_gpunvme").Backend()
    backend.validate_environment()
    source = torch.arange(1 << 20, dtype=torch.int32, device=device)
    back = torch.zeros_like(source)
    stream = torch.cuda.current_stream().cuda_stream if device == "cuda" else 0
    for buf in (source, back):
        backend.register_buffer(buf)
    backend.register_stream(stream)
    with backend.open_slab(folder, 8 << 20, False) as slab:
        size = source.nbytes
        written = slab.write_async(source.data_ptr(), size, 4096, 0, stream)
        part = slab.read_async(back.data_ptr(), 4000, 4096 + 400, 400, stream)
        if device == "cuda":
            torch.cuda.synchronize()
        assert (written.bytes_done, part.bytes_done) == (size, 4000)
        assert torch.equal(back[100:1100], source[100:1100]) and not back[1100:].any()
        whole = slab.read_async(back.data_ptr(), size, 4096, 0, stream)
        if device == "cuda":
            torch.cuda.synchronize()
        assert whole.bytes_done == size and torch.equal(back, source)
    for buf in (source, back):
        backend.deregister_buffer(buf)
    backend.deregister_stream(stream)
    backend.close_driver()
    os.unlink(slab.path)


def test_serves_the_wheel_of_lmcache(tmp_path):
    """The wheel puts the file where LMCache looks for backends."""
    setuptools = pytest.importorskip("setuptools", minversion="77", reason="no setuptools 77")
    assert setuptools
    source = tmp_path / "source"
    shutil.copytree(os.path.join(FOLDER, "lmcache"), source)
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
                    "--no-index", "-w", tmp_path, source], check=True, timeout=120)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        assert wheel.read("lmcache/v1/gpu_connector/gds_backends/gpunvme.py") == \
            (source / "gpunvme.py").read_bytes()
        assert not [name for name in wheel.namelist() if name.endswith("__init__.py")]


def test_serves_fastsafetensors(torch, folder, device):
    pytest.importorskip("fastsafetensors", reason="fastsafetensors is not installed")
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    of_folder("fastsafetensors/gpunvme_copier.py", "gpunvme_copier")
    from fastsafetensors import SingleGroup
    from fastsafetensors.loader import BaseSafeTensorsFileLoader
    from fastsafetensors.st_types import Device
    tensors = {f"t{i}": torch.randn(100 + i, 333) for i in range(20)}
    path = os.path.join(folder, "fast.safetensors")
    safetensors.save_file(tensors, path)
    where = Device.from_str(device if device == "cpu" else "cuda:0")
    loader = BaseSafeTensorsFileLoader(SingleGroup(), where, copier_type="gpunvme")
    loader.add_filenames({0: [path]})
    buffers = loader.copy_files_to_device()
    for name, tensor in tensors.items():
        assert torch.equal(buffers.get_tensor(name).cpu(), tensor), name
    buffers.close()
    loader.close()
    os.unlink(path)


def test_serves_vllm(torch, folder):
    """The loader with vLLM's search for files; a model of vLLM needs its compiled kernels."""
    pytest.importorskip("vllm.model_executor.model_loader", reason="vllm is not installed")
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    import gpunvme.vllm
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader
    gpunvme.vllm.register()
    expected = {f"layers.0.experts.{i}.w1.weight": torch.randn(8, 8) for i in range(4)}
    expected |= {"embed.weight": torch.randn(16, 8), "unused": torch.ones(3)}
    path = os.path.join(folder, "model.safetensors")
    safetensors.save_file(expected, path)
    loader = get_model_loader(LoadConfig(load_format="gpunvme"))
    config, model = types.SimpleNamespace(model=folder, revision=None), torch.nn.Linear(1, 1)
    loader.download_model(config)
    found = dict(loader.get_all_weights(config, model))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name].cpu(), expected[name]) for name in expected)
    loader.local_expert_ids = {1, 2}
    model.is_unused_checkpoint_weight = lambda name: name == "unused"
    assert sorted(dict(loader.get_all_weights(config, model))) == [
        "embed.weight", "layers.0.experts.1.w1.weight", "layers.0.experts.2.w1.weight"]
    os.unlink(path)


SGLANG = """
import sys, torch, gpunvme.sglang, gpunvme.torch
gpunvme.sglang.register()
from sglang.srt.model_loader import weight_utils
if sys.argv[2] == "off":
    assert weight_utils.safetensors.safe_open is gpunvme._safetensors.reference
    sys.exit()
class Opened(gpunvme.torch.safe_open):
    def __init__(self, name, framework, device, **keywords):
        assert device == "cuda"  # which this machine may lack
        super().__init__(name, framework, "cpu", **keywords)
gpunvme.torch.safe_open = Opened
found = dict(weight_utils.safetensors_weights_iterator([sys.argv[1]]))
assert torch.equal(found["a"], torch.arange(10_000)), found
assert sum(call.bytes for call in gpunvme.stats().values()) == 80_000
"""


@pytest.mark.parametrize("plugins", ["gpunvme, another", ""])
def test_serves_sglang(torch, tmpfs, plugins):
    pytest.importorskip("sglang.srt.plugins", reason="sglang is not installed")
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    path = os.path.join(tmpfs, "model.safetensors")
    safetensors.save_file({"a": torch.arange(10_000)}, path)
    done = subprocess.run([sys.executable, "-c", SGLANG, path, "on" if plugins else "off"],
                          env={**os.environ, "SGLANG_PLUGINS": plugins}, capture_output=True,
                          text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


def test_serves_hicache(torch, folder):
    """Pages in SGLang's files; its own backend and ours read each other's."""
    storage = pytest.importorskip("sglang.srt.mem_cache.hicache_storage",
                                  reason="sglang is not installed")
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
    place = tempfile.mkdtemp(dir=folder)
    config = storage.HiCacheStorageConfig(
        tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
        is_mla_model=False, enable_storage_metrics=False, is_page_first_layout=False,
        model_name="a/model", extra_config={
            "backend_name": "gpunvme", "module_path": "gpunvme.hicache", "class_name": "HiCache",
            "file_storage_path": place})
    ours = StorageBackendFactory.create_backend("dynamic", config, None)
    theirs = storage.HiCacheFile(config)
    pages = {f"page{i}": torch.randn(10_000).to(torch.bfloat16) for i in range(20)}
    assert ours.batch_set(list(pages), list(pages.values())) and ours.exists("page7")
    assert theirs.set("theirs", pages["page3"]) and ours.set("page3", torch.zeros(1))
    for backend in (ours, theirs):
        found = backend.batch_get([*pages, "theirs"],
                                  [torch.zeros_like(pages["page0"]) for _ in range(21)])
        expected = [*pages.values(), pages["page3"]]
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert ours.get("none", torch.zeros(3)) is None
    with pytest.raises(OSError, match="not a page of 40 bytes"):
        ours.get("page0", torch.zeros(10))
    assert not [name for name in os.listdir(place) if not name.endswith(".bin")]
    ours.close()
