"""Parameter groups share out the model; the schedule is the same factor everywhere and needs no memory."""

import math
from collections.abc import Callable

import pytest
import torch
from causal_variants import CAUSAL, causal_options
from torch import nn

from nadaraya.errors import InputError
from nadaraya.training import Recipe
from nadaraya.training.optimizer import make_optimizer, make_schedule, parameter_groups


@pytest.mark.parametrize("variant", CAUSAL)
@pytest.mark.parametrize("tied", [False, True])
def test_every_parameter_is_in_exactly_one_group(
    tiny_recipe: Callable[..., Recipe], variant: str, tied: bool
) -> None:
    extra = {"tie_word_embeddings": tied, "bias": True}
    options = causal_options(variant)
    recipe = tiny_recipe(model__variant=variant, model__variant_options=options, model__extra=extra)
    model = recipe.build_model(11)
    groups = {group["name"]: group for group in parameter_groups(model, recipe.training)}
    grouped = [id(parameter) for group in groups.values() for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())
    kernels = {id(parameter) for _, parameter in model.kernel_parameters()}
    assert {id(p) for p in groups.get("kernels", {"params": []})["params"]} == kernels
    linear = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)} - {
        id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)
    }
    assert {id(p) for p in groups["matrices"]["params"]} == linear
    assert [g["weight_decay"] for n, g in groups.items() if n != "matrices"] == [0.0] * (len(groups) - 1)


@pytest.mark.parametrize("tied", [False, True])
def test_muon_has_the_matrices_of_blocks_and_adamw_the_rest(
    tiny_recipe: Callable[..., Recipe], tied: bool
) -> None:
    recipe = tiny_recipe(training__optimizer="muon", model__extra={"tie_word_embeddings": tied, "bias": True})
    model = recipe.build_model(11)
    muon, adamw = make_optimizer(model, recipe.training)._parts  # type: ignore[attr-defined]
    hidden = {id(m.weight) for m in model.model.blocks.modules() if isinstance(m, nn.Linear)}
    assert {id(p) for group in muon.param_groups for p in group["params"]} == hidden
    groups = {group["name"]: group for group in adamw.param_groups}
    rest = sorted(id(p) for group in groups.values() for p in group["params"])
    assert rest == sorted(id(p) for p in model.parameters() if id(p) not in hidden)
    assert {id(p) for p in groups["kernels"]["params"]} == {id(p) for _, p in model.kernel_parameters()}
    assert any(p is model.model.embedding.weight for p in groups["plain"]["params"])


def test_muon_needs_matrices_in_blocks(tiny_recipe: Callable[..., Recipe]) -> None:
    with pytest.raises(InputError, match=r"training\.optimizer must be adamw for a model without linear"):
        make_optimizer(nn.Linear(2, 3), tiny_recipe(training__optimizer="muon").training)


def test_the_rate_of_matrices_is_that_of_muon_alone(tiny_recipe: Callable[..., Recipe]) -> None:
    with pytest.raises(InputError, match=r"matrix_learning_rate must be null where .* is adamw .* got 0\.1"):
        tiny_recipe(training__matrix_learning_rate=0.1)
    default = tiny_recipe(training__optimizer="muon").training
    assert default.matrix_rate_scale * default.learning_rate == pytest.approx(0.02)


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_every_group_has_its_learning_rate_and_all_one_schedule(
    tiny_recipe: Callable[..., Recipe], schedule: str
) -> None:
    recipe = tiny_recipe(
        training__optimizer="muon",
        training__matrix_learning_rate=3.0,
        training__learning_rate=2.0,
        training__kernel_learning_rate=10.0,
        training__steps=10,
        training__min_learning_rate=1.0,
        training__schedule=schedule,
        training__decay_fraction=0.4 if schedule == "wsd" else None,
    )
    optimizer = make_optimizer(recipe.build_model(11), recipe.training)
    scheduler = make_schedule(optimizer, recipe.training)
    peak = {"matrices": 2.0, "hidden": 3.0, "plain": 2.0, "kernels": 10.0}
    for step in range(10):
        if schedule == "cosine":
            factor = step / 2 if step < 2 else 0.75 + 0.25 * math.cos(math.pi * (step - 2) / 8)
        else:  # from the lowest rate to the highest in 2 updates, and back to it in the last 4
            factor = min(0.5 + step / 4, 1.0, 1.0 - (step - 6) / 8)
        for group in optimizer.param_groups:
            assert group["lr"] == pytest.approx(peak[group["name"]] * factor)
        optimizer.step()
        scheduler.step()
    assert scheduler.get_last_lr()[0] == pytest.approx(1.0)


@pytest.mark.parametrize("decay", [None, 0.01, 0.75])
def test_the_stable_rate_lasts_until_the_part_of_updates_that_decay(
    tiny_recipe: Callable[..., Recipe], decay: float | None
) -> None:
    recipe = tiny_recipe(training__schedule="wsd", training__decay_fraction=decay)
    assert recipe.training.decay_start == {None: 6, 0.01: 7, 0.75: 2}[decay]
    with pytest.raises(InputError, match=r"warmup_steps must be at most 1, after which .* falls, got 2"):
        tiny_recipe(training__schedule="wsd", training__decay_fraction=0.9)
    with pytest.raises(InputError, match=r"decay_fraction must be null where .* is cosine"):
        tiny_recipe(training__decay_fraction=0.5)


@pytest.mark.parametrize("done", [1, 2, 5, 7])
@pytest.mark.parametrize("kind", ["cosine", "wsd"])
def test_a_schedule_made_in_the_middle_continues_exactly(
    tiny_recipe: Callable[..., Recipe], done: int, kind: str
) -> None:
    recipe = tiny_recipe(training__schedule=kind)
    model = recipe.build_model(11)

    def rates(start: int) -> list[list[float]]:
        optimizer = make_optimizer(model, recipe.training)
        schedule = make_schedule(optimizer, recipe.training, start)
        found = []
        for _ in range(start, 8):
            found.append([group["lr"] for group in optimizer.param_groups])
            optimizer.step()
            schedule.step()
        return found

    assert rates(0)[done:] == rates(done)
    assert torch.isfinite(torch.tensor(rates(done))).all()
