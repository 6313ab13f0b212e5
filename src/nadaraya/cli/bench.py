"""`nadaraya bench`: speed and memory of models against their rivals."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadaraya.cli.options import (
    NAMES_WIN,
    DeviceOption,
    ForceOption,
    ImageSizeOption,
    PrecisionOption,
    PresetOption,
    VocabularyOption,
    chosen_device,
    is_model_name,
    key_values,
    named_configuration,
    whole_numbers,
)
from nadaraya.cli.results import Result, command
from nadaraya.cli.tables import FigureTable
from nadaraya.errors import must_be, unknown_name
from nadaraya.names import means_path

if TYPE_CHECKING:
    from nadaraya.evaluation.decoding import DecodingSettings
    from nadaraya.evaluation.throughput import Throughput
    from nadaraya.models import KernelGPTForCausalLM

RoundsOption = Annotated[int, typer.Option(help="Number of measurements of each model.", min=1)]
OutOption = Annotated[
    Path | None,
    typer.Option(dir_okay=False, writable=True, help="Also write the results to this JSON file."),
]
bench_app = typer.Typer(help="Measure speed and memory of models against baselines.", no_args_is_help=True)


@command(bench_app, "vit")
def vit(
    models: Annotated[
        list[str] | None, typer.Argument(help="Models of timm; the others are compared with the first.")
    ] = None,
    size: Annotated[
        str, typer.Option(help="Without models: size of DeiT and GKA: tiny, small or base.")
    ] = "tiny",
    device: DeviceOption = "",
    precision: Annotated[
        str,
        typer.Option(help="float32 or bfloat16.", show_default="bfloat16 on a GPU, float32 on the CPU"),
    ] = "",
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Compile every model with torch.compile.")
    ] = False,
    batch_sizes: Annotated[
        str, typer.Option(metavar="N,N,…", help="Batch sizes of inference; empty for none.")
    ] = "32,64,128,256,512",
    train_batch_sizes: Annotated[
        str, typer.Option(metavar="N,N,…", help="Batch sizes of training; empty for none.")
    ] = "64,128",
    rounds: RoundsOption = 5,
    image_size: ImageSizeOption = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Argument of timm's create_model.")
    ] = None,
    memory: Annotated[bool, typer.Option("--memory/--no-memory", help="Measure peak memory.")] = True,
    out: OutOption = None,
    force: ForceOption = False,
) -> Result:
    """Measure images/s and peak memory of image models in training and inference.

    Models take turns in one process. Results are medians with quartiles; a model that does not fit in memory
    is reported as failed.
    """
    from nadaraya.evaluation.throughput import Settings, deit_and_gka, environment, measure, peaks
    from nadaraya.files import check_new_file, write_file

    device = chosen_device(device)
    settings = Settings(
        device=device,
        precision=precision or ("bfloat16" if device == "cuda" else "float32"),
        compiled=compiled,
        image_size=image_size,
        options=key_values(option),
        rounds=rounds,
        memory=memory,
    )
    check_new_file(out, force, "--out")
    names = models or deit_and_gka(size)
    accepted = "whole numbers of at least 1, separated by commas"
    cells = [
        ("training", batch) for batch in whole_numbers(train_batch_sizes, "--train-batch-sizes", accepted)
    ]
    cells += [("inference", batch) for batch in whole_numbers(batch_sizes, "--batch-sizes", accepted)]
    if not cells or min(batch for _, batch in cells) < 1:
        raise must_be("--train-batch-sizes and --batch-sizes", accepted, (train_batch_sizes, batch_sizes))
    facts = {"environment": environment("timm"), "settings": asdict(settings)}
    rows: list[Throughput] = []

    def document() -> dict[str, Any]:
        return {**facts, "rows": [asdict(row) for row in rows + peaks(rows)]}

    for mode, batch in cells:
        typer.echo(f"{mode}, batch {batch}: {', '.join(names)}", err=True)
        rows += measure(names, mode, batch, settings)
        if out:
            write_file(out, json.dumps(document(), indent=1) + "\n")
    return Result(document(), _speeds(rows + peaks(rows)))


@command(bench_app, "decode")
def decode(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Text variants, presets such as nano-d4-gka-bank, or run folders. {NAMES_WIN}",
            show_default="gka-bank",
        ),
    ] = None,
    preset: PresetOption = "dickens",
    vocabulary: VocabularyOption = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Field of KernelGPTConfig, such as window_pattern=SL."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Number of prompts in a batch.", min=1)] = 8,
    prompt: Annotated[int, typer.Option(help="Length of the longest prompt, in tokens.", min=1)] = 512,
    tokens: Annotated[int, typer.Option(help="Number of tokens to generate for each prompt.", min=1)] = 64,
    padded: Annotated[
        bool, typer.Option("--padded", help="Use prompts of half to full length, padded on the left.")
    ] = False,
    caches: Annotated[
        str, typer.Option(metavar="NAME,…", help="Kinds of cache: dynamic (grows), static (fixed size).")
    ] = "dynamic,static",
    device: DeviceOption = "",
    precision: PrecisionOption = "float32",
    rounds: RoundsOption = 5,
    out: OutOption = None,
    force: ForceOption = False,
) -> Result:
    """Measure tokens/s and cache size of generation.

    A model whose keys are its values is measured with both cached as one tensor and as two. Models take
    turns; results are medians with quartiles, without the first turn.
    """
    from nadaraya.evaluation.decoding import DecodingSettings, measure_decoding
    from nadaraya.evaluation.throughput import environment
    from nadaraya.files import check_new_file, write_file

    check_new_file(out, force, "--out")
    settings = DecodingSettings(batch, prompt, tokens, padded, chosen_device(device), precision, rounds)
    fields = key_values(option)
    built = {name: _text_model(name, preset, vocabulary, fields, settings) for name in models or ["gka-bank"]}
    rows = measure_decoding(built, [kind.strip() for kind in caches.split(",")], settings)
    facts = {"environment": environment("transformers"), "settings": {**asdict(settings), "options": fields}}
    document = {**facts, "rows": [asdict(row) for row in rows]}
    if out:
        write_file(out, json.dumps(document, indent=1) + "\n")
    figures = ["tokens/s", "quartiles", "speed", "MB", "memory"]
    table = FigureTable(["model", "cache", "keys, values"], figures)
    for row in rows:
        speed = (f"{row.tokens_per_second:.1f}", f"{row.low:.1f}–{row.high:.1f}", _times(row.speed_ratio))
        memory = (f"{row.cache_bytes / 1e6:.2f}", _times(row.cache_ratio))
        table.add_row(row.model, row.cache, "one tensor" if row.one_tensor else "two", *speed, *memory)
    return Result(document, [table])


def _text_model(
    name: str, preset: str, vocabulary: int | None, fields: dict[str, Any], settings: "DecodingSettings"
) -> "KernelGPTForCausalLM":
    """The model of a run, or one with random weights by its name, where it and its cache fit in memory."""
    import torch

    from nadaraya import variants
    from nadaraya.device import check_memory
    from nadaraya.models import KernelGPTForCausalLM
    from nadaraya.models.presets import PRESETS
    from nadaraya.training import Run

    if means_path(name, is_model_name):
        run = Run(name)
        run.text_recipe()  # refuses a run on images
        model: KernelGPTForCausalLM = run.load_model()
        return model
    config = named_configuration(name, preset, vocabulary, fields)
    if config is None:
        raise unknown_name("model", name, [*variants.names(), *variants.hybrids(), *PRESETS, "nano-d20"])
    with torch.device("meta"):
        weights = KernelGPTForCausalLM(config).num_parameters()
    tokens = settings.batch * (settings.prompt + settings.tokens)
    cached = 2 * config.num_hidden_layers * config.hidden_size * tokens
    what = f"a model of {weights:,} parameters with {tokens:,} tokens in its cache"
    check_memory(what, 4 * (weights + cached), "--batch, --prompt or the model", settings.device)
    torch.manual_seed(0)
    return KernelGPTForCausalLM(config)


def _speeds(rows: "list[Throughput]") -> list[str | FigureTable]:
    table = FigureTable(["model"], ["images/s", "quartiles", "throughput", "MiB", "memory"])
    title = ""
    for row in rows:
        where = "inference, peak" if row.mode == "peak" else f"{row.mode}, batch {row.batch}"
        if where != title:
            title = where
            table.add_section()
            table.add_row(where)
        name = f"{row.model} ({row.batch})" if row.mode == "peak" else row.model
        spread = "" if row.low is None else f"{row.low:.1f}–{row.high:.1f}"
        speed = "failed" if row.failed else f"{row.images_per_second:.1f}"
        memory = "" if row.memory_mib is None else f"{row.memory_mib:.0f}"
        table.add_row(name, speed, spread, _times(row.speed_ratio), memory, _times(row.memory_ratio))
    failures = [f"{row.mode}, batch {row.batch}, {row.model}: {row.failed}" for row in rows if row.failed]
    return [table, *failures]


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}×"
