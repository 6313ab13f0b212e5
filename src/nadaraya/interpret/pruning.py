"""Choosing heads that can go: within a budget of the loss, as they go or after tuning; the loss by number."""

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nadaraya.errors import InputError, must_be, unknown_name
from nadaraya.interpret.ablation import Slices, ablated, head_layers
from nadaraya.interpret.heads import scored_banks
from nadaraya.interpret.labels import head_label
from nadaraya.interpret.pruned_run import TUNE_RATE, prepared, prune_run, tuned, without
from nadaraya.interpret.windows import Windows, disjoint_windows, validation_windows
from nadaraya.training import Run
from nadaraya.training.processes import Processes
from nadaraya.training.text import open_text

__all__ = [
    "ORDERS",
    "PruningPlan",
    "Removal",
    "WithinBudget",
    "budget_nats",
    "choose_heads",
    "heads_within",
    "most_heads",
    "prune_run",
    "pruning_curve",
]

Report = Callable[[str], None]
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
    if by not in ORDERS:
        raise unknown_name("by", by, ORDERS)
    if not budget >= 0.0:
        raise must_be("budget", "at least 0 nats/token", budget)

    def loss(removed: dict[int, list[int]]) -> float:
        with ablated(model, removed, slices.of(removed) if slices else None):
            return windows.loss(model)

    left = [(layer, head) for layer, part in head_layers(model).items() for head in part.heads]
    if by == "random":
        random.Random(seed).shuffle(left)
    if by == "bank":
        banks = scored_banks(model, windows.inputs.shape[1])
        if not banks:
            raise must_be("by", "'loss' or 'random' for a model without a kernel of the lag", "bank")
        layers = head_layers(model)
        ranges = {
            (layer, head): score["bank_range"]
            for layer, scores in banks.items()
            for head, score in zip(layers[layer].heads, scores, strict=True)
        }
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


@dataclass(frozen=True)
class PruningPlan:
    """Settings by which heads are removed.

    Args:
        by: the order in which they go, as `choose_heads` has it: "loss" (default), "bank" or "random".
        seed: of the random order. Default 0.
        tune, tune_rate: updates after the removal and their learning rate, as of `prune_run`. Default 0, 0.1.
        windows: of the validation part, on which the order is found; the loss is measured on as many others.
            Default 16.
        mlp: whether hidden units of the feed-forward layer go with each head, as `Slices` has it. Default
            False.
    """

    by: str = "loss"
    seed: int = 0
    tune: int = 0
    windows: int = 16
    mlp: bool = False
    tune_rate: float = TUNE_RATE


@dataclass(frozen=True)
class WithinBudget:
    """Heads that can go within a budget.

    Args:
        heads: those that go, by layer, as `prune_run` takes them.
        units: the hidden units that go with them.
        figures: plain values: the order of the heads; of `most_heads` also the plan, `limit` in nats/token,
            and the `points` that were measured, as `pruning_curve` has them.
    """

    heads: dict[int, list[int]]
    units: dict[int, list[int]]
    figures: dict[str, Any]


def heads_within(run: Run, budget: str | float, plan: PruningPlan) -> WithinBudget:
    """Heads that go one after the other, while the loss on windows of a run stays within a budget.

    Args:
        run: a finished run on text or token shards; left as it is.
        budget: as of `budget_nats`.
        plan: how heads go; nothing is tuned.

    Returns:
        What goes, with the order of the heads.

    Raises:
        InputError: as of `choose_heads` and `budget_nats`, or the first head is over the budget.
    """
    windows = validation_windows(run, plan.windows)
    model = run.load_model(weights="trained").to(Processes().device)
    amount = budget_nats(budget, windows.loss(model))
    slices = Slices(model, windows) if plan.mlp else None
    order = choose_heads(model, windows, amount, by=plan.by, seed=plan.seed, slices=slices)
    if not order:
        what = f"the head of {run.path} that goes first by {plan.by} costs more than the budget of"
        raise InputError(f"{what} {amount:.4g} nats/token")
    heads = by_layer(order)
    return WithinBudget(heads, slices.of(heads) if slices else {}, {"order": list(map(asdict, order))})


def pruning_curve(
    run: Run,
    plan: PruningPlan | None = None,
    counts: Iterable[int] | None = None,
    report: Report | None = None,
) -> dict[str, Any]:
    """Loss against the number of heads removed, before and after tuning.

    The order is found on windows of the validation part, the losses are measured on others. Every number of
    heads starts from the run's weights and makes the same updates; so does 0, the whole model: what tuning
    alone changes.

    Args:
        run: a finished run on text or token shards; left as it is.
        plan: how heads go; default `PruningPlan()`.
        counts: numbers of heads; default 0, 1, … until each layer has one left.
        report: takes a line on each number as it is measured; default none.

    Returns:
        Plain values, as JSON has them: `run`, `variant`, the fields of the plan, `tokens` in the windows that
        measure, `order`, the heads as LAYER.HEAD, and `points`, each with `removed`, `parameters`,
        `loss_before_tuning` and `loss`, in nats/token.

    Raises:
        InputError: as of `prune_run` and `choose_heads`, or a number of heads that cannot go.

    >>> from nadaraya.training import load_recipe, train
    >>> from nadaraya.interpret.pruning import PruningPlan, pruning_curve
    >>> overrides = ["training.steps=2", "training.warmup_steps=0", "model.hidden_size=8", "data.limit=9000"]
    >>> run = train(load_recipe("demo", [*overrides, "training.batch_size=1"]), "runs/whole", progress=False)
    >>> curve = pruning_curve(run, PruningPlan(by="random", windows=1), counts=[0, 12])
    >>> [point["removed"] for point in curve["points"]]
    [0, 12]
    """
    candidates = _Candidates(run, plan or PruningPlan(), report)
    counts = range(len(candidates.order) + 1) if counts is None else sorted(set(counts))
    points = [candidates.point(count) for count in counts]
    return {**candidates.described(), "points": points}


def most_heads(
    run: Run, budget: str | float, plan: PruningPlan | None = None, report: Report | None = None
) -> WithinBudget:
    """The most heads that can go, in the order of a plan, within a budget that counts after tuning.

    The budget is above the loss of the whole model, as it is or with as many updates as the smaller models
    get, whichever is lower: otherwise the budget of a run that still learns would be that of its tuning. The
    number is found by bisection: one more head is over the budget, and that a number is over it is taken to
    mean that all above it are.

    Args:
        run: as in `pruning_curve`.
        budget: nats/token, or per cent of that loss as in "0.5%".
        plan: how heads go; default `PruningPlan()`.
        report: as in `pruning_curve`.

    Returns:
        What goes, with the figures; no heads where the first is over the budget.

    Raises:
        InputError: as of `pruning_curve`, a budget below 0, or a model of one head per layer.
    """
    budget_nats(budget, 1.0)
    candidates = _Candidates(run, plan or PruningPlan(), report)
    if not candidates.order:
        raise must_be("run", "one with two heads or more in some layer", str(run.path))
    points = {0: candidates.point(0)}
    whole = min(points[0]["loss"], points[0]["loss_before_tuning"])
    limit = whole + budget_nats(budget, whole)
    within, beyond = 0, len(candidates.order) + 1
    while beyond - within > 1:
        count = (within + beyond) // 2
        points[count] = candidates.point(count)
        if points[count]["loss"] <= limit:
            within = count
        else:
            beyond = count
    heads = by_layer(candidates.order[:within])
    measured = [points[count] for count in sorted(points)]
    figures = {**candidates.described(), "limit": limit, "removed": within, "points": measured}
    if report:
        report(
            f"heads that go within {limit:.4f} nats/token, the whole model's {whole:.4f} and the budget: "
            f"{within}"
        )
    return WithinBudget(heads, candidates.units(heads), figures)


class _Candidates:
    """The models that a run becomes as more and more heads go."""

    def __init__(self, run: Run, plan: PruningPlan, report: Report | None) -> None:
        if plan.tune < 0:
            raise must_be("tune", "at least 0 updates", plan.tune)
        self._run, self.plan, self._report = run, plan, report
        choosing, self._measuring = disjoint_windows(run, plan.windows)
        self._text = open_text(run.text_recipe(), verify=True)
        self._whole = run.load_model(weights="trained").to(Processes().device)
        self._slices = Slices(self._whole, choosing) if plan.mlp else None
        self.order = choose_heads(
            self._whole, choosing, math.inf, by=plan.by, seed=plan.seed, slices=self._slices
        )

    def units(self, heads: Mapping[int, list[int]]) -> dict[int, list[int]]:
        """The hidden units that go with some heads."""
        return self._slices.of(heads) if self._slices else {}

    def point(self, count: int) -> dict[str, Any]:
        """Losses and parameters without the first `count` heads."""
        if not 0 <= count <= len(self.order):
            raise must_be("counts", f"from 0 to {len(self.order)}, which leaves a head of each layer", count)
        heads = by_layer(self.order[:count])
        smaller = without(self._whole, heads, self.units(heads))
        _, task, learner = prepared(self._run, smaller, self.plan.tune, self.plan.tune_rate, self._text)
        before = after = self._measuring.loss(task.model)
        if self.plan.tune:
            tuned(learner, task, [], self._run.steps, self.plan.tune)
            after = self._measuring.loss(task.model)
        if self._report:
            self._report(
                f"{count} of {len(self.order)} heads removed by {self.plan.by}: {before:.4f} nats/token, "
                f"after {self.plan.tune} updates {after:.4f}"
            )
        return {
            "removed": count,
            "parameters": task.model.num_parameters(),
            "loss_before_tuning": before,
            "loss": after,
        }

    def described(self) -> dict[str, Any]:
        """The plan and the order, on which the points depend."""
        return {
            "run": str(self._run.path),
            "variant": self._run.recipe.label,
            **asdict(self.plan),
            "tokens": self._measuring.tokens,
            "order": [head_label(removal.layer, removal.head) for removal in self.order],
        }
