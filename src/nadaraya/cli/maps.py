"""`nadaraya maps`: what the attention of a trained model looks at, in an image or a text."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadaraya.cli.options import NAMES_WIN, DeviceOption, ForceOption, chosen_device, key_values, progress_bar
from nadaraya.cli.results import Result
from nadaraya.errors import InputError
from nadaraya.names import means_path

if TYPE_CHECKING:
    from nadaraya.interpret import ImageModel, TextModel
    from nadaraya.interpret.rollout import Query


def maps(
    run: Annotated[str, typer.Argument(help=f"A finished run folder, or a timm model. {NAMES_WIN}")],
    image: Annotated[Path | None, typer.Argument(help="Image file, for a model of images.")] = None,
    text: Annotated[
        str | None, typer.Option(help="For a run on text: the text itself, or a file with it.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Weights of a timm model: a .safetensors file.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Argument of timm's create_model, such as img_size=384."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("maps"),
    query: Annotated[
        str | None,
        typer.Option(
            help="Query whose weights are drawn: cls, mean, last, ROW,COLUMN of a patch, or a position.",
            show_default="class token, mean over patches or last token, whichever the model reads",
        ),
    ] = None,
    device: DeviceOption = "",
    force: ForceOption = False,
) -> Result:
    """Draw the attention of one image, or write a page of one text whose tokens show their weights."""
    from nadaraya.data.textfile import read_text
    from nadaraya.interpret import ImageModel, capture_attention
    from nadaraya.report.maps import Subject, check_folder, write_maps
    from nadaraya.report.maps_image import ImageFigures
    from nadaraya.report.maps_text import TextFigures, printable

    check_folder(out, force)
    device = chosen_device(device)
    model = _model(run, checkpoint, option or [])
    model.model.to(device)
    asked: Query | None = query  # `query_rows` refuses what does not exist
    if query is not None and re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)?", query):
        row, *column = map(int, query.split(","))
        asked = (row, column[0]) if column else row
    figures: ImageFigures | TextFigures
    if isinstance(model, ImageModel):
        if text is not None or image is None:
            raise InputError(f"{run} takes an image, as in `nadaraya maps {run} IMAGE`, and no --text")
        pixels = model.preprocess(image)
        captured = capture_attention(model.model, pixels[None].to(device))
        figures, given = ImageFigures(captured, model.picture(pixels), asked), image.name
        mean, deviation = (", ".join(f"{value:g}" for value in each) for each in (model.mean, model.std))
        facts: Sequence[tuple[str, str]] = [
            ("Image", f"{given}, seen at {pixels.shape[1]} × {pixels.shape[2]} pixels"),
            ("Mean and deviation", f"{mean}; {deviation}"),
            *model.facts,
        ]
        likely = model.top_k(captured.output[0])
    else:
        if image is not None or text is None:
            raise InputError(f"{run} is a run on text: it takes --text, and no image")
        given, facts = f"“{text[:40]}{'…' if len(text) > 40 else ''}”", model.facts
        if os.path.isfile(text):  # noqa: PTH113 (Path's own raises for a text that is too long for a name)
            given, text = Path(text).name, read_text(Path(text))
        tokens = model.encode(text)[None].to(device)
        captured = capture_attention(model.model, tokens, tokenizer=model.tokenizer)
        figures = TextFigures(captured, asked)
        likely = [(printable(token), chance) for token, chance in model.top_k(captured.output.logits[0, -1])]
    subject = Subject(model.name, given, facts, likely, model.sigma_start)
    with progress_bar() as bar:
        line = bar.add_task(f"maps of {subject.model}", total=None)

        def drawing(name: str, number: int, total: int) -> None:
            bar.update(line, description=f"drawing {name}", completed=number - 1, total=total)

        record = write_maps(figures, subject, out, force, drawing)
    size = sum((out / name).stat().st_size for name in record["files"])
    counts = f"{record['layers']} layers, {record['tokens']} tokens"
    lines = [
        f"{subject.model}: {counts}; maps of {figures.query_name}",
        *(f"  {chance:6.1%}  {name}" for name, chance in subject.predictions),
        f"maps: {out / 'index.html'} ({len(record['files'])} files, {size / 1e6:,.1f} MB)",
    ]
    return Result({**record, "out": str(out)}, lines)


def _model(name: str, checkpoint: Path | None, options: list[str]) -> "ImageModel | TextModel":
    """The model of a run folder, or of timm by name."""
    from nadaraya.interpret import ImageModel, TextModel
    from nadaraya.models.vit.factory import is_image_model
    from nadaraya.training import Run

    if means_path(name, is_image_model):
        if checkpoint or options:
            given = "--checkpoint" if checkpoint else "--option"
            raise InputError(f"{given} must go with the name of a timm model, got the folder {name}")
        run = Run(name)
        return ImageModel.from_run(run) if run.recipe.task == "image" else TextModel.from_run(run)
    if not is_image_model(name):
        raise InputError(f"{name} is neither a run folder nor the name of a timm model (timm.list_models())")
    if checkpoint is None:
        raise InputError(f"the timm model {name} needs its weights: give --checkpoint FILE.safetensors")
    return ImageModel.from_checkpoint(name, checkpoint, key_values(options))
