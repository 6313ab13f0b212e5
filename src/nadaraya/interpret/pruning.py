"""The order in which heads of a model go: by the loss without them, by their banks, or at random."""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nadaraya.errors import check_name, must_be
from nadaraya.interpret.ablation import Slices, ablated, head_layers
from nadaraya.interpret.heads import scored_banks
from nadaraya.interpret.windows import Windows

ORDERS = ("loss", "bank", "random")


@dataclass(frozen=True)
class Removal:
    """One head that goes."""

    layer: int  # both from 0
    head: int
    loss: float  # in nats/token on the windows, without it and all that went before


def by_layer(removals: Iterable[Removal]) -> dict[int, list[int]]:
    """The heads of some removals by layer, as `prune_heads` takes them."""
    found: dict[int, list[int]] = {}
    for removal in removals:
        found.setdefault(removal.layer, []).append(removal.head)
    return found


def budget_nats(budget: str | float, loss: float) -> float:
    """Read a budget: the increase of a loss that is allowed, in nats/token.

    Args:
        budget: nats/token, or per cent of the loss as in "0.5%".
        loss: of the whole model, in nats/token.

    Raises:
        InputError: neither of these, or below 0.
    """
    text = str(budget)
    try:
        amount = float(text.removesuffix("%"))
    except ValueError:
        amount = math.nan
    if not 0.0 <= amount < math.inf:
        raise must_be("budget", "as 0.5% or a number of nats/token, at least 0", budget)
    return amount * loss / 100 if text.endswith("%") else amount


def choose_heads(
    model: Any,
    windows: Windows,
    budget: float,
    *,
    by: str = "loss",
    seed: int = 0,
    slices: Slices | None = None,
) -> list[Removal]:
    """Heads to remove, greedily, until the next one would cost more than the budget.

    Args:
        model: KernelGPT, or one of transformers whose heads `prune_heads` can remove, in eval mode; left as
            it is.
        windows: on which the loss is measured.
        budget: what the loss may gain in all, in nats/token.
        by: "loss" (default), the head whose removal costs least next, all that remain being measured again
            each time; "bank", the one whose bank varies least over the lags (`bank_range`); "random", for
            comparison.
        seed: of the random order. Default 0.
        slices: hidden units that go with each head; default None, feed-forward layers stay as they are.

    Returns:
        The removals in order; at least one head of each layer remains.

    Raises:
        InputError: an unknown order, a budget that is negative, or "bank" without a kernel of the lag.

    >>> import torch
    >>> from nadaraya.interpret.pruning import choose_heads
    >>> from nadaraya.interpret.windows import Windows
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", num_hidden_layers=1)).eval()
    >>> text = torch.arange(33)[None]
    >>> len(choose_heads(model, Windows(text[:, :-1], text[:, 1:]), budget=9.0))
    3
    """
    check_name("by", by, ORDERS)
    if not budget >= 0.0:
        raise must_be("budget", "at least 0 nats/token", budget)

    def loss(removed: dict[int, list[int]]) -> float:
        with ablated(model, removed, slices.of(removed) if slices else None):
            return windows.loss(model)

    left = [(layer, head) for layer, part in head_layers(model).items() for head in part.heads]
    if by == "random":
        random.Random(seed).shuffle(left)
    if by == "bank":
        ranges = {
            (layer, head): score["bank_range"]
            for layer, scores in scored_banks(model, windows.inputs.shape[1]).items()
            for head, score in zip(head_layers(model)[layer].heads, scores, strict=True)
        }
        if not ranges:
            raise must_be("by", "'loss' or 'random' for a model without a kernel of the lag", "bank")
        left = sorted(ranges, key=lambda name: ranges[name])  # heads without a kernel of the lag stay
    most, found = loss({}) + budget, list[Removal]()
    while True:
        removed = by_layer(found)
        remaining = [layer for layer, _ in left]
        able = [(layer, head) for layer, head in left if remaining.count(layer) > 1]
        tried = [
            Removal(layer, head, loss({**removed, layer: [*removed.get(layer, ()), head]}))
            for layer, head in (able if by == "loss" else able[:1])
        ]
        best = min(tried, key=lambda removal: removal.loss, default=None)
        if best is None or not best.loss <= most:
            return found
        found.append(best)
        left.remove((best.layer, best.head))
