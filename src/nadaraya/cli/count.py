"""`nadaraya count`: parameters, FLOPs and bytes of models, before or after training."""

import math
from dataclasses import asdict, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadaraya.cli.options import (
    NAMES_WIN,
    ImageSizeOption,
    PresetOption,
    VocabularyOption,
    is_model_name,
    key_values,
    named_configuration,
)
from nadaraya.cli.results import Result
from nadaraya.cli.tables import FigureTable
from nadaraya.errors import InputError, must_be
from nadaraya.names import means_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from nadaraya.evaluation.efficiency import ImageModelCost, ModelCost


def count(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Text variants, presets (demo, dickens, nano-d20, nano-d20-gka with any depth and variant), "
            f"image models of timm, or run folders. {NAMES_WIN}"
        ),
    ],
    preset: PresetOption = "dickens",
    vocabulary: VocabularyOption = None,
    tokens: Annotated[
        float | None,
        typer.Option(help="Number of training tokens; adds the FLOPs of training text models on them."),
    ] = None,
    image_size: ImageSizeOption = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Argument of timm's create_model, such as pattern=GGGA."),
    ] = None,
) -> Result:
    """Count parameters, FLOPs and bytes of models.

    FLOPs are 2 × multiply-adds: of a forward pass per token of a text model at full context, or per image of
    an image model, as the model's code does it; and of training per token, by the estimate 6 × weights of
    linear maps + 12 × width × the sum of the layers' windows (Kundu et al. (2026), table 8). A model with
    value embeddings has a second line without them. Checkpoints are what `torch.save` writes; a MiB is 2^20
    bytes.
    """
    from nadaraya.evaluation.efficiency import ModelCost

    if tokens is not None and not 1.0 <= tokens < math.inf:
        raise must_be("--tokens", "a finite number of at least 1", tokens)
    options = key_values(option)
    costs = [(name, _cost(name, preset, vocabulary, image_size, options)) for name in models]
    columns = dict(_TEXT_COLUMNS)
    if tokens is not None:  # in place of others: a line has 80 characters
        del columns[_FORWARD], columns[_BYTES]
        columns["train\nFLOP"] = lambda cost: f"{tokens * cost.training_flops_per_token:.4e}"
    text = [(name, cost) for name, cost in costs if isinstance(cost, ModelCost)]
    lines = [line for name, cost in text for line in _lines(name, cost)]
    images = [each for each in costs if not isinstance(each[1], ModelCost)]
    tables = [_table(some, of) for some, of in ((lines, columns), (images, _IMAGE_COLUMNS)) if some]
    return Result([_row(name, cost, tokens) for name, cost in costs], tables)


_FORWARD = "forward\nMFLOP/\ntoken"
_BYTES = "weights\nMB"
_TEXT_COLUMNS: "dict[str, Callable[[ModelCost], str]]" = {
    "parameters": lambda cost: f"{cost.parameters:,}",
    "atten-\ntion\nM": lambda cost: f"{cost.attention_parameters / 1e6:.3f}",
    "MLP\nM": lambda cost: f"{cost.mlp_parameters / 1e6:.3f}",
    "kernels": lambda cost: f"{cost.kernel_parameters:,}",
    _FORWARD: lambda cost: f"{cost.flops_per_token / 1e6:.2f}",
    "train\nGFLOP/\ntoken": lambda cost: f"{cost.training_flops_per_token / 1e9:.4f}",
    _BYTES: lambda cost: f"{cost.weight_bytes / 1e6:.1f}",
}
_IMAGE_COLUMNS: "dict[str, Callable[[ImageModelCost], str]]" = {
    "total\nM": lambda cost: f"{cost.parameters / 1e6:.2f}",
    "attention\nM": lambda cost: f"{cost.attention_parameters / 1e6:.2f}",
    "MLP\nM": lambda cost: f"{cost.mlp_parameters / 1e6:.2f}",
    "kernels\n": lambda cost: f"{cost.kernel_parameters:,}",
    "GFLOP/\nimage": lambda cost: f"{cost.flops_per_image / 1e9:.2f}",
    "checkpoint\nMiB": lambda cost: f"{cost.checkpoint_bytes / 2**20:.1f}",
}


def _row(name: str, cost: "ModelCost | ImageModelCost", tokens: float | None) -> dict[str, Any]:
    """Entry of a model for --json."""
    row = {"model": name, **asdict(cost)}
    if tokens is not None and (per_token := row.get("training_flops_per_token")) is not None:
        row["training_flops"] = tokens * per_token
    return row


def _lines(name: str, cost: "ModelCost") -> "Iterator[tuple[str, ModelCost]]":
    """The line of a text model, and of one with value embeddings another without them."""
    yield name, cost
    if tables := cost.value_embedding_parameters:
        size = cost.weight_bytes // cost.parameters  # KernelGPT has one dtype
        rest = {"parameters": cost.parameters - tables, "weight_bytes": cost.weight_bytes - size * tables}
        yield f"{name}, no value embeddings", replace(cost, **rest)


def _table(costs: list[tuple[str, Any]], columns: "Mapping[str, Callable[[Any], str]]") -> FigureTable:
    table = FigureTable(["model"], columns)
    for name, cost in costs:
        table.add_row(name, *(show(cost) for show in columns.values()))
    return table


def _cost(
    name: str, preset: str, vocabulary: int | None, image_size: int | None, options: dict[str, Any]
) -> "ModelCost | ImageModelCost":
    from nadaraya import variants
    from nadaraya.evaluation.efficiency import image_model_cost, model_cost
    from nadaraya.training import Run

    if means_path(name, is_model_name):
        model: Any = Run(name).load_model()
        return model_cost(model) if hasattr(model, "config") else image_model_cost(model, image_size)
    if (config := named_configuration(name, preset, vocabulary)) is not None:
        import torch

        from nadaraya.models import KernelGPTForCausalLM

        with torch.device("meta"):
            return model_cost(KernelGPTForCausalLM(config))
    try:
        from nadaraya.models.vit import create_image_model

        model = create_image_model(name, image_size=image_size, options=options, device="meta")
    except InputError:
        if get_close_matches(name, [*variants.names(), *variants.hybrids()], n=1):
            variants.by_layer(name, 1)  # raises with the nearest one
        raise
    return image_model_cost(model, image_size)
