"""One update: what a few lines of plain PyTorch do; dropout of its own in every process."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from nadaraya.errors import InputError
from nadaraya.training import ImageRecipe, Recipe, train
from nadaraya.training.batches import training_batch
from nadaraya.training.learner import Learner
from nadaraya.training.loop import open_task
from nadaraya.training.memory import text_training_bytes
from nadaraya.training.processes import Processes
from nadaraya.training.sharding import shard_model
from nadaraya.training.text import TextTask


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_training_is_a_plain_loop_over_the_optimizers_of_pytorch(
    tiny_recipe: Callable[..., Recipe], tmp_path: Path, name: str
) -> None:
    clip = 0.5
    recipe = tiny_recipe(
        model__dropout=0.0,
        training__optimizer=name,
        training__clip=clip,
        training__min_learning_rate=1e-4,
    )
    task = TextTask(recipe, Processes())
    model, options = task.model.train(), recipe.training
    kernels = {id(parameter) for _, parameter in model.kernel_parameters()}
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    blocks = (module for module in model.model.blocks.modules() if isinstance(module, nn.Linear))
    hidden = {id(module.weight) for module in blocks} if name == "muon" else set()
    groups, matrices = [], []
    for parameter in model.parameters():
        if id(parameter) in hidden:
            matrices.append(parameter)
            continue
        kernel = id(parameter) in kernels
        decays = parameter.ndim > 1 and not kernel and id(parameter) not in tables
        peak = options.kernel_learning_rate if kernel else options.learning_rate
        groups.append({"params": [parameter], "peak": peak, "weight_decay": 0.1 if decays else 0.0})
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, betas=(0.9, 0.95))]
    if matrices:
        muon = {"params": matrices, "peak": 0.02}
        optimizers.append(torch.optim.Muon([muon], momentum=0.95, nesterov=True, weight_decay=0.1))
    norms = []
    for step, (inputs, targets) in enumerate(task.batches(0), 1):
        F.cross_entropy(model(input_ids=inputs).logits.flatten(0, 1), targets.flatten()).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
        lowest = 1e-4 / options.learning_rate
        cosine = lowest + (1 - lowest) * (1 + math.cos(math.pi * (step - 3) / 6)) / 2
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * ((step - 1) / 2 if step < 3 else cosine)
            optimizer.step()
            optimizer.zero_grad()
    assert max(norms) > clip
    run = train(recipe, tmp_path / "run", progress=False)
    trained = load_file(run.path / "model.safetensors")
    for key, parameter in model.named_parameters():
        if key in trained:
            torch.testing.assert_close(trained[key], parameter.detach(), rtol=1e-5, atol=1e-6)
    assert [record["gradient_norm"] for record in run.series("train")] == pytest.approx(norms[1::2], rel=1e-5)


def _first_loss(recipe: Recipe, rank: int) -> float:
    processes = Processes()
    task = TextTask(recipe, processes)
    processes.rank = rank
    learner = Learner(task, recipe, processes)
    learner.resume(None)
    inputs, targets = training_batch(task._train, 16, 4, 0, 1)
    return float(learner.update(1, inputs, targets)[0])


def test_dropout_depends_on_seed_and_process(tiny_recipe: Callable[..., Recipe]) -> None:
    recipe = tiny_recipe()
    assert _first_loss(recipe, 0) == _first_loss(recipe, 0)
    assert _first_loss(recipe, 0) != _first_loss(recipe, 1)
    without = tiny_recipe(model__dropout=0.0)
    assert _first_loss(without, 0) == _first_loss(without, 1)


@pytest.mark.parametrize("task", ["text", "image"])
def test_activations_that_are_computed_again_change_no_update(
    tiny_recipe: Callable[..., Recipe], image_recipe: Callable[..., ImageRecipe], task: str
) -> None:
    calls, figures = [], []
    for again in (False, True):
        make = tiny_recipe if task == "text" else image_recipe  # both with dropout
        recipe, processes = make(training__activation_checkpointing=again), Processes()
        opened = open_task(recipe, processes)
        learner = Learner(opened, recipe, processes)
        learner.resume(None)
        calls.append(0)
        for name, module in learner.model.named_modules():
            if name.endswith("blocks.1.mlp"):
                module.register_forward_hook(lambda *_: calls.append(calls.pop() + 1))
        updates = zip(range(1, 3), opened.batches(0), strict=False)
        figures.append([[float(x) for x in learner.update(step, *batch)] for step, batch in updates])
    assert figures[0] == figures[1]
    assert calls == [2, 4]


def test_what_saves_memory_is_counted_so(
    tiny_recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    def needed(**changes: object) -> int:
        return text_training_bytes(tiny_recipe(**changes), parameters=1000, vocab_size=11)

    monkeypatch.setenv("WORLD_SIZE", "2")
    whole = needed()
    assert needed(training__activation_checkpointing=True) == whole - 2 * 16 * (2 * 12 * 32)  # of one block
    assert needed(training__parallel="fsdp") == whole - 16 * 1000 // 2
    assert needed(training__micro_batch_size=1) == needed(training__gradient_accumulation=2) < whole


def test_scalar_parameters_cannot_be_shared_out() -> None:
    model = nn.Linear(2, 2)
    model.scale = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(InputError, match=r"parallel must be ddp for a model with the scalar parameter scale"):
        shard_model(model, torch.device("cpu"))


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
