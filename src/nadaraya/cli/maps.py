"""`nadaraya maps`: what the attention of a trained model looks at, in an image or a text."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadaraya.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from nadaraya.interpret.attention_maps import AttentionMaps
    from nadaraya.report.maps import Figures, Subject
    from nadaraya.training.run import Run

_MOST_PREDICTIONS = 5


def maps(
    run: Annotated[str, typer.Argument(help="A finished run folder, or the name of a timm model.")],
    image: Annotated[Path | None, typer.Argument(help="The image, for a run on images.")] = None,
    text: Annotated[
        str | None, typer.Option(help="For a run on text: the text itself, or a file that has it.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="The weights of a timm model: a .safetensors file.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Keyword of the timm model, such as img_size=384."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("maps"),
    query: Annotated[
        str | None,
        typer.Option(
            help="Whose weights are mapped: cls, mean, last, ROW,COLUMN of a patch, or a position.",
            show_default="what the model reads: class token, mean over patches, last token",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the maps in the folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Draw rollout, bandwidths, head maps, query maps, layers and matrices of one image or text."""
    import json

    from nadaraya.cli.options import key_values
    from nadaraya.report.maps import check_folder, write_maps

    check_folder(out, force)
    figures, subject = _look(run, image, text, checkpoint, key_values(option or [], "--option"), query)
    record = write_maps(figures, subject, out, force)
    if as_json:
        typer.echo(json.dumps({**record, "out": str(out)}, ensure_ascii=False))
        return
    typer.echo(
        f"{subject.model}: {record['layers']} layers, {record['tokens']} tokens; maps of {figures.query_name}"
    )
    for name, chance in subject.predictions:
        typer.echo(f"  {chance:6.1%}  {name}")
    size = sum((out / name).stat().st_size for name in record["files"])
    typer.echo(f"maps: {out / 'index.html'} ({len(record['files'])} files, {size / 1e6:,.1f} MB)")


def _look(
    name: str,
    image: Path | None,
    text: str | None,
    checkpoint: Path | None,
    options: dict[str, Any],
    query: str | None,
) -> "tuple[Figures, Subject]":
    """The figures of what was given, and what the page says of it; nothing is drawn yet."""
    from nadaraya.training.image_recipe import ImageRecipe
    from nadaraya.training.run import Run

    if not Path(name).is_dir():
        if text is not None:
            raise InputError(f"{name} is no run folder: --text needs a run on text")
        return _look_at_image(*_named_model(name, checkpoint, options), image, query)
    if checkpoint is not None:
        raise InputError(f"{name} is a folder and has weights of its own: --checkpoint goes with a timm name")
    if options:
        raise InputError(f"{name} is a folder and has its own options: --option goes with a timm name")
    run = Run(name)
    if isinstance(run.recipe, ImageRecipe):
        if text is not None:
            raise InputError(f"{name} is a run on images: it takes an image, not --text")
        return _look_at_image(*_run_model(run), image, query)
    if image is not None or text is None:
        raise InputError(f"{name} is a run on text: it takes --text, and no image")
    return _look_at_text(run, text, query)


@dataclass(frozen=True)
class _Eyes:
    """How a vision model takes an image in, what its answers are called, and what the page says of it.

    Attributes:
        transform: makes an input (C, height, width) of a PIL image.
        statistics: mean and deviation of the channels that inputs are normalised with.
        classes: the name of a class by its number.
        facts: (name, value) pairs.
    """

    transform: "Callable[[Any], Tensor]"
    statistics: tuple[tuple[float, ...], tuple[float, ...]]
    classes: Callable[[int], str]
    facts: list[tuple[str, str]]


def _look_at_image(
    name: str, model: Any, eyes: _Eyes, path: Path | None, query: str | None
) -> "tuple[Figures, Subject]":
    import torch

    from nadaraya.interpret.attention_maps import capture_attention
    from nadaraya.report.maps import Subject
    from nadaraya.report.maps_image import ImageFigures

    if path is None:
        raise InputError(f"{name} looks at images: give one, as in `nadaraya maps {name} IMAGE`")
    pixels = _read_image(path, eyes.transform)
    captured = capture_attention(model, pixels[None])
    mean, std = (torch.tensor(numbers).view(-1, 1, 1) for numbers in eyes.statistics)
    seen = (pixels * std + mean).clamp(0, 1).expand(3, -1, -1).permute(1, 2, 0).numpy()
    figures = ImageFigures(captured, seen, _query(query, captured))
    facts = [
        ("Image", f"{path.name}, seen at {pixels.shape[1]} × {pixels.shape[2]} pixels"),
        ("Mean and deviation", f"{_numbers(eyes.statistics[0])}; {_numbers(eyes.statistics[1])}"),
        *eyes.facts,
    ]
    return figures, Subject(name, path.name, "image", facts, _predictions(captured.output[0], eyes.classes))


def _look_at_text(run: "Run", text: str, query: str | None) -> "tuple[Figures, Subject]":
    from nadaraya.data import encode_text
    from nadaraya.data.textfile import read_text
    from nadaraya.interpret.attention_maps import capture_attention
    from nadaraya.report.maps import Subject
    from nadaraya.report.maps_text import TextFigures, printable

    given, content = f"“{text[:40]}{'…' if len(text) > 40 else ''}”", text
    if _is_file(text):
        given, content = Path(text).name, read_text(Path(text))
    model, tokenizer = run.load_model(), run.tokenizer()
    ids, context = encode_text(tokenizer, content), int(model.config.max_position_embeddings)
    if not 2 <= len(ids) <= context:
        raise InputError(
            f"the text has {len(ids):,} tokens: accepted are 2 to {context:,}, the context of this model"
        )
    captured = capture_attention(model, ids[None], tokenizer=tokenizer)
    figures = TextFigures(captured, _query(query, captured))
    likely = _predictions(
        captured.output.logits[0, -1], lambda token: printable(str(tokenizer.decode([token])))
    )
    return figures, Subject(run.name, given, "text", [("Run", run.path.name)], likely)


def _run_model(run: "Run") -> tuple[str, Any, _Eyes]:
    from nadaraya.data.images import evaluation_transform

    recipe, classes = run.image_recipe(), run.classes
    model = run.load_model()
    augmentation, channels = recipe.augmentation(), _channels(model)
    eyes = _Eyes(
        evaluation_transform(augmentation, channels),
        augmentation.statistics(channels),
        lambda number: classes[number],
        [("Run", run.path.name), ("Model", recipe.model.name)],
    )
    return run.name, model, eyes


def _named_model(name: str, checkpoint: Path | None, options: dict[str, Any]) -> tuple[str, Any, _Eyes]:
    """A timm model with the weights of a checkpoint, which decide about its classes and channels."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from nadaraya.models.vit import create_image_model, is_image_model

    if not is_image_model(name):
        raise InputError(f"{name} is neither a run folder nor the name of a timm model (timm.list_models())")
    if checkpoint is None:
        raise InputError(f"the timm model {name} needs its weights: give --checkpoint FILE.safetensors")
    try:
        weights = load_file(checkpoint)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{checkpoint} cannot be read as a .safetensors file: {' '.join(str(error).split())}"
        ) from error
    shapes = {key: tuple(tensor.shape) for key, tensor in weights.items()}
    seen: dict[str, Any] = {}
    if "head.weight" in shapes:
        seen["num_classes"] = shapes["head.weight"][0]
    if len(shapes.get("patch_embed.proj.weight", ())) == 4:
        seen["in_chans"] = shapes["patch_embed.proj.weight"][1]
    model: Any = create_image_model(name, options={**seen, **options})
    wanted = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    for key in sorted({*shapes, *wanted}):
        if shapes.get(key) != wanted.get(key):
            raise InputError(
                f"{checkpoint} is of another model than {name}: {key} is {shapes.get(key, 'absent')} in the "
                f"file and {wanted.get(key, 'absent')} in the model"
            )
    model.load_state_dict(weights)

    import timm
    from timm.data import create_transform, resolve_data_config

    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    given = {"input_size": (_channels(model), *size)} if size else {}
    config = resolve_data_config(given, model=model)
    eyes = _Eyes(
        _on_channels(create_transform(**config), _channels(model)),
        (tuple(config["mean"]), tuple(config["std"])),
        _class_names(int(model.num_classes)),
        [("Checkpoint", checkpoint.name), ("timm", timm.__version__)],
    )
    return name, model, eyes


def _channels(model: Any) -> int:
    projection = getattr(getattr(model, "patch_embed", None), "proj", None)
    return int(getattr(projection, "in_channels", 3))


def _on_channels(transform: Callable[[Any], Any], channels: int) -> "Callable[[Any], Tensor]":
    from nadaraya.data.images.decode import MODES, to_channels

    if channels not in MODES:
        raise InputError(f"this model takes images of {channels} channels: accepted are models of 1 or 3")
    return lambda image: transform(to_channels(image, channels))


def _class_names(count: int) -> Callable[[int], str]:
    """ImageNet's names for 1000 classes, numbers for others."""
    from timm.data import ImageNetInfo

    if count != 1000:
        return lambda number: f"class {number}"
    return ImageNetInfo().index_to_description


def _read_image(path: Path, transform: "Callable[[Any], Tensor]") -> "Tensor":
    from PIL import Image

    from nadaraya.data.images.decode import reason

    if not path.is_file():
        raise InputError(f"{path} is not a file: accepted is an image")
    try:
        with Image.open(path) as opened:
            return transform(opened)
    except (InputError, MemoryError):
        raise
    except Exception as error:  # the exceptions of Pillow's decoders have no common class
        raise InputError(f"cannot read {path} as an image: {reason(error)}") from error


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # a text may be too long for a name, or hold a zero
        return False


def _query(given: str | None, captured: "AttentionMaps") -> str | int | None:
    """A query as it is typed, in the words of `query_rows`."""
    if given is None or given in ("cls", "mean", "last"):
        return given
    parts = given.split(",")
    if all(part.strip().isdecimal() for part in parts):
        if len(parts) == 1:
            return int(given)
        if len(parts) == 2 and captured.grid is not None:
            row, column = map(int, parts)
            rows, columns = captured.grid
            if row < rows and column < columns:
                return captured.num_prefix_tokens + row * columns + column
            raise InputError(
                f"--query {given}: the grid has rows 0 to {rows - 1}, columns 0 to {columns - 1}"
            )
    accepted = "cls, mean, ROW,COLUMN of a patch" if captured.grid else "mean, last"
    raise InputError(
        f"--query {given}: accepted are {accepted}, or a position from 0 to {captured.num_tokens - 1}"
    )


def _predictions(logits: "Tensor", names: Callable[[int], str]) -> list[tuple[str, float]]:
    chances, numbers = logits.float().softmax(-1).topk(min(_MOST_PREDICTIONS, len(logits)))
    return [
        (names(number), chance) for number, chance in zip(numbers.tolist(), chances.tolist(), strict=True)
    ]


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)
