"""How heads are called everywhere: LAYER.HEAD, both from 0, as they were before any was removed."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nadaraya.errors import must_be


def head_label(layer: int, head: int | None) -> str:
    """The label of a head, which `parse_heads` reads; "*" in place of a head is every one of a layer.

    >>> from nadaraya.interpret.labels import head_label
    >>> head_label(1, 0)
    '1.0'
    """
    return f"{layer}.{'*' if head is None else head}"


def head_labels(heads: Mapping[int, Sequence[int]]) -> list[str]:
    """The labels of heads by layer, in order.

    >>> from nadaraya.interpret.labels import head_labels
    >>> head_labels({1: [2, 0], 0: [3]})
    ['0.3', '1.0', '1.2']
    """
    return [head_label(layer, head) for layer in sorted(heads) for head in sorted(heads[layer])]


class LabelledHeads:
    """What says something of some heads of a layer."""

    layer: int
    heads: tuple[int, ...]

    @property
    def labels(self) -> list[str]:
        """The heads as LAYER.HEAD."""
        return [head_label(self.layer, head) for head in self.heads]


def parse_heads(text: str, option: str = "heads") -> dict[int, list[int]]:
    """Heads by layer, of labels between commas.

    Args:
        text: such as "0.3,1.2".
        option: what a message calls it; default "heads".

    Raises:
        InputError: something else, or a head twice.

    >>> from nadaraya.interpret.labels import parse_heads
    >>> parse_heads("0.3, 1.2")
    {0: [3], 1: [2]}
    """
    found: dict[int, list[int]] = {}
    for label in text.split(","):
        if not re.fullmatch(r"\s*\d{1,6}\.\d{1,6}\s*", label):
            raise must_be(option, "LAYER.HEAD separated by commas, as in 0.3,1.2", text)
        layer, head = map(int, label.split("."))
        if head in found.get(layer, ()):
            raise must_be(option, "each head once", text)
        found.setdefault(layer, []).append(head)
    return found


def head_numbers(run_or_model: Any, layer: int, count: int) -> tuple[int, ...]:
    """The numbers of the heads that a layer has, as before any was removed.

    Args:
        run_or_model: a run on text, or a model; one without a configuration has lost no heads.
        layer: index of the layer.
        count: of its heads.
    """
    if hasattr(run_or_model, "recipe"):
        pruned = run_or_model.recipe.model.extra.get("pruned_heads")
    else:
        pruned = getattr(getattr(run_or_model, "config", None), "pruned_heads", None)
    removed = {int(key): heads for key, heads in (pruned or {}).items()}.get(layer, ())
    return tuple([head for head in range(count + len(removed)) if head not in removed])
