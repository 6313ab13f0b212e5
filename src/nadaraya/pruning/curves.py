"""Heads of a run that can go within a budget, as they go or after tuning; the loss by their number."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from nadaraya.errors import InputError, must_be
from nadaraya.interpret.ablation import Slices, head_layers
from nadaraya.interpret.labels import head_label
from nadaraya.interpret.pruning import Removal, budget_nats, by_layer, choose_heads
from nadaraya.interpret.windows import Windows, disjoint_windows, validation_windows
from nadaraya.pruning.smaller import TUNE_RATE, SmallerTask, check_tuning, without
from nadaraya.training import Run
from nadaraya.training.processes import Processes
from nadaraya.training.text import open_text

Report = Callable[[str], None]


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

    Raises:
        InputError: a negative `tune`, or a `tune_rate` that is no positive number up to 1.
    """

    by: str = "loss"
    seed: int = 0
    tune: int = 0
    windows: int = 16
    mlp: bool = False
    tune_rate: float = TUNE_RATE

    def __post_init__(self) -> None:
        check_tuning(self.tune, self.tune_rate)


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
        InputError: as of `choose_heads` and `budget_nats`, a model of one head per layer, or a first head
            over the budget.
    """
    windows = validation_windows(run, plan.windows)
    model, order, units = _order(run, plan, windows, budget)
    if not order:
        if all(len(part.heads) == 1 for part in head_layers(model).values()):
            raise _without_spare_heads(run)
        amount = budget_nats(budget, windows.loss(model))
        what = f"the head of {run.path} that goes first by {plan.by} costs more than the budget of"
        raise InputError(f"{what} {amount:.4g} nats/token")
    heads = by_layer(order)
    return WithinBudget(heads, units(heads), {"order": list(map(asdict, order))})


def _without_spare_heads(run: Run) -> InputError:
    return must_be("run", "one with two heads or more in some layer", str(run.path))


def _order(
    run: Run, plan: PruningPlan, windows: Windows, budget: str | float | None = None
) -> tuple[Any, list[Removal], Callable[[dict[int, list[int]]], dict[int, list[int]]]]:
    """The model of a run, its heads as they go (default: all that can), and the units that go with some."""
    model = run.load_model(weights="trained").to(Processes().device)
    limit = math.inf if budget is None else budget_nats(budget, windows.loss(model))
    slices = Slices(model, windows) if plan.mlp else None
    order = choose_heads(model, windows, limit, by=plan.by, seed=plan.seed, slices=slices)
    return model, order, slices.of if slices else lambda heads: {}


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
    >>> from nadaraya.pruning import PruningPlan, pruning_curve
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
        raise _without_spare_heads(run)
    points = {0: candidates.point(0)}
    whole = min(points[0]["loss"], points[0]["loss_before_tuning"])
    limit = whole + budget_nats(budget, whole)

    def loss(count: int) -> float:
        points[count] = candidates.point(count)
        return float(points[count]["loss"])

    within = bisect_right(range(1, len(candidates.order) + 1), limit, key=loss)
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
        self._whole, self.order, self.units = _order(run, plan, choosing)

    def point(self, count: int) -> dict[str, Any]:
        """Losses and parameters without the first `count` heads."""
        if not 0 <= count <= len(self.order):
            raise must_be("counts", f"from 0 to {len(self.order)}, which leaves a head of each layer", count)
        heads = by_layer(self.order[:count])
        smaller = without(self._whole, heads, self.units(heads))
        task = SmallerTask(self._run, smaller, self.plan.tune, self.plan.tune_rate, self._text)
        before = after = self._measuring.loss(task.model)
        if self.plan.tune:
            task.tune()
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
