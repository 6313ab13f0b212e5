"""Which heads can go: one after the other, as long as the loss stays within a budget."""

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nadaraya.errors import must_be, unknown_name
from nadaraya.interpret.banks import bank_shapes
from nadaraya.interpret.heads import bank_scores, head_names, silenced

if TYPE_CHECKING:
    from nadaraya.models import KernelGPTForCausalLM

ORDERS = ("loss", "bank", "random")


@dataclass(frozen=True)
class Removal:
    """One head that goes.

    Args:
        layer: index of the layer (0-based).
        head: its number (0-based).
        loss: in nats/token on the windows, without it and all that went before.
    """

    layer: int
    head: int
    loss: float


def choose_heads(
    model: "KernelGPTForCausalLM",
    inputs: Tensor,
    targets: Tensor,
    budget: float,
    *,
    by: str = "loss",
    seed: int = 0,
) -> list[Removal]:
    """Heads to remove, greedily, until the next one would cost more than the budget.

    Args:
        model: in eval mode; left as it is.
        inputs: (B, N) token numbers of the windows on which the loss is measured.
        targets: (B, N) the tokens that follow them.
        budget: what the loss may gain in all, in nats/token.
        by: "loss" (default), the head whose removal costs least next, all that remain being measured again
            each time; "bank", the one whose bank varies least over the lags (`bank_range`); "random", for
            comparison.
        seed: of the random order. Default 0.

    Returns:
        The removals in order; at least one head of each layer remains.

    Raises:
        InputError: an unknown order, a budget that is negative, or "bank" without a kernel of the lag.

    >>> import torch
    >>> from nadaraya.interpret.pruning import choose_heads
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", num_hidden_layers=1)).eval()
    >>> text = torch.arange(33)[None]
    >>> len(choose_heads(model, text[:, :-1], text[:, 1:], budget=9.0))
    3
    """
    from nadaraya.evaluation.language import total_nats

    if by not in ORDERS:
        raise unknown_name("by", by, ORDERS)
    if not budget >= 0.0:
        raise must_be("budget", "at least 0 nats/token", budget)

    def loss(removed: dict[int, list[int]]) -> float:
        with silenced(model, removed):
            return total_nats(model, inputs, targets) / targets.numel()

    left = head_names(model)
    if by == "random":
        random.Random(seed).shuffle(left)
    if by == "bank":
        left = _by_bank(model, inputs.shape[1])
    most, removed, found = loss({}) + budget, dict[int, list[int]](), list[Removal]()
    while True:
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
        removed.setdefault(best.layer, []).append(best.head)
        left.remove((best.layer, best.head))


def _by_bank(model: Any, num_lags: int) -> list[tuple[int, int]]:
    """The heads that have a kernel of the lag, the flattest first; others stay."""
    shapes = {shape.layer: bank_scores(shape) for shape in bank_shapes(model, num_lags)}
    if not shapes:
        raise must_be("by", "'loss' or 'random' for a model without a kernel of the lag", "bank")
    names = head_names(model)
    row = {name: sum(layer == name[0] for layer, _ in names[:at]) for at, name in enumerate(names)}
    having = [name for name in names if name[0] in shapes]
    return sorted(having, key=lambda name: shapes[name[0]][row[name]]["bank_range"])
