"""How many heads can go: the loss against their number, and the most within a budget, after tuning."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nadaraya.errors import must_be
from nadaraya.interpret.labels import head_label
from nadaraya.interpret.pruning import budget_nats, by_layer, choose_heads
from nadaraya.interpret.units import Slices
from nadaraya.interpret.windows import disjoint_windows
from nadaraya.training.processes import Processes
from nadaraya.training.pruning import TUNE_RATE, prepared, tuned, without
from nadaraya.training.run import Run
from nadaraya.training.text import open_text

Report = Callable[[str], None]


@dataclass(frozen=True)
class PruningPlan:
    """How heads are removed.

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
    """The most heads that can go within a budget.

    Args:
        heads: those that go, by layer, as `prune_run` takes them.
        units: the hidden units that go with them.
        figures: plain values: the plan, `limit` in nats/token, the order of the heads, and the `points` that
            were measured, as `pruning_curve` has them.
    """

    heads: dict[int, list[int]]
    units: dict[int, list[int]]
    figures: dict[str, Any]


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
    >>> from nadaraya.training.pruning_search import PruningPlan, pruning_curve
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
        """What the points depend on."""
        return {
            "run": str(self._run.path),
            "variant": self._run.recipe.label,
            **asdict(self.plan),
            "tokens": self._measuring.tokens,
            "order": [head_label(removal.layer, removal.head) for removal in self.order],
        }
