"""`nadaraya evaluate`: how well a trained run predicts a text, or classifies images."""

import json
import math
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from nadaraya.cli.options import DeviceOption, PrecisionOption, computing
from nadaraya.errors import InputError

if TYPE_CHECKING:
    from nadaraya.training import Run


class Chosen(NamedTuple):
    """Which weights of a run are evaluated, where and how."""

    weights: str | None
    device: str
    precision: str


def evaluate(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    text: Annotated[
        str | None,
        typer.Option(
            help="A text file, a folder, 'embedded' or 'dickens'.", show_default="the run's validation text"
        ),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            help="Images to classify: a folder, shards, an .npz or torchvision:NAME; its validation images.",
            show_default="the run's own",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="trained, averaged or best.", show_default="averaged where the run has them"),
    ] = None,
    device: DeviceOption = "",
    precision: PrecisionOption = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Predict every token of a text but the first, or the class of every image, and print the figures."""
    from nadaraya.training import ImageRecipe, Run

    opened, chosen = Run(run), Chosen(weights, device, precision)
    if images is not None or (text is None and isinstance(opened.recipe, ImageRecipe)):
        figures, line = _images(opened, images, chosen)
    else:
        figures, line = _text(opened, text, chosen)
    weights = weights or opened.weights
    document = {"run": str(run), "weights": weights, **figures}
    typer.echo(json.dumps(document) if as_json else f"{line} ({weights} weights)")


def _text(run: "Run", text: str | None, chosen: Chosen) -> tuple[dict[str, Any], str]:
    from nadaraya.data import load_corpus
    from nadaraya.evaluation import evaluate_shards, evaluate_string

    data = run.text_recipe().data
    model, tokenizer = run.load_model(weights=chosen.weights), run.tokenizer()
    name = "validation text"
    if text is None and run.on_shards:
        shards = run.shards()
        evaluating = partial(evaluate_shards, shards=shards, documents=data.documents)
    else:
        if text is None:
            content = run.corpus().split(data.validation_fraction)[1]
        else:
            corpus = load_corpus(text)
            name, content = corpus.name, corpus.text
        evaluating = partial(evaluate_string, tokenizer=tokenizer, text=content)
    with computing(model, chosen.device, chosen.precision):
        result = evaluating(model, context=data.context)
    _check_finite(result.cross_entropy, name, run)
    line = (
        f"{name}: {result.cross_entropy:.4f} nats/token over {result.tokens:,} tokens, "
        f"{result.bits_per_byte:.4f} bits/byte over {result.bytes:,} bytes"
    )
    return {"text": name, **asdict(result)}, line


def _images(run: "Run", source: str | None, chosen: Chosen) -> tuple[dict[str, Any], str]:
    from nadaraya.data.images import evaluation_batches
    from nadaraya.evaluation.classification import evaluate_images

    recipe = run.image_recipe()
    model, images = run.load_model(weights=chosen.weights), run.images(source)
    batches = evaluation_batches(images, recipe.augmentation(), batch_size=128, workers=recipe.data.workers)
    with computing(model, chosen.device, chosen.precision):
        result = evaluate_images(model, batches)
    _check_finite(result.loss, images.name, run)
    line = (
        f"{images.name}: top-1 {result.top1:.2%}, top-5 {result.top5:.2%}, {result.loss:.4f} nats/image over "
        f"{result.images:,} validation images"
    )
    return {"images_of": images.name, **asdict(result)}, line


def _check_finite(loss: float, name: str, run: "Run") -> None:
    """Refuse to print figures that are none."""
    if not math.isfinite(loss):
        raise InputError(
            f"the loss of {run.path} on {name} is {loss}, not a finite number: its weights have diverged in "
            "training, or its activations are too large for the --precision"
        )
