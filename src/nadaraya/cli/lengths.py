"""`nadaraya evaluate --lengths`: the same tokens predicted at several context lengths."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nadaraya.cli.tables import FigureTable
from nadaraya.errors import InputError

if TYPE_CHECKING:
    from nadaraya.cli.texts import Source
    from nadaraya.evaluation.language import CausalModel
    from nadaraya.evaluation.lengths import LengthLosses


def lengths_of(
    causal: "CausalModel",
    source: "Source",
    lengths: list[int],
    windows: int,
    sliding_window: int | None = None,
) -> "LengthLosses":
    """The losses of a model on a text."""
    from nadaraya.evaluation import length_losses
    from nadaraya.evaluation.language import token_bytes

    try:
        sizes = token_bytes(causal.tokenizer)
    except InputError:  # tokens whose bytes depend on their neighbours
        sizes = None
    return length_losses(
        causal.model,
        source.tokens(causal),
        lengths,
        windows=windows,
        bytes_of_token=sizes,
        document_token=source.document_token,
        sliding_window=sliding_window,
    )


def figures_of(result: "LengthLosses", context: int) -> dict[str, Any]:
    """The losses as plain data, and the length of training."""
    return {"context": context, **asdict(result)}


def length_table(
    result: "LengthLosses", name: str, context: int, limited: "LengthLosses | None" = None, window: int = 0
) -> list[str | FigureTable]:
    """A line and a table, one row per length; `limited` are the losses with a sliding window."""
    size = "" if result.bytes is None else f" ({result.bytes:,} bytes)"
    line = (
        f"{name}: the last {result.stride:,} tokens of {result.windows:,} windows, {result.tokens:,} in all"
        f"{size}; the model's context is {context:,}"
    )
    headings = ["nats/token", "bits/byte", "change", "±"]
    table = FigureTable(["length"], [*headings, *([f"window\n{window:,}", "change"] if limited else [])])
    for loss, short in zip(result.lengths, limited.lengths if limited else result.lengths, strict=True):
        bits = "–" if loss.bits_per_byte is None else f"{loss.bits_per_byte:.4f}"
        error = "–" if loss.error is None else f"{loss.error:.4f}"
        row = [f"{loss.cross_entropy:.4f}", bits, f"{loss.change:+.4f}", error]
        control = [f"{short.cross_entropy:.4f}", f"{short.change:+.4f}"] if limited else []
        table.add_row(f"{loss.length:,}", *row, *control)
    return [line, table]
