"""What loading and augmenting images costs training: images/s on real images and on one batch.

    python benchmarks/image_loading.py RECIPE --source IMAGES [--workers 0 2] [--json FILE] [--set KEY=VALUE]

RECIPE is a built-in recipe or a file, as for `nadaraya train`. The same model is updated on the recipe's
augmented batches, with each number of worker processes, and on one random batch made once (`synthetic`), the
model's own speed. The contenders take turns of --updates updates; workers are started anew for each turn and
have two updates to fill their queues before the clock starts. On the CPU workers and model share the cores.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timing import environment, write_json

from nadaraya.data.images import open_images, training_batches
from nadaraya.data.images.batches import synthetic_batches
from nadaraya.data.images.sources import ImageSet
from nadaraya.errors import InputError, must_be
from nadaraya.training import ImageRecipe, load_recipe

_WARMUP = 2


def main() -> None:
    options = _options()
    if not isinstance(load_recipe(options.recipe), ImageRecipe):
        raise must_be("RECIPE", "a recipe with task: image", options.recipe)
    recipe = load_recipe(options.recipe, [f"data.source={options.source}", *options.changes])
    images = open_images(options.source)
    update = _update(recipe, images, options.device)
    turns: dict[str, list[float]] = {
        name: [] for name in ("synthetic", *(f"{n} workers" for n in options.workers))
    }
    for _ in range(options.rounds):
        turns["synthetic"].append(_turn(recipe, images, options, synthetic_batches, 0, update))
        for workers in options.workers:
            taken = _turn(recipe, images, options, training_batches, workers, update)
            turns[f"{workers} workers"].append(taken)
    speeds = {name: _figures(recipe.training.batch_size, seconds) for name, seconds in turns.items()}
    own = speeds["synthetic"]["images_per_second"]
    for name, row in speeds.items():
        row["of_synthetic"] = row["images_per_second"] / own
        print(
            f"{name:12} {row['images_per_second']:9.1f} images/s  ({row['low']:.1f}–{row['high']:.1f})"
            f"  {row['of_synthetic']:.3f} of the model's own"
        )
    if options.json:
        settings = {
            "recipe": options.recipe,
            "changes": options.changes,
            "model": recipe.model.name,
            "image_size": recipe.model.image_size,
            "batch_size": recipe.training.batch_size,
            "images": images.name,
            "device": options.device,
        }
        write_json(options.json, {"environment": environment(), "settings": settings, "speeds": speeds})


def _update(recipe: ImageRecipe, images: ImageSet, device: str) -> Callable[[Any], None]:
    torch.manual_seed(0)
    model = recipe.build_model(len(images.classes), images.channels).to(device).train()
    network = torch.compile(model) if recipe.training.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def update(batch: Any) -> None:
        inputs, targets = (part.to(device, non_blocking=True) for part in batch)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            output = network(inputs)
        F.cross_entropy(output.float(), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return update


def _turn(
    recipe: ImageRecipe,
    images: ImageSet,
    options: argparse.Namespace,
    make: Callable[..., Any],
    workers: int,
    update: Callable[[Any], None],
) -> float:
    """Seconds of an update, waiting for its batch included."""
    batches = iter(
        make(
            images,
            recipe.augmentation(),
            batch_size=recipe.training.batch_size,
            seed=0,
            first_step=0,
            steps=_WARMUP + options.updates,
            workers=workers,
            pin_memory=options.device == "cuda",
        )
    )
    for _ in range(_WARMUP):
        update(next(batches))
    start = _now(options.device)
    for batch in batches:
        update(batch)
    return (_now(options.device) - start) / options.updates


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _figures(batch_size: int, seconds: list[float]) -> dict[str, float]:
    return {
        "images_per_second": batch_size / statistics.median(seconds),
        "low": batch_size / max(seconds),
        "high": batch_size / min(seconds),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe")
    parser.add_argument("--source", required=True, help="images, as data.source of a recipe")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2], metavar="N")
    parser.add_argument("--updates", type=int, default=20, help="counted updates of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--set", dest="changes", nargs="+", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise must_be("--device", "cpu where there is no CUDA device", "cuda")
    return options


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"image_loading.py: {error}", file=sys.stderr)
        sys.exit(2)
