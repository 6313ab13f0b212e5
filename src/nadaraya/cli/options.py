"""Options that several verbs share."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadaraya.errors import InputError, check_name, must_be

if TYPE_CHECKING:
    from rich.progress import Progress

    from nadaraya.models import KernelGPTConfig
    from nadaraya.study.queue import Ended

# Of every argument that takes a name or a path; `nadaraya.names.means_path` decides.
NAMES_WIN = "A name wins over a file or folder of that name: write that as ./NAME."
JsonOption = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite existing output.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
SeedOption = Annotated[int, typer.Option(help="Seed of random choices; the same seed gives the same result.")]
# Of every verb in which a model runs; `computing` and `chosen_device` take what was given.
DeviceOption = Annotated[
    str, typer.Option("--device", help="cpu, cuda or mps.", show_default="cuda if available, else cpu")
]
PrecisionOption = Annotated[str, typer.Option("--precision", help="float32 or bfloat16.")]
TemperatureOption = Annotated[
    float, typer.Option(help="Divide the logits by this before sampling; at least 1e-6.")
]
WindowsOption = Annotated[int, typer.Option(help="Number of windows of the text to measure on.")]
# Of verbs that build a model by name.
ImageSizeOption = Annotated[
    int | None,
    typer.Option(help="Pixels per side of the image.", min=1, max=2**16, show_default="each model's own"),
]
PresetOption = Annotated[
    str, typer.Option(help="Sizes of the text models named by variant: demo, dickens or nano-d20.")
]
VocabularyOption = Annotated[
    int | None,
    typer.Option(help="Vocabulary size of text models.", min=1, max=2**31, show_default="the preset's"),
]
# Of verbs that look at a model on a text; `texts` opens them.
ModelArgument = Annotated[
    str,
    typer.Argument(
        help="A finished run folder, a causal language model saved by transformers, or hf:NAME "
        "(write a folder of that name as ./hf:NAME)."
    ),
]
TextOption = Annotated[
    str | None,
    typer.Option(
        help=f"Text file, folder of text files, 'embedded' or 'dickens'. {NAMES_WIN}",
        show_default="the run's validation text",
    ),
]
# Of verbs that train a study; `chosen_seeds` reads it.
SeedsOption = Annotated[
    str,
    typer.Option(metavar="SEED,…", help="Train with these seeds only.", show_default="those of the study"),
]
# Of verbs whose runs wait in a queue; `end_of_queue` says how it went.
WorkersOption = Annotated[
    int, typer.Option(help="Number of runs at a time, which share the cores.", min=1, max=1024)
]
HoursOption = Annotated[
    float | None, typer.Option(help="Save and stop after this many hours.", show_default="never")
]
SpeedOption = Annotated[
    float | None,
    typer.Option(help="With --dry-run: FLOP/s of one run.", show_default="measured in a few updates"),
]


def chosen_device(given: str) -> str:
    """The device of a --device, or the usual one where it is empty; refuses one that is not there."""
    import torch

    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not given:
        return "cuda" if there["cuda"] else "cpu"
    check_name("--device", given, there)
    if not there[given]:
        found = " or ".join(name for name in there if there[name])
        raise must_be("--device", f"{found}, which this machine has", given)
    return given


@contextmanager
def computing(model: Any, device: str, precision: str) -> Iterator[None]:
    """Move a model where --device says, and compute in the --precision, while it is used."""
    import torch

    check_name("--precision", precision, ("float32", "bfloat16"))
    where = chosen_device(device)
    model.to(where)
    with torch.autocast(where, torch.bfloat16, enabled=precision == "bfloat16"):
        yield


def named_configuration(
    name: str, preset: str, vocabulary: int | None, fields: dict[str, Any] | None = None
) -> "KernelGPTConfig | None":
    """The configuration of a text model by the name of a preset or a variant; None for any other name."""
    from nadaraya import variants
    from nadaraya.models import KernelGPTConfig
    from nadaraya.models.presets import is_preset

    changes = dict(fields or {}, **({} if vocabulary is None else {"vocab_size": vocabulary}))
    if is_preset(name):
        return KernelGPTConfig.preset(name, **changes)
    try:
        variants.by_layer(name, 1)
    except InputError:
        return None
    return KernelGPTConfig.preset(preset, **{"variant": name, **changes})


def is_model_name(name: str) -> bool:
    """Return whether a preset, a variant or a model of timm is called so."""
    from nadaraya import variants
    from nadaraya.models.presets import is_preset
    from nadaraya.models.vit.factory import is_image_model

    with suppress(InputError):
        return is_preset(name) or bool(variants.by_layer(name, 1))
    return is_image_model(name)


def key_values(given: Sequence[str] | None) -> dict[str, Any]:
    """The settings of a repeated --option: "key=value" texts, values in plain YAML; the last one wins."""
    from nadaraya.plain_yaml import parse_yaml

    values = {}
    for text in given or []:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise must_be("--option", "KEY=VALUE", text)
        values[key] = parse_yaml(value, f"--option {key}")
    return values


def whole_numbers(text: str, option: str, accepted: str) -> list[int]:
    """Whole numbers separated by commas; none of an empty text."""
    try:
        return [int(part) for part in text.split(",")] if text.strip() else []
    except ValueError:
        raise must_be(option, accepted, text) from None


@contextmanager
def progress_bar() -> "Iterator[Progress]":
    """Bars on standard error, gone at the end, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar


@contextmanager
def token_progress(tokens: int) -> Iterator[Callable[[int], None]]:
    """A bar that takes the number of tokens made so far."""
    with progress_bar() as bar:
        line = bar.add_task("tokens", total=tokens)
        yield lambda made: bar.update(line, completed=made)


def refuse_given(accepted: str, **options: Any) -> None:
    """Refuse options, by their names, that are given, not None, where they would have no effect."""
    for name, value in options.items():
        if value is not None:
            raise must_be(f"--{name.replace('_', '-')}", accepted, value)


def check_positive(**given: float | None) -> None:
    """Refuse options, by their names, that are given and not positive finite numbers."""
    for name, value in given.items():
        if value is not None and not 0 < value < math.inf:
            raise must_be(f"--{name}", "a positive finite number", value)


def chosen_seeds(text: str) -> list[int]:
    """The seeds of --seeds; none of an empty text."""
    numbers = whole_numbers(text, "--seeds", "whole numbers separated by commas")
    if len(set(numbers)) < len(numbers) or not all(0 <= number < 2**32 for number in numbers):
        raise must_be("--seeds", "different whole numbers from 0 to 2^32 − 1", text)
    return numbers


def end_of_queue(ended: "Ended") -> tuple[list[str], int]:
    """Lines on the runs that failed, and the exit status that this or a signal means."""
    lines = [f"error: {name} failed with {how}" for name, how in ended.failed.items()]
    return lines, 128 + ended.stopped if isinstance(ended.stopped, int) else int(bool(lines))
