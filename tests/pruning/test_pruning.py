"""Curves of pruning and the most heads within a budget: figures of the models that pruning writes."""

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nadaraya import InputError
from nadaraya.data import tokenize_corpus
from nadaraya.interpret.pruning import Removal
from nadaraya.interpret.windows import disjoint_windows
from nadaraya.models import prune_heads
from nadaraya.pruning import PruningPlan, curves, most_heads, prune_run, pruning_curve
from nadaraya.pruning.smaller import SmallerTask
from nadaraya.training import Run, load_recipe, train

CHANGES = (
    "model.variant=gpa-mul", "model.num_hidden_layers=2", "model.num_attention_heads=4",
    "model.hidden_size=16", "model.dropout=0.1", "data.context=16", "training.steps=8",
    "training.batch_size=4", "training.warmup_steps=2", "training.log_every=2", "training.evaluate_every=4",
    "training.validation_batches=2", "training.checkpoint_every=3", "training.sample_characters=0",
    "training.learning_rate=0.01",
)  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{'abcdefgh'[i % 8] * (i % 5 + 1)} the {i % 7} of\n" for i in range(200)))
    return path


@pytest.fixture(scope="module")
def run(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    recipe = load_recipe("demo", [*CHANGES, f"data.corpus={text}"])
    return train(recipe, tmp_path_factory.mktemp("whole") / "run", progress=False)


def heads_of(names: list[str]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for name in names:
        layer, head = map(int, name.split("."))
        found.setdefault(layer, []).append(head)
    return found


@pytest.mark.parametrize("mlp", [False, True])
def test_a_curve_has_the_losses_of_the_pruned_models_on_windows_of_their_own(run: Run, mlp: bool) -> None:
    lines: list[str] = []
    curve = pruning_curve(run, PruningPlan(windows=3, mlp=mlp), report=lines.append)
    assert json.loads(json.dumps(curve)) == curve
    assert (curve["by"], curve["tune"], curve["mlp"], curve["variant"]) == ("loss", 0, mlp, "gpa-mul")
    points = curve["points"]
    assert [point["removed"] for point in points] == list(range(7)) == list(range(len(lines)))
    assert "6 of 6 heads removed by loss" in lines[-1]
    parameters = [point["parameters"] for point in points]
    # Of a head of width 4: four matrices and a bank of 8 terms of 4 numbers; of 16 units two matrices.
    each = 4 * 4 * 16 + 8 * 4 + (16 * 2 * 16 if mlp else 0)
    assert [before - after for before, after in pairwise(parameters)] == [each] * 6
    measuring = disjoint_windows(run, 3)[1]
    assert curve["tokens"] == measuring.tokens
    model = run.load_model()
    assert points[0]["loss"] == pytest.approx(measuring.loss(model), rel=1e-6)
    if not mlp:
        smaller = prune_heads(model, heads_of(curve["order"][:2]))
        assert points[2]["loss"] == points[2]["loss_before_tuning"]
        assert points[2]["loss"] == pytest.approx(measuring.loss(smaller), rel=1e-5)


def test_tuned_losses_are_those_of_the_runs_that_pruning_writes(run: Run, tmp_path: Path) -> None:
    plan = PruningPlan(by="bank", tune=4, windows=2, mlp=True)
    found = most_heads(run, "900%", plan)
    (last,) = (point for point in found.figures["points"] if point["removed"] == 6)
    assert found.heads == heads_of(found.figures["order"])
    assert {layer: len(units) for layer, units in found.units.items()} == {0: 48, 1: 48}
    smaller, _, after = prune_run(run, found.heads, tmp_path / "small", units=found.units, tune=4)
    loss = disjoint_windows(run, 2)[1].loss(smaller.load_model())
    assert last["loss"] == pytest.approx(loss, rel=1e-5)
    assert last["loss"] < last["loss_before_tuning"]
    assert last["parameters"] == after.parameters
    assert smaller.final is not None
    assert smaller.final["intermediate_sizes"] == {"0": 16, "1": 16}


def test_tuning_has_rates_of_its_own_however_long_the_run_was(run: Run) -> None:
    task = SmallerTask(run, run.load_model(weights="trained"), 20, 0.5)
    task.learner.resume(None, run.steps)
    rates = []
    for step, batch in enumerate(task.batches(run.steps), start=run.steps + 1):
        task.learner.update(step, *batch)
        rates.append(task.learner.learning_rate)
    highest = 0.5 * run.text_recipe().training.learning_rate
    falling = [highest * (1 + math.cos(math.pi * place / 18)) / 2 for place in range(18)]
    assert rates == pytest.approx([0, highest / 2, *falling])


def test_a_smaller_run_is_trained_afresh_from_its_recipe(run: Run, tmp_path: Path) -> None:
    smaller, _, _ = prune_run(run, {0: [1], 1: [2, 3]}, tmp_path / "small", units={0: range(10)})
    assert smaller.text_recipe().model.extra["intermediate_sizes"] == {"0": 54}
    fresh = train(smaller.text_recipe(), tmp_path / "fresh", progress=False).load_model()
    shapes = {name: value.shape for name, value in smaller.load_model().state_dict().items()}
    assert {name: value.shape for name, value in fresh.state_dict().items()} == shapes
    assert fresh.config.intermediate_sizes == {"0": 54}


def test_a_random_order_is_that_of_its_seed(run: Run) -> None:
    orders = [
        pruning_curve(run, PruningPlan(by="random", seed=seed, windows=1), counts=[])["order"]
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]


class Rising:
    """Candidates whose loss rises with every head."""

    losses = (2.0, 2.1, 2.1, 2.5, 2.7, 2.9)

    def __init__(self, run: Any, plan: PruningPlan, report: Any) -> None:
        self.plan, self.order = plan, [Removal(0, head, 0.0) for head in range(5)]

    def point(self, count: int) -> dict[str, Any]:
        return {"removed": count, "loss": self.losses[count], "loss_before_tuning": 3.0}

    def units(self, heads: Any) -> dict[int, list[int]]:
        return {}

    def described(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("budget", "expected"), [("5%", 2), (0.1, 2), (0.5, 3), (0.6, 3), (0.7, 4), (0.9, 5), ("900%", 5)]
)
def test_bisection_finds_the_most_heads(
    monkeypatch: pytest.MonkeyPatch, run: Run, budget: str | float, expected: int
) -> None:
    monkeypatch.setattr(curves, "_Candidates", Rising)
    found = most_heads(run, budget)
    assert found.figures["removed"] == expected
    assert found.heads == {0: list(range(expected))}
    measured = [point["removed"] for point in found.figures["points"]]
    assert measured == sorted(set(measured))
    assert {0, expected, min(expected + 1, 5)} <= set(measured)
    none = most_heads(run, 0.05)
    assert none.heads == {}
    assert [point["removed"] for point in none.figures["points"]][:2] == [0, 1]


def test_points_of_a_search_are_those_of_the_curve(run: Run) -> None:
    plan = PruningPlan(windows=3)
    losses = {point["removed"]: point["loss"] for point in pruning_curve(run, plan)["points"]}
    found = most_heads(run, max(losses.values()) - losses[0], plan)
    assert found.figures["removed"] == 6
    assert found.units == {}
    for point in found.figures["points"]:
        assert point["loss"] == losses[point["removed"]]


def test_the_budget_is_above_the_lower_of_the_losses_of_the_whole_model(run: Run) -> None:
    figures = most_heads(run, "50%", PruningPlan(tune=6, windows=2)).figures
    whole = figures["points"][0]
    assert whole["removed"] == 0
    assert whole["loss"] < whole["loss_before_tuning"]  # a run of 8 updates still learns
    assert figures["limit"] == pytest.approx(1.5 * whole["loss"])
    within = [point["removed"] for point in figures["points"] if point["loss"] <= figures["limit"]]
    assert figures["removed"] == max(within)


def test_runs_on_token_shards_have_curves(text: Path, tmp_path: Path) -> None:
    shards = tokenize_corpus(
        text, tmp_path / "shards", separator="\n", vocabulary=260, validation_documents=40
    )
    recipe = load_recipe("demo", [*CHANGES, f"data.corpus={shards.folder}"])
    curve = pruning_curve(
        train(recipe, tmp_path / "run", progress=False), PruningPlan(tune=1, windows=2), counts=[0, 1]
    )
    assert [point["removed"] for point in curve["points"]] == [0, 1]
    assert 16 < curve["tokens"] <= 2 * 16  # the last window shares some with the one before it


def test_heads_of_a_model_of_one_head_a_layer_stay(text: Path, tmp_path: Path) -> None:
    recipe = load_recipe("demo", [*CHANGES, f"data.corpus={text}", "model.num_attention_heads=1"])
    single = train(recipe, tmp_path / "run", progress=False)
    for search in (curves.heads_within, most_heads):
        with pytest.raises(InputError, match="run must be one with two heads or more in some layer"):
            search(single, "50%", PruningPlan(windows=2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: most_heads(run, "some"), "budget must be as 0.5% or a number of nats/token"),
        (lambda run: most_heads(run, -1.0), "budget must be as 0.5% or a number of nats/token"),
        (lambda run: pruning_curve(run, PruningPlan(tune=-1)), "tune must be at least 0 updates"),
        (lambda run: pruning_curve(run, PruningPlan(windows=1), counts=[7]), "counts must be from 0 to 6"),
        (lambda run: pruning_curve(run, PruningPlan(by="size")), "by must be one of 'bank', 'loss'"),
    ],
)
def test_bad_input_is_refused(run: Run, call: Callable[[Run], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(run)


@pytest.mark.parametrize("wrong", [{"tune": -1}, {"tune_rate": 0.0}, {"tune_rate": math.nan}])
def test_a_plan_that_cannot_be_tuned_is_refused_before_anything_is_measured(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(wrong))} must be"):
        PruningPlan(**wrong)
