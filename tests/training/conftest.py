"""Recipes small enough to train in a second, and one finished run of each task."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import AdamW

from nadaraya.training import ImageRecipe, Recipe, train


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny models are slower on several threads."""
    torch.set_num_threads(1)


@pytest.fixture
def at_update(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], object]], None]:
    """Do something in the n-th update from now, after its gradients, before the parameters change."""

    def plan(number: int, act: Callable[[], object]) -> None:
        original, updates = AdamW.step, count(1)

        def step(self: AdamW, *arguments: Any, **options: Any) -> Any:
            if next(updates) == number:
                act()
            return original(self, *arguments, **options)

        monkeypatch.setattr(AdamW, "step", step)

    return plan


@pytest.fixture(scope="session")
def tiny_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text file of 2,600 characters: lines of letters."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{'abcdefgh'[i % 8] * (i % 5 + 1)} the {i % 7} of\n" for i in range(200)))
    return path


@pytest.fixture(scope="session")
def tiny_recipe(tiny_text: Path) -> Callable[..., Recipe]:
    """Make a recipe of 8 updates; keyword arguments are dotted keys with `__` for the dot."""

    def make(**changes: Any) -> Recipe:
        mapping: dict[str, Any] = {
            "name": "tiny",
            "model": {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "variant": "gpa-mul",
                "dropout": 0.1,
            },
            "data": {"corpus": str(tiny_text), "context": 16},
            "training": {
                "steps": 8,
                "batch_size": 4,
                "warmup_steps": 2,
                "log_every": 2,
                "evaluate_every": 4,
                "validation_batches": 2,
                "checkpoint_every": 3,
                "sample_characters": 40,
            },
        }
        for key, value in changes.items():
            section, _, name = key.rpartition("__")
            (mapping[section] if section else mapping)[name] = value
        return Recipe.from_mapping(mapping)

    return make


@pytest.fixture(scope="session")
def finished_text_run(
    one_thread: None, tiny_recipe: Callable[..., Recipe], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of a run of `tiny_recipe()`, to be read or copied."""
    return train(tiny_recipe(), tmp_path_factory.mktemp("text-run") / "run", progress=False).path


@pytest.fixture(scope="session")
def tiny_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An .npz of 48 training and 21 validation images, 16 × 16: brighter by class."""
    random = np.random.default_rng(0)
    arrays = {}
    for part, size in (("train", 48), ("test", 21)):
        labels = np.arange(size) % 4
        noise = random.integers(0, 60, (size, 16, 16, 3))
        images = (noise + 60 * labels[:, None, None, None]).astype(np.uint8)
        arrays |= {f"{part}_images": images, f"{part}_labels": labels}
    path = tmp_path_factory.mktemp("images") / "images.npz"
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="session")
def image_recipe(tiny_images: Path) -> Callable[..., ImageRecipe]:
    """Make an image recipe of 2 epochs of 4 updates; keyword arguments as for `tiny_recipe`."""

    def make(**changes: Any) -> ImageRecipe:
        mapping: dict[str, Any] = {
            "task": "image",
            "name": "tiny",
            "model": {
                "image_size": 16,
                "drop_path": 0.2,
                "options": {"patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2},
            },
            "data": {"source": str(tiny_images), "flip": 0.0, "padding_crop": 2, "repeats": 2},
            "training": {
                "epochs": 2,
                "batch_size": 12,
                "learning_rate": 3e-3,
                "learning_rate_batch": None,
                "warmup_epochs": 1,
                "ema_decay": 0.9,
                "log_every": 2,
                "checkpoint_every": 3,
            },
        }
        for key, value in changes.items():
            section, _, name = key.rpartition("__")
            (mapping[section] if section else mapping)[name] = value
        return ImageRecipe.from_mapping(mapping)

    return make


@pytest.fixture(scope="session")
def finished_image_run(
    one_thread: None, image_recipe: Callable[..., ImageRecipe], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of a run of `image_recipe()`, to be read or copied."""
    return train(image_recipe(), tmp_path_factory.mktemp("image-run") / "run", progress=False).path
