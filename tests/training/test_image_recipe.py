"""Image recipes: figures of Kundu et al. (2026), checked keys, the model and the groups that they make."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import nn

import nadaraya.models.vit  # noqa: F401 - registers the models
from nadaraya.errors import InputError
from nadaraya.training import ImageRecipe, load_recipe
from nadaraya.training.image_recipe import ImageTrainingRecipe
from nadaraya.training.images import ImageTask
from nadaraya.training.optimizer import make_optimizer, parameter_groups
from nadaraya.training.processes import Processes
from nadaraya.training.recipe import recipe_help

Make = Callable[..., ImageRecipe]


def test_deit_is_the_recipe_of_the_paper() -> None:
    recipe = load_recipe("deit", ["training.batch_size=896"])
    assert isinstance(recipe, ImageRecipe)
    training, data = recipe.training, recipe.data
    assert training.peak_learning_rate == pytest.approx(1e-3 * 896 / 1024)
    assert (training.epochs, training.warmup_epochs, training.weight_decay) == (300, 5, 0.05)
    assert (training.betas, training.clip, training.ema_decay) == ((0.9, 0.999), 1.0, 0.99996)
    assert (training.min_learning_rate, training.compile) == (1e-6, True)
    assert (data.crop_scale, data.interpolation, data.flip) == ((0.08, 1.0), "bicubic", 0.5)
    assert data.rand_augment is not None
    assert data.rand_augment.startswith("rand-m9-n2")
    assert (data.random_erasing, data.mixup, data.cutmix) == (0.25, 0.8, 1.0)
    assert (data.label_smoothing, data.repeats, recipe.model.drop_path) == (0.1, 3, 0.1)
    assert data.color_jitter is None


def test_the_learning_rate_follows_the_batch_or_not() -> None:
    rate = "training.learning_rate_batch"
    for override, expected in ((f"{rate}=512", 2e-3), (f"{rate}=null", 1e-3)):
        recipe = load_recipe("deit", [override])
        assert isinstance(recipe, ImageRecipe)
        assert recipe.training.peak_learning_rate == pytest.approx(expected)


def test_the_label_has_what_tells_hybrids_apart() -> None:
    options = "model.options={variant: gka-loo, pattern: GGGA, depth: 4}"
    assert load_recipe("deit", [options]).name == "deit-gka_tiny_patch16_224-gka-loo-GGGA"


@pytest.mark.parametrize("key", recipe_help("image"))
def test_a_misspelt_key_is_refused_with_the_nearest(key: str) -> None:
    with pytest.raises(InputError, match=f"did you mean '{key}'"):
        load_recipe("deit", [f"{key}z=1"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.image_size=0", "model.image_size must be greater than 0, got 0"),
        ("model.drop_path=1", "less than 1"),
        ("model.options=3", "keys and values"),
        ("data.crop_scale=[0.5, 0.2]", "smallest <= largest"),
        ("data.crop_scale=[0, 1]", "smallest <= largest"),
        ("data.flip=1.5", "data.flip must be less than or equal to 1"),
        ("data.mixup=-1", "at least 0"),
        ("data.repeats=0", "greater than 0"),
        ("data.rand_augment=3", "text or null"),
        ("data.limit=0", "greater than 0 or null"),
        ("training.compile=fast", "max-autotune"),
        ("training.compile=3", "true or false"),
        ("training.ema_decay=1", "less than 1 or null"),
        (
            "training.warmup_epochs=301",
            "training.warmup_epochs must be at most training.epochs = 300, got 301",
        ),
        ("training.gradient_accumulation=3", "a multiple of training.gradient_accumulation = 3"),
        ("training.kernel_learning_rate=0", "greater than 0 or null"),
        ("data.workers=-1", "at least 0"),
    ],
)
def test_values_out_of_range_are_refused_with_what_is_accepted(override: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        load_recipe("deit", [override])
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("mode", [True, False, "default", "max-autotune"])
def test_compile_takes_modes(image_recipe: Make, mode: bool | str) -> None:
    assert image_recipe(training__compile=mode).training.compile == mode


def _model(**changes: Any) -> nn.Module:
    options = {"patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, **changes}
    return timm.create_model("gka_tiny_patch16_224", img_size=16, num_classes=4, **options)


@pytest.mark.parametrize("options", [{}, {"reg_tokens": 2}, {"pattern": "GA"}, {"variant": "vlt"}])
def test_weight_matrices_decay_and_kernels_have_a_group_of_their_own(options: dict[str, Any]) -> None:
    model = _model(**options)
    recipe = ImageTrainingRecipe(learning_rate=1e-3, kernel_learning_rate=3e-3)
    groups = parameter_groups(model, recipe)
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())
    decaying = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    weights = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    assert decaying == weights
    kernels = {id(parameter) for _, parameter in model.kernel_parameters()}
    assert {id(p) for group in groups if group["name"] == "kernels" for p in group["params"]} == kernels
    assert [g["lr_scale"] for g in groups] == pytest.approx([1, 1, 3][: len(groups)])


def test_the_schedule_warms_up_falls_as_a_cosine_and_needs_no_memory(image_recipe: Make) -> None:
    recipe = image_recipe(
        training__epochs=10,
        training__warmup_epochs=2,
        training__min_learning_rate=1e-5,
        training__kernel_learning_rate=1.2e-2,
    )
    task = ImageTask(recipe, Processes())
    assert (task.steps, task.evaluate_every, task.units_per_step) == (40, 4, 12)
    optimizer = make_optimizer(task.model, recipe.training)
    advance = task.schedule(optimizer, 0)
    for done in range(40):
        if done < 8:
            expected = 1e-6 + (3e-3 - 1e-6) * done / 8
        else:
            expected = 1e-5 + (3e-3 - 1e-5) * (1 + math.cos(math.pi * done / 40)) / 2
        *others, kernels = (group["lr"] for group in optimizer.param_groups)
        assert others == pytest.approx([expected] * len(others))
        assert kernels == pytest.approx(4 * expected)
        again = make_optimizer(task.model, recipe.training)
        task.schedule(again, done)
        assert [g["lr"] for g in again.param_groups] == [g["lr"] for g in optimizer.param_groups]
        advance(done + 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__options": {"embed_dim": 3 * 2**16, "depth": 900}}, "GB of memory, this machine has"),
        ({"model__options": {"depth": 100_000}}, "model.options.depth must be at most 1000"),
        ({"model__options": {"embed_dim": "wide" * 1000}}, "cannot be built"),
    ],
)
def test_a_model_too_large_or_of_options_that_it_has_not_is_one_line(
    image_recipe: Make, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words) as refused:
        image_recipe(**changes).build_model(4, 3)
    assert len(str(refused.value)) < 1000


def test_any_model_of_timm_can_be_built(image_recipe: Make) -> None:
    recipe = image_recipe(model__name="resnet10t", model__options={})
    assert recipe.build_model(7, 1)(torch.zeros(2, 1, 16, 16)).shape == (2, 7)
