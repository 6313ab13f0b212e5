"""`nadaraya evaluate --lengths` and `--recall`: the same tokens at several lengths, recall by distance."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nadaraya.cli.tables import FigureTable, cell
from nadaraya.errors import InputError

if TYPE_CHECKING:
    from nadaraya.cli.texts import Source
    from nadaraya.evaluation.language import CausalModel
    from nadaraya.evaluation.lengths import LengthLosses
    from nadaraya.evaluation.recall import Recall


def lengths_of(
    causal: "CausalModel",
    source: "Source",
    lengths: list[int],
    windows: int,
    **control: Any,
) -> "LengthLosses":
    """The losses of a model on a text, with arguments of `length_losses` that make them a control."""
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
        **control,
    )


def length_table(
    result: "LengthLosses", name: str, context: int, controls: "dict[str, LengthLosses]"
) -> list[str | FigureTable]:
    """A line and a table, one row per length, with the loss and its change of each control."""
    size = "" if result.bytes is None else f" ({result.bytes:,} bytes)"
    line = (
        f"{name}: the last {result.stride:,} tokens of {result.windows:,} windows, {result.tokens:,} in all"
        f"{size}; the model's context is {context:,}"
    )
    headings = ["nats/token", "bits/byte", "change", "±"]
    for title in controls:
        headings += [title, "change"]
    table = FigureTable(["length"], headings)
    for number, loss in enumerate(result.lengths):
        row = [f"{loss.cross_entropy:.4f}", cell(loss.bits_per_byte, ".4f")]
        row += [f"{loss.change:+.4f}", cell(loss.error, ".4f")]
        for losses in controls.values():
            of_control = losses.lengths[number]
            row += [f"{of_control.cross_entropy:.4f}", f"{of_control.change:+.4f}"]
        table.add_row(f"{loss.length:,}", *row)
    return [line, table]


def recall_table(found: "Sequence[Recall]", name: str) -> list[str | FigureTable]:
    """A line and a table, one row per distance."""
    chance = found[0].alphabet
    table = FigureTable(["distance"], ["recalled", "±", "nats/token"])
    for each in found:
        figures = (f"{each.accuracy:.3f}", cell(each.error, ".3f"), f"{each.cross_entropy:.3f}")
        table.add_row(f"{each.distance:,}", *figures)
    return [
        f"{name}: random tokens, shown again after so many; without recall 1 in {chance:,} would be right, "
        f"at {math.log(chance):.3f} nats/token",
        table,
    ]
