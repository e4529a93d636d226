# SPDX-License-Identifier: BSD-2-Clause
"""gpunvme in place of safetensors, in programs that are not changed. Each runs in its own process."""

import inspect
import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
START = os.path.join(HERE, "../../client/cufile/python")  # what gpunvme-run --safetensors adds

@pytest.fixture(name="model")
def fixture_model(tmpfs, torch):
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    path = os.path.join(tmpfs, "model.safetensors")
    safetensors.save_file({"a": torch.arange(10_000), "b": torch.ones(3, 5)}, path)
    return path


def run(program, *arguments, path=START, cwd=None, **variables):
    environment = {**os.environ, "GPUNVME_SAFETENSORS": "cpu", "PYTHONDONTWRITEBYTECODE": "1",
                   "PYTHONPATH": os.pathsep.join([path, os.path.join(HERE, "..")]), **variables}
    done = subprocess.run([sys.executable, "-c", program, *arguments], env=environment, text=True,
                          capture_output=True, check=False, timeout=600, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done


def test_arguments_are_those_of_safetensors():
    safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed")
    theirs = inspect.signature(safetensors.safe_open).parameters.values()
    done = run("import inspect, safetensors\n"
               "for p in inspect.signature(safetensors.safe_open).parameters.values():\n"
               "    print(p.name, p.kind, p.default is inspect.Parameter.empty)")
    assert done.stdout.splitlines() == [
        f"{p.name} {p.kind} {p.default is inspect.Parameter.empty}" for p in theirs]


PROGRAM = """
from safetensors.torch import load_file, safe_open
import safetensors, torch
assert "gpunvme.torch" not in sys.modules
found = load_file(sys.argv[1])
assert torch.equal(found["a"], torch.arange(10_000))
with safe_open(sys.argv[1], "pt", device="cpu", backend="mmap") as f:
    assert f.keys() == ["a", "b"] and f.get_slice("b")[1:2].shape == (1, 5)
import gpunvme.torch
assert isinstance(safetensors.safe_open(sys.argv[1], framework="pt"), gpunvme.torch.safe_open)
with safetensors.safe_open(sys.argv[1], framework="np") as f:
    assert not isinstance(f, gpunvme.torch.safe_open) and f.get_tensor("b").sum() == 15
"""


def test_programs_read_by_gpunvme(model):
    run("import sys\n" + PROGRAM, model)


def test_replaces_modules_that_were_imported_before(model):
    run("import sys\nfrom safetensors.torch import load_file, safe_open\nimport safetensors\n"
        "before = [safetensors.safe_open]  # a list is left as it is\n"
        "from gpunvme._install import install\ninstall()\ninstall()\n"
        "assert safe_open is not before[0]\n"
        "assert safetensors.torch.safe_open is safe_open\n"
        + PROGRAM, model, path="")


def test_tensors_for_the_cpu_go_to_the_device(model):
    run("import sys, safetensors.torch\nfrom gpunvme import torch as ours\n"
        "devices = []\n"
        "class Opened(ours.safe_open):\n"
        "    def __init__(self, name, framework, device, **kw):\n"
        "        devices.append(device)\n"
        "        super().__init__(name, framework, 'cpu', **kw)\n"
        "ours.safe_open = Opened\n"
        "safetensors.torch.load_file(sys.argv[1])\n"
        "safetensors.torch.load_file(sys.argv[1], device='cuda:3')\n"
        "assert devices == ['cuda:1', 'cuda:3'], devices", model, GPUNVME_SAFETENSORS="cuda:1")


def test_the_systems_sitecustomize_has_its_turn(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('mine')\n")
    done = run("import sys\nprint(sys.modules['sitecustomize'].__file__)",
               path=f"{START}:{tmp_path}")
    assert done.stdout.splitlines() == ["mine", str(tmp_path / "sitecustomize.py")]


def test_a_python_without_the_package_starts(tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    done = run("import safetensors\nprint('goes on')", PYTHONPATH=START, cwd=tmp_path)
    assert "cannot use the package gpunvme" in done.stderr and done.stdout == "goes on\n"


MODEL = """
import os, sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
from torch.distributed import checkpoint
import gpunvme

def moved():
    return sum(call.bytes for call in gpunvme.stats().values())

def same(found):
    return all(torch.equal(expected[name], tensor) for name, tensor in found.items())

model = LlamaForCausalLM(LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=3,
                                     num_attention_heads=4, num_key_value_heads=2, vocab_size=512))
model.save_pretrained(sys.argv[1], max_shard_size="200KB")
expected = model.state_dict()
total = sum(tensor.nbytes for tensor in expected.values())
assert same(LlamaForCausalLM.from_pretrained(sys.argv[1]).state_dict()) and moved() == total
again = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
checkpoint.load(again, storage_reader=checkpoint.HuggingFaceStorageReader(sys.argv[1]),
                no_dist=True)
assert same(again) and moved() == 2 * total
"""


def test_serves_transformers_and_checkpoints_of_torch(tmpfs):
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    run(MODEL, tmpfs)


DIFFUSERS = """
import sys, torch
from accelerate import load_checkpoint_in_model
from diffusers import UNet2DModel
import gpunvme

def moved():
    return sum(call.bytes for call in gpunvme.stats().values())

def same(model):
    return all(torch.equal(expected[name], tensor) for name, tensor in model.state_dict().items())

model = UNet2DModel(sample_size=8, layers_per_block=1, block_out_channels=(32,),
                    down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",))
model.save_pretrained(sys.argv[1])
expected = model.state_dict()
total = sum(tensor.nbytes for tensor in expected.values())
assert same(UNet2DModel.from_pretrained(sys.argv[1])) and moved() == total
again = UNet2DModel.from_config(model.config)
load_checkpoint_in_model(again, sys.argv[1] + "/diffusion_pytorch_model.safetensors")
assert same(again) and moved() == 2 * total
"""


def test_serves_diffusers_and_accelerate(tmpfs):
    for name in ("torch", "accelerate", "diffusers"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    run(DIFFUSERS, tmpfs)
