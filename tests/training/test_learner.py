"""One update: what a few lines of plain PyTorch do; dropout of its own in every process."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from nadaraya.data.windows import training_batch
from nadaraya.training import Recipe, train
from nadaraya.training.loop import Learner
from nadaraya.training.processes import Processes
from nadaraya.training.text import TextTask


def test_training_is_a_plain_loop_over_adamw(tiny_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    clip = 0.5
    recipe = tiny_recipe(model__dropout=0.0, training__clip=clip, training__min_learning_rate=1e-4)
    task = TextTask(recipe, Processes())
    model, options = task.model.train(), recipe.training
    kernels = {id(parameter) for _, parameter in model.kernel_parameters()}
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    groups = []
    for parameter in model.parameters():
        kernel = id(parameter) in kernels
        decays = parameter.ndim > 1 and not kernel and id(parameter) not in tables
        peak = options.kernel_learning_rate if kernel else options.learning_rate
        groups.append({"params": [parameter], "peak": peak, "weight_decay": 0.1 if decays else 0.0})
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    norms = []
    for step in range(1, 9):
        inputs, targets = training_batch(task._text._train, 16, 4, recipe.seed, step)
        F.cross_entropy(model(input_ids=inputs).logits.flatten(0, 1), targets.flatten()).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
        lowest = 1e-4 / options.learning_rate
        cosine = lowest + (1 - lowest) * (1 + math.cos(math.pi * (step - 3) / 6)) / 2
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * ((step - 1) / 2 if step < 3 else cosine)
        optimizer.step()
        optimizer.zero_grad()
    assert max(norms) > clip
    run = train(recipe, tmp_path / "run", progress=False)
    trained = load_file(run.path / "model.safetensors")
    for name, parameter in model.named_parameters():
        if name in trained:
            torch.testing.assert_close(trained[name], parameter.detach(), rtol=1e-5, atol=1e-6)
    assert [record["gradient_norm"] for record in run.series("train")] == pytest.approx(norms[1::2], rel=1e-5)


def _first_loss(recipe: Recipe, rank: int) -> float:
    processes = Processes()
    task = TextTask(recipe, processes)
    processes.rank = rank
    learner = Learner(task, recipe, processes)
    learner.resume(None)
    inputs, targets = training_batch(task._text._train, 16, 4, 0, 1)
    return float(learner.update(1, inputs, targets)[0])


def test_dropout_depends_on_seed_and_process(tiny_recipe: Callable[..., Recipe]) -> None:
    recipe = tiny_recipe()
    assert _first_loss(recipe, 0) == _first_loss(recipe, 0)
    assert _first_loss(recipe, 0) != _first_loss(recipe, 1)
    without = tiny_recipe(model__dropout=0.0)
    assert _first_loss(without, 0) == _first_loss(without, 1)


@pytest.mark.parametrize("how", [True, "max-autotune"])
def test_compilation_is_asked_for_as_the_recipe_says(
    tiny_recipe: Callable[..., Recipe],
    monkeypatch: pytest.MonkeyPatch,
    how: bool | str,
) -> None:
    asked = []
    monkeypatch.setattr(torch, "compile", lambda model, mode: asked.append(mode) or model)
    for compile_it in (False, how):
        recipe = tiny_recipe(training__compile=compile_it)
        processes = Processes()
        Learner(TextTask(recipe, processes), recipe, processes)
    assert asked == [None if how is True else how]
