"""The names of heads everywhere: LAYER.HEAD, both from 0, as they were before any was removed."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nadaraya.errors import must_be


def head_label(layer: int, head: int | None) -> str:
    """The label of a head, which `parse_heads` reads; "*" in place of a head is every one of a layer."""
    return f"{layer}.{'*' if head is None else head}"


def head_labels(heads: Mapping[int, Sequence[int]]) -> list[str]:
    """The labels of heads by layer, in order."""
    return [head_label(layer, head) for layer in sorted(heads) for head in sorted(heads[layer])]


class LabelledHeads:
    """Data on some heads of a layer."""

    layer: int
    heads: tuple[int, ...]

    @property
    def labels(self) -> list[str]:
        """The heads as LAYER.HEAD."""
        return [head_label(self.layer, head) for head in self.heads]


def parse_heads(text: str, option: str = "heads") -> dict[int, list[int]]:
    """Heads by layer, of labels between commas such as "0.3,1.2"; errors call it `option`."""
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
    """The numbers of the `count` heads that a layer has; a model without a configuration has lost none."""
    if hasattr(run_or_model, "recipe"):
        pruned = run_or_model.recipe.model.extra.get("pruned_heads")
    else:
        pruned = getattr(getattr(run_or_model, "config", None), "pruned_heads", None)
    removed = {int(key): heads for key, heads in (pruned or {}).items()}.get(layer, ())
    return tuple([head for head in range(count + len(removed)) if head not in removed])
