"""`nadaraya heads` and `nadaraya prune`: figures that agree with the model, runs that work, nothing lost."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nadaraya.training import Run

Command = Callable[..., Any]


def test_heads_are_ranked_by_the_loss_without_them(
    nadaraya: Command, trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    figures = json.loads(nadaraya("heads", trained_run, "--windows", 3, "--json").out)
    increases = [head["loss_increase"] for head in figures["heads"]]
    assert increases == sorted(increases)
    assert {(head["layer"], head["head"]) for head in figures["heads"]} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert figures["tokens"] == 3 * 16
    assert set(figures["rank_correlation"]) == {"bank_max", "bank_range", "bank_similarity"}
    table = nadaraya("heads", trained_run, "--windows", 3).out
    assert "rank correlation of range with loss +" in table
    rows = [line.split()[0] for line in table.splitlines() if re.match(r"\s*\d\.\d ", line)]
    assert rows == [f"{head['layer']}.{head['head']}" for head in figures["heads"]]


@pytest.mark.slow
def test_a_pruned_run_is_a_run(nadaraya: Command, finished_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "small"
    figures = json.loads(nadaraya("prune", finished_run, "--heads", "0.1", "--out", out, "--json").out)
    before, after = figures["before"], figures["after"]
    assert figures["removed"] == ["0.1"]
    # A head of 16 channels in W_Q, W_K, W_V and W_O, and a bank of 8 terms of 4 numbers.
    assert before["parameters"] - after["parameters"] == 4 * 16 * 32 + 4 * 8
    assert (before["cache_bytes_per_token"], after["cache_bytes_per_token"]) == (4 * 2 * 64, 3 * 2 * 64)
    run, whole = Run(out), Run(finished_run)
    assert run.final is not None
    assert run.final["loss"] == after["loss"] != before["loss"]
    assert run.final["step"] == run.steps == whole.steps
    assert run.measured_on == whole.measured_on
    assert [len(kernel.lag_logits(4)) for _, kernel in run.lag_kernels()] == [1, 2]
    assert [len(kernel.lag_logits(4)) for _, kernel in run.lag_kernels(initial=True)] == [1, 2]

    evaluated = json.loads(nadaraya("evaluate", out, "--json").out)
    assert evaluated["cross_entropy"] == pytest.approx(after["loss"], rel=1e-5)
    assert len(json.loads(nadaraya("generate", out, "--tokens", 5, "--json").out)["text"]) == 6
    rows = json.loads(nadaraya("compare", finished_run, out, "--json").out)
    assert {row["parameters"] for row in rows} == {before["parameters"], after["parameters"]}
    assert nadaraya("train", out).status == 0
    again = json.loads(nadaraya("heads", out, "--windows", 1, "--json").out)
    assert {(head["layer"], head["head"]) for head in again["heads"]} == {(0, 0), (1, 0), (1, 1)}
    assert nadaraya("prune", out, "--heads", "1.0", "--out", tmp_path / "smaller").status == 0
    assert Run(tmp_path / "smaller").load_model().config.pruned_heads == {"0": [1], "1": [0]}


@pytest.mark.slow
def test_a_pruned_run_has_a_report(nadaraya: Command, finished_run: Path, tmp_path: Path) -> None:
    assert nadaraya("prune", finished_run, "--heads", "1.0", "--out", tmp_path / "small").status == 0
    page = tmp_path / "report.html"
    assert nadaraya("report", finished_run, tmp_path / "small", "--out", page).status == 0
    assert "small" in page.read_text()


@pytest.mark.slow
def test_every_verb_calls_the_heads_of_a_pruned_run_what_prune_takes(
    nadaraya: Command, finished_run: Path, tmp_path: Path
) -> None:
    small, kept = tmp_path / "small", {"0.1", "1.0"}
    assert nadaraya("prune", finished_run, "--heads", "0.0,1.1", "--out", small).status == 0
    assert "0.0, 1.1" in nadaraya("prune", finished_run, "--heads", "1.1,0.0", "--out", tmp_path / "b").out
    page, maps = tmp_path / "report.html", tmp_path / "maps"
    assert nadaraya("report", small, "--out", page).status == 0
    assert nadaraya("maps", small, "--text", "the of", "--out", maps).status == 0
    shown = {
        "heads": nadaraya("heads", small, "--windows", 1).out,
        "implied": nadaraya("implied", small, "--terms", 0, "--windows", 2).out,
        "terms": nadaraya("banks", small, "--minimum", 0.001, "--terms", "--windows", 1).out,
    }
    for verb, text in shown.items():
        labels = set(re.findall(r"^ *(\d\.\d)[ .]", text, flags=re.MULTILINE))
        assert labels <= kept if verb == "terms" else labels == kept, verb
    assert {"head 0", "head 1"} <= set(re.findall(r"\bhead \d\b", page.read_text(encoding="utf-8")))
    titles = set(re.findall(r"<b>(\d\.\d)\b", (maps / "index.html").read_text(encoding="utf-8")))
    assert titles == kept
    assert sorted(path.name for path in (maps / "matrices").glob("layer*")) == [
        "layer-00-head-01.png",
        "layer-01-head-00.png",
    ]


@pytest.mark.slow
def test_tuning_goes_on_where_the_run_ended(nadaraya: Command, finished_run: Path, tmp_path: Path) -> None:
    arguments = ("prune", finished_run, "--heads", "0.0,1.1", "--json")
    plain = json.loads(nadaraya(*arguments, "--out", tmp_path / "plain").out)
    tuned = json.loads(nadaraya(*arguments, "--out", tmp_path / "tuned", "--tune", 8).out)
    assert tuned["after"]["loss"] < plain["after"]["loss"]
    run = Run(tmp_path / "tuned")
    steps = [(record["kind"], record["step"]) for record in run.metrics[-3:]]
    assert steps == [("train", 14), ("validation", 14), ("final", 14)]
    assert run.steps == 14
    peak = Run(finished_run).text_recipe().training.learning_rate
    assert 0 < run.series("train")[-1]["learning_rate"] < peak / 10
    assert run.series("train")[:-1] == Run(finished_run).series("train")


@pytest.mark.slow
def test_heads_go_until_the_budget_is_spent(nadaraya: Command, finished_run: Path, tmp_path: Path) -> None:
    arguments = ("prune", finished_run, "--windows", 2, "--json")
    wide = json.loads(nadaraya(*arguments, "--budget", "900%", "--out", tmp_path / "wide").out)
    assert len(wide["removed"]) == 2  # one head of each layer remains
    flat = json.loads(nadaraya(*arguments, "--budget", "9", "--by", "bank", "--out", tmp_path / "bank").out)
    ranges = {
        f"{head['layer']}.{head['head']}": head["bank_range"]
        for head in json.loads(nadaraya("heads", finished_run, "--json").out)["heads"]
    }
    first = flat["order"][0]
    assert f"{first['layer']}.{first['head']}" == min(ranges, key=lambda name: ranges[name])


@pytest.mark.slow
def test_feed_forward_units_go_with_heads(nadaraya: Command, finished_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "small"
    arguments = ("prune", finished_run, "--heads", "0.1", "--windows", 2, "--mlp")
    figures = json.loads(nadaraya(*arguments, "--out", out, "--json").out)
    # Of two heads: half of 4 · 32 units, with a row and a column of 32 each.
    assert figures["intermediate_sizes"] == {"0": 64}
    gone = figures["before"]["parameters"] - figures["after"]["parameters"]
    assert gone == 4 * 16 * 32 + 4 * 8 + 64 * 2 * 32
    assert "feed-forward units: 64 in layer 0" in nadaraya(*arguments, "--out", tmp_path / "again").out
    evaluated = json.loads(nadaraya("evaluate", out, "--json").out)
    assert evaluated["cross_entropy"] == pytest.approx(figures["after"]["loss"], rel=1e-5)
    (counted,) = json.loads(nadaraya("count", out, "--json").out)
    (whole,) = json.loads(nadaraya("count", finished_run, "--json").out)
    assert counted["parameters"] == figures["after"]["parameters"]
    # Six times the weights; of 16 tokens each of 16 channels in scores and sums, forward and backward.
    saved = whole["training_flops_per_token"] - counted["training_flops_per_token"]
    assert saved == 6 * (4 * 16 * 32 + 64 * 2 * 32) + 12 * 16 * 16
    assert nadaraya("train", out, "--run", tmp_path / "fresh").status == 0
    assert Run(tmp_path / "fresh").load_model().config.intermediate_sizes == {"0": 64}
    budget = ("prune", out, "--budget", "900%", "--windows", 1, "--mlp", "--out", tmp_path / "least")
    assert json.loads(nadaraya(*budget, "--json").out)["intermediate_sizes"] == {"0": 64, "1": 64}


@pytest.mark.slow
@pytest.mark.parametrize("by", ["loss", "bank", "random"])
def test_a_budget_may_count_after_tuning(
    nadaraya: Command, finished_run: Path, tmp_path: Path, by: str
) -> None:
    out = tmp_path / "small"
    arguments = ("--budget", "50%", "--by", by, "--windows", 2, "--tune", 4, "--after-tuning", "--json")
    done = nadaraya("prune", finished_run, "--out", out, *arguments)
    figures = json.loads(done.out)
    search = figures["search"]
    assert (search["by"], search["tune"], search["removed"]) == (by, 4, len(figures["removed"]))
    assert sorted(search["order"][: search["removed"]]) == figures["removed"]
    (last,) = (point for point in search["points"] if point["removed"] == search["removed"])
    assert last["loss"] <= search["limit"]
    assert last["parameters"] == figures["after"]["parameters"]
    assert done.err.count(f"of 2 heads removed by {by}: ") == len(search["points"])
    assert Run(out).steps == Run(finished_run).steps + 4


def test_rank_correlations_of_several_runs_are_pooled(nadaraya: Command, trained_run: Path) -> None:
    (one, two), pooled = (
        json.loads(nadaraya("heads", trained_run, trained_run, "--windows", 3, "--json").out)[key]
        for key in ("runs", "rank_correlation")
    )
    assert one == two == json.loads(nadaraya("heads", trained_run, "--windows", 3, "--json").out)
    assert set(pooled) == set(one["rank_correlation"])
    for name, each in pooled.items():
        assert (each["heads"], each["runs"]) == (8, 2)
        assert each["low"] < each["value"] < each["high"]
        if abs(one["rank_correlation"][name]) < 0.9:  # the highest that counts of four heads
            assert each["value"] == pytest.approx(one["rank_correlation"][name])
    printed = nadaraya("heads", trained_run, trained_run, "--windows", 3).out
    assert "8 heads of 2 runs, rank correlation of range with loss +: " in printed


def test_nothing_is_overwritten_and_bad_input_is_one_line(
    nadaraya: Command, finished_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "small"
    before = {path: path.read_bytes() for path in finished_run.rglob("*") if path.is_file()}
    refused = [
        (("--heads", "0.1", "--out", finished_run), "must be a folder that is new or empty"),
        (("--out", out), "--heads or --budget must be given"),
        (("--heads", "0.1", "--budget", "1%", "--out", out), "and not both"),
        (("--heads", "0.1,0.1", "--out", out), "--heads must be each head once"),
        (("--heads", "0-1", "--out", out), "--heads must be LAYER.HEAD separated by commas"),
        (("--heads", "0.0,0.1", "--out", out), "layer 0, and not all of them"),
        (("--heads", "0.7", "--out", out), "pruned_heads must be of 0 … 1 in layer 0"),
        (("--heads", "0.1", "--tune", "-1", "--out", out), "tune must be at least 0 updates"),
        (("--heads", "0.1", "--tune-rate", 2, "--out", out), "tune_rate must be a positive share"),
        (("--budget", "some", "--out", out), "budget must be as 0.5%"),
        (("--budget", "1%", "--by", "size", "--out", out), "by must be one of 'bank', 'loss', 'random'"),
        (("--budget", "1%", "--windows", 0, "--out", out), "windows must be 1 or more"),
        (("--heads", "0.1", "--mlp", "--windows", 0, "--out", out), "windows must be 1 or more"),
        (("--budget", "1%", "--after-tuning", "--out", out), "--budget and --tune, at least 1 update"),
        (
            ("--heads", "0.1", "--tune", 2, "--after-tuning", "--out", out),
            "--after-tuning must be given with",
        ),
    ]
    for arguments, message in refused:
        nadaraya("prune", finished_run, *arguments).refuses(message)
    assert not out.exists()
    assert before == {path: path.read_bytes() for path in finished_run.rglob("*") if path.is_file()}
