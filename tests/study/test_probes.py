"""Probes leave plain values beside the figures of a run, are made up for, and never cost a run."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nadaraya.evaluation import length_losses
from nadaraya.interpret import bank_shapes, bump_figures, implied_kernels, lag_histogram
from nadaraya.interpret.banks import BankShape
from nadaraya.interpret.windows import validation_tokens
from nadaraya.study import Study, plan_study, probes, run_study, worker
from nadaraya.study.probes import lacks, measure, stored_histogram, stored_shapes
from nadaraya.study.queue import Ended
from nadaraya.study.results import Row, read_results
from nadaraya.training import Recipe, Run, train

TINY = {
    "model": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "variant": "gpa-mul"},
    "data": {"context": 16, "limit": 9000},
    "training": {
        "steps": 3, "batch_size": 2, "warmup_steps": 0, "evaluate_every": 1, "validation_batches": 1,
        "sample_characters": 200, "learning_rate": 0.01,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of a bank."""
    folder = tmp_path_factory.mktemp("probed") / "run"
    return train(Recipe.from_mapping(TINY), folder, progress=False)


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """A study of one variant at two sizes, whose workers are called in this process."""

    def in_process(pending: Any, say: Callable[[str], None] = lambda line: None, **options: Any) -> Ended:
        ended = Ended()
        while jobs := [job for job in pending() if job.name not in ended.finished]:
            say(f"{jobs[0].name}: started")
            recipe, folder, *names = jobs[0].command[3:]
            assert worker.main(recipe, Path(folder), names) == 0
            ended.finished.append(jobs[0].name)
        return ended

    monkeypatch.setattr("nadaraya.study.queue.run_queue", in_process)
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps(TINY))
    sizes = {"short": {"training.steps": 2}, "long": {"training.steps": 3}}
    return Study(
        recipe=str(path), baseline="bank", variants={"bank": {}}, sizes=sizes, seeds=[0], match="tokens",
        learning_rates=[0.01], probes=["banks", "newlines"],
    )  # fmt: skip


def rows_below(folder: Path) -> list[Row]:
    return read_results(folder)["runs"]


@pytest.mark.parametrize("name", probes.probe_names())
def test_every_probe_leaves_little_and_plain_values(name: str, run: Run) -> None:
    found = measure(name, run)
    assert "error" not in found
    assert len(json.dumps(found, allow_nan=False)) < 4000


def test_banks_and_newlines_come_back_as_they_were_measured(run: Run) -> None:
    (stored,), (shape,) = stored_shapes(measure("banks", run)), bank_shapes(run, 16)
    assert stored.initial is not None
    assert shape.initial is not None
    np.testing.assert_allclose(stored.trained, shape.trained, atol=6e-4, rtol=6e-4)
    np.testing.assert_allclose(stored.initial, shape.initial, atol=6e-4, rtol=6e-4)
    assert stored.initial.shape == stored.trained.shape == (2, 16)
    found = measure("newlines", run)
    histogram = stored_histogram(found, "corpus")
    assert histogram.counts.tolist() == lag_histogram(run.corpus().text).counts.tolist()
    assert found["corpus"]["characters"] == 9000
    assert found["generated"]["characters"] == len(run.sample or "")


def test_banks_of_the_papers_size_whose_heads_start_apart_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    tables = random.normal(scale=50, size=(4, 2, 4, 256))
    shapes = [BankShape(layer, False, *pair) for layer, pair in enumerate(tables)]
    monkeypatch.setattr("nadaraya.interpret.bank_shapes", lambda run, lags: shapes)
    run: Any = SimpleNamespace(text_recipe=lambda: SimpleNamespace(data=SimpleNamespace(context=256)))
    for stored, shape in zip(stored_shapes(measure("banks", run)), shapes, strict=True):
        np.testing.assert_allclose(stored.trained, shape.trained, atol=6e-4, rtol=6e-4)


def test_a_kernel_that_is_zero_somewhere_is_kept_as_no_number() -> None:
    rows = probes._rows(np.array([[0.12345, -np.inf, 123.456, 0.0]]))
    assert rows == [[0.123, None, 123.5, 0.0]]
    assert probes._table(rows)[0, 1] == -np.inf


def test_probes_are_made_at_their_sizes_and_made_up_for(study: Study, tmp_path: Path) -> None:
    out = tmp_path / "out"
    without = study.model_copy(update={"probes": []})
    kept: list[int] = []  # runs in results.json when one starts

    def count(line: str) -> None:
        if line.endswith("started"):
            kept.append(len(json.loads((out / "results.json").read_text())["runs"]))

    run_study(without, out, say=count)
    assert kept == [0, 1]
    assert all("probes" not in row for row in rows_below(out))
    session = run_study(study, out)
    assert session.ended.finished == ["long/bank/lr0.01-seed0"]
    assert session.warnings == []
    long, short = rows_below(out)
    assert "probes" not in short
    assert list(long["probes"]) == ["banks", "newlines"]
    (probed,) = [row for row in json.loads((out / "results.json").read_text())["runs"] if "probes" in row]
    assert probed == json.loads(json.dumps(long))
    assert run_study(study, out, train=False).ended.finished == []
    both = study.model_copy(update={"probe_at": ["short", "long"], "probes": ["banks"]})
    assert run_study(both, out, train=False).ended.finished == ["short/bank/lr0.01-seed0"]


def test_a_probe_that_fails_costs_neither_the_run_nor_the_others(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(run: Run) -> dict[str, Any]:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setitem(probes._PROBES, "banks", failing)
    session = run_study(study, tmp_path / "out")
    (row,) = [row for row in rows_below(tmp_path / "out") if row["size"] == "long"]
    assert row["loss"] > 0
    assert row["probes"]["banks"] == {"error": "division by zero"}
    assert "error" not in row["probes"]["newlines"]
    assert session.warnings == ["1 of the runs lack the probe banks: --probe tries again"]
    monkeypatch.setitem(probes._PROBES, "banks", lambda run: {"layers": []})
    assert run_study(study, tmp_path / "out", train=False).warnings == []


def test_a_probe_that_leaves_too_much_or_no_number_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(probes._PROBES, "banks", lambda run: {"values": list(range(20_000))})
    assert "more than the 80,000" in measure("banks", run)["error"]
    monkeypatch.setitem(probes._PROBES, "banks", lambda run: {"value": float("nan")})
    assert "error" in measure("banks", run)
    assert not lacks({"diverged": "the loss became nan"}, "banks")  # there is no model to measure


def test_results_of_an_older_schema_go_on(study: Study, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_study(study.model_copy(update={"probes": []}), out)
    results = json.loads((out / "results.json").read_text())
    for key in ("probes", "probe_at", "seeds_at", "only_at"):
        del results["study"][key]
    del results["recipe"]["data"]["record"]  # as if the key were newer than the results
    (out / "results.json").write_text(json.dumps(results, indent=1))
    for path in (out / "runs").glob("*/*/*.json"):
        path.unlink()
    assert [left for _, left in plan_study(study, out)] == [0, 0]
    # The folders are here, their figures in results.json alone.
    assert run_study(study, out, train=False).ended.finished == ["long/bank/lr0.01-seed0"]


def test_the_measurements_of_interpretation_and_evaluation_are_kept_as_they_are(run: Run) -> None:
    assert measure("bumps", run) == json.loads(json.dumps(bump_figures(run)))
    tokens, _ = validation_tokens(run)
    lengths = measure("lengths", run)
    assert [loss["length"] for loss in lengths["lengths"]] == [16, 32, 64, 128, 256]
    expected = length_losses(run.load_model(), tokens, [16, 32, 64, 128, 256])
    assert [loss["cross_entropy"] for loss in lengths["lengths"]] == pytest.approx(
        [loss.cross_entropy for loss in expected.lengths]
    )
    (layer,) = measure("implied", run)["layers"]
    (kernel,) = implied_kernels(run)
    np.testing.assert_allclose([head["curve"] for head in layer["heads"]], kernel.curve, atol=1e-3)
    assert all(head["fits"].keys() == {"periodic", "decay"} for head in layer["heads"])
