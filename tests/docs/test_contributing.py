"""The worked examples of CONTRIBUTING.md: a kernel, a part, a variant, a verb, a probe and a backend."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from forked import Forked, command
from safetensors.torch import load_file
from shown import ROOT, blocks

from nadaraya.errors import InputError
from nadaraya.study import probes
from nadaraya.training import Run

PAGE = ROOT / "CONTRIBUTING.md"


def test_the_kernel_and_the_backend_work_and_obey_their_laws() -> None:
    names: dict[str, Any] = {}
    for code in blocks(PAGE):
        exec(compile(code, str(PAGE), "exec"), names)
    gradient = names["kernel"].log_width.grad
    assert gradient.shape == (4,)
    assert gradient.abs().min() > 0
    assert all(torch.isfinite(part).all() for part in names["gradients"][0])


@pytest.mark.slow
def test_the_part_is_two_files_of_sixty_lines_and_obeys_its_law(tmp_path: Path) -> None:
    (part,), (test,) = blocks(PAGE, "python part"), blocks(PAGE, "python part-test")
    assert len((part + test).splitlines()) <= 60
    (tmp_path / "token_decay.py").write_text(part, encoding="utf-8")
    (tmp_path / "test_token_decay.py").write_text(test, encoding="utf-8")
    program = (
        "import pytest, sys; sys.path.insert(0, '')\n"
        "assert not pytest.main(['-q', '-p', 'no:cacheprovider', 'test_token_decay.py'])\n"
        # The variant is one of a model that decodes by a cache, drawn anew with its start kept.
        "import torch, token_decay\n"
        "from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM as Model\n"
        "sizes = {'hidden_size': 16, 'num_hidden_layers': 1, 'num_attention_heads': 2, 'vocab_size': 9}\n"
        "model = Model(KernelGPTConfig(variant='token-decay', **sizes)).eval()\n"
        "ids = torch.randint(9, (1, 8)); seen = model(ids[:, :5], use_cache=True)\n"
        "by_cache = model(ids[:, 5:], past_key_values=seen.past_key_values).logits\n"
        "torch.testing.assert_close(by_cache, model(ids).logits[:, 5:])\n"
        "start = [p for name, p in model.named_parameters() if name.endswith('log_rate.bias')]\n"
        "assert len(start) == 1 and torch.allclose(start[0].exp(), torch.tensor(1 / 32)), start\n"
    )
    done = Forked(program, folder=tmp_path).end()
    assert done.status == 0, done
    assert "1 passed" in done.out


def test_the_probe_is_measured_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_PROBES", {})
    (probe,) = blocks(PAGE, "python probe")
    exec(probe, {})
    run = SimpleNamespace(load_model=lambda: torch.nn.Linear(3, 2))
    found = probes.measure("largest", run)
    assert found.keys() == {"weight"}
    assert 0.0 < found["weight"] < 1.0
    with pytest.raises(InputError, match="name of a probe must be one that is not taken, got 'largest'"):
        probes.register("largest")(lambda run: {})


@pytest.mark.slow
def test_the_verb_runs_by_its_name_from_a_file_outside_of_the_library(tmp_path: Path) -> None:
    (verb,) = blocks(PAGE, "python verb")
    (tmp_path / "shape.py").write_text(verb, encoding="utf-8")
    done = command("shape", "gpa-rope", "--json", "--import", "shape", folder=tmp_path)
    assert done.status == 0, done.err
    assert json.loads(done.out) == {"variant": "gpa-rope", "parts": ["position", "rotary"]}


@pytest.mark.slow
def test_the_variant_trains_by_its_name_from_a_file_outside_of_the_library(tmp_path: Path) -> None:
    kernel = next(block for block in blocks(PAGE) if "class Cauchy" in block).split("\n\n\nkernel =")[0]
    (variant,) = blocks(PAGE, "python variant")
    (tmp_path / "cauchy.py").write_text(f"{kernel}\n\n\n{variant}", encoding="utf-8")
    options = ["model.variant=cauchy", "training.steps=2", "training.warmup_steps=0", "training.batch_size=2"]
    options += ["model.hidden_size=16", "training.sample_characters=10", "data.limit=9000"]
    options += ["model.variant_options={longest: 64}", "--import", "cauchy"]
    done = command("train", "demo", *options, folder=tmp_path)
    assert done.status == 0, done.err
    found = load_file(tmp_path / "runs" / "demo-cauchy" / "initial_kernels.safetensors")
    widths = next(iter(found.values())).exp()
    torch.testing.assert_close(widths, torch.tensor([4.0, 10.079, 25.398, 64.0]), rtol=1e-3, atol=0.0)
    done = command("--import=cauchy", "generate", "runs/demo-cauchy", "--tokens", "3", folder=tmp_path)
    assert done.status == 0, done.err
    with pytest.raises(InputError, match="got 'cauchy'"):  # not registered in this process
        Run(tmp_path / "runs" / "demo-cauchy").load_model()
