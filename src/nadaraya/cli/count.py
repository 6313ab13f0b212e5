"""`nadaraya count`: parameters, FLOPs and bytes of models, before or after training."""

import json
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadaraya.cli.options import figure_table, key_values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nadaraya.evaluation.efficiency import ImageModelCost, ModelCost


def count(
    models: Annotated[list[str], typer.Argument(help="Text variants, timm's image models, or run folders.")],
    preset: Annotated[
        str, typer.Option(help="Shape that text variants are built in: demo or dickens.")
    ] = "dickens",
    vocabulary: Annotated[
        int, typer.Option(help="Number of tokens that text variants are built with.", min=1, max=2**31)
    ] = 93,
    image_size: Annotated[
        int | None,
        typer.Option(help="Pixels per side of the image; default each image model's own.", min=1, max=2**16),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Keyword of timm's create_model, such as pattern=GGGA."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Count parameters (in all, of attention, of kernels), FLOPs of a forward pass, and bytes of weights.

    FLOPs are 2 × multiply-adds: per token of a text model at full context, per image of an image model.
    Checkpoints are what `torch.save` writes; a MiB is 2^20 bytes.
    """
    from nadaraya.evaluation.efficiency import ModelCost

    options = key_values(option)
    costs = [(name, _cost(name, preset, vocabulary, image_size, options)) for name in models]
    if as_json:
        typer.echo(json.dumps([{"model": name, **asdict(cost)} for name, cost in costs], indent=1))
        return
    _print([(name, cost) for name, cost in costs if isinstance(cost, ModelCost)], _TEXT_COLUMNS)
    _print([(name, cost) for name, cost in costs if not isinstance(cost, ModelCost)], _IMAGE_COLUMNS)


_TEXT_COLUMNS: "dict[str, Callable[[ModelCost], str]]" = {
    "parameters": lambda cost: f"{cost.parameters:,}",
    "attention": lambda cost: f"{cost.attention_parameters:,}",
    "MLP": lambda cost: f"{cost.mlp_parameters:,}",
    "kernels": lambda cost: f"{cost.kernel_parameters:,}",
    "MFLOP/\ntoken": lambda cost: f"{cost.flops_per_token / 1e6:.2f}",
    "weights\nMB": lambda cost: f"{cost.weight_bytes / 1e6:.1f}",
}
_IMAGE_COLUMNS: "dict[str, Callable[[ImageModelCost], str]]" = {
    "total\nM": lambda cost: f"{cost.parameters / 1e6:.2f}",
    "attention\nM": lambda cost: f"{cost.attention_parameters / 1e6:.2f}",
    "MLP\nM": lambda cost: f"{cost.mlp_parameters / 1e6:.2f}",
    "kernels\n": lambda cost: f"{cost.kernel_parameters:,}",
    "GFLOP/\nimage": lambda cost: f"{cost.flops_per_image / 1e9:.2f}",
    "checkpoint\nMiB": lambda cost: f"{cost.checkpoint_bytes / 2**20:.1f}",
}


def _print(costs: "list[tuple[str, Any]]", columns: "Mapping[str, Callable[[Any], str]]") -> None:
    from rich.console import Console

    if not costs:
        return
    table = figure_table(["model"], columns, min_width=12)
    for name, cost in costs:
        table.add_row(name, *(show(cost) for show in columns.values()))
    Console().print(table)


def _cost(
    name: str, preset: str, vocabulary: int, image_size: int | None, options: dict[str, Any]
) -> "ModelCost | ImageModelCost":
    from nadaraya import variants
    from nadaraya.errors import InputError
    from nadaraya.evaluation.efficiency import image_model_cost, model_cost
    from nadaraya.training import Run

    if Path(name).is_dir():
        model: Any = Run(name).load_model()
        return model_cost(model) if hasattr(model, "config") else image_model_cost(model, image_size)
    if name in variants.names():
        import torch

        from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM

        config = KernelGPTConfig.preset(preset, vocab_size=vocabulary, variant=name)
        with torch.device("meta"):
            return model_cost(KernelGPTForCausalLM(config))
    if "/" in name:
        raise InputError(f"{name} is not a folder")
    try:
        from nadaraya.models.vit import create_image_model

        model = create_image_model(name, image_size=image_size, options=options, device="meta")
    except InputError:
        if get_close_matches(name, variants.names(), n=1):
            variants.get(name)  # raises with the nearest one
        raise
    return image_model_cost(model, image_size)
