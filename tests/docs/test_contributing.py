"""The worked examples of CONTRIBUTING.md: a kernel, a part of the layer, a variant and a backend."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from shown import ROOT, blocks

PAGE = ROOT / "CONTRIBUTING.md"
PACKAGE = ROOT / "src" / "nadaraya"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package, to be changed."""
    return Path(shutil.copytree(PACKAGE, tmp_path / "nadaraya", ignore=shutil.ignore_patterns("__pycache__")))


def test_the_kernel_and_the_backend_work_and_obey_their_laws() -> None:
    names: dict[str, Any] = {}
    for code in blocks(PAGE):
        exec(compile(code, str(PAGE), "exec"), names)
    gradient = names["kernel"].log_width.grad
    assert gradient.shape == (4,)
    assert gradient.abs().min() > 0
    assert all(torch.isfinite(part).all() for part in names["gradients"][0])


@pytest.mark.slow
def test_the_part_is_three_files_of_sixty_lines_and_obeys_its_law(copy: Path, tmp_path: Path) -> None:
    files = [blocks(PAGE, f"python {name}") for name in ("part", "part-variant", "part-test")]
    assert [len(file) for file in files] == [1, 1, 1]
    (part,), (variant,), (test,) = files
    assert len((part + variant + test).splitlines()) <= 60
    (copy / "attention" / "token_decay.py").write_text(part, encoding="utf-8")
    variants = copy / "attention" / "variants.py"
    importing = "import inspect\nfrom nadaraya.attention.token_decay import TokenDecay\n"
    edited = variants.read_text(encoding="utf-8").replace("import inspect\n", importing)
    variants.write_text(f"{edited}\n\n{variant}", encoding="utf-8")
    (tmp_path / "test_token_decay.py").write_text(test, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_token_decay.py"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    # The variant is one of a model that decodes by a cache, drawn anew with its start kept.
    program = (
        "import torch; from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM as Model\n"
        "sizes = {'hidden_size': 16, 'num_hidden_layers': 1, 'num_attention_heads': 2, 'vocab_size': 9}\n"
        "model = Model(KernelGPTConfig(variant='token-decay', **sizes)).eval()\n"
        "ids = torch.randint(9, (1, 8)); seen = model(ids[:, :5], use_cache=True)\n"
        "by_cache = model(ids[:, 5:], past_key_values=seen.past_key_values).logits\n"
        "torch.testing.assert_close(by_cache, model(ids).logits[:, 5:])\n"
        "start = [p for name, p in model.named_parameters() if name.endswith('log_rate.bias')]\n"
        "assert len(start) == 1 and torch.allclose(start[0].exp(), torch.tensor(1 / 32)), start\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_variant_trains_by_its_name_in_a_copy_of_the_library(copy: Path, tmp_path: Path) -> None:
    kernel = next(block for block in blocks(PAGE) if "class Cauchy" in block)
    imports, definition = kernel.split("class Cauchy")
    (copy / "kernels" / "cauchy.py").write_text(
        "import torch\nfrom torch import Tensor\n\nfrom nadaraya.kernels.base import Kernel\n"
        "from nadaraya.kernels.parameters import Positive\n\n\nclass Cauchy"
        + definition.split("\n\n\nkernel =")[0] + "\n",
        encoding="utf-8",
    )  # fmt: skip
    assert "import torch\nfrom torch import Tensor" in imports
    file = copy / "attention" / "variants.py"
    (variant,) = blocks(PAGE, "python variant")
    edited = file.read_text(encoding="utf-8").replace(
        "import inspect\n",
        "import inspect\nimport math\n\nimport torch\nfrom nadaraya.kernels.cauchy import Cauchy\n",
    )
    file.write_text(f"{edited}\n\n{variant}", encoding="utf-8")
    command = [sys.executable, "-m", "nadaraya.cli", "train", "demo", "model.variant=cauchy"]
    command += [
        "training.steps=2",
        "training.warmup_steps=0",
        "training.batch_size=2",
        "model.hidden_size=16",
    ]
    command += ["training.sample_characters=10", "data.limit=9000", "model.variant_options={longest: 64}"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "demo-cauchy" / "model.safetensors").is_file()
    widths = [4.0, 10.079, 25.398, 64.0]
    load = "import safetensors.torch as s; print([t.exp().tolist() for t in s.load_file('runs/demo-cauchy/"
    load += "initial_kernels.safetensors').values()][0])"
    printed = subprocess.run(
        [sys.executable, "-c", load],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert [float(width) for width in printed.strip("[]\n").split(",")] == pytest.approx(widths, rel=1e-3)
